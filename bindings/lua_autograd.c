/* lua_autograd.c - gradients from Lua: what wants one, backward, modes that hold while a function runs, and checkpointed
** segments, whose Lua function runs again in backward. */
#include "bindings/lua_state.h"
#include "bindings/lua_subjects.h"

/* --- tensors */

static int t_requires_grad_(lua_State *L) {
  zt_tensor *t = zt_check_tensor(L, 1);
  bool on = zt_opt_boolean(L, 2, true);
  if (t->node) return zt_lua_raise(L, "requires_grad_: the tensor was computed; use detach() first");
  if (on && !zt_dtype_is_float(t->dtype))
    return zt_lua_raise(L, "requires_grad_: a %s tensor has no gradient", zt_dtype_name(t->dtype));
  t->requires_grad = on;
  lua_settop(L, 1);
  return 1;
}

static int t_requires_grad(lua_State *L) {
  const zt_tensor *t = zt_check_tensor(L, 1);
  lua_pushboolean(L, t->requires_grad || t->node);
  return 1;
}

static int t_is_leaf(lua_State *L) {
  lua_pushboolean(L, !zt_check_tensor(L, 1)->node);
  return 1;
}

static int t_backward(lua_State *L) {
  static const char *const names[] = {"seed", NULL};
  zt_tensor *t = zt_check_tensor(L, 1), *grad = zt_opt_tensor(L, 2);
  zt_check_options(L, 3, names);
  double seed = zt_option_number(L, 3, "seed", 1);
  zt_lua_try(L, zt_backward(zt_lua_ctx(L), t, grad, seed));
  return 0;
}

static int t_detach(lua_State *L) {
  zt_tensor *t = zt_check_tensor(L, 1);
  zt_lua_try(L, zt_tensor_alias(t, zt_new_tensor(L)));
  return 1;
}

/* --- modes. They do not yield: the mode would leak out of the coroutine. */

static int raise_or_return(lua_State *L, int status) { return status == LUA_OK ? lua_gettop(L) : lua_error(L); }

static int l_no_grad(lua_State *L) {
  zt_ctx *c = zt_lua_ctx(L);
  zt_check_callable(L, 1);
  luaL_checkstack(L, 4, NULL);
  bool was = zt_ctx_set_grad_enabled(c, false);
  int status = zt_lua_pcall(L, lua_gettop(L) - 1);
  zt_ctx_set_grad_enabled(c, was);
  return raise_or_return(L, status);
}

static int l_grad_enabled(lua_State *L) {
  lua_pushboolean(L, zt_ctx_grad_enabled(zt_lua_ctx(L)));
  return 1;
}

static const char *const kind_words[] = {
#define KIND_WORD(id, word) word,
    ZT_MEM_KINDS(KIND_WORD) NULL};

static int l_with_kind(lua_State *L) {
  zt_ctx *c = zt_lua_ctx(L);
  zt_mem_kind kind = (zt_mem_kind)zt_arg_choice(L, 1, "kind of memory", kind_words);
  lua_remove(L, 1);
  zt_check_callable(L, 1);
  luaL_checkstack(L, 4, NULL);
  zt_mem_kind was = zt_ctx_set_mem_kind(c, kind);
  int status = zt_lua_pcall(L, lua_gettop(L) - 1);
  zt_ctx_set_mem_kind(c, was);
  return raise_or_return(L, status);
}

/* --- checkpointed segments. What a segment runs is kept in the registry under its address: {path of the scope around
** the call, function, arguments...; n = how many}. In the place of a tensor stands 'tensor_mark': core hands the tensors in
** each time. */

typedef struct zt_lua_segment {
  zt_lua *state;
} zt_lua_segment;

typedef struct zt_segment_call {
  const zt_lua_segment *segment;
  zt_tensor *const *in;
  zt_tensor **out;
  int n_out;
} zt_segment_call;

static const char tensor_mark = 0;

/* Pushes what the registry keeps, with tensors in their places; returns how many. */
static int push_segment(lua_State *L, const zt_segment_call *call) {
  lua_rawgetp(L, LUA_REGISTRYINDEX, call->segment);
  int kept = lua_gettop(L), tensors = 0;
  lua_getfield(L, kept, "n");
  int n = (int)lua_tointeger(L, -1);
  luaL_checkstack(L, n + 8, "too many arguments");
  lua_pop(L, 1);
  for (int i = 1; i <= n; i++) {
    lua_rawgeti(L, kept, i);
    if (lua_touserdata(L, -1) != &tensor_mark) continue;
    lua_pop(L, 1);
    zt_push_tensor(L, call->in[tensors++]);
  }
  lua_remove(L, kept);
  return n;
}

