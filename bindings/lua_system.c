/* lua_system.c - the context and the machine from Lua: random state, memory, time, signals, terminals, files, and what
** tests need to break things on purpose. */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "bindings/lua_state.h"
#include "bindings/lua_subjects.h"
#include "bindings/nearest.h"

/* --- random state */

static int l_seed(lua_State *L) {
  *zt_ctx_random(zt_lua_ctx(L)) = (zt_random){.seed = (uint64_t)zt_arg_integer(L, 1)};
  return 0;
}

static void set_integer(lua_State *L, const char *name, lua_Integer value) {
  lua_pushinteger(L, value);
  lua_setfield(L, -2, name);
}

static int l_random_state(lua_State *L) {
  static const char *const names[] = {"step", "call", "first_sample", NULL};
  zt_random *random = zt_ctx_random(zt_lua_ctx(L));
  zt_check_options(L, 1, names);
  lua_Integer step = zt_option_integer(L, 1, "step", (lua_Integer)random->step);
  lua_Integer call = zt_option_integer(L, 1, "call", random->call);
  lua_Integer first_sample = zt_option_integer(L, 1, "first_sample", (lua_Integer)random->first_sample);
  *random = (zt_random){random->seed, (uint64_t)step, (uint32_t)call, (uint64_t)first_sample};
  lua_createtable(L, 0, 4);
  set_integer(L, "seed", (lua_Integer)random->seed);
  set_integer(L, "step", step);
  set_integer(L, "call", call);
  set_integer(L, "first_sample", first_sample);
  return 1;
}

/* --- memory, time */

/* Sets field 'name' to a table of bytes by kind. */
static void set_kinds(lua_State *L, const char *name, const size_t nbytes[ZT_N_MEM_KINDS]) {
  static const char *const words[] = {
#define KIND_WORD(id, word) word,
      ZT_MEM_KINDS(KIND_WORD)};
  lua_createtable(L, 0, ZT_N_MEM_KINDS);
  for (int i = 0; i < ZT_N_MEM_KINDS; i++) set_integer(L, words[i], (lua_Integer)nbytes[i]);
  lua_setfield(L, -2, name);
}

static int l_memory(lua_State *L) {
  zt_pool_stats stats = zt_pool_get_stats(zt_ctx_pool(zt_lua_ctx(L)));
  lua_createtable(L, 0, 6);
  set_integer(L, "used", (lua_Integer)stats.used_nbytes);
  set_integer(L, "peak", (lua_Integer)stats.peak_nbytes);
  set_integer(L, "held", (lua_Integer)stats.held_nbytes);
  set_integer(L, "held_peak", (lua_Integer)stats.held_peak_nbytes);
  set_kinds(L, "kinds", stats.used);
  set_kinds(L, "peak_kinds", stats.peak);
  return 1;
}

static int l_reset_peak_memory(lua_State *L) {
  zt_pool_reset_peak(zt_ctx_pool(zt_lua_ctx(L)));
  return 0;
}

static int l_peak_rss(lua_State *L) {
  struct rusage usage;
  if (getrusage(RUSAGE_SELF, &usage) != 0) return zt_lua_raise(L, "getrusage: %s", strerror(errno));
  lua_pushinteger(L, (lua_Integer)usage.ru_maxrss * 1024);
  return 1;
}

static int l_time(lua_State *L) {
  struct timespec now;
  if (clock_gettime(CLOCK_MONOTONIC, &now) != 0) return zt_lua_raise(L, "clock_gettime: %s", strerror(errno));
  lua_pushnumber(L, (double)now.tv_sec + 1e-9 * (double)now.tv_nsec);
  return 1;
}

/* --- signals, terminals */

static int l_stop_signal(lua_State *L) {
  int asked = zt_signals_stop();
  if (!lua_isnoneornil(L, 1)) {
    bool defer = zt_opt_boolean(L, 1, true);
    zt_signals_watch(L);
    zt_lua_try(L, zt_signals_install());
    asked = zt_signals_defer(L, defer);
  }
  if (asked) {
    lua_pushinteger(L, asked);
  } else {
    lua_pushnil(L);
  }
  return 1;
}

