#include "bindings/lua_base.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "bindings/lua_sources.h"
#include "bindings/lua_state.h"
#include "bindings/lua_subjects.h"
#include "bindings/nearest.h"

const char zt_lua_error_key = 0, zt_lua_noted_key = 0, zt_lua_traceback_key = 0;
static const char state_key = 0;

/* --- the state of an interpreter */

static zt_lua *find_state(lua_State *L) {
  lua_rawgetp(L, LUA_REGISTRYINDEX, &state_key);
  zt_lua *state = lua_touserdata(L, -1);
  lua_pop(L, 1);
  return state;
}

zt_lua *zt_lua_peek(lua_State *L) {
  zt_lua *state = find_state(L);
  if (!state || !state->ctx) return NULL;
  state->L = L;
  return state;
}

zt_lua *zt_lua_get(lua_State *L) {
  zt_lua *state = zt_lua_peek(L);
  if (!state) luaL_error(L, "ztrain.core is not open in this Lua state");
  return state;
}

static void check_stop(lua_State *L, zt_lua *state) {
  const char *message;
  zt_signals_check(L);
  if (state->knows || !zt_world_failed(zt_ctx_world(state->ctx), &message, NULL)) return;
  state->knows = true; /* a script that catches it may clean up */
  zt_lua_raise(L, "%s", message);
}

void zt_lua_check_stop(lua_State *L) {
  zt_lua *state = zt_lua_peek(L);
  if (state) check_stop(L, state);
}

zt_ctx *zt_lua_ctx(lua_State *L) {
  zt_lua *state = zt_lua_get(L);
  check_stop(L, state);
  return state->ctx;
}

/* What Lua's collector frees are handles; with them go the tensors that nothing else holds. */
static void reclaim(void *user) { lua_gc(((zt_lua *)user)->L, LUA_GCCOLLECT); }

static int state_gc(lua_State *L) {
  zt_lua *state = lua_touserdata(L, 1);
  state->L = L;
  zt_scopes_clear(state);
  zt_ctx_free(state->ctx);
  state->ctx = NULL;
  return 0;
}

/* Lua finalizes in the reverse order of marking, so this userdata, the first of ours, goes last. */
static zt_lua *new_state(lua_State *L) {
  zt_lua *state = lua_newuserdatauv(L, sizeof *state, 0);
  *state = (zt_lua){.L = L};
  zt_scopes_init(state);
  lua_createtable(L, 0, 1);
  lua_pushcfunction(L, state_gc);
  lua_setfield(L, -2, "__gc");
  lua_setmetatable(L, -2);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &state_key);
  lua_pushboolean(L, false); /* the slot exists, so that keeping an error allocates nothing */
  lua_rawsetp(L, LUA_REGISTRYINDEX, &zt_lua_error_key);
  return state;
}

zt_lua *zt_lua_make(lua_State *L, const zt_context_options *options) {
  zt_lua *state = find_state(L);
  if (!state) state = new_state(L);
  if (state->ctx) return state;
  zt_lua_try(L, zt_ctx_new(options, &state->ctx));
  zt_pool_set_reclaim(zt_ctx_pool(state->ctx), reclaim, state);
  return state;
}

/* --- errors */

/* Whether a chunk's name is that of a file of the library: scripts may lie in a folder ztrain, too. */
static bool is_library(const char *source, size_t length) {
  for (const zt_lua_source *row = zt_lua_sources; row->module; row++)
    if (strncmp(row->chunk + 1, source, length) == 0 && !row->chunk[1 + length]) return true;
  return false;
}

/* The innermost level outside of the library. */
static bool find_script(lua_State *L, lua_Debug *ar) {
  for (int level = 0; lua_getstack(L, level, ar); level++) {
    lua_getinfo(L, "Sl", ar);
    if (ar->currentline > 0 && (ar->source[0] != '@' || !is_library(ar->source + 1, ar->srclen - 1))) return true;
  }
  return false;
}

