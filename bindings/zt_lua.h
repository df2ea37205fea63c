/* zt_lua.h - ztrain inside a Lua 5.4 interpreter of your own. */
#ifndef zt_lua_h
#define zt_lua_h

#include <lua.h>

#include "core/base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Makes require "ztrain" (and "ztrain.nn", ...) work in L, and nothing else: no global is set. The Lua library is in
** libztrain, as text. */
ZT_API zt_status zt_open(lua_State *L);

/* What require calls where it finds libztrain as a C module; they leave the module on the stack, or raise. */
ZT_API int luaopen_ztrain(lua_State *L);
ZT_API int luaopen_ztrain_core(lua_State *L);

#ifdef __cplusplus
}
#endif

#endif
