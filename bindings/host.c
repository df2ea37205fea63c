/* host.c - the interpreter that runs recipes, in the program ztrain and in others. */
#include "bindings/zt_host.h"

#include <errno.h>
#include <lualib.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "bindings/lua_state.h"
#include "bindings/zt_lua.h"

struct zt_host {
  lua_State *L;
  zt_lua *state; /* L's */
  zt_host_options options;
  zt_settings settings;
  size_t lua_used;           /* bytes */
  _Atomic(pthread_t) thread; /* that of the script */
  char where[96];            /* the script's line, when it was last asked for */
};

/* Lua counts on a block that shrinks: where that fails, the larger block serves. */
static void *lua_alloc(void *user, void *block, size_t old, size_t nbytes) {
  zt_host *host = user;
  if (!block) old = 0;
  if (nbytes == 0) {
    zt_free(block);
    host->lua_used -= old;
    return NULL;
  }
  size_t limit = host->options.lua_memory;
  if (limit && nbytes > old && host->lua_used - old + nbytes > limit) {
    zt_fail(ZT_NOMEM, "Lua memory: %zu bytes asked, %zu of %zu are in use", nbytes, host->lua_used, limit);
    return NULL;
  }
  void *p = zt_realloc(block, nbytes);
  if (!p && nbytes > old) return NULL;
  host->lua_used += nbytes - old;
  return p ? p : block;
}

/* --- only source text */

static bool is_binary(const char *message) { return strstr(message, "attempt to load a binary chunk") != NULL; }

/* Replaces the message of a failed load at the top by one that says what is wrong with a precompiled chunk. */
static void explain_load(lua_State *L, const char *name) {
  if (lua_type(L, -1) != LUA_TSTRING || !is_binary(lua_tostring(L, -1))) return;
  lua_pushfstring(L, "%s: is precompiled Lua; ztrain runs only source text", name);
  lua_replace(L, -2);
}

static void load_file(lua_State *L, const char *path) {
  if (luaL_loadfilex(L, path, "t") == LUA_OK) return;
  explain_load(L, path);
  lua_error(L);
}

/* load and loadfile: upvalue 1 holds Lua's own, as bytes, since debug.getupvalue would hand out a function; upvalue 2 is
** the place of 'mode' among the arguments. */
static int load_text(lua_State *L) {
  lua_CFunction own;
  memcpy(&own, lua_touserdata(L, lua_upvalueindex(1)), sizeof own);
  int mode = (int)lua_tointeger(L, lua_upvalueindex(2));
  if (lua_gettop(L) < mode) lua_settop(L, mode);
  lua_pushliteral(L, "t");
  lua_replace(L, mode);
  const char *name = lua_type(L, mode - 1) == LUA_TSTRING ? lua_tostring(L, mode - 1) : "chunk";
  lua_pushstring(L, name);
  lua_insert(L, 1);
  lua_pushcfunction(L, own);
  lua_insert(L, 2);
  lua_call(L, lua_gettop(L) - 2, LUA_MULTRET);
  if (lua_isnil(L, 2)) explain_load(L, lua_tostring(L, 1));
  return lua_gettop(L) - 1;
}

static int after_dofile(lua_State *L, int status, lua_KContext top) {
  (void)status;
  return lua_gettop(L) - (int)top;
}

static int dofile_text(lua_State *L) {
  load_file(L, zt_arg_string(L, 1, NULL));
  lua_settop(L, 2);
  lua_callk(L, 0, LUA_MULTRET, 1, after_dofile);
  return after_dofile(L, LUA_OK, 1);
}

/* package.searchers[2] */
static int search_text(lua_State *L) {
  const char *name = luaL_checkstring(L, 1);
  luaL_getsubtable(L, LUA_REGISTRYINDEX, LUA_LOADED_TABLE);
  lua_getfield(L, -1, LUA_LOADLIBNAME);
  lua_getfield(L, -1, "searchpath");
  lua_pushstring(L, name);
  lua_getfield(L, -3, "path");
  lua_call(L, 2, 2);
  if (lua_isnil(L, -2)) return 1;
  lua_pop(L, 1);
  load_file(L, lua_tostring(L, -1));
  lua_insert(L, -2);
  return 2;
}