static int l_note_stop(lua_State *L) {
  lua_Integer signal = zt_arg_integer(L, 1);
  if (signal != SIGINT && signal != SIGTERM) return zt_arg_error(L, 1, "SIGINT or SIGTERM is expected");
  zt_signals_note((int)signal);
  return 0;
}

static int l_is_terminal(lua_State *L) {
  static const char *const names[] = {"stdin", "stdout", "stderr", NULL};
  int fd = zt_arg_choice(L, 1, "file", names);
  struct winsize size;
  lua_pushboolean(L, isatty(fd));
  if (!lua_toboolean(L, -1) || ioctl(fd, TIOCGWINSZ, &size) != 0) return 1;
  lua_pushinteger(L, size.ws_col);
  return 2;
}

/* --- files */

static int l_mkdirs(lua_State *L) {
  zt_lua_try(L, zt_make_dirs(zt_arg_string(L, 1, NULL)));
  return 0;
}

static int l_write_file(lua_State *L) {
  size_t nbytes;
  const char *path = zt_arg_string(L, 1, NULL), *text = zt_arg_string(L, 2, &nbytes);
  zt_lua_try(L, zt_file_write(path, text, nbytes));
  return 0;
}

static int l_append_file(lua_State *L) {
  size_t nbytes;
  const char *path = zt_arg_string(L, 1, NULL), *text = zt_arg_string(L, 2, &nbytes);
  zt_lua_try(L, zt_file_append(path, text, nbytes));
  return 0;
}

static int l_read_file(lua_State *L) {
  const char *path = zt_arg_string(L, 1, NULL);
  void **box = zt_new_box(L);
  char *data = NULL;
  size_t nbytes = 0;
  if (zt_file_read(path, &data, &nbytes) != ZT_OK) {
    lua_pushnil(L);
    lua_pushstring(L, zt_message());
    return 2;
  }
  *box = data;
  lua_pushlstring(L, data, nbytes);
  zt_free(data);
  *box = NULL;
  return 1;
}

static int l_file_exists(lua_State *L) {
  lua_pushboolean(L, zt_file_exists(zt_arg_string(L, 1, NULL)));
  return 1;
}

/* --- faults, lists */

static int l_fail_allocation(lua_State *L) {
  zt_mem_fail_at((uint64_t)zt_arg_integer(L, 1), zt_opt_boolean(L, 2, false));
  return 0;
}

static int l_host_memory(lua_State *L) {
  zt_mem_stats stats = zt_mem_get_stats();
  lua_createtable(L, 0, 2);
  set_integer(L, "n_allocations", (lua_Integer)stats.n_allocations);
  set_integer(L, "n_live_blocks", (lua_Integer)stats.n_live_blocks);
  return 1;
}

static int l_edit_distance(lua_State *L) {
  lua_pushinteger(L, zt_edit_distance(luaL_checkstring(L, 1), luaL_checkstring(L, 2)));
  return 1;
}

static const luaL_Reg functions[] = {
    {"seed", l_seed},
    {"edit_distance", l_edit_distance},
    {"random_state", l_random_state},
    {"memory", l_memory},
    {"reset_peak_memory", l_reset_peak_memory},
    {"peak_rss", l_peak_rss},
    {"time", l_time},
    {"stop_signal", l_stop_signal},
    {"note_stop", l_note_stop},
    {"is_terminal", l_is_terminal},
    {"mkdirs", l_mkdirs},
    {"write_file", l_write_file},
    {"append_file", l_append_file},
    {"read_file", l_read_file},
    {"file_exists", l_file_exists},
    {"fail_allocation", l_fail_allocation},
    {"host_memory", l_host_memory},
    {NULL, NULL},
};
const zt_lua_subject zt_lua_system = {functions, NULL, NULL};
