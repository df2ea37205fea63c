/* scale, weighted_sum, copy_checked and update_master of every instruction set, bit for bit against plain C: what they compute
** goes into masters, so "nearly" is wrong. */
#include <omp.h>
#include <stdlib.h>

#include "tests/c/kernel_test.h"

static const size_t counts[] = {0, 1, 2, 15, 127, 511, 512, 513, 1031, 70001};
enum { N_COUNTS = sizeof counts / sizeof *counts, LARGE = 70001, MAX_TERMS = 5 };

/* Random values, and among them zeros of both signs, denormals, and values near the ends of what the dtype holds. */
static buffer any_values(zt_dtype t, size_t count) {
  const double smallest = t == ZT_F64 ? 0x1p-1074 : t == ZT_F32 ? 0x1p-149 : t == ZT_BF16 ? 0x1p-133 : 0x1p-24;
  const double special[] = {0.0, -0.0, smallest, -3 * smallest, t == ZT_F16 ? 65504.0 : 0x1p100};
  buffer b = input(t, count, -2, 2);
  for (size_t i = random_below(7); i < count; i += 1 + random_below(9)) put(t, b.data, i, special[random_below(5)]);
  return b;
}

static void expect_same_bits(const buffer *got, const void *want, const char *what) {
  size_t nbytes = zt_dtype_nbytes(got->dtype);
  for (size_t i = 0; i < got->count; i++)
    if (memcmp((char *)got->data + i * nbytes, (const char *)want + i * nbytes, nbytes) != 0)
      fail_msg("%s %s [%zu of %zu]: %a, want %a", what, zt_dtype_name(got->dtype), i, got->count, at(got, i),
               get(got->dtype, want, i));
}

/* --- scale */
static void check_scale(const zt_kernels *table, zt_dtype ty, zt_dtype tx, size_t count) {
  zt_dtype stat = zt_dtype_stat(tx);
  buffer x = any_values(tx, count), y = output(ty, count), want = output(ty, count), factor = input(stat, 1, -3, 3);
  if (random_below(2)) put(stat, factor.data, 0, 0x1p20); /* more than float16 holds */
  double f = at(&factor, 0);
  for (size_t i = 0; i < count; i++)
    put(ty, want.data, i, tx == ZT_F64 ? at(&x, i) * f : (double)((float)at(&x, i) * (float)f));
  expect_ok(table->scale(&no_stream, ty, tx, y.data, x.data, factor.data, count));
  expect_same_bits(&y, want.data, "scaled");
  if (ty == tx) {
    expect_ok(table->scale(&no_stream, ty, tx, x.data, x.data, factor.data, count)); /* in place */
    expect_same_bits(&x, want.data, "scaled in place");
  }
  buffer *all[] = {&x, &y, &want, &factor};
  for (int i = 0; i < 4; i++) buffer_free(all[i]);
}

static void scale(void **state) {
  (void)state;
  FOR_KERNELS(k) for (int c = 0; c < N_COUNTS; c++) {
    check_scale(k->table, ZT_F64, ZT_F64, counts[c]);
    FOR_FLOATS(ty) FOR_FLOATS(tx) if (ty != ZT_F64 && tx != ZT_F64) check_scale(k->table, ty, tx, counts[c]);
  }
  covers_kernel("scale");
}

/* --- weighted_sum */
typedef struct sum_case {
  zt_dtype ts, t;
  bool adds;
  size_t n, stride, count;
  double weights[MAX_TERMS];
} sum_case;

static void reference_sum(const sum_case *c, buffer *sum, const buffer *x) {
  for (size_t i = 0; i < c->count; i++) {
    bool adds = c->adds;
    double total = adds ? at(sum, i) : 0.0;
    for (size_t r = 0; r < c->n; r++) {
      if (c->weights[r] == 0) continue;
      double value = at(x, r * c->stride + i);
      double term = c->ts == ZT_F64 ? c->weights[r] * value : (double)((float)c->weights[r] * (float)value);
      total = !adds ? term : c->ts == ZT_F64 ? total + term : (double)((float)total + (float)term);
      adds = true;
    }
    put(c->ts, sum->data, i, total);
  }
}

static double any_weight(void) {
  const double weights[] = {0.0, -0.0, 1.0, (double)random_below(5000), random_in(-3, 3)};
  return weights[random_below(5)];
}

/* Terms of weight 0 hold what must not come through. */
static void spoil(const sum_case *c, buffer *x, size_t r) {
  for (size_t i = 0; i < c->count; i++) put(c->t, x->data, r * c->stride + i, i % 2 ? NAN : INFINITY);
}

