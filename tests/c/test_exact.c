/* The exact accumulator against long integers kept here bit by bit, and against itself in other orders. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "core/base/exact.h"
#include "core/base/rng.h"

static uint64_t seed, draws;

static uint64_t next(void) { return zt_rng_mix(seed, draws++); }

/* Any finite double: every exponent is as likely as another. */
static double any_finite(void) {
  for (;;) {
    union {
      uint64_t u;
      double f;
    } bits = {next()};
    if (isfinite(bits.f)) return bits.f;
  }
}

static int setup(void **state) {
  (void)state;
  seed = (uint64_t)time(NULL);
  print_message("seed %llu\n", (unsigned long long)seed);
  return 0;
}

static void assert_same_bits(double a, double b) {
  if (memcmp(&a, &b, sizeof a) != 0) fail_msg("%a is not %a (seed %llu)", a, b, (unsigned long long)seed);
}

/* The reference: a two's complement number of 2304 bits, one bit a byte, the lowest weighing 2^-1074. */
enum { BITS = 2304 };
typedef struct long_number {
  unsigned char bit[BITS];
} long_number;

static void long_add(long_number *n, double value) {
  int exponent;
  double fraction = frexp(fabs(value), &exponent);
  int place = exponent - 53 + 1074;
  uint64_t whole = (uint64_t)ldexp(fraction, 53);
  for (; place < 0; place++) whole >>= 1;
  bool minus = signbit(value);
  int over = minus;
  for (int i = 0; i < BITS; i++) {
    int b = i >= place && i < place + 64 ? (int)(whole >> (i - place) & 1) : 0;
    int s = n->bit[i] + (minus ? !b : b) + over;
    n->bit[i] = s & 1;
    over = s >> 1;
  }
}

static double long_value(long_number n) {
  bool minus = n.bit[BITS - 1];
  for (int i = 0, over = 1; minus && i < BITS; i++) {
    int s = !n.bit[i] + over;
    n.bit[i] = s & 1;
    over = s >> 1;
  }
  int top = BITS - 1;
  while (top > 0 && !n.bit[top]) top--;
  int low = top > 52 ? top - 52 : 0;
  double value = 0.0;
  for (int i = top; i >= low; i--) value = 2.0 * value + n.bit[i];
  bool half = low > 0 && n.bit[low - 1], more = false;
  for (int i = low - 2; i >= 0; i--) more |= n.bit[i];
  if (half && (more || n.bit[low])) value += 1.0;
  value = ldexp(value, low - 1074);
  return minus ? -value : value;
}

static double sum_of(const double *x, size_t count) {
  zt_exact sum;
  zt_exact_clear(&sum);
  for (size_t i = 0; i < count; i++) zt_exact_add(&sum, x[i]);
  return zt_exact_value(&sum);
}

static double long_sum_of(const double *x, size_t count) {
  static const long_number zero;
  long_number n = zero;
  for (size_t i = 0; i < count; i++) long_add(&n, x[i]);
  return long_value(n);
}

static void shuffle(double *x, size_t count) {
  for (size_t i = count; i > 1; i--) {
    size_t j = next() % i;
    double t = x[i - 1];
    x[i - 1] = x[j], x[j] = t;
  }
}

static double grouped_sum_of(const double *x, size_t count) {
  zt_exact total, part;
  zt_exact_clear(&total);
  for (size_t i = 0; i < count;) {
    size_t end = i + 1 + next() % (count - i);
    zt_exact_clear(&part);
    for (; i < end; i++) zt_exact_add(&part, x[i]);
    zt_exact_merge(&total, &part);
  }
  return zt_exact_value(&total);
}

static void check_in_every_order(double *x, size_t count) {
  double want = long_sum_of(x, count);
  for (int round = 0; round < 4; round++) {
    assert_same_bits(sum_of(x, count), want);
    assert_same_bits(grouped_sum_of(x, count), want);
    shuffle(x, count);
  }
}

static void nothing_is_zero(void **state) {
  (void)state;
  assert_same_bits(sum_of(NULL, 0), 0.0);
  double x[2] = {-1.5, 1.5};
  assert_same_bits(sum_of(x, 2), 0.0);
}

