/* The order of an epoch: a bijection for every count, and an even shuffle. */
#include "tests/c/scratch.h"

#include "core/data/order.h"

static void test_bijection(void **state) {
  (void)state;
  static unsigned char seen[70000];
  static const uint64_t counts[] = {1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 63, 64, 65, 1000, 4095, 4096, 4097, 65537};
  for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
    uint64_t seed = scratch_random(), epoch = scratch_below(100);
    memset(seen, 0, sizeof seen);
    for (uint64_t i = 0; i < counts[k]; i++) {
      uint64_t at = zt_order_at(seed, epoch, counts[k], i);
      assert_true(at < counts[k]);
      assert_int_equal(seen[at]++, 0);
    }
  }
}

static void test_large_counts(void **state) {
  (void)state;
  static const uint64_t counts[] = {UINT64_MAX, UINT64_MAX / 2 + 2, ((uint64_t)1 << 62) + 1, ((uint64_t)1 << 40) - 1};
  for (size_t k = 0; k < 4; k++) {
    uint64_t a = zt_order_at(1, 2, counts[k], 0), b = zt_order_at(1, 2, counts[k], counts[k] - 1);
    assert_true(a < counts[k] && b < counts[k] && a != b);
  }
}

/* The recipe's resume and any number of ranks rely on these never changing. */
static void test_fixed_values(void **state) {
  (void)state;
  uint64_t got[8];
  static const uint64_t expected[8] = {311, 478, 180, 955, 754, 865, 939, 777};
  for (uint64_t i = 0; i < 8; i++) got[i] = zt_order_at(42, 1, 1000, i);
  for (int i = 0; i < 8; i++) assert_int_equal(got[i], expected[i]);
}

static void test_depends_on_seed_and_epoch(void **state) {
  (void)state;
  enum { COUNT = 1000 };
  uint64_t seed = scratch_random();
  int same_seed = 0, same_epoch = 0, fixed = 0;
  for (uint64_t i = 0; i < COUNT; i++) {
    uint64_t at = zt_order_at(seed, 1, COUNT, i);
    same_seed += at == zt_order_at(seed, 2, COUNT, i);
    same_epoch += at == zt_order_at(seed + 1, 1, COUNT, i);
    fixed += at == i;
  }
  assert_in_range(same_seed, 0, 12); /* 1 is expected; Poisson: more than 12 once in 10^10 */
  assert_in_range(same_epoch, 0, 12);
  assert_in_range(fixed, 0, 12);
}

/* Every permutation of 3 and of 4 is drawn equally often: chi squared of 5 and 23 degrees of freedom, whose tails beyond
** these bounds weigh less than 10^-7. The seeds are fixed, so that this holds or does not. */
static double chi_squared(uint64_t count, int n_permutations) {
  static int seen[256];
  enum { N_DRAWS = 60000 };
  double sum = 0, expected = (double)N_DRAWS / n_permutations;
  memset(seen, 0, sizeof seen);
  for (uint64_t seed = 0; seed < N_DRAWS; seed++) {
    unsigned code = 0;
    for (uint64_t i = 0; i < count; i++) code = code << 2 | (unsigned)zt_order_at(seed, 0, count, i);
    seen[code]++;
  }
  for (int i = 0; i < 256; i++)
    if (seen[i]) sum += (seen[i] - expected) * (seen[i] - expected) / expected, n_permutations--;
  assert_int_equal(n_permutations, 0);
  return sum;
}

static void test_even(void **state) {
  (void)state;
  double three = chi_squared(3, 6), four = chi_squared(4, 24);
  if (three > 42 || four > 77) fail_msg("chi squared %g (5 degrees) and %g (23 degrees)", three, four);
}

/* Where a sample of a larger set goes: evenly over eighths, and neighbours apart. */
static void test_spread(void **state) {
  (void)state;
  enum { COUNT = 100003 };
  uint64_t seed = scratch_random();
  int n_in[8][8] = {{0}}, n_close = 0;
  uint64_t before = 0;
  for (uint64_t i = 0; i < COUNT; i++) {
    uint64_t at = zt_order_at(seed, 3, COUNT, i);
    n_in[i * 8 / COUNT][at * 8 / COUNT]++;
    n_close += i && (at > before ? at - before : before - at) < COUNT / 100;
    before = at;
  }
  for (int a = 0; a < 8; a++)
    for (int b = 0; b < 8; b++) /* 1562.6 expected, standard deviation below 40 */
      if (n_in[a][b] < 1322 || n_in[a][b] > 1802) fail_msg("seed %llu: %d", (unsigned long long)seed, n_in[a][b]);
  if (n_close < 1700 || n_close > 2280)
    fail_msg("seed %llu: %d close", (unsigned long long)seed, n_close); /* 1990, 44 */
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_bijection),    cmocka_unit_test(test_large_counts),
      cmocka_unit_test(test_fixed_values), cmocka_unit_test(test_depends_on_seed_and_epoch),
      cmocka_unit_test(test_even),         cmocka_unit_test(test_spread),
  };
  printf("seed %llu\n", (unsigned long long)scratch_seed());
  return cmocka_run_group_tests(tests, NULL, NULL);
}
