/* lua_optim.c - optimizers as Lua values: an object for each, parameters in groups, numbers given with every step. */
#include "bindings/lua_optim.h"

#include "bindings/lua_subjects.h"

static const char class_name[] = "Optim";

typedef struct zt_optimizer {
  zt_optim *optim; /* owned */
  int n_params;
} zt_optimizer;

static void release(void *object) {
  zt_optimizer *o = object;
  zt_optim_free(o->optim);
  o->optim = NULL;
}

static zt_optimizer *check_optim(lua_State *L) {
  zt_optimizer *o = zt_check_object(L, 1, class_name);
  zt_lua_ctx(L);
  if (!o->optim) zt_lua_raise(L, "the optimizer was closed");
  return o;
}

const char *const zt_lua_optim_names[] = {
#define OPTIM_NAME(id, name) #name,
    ZT_OPTIMS(OPTIM_NAME) NULL};

static int l_optim(lua_State *L) {
  zt_optim_kind kind = (zt_optim_kind)zt_arg_choice(L, 1, "optimizer", zt_lua_optim_names);
  zt_ctx *c = zt_lua_ctx(L);
  zt_optimizer *o = zt_new_object(L, class_name, sizeof *o);
  zt_lua_try(L, zt_optim_new(c, kind, &o->optim));
  return 1;
}

/* A group or parameter counts from 1 in Lua, from 0 in C. */
static int arg_position(lua_State *L, int arg, lua_Integer limit) {
  lua_Integer i = zt_arg_integer(L, arg);
  if (i < 1 || i > limit) {
    lua_pushfstring(L, "%I is not in 1 .. %I", i, limit);
    zt_arg_error(L, arg, lua_tostring(L, -1));
  }
  return (int)i - 1;
}

static int o_add(lua_State *L) {
  zt_optimizer *o = check_optim(L);
  zt_tensor *param = zt_check_tensor(L, 2);
  int group = arg_position(L, 3, INT32_MAX), index;
  zt_lua_try(L, zt_optim_add(o->optim, param, group, &index));
  if (index >= o->n_params) o->n_params = index + 1;
  lua_pushinteger(L, index + 1);
  return 1;
}

static zt_hyper get_hyper(lua_State *L, int index) {
  static const char *const names[] = {"lr",       "beta1",     "beta2",    "eps",        "weight_decay",
                                      "momentum", "dampening", "nesterov", "grad_scale", NULL};
  zt_check_options(L, index, names);
  zt_hyper h = {.lr = zt_option_number(L, index, "lr", -1),
                .beta1 = zt_option_number(L, index, "beta1", 0.9),
                .beta2 = zt_option_number(L, index, "beta2", 0.999),
                .eps = zt_option_number(L, index, "eps", 1e-8),
                .weight_decay = zt_option_number(L, index, "weight_decay", 0),
                .momentum = zt_option_number(L, index, "momentum", 0),
                .dampening = zt_option_number(L, index, "dampening", 0),
                .nesterov = zt_option_boolean(L, index, "nesterov", false),
                .grad_scale = zt_option_number(L, index, "grad_scale", 1)};
  if (!(h.lr >= 0)) zt_lua_raise(L, "step: option 'lr' must be given, and not be negative");
  return h;
}

zt_hyper *zt_lua_check_hypers(lua_State *L, int arg, int *n_groups) {
  if (!lua_istable(L, arg)) zt_type_error(L, arg, "list of groups");
  *n_groups = (int)lua_rawlen(L, arg);
  zt_hyper *h = zt_new_buffer(L, (size_t)*n_groups * sizeof *h);
  for (int i = 0; i < *n_groups; i++) {
    lua_rawgeti(L, arg, i + 1);
    h[i] = get_hyper(L, lua_gettop(L));
    lua_pop(L, 1);
  }
  return h;
}

/* (self, list of a table for each group) */
static int o_step(lua_State *L) {
  zt_optimizer *o = check_optim(L);
  int n_groups;
  const zt_hyper *h = zt_lua_check_hypers(L, 2, &n_groups);
  zt_lua_try(L, zt_optim_step_groups(o->optim, h, n_groups));
  return 0;
}

static int o_zero_grad(lua_State *L) {
  zt_optim_zero_grad(check_optim(L)->optim);
  return 0;
}

static int o_state(lua_State *L) {
  zt_optimizer *o = check_optim(L);
  int64_t steps;
  zt_tensor *m, *v;
  zt_optim_get_state(o->optim, arg_position(L, 2, o->n_params), &steps, &m, &v);
  lua_pushinteger(L, steps);
  zt_push_tensor(L, m);
  zt_push_tensor(L, v);
  return 3;
}

static int o_set_state(lua_State *L) {
  zt_optimizer *o = check_optim(L);
  int index = arg_position(L, 2, o->n_params);
  int64_t steps = zt_arg_integer(L, 3);
  zt_tensor *m = zt_opt_tensor(L, 4), *v = zt_opt_tensor(L, 5);
  zt_lua_try(L, zt_optim_set_state(o->optim, index, steps, m, v));
  return 0;
}

static const luaL_Reg optim_methods[] = {
    {"add", o_add},     {"step", o_step},           {"zero_grad", o_zero_grad},
    {"state", o_state}, {"set_state", o_set_state}, {NULL, NULL},
};
static void open(lua_State *L) { zt_new_class(L, class_name, optim_methods, release); }

static const luaL_Reg functions[] = {{"optim", l_optim}, {NULL, NULL}};
const zt_lua_subject zt_lua_optim = {functions, NULL, open};
