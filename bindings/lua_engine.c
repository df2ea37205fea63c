/* lua_engine.c - the training engine as a Lua value. */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>

#include "bindings/lua_optim.h"
#include "bindings/lua_state.h"
#include "bindings/lua_subjects.h"
#include "core/train/engine.h"

static const char class_name[] = "Engine";

typedef struct engine {
  zt_engine *engine; /* owned */
  uint32_t flags;    /* the script's, for the control word: bits from SCRIPT_FLAG on */
} engine;

/* Bits of the control word. */
enum { STOP_INT = 1, STOP_TERM = 2, SCRIPT_FLAG = 16 };

static void release(void *object) {
  engine *o = object;
  zt_engine_free(o->engine);
  o->engine = NULL;
}

static zt_engine *check_engine(lua_State *L) {
  engine *o = zt_check_object(L, 1, class_name);
  zt_lua_ctx(L);
  if (!o->engine) zt_lua_raise(L, "the engine was closed");
  return o->engine;
}

static uint32_t current_flags(void *user) {
  int asked = zt_signals_stop();
  return (asked == SIGINT ? STOP_INT : asked == SIGTERM ? STOP_TERM : 0) | ((engine *)user)->flags;
}

static int l_engine(lua_State *L) {
  static const char *const names[] = {"stage",           "accumulate", "micro_steps", "page_size",
                                      "resident_memory", "overlap",    NULL};
  static const char *const policies[] = {"sharded", "local", NULL};
  zt_check_options(L, 1, names);
  lua_settop(L, 1);
  lua_pushstring(L, zt_option_string(L, 1, "accumulate", "sharded"));
  lua_Integer limit = zt_option_integer(L, 1, "resident_memory", -1);
  zt_engine_options options = {
      .stage = (int)zt_option_integer(L, 1, "stage", 0),
      .accumulate = (zt_accumulate)zt_arg_choice(L, 2, "policy", policies),
      .micro_steps = zt_option_integer(L, 1, "micro_steps", 1),
      .page_nbytes = (size_t)zt_option_integer(L, 1, "page_size", 0),
      .resident_nbytes = limit < 0    ? 0
                         : limit == 0 ? SIZE_MAX
                                      : (size_t)limit, /* 0: no limit */
      .no_overlap = !zt_option_boolean(L, 1, "overlap", true),
      .flags = current_flags,
  };
  zt_ctx *c = zt_lua_ctx(L);
  engine *o = zt_new_object(L, class_name, sizeof *o);
  options.flags_user = o;
  zt_lua_try(L, zt_engine_new(c, &options, &o->engine));
  return 1;
}

/* (self, name, tensor, dtype, optimizer, group): both from 1; optimizer 0: none */
static int e_add(lua_State *L) {
  zt_engine *e = check_engine(L);
  const char *name = zt_arg_string(L, 2, NULL);
  zt_tensor *t = zt_check_tensor(L, 3);
  zt_dtype dtype = zt_arg_dtype(L, 4);
  int optimizer = (int)zt_arg_integer(L, 5) - 1, group = (int)zt_opt_integer(L, 6, 1) - 1;
  zt_lua_try(L, zt_engine_add(e, name, t, dtype, optimizer, group));
  return 0;
}

static int e_build(lua_State *L) {
  zt_lua_try(L, zt_engine_build(check_engine(L)));
  return 0;
}

static int e_micro_step(lua_State *L) {
  zt_lua_try(L, zt_engine_micro_step(check_engine(L), zt_arg_integer(L, 2), zt_opt_number(L, 3, 1)));
  return 0;
}

static int e_micro_end(lua_State *L) {
  zt_engine_micro_end(check_engine(L));
  return 0;
}

static int e_closing(lua_State *L) {
  zt_engine_set_closing(check_engine(L), zt_opt_boolean(L, 2, true));
  return 0;
}

