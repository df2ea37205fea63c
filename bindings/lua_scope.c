/* lua_scope.c - scopes: what a module call made is freed when it returns, not when Lua's collector gets to it.
** A handle stands in the list of the scope that was innermost when it was made. When the scope's function returns, a
** walk over the results marks the handles that they lead to; those move to the enclosing scope, the others lose their
** tensor. What autograd saved holds its own references. */
#include "bindings/lua_state.h"
#include "bindings/lua_subjects.h"

static const char names_key = 0; /* name -> true: scope names live on, for the messages of freed handles */
static const char skip_key = 0;  /* table -> true, weak: see zt_scope_skip */
static const char scope_class[] = "ztrain.scope";

/* --- slots */

void zt_scopes_init(zt_lua *state) {
  zt_link_init(&state->scopes);
  zt_link_init(&state->emptied);
  zt_link_init(&state->free);
  zt_link_init(&state->root.handles);
  state->root.name = "";
}

static zt_status slots_new(zt_lua *state) {
  zt_slots *slots = zt_malloc(sizeof *slots);
  ZT_CHECK_ALLOC(slots);
  slots->next = state->slots;
  state->slots = slots;
  for (size_t i = 0; i < sizeof slots->slot / sizeof *slots->slot; i++)
    zt_link_append(&state->free, &slots->slot[i].link);
  return ZT_OK;
}

/* Raises where there is no memory. */
static void *slot_get(lua_State *L, zt_lua *state) {
  if (zt_link_is_empty(&state->free)) zt_lua_try(L, slots_new(state));
  zt_link *link = state->free.next;
  zt_link_remove(link);
  return link;
}

static void slot_put(zt_lua *state, zt_link *link) { zt_link_move(&state->free, link); }

/* --- handles and their lists */

static zt_scope *outer_scope(zt_lua *state, zt_link *from, lua_State *thread) {
  for (zt_link *link = from->prev; link != &state->scopes; link = link->prev)
    if (((zt_scope *)link)->thread == thread) return (zt_scope *)link;
  return &state->root;
}

zt_scope *zt_scope_current(zt_lua *state, lua_State *L) { return outer_scope(state, &state->scopes, L); }

const char *zt_scope_path(lua_State *L) {
  zt_lua *state = zt_lua_peek(L);
  return state ? zt_scope_current(state, L)->name : "";
}

zt_handle *zt_handle_at(lua_State *L, int index) {
  zt_handle **userdata = luaL_testudata(L, index, ZT_TENSOR_CLASS);
  return userdata ? *userdata : NULL;
}

zt_handle *zt_handle_new(lua_State *L, zt_lua *state) {
  zt_handle **userdata = zt_new_object(L, ZT_TENSOR_CLASS, sizeof *userdata);
  zt_handle *handle = slot_get(L, state);
  *handle = (zt_handle){0};
  zt_link_append(&zt_scope_current(state, L)->handles, &handle->link);
  return *userdata = handle;
}

void zt_handle_clear(zt_lua *state, zt_handle *handle) {
  zt_link_move(&state->emptied, &handle->link);
  zt_tensor *tensor = handle->tensor;
  handle->tensor = NULL;
  zt_tensor_release(tensor);
}

/* A tensor's __close: the handle stays, to say what became of it. */
static int handle_close(lua_State *L) {
  zt_lua *state = zt_lua_peek(L);
  zt_handle *handle = zt_handle_at(L, 1);
  if (state && handle) zt_handle_clear(state, handle);
  return 0;
}

/* Its __gc, which scripts can reach, too. */
static int handle_gc(lua_State *L) {
  zt_lua *state = zt_lua_peek(L);
  zt_handle **userdata = luaL_testudata(L, 1, ZT_TENSOR_CLASS);
  if (!userdata) return 0;
  if (state && *userdata) {
    zt_handle_clear(state, *userdata);
    slot_put(state, &(*userdata)->link);
  }
  *userdata = NULL;
  return 0;
}

/* Closes an open scope: its handles move out, but those that are not marked with this end's number where 'release'. */
static void close_scope(zt_lua *state, zt_scope *scope, bool release) {
  zt_scope *outer = outer_scope(state, &scope->link, scope->thread);
  zt_link_remove(&scope->link);
  while (!zt_link_is_empty(&scope->handles)) {
    zt_handle *handle = (zt_handle *)scope->handles.next;
    if (release && handle->reached != state->n_ends) {
      handle->freed_by = scope->name;
      zt_handle_clear(state, handle);
    } else {
      zt_link_move(&outer->handles, &handle->link);
    }
  }
  slot_put(state, &scope->link);
}

