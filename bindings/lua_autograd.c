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

static zt_mem_kind arg_mem_kind(lua_State *L, int arg) {
  static const char *const words[] = {
#define KIND_WORD(id, word) word,
      ZT_MEM_KINDS(KIND_WORD) NULL};
  const char *word = zt_arg_string(L, arg, NULL);
  for (int i = 0; words[i]; i++)
    if (strcmp(words[i], word) == 0) return (zt_mem_kind)i;
  return (zt_mem_kind)zt_lua_unknown(L, "kind of memory", word, words);
}

static int l_with_kind(lua_State *L) {
  zt_ctx *c = zt_lua_ctx(L);
  zt_mem_kind kind = arg_mem_kind(L, 1);
  lua_remove(L, 1);
  luaL_checkany(L, 1);
  luaL_checkstack(L, 4, NULL);
  zt_mem_kind was = zt_ctx_set_mem_kind(c, kind);
  int status = zt_lua_pcall(L, lua_gettop(L) - 1);
  zt_ctx_set_mem_kind(c, was);
  return raise_or_return(L, status);
}
