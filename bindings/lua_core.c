/* lua_core.c - opens ztrain.core from its subjects, and the Lua library from the text in libztrain. */
#include "bindings/lua_sources.h"
#include "bindings/lua_state.h"
#include "bindings/lua_subjects.h"
#include "bindings/zt_lua.h"

static const char core_key = 0; /* ztrain.core, made once for an interpreter */

static const zt_lua_subject *const subjects[] = {
#define SUBJECT_ROW(name) &zt_lua_##name,
    ZT_LUA_SUBJECTS(SUBJECT_ROW)};

/* The module is at the top. */
static void add_subject(lua_State *L, const zt_lua_subject *subject) {
  if (subject->functions) luaL_setfuncs(L, subject->functions, 0);
  if (subject->methods) {
    luaL_newmetatable(L, ZT_TENSOR_CLASS);
    luaL_getsubtable(L, -1, "methods");
    luaL_setfuncs(L, subject->methods, 0);
    lua_pop(L, 2);
  }
  if (subject->open) subject->open(L);
}

int luaopen_ztrain_core(lua_State *L) {
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &core_key) == LUA_TTABLE) return 1;
  zt_lua_make(L, NULL);
  lua_newtable(L);
  for (size_t i = 0; i < sizeof subjects / sizeof *subjects; i++) add_subject(L, subjects[i]);
  lua_pushstring(L, ZT_VERSION);
  lua_setfield(L, -2, "_VERSION");
  zt_scope_skip(L);
  lua_pushvalue(L, -1);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &core_key);
  return 1;
}

/* The loader of a library file; upvalue 1 is its row. */
static int load_source(lua_State *L) {
  const zt_lua_source *row = lua_touserdata(L, lua_upvalueindex(1));
  if (luaL_loadbufferx(L, row->text, row->nbytes, row->chunk, "t") != LUA_OK) return lua_error(L);
  lua_pushstring(L, row->module);
  lua_call(L, 1, 1);
  zt_scope_skip(L);
  return 1;
}

static int preload(lua_State *L) {
  luaL_getsubtable(L, LUA_REGISTRYINDEX, LUA_PRELOAD_TABLE);
  lua_pushcfunction(L, luaopen_ztrain_core);
  lua_setfield(L, -2, "ztrain.core");
  for (const zt_lua_source *row = zt_lua_sources; row->module; row++) {
    lua_pushlightuserdata(L, (void *)row);
    lua_pushcclosure(L, load_source, 1);
    lua_setfield(L, -2, row->module);
  }
  return 1;
}

zt_status zt_open(lua_State *L) {
  if (!lua_checkstack(L, 4)) return zt_fail(ZT_NOMEM, "Lua's stack is full");
  lua_pushcfunction(L, preload);
  zt_status st = ZT_OK;
  if (lua_pcall(L, 0, 1, 0) != LUA_OK) st = zt_fail(ZT_NOMEM, "%s", lua_tostring(L, -1));
  lua_pop(L, 1);
  return st;
}

int luaopen_ztrain(lua_State *L) {
  preload(L);
  lua_getfield(L, -1, "ztrain");
  lua_call(L, 0, 1);
  return 1;
}
