/* The pool: reuse, merging, budget and its message, kinds, and the same addresses on every run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/device/pool.h"

enum { MIB = 1 << 20 };

typedef struct fixture {
  zt_device *device;
  zt_pool *pool;
} fixture;

static fixture open_pool(size_t budget) {
  fixture f;
  assert_int_equal(zt_device_open("cpu", &f.device), ZT_OK);
  assert_int_equal(zt_pool_new(f.device, budget, &f.pool), ZT_OK);
  return f;
}

static void close_pool(fixture f) {
  zt_pool_free(f.pool);
  zt_device_close(f.device);
}

static zt_block *get(fixture f, size_t nbytes) {
  zt_block *b;
  assert_int_equal(zt_pool_alloc(f.pool, nbytes, ZT_MEM_ACTIVATION, &b), ZT_OK);
  assert_int_equal((uintptr_t)zt_block_data(b) % 512, 0);
  memset(zt_block_data(b), 0xcb, nbytes);
  return b;
}

static void freed_memory_is_reused(void **state) {
  (void)state;
  fixture f = open_pool(0);
  for (int i = 0; i < 100; i++) {
    zt_block *a = get(f, 3 * MIB), *b = get(f, 5 * MIB), *c = get(f, 7);
    zt_pool_release(f.pool, b);
    zt_block *d = get(f, 4 * MIB);
    zt_pool_release(f.pool, a);
    zt_pool_release(f.pool, c);
    zt_pool_release(f.pool, d);
  }
  zt_pool_stats s = zt_pool_get_stats(f.pool);
  assert_int_equal(s.used_nbytes, 0);
  assert_int_equal(s.held_nbytes, 66 * MIB); /* one large segment, one small */
  zt_block *whole = get(f, 30 * MIB);        /* the pieces have merged */
  assert_int_equal(zt_pool_get_stats(f.pool).held_nbytes, 66 * MIB);
  zt_pool_release(f.pool, whole);
  zt_pool_flush(f.pool);
  assert_int_equal(zt_pool_get_stats(f.pool).held_nbytes, 0);
  close_pool(f);
}

static void live_blocks_do_not_overlap(void **state) {
  (void)state;
  enum { N = 200 };
  fixture f = open_pool(0);
  zt_block *blocks[N] = {0};
  size_t sizes[N] = {0};
  srand(7);
  for (int turn = 0; turn < 5000; turn++) {
    int i = rand() % N;
    if (blocks[i]) {
      unsigned char *p = zt_block_data(blocks[i]);
      for (size_t k = 0; k < sizes[i]; k += 997) assert_int_equal(p[k], i);
      zt_pool_release(f.pool, blocks[i]);
      blocks[i] = NULL;
    } else {
      sizes[i] = (size_t)rand() % (rand() % 8 ? 5000 : 3 * MIB);
      blocks[i] = get(f, sizes[i]);
      memset(zt_block_data(blocks[i]), i, sizes[i]);
    }
  }
  for (int i = 0; i < N; i++) zt_pool_release(f.pool, blocks[i]);
  assert_int_equal(zt_pool_get_stats(f.pool).used_nbytes, 0);
  close_pool(f);
}

static zt_block *hostage;
static fixture hostage_pool;
static void free_hostage(void *user) {
  ++*(int *)user;
  zt_pool_release(hostage_pool.pool, hostage);
  hostage = NULL;
}

static void a_budget_is_a_budget(void **state) {
  (void)state;
  fixture f = hostage_pool = open_pool(100 * MIB);
  zt_block *a = get(f, 40 * MIB), *b;
  zt_block_set_kind(f.pool, a, ZT_MEM_PARAMETER);
  assert_int_equal(zt_pool_alloc(f.pool, 61 * MIB, ZT_MEM_OTHER, &b), ZT_NOMEM);
  assert_null(b);
  assert_string_equal(zt_message(), "cpu: asks for 61.0 MiB, 40.0 MiB of 100.0 MiB are in use (parameters 40.0 MiB)");
  int n_asked = 0;
  hostage = get(f, 50 * MIB);
  zt_pool_set_reclaim(f.pool, free_hostage, &n_asked);
  b = get(f, 60 * MIB);
  assert_int_equal(n_asked, 1);
  zt_pool_release(f.pool, a);
  zt_pool_release(f.pool, b);
  assert_true(zt_pool_get_stats(f.pool).held_peak_nbytes <= 100 * MIB);
  close_pool(f);
}

static void a_small_budget_serves_small_requests(void **state) {
  (void)state;
  fixture f = open_pool(1 * MIB);
  zt_block *a = get(f, 400 << 10), *b = get(f, 400 << 10), *c;
  assert_int_equal(zt_pool_alloc(f.pool, 400 << 10, ZT_MEM_OTHER, &c), ZT_NOMEM);
  assert_string_equal(zt_message(), "cpu: asks for 400.0 KiB, 800.0 KiB of 1.0 MiB are in use (activations 800.0 KiB)");
  zt_pool_release(f.pool, a);
  zt_pool_release(f.pool, b);
  close_pool(f);
}

static void peaks_are_counted_by_kind(void **state) {
  (void)state;
  fixture f = open_pool(0);
  zt_block *a, *b;
  assert_int_equal(zt_pool_alloc(f.pool, 1024, ZT_MEM_GRADIENT, &a), ZT_OK);
  assert_int_equal(zt_pool_alloc(f.pool, 512, ZT_MEM_OPTIMIZER, &b), ZT_OK);
  zt_pool_release(f.pool, a);
  zt_pool_stats s = zt_pool_get_stats(f.pool);
  assert_int_equal(s.peak_nbytes, 1536);
  assert_int_equal(s.peak[ZT_MEM_GRADIENT], 1024);
  assert_int_equal(s.used[ZT_MEM_GRADIENT], 0);
  zt_pool_reset_peak(f.pool);
  assert_int_equal(zt_pool_get_stats(f.pool).peak_nbytes, 512);
  zt_pool_release(f.pool, b);
  close_pool(f);
}

static void failing_allocations_lose_nothing(void **state) {
  (void)state;
  uint64_t live = zt_mem_get_stats().n_live_blocks;
  for (uint64_t n = 1;; n++) {
    fixture f = open_pool(0);
    zt_block *a = NULL, *b = NULL;
    zt_mem_fail_at(n, true);
    zt_status st = zt_pool_alloc(f.pool, 3000, ZT_MEM_OTHER, &a);
    if (st == ZT_OK) st = zt_pool_alloc(f.pool, 3 * MIB, ZT_MEM_OTHER, &b);
    zt_mem_fail_at(0, false);
    zt_pool_release(f.pool, a);
    zt_pool_release(f.pool, b);
    close_pool(f);
    assert_int_equal(zt_mem_get_stats().n_live_blocks, live);
    if (st == ZT_OK) break;
    assert_int_equal(st, ZT_NOMEM);
    assert_true(n < 100);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(freed_memory_is_reused),
      cmocka_unit_test(live_blocks_do_not_overlap),
      cmocka_unit_test(a_budget_is_a_budget),
      cmocka_unit_test(peaks_are_counted_by_kind),
      cmocka_unit_test(failing_allocations_lose_nothing),
      cmocka_unit_test(a_small_budget_serves_small_requests),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