/* Sets field 'name' of the table at the top to load_text around what stands there. */
static void wrap_load(lua_State *L, const char *name, int mode) {
  lua_getfield(L, -1, name);
  lua_CFunction own = lua_tocfunction(L, -1);
  lua_pop(L, 1);
  memcpy(lua_newuserdatauv(L, sizeof own, 0), &own, sizeof own);
  lua_pushinteger(L, mode);
  lua_pushcclosure(L, load_text, 2);
  lua_setfield(L, -2, name);
}

static void restrict_loading(lua_State *L) {
  lua_pushglobaltable(L);
  wrap_load(L, "load", 3);
  wrap_load(L, "loadfile", 2);
  lua_pushcfunction(L, dofile_text);
  lua_setfield(L, -2, "dofile");
  lua_getfield(L, -1, LUA_LOADLIBNAME);
  lua_getfield(L, -1, "searchers");
  lua_pushcfunction(L, search_text);
  lua_rawseti(L, -2, 2);
  lua_pop(L, 3);
}

/* --- no undeclared globals */

static int read_undeclared(lua_State *L) {
  return zt_lua_raise(L, "variable '%s' is not declared", luaL_tolstring(L, 2, NULL));
}

static int assign_undeclared(lua_State *L) {
  return zt_lua_raise(L, "variable '%s' is not declared; write 'local' before it", luaL_tolstring(L, 2, NULL));
}

static void restrict_globals(lua_State *L) {
  lua_pushglobaltable(L);
  lua_createtable(L, 0, 2);
  lua_pushcfunction(L, read_undeclared);
  lua_setfield(L, -2, "__index");
  lua_pushcfunction(L, assign_undeclared);
  lua_setfield(L, -2, "__newindex");
  lua_setmetatable(L, -2);
  lua_pop(L, 1);
}

/* --- other ranks */

static zt_world *ranks_of(const zt_host_options *options) {
  zt_world *w = options->context.world;
  return w && zt_world_size(w) > 1 ? w : NULL;
}

/* The others hear why this one failed. Where all have agreed to stop they end by themselves. Passes 'st' on. */
static zt_status tell_ranks(const zt_host_options *options, zt_status st) {
  zt_world *w = ranks_of(options);
  int signal = options->signals ? zt_signals_stop() : 0;
  if (st != ZT_OK && w && !zt_signals_agreed()) zt_world_fail(w, zt_message(), signal ? 128 + signal : 1);
  return st;
}

/* In the control thread. */
static void another_failed(void *user, const char *message, int exit_status) {
  const zt_host_options *options = &((zt_host *)user)->options;
  if (options->signals) zt_signals_interrupt();
  if (options->on_failure) options->on_failure(options->on_failure_user, message, exit_status);
}

/* Only the script's thread may ask Lua. */
static const char *where(void *user) {
  zt_host *host = user;
  if (!pthread_equal(atomic_load(&host->thread), pthread_self())) return NULL;
  zt_lua_where(host->state->L, host->where, sizeof host->where);
  return host->where;
}

static void watch_ranks(zt_host *host) {
  zt_world *w = ranks_of(&host->options);
  if (!w) return;
  zt_world_set_where(w, where, host);
  zt_world_set_on_failure(w, another_failed, host);
}

/* os.exit; upvalue 1 is Lua's own. The other ranks hear of a failure; what is on its way to them gets there. */
static int exit_rank(lua_State *L) {
  int status = lua_isboolean(L, 1) ? !lua_toboolean(L, 1) : (int)(luaL_optinteger(L, 1, 0) & 0xff);
  zt_lua *state = zt_lua_get(L);
  zt_world *w = zt_ctx_world(state->ctx);
  zt_queue *queue;
  if (status != 0) {
    char script[96], text[128];
    zt_lua_where(L, script, sizeof script);
    snprintf(text, sizeof text, "%s: os.exit(%d)", script, status);
    zt_world_fail(w, text, status);
  }
  if (zt_ctx_queue(state->ctx, &queue) == ZT_OK) zt_queue_drain(queue);
  zt_signals_watch(NULL); /* Lua's exit may close the state, and nobody shall interrupt it then */
  lua_pushvalue(L, lua_upvalueindex(1));
  lua_insert(L, 1);
  lua_call(L, lua_gettop(L) - 1, 0);
  return 0;
}

