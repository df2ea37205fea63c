/* lua_text.c - tokenizers from Lua: the Tokenizer class, to which ztrain/tokenizer.lua adds what is made of these
** parts. */
#include "bindings/lua_text.h"

#include <stdio.h>
#include <string.h>

#include "bindings/lua_subjects.h"

static const char tokenizer_class[] = "Tokenizer";

static void release_tokenizer(void *object) {
  zt_tokenizer **tok = object;
  zt_tokenizer_free(*tok);
  *tok = NULL;
}

const zt_tokenizer *zt_check_tokenizer(lua_State *L, int arg) {
  zt_tokenizer **tok = zt_check_object(L, arg, tokenizer_class);
  if (!*tok) zt_lua_raise(L, "the tokenizer was closed");
  return *tok;
}

/* --- making */

static int l_tokenizer_load(lua_State *L) {
  const char *path = zt_arg_string(L, 1, NULL);
  zt_tokenizer **tok = zt_new_object(L, tokenizer_class, sizeof *tok);
  zt_lua_try(L, zt_tokenizer_load(path, tok));
  return 1;
}

/* The strings of the list at 'index' as an array of Lua's (pushed), NULL-ended; borrowed from the list. */
static const char **list_strings(lua_State *L, int index, const char *what) {
  size_t n = (size_t)lua_rawlen(L, index), nbytes;
  const char **texts = zt_new_buffer(L, (n + 1) * sizeof *texts);
  for (size_t i = 0; i < n; i++) {
    if (lua_rawgeti(L, index, (lua_Integer)i + 1) != LUA_TSTRING)
      zt_lua_raise(L, "%s %d is a %s, not a string", what, (int)i + 1, luaL_typename(L, -1));
    texts[i] = lua_tolstring(L, -1, &nbytes);
    if (strlen(texts[i]) != nbytes) zt_lua_raise(L, "%s %d has a zero byte", what, (int)i + 1);
    lua_pop(L, 1);
  }
  texts[n] = NULL;
  return texts;
}

static size_t option_count(lua_State *L, int arg, const char *name, lua_Integer otherwise) {
  lua_Integer value = zt_option_integer(L, arg, name, otherwise);
  if (value < 0) zt_lua_raise(L, "train_bpe: %s = %I is negative", name, value);
  return (size_t)value;
}

static int l_tokenizer_train_bpe(lua_State *L) {
  static const char *const names[] = {"vocab_size", "min_frequency", "special_tokens", NULL};
  if (!lua_istable(L, 1)) return zt_type_error(L, 1, "list of paths");
  zt_check_options(L, 2, names);
  lua_settop(L, 2);
  zt_bpe_options o = {option_count(L, 2, "vocab_size", 30000), option_count(L, 2, "min_frequency", 2), NULL};
  if (lua_istable(L, 2) && lua_getfield(L, 2, "special_tokens") == LUA_TTABLE)
    o.special_tokens = list_strings(L, lua_gettop(L), "special token");
  const char **paths = list_strings(L, 1, "path");
  zt_tokenizer **tok = zt_new_object(L, tokenizer_class, sizeof *tok);
  zt_lua_try(L, zt_tokenizer_train_bpe(paths, (size_t)lua_rawlen(L, 1), &o, tok));
  return 1;
}

/* --- text to ids and back */

