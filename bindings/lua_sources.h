/* lua_sources.h - the Lua library as text, made at build time from lua/ (cmake/embed_lua.cmake). */
#ifndef zt_lua_sources_h
#define zt_lua_sources_h

#include <stddef.h>

typedef struct zt_lua_source {
  const char *module; /* "ztrain.nn"; NULL ends the table */
  const char *chunk;  /* "@ztrain/nn.lua" */
  const char *text;
  size_t nbytes;
} zt_lua_source;

extern const zt_lua_source zt_lua_sources[];

#endif