/* The __gc of a scope whose coroutine was dropped in the middle, or whose end failed. */
static int scope_gc(lua_State *L) {
  zt_lua *state = zt_lua_peek(L);
  zt_scope **userdata = lua_touserdata(L, 1);
  if (state && *userdata) close_scope(state, *userdata, false);
  *userdata = NULL;
  return 0;
}

void zt_scopes_clear(zt_lua *state) {
  while (!zt_link_is_empty(&state->scopes)) close_scope(state, (zt_scope *)state->scopes.next, false);
  while (!zt_link_is_empty(&state->root.handles)) zt_handle_clear(state, (zt_handle *)state->root.handles.next);
  for (zt_slots *slots = state->slots, *next; slots; slots = next) {
    next = slots->next;
    zt_free(slots);
  }
  state->slots = NULL;
}

/* --- the walk. All that is found is a key of one table, and in the order of finding a value of it: the walk's queue. */

typedef struct zt_walk {
  lua_State *L;
  uint64_t mark;
  int seen;      /* index of that table */
  lua_Integer n; /* found so far */
} zt_walk;

static bool is_container(int type) { return type == LUA_TTABLE || type == LUA_TFUNCTION || type == LUA_TUSERDATA; }

/* Marks a handle; queues anything else that may hold one, once. Pops the value. */
static void find(zt_walk *w) {
  lua_State *L = w->L;
  zt_handle *handle = zt_handle_at(L, -1);
  if (handle) handle->reached = w->mark;
  if (!handle && is_container(lua_type(L, -1))) {
    lua_pushvalue(L, -1);
    if (lua_rawget(L, w->seen) == LUA_TNIL) {
      lua_pushvalue(L, -2);
      lua_rawseti(L, w->seen, ++w->n);
      lua_pushvalue(L, -2);
      lua_pushboolean(L, true);
      lua_rawset(L, w->seen);
    }
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
}

/* Whether the table at the top is the library's, the globals, or a module with its __module = true. */
static bool is_skipped(lua_State *L) {
  lua_rawgetp(L, LUA_REGISTRYINDEX, &skip_key);
  lua_pushvalue(L, -2);
  bool skip = lua_rawget(L, -2) != LUA_TNIL;
  lua_pop(L, 2);
  if (!skip && luaL_getmetafield(L, -1, "__module") != LUA_TNIL) {
    skip = lua_toboolean(L, -1);
    lua_pop(L, 1);
  }
  return skip;
}

static void walk_table(zt_walk *w) {
  lua_State *L = w->L;
  if (is_skipped(L)) return;
  if (lua_getmetatable(L, -1)) find(w);
  lua_pushnil(L);
  while (lua_next(L, -2)) {
    find(w);
    lua_pushvalue(L, -1);
    find(w);
  }
}

static void walk_upvalues(zt_walk *w) {
  for (int i = 1; lua_getupvalue(w->L, -1, i); i++) find(w);
}

static void walk_uservalues(zt_walk *w) {
  for (int i = 1; lua_getiuservalue(w->L, -1, i) != LUA_TNONE; i++) find(w);
  lua_pop(w->L, 1); /* the nil that stands for none */
}

/* (mark, values...): marks all handles that the values lead to. */
static int walk_values(lua_State *L) {
  zt_walk walk = {L, (uint64_t)lua_tointeger(L, 1), 1, 0};
  lua_newtable(L);
  lua_replace(L, 1);
  luaL_checkstack(L, 10, NULL);
  for (int i = lua_gettop(L); i > 1; i--) find(&walk);
  for (lua_Integer i = 1; i <= walk.n; i++) {
    switch (lua_rawgeti(L, 1, i)) {
      case LUA_TTABLE:
        walk_table(&walk);
        break;
      case LUA_TFUNCTION:
        walk_upvalues(&walk);
        break;
      default:
        walk_uservalues(&walk);
        break;
    }
    lua_pop(L, 1);
  }
  return 0;
}

/* Marks what the values from 'first' to the top lead to; returns Lua's status, with a message where it failed. */
static int mark_values(lua_State *L, int first, uint64_t mark) {
  int last = lua_gettop(L);
  bool plain = true;
  for (int i = first; i <= last; i++) {
    zt_handle *handle = zt_handle_at(L, i);
    if (handle) handle->reached = mark;
    if (!handle && is_container(lua_type(L, i))) plain = false;
  }
  if (plain) return LUA_OK;
  luaL_checkstack(L, last - first + 3, NULL);
  lua_pushcfunction(L, walk_values);
  lua_pushinteger(L, (lua_Integer)mark);
  for (int i = first; i <= last; i++) lua_pushvalue(L, i);
  return lua_pcall(L, last - first + 2, 0, 0);
}

void zt_scope_skip(lua_State *L) {
  if (!lua_istable(L, -1)) return;
  lua_rawgetp(L, LUA_REGISTRYINDEX, &skip_key);
  lua_pushvalue(L, -2);
  lua_pushboolean(L, true);
  lua_rawset(L, -3);
  lua_pop(L, 1);
}

/* --- running */

/* The name's copy that the names table keeps. */
static const char *keep_name(lua_State *L, int name) {
  lua_rawgetp(L, LUA_REGISTRYINDEX, &names_key);
  lua_pushvalue(L, name);
  if (lua_rawget(L, -2) == LUA_TNIL) {
    lua_pushvalue(L, name);
    lua_pushvalue(L, name);
    lua_rawset(L, -4);
    lua_pop(L, 1);
    lua_pushvalue(L, name);
  }
  const char *kept = lua_tostring(L, -1);
  lua_pop(L, 2);
  return kept;
}

/* Pushes the scope. */
static void open_scope(lua_State *L, zt_lua *state, int name) {
  const char *kept = keep_name(L, name);
  zt_scope **userdata = zt_new_object(L, scope_class, sizeof *userdata);
  zt_scope *scope = *userdata = slot_get(L, state);
  *scope = (zt_scope){.name = kept, .thread = L};
  zt_link_init(&scope->handles);
  zt_link_append(&state->scopes, &scope->link);
}

/* Stack: name, scope, handler, then results or a message. */
static int finish(lua_State *L, int status, lua_KContext unused) {
  (void)unused;
  zt_lua *state = zt_lua_get(L);
  zt_scope **scope = lua_touserdata(L, 2);
  bool failed = status != LUA_OK && status != LUA_YIELD;
  state->n_ends++;
  if (!failed) failed = mark_values(L, 4, state->n_ends) != LUA_OK;
  close_scope(state, *scope, true);
  *scope = NULL;
  return failed ? lua_error(L) : lua_gettop(L) - 3;
}

int zt_scope_run(lua_State *L) {
  zt_arg_string(L, 1, NULL);
  zt_check_callable(L, 2);
  luaL_checkstack(L, 8, NULL);
  open_scope(L, zt_lua_get(L), 1);
  lua_insert(L, 2);
  lua_pushcfunction(L, zt_lua_on_error);
  lua_insert(L, 3);
  int status = lua_pcallk(L, lua_gettop(L) - 4, LUA_MULTRET, 3, 0, finish);
  return finish(L, status, 0);
}

static int l_keep(lua_State *L) {
  zt_check_tensor(L, 1);
  zt_link_move(&zt_lua_get(L)->root.handles, &zt_handle_at(L, 1)->link);
  lua_settop(L, 1);
  return 1;
}

static void open(lua_State *L) {
  static const luaL_Reg scope_meta[] = {{"__gc", scope_gc}, {NULL, NULL}};
  static const luaL_Reg tensor_meta[] = {{"__gc", handle_gc}, {"__close", handle_close}, {NULL, NULL}};
  luaL_newmetatable(L, scope_class);
  luaL_setfuncs(L, scope_meta, 0);
  luaL_newmetatable(L, ZT_TENSOR_CLASS);
  luaL_setfuncs(L, tensor_meta, 0);
  lua_pop(L, 2);
  lua_newtable(L);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &names_key);
  lua_newtable(L);
  lua_createtable(L, 0, 1);
  lua_pushliteral(L, "k");
  lua_setfield(L, -2, "__mode");
  lua_setmetatable(L, -2);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &skip_key);
  lua_pushglobaltable(L);
  zt_scope_skip(L);
  lua_pop(L, 1);
}

static const luaL_Reg functions[] = {{"scope", zt_scope_run}, {"keep", l_keep}, {NULL, NULL}};
static const luaL_Reg methods[] = {{"keep", l_keep}, {NULL, NULL}};
const zt_lua_subject zt_lua_scopes = {functions, methods, open};
