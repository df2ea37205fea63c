/* host.c - a bare Lua interpreter, `host FILE ARGUMENT...`, that is built with the sanitizers of the build. */
#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>
#include <stdio.h>

static int traceback(lua_State *L) {
  luaL_traceback(L, L, luaL_tolstring(L, 1, NULL), 1);
  return 1;
}

static void set_arg(lua_State *L, int argc, char **argv) {
  lua_newtable(L);
  for (int i = 0; i < argc; i++) {
    lua_pushstring(L, argv[i]);
    lua_rawseti(L, -2, i - 1);
  }
  lua_setglobal(L, "arg");
}

int main(int argc, char **argv) {
  lua_State *L = luaL_newstate();
  if (!L || argc < 2) return 2;
  luaL_openlibs(L);
  set_arg(L, argc, argv);
  lua_pushcfunction(L, traceback);
  int status = luaL_loadfile(L, argv[1]);
  for (int i = 2; i < argc && status == LUA_OK; i++) lua_pushstring(L, argv[i]);
  if (status == LUA_OK) status = lua_pcall(L, argc - 2, 0, 1);
  if (status != LUA_OK) fprintf(stderr, "%s\n", lua_tostring(L, -1));
  lua_close(L);
  return status == LUA_OK ? 0 : 1;
}
