/* lua_checkpoint.c - checkpoints as files: finding, looking into, exporting. Writing them is the engine's (lua_engine.c). */
#include "bindings/lua_subjects.h"
#include "core/base/mem.h"
#include "core/train/checkpoint.h"

static const char class_name[] = "Checkpoint";

static void release(void *object) {
  zt_checkpoint **ck = object;
  zt_checkpoint_close(*ck);
  *ck = NULL;
}

static zt_checkpoint *check_checkpoint(lua_State *L) {
  zt_checkpoint **ck = zt_check_object(L, 1, class_name);
  if (!*ck) zt_lua_raise(L, "the checkpoint was closed");
  return *ck;
}

static int l_latest(lua_State *L) {
  const char *folder = zt_arg_string(L, 1, NULL);
  void **box = zt_new_box(L);
  char *path = NULL;
  zt_lua_try(L, zt_checkpoint_latest(folder, &path));
  *box = path;
  lua_pushstring(L, path);
  return 1;
}

static int l_prune(lua_State *L) {
  const char *folder = zt_arg_string(L, 1, NULL);
  zt_lua_try(L, zt_checkpoint_prune(folder, (int)zt_arg_integer(L, 2)));
  return 0;
}

static int l_open(lua_State *L) {
  const char *path = zt_arg_string(L, 1, NULL);
  zt_checkpoint **ck = zt_new_object(L, class_name, sizeof *ck);
  zt_lua_try(L, zt_checkpoint_open(path, ck));
  return 1;
}

static int c_json(lua_State *L) {
  lua_pushstring(L, zt_checkpoint_json(check_checkpoint(L)));
  return 1;
}

static int c_names(lua_State *L) {
  const zt_checkpoint *ck = check_checkpoint(L);
  size_t n = zt_checkpoint_count(ck);
  lua_createtable(L, (int)n, 0);
  for (size_t i = 0; i < n; i++) {
    lua_pushstring(L, zt_checkpoint_get(ck, i)->name);
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
  return 1;
}

static const zt_checkpoint_item *check_item(lua_State *L, const zt_checkpoint *ck) {
  const char *name = zt_arg_string(L, 2, NULL);
  const zt_checkpoint_item *item = zt_checkpoint_find(ck, name);
  if (!item) zt_lua_raise(L, "the checkpoint has no tensor '%s'", name);
  return item;
}

/* (self, name) -> dtype, list of sizes */
static int c_info(lua_State *L) {
  const zt_checkpoint_item *item = check_item(L, check_checkpoint(L));
  lua_pushstring(L, zt_dtype_name(item->dtype));
  lua_createtable(L, item->ndim, 0);
  for (int d = 0; d < item->ndim; d++) {
    lua_pushinteger(L, item->shape[d]);
    lua_rawseti(L, -2, d + 1);
  }
  return 2;
}

static int c_read(lua_State *L) {
  zt_checkpoint *ck = check_checkpoint(L);
  const zt_checkpoint_item *item = check_item(L, ck);
  void *bytes = zt_new_buffer(L, (size_t)item->count * zt_dtype_nbytes(item->dtype));
  zt_lua_try(L, zt_checkpoint_read(ck, item, 0, item->count, bytes));
  zt_lua_try(L, zt_tensor_from(zt_lua_ctx(L), zt_new_tensor(L), item->dtype, item->ndim, item->shape, bytes));
  return 1;
}

static int c_verify(lua_State *L) {
  zt_lua_try(L, zt_checkpoint_verify(check_checkpoint(L)));
  return 0;
}

/* Field 'key' of the table at the top as a string that it keeps. */
static const char *field(lua_State *L, int list, lua_Integer i, const char *key) {
  lua_rawgeti(L, list, i);
  if (!lua_istable(L, -1)) zt_type_error(L, list, "list of {name, as, dtype}");
  lua_getfield(L, -1, key);
  const char *text = zt_arg_string(L, lua_gettop(L), NULL);
  lua_pop(L, 2);
  return text;
}

/* (self, path, list of {name, as, dtype}) */
static int c_export(lua_State *L) {
  zt_checkpoint *ck = check_checkpoint(L);
  const char *path = zt_arg_string(L, 2, NULL);
  if (!lua_istable(L, 3)) return zt_type_error(L, 3, "list of {name, as, dtype}");
  size_t n = lua_rawlen(L, 3);
  const char **names = zt_new_buffer(L, (n + 1) * sizeof *names), **as = zt_new_buffer(L, (n + 1) * sizeof *as);
  zt_dtype *dtypes = zt_new_buffer(L, (n + 1) * sizeof *dtypes);
  for (size_t i = 0; i < n; i++) {
    lua_Integer row = (lua_Integer)i + 1;
    names[i] = field(L, 3, row, "name"), as[i] = field(L, 3, row, "as");
    const char *dtype = field(L, 3, row, "dtype");
    if (!zt_dtype_from_name(dtype, &dtypes[i])) return zt_lua_raise(L, "there is no dtype '%s'", dtype);
  }
  zt_lua_try(L, zt_checkpoint_export(ck, path, names, as, dtypes, n));
  return 0;
}

static int c_close(lua_State *L) {
  release(zt_check_object(L, 1, class_name));
  return 0;
}

static const luaL_Reg checkpoint_methods[] = {
    {"json", c_json},     {"names", c_names},   {"info", c_info},   {"read", c_read},
    {"verify", c_verify}, {"export", c_export}, {"close", c_close}, {NULL, NULL},
};
static void open(lua_State *L) { zt_new_class(L, class_name, checkpoint_methods, release); }

static const luaL_Reg functions[] = {
    {"checkpoint_latest", l_latest}, {"checkpoint_prune", l_prune}, {"checkpoint_open", l_open}, {NULL, NULL}};
const zt_lua_subject zt_lua_checkpoint = {functions, NULL, open};