static void one_value_comes_back(void **state) {
  (void)state;
  const double edges[] = {0x1p-1074, -0x1p-1074, 0x1p-1022, 0x0.fffffffffffffp-1022, 0x1.fffffffffffffp1023, 1.0, -3.0};
  for (size_t i = 0; i < sizeof edges / sizeof *edges; i++) assert_same_bits(sum_of(edges + i, 1), edges[i]);
  for (int i = 0; i < 20000; i++) {
    double x = any_finite();
    if (x == 0.0) continue;
    assert_same_bits(sum_of(&x, 1), x);
  }
}

static void whole_range(void **state) {
  (void)state;
  double x[97];
  for (int round = 0; round < 20; round++) {
    size_t count = 1 + next() % 97;
    for (size_t i = 0; i < count; i++) x[i] = any_finite();
    check_in_every_order(x, count);
  }
}

/* Values of like size, so that halves and sticky bits below them decide the rounding. */
static void rounding_and_cancellation(void **state) {
  (void)state;
  double x[64];
  for (int round = 0; round < 60; round++) {
    size_t count = 2 + next() % 31;
    int spread = 1 + (int)(next() % 130), base = (int)(next() % 1800) - 1000;
    for (size_t i = 0; i < count; i++) {
      double m = (double)(int64_t)(next() % 16) - 8.0;
      x[2 * i] = ldexp(m, base + (int)(next() % (uint64_t)spread));
      x[2 * i + 1] = next() % 2 ? -x[2 * i] : ldexp(m + 0.5, base - 53);
    }
    check_in_every_order(x, 2 * count);
  }
  double tie_even[] = {1.0, 0x1p-53}, tie_odd[] = {1.0 + 0x1p-52, 0x1p-53}, sticky[] = {1.0, 0x1p-53, 0x1p-1074};
  assert_same_bits(sum_of(tie_even, 2), 1.0);
  assert_same_bits(sum_of(tie_odd, 2), 1.0 + 0x1p-51);
  assert_same_bits(sum_of(sticky, 3), 1.0 + 0x1p-52);
  double huge[] = {0x1.fffffffffffffp1023, 0x1.fffffffffffffp1023, -0x1.fffffffffffffp1023, 0x1p-1074};
  assert_same_bits(sum_of(huge, 4), 0x1.fffffffffffffp1023);
  assert_true(isinf(sum_of(huge, 2)));
}

static void many_additions_carry(void **state) {
  (void)state;
  zt_exact sum, copy;
  zt_exact_clear(&sum);
  const int count = 3000000;
  const double x = 0x1.fffffffffffffp+7;
  for (int i = 0; i < count; i++) zt_exact_add(&sum, x);
  assert_same_bits(zt_exact_value(&sum), (double)count * 256.0 - (double)count * 0x1p-45);
  /* doubling by merges passes the 2^31 additions that a slot can take */
  for (int i = 0; i < 40; i++) {
    copy = sum;
    zt_exact_merge(&sum, &copy);
  }
  assert_same_bits(zt_exact_value(&sum), ldexp((double)count * 256.0 - (double)count * 0x1p-45, 40));
  /* just before the limit the next additions carry first */
  double before = zt_exact_value(&sum);
  sum.n_added = ((uint64_t)1 << 31) - 3;
  for (int i = 0; i < 3; i++) zt_exact_add(&sum, ldexp(1.0, 60));
  assert_true(sum.n_added < 3);
  assert_same_bits(zt_exact_value(&sum), before + 3.0 * ldexp(1.0, 60));
}

static void bad_values_are_counted(void **state) {
  (void)state;
  zt_exact sum, other;
  zt_exact_clear(&sum);
  zt_exact_clear(&other);
  zt_exact_add(&other, INFINITY);
  zt_exact_add(&other, -NAN);
  zt_exact_add(&sum, 1.0);
  zt_exact_merge(&sum, &other);
  assert_int_equal(sum.n_bad, 2);
  assert_true(isnan(zt_exact_value(&sum)));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(nothing_is_zero),      cmocka_unit_test(one_value_comes_back),
      cmocka_unit_test(whole_range),          cmocka_unit_test(rounding_and_cancellation),
      cmocka_unit_test(many_additions_carry), cmocka_unit_test(bad_values_are_counted),
  };
  return cmocka_run_group_tests(tests, setup, NULL);
}
