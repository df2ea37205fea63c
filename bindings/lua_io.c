/* lua_io.c - safetensors files from Lua: loading into new tensors, into those of a model, and saving. */
#include <stdlib.h>
#include <string.h>

#include "bindings/lua_subjects.h"
#include "core/base/mem.h"
#include "core/tensor/late.h"

_Static_assert(ZT_SAFETENSORS_MAX_DIM <= ZT_MAX_DIM, "whatever a file holds is a tensor");

static const char file_class[] = "ztrain.safetensors";

/* A file that is open for the function that reads it, and for tensors that will be read later. */
typedef struct shared_file {
  int refs;
  zt_safetensors *st;
} shared_file;

static void drop_file(void *user) {
  shared_file *f = user;
  if (--f->refs) return;
  zt_safetensors_close(f->st);
  zt_free(f);
}

static void release_file(void *object) {
  shared_file **f = object;
  if (*f) drop_file(*f);
  *f = NULL;
}

/* Opens a file and pushes what keeps it open. */
static shared_file **open_file(lua_State *L, const char *path) {
  shared_file **f = zt_new_object(L, file_class, sizeof *f);
  *f = zt_calloc(1, sizeof **f);
  if (!*f) zt_lua_fail(L, ZT_NOMEM);
  (*f)->refs = 1;
  zt_lua_try(L, zt_safetensors_open(path, &(*f)->st));
  return f;
}

/* --- lists of names: Lua tables */

static lua_Integer list_length(lua_State *L, int list) { return (lua_Integer)lua_rawlen(L, list); }

/* Pops the string at the top and puts it at the end of the list. */
static void append_top(lua_State *L, int list) { lua_rawseti(L, list, list_length(L, list) + 1); }

static void append(lua_State *L, int list, const char *text) {
  lua_pushstring(L, text);
  append_top(L, list);
}

