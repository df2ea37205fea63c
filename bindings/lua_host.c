/* lua_host.c - what a script has from its host: what the command line said, and functions to be called at its end. */
#include <string.h>

#include "bindings/lua_state.h"
#include "bindings/lua_subjects.h"

static const char at_end_key = 0; /* the list of functions */

static void push_value(lua_State *L, const zt_option *option, const zt_setting *setting) {
  switch (option->type) {
    case ZT_FLAG:
      lua_pushboolean(L, strncmp(option->key, "no_", 3) != 0);
      break;
    case ZT_NUMBER:
      lua_pushnumber(L, setting->number);
      break;
    case ZT_CHOICE:
    case ZT_TEXT:
      lua_pushstring(L, setting->text);
      break;
    default:
      lua_pushinteger(L, setting->integer);
      break;
  }
}

static int l_settings(lua_State *L) {
  const zt_settings *settings = zt_lua_get(L)->settings;
  const zt_option *option;
  lua_newtable(L);
  for (int i = 0; settings && (option = zt_option_at(i)); i++) {
    const zt_setting *setting = zt_option_setting(option, settings);
    if (!setting->given || !option->for_lua) continue;
    push_value(L, option, setting);
    lua_setfield(L, -2, strncmp(option->key, "no_", 3) == 0 ? option->key + 3 : option->key);
  }
  return 1;
}

static int l_at_end(lua_State *L) {
  zt_check_callable(L, 1);
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &at_end_key) != LUA_TTABLE) {
    lua_newtable(L);
    lua_pushvalue(L, -1);
    lua_rawsetp(L, LUA_REGISTRYINDEX, &at_end_key);
  }
  lua_pushvalue(L, 1);
  lua_rawseti(L, -2, (lua_Integer)lua_rawlen(L, -2) + 1);
  return 0;
}

void zt_lua_forget_at_end(lua_State *L) {
  lua_pushnil(L);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &at_end_key);
}

/* One of them may add more. */
void zt_lua_run_at_end(lua_State *L) {
  int top = lua_gettop(L);
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &at_end_key) == LUA_TTABLE)
    for (lua_Integer i = 1; lua_rawgeti(L, -1, i) != LUA_TNIL; i++) {
      lua_pushcfunction(L, zt_scope_run);
      lua_pushliteral(L, "end");
      lua_rotate(L, -3, 2);
      lua_call(L, 2, 0);
    }
  lua_settop(L, top);
}

static const luaL_Reg functions[] = {{"settings", l_settings}, {"at_end", l_at_end}, {NULL, NULL}};
const zt_lua_subject zt_lua_host = {functions, NULL, NULL};
