/* test_host.c - scripts inside another program: errors come back, nothing leaks, and no failing allocation does harm. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <lauxlib.h>
#include <lualib.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bindings/zt_host.h"
#include "bindings/zt_lua.h"

static zt_status run(zt_host *host, const char *text) {
  return zt_host_run_text(host, "test.lua", text, strlen(text), 0, NULL);
}

static zt_host *new_host(const zt_host_options *options) {
  zt_host *host;
  zt_status st = zt_host_new(options, &host);
  if (st != ZT_OK) fail_msg("%s", zt_message());
  return host;
}

static void expect_ok(zt_host *host, const char *text) {
  if (run(host, text) != ZT_OK) fail_msg("%s", zt_message());
}

static void expect_failure(zt_host *host, zt_status st, const char *text, const char *message) {
  assert_int_equal(run(host, text), st);
  if (!strstr(zt_message(), message)) fail_msg("'%s' is not in '%s'", message, zt_message());
}

static uint64_t live_blocks(void) { return zt_mem_get_stats().n_live_blocks; }

static void runs_and_goes_on(void **state) {
  (void)state;
  uint64_t before = live_blocks();
  zt_host *host = new_host(NULL);
  expect_ok(host, "local core = require 'ztrain.core'\n assert(core.tensor({1, 2}):totable()[2] == 2)");
  expect_failure(host, ZT_INVALID, "local x = 1\nerror('what went wrong')", "test.lua:2: what went wrong");
  assert_null(zt_host_traceback(host));
  expect_failure(host, ZT_INVALID, "local = 1", "test.lua:1: ");
  expect_failure(host, ZT_INVALID, "error(setmetatable({}, {__tostring = function() return 'an object' end}))",
                 "an object");
  expect_failure(host, ZT_INVALID, "local core = require 'ztrain.core'\n\ncore.tensor({1}):size(3)",
                 "test.lua:3: size");
  expect_ok(host, "assert(1 + 1 == 2)");
  assert_int_equal(zt_host_signal(host), 0);
  zt_host_free(host);
  assert_int_equal(live_blocks(), before);
}

static void passes_arguments(void **state) {
  (void)state;
  char a[] = "--lr", b[] = "0.1", *args[] = {a, b};
  const char *text =
      "local x, y = ...\nassert(x == '--lr' and y == '0.1' and arg[0] == 'name' and arg[2] == y and #arg == 2)";
  zt_host *host = new_host(NULL);
  assert_int_equal(zt_host_run_text(host, "name", text, strlen(text), 2, args), ZT_OK);
  zt_host_free(host);
}

static void globals_are_declared(void **state) {
  (void)state;
  zt_host *host = new_host(NULL);
  expect_failure(host, ZT_INVALID, "local y = x", "test.lua:1: variable 'x' is not declared");
  expect_failure(host, ZT_INVALID, "\nx = 1", "test.lua:2: variable 'x' is not declared");
  expect_failure(host, ZT_INVALID, "function f() end", "test.lua:1: variable 'f' is not declared");
  expect_ok(host, "assert(rawget(_G, 'x') == nil)");
  zt_host_free(host);
}

/* Writes a precompiled chunk to a new file; the path is the caller's to free. */
static char *compiled_file(zt_host *host) {
  char *path = strdup("/tmp/ztrain_test_XXXXXX");
  int fd = mkstemp(path);
  assert_true(fd >= 0);
  close(fd);
  const char *text =
      "local out = assert(io.open(..., 'wb'))\nout:write(string.dump(function() return 1 end))\nout:close()";
  assert_int_equal(zt_host_run_text(host, "dump.lua", text, strlen(text), 1, &path), ZT_OK);
  return path;
}