static int compare_texts(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* The list's strings as an array of Lua's (pushed), in bytewise order where 'sorted', NULL-ended. */
static const char **list_texts(lua_State *L, int list, bool sorted) {
  size_t n = (size_t)list_length(L, list);
  const char **texts = zt_new_buffer(L, (n + 1) * sizeof *texts);
  for (size_t i = 0; i < n; i++) {
    lua_rawgeti(L, list, (lua_Integer)i + 1);
    texts[i] = lua_tostring(L, -1); /* the list keeps it */
    lua_pop(L, 1);
  }
  texts[n] = NULL;
  if (sorted) qsort(texts, n, sizeof *texts, compare_texts);
  return texts;
}

/* Pushes "a, b, c". */
static void push_joined(lua_State *L, int list) {
  luaL_Buffer text;
  luaL_buffinit(L, &text);
  for (lua_Integer i = 1, n = list_length(L, list); i <= n; i++) {
    if (i > 1) luaL_addstring(&text, ", ");
    lua_rawgeti(L, list, i);
    luaL_addvalue(&text);
  }
  luaL_pushresult(&text);
}

/* The string at 'index' as a C string: one that has a zero byte in it would be cut. */
static const char *plain_string(lua_State *L, int index, const char *what) {
  size_t nbytes;
  if (lua_type(L, index) != LUA_TSTRING)
    zt_lua_raise(L, "%s must be a string, not a %s", what, luaL_typename(L, index));
  const char *text = lua_tolstring(L, index, &nbytes);
  if (strlen(text) != nbytes) zt_lua_raise(L, "%s '%s...' has a zero byte", what, text);
  return text;
}

static void check_table(lua_State *L, int arg) {
  if (!lua_istable(L, arg)) zt_type_error(L, arg, "table");
}

/* --- loading into new tensors */

static void set_tensor(lua_State *L, int table, const zt_safetensors_entry *e) {
  zt_ctx *c = zt_lua_ctx(L);
  zt_lua_try(L, zt_wrap(zt_tensor_from(c, zt_new_tensor(L), e->dtype, e->ndim, e->shape, e->data), "%s", e->name));
  lua_setfield(L, table, e->name);
}

/* Pushes a table whose keys are the wanted names; raises with all that the file does not have. */
static void push_wanted(lua_State *L, int arg, const char *path, const zt_safetensors *st) {
  check_table(L, arg);
  lua_newtable(L);
  lua_newtable(L);
  int wanted = lua_gettop(L) - 1, missing = wanted + 1;
  for (lua_Integer i = 1, n = list_length(L, arg); i <= n; i++) {
    lua_rawgeti(L, arg, i);
    const char *name = plain_string(L, -1, "a tensor's name");
    if (!zt_safetensors_find(st, name)) append(L, missing, name);
    lua_pushboolean(L, true);
    lua_rawset(L, wanted);
  }
  if (list_length(L, missing)) {
    push_joined(L, missing);
    zt_lua_raise(L, "%s: %I tensors are not in it: %s", path, list_length(L, missing), lua_tostring(L, -1));
  }
  lua_pop(L, 1);
}

/* Pushes the metadata, or nil where there is none. */
static void push_metadata(lua_State *L, const zt_safetensors *st) {
  const char *key, *value;
  if (!zt_safetensors_metadata_at(st, 0, &value)) {
    lua_pushnil(L);
    return;
  }
  lua_newtable(L);
  for (size_t i = 0; (key = zt_safetensors_metadata_at(st, i, &value)); i++) {
    lua_pushstring(L, value);
    lua_setfield(L, -2, key);
  }
}

static bool is_wanted(lua_State *L, int wanted, const char *name) {
  if (!wanted) return true;
  bool found = lua_getfield(L, wanted, name) != LUA_TNIL;
  lua_pop(L, 1);
  return found;
}

static int l_safetensors_load(lua_State *L) {
  const char *path = zt_arg_string(L, 1, NULL);
  bool all = lua_isnoneornil(L, 2);
  shared_file **file = open_file(L, path);
  const zt_safetensors *st = (*file)->st;
  if (!all) push_wanted(L, 2, path, st);
  int wanted = all ? 0 : lua_gettop(L);
  lua_newtable(L);
  lua_newtable(L);
  int tensors = lua_gettop(L) - 1, order = tensors + 1;
  for (size_t i = 0; i < zt_safetensors_count(st); i++) {
    const zt_safetensors_entry *e = zt_safetensors_get(st, i);
    if (!is_wanted(L, wanted, e->name)) continue;
    set_tensor(L, tensors, e);
    append(L, order, e->name);
  }
  push_metadata(L, st);
  release_file(file);
  return 3;
}

/* --- going through a tensor in pieces of some megabytes, so that copies of it stay small */

enum { PIECE_NBYTES = 8 << 20 };

/* The largest part of 't' from element 'done' (counted without strides) on whose bytes stay below PIECE_NBYTES: rows of its
** first dimension of more than 1, at least one. A new view. */
static zt_status take_piece(const zt_tensor *t, int64_t done, zt_tensor **piece) {
  int64_t shape[ZT_MAX_DIM], offset = t->offset;
  int d = 0;
  memcpy(shape, t->shape, sizeof shape);
  while (d + 1 < t->ndim && shape[d] <= 1) d++;
  if (t->ndim) {
    int64_t row = zt_tensor_count(t) / shape[d], start = done / row, most = PIECE_NBYTES / (row * 8);
    int64_t rows = most < 1 ? 1 : most;
    shape[d] = rows < shape[d] - start ? rows : shape[d] - start;
    offset += start * t->stride[d];
  }
  return zt_tensor_view(t->storage, t->dtype, t->ndim, shape, t->stride, offset, piece);
}

/* --- loading into a model's tensors */

/* A match of a file's entry and a tensor; the handles are kept alive by a Lua table. */
typedef struct match {
  const zt_safetensors_entry *entry;
  zt_tensor *tensor;
} match;

/* Where the lists of a load stand on the stack. */
typedef struct load {
  const char *path;
  int into, rename; /* arguments; rename 0: none */
  int matches;      /* name in 'into' -> the name in the file */
  int kept;         /* the tensors' handles */
  int missing, unexpected, wrong;
} load;

/* Pushes what an entry is called in 'into'; nil: it is to be ignored. */
static void push_target(lua_State *L, const load *l, const char *name) {
  lua_pushstring(L, name);
  if (!l->rename) return;
  lua_pushvalue(L, l->rename);
  lua_insert(L, -2);
  lua_call(L, 1, 1);
  if (!lua_isnil(L, -1)) plain_string(L, -1, "what rename returns");
}

static bool fits(const zt_safetensors_entry *e, const zt_tensor *t) {
  for (int d = 0; d < t->ndim; d++)
    if (e->ndim != t->ndim || e->shape[d] != t->shape[d]) return false;
  return e->ndim == t->ndim && (e->dtype == t->dtype || (zt_dtype_is_float(e->dtype) && zt_dtype_is_float(t->dtype)));
}

static void append_wrong(lua_State *L, const load *l, const zt_safetensors_entry *e, const zt_tensor *t) {
  lua_pushfstring(L, "%s (%s %s in the file, %s %s here)", e->name, zt_dtype_name(e->dtype),
                  zt_dims_text(e->ndim, e->shape), zt_dtype_name(t->dtype), zt_shape_text(t));
  append_top(L, l->wrong);
}

/* Takes the name in 'into' at the top and leaves it. Whether the entry has a tensor to fill. */
static bool match_entry(lua_State *L, const load *l, const zt_safetensors_entry *e, match *m) {
  lua_pushvalue(L, -1);
  if (lua_rawget(L, l->into) == LUA_TNIL) {
    append(L, l->unexpected, e->name);
    lua_pop(L, 1);
    return false;
  }
  *m = (match){e, zt_check_tensor(L, lua_gettop(L))};
  lua_rawseti(L, l->kept, list_length(L, l->kept) + 1);
  lua_pushvalue(L, -1);
  if (lua_rawget(L, l->matches) != LUA_TNIL)
    zt_lua_raise(L, "%s: '%s' and '%s' are both for '%s'", l->path, lua_tostring(L, -1), e->name, lua_tostring(L, -2));
  lua_pop(L, 1);
  lua_pushvalue(L, -1);
  lua_pushstring(L, e->name);
  lua_rawset(L, l->matches);
  if (!fits(e, m->tensor)) append_wrong(L, l, e, m->tensor);
  return true;
}

static size_t match_all(lua_State *L, const load *l, const zt_safetensors *st, match *matches) {
  size_t n = 0;
  for (size_t i = 0; i < zt_safetensors_count(st); i++) {
    const zt_safetensors_entry *e = zt_safetensors_get(st, i);
    push_target(L, l, e->name);
    if (!lua_isnil(L, -1)) n += match_entry(L, l, e, &matches[n]);
    lua_pop(L, 1);
  }
  return n;
}

static void find_missing(lua_State *L, const load *l) {
  lua_newtable(L);
  int names = lua_gettop(L);
  lua_pushnil(L);
  while (lua_next(L, l->into)) {
    lua_pop(L, 1);
    plain_string(L, -1, "a key of the table to load into");
    lua_pushvalue(L, -1);
    if (lua_rawget(L, l->matches) == LUA_TNIL) {
      lua_pushvalue(L, -2);
      append_top(L, names);
    }
    lua_pop(L, 1);
  }
  for (const char **name = list_texts(L, names, true); *name; name++) append(L, l->missing, *name);
  lua_settop(L, names - 1);
}

/* Appends "2 missing: a, b" to the list of complaints. */
static void complain(lua_State *L, int complaints, const char *what, int list) {
  if (list_length(L, list) == 0) return;
  push_joined(L, list);
  lua_pushfstring(L, "%I %s: %s", list_length(L, list), what, lua_tostring(L, -1));
  append_top(L, complaints);
  lua_pop(L, 1);
}

static void check_load(lua_State *L, const load *l, bool strict) {
  luaL_Buffer text;
  lua_newtable(L);
  int complaints = lua_gettop(L);
  if (strict) complain(L, complaints, "missing", l->missing);
  if (strict) complain(L, complaints, "unexpected", l->unexpected);
  complain(L, complaints, "of another shape or dtype", l->wrong);
  lua_Integer n = list_length(L, complaints);
  if (n == 0) {
    lua_pop(L, 1);
    return;
  }
  luaL_buffinit(L, &text);
  for (lua_Integer i = 1; i <= n; i++) {
    if (i > 1) luaL_addstring(&text, "; ");
    lua_rawgeti(L, complaints, i);
    luaL_addvalue(&text);
  }
  luaL_pushresult(&text);
  zt_lua_raise(L, "%s does not fit: %s", l->path, lua_tostring(L, -1));
}

static zt_status cast_piece(zt_ctx *c, zt_tensor *piece, const zt_safetensors_entry *e, int64_t done) {
  zt_tensor *given;
  const char *data = (const char *)e->data + (size_t)done * zt_dtype_nbytes(e->dtype);
  ZT_TRY(zt_tensor_from(c, &given, e->dtype, piece->ndim, piece->shape, data));
  zt_status st = zt_copy_(c, piece, given);
  zt_tensor_release(given);
  return st;
}

/* What has no bytes yet gets them when it is read. */
static zt_status fill(zt_ctx *c, zt_tensor *t, const zt_safetensors_entry *e, shared_file *file) {
  if (zt_tensor_is_late(t)) {
    file->refs++;
    zt_late_set(
        t,
        &(zt_start){.kind = ZT_START_BYTES, .bytes = e->data, .dtype = e->dtype, .release = drop_file, .user = file});
    return ZT_OK;
  }
  if (e->dtype == t->dtype) return zt_tensor_write(c, t, e->data);
  for (int64_t done = 0, count = zt_tensor_count(t); done < count;) {
    zt_tensor *piece;
    ZT_TRY(take_piece(t, done, &piece));
    zt_status st = cast_piece(c, piece, e, done);
    done += zt_tensor_count(piece);
    zt_tensor_release(piece);
    if (st != ZT_OK) return st;
  }
  return ZT_OK;
}

static int l_safetensors_load_into(lua_State *L) {
  static const char *const names[] = {"strict", "rename", NULL};
  const char *path = zt_arg_string(L, 1, NULL);
  check_table(L, 2);
  zt_check_options(L, 3, names);
  bool strict = zt_option_boolean(L, 3, "strict", true);
  lua_settop(L, 3);
  int has_rename = lua_istable(L, 3) && lua_getfield(L, 3, "rename") != LUA_TNIL;
  lua_settop(L, has_rename ? 4 : 3);
  shared_file **file = open_file(L, path);
  match *matches = zt_new_buffer(L, zt_safetensors_count((*file)->st) * sizeof *matches);
  int top = lua_gettop(L);
  load l = {path, 2, has_rename ? 4 : 0, top + 1, top + 2, top + 3, top + 4, top + 5};
  for (int i = 0; i < 5; i++) lua_newtable(L);
  size_t n = match_all(L, &l, (*file)->st, matches);
  find_missing(L, &l);
  check_load(L, &l, strict);
  zt_ctx *c = zt_lua_ctx(L);
  for (size_t i = 0; i < n; i++)
    zt_lua_try(L, zt_wrap(fill(c, matches[i].tensor, matches[i].entry, *file), "%s: %s", path, matches[i].entry->name));
  release_file(file);
  lua_pushvalue(L, l.missing);
  lua_pushvalue(L, l.unexpected);
  return 2;
}

/* --- saving */

typedef struct save {
  zt_ctx *c;
  zt_safetensors_item *items;
  zt_tensor **tensors; /* borrowed from the table that is saved */
} save;

static zt_status write_piece(zt_ctx *c, zt_writer *w, const zt_tensor *piece) {
  size_t nbytes = zt_tensor_nbytes(piece);
  void *bytes = zt_malloc(nbytes);
  ZT_CHECK_ALLOC(bytes);
  zt_status st = zt_tensor_read(c, piece, bytes);
  if (st == ZT_OK) st = zt_writer_write(w, bytes, nbytes);
  zt_free(bytes);
  return st;
}

static zt_status write_tensor(void *user, size_t i, zt_writer *w) {
  const save *s = user;
  const zt_tensor *t = s->tensors[i];
  for (int64_t done = 0, count = zt_tensor_count(t); done < count;) {
    zt_tensor *piece;
    ZT_TRY(take_piece(t, done, &piece));
    zt_status st = write_piece(s->c, w, piece);
    done += zt_tensor_count(piece);
    zt_tensor_release(piece);
    if (st != ZT_OK) return st;
  }
  return ZT_OK;
}

/* Pushes a list of a table's keys, which must be strings. */
static void push_keys(lua_State *L, int table, const char *what) {
  lua_newtable(L);
  int list = lua_gettop(L);
  lua_pushnil(L);
  while (lua_next(L, table)) {
    lua_pop(L, 1);
    plain_string(L, -1, what);
    lua_pushvalue(L, -1);
    append_top(L, list);
  }
}

/* The names to save, pushed with what keeps them: those of 'order', which must be all, or all in bytewise order. */
static const char **names_to_save(lua_State *L, int tensors, int order, lua_Integer *n) {
  push_keys(L, tensors, "a tensor's name");
  *n = list_length(L, lua_gettop(L));
  if (lua_isnoneornil(L, order)) return list_texts(L, lua_gettop(L), true);
  check_table(L, order);
  if (list_length(L, order) != *n)
    zt_lua_raise(L, "safetensors_save: order has %I names, there are %I tensors", list_length(L, order), *n);
  for (lua_Integer i = 1; i <= *n; i++) {
    lua_rawgeti(L, order, i);
    plain_string(L, -1, "a tensor's name");
    lua_pop(L, 1);
  }
  return list_texts(L, order, false);
}

/* Pairs key, value, ..., NULL in bytewise order of keys, pushed; NULL for no table. */
static const char **metadata_pairs(lua_State *L, int arg) {
  if (lua_isnoneornil(L, arg)) return NULL;
  check_table(L, arg);
  push_keys(L, arg, "a key of the metadata");
  size_t n = (size_t)list_length(L, lua_gettop(L));
  const char **keys = list_texts(L, lua_gettop(L), true), **pairs = zt_new_buffer(L, (2 * n + 1) * sizeof *pairs);
  for (size_t i = 0; i < n; i++) {
    lua_getfield(L, arg, keys[i]);
    pairs[2 * i] = keys[i];
    pairs[2 * i + 1] = plain_string(L, -1, "a value of the metadata");
    lua_pop(L, 1);
  }
  pairs[2 * n] = NULL;
  return pairs;
}

static void take_tensor(lua_State *L, save *s, size_t i, const char *name) {
  if (lua_getfield(L, 2, name) == LUA_TNIL)
    zt_lua_raise(L, "safetensors_save: order names '%s', which is not there", name);
  zt_tensor *t = s->tensors[i] = zt_check_tensor(L, lua_gettop(L));
  s->items[i] = (zt_safetensors_item){.name = name, .dtype = t->dtype, .ndim = t->ndim};
  memcpy(s->items[i].shape, t->shape, sizeof t->shape);
  lua_pop(L, 1);
}

static int l_safetensors_save(lua_State *L) {
  const char *path = zt_arg_string(L, 1, NULL);
  lua_Integer n;
  check_table(L, 2);
  lua_settop(L, 4);
  const char **names = names_to_save(L, 2, 3, &n), **metadata = metadata_pairs(L, 4);
  save s = {.c = zt_lua_ctx(L)};
  s.items = zt_new_buffer(L, (size_t)n * sizeof *s.items);
  s.tensors = zt_new_buffer(L, (size_t)n * sizeof *s.tensors);
  for (lua_Integer i = 0; i < n; i++) take_tensor(L, &s, (size_t)i, names[i]);
  zt_lua_try(L, zt_safetensors_save(path, s.items, (size_t)n, metadata, write_tensor, &s));
  return 0;
}

static void open(lua_State *L) { zt_new_class(L, file_class, NULL, release_file); }

static const luaL_Reg functions[] = {
    {"safetensors_load", l_safetensors_load},
    {"safetensors_load_into", l_safetensors_load_into},
    {"safetensors_save", l_safetensors_save},
    {NULL, NULL},
};
const zt_lua_subject zt_lua_io = {functions, NULL, open};