/* Pushes "recipe.lua:12: ", or "". */
static void push_where(lua_State *L) {
  lua_Debug ar;
  if (find_script(L, &ar)) {
    lua_pushfstring(L, "%s:%d: ", ar.short_src, ar.currentline);
  } else {
    lua_pushliteral(L, "");
  }
}

void zt_lua_where(lua_State *L, char *text, size_t room) {
  lua_Debug ar;
  if (find_script(L, &ar))
    snprintf(text, room, "%s:%d", ar.short_src, ar.currentline);
  else
    snprintf(text, room, "%s", "");
}

/* Remembers that the message at the top has got its path, and the traceback if that is wanted. */
static void note_error(lua_State *L) {
  zt_lua *state = find_state(L);
  lua_pushvalue(L, -1);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &zt_lua_noted_key);
  if (!state || !state->traceback) return;
  luaL_traceback(L, L, NULL, 1);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &zt_lua_traceback_key);
}

static bool is_noted(lua_State *L, int index) {
  lua_rawgetp(L, LUA_REGISTRYINDEX, &zt_lua_noted_key);
  bool noted = lua_rawequal(L, index, -1);
  lua_pop(L, 1);
  return noted;
}

/* Raises the text at the top, with where and path in front. */
static int raise_top(lua_State *L) {
  const char *text = lua_tostring(L, -1), *path = zt_scope_path(L);
  push_where(L);
  lua_pushfstring(L, "%s%s%s%s", lua_tostring(L, -1), path, *path ? ": " : "", text);
  note_error(L);
  return lua_error(L);
}

int zt_lua_raise(lua_State *L, const char *fmt, ...) {
  luaL_checkstack(L, 8, NULL);
  va_list args;
  va_start(args, fmt);
  lua_pushvfstring(L, fmt, args);
  va_end(args);
  return raise_top(L);
}

int zt_lua_fail(lua_State *L, zt_status st) {
  zt_lua *state = find_state(L);
  if (state && st == ZT_PEER) state->knows = true;
  if (state && state->has_error) {
    state->has_error = false;
    lua_rawgetp(L, LUA_REGISTRYINDEX, &zt_lua_error_key);
    return lua_error(L);
  }
  const char *text = zt_message();
  return zt_lua_raise(L, "%s", *text ? text : zt_status_text(st));
}

/* Length of "chunk:line: " at the start of a message, or 0. */
static size_t where_length(const char *message) {
  const char *colon = strchr(message, ':');
  if (!colon) return 0;
  size_t digits = strspn(colon + 1, "0123456789");
  const char *end = colon + 1 + digits;
  return digits && end[0] == ':' && end[1] == ' ' ? (size_t)(end + 2 - message) : 0;
}

/* Lua's own errors in the library's lines get the script's line in front, too. */
int zt_lua_on_error(lua_State *L) {
  if (lua_type(L, 1) != LUA_TSTRING) return 1;
  const char *path = zt_scope_path(L), *message = lua_tostring(L, 1);
  if (is_noted(L, 1) && strstr(message, path)) return 1;
  size_t at = where_length(message);
  if (at && is_library(message, strcspn(message, ":"))) {
    push_where(L);
    lua_pushfstring(L, "%s%s", lua_tostring(L, -1), message);
    at = lua_rawlen(L, -2);
    message = lua_tostring(L, -1);
  }
  if (*path) {
    lua_pushlstring(L, message, at);
    lua_pushfstring(L, "%s%s: %s", lua_tostring(L, -1), path, message + at);
  }
  note_error(L);
  return 1;
}

int zt_lua_pcall(lua_State *L, int nargs) {
  int base = lua_gettop(L) - nargs;
  lua_pushcfunction(L, zt_lua_on_error);
  lua_insert(L, base);
  int status = lua_pcall(L, nargs, LUA_MULTRET, base);
  lua_remove(L, base);
  zt_lua_peek(L);
  return status;
}

