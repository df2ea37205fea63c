/* lua_optim.h - what optimizers and the engine read alike. */
#ifndef zt_lua_optim_h
#define zt_lua_optim_h

#include "bindings/lua_base.h"

extern const char *const zt_lua_optim_names[]; /* the kinds, in the order of zt_optim_kind; NULL ends it */
/* A list of a table of numbers for each group; the array is Lua's (pushed). */
zt_hyper *zt_lua_check_hypers(lua_State *L, int arg, int *n_groups);

#endif
