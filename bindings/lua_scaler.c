/* lua_scaler.c - the loss scale as a Lua value. */
#include "bindings/lua_subjects.h"
#include "core/train/scaler.h"

static const char class_name[] = "Scaler";

static void release(void *object) { (void)object; }

static zt_scaler *check_scaler(lua_State *L) { return zt_check_object(L, 1, class_name); }

static int l_scaler(lua_State *L) {
  static const char *const names[] = {"loss_scale", "initial_scale_power",    "loss_scale_window",
                                      "hysteresis", "consecutive_hysteresis", "min_loss_scale",
                                      NULL};
  zt_check_options(L, 1, names);
  zt_scaler_options o = zt_scaler_defaults();
  o.loss_scale = zt_option_number(L, 1, "loss_scale", o.loss_scale);
  o.initial_scale_power = (int)zt_option_integer(L, 1, "initial_scale_power", o.initial_scale_power);
  o.loss_scale_window = zt_option_integer(L, 1, "loss_scale_window", o.loss_scale_window);
  o.hysteresis = zt_option_integer(L, 1, "hysteresis", o.hysteresis);
  o.consecutive_hysteresis = zt_option_boolean(L, 1, "consecutive_hysteresis", o.consecutive_hysteresis);
  o.min_loss_scale = zt_option_number(L, 1, "min_loss_scale", o.min_loss_scale);
  zt_scaler *s = zt_new_object(L, class_name, sizeof *s);
  zt_lua_try(L, zt_scaler_init(s, &o));
  return 1;
}

static int s_scale(lua_State *L) {
  lua_pushnumber(L, check_scaler(L)->scale);
  return 1;
}

/* (self, overflow) -> whether the scale could go down where it had to */
static int s_update(lua_State *L) {
  lua_pushboolean(L, zt_scaler_update(check_scaler(L), zt_opt_boolean(L, 2, false), true) == ZT_OK);
  return 1;
}

static int s_state(lua_State *L) {
  const zt_scaler *s = check_scaler(L);
  lua_createtable(L, 0, 4);
  lua_pushnumber(L, s->scale);
  lua_setfield(L, -2, "scale");
  lua_pushinteger(L, s->iteration);
  lua_setfield(L, -2, "iteration");
  lua_pushinteger(L, s->last_overflow);
  lua_setfield(L, -2, "last_overflow");
  lua_pushinteger(L, s->hysteresis_left);
  lua_setfield(L, -2, "hysteresis_left");
  return 1;
}

static int s_load(lua_State *L) {
  zt_scaler *s = check_scaler(L);
  s->scale = zt_option_number(L, 2, "scale", s->scale);
  s->iteration = zt_option_integer(L, 2, "iteration", s->iteration);
  s->last_overflow = zt_option_integer(L, 2, "last_overflow", s->last_overflow);
  s->hysteresis_left = zt_option_integer(L, 2, "hysteresis_left", s->hysteresis_left);
  return 0;
}

static const luaL_Reg scaler_methods[] = {
    {"scale", s_scale}, {"update", s_update}, {"state", s_state}, {"load", s_load}, {NULL, NULL},
};
static void open(lua_State *L) { zt_new_class(L, class_name, scaler_methods, release); }

static const luaL_Reg functions[] = {{"scaler", l_scaler}, {NULL, NULL}};
const zt_lua_subject zt_lua_scaler = {functions, NULL, open};