int zt_lua_unknown(lua_State *L, const char *what, const char *given, const char *const names[]) {
  const char *nearest = zt_nearest(given, names);
  luaL_checkstack(L, 8, NULL);
  lua_pushliteral(L, "");
  for (int i = 0; names[i]; i++) {
    lua_pushfstring(L, "%s%s%s", lua_tostring(L, -1), i ? ", " : "", names[i]);
    lua_remove(L, -2);
  }
  const char *valid = lua_tostring(L, -1);
  if (!nearest) return zt_lua_raise(L, "unknown %s '%s'. Valid: %s", what, given, valid);
  return zt_lua_raise(L, "unknown %s '%s'; did you mean '%s'? Valid: %s", what, given, nearest, valid);
}

/* --- tensors */

enum { GC_STRIDE = 64 << 20 }; /* bytes */

/* Lua's collector sees a handle as some tens of bytes. Outside of scopes, where it alone frees tensors, it gets a push for
** each GC_STRIDE bytes by which the memory in use has grown. */
static void push_collector(lua_State *L, zt_lua *state) {
  if (zt_scope_current(state, L) != &state->root) return;
  size_t used = zt_pool_get_stats(zt_ctx_pool(state->ctx)).used_nbytes;
  if (used > state->gc_at && state->gc_at > 0 && lua_gc(L, LUA_GCISRUNNING)) {
    lua_gc(L, LUA_GCSTEP, GC_STRIDE >> 10);
    used = zt_pool_get_stats(zt_ctx_pool(state->ctx)).used_nbytes;
  }
  if (used > state->gc_at || used + 2 * (size_t)GC_STRIDE < state->gc_at) state->gc_at = used + GC_STRIDE;
}

zt_tensor **zt_new_tensor(lua_State *L) {
  zt_lua *state = zt_lua_get(L);
  luaL_checkstack(L, 4, "too many tensors");
  push_collector(L, state);
  return &zt_handle_new(L, state)->tensor;
}

void zt_push_tensor(lua_State *L, zt_tensor *t) {
  if (t) {
    *zt_new_tensor(L) = zt_tensor_retain(t);
  } else {
    lua_pushnil(L);
  }
}

bool zt_is_tensor(lua_State *L, int index) { return zt_handle_at(L, index) != NULL; }

/* The tensor of a handle, or raises why it has none. */
static zt_tensor *open_handle(lua_State *L, const zt_handle *handle) {
  zt_lua_get(L); /* raises where the slot is gone, with all else */
  if (!handle->tensor && handle->freed_by)
    zt_lua_raise(L, "tensor was freed at the end of scope '%s'; return it or call :keep()", handle->freed_by);
  if (!handle->tensor) zt_lua_raise(L, "tensor was closed");
  return handle->tensor;
}

zt_tensor *zt_check_tensor(lua_State *L, int arg) {
  zt_handle *handle = zt_handle_at(L, arg);
  if (!handle) zt_type_error(L, arg, "tensor");
  return open_handle(L, handle);
}

zt_tensor *zt_opt_tensor(lua_State *L, int arg) { return lua_isnoneornil(L, arg) ? NULL : zt_check_tensor(L, arg); }

zt_tensor **zt_check_tensors(lua_State *L, int arg, int *n) {
  if (!lua_istable(L, arg)) zt_type_error(L, arg, "list of tensors");
  *n = (int)lua_rawlen(L, arg);
  zt_tensor **list = zt_new_buffer(L, (size_t)*n * sizeof *list);
  for (int i = 0; i < *n; i++) {
    lua_rawgeti(L, arg, i + 1);
    zt_handle *handle = zt_handle_at(L, -1);
    if (!handle) {
      lua_pushfstring(L, "element %d: tensor expected, got %s", i + 1, luaL_typename(L, -1));
      zt_arg_error(L, arg, lua_tostring(L, -1));
    }
    list[i] = open_handle(L, handle);
    lua_pop(L, 1);
  }
  return list;
}