/* (self, number from 0, on): a flag of the control word, which all ranks see in 'flags' of finish */
static int e_flag(lua_State *L) {
  check_engine(L);
  engine *o = zt_check_object(L, 1, class_name);
  lua_Integer i = zt_arg_integer(L, 2);
  if (i < 0 || i > 7) return zt_arg_error(L, 2, "flags are 0 to 7");
  uint32_t bit = (uint32_t)SCRIPT_FLAG << i;
  o->flags = zt_opt_boolean(L, 3, true) ? o->flags | bit : o->flags & ~bit;
  return 0;
}

static void set_integer(lua_State *L, const char *name, lua_Integer value) {
  lua_pushinteger(L, value);
  lua_setfield(L, -2, name);
}

static int e_finish(lua_State *L) {
  zt_engine_result r;
  zt_lua_try(L, zt_engine_finish(check_engine(L), &r));
  lua_createtable(L, 0, 8);
  set_integer(L, "count", r.count);
  lua_pushnumber(L, r.norm);
  lua_setfield(L, -2, "norm");
  set_integer(L, "flags", r.flags / SCRIPT_FLAG);
  if (r.flags & (STOP_INT | STOP_TERM)) set_integer(L, "signal", r.flags & STOP_TERM ? SIGTERM : SIGINT);
  if (!r.bad) return 1;
  lua_pushstring(L, r.bad);
  lua_setfield(L, -2, "bad");
  set_integer(L, "bad_element", r.bad_element);
  set_integer(L, "bad_micro", r.bad_micro);
  set_integer(L, "bad_rank", r.bad_rank);
  return 1;
}

/* (self, optimizer, kind, list of a table for each group, factor) */
static int e_step(lua_State *L) {
  zt_engine *e = check_engine(L);
  int optimizer = (int)zt_arg_integer(L, 2) - 1, n_groups;
  zt_optim_kind kind = (zt_optim_kind)zt_arg_choice(L, 3, "optimizer", zt_lua_optim_names);
  const zt_hyper *h = zt_lua_check_hypers(L, 4, &n_groups);
  zt_lua_try(L, zt_engine_step(e, optimizer, kind, h, n_groups, zt_opt_number(L, 5, 1)));
  return 0;
}

static int e_zero(lua_State *L) {
  zt_engine_zero(check_engine(L));
  return 0;
}

static int e_close(lua_State *L) {
  release(zt_check_object(L, 1, class_name));
  return 0;
}

static int e_hash(lua_State *L) {
  uint64_t hash;
  char text[17];
  zt_lua_try(L, zt_engine_hash(check_engine(L), &hash));
  snprintf(text, sizeof text, "%016" PRIx64, hash);
  lua_pushstring(L, text);
  return 1;
}

static int e_stats(lua_State *L) {
  zt_engine_stats s = zt_engine_get_stats(check_engine(L));
  lua_createtable(L, 0, 6);
  set_integer(L, "pages", (lua_Integer)s.n_pages);
  set_integer(L, "parameters", (lua_Integer)s.n_parameters);
  set_integer(L, "elements", s.n_elements);
  set_integer(L, "padded", s.n_padded);
  set_integer(L, "gathers", (lua_Integer)s.n_gathers);
  set_integer(L, "reductions", (lua_Integer)s.n_reductions);
  return 1;
}

/* --- checkpoints */

/* The list {name, tensor}, ... at 'arg' as an array of Lua's (pushed). */
static zt_engine_extra *check_extras(lua_State *L, int arg, int *n) {
  *n = lua_istable(L, arg) ? (int)lua_rawlen(L, arg) : 0;
  zt_engine_extra *extras = zt_new_buffer(L, ((size_t)*n + 1) * sizeof *extras);
  for (int i = 0; i < *n; i++) {
    lua_rawgeti(L, arg, i + 1);
    if (!lua_istable(L, -1)) zt_type_error(L, arg, "list of {name, tensor}");
    lua_rawgeti(L, -1, 1);
    lua_rawgeti(L, -2, 2);
    extras[i] = (zt_engine_extra){zt_arg_string(L, lua_gettop(L) - 1, NULL), zt_check_tensor(L, lua_gettop(L))};
    lua_pop(L, 3); /* the list keeps them */
  }
  return extras;
}