/* (call): runs the segment in a scope; its results go to call->out. */
static int run_body(lua_State *L) {
  const zt_segment_call *call = lua_touserdata(L, 1);
  lua_pushcfunction(L, zt_scope_run);
  lua_call(L, push_segment(L, call), LUA_MULTRET);
  int n = lua_gettop(L) - 1;
  if (n > call->n_out) return zt_lua_raise(L, "checkpoint: %d results, at most %d are possible", n, call->n_out);
  for (int i = 0; i < n; i++)
    if (!zt_is_tensor(L, i + 2))
      return zt_lua_raise(L, "checkpoint: result %d is a %s, only tensors are possible", i + 1,
                          luaL_typename(L, i + 2));
  for (int i = 0; i < n; i++) zt_check_tensor(L, i + 2);
  for (int i = 0; i < n; i++) call->out[i] = zt_tensor_retain(zt_check_tensor(L, i + 2));
  return 0;
}

/* Keeps the Lua error at the top for zt_lua_fail, and pops it. The registry's slot exists, so nothing is allocated. */
static zt_status keep_error(zt_lua *state, lua_State *L) {
  const char *text = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : "a Lua error that is not a string";
  zt_status st = zt_fail(ZT_STATE, "%s", text);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &zt_lua_error_key);
  state->has_error = true;
  return st;
}

static zt_status run_segment(void *user, zt_ctx *c, zt_tensor *const in[], int n_in, zt_tensor *out[], int n_out) {
  (void)c, (void)n_in;
  zt_lua_segment *segment = user;
  zt_lua *state = segment->state;
  lua_State *L = state->L;
  zt_segment_call call = {segment, in, out, n_out};
  if (!lua_checkstack(L, 4)) return zt_fail(ZT_NOMEM, "checkpoint: Lua's stack is full");
  lua_pushcfunction(L, run_body);
  lua_pushlightuserdata(L, &call);
  return zt_lua_pcall(L, 1) == LUA_OK ? ZT_OK : keep_error(state, L);
}

static void release_segment(void *user) {
  zt_lua_segment *segment = user;
  lua_State *L = segment->state->L;
  if (lua_checkstack(L, 2)) {
    lua_pushnil(L);
    lua_rawsetp(L, LUA_REGISTRYINDEX, segment);
  }
  zt_free(segment);
}

/* Pushes the table for the registry from the arguments (function, ...) on the stack; the tensors go to 'in'. */
static int pack_arguments(lua_State *L, zt_tensor *in[ZT_MAX_IN]) {
  int n = lua_gettop(L), n_in = 0;
  lua_createtable(L, n + 1, 1);
  lua_pushinteger(L, n + 1);
  lua_setfield(L, -2, "n");
  lua_pushstring(L, zt_scope_path(L));
  lua_rawseti(L, -2, 1);
  for (int i = 1; i <= n; i++) {
    bool tensor = zt_is_tensor(L, i);
    if (tensor && n_in == ZT_MAX_IN) zt_lua_raise(L, "checkpoint: more than %d tensors", ZT_MAX_IN);
    if (tensor) {
      in[n_in++] = zt_check_tensor(L, i);
      lua_pushlightuserdata(L, (void *)&tensor_mark);
    } else {
      lua_pushvalue(L, i);
    }
    lua_rawseti(L, -2, i + 1);
  }
  return n_in;
}

static int l_checkpoint(lua_State *L) {
  zt_check_callable(L, 1);
  luaL_checkstack(L, ZT_MAX_OUT + 8, NULL);
  zt_lua *state = zt_lua_get(L);
  zt_tensor *in[ZT_MAX_IN], *out[ZT_MAX_OUT], **slot[ZT_MAX_OUT];
  int n_in = pack_arguments(L, in), n = 0;
  void **box = zt_new_box(L);
  zt_lua_segment *segment = *box = zt_malloc(sizeof *segment);
  if (!segment) return zt_lua_fail(L, ZT_NOMEM);
  segment->state = state;
  int first = lua_gettop(L) + 1;
  for (int i = 0; i < ZT_MAX_OUT; i++) slot[i] = zt_new_tensor(L);
  zt_ctx *c = zt_lua_ctx(L);
  lua_pushvalue(L, first - 2);
  lua_rawsetp(L, LUA_REGISTRYINDEX, segment);
  *box = NULL; /* core takes the segment over; nothing raises between the registry and here */
  zt_segment whole = {run_segment, release_segment, segment};
  zt_lua_try(L, zt_checkpoint_segment(c, whole, in, n_in, out, ZT_MAX_OUT));
  while (n < ZT_MAX_OUT && out[n]) *slot[n] = out[n], n++;
  lua_settop(L, first + n - 1);
  return n;
}

static int l_tape_length(lua_State *L) {
  lua_pushinteger(L, (lua_Integer)zt_tape_length(zt_lua_ctx(L)));
  return 1;
}

static const luaL_Reg functions[] = {
    {"no_grad", l_no_grad},       {"grad_enabled", l_grad_enabled}, {"with_kind", l_with_kind},
    {"checkpoint", l_checkpoint}, {"tape_length", l_tape_length},   {NULL, NULL},
};
static const luaL_Reg methods[] = {
    {"requires_grad_", t_requires_grad_},
    {"requires_grad", t_requires_grad},
    {"is_leaf", t_is_leaf},
    {"backward", t_backward},
    {"detach", t_detach},
    {NULL, NULL},
};
const zt_lua_subject zt_lua_autograd = {functions, methods, NULL};