/* --- other userdata */

/* Upvalue 1 is the class's zt_release_fn, upvalue 2 its metatable: scripts can call this with anything. */
static int object_gc(lua_State *L) {
  zt_lua_peek(L);
  zt_release_fn release;
  memcpy(&release, lua_touserdata(L, lua_upvalueindex(1)), sizeof release);
  if (lua_type(L, 1) == LUA_TUSERDATA && lua_getmetatable(L, 1) && lua_rawequal(L, -1, lua_upvalueindex(2)))
    release(lua_touserdata(L, 1));
  return 0;
}

void zt_new_class(lua_State *L, const char *name, const luaL_Reg *methods, zt_release_fn release) {
  luaL_newmetatable(L, name);
  zt_release_fn *kept = lua_newuserdatauv(L, sizeof *kept, 0);
  memcpy(kept, &release, sizeof release);
  lua_pushvalue(L, -2);
  lua_pushcclosure(L, object_gc, 2);
  lua_pushvalue(L, -1);
  lua_setfield(L, -3, "__gc");
  lua_setfield(L, -2, "__close");
  lua_newtable(L);
  if (methods) luaL_setfuncs(L, methods, 0);
  lua_setfield(L, -2, "__index");
  lua_pop(L, 1);
}

void *zt_new_object(lua_State *L, const char *class_name, size_t nbytes) {
  void *object = lua_newuserdatauv(L, nbytes, 0);
  memset(object, 0, nbytes);
  luaL_setmetatable(L, class_name);
  return object;
}

void *zt_check_object(lua_State *L, int arg, const char *class_name) {
  void *object = luaL_testudata(L, arg, class_name);
  if (!object) zt_type_error(L, arg, class_name);
  return object;
}

void *zt_new_buffer(lua_State *L, size_t nbytes) { return lua_newuserdatauv(L, nbytes, 0); }

static const char box_class[] = "ztrain.box";
static void release_box(void *box) {
  zt_free(*(void **)box);
  *(void **)box = NULL;
}

void **zt_new_box(lua_State *L) { return zt_new_object(L, box_class, sizeof(void *)); }

static void open(lua_State *L) { zt_new_class(L, box_class, NULL, release_box); }
const zt_lua_subject zt_lua_base = {NULL, NULL, open};

/* --- arguments */

int zt_arg_error(lua_State *L, int arg, const char *text) {
  lua_Debug ar = {0};
  if (lua_getstack(L, 0, &ar)) lua_getinfo(L, "n", &ar);
  const char *name = ar.name ? ar.name : "ztrain";
  if (ar.namewhat && strcmp(ar.namewhat, "method") == 0) arg--; /* self is not counted */
  return zt_lua_raise(L, "%s: argument %d: %s", name, arg, text);
}

int zt_type_error(lua_State *L, int arg, const char *wanted) {
  lua_pushfstring(L, "%s expected, got %s", wanted, luaL_typename(L, arg));
  return zt_arg_error(L, arg, lua_tostring(L, -1));
}

/* A number that is a whole one; strings do not count. */
static bool to_integer(lua_State *L, int index, lua_Integer *value) {
  int whole = 0;
  if (lua_type(L, index) == LUA_TNUMBER) *value = lua_tointegerx(L, index, &whole);
  return whole;
}

lua_Integer zt_arg_integer(lua_State *L, int arg) {
  lua_Integer value = 0;
  if (!to_integer(L, arg, &value)) zt_type_error(L, arg, "integer");
  return value;
}

double zt_arg_number(lua_State *L, int arg) {
  if (lua_type(L, arg) != LUA_TNUMBER) zt_type_error(L, arg, "number");
  return lua_tonumber(L, arg);
}