static void watch_exit(lua_State *L) {
  lua_getglobal(L, LUA_OSLIBNAME);
  lua_getfield(L, -1, "exit");
  lua_pushcclosure(L, exit_rank, 1);
  lua_setfield(L, -2, "exit");
  lua_pop(L, 1);
}

/* --- making and freeing */

/* (host) */
static int set_up(lua_State *L) {
  zt_host *host = lua_touserdata(L, 1);
  luaL_openlibs(L);
  host->state = zt_lua_make(L, &host->options.context);
  host->state->traceback = host->options.traceback;
  host->state->settings = &host->settings;
  zt_lua_try(L, zt_open(L));
  if (ranks_of(&host->options)) watch_exit(L);
  restrict_loading(L);
  restrict_globals(L);
  return 0;
}

/* What a failed protected call means; its message is at the top, and goes. */
static zt_status take_error(lua_State *L, zt_status otherwise) {
  const char *message = lua_tostring(L, -1);
  if (!message) message = "an error that is not a string";
  zt_status st = strcmp(message, "not enough memory") == 0 ? ZT_NOMEM : zt_fail(otherwise, "%s", message);
  lua_pop(L, 1);
  return st;
}

static zt_status open_lua(zt_host *host) {
  host->L = lua_newstate(lua_alloc, host);
  if (!host->L) return ZT_NOMEM;
  lua_pushcfunction(host->L, set_up);
  lua_pushlightuserdata(host->L, host);
  if (lua_pcall(host->L, 1, 0, 0) != LUA_OK) return take_error(host->L, ZT_STATE);
  return host->options.signals ? zt_signals_install() : ZT_OK;
}

zt_status zt_host_new(const zt_host_options *options, zt_host **out) {
  zt_host_options given = options ? *options : (zt_host_options){0};
  *out = NULL;
  if (given.memory) ZT_TRY(zt_mem_set_hook(given.memory));
  zt_host *host = zt_calloc(1, sizeof *host);
  if (!host) {
    if (given.memory) zt_mem_set_hook(NULL);
    return ZT_NOMEM;
  }
  host->options = given;
  if (given.settings) host->settings = *given.settings;
  if (given.log) zt_log_set_sink(given.log, given.log_user);
  zt_status st = tell_ranks(&given, open_lua(host));
  if (st == ZT_OK) {
    watch_ranks(host);
    *out = host;
  } else {
    zt_host_free(host);
  }
  return st;
}

void zt_host_free(zt_host *host) {
  if (!host) return;
  zt_world *w = ranks_of(&host->options);
  if (w) zt_world_set_on_failure(w, NULL, NULL); /* it uses the Lua state */
  if (host->options.signals) zt_signals_restore();
  if (host->L) lua_close(host->L);
  if (w) zt_world_set_where(w, NULL, NULL);
  if (host->options.log) zt_log_set_sink(NULL, NULL);
  bool hook = host->options.memory != NULL;
  zt_free(host);
  if (hook) zt_mem_set_hook(NULL);
}

/* --- running */

typedef struct zt_script {
  const char *name; /* of a file, where text is NULL */
  const char *text;
  bool is_module; /* 'name' is: its function main gets the table of arguments */
  size_t nbytes;
  int n_args;
  char *const *args;
} zt_script;

static void set_arg(lua_State *L, const zt_script *script) {
  lua_pushglobaltable(L);
  lua_pushliteral(L, "arg");
  lua_createtable(L, script->n_args, 1);
  for (int i = 0; i <= script->n_args; i++) {
    lua_pushstring(L, i ? script->args[i - 1] : script->name);
    lua_rawseti(L, -2, i);
  }
  lua_rawset(L, -3);
  lua_pop(L, 1);
}

