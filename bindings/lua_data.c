/* lua_data.c - data sets from Lua: text corpora in blocks, and the order of an epoch. */
#include <string.h>

#include "bindings/lua_subjects.h"
#include "bindings/lua_text.h"

static const char corpus_class[] = "Corpus";

typedef struct corpus {
  zt_corpus *corpus; /* owned */
  lua_Integer block_size;
} corpus;

static void release_corpus(void *object) {
  corpus *o = object;
  zt_corpus_close(o->corpus);
  o->corpus = NULL;
}

static corpus *check_corpus(lua_State *L, int arg) {
  corpus *o = zt_check_object(L, arg, corpus_class);
  if (!o->corpus) zt_lua_raise(L, "the corpus was closed");
  return o;
}

/* An integer argument of low .. high. */
static lua_Integer arg_between(lua_State *L, int arg, lua_Integer low, lua_Integer high) {
  lua_Integer value = zt_arg_integer(L, arg);
  if (value >= low && value <= high) return value;
  lua_pushfstring(L, "%I is not in %I .. %I", value, low, high);
  zt_arg_error(L, arg, lua_tostring(L, -1));
  return 0;
}

static int l_corpus_open(lua_State *L) {
  const char *path = zt_arg_string(L, 1, NULL), *folder = lua_isnoneornil(L, 4) ? NULL : zt_arg_string(L, 4, NULL);
  const zt_tokenizer *tok = zt_check_tokenizer(L, 2);
  lua_Integer block_size = arg_between(L, 3, 1, INT32_MAX);
  corpus *o = zt_new_object(L, corpus_class, sizeof *o);
  o->block_size = block_size;
  zt_lua_try(L, zt_corpus_open(path, tok, (size_t)block_size, folder, &o->corpus));
  return 1;
}

/* Writes the blocks that the list at 'rows' names, positions from 1, one after another. */
static void copy_blocks(lua_State *L, const corpus *o, int rows, int64_t n, int64_t *ids) {
  lua_Integer n_blocks = (lua_Integer)zt_corpus_block_count(o->corpus);
  for (int64_t i = 0; i < n; i++) {
    int whole;
    lua_rawgeti(L, rows, i + 1);
    lua_Integer at = lua_tointegerx(L, -1, &whole);
    if (!whole) zt_lua_raise(L, "blocks: row %I is a %s, not a position", i + 1, luaL_typename(L, -1));
    if (at < 1 || at > n_blocks) zt_lua_raise(L, "blocks: row %I: %I is not in 1 .. %I", i + 1, at, n_blocks);
    zt_lua_try(L, zt_corpus_get_block(o->corpus, (size_t)at - 1, ids + i * o->block_size));
    lua_pop(L, 1);
  }
}

static int c_blocks(lua_State *L) {
  corpus *o = check_corpus(L, 1);
  if (!lua_istable(L, 2)) zt_type_error(L, 2, "list of positions");
  int64_t shape[2] = {(int64_t)lua_rawlen(L, 2), o->block_size};
  zt_ctx *c = zt_lua_ctx(L);
  int64_t *ids = zt_new_buffer(L, (size_t)shape[0] * (size_t)shape[1] * sizeof *ids);
  copy_blocks(L, o, 2, shape[0], ids);
  zt_lua_try(L, zt_tensor_from(c, zt_new_tensor(L), ZT_I64, 2, shape, ids));
  return 1;
}

/* Upvalue 1 holds the methods. */
static int c_index(lua_State *L) {
  corpus *o = check_corpus(L, 1);
  const char *name = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : "";
  if (strcmp(name, "block_count") == 0)
    lua_pushinteger(L, (lua_Integer)zt_corpus_block_count(o->corpus));
  else if (strcmp(name, "token_count") == 0)
    lua_pushinteger(L, (lua_Integer)zt_corpus_token_count(o->corpus));
  else if (strcmp(name, "block_size") == 0)
    lua_pushinteger(L, o->block_size);
  else
    lua_rawget(L, lua_upvalueindex(1));
  return 1;
}

static int l_order_at(lua_State *L) {
  lua_Integer seed = zt_arg_integer(L, 1), epoch = zt_arg_integer(L, 2), count = arg_between(L, 3, 1, LUA_MAXINTEGER);
  lua_Integer i = arg_between(L, 4, 1, count);
  uint64_t at = zt_order_at((uint64_t)seed, (uint64_t)epoch, (uint64_t)count, (uint64_t)i - 1);
  lua_pushinteger(L, (lua_Integer)at + 1);
  return 1;
}

static const luaL_Reg corpus_methods[] = {{"blocks", c_blocks}, {NULL, NULL}};

static void open(lua_State *L) {
  zt_new_class(L, corpus_class, corpus_methods, release_corpus);
  luaL_getmetatable(L, corpus_class);
  lua_getfield(L, -1, "__index");
  lua_pushcclosure(L, c_index, 1);
  lua_setfield(L, -2, "__index");
  lua_pop(L, 1);
}

static const luaL_Reg functions[] = {{"corpus_open", l_corpus_open}, {"order_at", l_order_at}, {NULL, NULL}};
const zt_lua_subject zt_lua_data = {functions, NULL, open};