const char *zt_arg_string(lua_State *L, int arg, size_t *nbytes) {
  if (lua_type(L, arg) != LUA_TSTRING) zt_type_error(L, arg, "string");
  size_t length;
  const char *text = lua_tolstring(L, arg, &length);
  if (!nbytes && strlen(text) != length) zt_arg_error(L, arg, "the string has a zero byte");
  if (nbytes) *nbytes = length;
  return text;
}

lua_Integer zt_opt_integer(lua_State *L, int arg, lua_Integer otherwise) {
  return lua_isnoneornil(L, arg) ? otherwise : zt_arg_integer(L, arg);
}

double zt_opt_number(lua_State *L, int arg, double otherwise) {
  return lua_isnoneornil(L, arg) ? otherwise : zt_arg_number(L, arg);
}

bool zt_opt_boolean(lua_State *L, int arg, bool otherwise) {
  if (lua_isnoneornil(L, arg)) return otherwise;
  if (!lua_isboolean(L, arg)) zt_type_error(L, arg, "boolean");
  return lua_toboolean(L, arg);
}

static const char *const dtype_names[] = {
#define DTYPE_NAME(id, name, st_name, nbytes, is_float) name,
    ZT_DTYPES(DTYPE_NAME) NULL};
static const char *const act_names[] = {[ZT_ACT_NONE] = "none",
                                        [ZT_ACT_RELU] = "relu",
                                        [ZT_ACT_GELU] = "gelu",
                                        [ZT_ACT_GELU_TANH] = "gelu_tanh",
                                        [ZT_ACT_SILU] = "silu",
                                        [ZT_ACT_TANH] = "tanh",
                                        NULL};

static int choose(lua_State *L, const char *given, const char *what, const char *const names[]) {
  for (int i = 0; names[i]; i++)
    if (strcmp(names[i], given) == 0) return i;
  return zt_lua_unknown(L, what, given, names);
}

int zt_arg_choice(lua_State *L, int arg, const char *what, const char *const names[]) {
  return choose(L, zt_arg_string(L, arg, NULL), what, names);
}

zt_dtype zt_arg_dtype(lua_State *L, int arg) { return (zt_dtype)zt_arg_choice(L, arg, "dtype", dtype_names); }

void zt_check_callable(lua_State *L, int arg) {
  if (lua_isfunction(L, arg)) return;
  if (luaL_getmetafield(L, arg, "__call") == LUA_TNIL) zt_type_error(L, arg, "function");
  lua_pop(L, 1);
}

int zt_arg_dim(lua_State *L, int arg, int ndim, int otherwise) {
  lua_Integer d = otherwise && lua_isnoneornil(L, arg) ? otherwise : zt_arg_integer(L, arg);
  lua_Integer last = ndim ? ndim : 1; /* a scalar has dimension 1, as in PyTorch it has 0 */
  if (d == 0 || d > last || d < -last) {
    lua_pushfstring(L, "dimension %I of a tensor with %d (they count from 1, or from the end: -1)", d, ndim);
    zt_arg_error(L, arg, lua_tostring(L, -1));
  }
  return (int)(d > 0 ? d - 1 : d + last);
}

static bool is_sizes(lua_State *L, int arg) {
  if (!lua_istable(L, arg)) return false;
  if (lua_rawlen(L, arg) > 0) return true;
  lua_pushnil(L);
  bool empty = !lua_next(L, arg);
  if (!empty) lua_pop(L, 2);
  return empty;
}