static void check_sum(const zt_kernels *table, sum_case c) {
  buffer x = any_values(c.t, c.n * c.stride), sum = c.adds ? any_values(c.ts, c.count) : output(c.ts, c.count);
  buffer want = copy_of(&sum), before;
  for (size_t r = 0; r < c.n; r++) {
    c.weights[r] = any_weight();
    if (c.weights[r] == 0) spoil(&c, &x, r);
  }
  before = copy_of(&x);
  reference_sum(&c, &want, &x);
  expect_ok(table->weighted_sum(&no_stream, c.ts, c.t, sum.data, c.adds, x.data, c.weights, c.n, c.stride, c.count));
  expect_same_bits(&sum, want.data, "sum");
  assert_memory_equal(x.data, before.data, x.nbytes);
  buffer *all[] = {&x, &sum, &want, &before};
  for (int i = 0; i < 4; i++) buffer_free(all[i]);
}

static void weighted_sum(void **state) {
  (void)state;
  FOR_KERNELS(k) FOR_FLOATS(t) for (int c = 0; c < N_COUNTS; c++) for (int i = 0; i < 8; i++) {
    zt_dtype ts = t == ZT_F64 || i % 4 == 3 ? ZT_F64 : ZT_F32;
    check_sum(k->table, (sum_case){.ts = ts,
                                   .t = t,
                                   .adds = i % 2,
                                   .n = random_below(MAX_TERMS + 1),
                                   .stride = counts[c] + random_below(3),
                                   .count = counts[c]});
  }
  covers_kernel("weighted_sum");
}

/* Without a term the sum is 0, or stays; one term stands alone, so that -0.0 stays. */
static void weighted_sum_of_little(void **state) {
  (void)state;
  FOR_KERNELS(k) for (int wide = 0; wide < 2; wide++) {
    zt_dtype t = wide ? ZT_F64 : ZT_F32;
    const double none[] = {0, 0}, second[] = {0, 1};
    buffer x = input(t, 2 * 33, 0, 0), y = output(t, 33);
    for (size_t i = 0; i < 33; i++) put(t, x.data, i, NAN), put(t, x.data, 33 + i, -0.0);
    expect_ok(k->table->weighted_sum(&no_stream, t, t, y.data, false, x.data, none, 2, 33, 33));
    for (size_t i = 0; i < 33; i++) assert_true(at(&y, i) == 0 && !signbit(at(&y, i)));
    expect_ok(k->table->weighted_sum(&no_stream, t, t, y.data, false, x.data, second, 2, 33, 33));
    for (size_t i = 0; i < 33; i++) assert_true(at(&y, i) == 0 && signbit(at(&y, i)));
    expect_ok(k->table->weighted_sum(&no_stream, t, t, y.data, true, NULL, NULL, 0, 0, 33));
    for (size_t i = 0; i < 33; i++) assert_true(at(&y, i) == 0 && signbit(at(&y, i)));
    buffer_free(&x), buffer_free(&y);
  }
}

/* What is not finite comes through where its weight is not 0. */
static void weighted_sum_keeps_what_is_not_finite(void **state) {
  (void)state;
  const double weights[] = {2, 3};
  FOR_KERNELS(k) FOR_FLOATS(t) {
    zt_dtype ts = t == ZT_F64 ? ZT_F64 : ZT_F32;
    buffer x = input(t, 2 * 9, 1, 1), y = output(ts, 9);
    put(t, x.data, 0, INFINITY), put(t, x.data, 1, NAN), put(t, x.data, 2, -INFINITY), put(t, x.data, 9 + 2, INFINITY);
    put(t, x.data, 9 + 3, -INFINITY);
    expect_ok(k->table->weighted_sum(&no_stream, ts, t, y.data, false, x.data, weights, 2, 9, 9));
    const double want[] = {INFINITY, NAN, NAN, -INFINITY, 5, 5, 5, 5, 5};
    for (size_t i = 0; i < 9; i++) expect_equal(&y, i, want[i]);
    buffer_free(&x), buffer_free(&y);
  }
}

static void threads_change_no_bit(void **state) {
  (void)state;
  const int threads = omp_get_max_threads();
  const double weights[] = {3, 1, 0.3};
  FOR_KERNELS(k) FOR_FLOATS(t) {
    zt_dtype ts = t == ZT_F64 ? ZT_F64 : ZT_F32;
    buffer x = any_values(t, 3 * (size_t)LARGE), one = output(ts, LARGE), three = output(ts, LARGE);
    omp_set_num_threads(1);
    expect_ok(k->table->weighted_sum(&no_stream, ts, t, one.data, false, x.data, weights, 3, LARGE, LARGE));
    omp_set_num_threads(3);
    expect_ok(k->table->weighted_sum(&no_stream, ts, t, three.data, false, x.data, weights, 3, LARGE, LARGE));
    omp_set_num_threads(threads);
    expect_same_bits(&three, one.data, "sum");
    buffer_free(&x), buffer_free(&one), buffer_free(&three);
  }
}

