/* What ranks do together, on every size of world. */
#include "tests/c/collectives.h"

static const int sizes[] = {1, 2, 3, 4, 7};
enum { N_SIZES = sizeof sizes / sizeof *sizes };

static void run_on_all_sizes(zt_status (*body)(zt_world *w, int rank)) {
  scratch_seed();
  for (int k = 0; k < N_SIZES; k++) {
    crew c = {.options = {.size = sizes[k], .session = 7}, .body = body};
    crew_start(&c);
    crew_wait(&c, 60);
    for (int r = 0; r < sizes[k]; r++) assert_rank(&c, r, CREW_OK, "");
  }
}

static void test_odd_sizes(void **state) { (void)state, run_on_all_sizes(odd_sizes); }
static void test_stress(void **state) { (void)state, run_on_all_sizes(stress); }
static void test_barrier(void **state) { (void)state, run_on_all_sizes(barrier); }
static void test_sums(void **state) { (void)state, run_on_all_sizes(sums); }
static void test_stats(void **state) { (void)state, run_on_all_sizes(stats); }

static void test_sum_arguments(void **state) {
  (void)state;
  zt_world *w;
  uint64_t big[2] = {UINT64_MAX, INT64_MAX};
  assert_ok(zt_world_open(&(zt_world_options){0}, &w));
  assert_fails(zt_all_reduce(w, NULL, ZT_U8, big, 1), ZT_DTYPE,
               "sums over ranks are of float32, float64, bfloat16, float16 or int64, not of uint8");
  assert_fails(zt_broadcast(w, NULL, big, 1, 1), ZT_INVALID, "broadcast from rank 1: there are 1 ranks");
  assert_ok(zt_all_reduce(w, NULL, ZT_I64, big, 2));
  assert_true(big[0] == UINT64_MAX && big[1] == INT64_MAX);
  zt_world_close(w);
}

static uint64_t hash_after(const char *what, int64_t id, const char *name, size_t nbytes, bool twice) {
  zt_world *w;
  char data[64];
  assert_ok(zt_world_open(&(zt_world_options){0}, &w));
  zt_label label = zt_label_here(w, what, id, name);
  assert_ok(zt_all_gather(w, &label, data, nbytes));
  if (twice) assert_ok(zt_all_gather(w, &label, data, nbytes));
  uint64_t hash = zt_comm_get_stats(w).hash;
  zt_world_close(w);
  return hash;
}

static void test_hash(void **state) {
  (void)state;
  uint64_t hash = hash_after("a", 1, "x", 10, false);
  assert_true(hash == hash_after("a", 1, "y", 10, false)); /* names are for messages */
  assert_true(hash != hash_after("b", 1, "x", 10, false));
  assert_true(hash != hash_after("a", 2, "x", 10, false));
  assert_true(hash != hash_after("a", 1, "x", 11, false));
  assert_true(hash != hash_after("a", 1, "x", 10, true));
  assert_true(hash != hash_after(NULL, 1, "x", 10, false));
}

static void test_options(void **state) {
  (void)state;
  zt_world *w;
  assert_fails(zt_world_open(&(zt_world_options){.rank = 4, .size = 4}, &w), ZT_INVALID,
               "rank 4 of 4: ranks count from 0 to size - 1");
  assert_null(w);
  assert_fails(zt_world_open(&(zt_world_options){.size = 4, .local_size = 5}, &w), ZT_INVALID,
               "rank 0 is number 0 of 5 on its machine: out of range");
  assert_fails(zt_world_open(&(zt_world_options){.timeout = -1}, &w), ZT_INVALID,
               "limits of -1 and 60 s: they have to be positive");
  assert_fails(zt_world_open(&(zt_world_options){.plane = "self", .size = 2}, &w), ZT_INVALID,
               "the plane 'self' is for one rank, not for 2");
  assert_fails(zt_world_open(&(zt_world_options){.plane = "ring"}, &w), ZT_INVALID,
               "there is no plane 'ring' between ranks in this build; it has: self, shm, mpi");
  assert_ok(zt_world_open(&(zt_world_options){0}, &w));
  assert_string_equal(zt_world_plane(w), "self");
  assert_int_equal(zt_world_size(w), 1);
  zt_world_fail(w, "broken", 3);
  zt_world_fail(w, "broken again", 4);
  const char *message;
  int status;
  assert_true(zt_world_failed(w, &message, &status));
  assert_string_equal(message, "rank 0/1: broken");
  assert_int_equal(status, 3);
  assert_fails(zt_barrier(w, NULL), ZT_PEER, "rank 0/1: broken");
  zt_world_close(w);
  zt_world_close(NULL);
}

static zt_status open_one(void *user) {
  (void)user;
  zt_world *w;
  float x[2] = {1, 2};
  ZT_TRY(zt_world_open(&(zt_world_options){0}, &w));
  zt_status st = zt_all_reduce(w, NULL, ZT_F32, x, 2);
  zt_world_close(w);
  return st;
}
static void test_memory_fails(void **state) {
  (void)state;
  assert_int_equal(fail_each_allocation(open_one, NULL), 3);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_odd_sizes), cmocka_unit_test(test_stress),        cmocka_unit_test(test_barrier),
      cmocka_unit_test(test_sums),      cmocka_unit_test(test_sum_arguments), cmocka_unit_test(test_stats),
      cmocka_unit_test(test_hash),      cmocka_unit_test(test_options),       cmocka_unit_test(test_memory_fails),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