static void only_text_is_loaded(void **state) {
  (void)state;
  zt_host *host = new_host(NULL);
  char *path = compiled_file(host);
  assert_int_equal(zt_host_run_file(host, path, 0, NULL), ZT_INVALID);
  assert_non_null(strstr(zt_message(), "is precompiled Lua; ztrain runs only source text"));
  assert_non_null(strstr(zt_message(), path));
  static const char *const scripts[] = {
      "assert(load(string.dump(function() end)))",
      "assert(load(string.dump(function() end), 'x', 'b'))",
      "assert(loadfile(..., 'bt'))",
      "dofile(...)",
      "package.path = ...\nrequire 'anything'",
  };
  for (size_t i = 0; i < sizeof scripts / sizeof *scripts; i++) {
    assert_int_equal(zt_host_run_text(host, "test.lua", scripts[i], strlen(scripts[i]), 1, &path), ZT_INVALID);
    if (!strstr(zt_message(), "is precompiled Lua")) fail_msg("%s: %s", scripts[i], zt_message());
  }
  expect_ok(host, "assert(load('return ...', 'x', 't', {})(3) == 3 and load('return x', 'x', 'bt', {x = 4})() == 4)");
  assert_int_equal(unlink(path), 0);
  assert_int_equal(zt_host_run_file(host, path, 0, NULL), ZT_IO);
  assert_non_null(strstr(zt_message(), path));
  free(path);
  zt_host_free(host);
}

static void keeps_tracebacks(void **state) {
  (void)state;
  zt_host *host = new_host(&(zt_host_options){.traceback = true});
  expect_failure(host, ZT_INVALID,
                 "local core = require 'ztrain.core'\n"
                 "local function inner() error('deep') end\n"
                 "core.scope('model', function() inner() end)",
                 "test.lua:2: model: deep");
  assert_non_null(strstr(zt_host_traceback(host), "in upvalue 'inner'"));
  expect_ok(host, "local x = 1");
  assert_null(zt_host_traceback(host));
  zt_host_free(host);
}

static void *counting_realloc(void *user, void *block, size_t nbytes) {
  *(long *)user += (block == NULL) - (nbytes == 0 && block != NULL);
  if (nbytes) return realloc(block, nbytes);
  free(block);
  return NULL;
}

static void uses_the_given_allocator(void **state) {
  (void)state;
  long live = 0;
  zt_mem_hook hook = {counting_realloc, &live};
  zt_host *host = new_host(&(zt_host_options){.memory = &hook});
  assert_true(live > 100);
  expect_ok(host, "local t = {}\nfor i = 1, 1000 do t[i] = {} end");
  zt_host_free(host);
  assert_int_equal(live, 0);
}

static void keeps_its_limits(void **state) {
  (void)state;
  zt_host *host = new_host(&(zt_host_options){.lua_memory = 4 << 20, .context = {.device_memory = 64 << 20}});
  expect_failure(host, ZT_NOMEM, "local t = {}\nfor i = 1, 1e6 do t[i] = {} end", "Lua memory");
  expect_failure(host, ZT_INVALID, "require('ztrain.core').zeros(8192, 8192)", "test.lua:1: ");
  expect_ok(host, "local x = require('ztrain.core').zeros(100, 1024)");
  zt_host_free(host);
  assert_int_not_equal(zt_host_new(&(zt_host_options){.context = {.device = "abacus"}}, &host), ZT_OK);
  assert_non_null(strstr(zt_message(), "abacus"));
  assert_null(host);
}

static void gives_settings(void **state) {
  (void)state;
  zt_settings settings = {0};
  assert_int_equal(zt_settings_set(&settings, "zero-stage", "3"), ZT_OK);
  assert_int_equal(zt_settings_set(&settings, "--page_size", "1KiB"), ZT_OK);
  assert_int_equal(zt_settings_set(&settings, "no_overlap", NULL), ZT_OK);
  assert_int_equal(zt_settings_set(&settings, "zero_stage", "-1"), ZT_INVALID);
  assert_non_null(strstr(zt_message(), "'-1' is not an integer from 0 to 3"));
  assert_int_equal(zt_settings_set(&settings, "zero_staeg", "1"), ZT_INVALID);
  assert_non_null(strstr(zt_message(), "did you mean '--zero_stage'?"));
  assert_int_equal(zt_settings_set(&settings, "hash", "1"), ZT_INVALID);
  assert_int_equal(zt_settings_set(&settings, "zero_stage", NULL), ZT_INVALID);
  zt_host *host = new_host(&(zt_host_options){.settings = &settings});
  settings = (zt_settings){0}; /* it was copied */
  expect_ok(host,
            "local s = require('ztrain.core').settings()\n"
            "assert(s.zero_stage == 3 and s.page_size == 1024 and s.overlap == false and s.hash == nil)");
  zt_host_free(host);
}