/* --- copy_checked */
static void check_copy(const zt_kernels *table, const buffer *x, size_t want_bad) {
  buffer y = output(x->dtype, x->count);
  size_t bad = x->count + 1;
  expect_ok(table->copy_checked(&no_stream, x->dtype, y.data, &bad, x->data, x->count));
  assert_int_equal(bad, want_bad);
  assert_memory_equal(y.data, x->data, y.nbytes);
  bad = x->count + 1;
  expect_ok(table->copy_checked(&no_stream, x->dtype, NULL, &bad, x->data, x->count));
  assert_int_equal(bad, want_bad);
  buffer_free(&y);
}

/* The first of some elements that are not finite; a NaN of any payload is copied as it is. */
static void spoil_from(buffer *x, size_t first) {
  const double values[] = {NAN, INFINITY, -INFINITY, -NAN};
  for (int more = 0; more < 3; more++)
    put(x->dtype, x->data, first + random_below(x->count - first), values[random_below(4)]);
  put(x->dtype, x->data, first, values[random_below(4)]);
}

static void copy_checked(void **state) {
  (void)state;
  FOR_KERNELS(k) FOR_FLOATS(t) for (int c = 0; c < N_COUNTS; c++) {
    buffer x = any_values(t, counts[c]);
    check_copy(k->table, &x, counts[c]);
    for (int i = 0; i < 4 && counts[c] > 0; i++) {
      size_t first = i == 0 ? counts[c] - 1 : random_below(counts[c]);
      buffer y = copy_of(&x);
      spoil_from(&y, first);
      check_copy(k->table, &y, first);
      buffer_free(&y);
    }
    buffer_free(&x);
  }
  covers_kernel("copy_checked");
}

static void copy_checked_keeps_the_payload_of_nan(void **state) {
  (void)state;
  FOR_KERNELS(k) {
    buffer x = input(ZT_BF16, 40, 1, 1), y = input(ZT_F16, 40, 1, 1), z = input(ZT_F32, 40, 1, 1);
    ((uint16_t *)x.data)[17] = 0xff81u, ((uint16_t *)y.data)[18] = 0x7c01u, ((uint32_t *)z.data)[19] = 0xff800001u;
    check_copy(k->table, &x, 17);
    check_copy(k->table, &y, 18);
    check_copy(k->table, &z, 19);
    buffer_free(&x), buffer_free(&y), buffer_free(&z);
  }
}

/* --- update_master */
static uint16_t narrow(zt_dtype t, float value) { return t == ZT_BF16 ? zt_f32_to_bf16(value) : zt_f32_to_f16(value); }
static float widen(zt_dtype t, uint16_t half) { return t == ZT_BF16 ? zt_bf16_to_f32(half) : zt_f16_to_f32(half); }

static void update_master(void **state) {
  (void)state;
  FOR_KERNELS(k) for (zt_dtype t = ZT_BF16; t <= ZT_F16; t++) for (int c = 0; c < N_COUNTS; c++) {
    size_t n = counts[c];
    buffer master = any_values(ZT_F32, n), x = output(t, n), want = copy_of(&master);
    uint16_t *half = x.data;
    float *wanted = want.data;
    for (size_t i = 0; i < n; i++) half[i] = narrow(t, wanted[i]);
    for (size_t i = random_below(5); i < n; i += 1 + random_below(11)) {
      half[i] = (uint16_t)random_bits(); /* NaN, infinity, denormals, zeros: all of them */
      if (half[i] != narrow(t, wanted[i])) wanted[i] = widen(t, half[i]);
    }
    expect_ok(k->table->update_master(&no_stream, t, master.data, x.data, n));
    expect_same_bits(&master, want.data, "master");
    buffer_free(&master), buffer_free(&x), buffer_free(&want);
  }
  covers_kernel("update_master");
}

/* What rounding hides stays: beyond float16's range, a NaN, a sign; what was written comes through, the sign of 0 too. */
static void update_master_by_bits(void **state) {
  (void)state;
  const float masters[] = {1e6f, 1.0001f, 0.0f, -0.0f, -1e-30f, NAN, 3.0f};
  const uint16_t x[] = {0x7c00, 0x3c00, 0x8000, 0x0000, 0x8000, 0x7e00, 0xc000};
  const float want[] = {1e6f, 1.0001f, -0.0f, 0.0f, -1e-30f, NAN, -2.0f};
  FOR_KERNELS(k) {
    float got[7];
    memcpy(got, masters, sizeof got);
    expect_ok(k->table->update_master(&no_stream, ZT_F16, got, x, 7));
    assert_memory_equal(got, want, sizeof got);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(scale),
      cmocka_unit_test(weighted_sum),
      cmocka_unit_test(weighted_sum_of_little),
      cmocka_unit_test(weighted_sum_keeps_what_is_not_finite),
      cmocka_unit_test(threads_change_no_bit),
      cmocka_unit_test(copy_checked),
      cmocka_unit_test(copy_checked_keeps_the_payload_of_nan),
      cmocka_unit_test(update_master),
      cmocka_unit_test(update_master_by_bits),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
