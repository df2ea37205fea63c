/* lua_json.c - JSON from and to Lua values. null is core.null; arrays and objects are tables; whole numbers are integers. */
#include <stdlib.h>
#include <string.h>

#include "bindings/lua_subjects.h"
#include "core/io/json.h"

/* --- in */

static const char value_class[] = "ztrain.json", text_class[] = "ztrain.json_text";

static void release_value(void *object) {
  json_t **value = object;
  json_decref(*value);
  *value = NULL;
}

static void push_null(lua_State *L) { lua_pushlightuserdata(L, NULL); }

static void push_value(lua_State *L, json_t *value);

static void push_object(lua_State *L, json_t *object) {
  const char *key;
  json_t *value;
  lua_createtable(L, 0, (int)json_object_size(object));
  json_object_foreach(object, key, value) {
    lua_pushstring(L, key);
    push_value(L, value);
    lua_rawset(L, -3);
  }
}

static void push_array(lua_State *L, json_t *array) {
  size_t n = json_array_size(array);
  lua_createtable(L, (int)n, 0);
  for (size_t i = 0; i < n; i++) {
    push_value(L, json_array_get(array, i));
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
}

/* Recursion ends at the parser's limit of 2048 levels. */
static void push_value(lua_State *L, json_t *value) {
  luaL_checkstack(L, 4, "JSON is nested too deeply");
  switch (json_typeof(value)) {
    case JSON_OBJECT:
      push_object(L, value);
      break;
    case JSON_ARRAY:
      push_array(L, value);
      break;
    case JSON_STRING:
      lua_pushlstring(L, json_string_value(value), json_string_length(value));
      break;
    case JSON_INTEGER:
      lua_pushinteger(L, json_integer_value(value));
      break;
    case JSON_REAL:
      lua_pushnumber(L, json_real_value(value));
      break;
    case JSON_NULL:
      push_null(L);
      break;
    default:
      lua_pushboolean(L, json_is_true(value));
  }
}

static int return_value(lua_State *L, json_t **value) {
  push_value(L, *value);
  release_value(value);
  return 1;
}

static int l_json_decode(lua_State *L) {
  size_t nbytes;
  const char *text = zt_arg_string(L, 1, &nbytes), *name = lua_isnoneornil(L, 2) ? "JSON" : zt_arg_string(L, 2, NULL);
  json_t **value = zt_new_object(L, value_class, sizeof *value);
  zt_lua_try(L, zt_json_parse(name, text, nbytes, value));
  return return_value(L, value);
}

static int l_json_load(lua_State *L) {
  const char *path = zt_arg_string(L, 1, NULL);
  json_t **value = zt_new_object(L, value_class, sizeof *value);
  zt_lua_try(L, zt_json_load(path, value));
  return return_value(L, value);
}

/* --- out */

enum { MAX_DEPTH = 128 };

typedef struct writer {
  zt_buffer *text;
  lua_Integer indent; /* spaces a level; negative: all on one line */
  bool empty_array;
} writer;

/* Where in the value something stands, for messages. */
typedef struct place {
  const struct place *up;
  const char *key; /* NULL: a position */
  lua_Integer index;
  int depth;
} place;

static void release_text(void *object) { zt_buffer_clear(object); }

/* Raises "json_encode: .a[3].b: <text>". */
static void fail_at(lua_State *L, const place *at, const char *text) {
  luaL_checkstack(L, 8, NULL);
  lua_pushliteral(L, "");
  for (; at->up; at = at->up) {
    if (at->key)
      lua_pushfstring(L, ".%s%s", at->key, lua_tostring(L, -1));
    else
      lua_pushfstring(L, "[%I]%s", at->index, lua_tostring(L, -1));
    lua_remove(L, -2);
  }
  const char *path = lua_tostring(L, -1);
  zt_lua_raise(L, "json_encode: %s%s%s", path, *path ? ": " : "", text);
}

static void put(lua_State *L, const writer *w, const char *text, size_t nbytes) {
  zt_lua_try(L, zt_buffer_add(w->text, text, nbytes));
}

/* What stands before an element, or before the closing bracket, which has the depth of the opening one. */
static void put_break(lua_State *L, const writer *w, int depth, bool first) {
  if (w->indent < 0) {
    if (!first) put(L, w, ", ", 2);
    return;
  }
  if (!first) put(L, w, ",", 1);
  zt_lua_try(L, zt_buffer_addf(w->text, "\n%*s", (int)w->indent * depth, ""));
}

static void put_end(lua_State *L, const writer *w, int depth, const char *bracket) {
  if (w->indent >= 0) put_break(L, w, depth, true);
  put(L, w, bracket, 1);
}

static void put_string(lua_State *L, const writer *w, const char *text, size_t nbytes, const place *at) {
  zt_status st = zt_json_add_string(w->text, text, nbytes);
  if (st != ZT_OK) fail_at(L, at, zt_message());
}

static void put_value(lua_State *L, const writer *w, const place *at);

static void put_array(lua_State *L, const writer *w, const place *at, lua_Integer n) {
  int table = lua_gettop(L);
  put(L, w, "[", 1);
  for (lua_Integer i = 1; i <= n; i++) {
    place element = {at, NULL, i, at->depth + 1};
    put_break(L, w, element.depth, i == 1);
    lua_rawgeti(L, table, i);
    put_value(L, w, &element);
    lua_pop(L, 1);
  }
  put_end(L, w, at->depth, "]");
}

typedef struct key {
  const char *text; /* the table keeps it */
  size_t nbytes;
} key;

static int compare_keys(const void *a, const void *b) {
  const key *x = a, *y = b;
  int order = memcmp(x->text, y->text, x->nbytes < y->nbytes ? x->nbytes : y->nbytes);
  return order ? order : (x->nbytes > y->nbytes) - (x->nbytes < y->nbytes);
}

/* The keys of the table at the top, sorted, in an array that is pushed. */
static key *sorted_keys(lua_State *L, const place *at, size_t n) {
  int table = lua_gettop(L);
  key *keys = zt_new_buffer(L, n * sizeof *keys);
  size_t i = 0;
  lua_pushnil(L);
  while (lua_next(L, table)) {
    lua_pop(L, 1);
    if (lua_type(L, -1) != LUA_TSTRING) fail_at(L, at, "a table with keys other than strings, or 1, 2, 3, ...");
    keys[i].text = lua_tolstring(L, -1, &keys[i].nbytes);
    i++;
  }
  qsort(keys, n, sizeof *keys, compare_keys);
  return keys;
}

static void put_object(lua_State *L, const writer *w, const place *at, size_t n) {
  int table = lua_gettop(L);
  const key *keys = sorted_keys(L, at, n);
  put(L, w, "{", 1);
  for (size_t i = 0; i < n; i++) {
    place member = {at, keys[i].text, 0, at->depth + 1};
    put_break(L, w, member.depth, i == 0);
    put_string(L, w, keys[i].text, keys[i].nbytes, at);
    put(L, w, ": ", 2);
    lua_pushlstring(L, keys[i].text, keys[i].nbytes);
    lua_rawget(L, table);
    put_value(L, w, &member);
    lua_pop(L, 1);
  }
  put_end(L, w, at->depth, "}");
  lua_settop(L, table);
}

static size_t count_keys(lua_State *L) {
  size_t n = 0;
  lua_pushnil(L);
  for (; lua_next(L, -2); lua_pop(L, 1)) n++;
  return n;
}

static void put_table(lua_State *L, const writer *w, const place *at) {
  size_t n = count_keys(L), n_positions = (size_t)lua_rawlen(L, -1);
  if (at->depth >= MAX_DEPTH) fail_at(L, at, "nested deeper than 128 tables; does a table contain itself?");
  if (n == 0)
    put(L, w, w->empty_array ? "[]" : "{}", 2);
  else if (n == n_positions)
    put_array(L, w, at, (lua_Integer)n);
  else
    put_object(L, w, at, n);
}

static void put_number(lua_State *L, const writer *w, const place *at) {
  zt_status st = lua_isinteger(L, -1) ? zt_buffer_addf(w->text, LUA_INTEGER_FMT, lua_tointeger(L, -1))
                                      : zt_json_add_real(w->text, lua_tonumber(L, -1));
  if (st != ZT_OK) fail_at(L, at, zt_message());
}

/* Writes the value at the top. */
static void put_value(lua_State *L, const writer *w, const place *at) {
  size_t nbytes;
  const char *text;
  luaL_checkstack(L, 8, "a table is nested too deeply");
  switch (lua_type(L, -1)) {
    case LUA_TTABLE:
      put_table(L, w, at);
      return;
    case LUA_TNUMBER:
      put_number(L, w, at);
      return;
    case LUA_TBOOLEAN:
      text = lua_toboolean(L, -1) ? "true" : "false";
      put(L, w, text, strlen(text));
      return;
    case LUA_TSTRING:
      text = lua_tolstring(L, -1, &nbytes);
      put_string(L, w, text, nbytes, at);
      return;
    case LUA_TLIGHTUSERDATA:
      if (lua_touserdata(L, -1) == NULL) {
        put(L, w, "null", 4);
        return;
      }
  }
  lua_pushfstring(L, "JSON has no %s", luaL_typename(L, -1));
  fail_at(L, at, lua_tostring(L, -1));
}

static int l_json_encode(lua_State *L) {
  static const char *const names[] = {"indent", "empty_array", NULL};
  lua_settop(L, 2);
  zt_check_options(L, 2, names);
  writer w = {.indent = zt_option_integer(L, 2, "indent", -1),
              .empty_array = zt_option_boolean(L, 2, "empty_array", false)};
  if (w.indent > 16) return zt_lua_raise(L, "json_encode: option 'indent' is %I, more than 16", w.indent);
  w.text = zt_new_object(L, text_class, sizeof *w.text);
  lua_pushvalue(L, 1);
  put_value(L, &w, &(place){0});
  lua_pushlstring(L, w.text->data, w.text->nbytes);
  zt_buffer_clear(w.text);
  return 1;
}

static void open(lua_State *L) {
  zt_new_class(L, value_class, NULL, release_value);
  zt_new_class(L, text_class, NULL, release_text);
  push_null(L);
  lua_setfield(L, -2, "null");
}

static const luaL_Reg functions[] = {
    {"json_decode", l_json_decode}, {"json_encode", l_json_encode}, {"json_load", l_json_load}, {NULL, NULL}};
const zt_lua_subject zt_lua_json = {functions, NULL, open};