static int t_encode_ids(lua_State *L) {
  static const char *const names[] = {"add_special_tokens", "split_special_tokens", NULL};
  const zt_tokenizer *tok = zt_check_tokenizer(L, 1);
  size_t nbytes;
  const char *text = zt_arg_string(L, 2, &nbytes);
  zt_check_options(L, 3, names);
  zt_encode_options o = {zt_option_boolean(L, 3, "add_special_tokens", false),
                         zt_option_boolean(L, 3, "split_special_tokens", false)};
  void **box = zt_new_box(L);
  zt_ids ids = {0};
  zt_status st = zt_tokenizer_encode(tok, text, nbytes, &o, &ids);
  *box = ids.data;
  zt_lua_try(L, st);
  lua_createtable(L, (int)ids.count, 0);
  for (size_t i = 0; i < ids.count; i++) {
    lua_pushinteger(L, ids.data[i]);
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
  return 1;
}

/* Integers of a list, as an array of Lua's (pushed). */
static const int64_t *list_ids(lua_State *L, int index, size_t *count) {
  *count = (size_t)lua_rawlen(L, index);
  int64_t *ids = zt_new_buffer(L, *count * sizeof *ids);
  for (size_t i = 0; i < *count; i++) {
    int whole;
    lua_rawgeti(L, index, (lua_Integer)i + 1);
    ids[i] = lua_tointegerx(L, -1, &whole);
    if (!whole) zt_lua_raise(L, "decode: element %d is a %s, not an id", (int)i + 1, luaL_typename(L, -1));
    lua_pop(L, 1);
  }
  return ids;
}

static const int64_t *tensor_ids(lua_State *L, const zt_tensor *t, size_t *count) {
  if (t->ndim > 1 || (t->dtype != ZT_I64 && t->dtype != ZT_I32))
    zt_lua_raise(L, "decode: one row of int64 or int32 ids expected, got %s of %s", zt_shape_text(t),
                 zt_dtype_name(t->dtype));
  *count = (size_t)zt_tensor_count(t);
  int64_t *ids = zt_new_buffer(L, *count * sizeof *ids);
  zt_lua_try(L, zt_tensor_read(zt_lua_ctx(L), t, ids));
  const int32_t *narrow = (const int32_t *)ids;
  for (size_t i = *count; t->dtype == ZT_I32 && i-- > 0;) {
    int32_t id = narrow[i]; /* from the end: wide ids overwrite narrow ones that are done */
    ids[i] = id;
  }
  return ids;
}

static int t_decode(lua_State *L) {
  static const char *const names[] = {"skip_special_tokens", NULL};
  const zt_tokenizer *tok = zt_check_tokenizer(L, 1);
  size_t count, nbytes;
  char *text = NULL;
  if (!zt_is_tensor(L, 2) && !lua_istable(L, 2)) return zt_type_error(L, 2, "list or tensor of ids");
  zt_check_options(L, 3, names);
  bool skip = zt_option_boolean(L, 3, "skip_special_tokens", false);
  const int64_t *ids = lua_istable(L, 2) ? list_ids(L, 2, &count) : tensor_ids(L, zt_check_tensor(L, 2), &count);
  void **box = zt_new_box(L);
  zt_lua_try(L, zt_tokenizer_decode(tok, ids, count, skip, &text, &nbytes));
  *box = text;
  lua_pushlstring(L, text, nbytes);
  return 1;
}

/* --- asking */

static void push_id(lua_State *L, int64_t id) {
  if (id < 0)
    lua_pushnil(L);
  else
    lua_pushinteger(L, id);
}

static int t_token_to_id(lua_State *L) {
  const zt_tokenizer *tok = zt_check_tokenizer(L, 1);
  size_t nbytes;
  const char *token = zt_arg_string(L, 2, &nbytes);
  push_id(L, strlen(token) == nbytes ? zt_tokenizer_token_to_id(tok, token) : -1);
  return 1;
}

static void push_bytes(lua_State *L, const zt_tokenizer *tok, int64_t id) {
  size_t nbytes;
  const char *bytes = zt_tokenizer_id_to_bytes(tok, id, &nbytes);
  if (bytes)
    lua_pushlstring(L, bytes, nbytes);
  else
    lua_pushnil(L);
}

static int t_id_to_token(lua_State *L) {
  push_bytes(L, zt_check_tokenizer(L, 1), zt_arg_integer(L, 2));
  return 1;
}

static int t_special(lua_State *L) {
  static const char *const roles[] = {"bos", "eos", "unk", "pad", "sep", "cls", "mask", NULL};
  const zt_tokenizer *tok = zt_check_tokenizer(L, 1);
  const char *role = zt_arg_string(L, 2, NULL);
  int i = 0;
  while (roles[i] && strcmp(roles[i], role) != 0) i++;
  if (!roles[i]) return zt_lua_unknown(L, "role", role, roles);
  push_id(L, zt_tokenizer_special(tok, role));
  return 1;
}

static int t_save_pretrained(lua_State *L) {
  const zt_tokenizer *tok = zt_check_tokenizer(L, 1);
  zt_lua_try(L, zt_tokenizer_save(tok, zt_arg_string(L, 2, NULL)));
  return 0;
}

static int t_hash(lua_State *L) {
  char text[17];
  snprintf(text, sizeof text, "%016llx", (unsigned long long)zt_tokenizer_hash(zt_check_tokenizer(L, 1)));
  lua_pushstring(L, text);
  return 1;
}

/* template(pair): list of {id = integer} or {text = 1 or 2}, with type_id each. */
static int t_template(lua_State *L) {
  size_t count;
  const zt_template_item *items = zt_tokenizer_template(zt_check_tokenizer(L, 1), zt_opt_boolean(L, 2, false), &count);
  lua_createtable(L, (int)count, 0);
  for (size_t i = 0; i < count; i++) {
    lua_createtable(L, 0, 2);
    lua_pushinteger(L, items[i].id < 0 ? items[i].text + 1 : items[i].id);
    lua_setfield(L, -2, items[i].id < 0 ? "text" : "id");
    lua_pushinteger(L, items[i].type_id);
    lua_setfield(L, -2, "type_id");
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
  return 1;
}

static int t_settings(lua_State *L) {
  zt_tokenizer_settings s = zt_tokenizer_get_settings(zt_check_tokenizer(L, 1));
  lua_createtable(L, 0, 4);
  push_id(L, s.max_length);
  lua_setfield(L, -2, "max_length");
  lua_pushstring(L, s.pad_left ? "left" : "right");
  lua_setfield(L, -2, "padding_side");
  lua_pushstring(L, s.truncate_left ? "left" : "right");
  lua_setfield(L, -2, "truncation_side");
  lua_pushboolean(L, s.type_ids);
  lua_setfield(L, -2, "type_ids");
  return 1;
}

/* eos_token_id, eos_token and so on; false: no such field. */
static bool push_role_field(lua_State *L, const zt_tokenizer *tok, const char *name) {
  const char *end = strstr(name, "_token");
  char role[8];
  if (!end || (size_t)(end - name) >= sizeof role) return false;
  bool is_id = strcmp(end, "_token_id") == 0;
  if (!is_id && strcmp(end, "_token") != 0) return false;
  snprintf(role, sizeof role, "%.*s", (int)(end - name), name);
  int64_t id = zt_tokenizer_special(tok, role);
  if (is_id)
    push_id(L, id);
  else
    push_bytes(L, tok, id);
  return true;
}

/* Upvalue 1 holds the methods. */
static int t_index(lua_State *L) {
  const zt_tokenizer *tok = zt_check_tokenizer(L, 1);
  const char *name = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : "";
  lua_settop(L, 2);
  if (lua_rawget(L, lua_upvalueindex(1)) != LUA_TNIL) return 1;
  if (strcmp(name, "vocab_size") == 0)
    lua_pushinteger(L, zt_tokenizer_vocab_size(tok));
  else if (!push_role_field(L, tok, name))
    lua_pushnil(L);
  return 1;
}

static const luaL_Reg methods[] = {{"encode_ids", t_encode_ids},
                                   {"decode", t_decode},
                                   {"token_to_id", t_token_to_id},
                                   {"id_to_token", t_id_to_token},
                                   {"special", t_special},
                                   {"save_pretrained", t_save_pretrained},
                                   {"hash", t_hash},
                                   {"template", t_template},
                                   {"settings", t_settings},
                                   {NULL, NULL}};

static void open(lua_State *L) {
  zt_new_class(L, tokenizer_class, methods, release_tokenizer);
  luaL_getmetatable(L, tokenizer_class);
  lua_getfield(L, -1, "__index");
  lua_pushvalue(L, -1);
  lua_setfield(L, -4, tokenizer_class); /* core.Tokenizer: the library adds methods to it */
  lua_pushcclosure(L, t_index, 1);
  lua_setfield(L, -2, "__index");
  lua_pop(L, 1);
}

static const luaL_Reg functions[] = {
    {"tokenizer_load", l_tokenizer_load}, {"tokenizer_train_bpe", l_tokenizer_train_bpe}, {NULL, NULL}};
const zt_lua_subject zt_lua_text = {functions, NULL, open};