int zt_arg_sizes(lua_State *L, int arg, int *ndim, int64_t shape[ZT_MAX_DIM]) {
  bool table = is_sizes(L, arg);
  int n = table ? (int)lua_rawlen(L, arg) : 0;
  while (!table && lua_type(L, arg + n) == LUA_TNUMBER) n++;
  if (n > ZT_MAX_DIM) {
    lua_pushfstring(L, "%d dimensions, at most %d are supported", n, ZT_MAX_DIM);
    zt_arg_error(L, arg, lua_tostring(L, -1));
  }
  for (int i = 0; i < n; i++) {
    lua_Integer size = 0;
    if (table) lua_rawgeti(L, arg, i + 1);
    if (!to_integer(L, table ? -1 : arg + i, &size)) zt_arg_error(L, table ? arg : arg + i, "sizes must be integers");
    if (table) lua_pop(L, 1);
    shape[i] = size;
  }
  *ndim = n;
  return table ? arg + 1 : arg + n;
}

/* --- options */

static bool is_name(const char *name, const char *const names[]) {
  while (*names && strcmp(name, *names) != 0) names++;
  return *names != NULL;
}

void zt_check_options(lua_State *L, int arg, const char *const names[]) {
  if (lua_isnoneornil(L, arg)) return;
  if (!lua_istable(L, arg)) zt_type_error(L, arg, "table of options");
  lua_pushnil(L);
  while (lua_next(L, arg)) {
    lua_pop(L, 1);
    if (lua_type(L, -1) != LUA_TSTRING) zt_arg_error(L, arg, "options have names, this table is a list");
    if (!is_name(lua_tostring(L, -1), names)) zt_lua_unknown(L, "option", lua_tostring(L, -1), names);
  }
}

/* Pushes the option's value; false and nothing where it is absent. */
static bool get_option(lua_State *L, int arg, const char *name) {
  if (lua_isnoneornil(L, arg)) return false;
  if (lua_getfield(L, arg, name) != LUA_TNIL) return true;
  lua_pop(L, 1);
  return false;
}

static void option_error(lua_State *L, const char *name, const char *wanted) {
  zt_lua_raise(L, "option '%s': %s expected, got %s", name, wanted, luaL_typename(L, -1));
}

lua_Integer zt_option_integer(lua_State *L, int arg, const char *name, lua_Integer otherwise) {
  if (!get_option(L, arg, name)) return otherwise;
  lua_Integer value = 0;
  if (!to_integer(L, -1, &value)) option_error(L, name, "integer");
  lua_pop(L, 1);
  return value;
}

double zt_option_number(lua_State *L, int arg, const char *name, double otherwise) {
  if (!get_option(L, arg, name)) return otherwise;
  if (lua_type(L, -1) != LUA_TNUMBER) option_error(L, name, "number");
  double value = lua_tonumber(L, -1);
  lua_pop(L, 1);
  return value;
}

bool zt_option_boolean(lua_State *L, int arg, const char *name, bool otherwise) {
  if (!get_option(L, arg, name)) return otherwise;
  if (!lua_isboolean(L, -1)) option_error(L, name, "boolean");
  bool value = lua_toboolean(L, -1);
  lua_pop(L, 1);
  return value;
}

zt_tensor *zt_option_tensor(lua_State *L, int arg, const char *name) {
  if (!get_option(L, arg, name)) return NULL;
  zt_handle *handle = zt_handle_at(L, -1);
  if (!handle) option_error(L, name, "tensor");
  lua_pop(L, 1);
  return open_handle(L, handle);
}

const char *zt_option_string(lua_State *L, int arg, const char *name, const char *otherwise) {
  if (!get_option(L, arg, name)) return otherwise;
  if (lua_type(L, -1) != LUA_TSTRING) option_error(L, name, "string");
  const char *value = lua_tostring(L, -1);
  lua_pop(L, 1);
  return value;
}

zt_dtype zt_option_dtype(lua_State *L, int arg, const char *name, zt_dtype otherwise) {
  const char *value = zt_option_string(L, arg, name, NULL);
  return value ? (zt_dtype)choose(L, value, "dtype", dtype_names) : otherwise;
}

zt_act zt_option_act(lua_State *L, int arg, const char *name) {
  return (zt_act)choose(L, zt_option_string(L, arg, name, "none"), "activation", act_names);
}