static void runs_modules(void **state) {
  (void)state;
  char a[] = "a", b[] = "b", *args[] = {a, b};
  zt_host *host = new_host(NULL);
  expect_ok(host,
            "package.preload.mine = function()\n"
            "  return {main = function(argv) assert(#argv == 2 and argv[2] == 'b' and argv[0] == 'mine') end}\n"
            "end");
  assert_int_equal(zt_host_run_module(host, "mine", 2, args), ZT_OK);
  assert_int_equal(zt_host_run_module(host, "mine", 0, NULL), ZT_INVALID);
  assert_non_null(strstr(zt_message(), "assertion failed"));
  assert_int_equal(zt_host_run_module(host, "yours", 0, NULL), ZT_INVALID);
  assert_non_null(strstr(zt_message(), "module 'yours' not found"));
  zt_host_free(host);
}

static void opens_in_any_interpreter(void **state) {
  (void)state;
  uint64_t before = live_blocks();
  lua_State *L = luaL_newstate();
  assert_non_null(L);
  luaL_openlibs(L);
  assert_int_equal(zt_open(L), ZT_OK);
  const char *text =
      "local names = {}\n"
      "for name in pairs(_G) do names[name] = true end\n"
      "local zt = require 'ztrain'\n"
      "assert(zt.tensor({1, 2}):sum():item() == 3)\n"
      "for name in pairs(_G) do assert(names[name], name) end\n"
      "kept = zt.tensor({3})\n"
      "assert(getmetatable(_G) == nil and load(string.dump(function() end)))";
  if (luaL_dostring(L, text)) fail_msg("%s", lua_tostring(L, -1));
  lua_close(L);
  assert_int_equal(live_blocks(), before);
}

/* Touches what owns memory: handles, scopes, gradients, a checkpointed segment, an optimizer, errors. */
static const char everything[] =
    "local core = require 'ztrain.core'\n"
    "local w = core.tensor({{1, 2}, {3, 4}}):requires_grad_()\n"
    "local optim = core.optim 'adamw'\n"
    "optim:add(w, 1)\n"
    "local function layer(x) return core.scope('layer', function() return (x:matmul(w) * 2):tanh() end) end\n"
    "local x = core.tensor({{1, -1}})\n"
    "local y = core.checkpoint(layer, layer(x))\n"
    "y:sum():backward()\n"
    "optim:step({{lr = 0.1}})\n"
    "optim:zero_grad()\n"
    "assert(w.grad == nil)\n"
    "local parts = {core.arange(10):split(3)}\n"
    "assert(#tostring(core.cat(parts)) > 10 and #parts == 4)\n";

/* Lets allocation number n (and all after it) fail while a host is made and runs a script; then the host must still be
** good, if there is one. False once the script makes fewer allocations than n. */
static bool survive(uint64_t n, bool forever) {
  uint64_t before = live_blocks(), first = zt_mem_get_stats().n_allocations;
  zt_host *host;
  zt_mem_fail_at(n, forever);
  zt_status st = zt_host_new(NULL, &host);
  if (st == ZT_OK) st = run(host, everything);
  bool reached = zt_mem_get_stats().n_allocations - first >= n;
  zt_mem_fail_at(0, false);
  if (st != ZT_OK && (!*zt_message() || strstr(zt_message(), "attempt to")))
    fail_msg("allocation %d: %s", (int)n, zt_message());
  if (forever && reached) assert_int_not_equal(st, ZT_OK);
  if (host && run(host, everything) != ZT_OK) fail_msg("after failure %d: %s", (int)n, zt_message());
  zt_host_free(host);
  if (live_blocks() != before) fail_msg("failure %d leaks", (int)n);
  return reached;
}

static void survives_failing_allocations(void **state) {
  (void)state;
  uint64_t n = 1;
  while (survive(n, false) && survive(n, true)) n++;
  assert_true(n > 100);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(uses_the_given_allocator), /* first: nothing may be allocated before */
      cmocka_unit_test(runs_and_goes_on),         cmocka_unit_test(passes_arguments),
      cmocka_unit_test(globals_are_declared),     cmocka_unit_test(only_text_is_loaded),
      cmocka_unit_test(keeps_tracebacks),         cmocka_unit_test(keeps_its_limits),
      cmocka_unit_test(gives_settings),           cmocka_unit_test(runs_modules),
      cmocka_unit_test(opens_in_any_interpreter), cmocka_unit_test(survives_failing_allocations),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