static void load_buffer(lua_State *L, const zt_script *script) {
  lua_pushfstring(L, "@%s", script->name);
  if (luaL_loadbufferx(L, script->text, script->nbytes, lua_tostring(L, -1), "t") == LUA_OK) return;
  explain_load(L, script->name);
  lua_error(L);
}

static void call_main(lua_State *L, const zt_script *script) {
  lua_getglobal(L, "require");
  lua_pushstring(L, script->name);
  lua_call(L, 1, 1);
  lua_getfield(L, -1, "main");
  lua_getglobal(L, "arg");
  lua_call(L, 1, 0);
}

static void call_chunk(lua_State *L, const zt_script *script) {
  if (!script->text) {
    load_file(L, script->name);
  } else {
    load_buffer(L, script);
  }
  for (int i = 0; i < script->n_args; i++) lua_pushstring(L, script->args[i]);
  lua_call(L, script->n_args, 0);
}

/* (script) */
static int run_script(lua_State *L) {
  const zt_script *script = lua_touserdata(L, 1);
  luaL_checkstack(L, script->n_args + 8, "too many arguments");
  set_arg(L, script);
  if (script->is_module) {
    call_main(L, script);
  } else {
    call_chunk(L, script);
  }
  zt_lua_run_at_end(L);
  return 0;
}

/* Errors that are not strings become one here, while their __tostring can still be called. */
static int on_error(lua_State *L) {
  if (lua_type(L, 1) != LUA_TSTRING) {
    luaL_tolstring(L, 1, NULL);
    lua_replace(L, 1);
    lua_settop(L, 1);
  }
  return zt_lua_on_error(L);
}

static zt_status stopped(zt_status st) {
  int signal = zt_signals_stop();
  if (!signal || st == ZT_INTERRUPTED) return st;
  return st == ZT_OK ? zt_fail(ZT_INTERRUPTED, "stopped by signal %d", signal) : ZT_INTERRUPTED;
}

static zt_status run(zt_host *host, zt_script *script) {
  lua_State *L = host->L;
  zt_status st = ZT_OK;
  lua_settop(L, 0);
  atomic_store(&host->thread, pthread_self());
  if (host->options.signals) zt_signals_watch(L);
  zt_lua_forget_at_end(L);
  lua_pushnil(L);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &zt_lua_traceback_key);
  lua_pushcfunction(L, on_error);
  lua_pushcfunction(L, run_script);
  lua_pushlightuserdata(L, script);
  if (lua_pcall(L, 1, 0, 1) != LUA_OK) st = tell_ranks(&host->options, take_error(L, ZT_INVALID));
  lua_settop(L, 0);
  return host->options.signals ? stopped(st) : st;
}

zt_status zt_host_run_file(zt_host *host, const char *path, int n_args, char *const args[]) {
  if (access(path, R_OK) != 0)
    return tell_ranks(&host->options, zt_fail(ZT_IO, "cannot read %s: %s", path, strerror(errno)));
  return run(host, &(zt_script){.name = path, .n_args = n_args, .args = args});
}

zt_status zt_host_run_text(zt_host *host, const char *name, const char *text, size_t nbytes, int n_args,
                           char *const args[]) {
  return run(host, &(zt_script){.name = name, .text = text, .nbytes = nbytes, .n_args = n_args, .args = args});
}

zt_status zt_host_run_module(zt_host *host, const char *name, int n_args, char *const args[]) {
  return run(host, &(zt_script){.name = name, .is_module = true, .n_args = n_args, .args = args});
}

const char *zt_host_traceback(const zt_host *host) {
  lua_rawgetp(host->L, LUA_REGISTRYINDEX, &zt_lua_traceback_key);
  const char *text = lua_tostring(host->L, -1); /* the registry keeps it */
  lua_pop(host->L, 1);
  return text;
}

int zt_host_signal(const zt_host *host) { return host->options.signals ? zt_signals_stop() : 0; }

lua_State *zt_host_lua(zt_host *host) { return host->L; }
