/* lua_subjects.h - the files that make up ztrain.core; lua_core.c collects them. */
#ifndef zt_lua_subjects_h
#define zt_lua_subjects_h

#include "bindings/lua_base.h"

/* clang-format off */
#define ZT_LUA_SUBJECTS(S) \
  S(base) S(scopes) S(tensor) S(ops) S(autograd) S(optim) S(engine) S(scaler) S(checkpoint) S(system) S(io) S(json) \
  S(text) S(data) S(comm) S(host)
/* clang-format on */

#define ZT_LUA_SUBJECT_DECLARE(name) extern const zt_lua_subject zt_lua_##name;
ZT_LUA_SUBJECTS(ZT_LUA_SUBJECT_DECLARE)

#endif