static int e_save(lua_State *L) {
  zt_engine *e = check_engine(L);
  const char *path = zt_arg_string(L, 2, NULL), *json = zt_arg_string(L, 3, NULL);
  int n;
  const zt_engine_extra *extras = check_extras(L, 4, &n);
  zt_lua_try(L, zt_engine_save(e, path, json, extras, n));
  return 0;
}

static const char checkpoint_class[] = "ztrain.checkpoint.reading";

static void release_checkpoint(void *object) {
  zt_checkpoint **ck = object;
  zt_checkpoint_close(*ck);
  *ck = NULL;
}

/* (self, path, extras) -> the JSON text */
static int e_load(lua_State *L) {
  zt_engine *e = check_engine(L);
  const char *path = zt_arg_string(L, 2, NULL);
  int n;
  const zt_engine_extra *extras = check_extras(L, 3, &n);
  zt_checkpoint **ck = zt_new_object(L, checkpoint_class, sizeof *ck);
  zt_lua_try(L, zt_checkpoint_open(path, ck));
  zt_lua_try(L, zt_wrap(zt_engine_load(e, *ck, extras, n), "%s", path));
  lua_pushstring(L, zt_checkpoint_json(*ck));
  release_checkpoint(ck);
  return 1;
}

/* A list of {name, steps, begun}. */
static int e_steps(lua_State *L) {
  zt_engine *e = check_engine(L);
  size_t n = zt_engine_get_stats(e).n_parameters;
  lua_createtable(L, (int)n, 0);
  for (size_t i = 0; i < n; i++) {
    const char *name;
    int64_t steps;
    bool begun;
    zt_lua_try(L, zt_engine_get_steps(e, i, &name, &steps, &begun));
    lua_createtable(L, 0, 3);
    lua_pushstring(L, name);
    lua_setfield(L, -2, "name");
    set_integer(L, "steps", steps);
    lua_pushboolean(L, begun);
    lua_setfield(L, -2, "begun");
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
  return 1;
}

static int e_set_steps(lua_State *L) {
  zt_engine *e = check_engine(L);
  zt_lua_try(L, zt_engine_set_steps(e, zt_arg_string(L, 2, NULL), zt_arg_integer(L, 3), zt_opt_boolean(L, 4, false)));
  return 0;
}

static const luaL_Reg engine_methods[] = {
    {"add", e_add},   {"build", e_build},   {"micro_step", e_micro_step}, {"micro_end", e_micro_end},
    {"flag", e_flag}, {"finish", e_finish}, {"closing", e_closing},       {"step", e_step},
    {"zero", e_zero}, {"hash", e_hash},     {"stats", e_stats},           {"save", e_save},
    {"load", e_load}, {"steps", e_steps},   {"set_steps", e_set_steps},   {"close", e_close},
    {NULL, NULL},
};

static void open(lua_State *L) {
  zt_new_class(L, class_name, engine_methods, release);
  zt_new_class(L, checkpoint_class, (const luaL_Reg[]){{NULL, NULL}}, release_checkpoint);
}

static int l_is_prepared(lua_State *L) {
  lua_pushboolean(L, zt_engine_of(zt_check_tensor(L, 1)) != NULL);
  return 1;
}

/* Brings a tensor's bytes, as reading it would: for ranks that have nothing to do with what they are. */
static int l_touch(lua_State *L) {
  zt_tensor *t = zt_check_tensor(L, 1);
  zt_lua_try(L, zt_storage_pin(t->storage));
  zt_storage_unpin(t->storage);
  return 0;
}

static const luaL_Reg functions[] = {
    {"engine", l_engine}, {"is_prepared", l_is_prepared}, {"touch", l_touch}, {NULL, NULL}};
const zt_lua_subject zt_lua_engine = {functions, NULL, open};
