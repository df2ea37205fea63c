/* dropout, random_uniform, random_normal, sample and sum_squares of every instruction set: element for element against
** the words that rng.h names, and, for one fixed seed, against what statistics expect. */
#include <omp.h>
#include <stdlib.h>

#include "tests/c/kernel_test.h"

static const size_t counts[] = {0, 1, 2, 3, 5, 64, 127, 128, 129, 1000, 40001};
enum { N_COUNTS = sizeof counts / sizeof *counts };

static zt_rng_key any_key(void) { return (zt_rng_key){random_bits(), (uint32_t)random_bits(), random_below(1 << 20)}; }

static uint32_t word_of(const zt_rng_key *key, uint64_t sample, uint64_t element) {
  uint32_t out[4];
  zt_rng_block(key, sample, element / 4, out);
  return out[element % 4];
}

/* --- dropout */
static void check_dropout(const zt_kernels *table, zt_dtype t, size_t rows, size_t cols, double p) {
  zt_rng_key key = any_key();
  buffer x = input(t, rows * cols, -2, 2), y = output(t, rows * cols), z = copy_of(&x);
  expect_ok(table->dropout(&no_stream, t, y.data, x.data, p, &key, rows, cols));
  expect_ok(table->dropout(&no_stream, t, z.data, z.data, p, &key, rows, cols)); /* in place */
  for (size_t i = 0; i < rows * cols; i++) {
    bool keeps = word_of(&key, key.first_sample + i / cols, i % cols) < zt_rng_keep_threshold(p);
    expect_close(&y, i, keeps ? at(&x, i) / (1.0 - p) : 0.0, 0);
  }
  assert_memory_equal(y.data, z.data, y.nbytes);
  buffer_free(&x), buffer_free(&y), buffer_free(&z);
}

static void dropout(void **state) {
  (void)state;
  FOR_KERNELS(k) FOR_FLOATS(t) for (int i = 0; i < N_COUNTS; i++) {
    check_dropout(k->table, t, 1, counts[i], random_in(0.0, 1.0));
    check_dropout(k->table, t, 1 + random_below(5), counts[i] % 601, random_in(0.0, 1.0));
    check_dropout(k->table, t, counts[i] % 1001, 1 + random_below(6), i % 2 ? 0.0 : 1.0);
  }
  covers_kernel("dropout");
}

static double share_kept(const zt_kernels *table, double p, size_t count) {
  const zt_rng_key key = {zt_rng_mix(42, 7), 3, 11};
  buffer x = input(ZT_F32, count, 1, 1), y = output(ZT_F32, count);
  expect_ok(table->dropout(&no_stream, ZT_F32, y.data, x.data, p, &key, 1, count));
  size_t kept = 0;
  for (size_t i = 0; i < count; i++) kept += at(&y, i) != 0.0;
  buffer_free(&x), buffer_free(&y);
  return (double)kept / (double)count;
}

/* Within 4 standard deviations; the seed is fixed, so it cannot fail by bad luck. */
static void dropout_keeps_its_share(void **state) {
  (void)state;
  const size_t count = 1000000;
  FOR_KERNELS(k)
  for (double p = 0.1; p < 0.95; p += 0.2) {
    double deviation = sqrt(p * (1.0 - p) / (double)count), share = share_kept(k->table, p, count);
    assert_true(fabs(share - (1.0 - p)) < 4.0 * deviation);
  }
}

/* --- fills */
static void uniform(void **state) {
  (void)state;
  FOR_KERNELS(k) FOR_FLOATS(t) for (int i = 0; i < N_COUNTS; i++) {
    zt_rng_key key = any_key();
    double low = random_in(-3, 1), high = low + random_in(0.1, 2);
    buffer y = output(t, counts[i]);
    expect_ok(k->table->random_uniform(&no_stream, t, y.data, low, high, &key, 0, counts[i]));
    for (size_t j = 0; j < counts[i]; j++) {
      uint32_t word = word_of(&key, key.first_sample, j);
      double u = t == ZT_F64 ? word * 0x1p-32 : (word >> 8) * 0x1p-24;
      expect_close(&y, j, low + (high - low) * u, 3);
      if (t == ZT_F32 || t == ZT_F64) assert_true(at(&y, j) >= rounded(t, low) && at(&y, j) < rounded(t, high));
    }
    buffer_free(&y);
  }
  covers_kernel("random_uniform");
}

/* Above 2^24 floats lie 2 apart: much is rounded up to the upper end, which must not be reached. */
static void uniform_stays_below_its_end(void **state) {
  (void)state;
  FOR_KERNELS(k) {
    zt_rng_key key = any_key();
    buffer y = output(ZT_F32, 10000);
    expect_ok(k->table->random_uniform(&no_stream, ZT_F32, y.data, 0x1p24, 0x1p24 + 4, &key, 0, y.count));
    for (size_t j = 0; j < y.count; j++) assert_true(at(&y, j) >= 0x1p24 && at(&y, j) < 0x1p24 + 4);
    expect_ok(k->table->random_uniform(&no_stream, ZT_F32, y.data, 1.5, 1.5, &key, 0, y.count));
    for (size_t j = 0; j < y.count; j++) assert_true(at(&y, j) == 1.5);
    buffer_free(&y);
  }
}

static double normal_of(const zt_rng_key *key, size_t i) {
  double u = word_of(key, key->first_sample, i & ~(size_t)1) * 0x1p-32 + 0x1p-33;
  double angle = 6.283185307179586 * word_of(key, key->first_sample, i | 1) * 0x1p-32;
  return sqrt(-2.0 * log(u)) * (i % 2 ? sin(angle) : cos(angle));
}

/* Where u is near 1 its logarithm is as good as float32's u is: an error of 2^-25 there is one of 2^-25 / radius. */
static void normal(void **state) {
  (void)state;
  FOR_KERNELS(k) FOR_FLOATS(t) for (int i = 0; i < N_COUNTS; i++) {
    zt_rng_key key = any_key();
    double mean = random_in(-1, 1), std = random_in(0.1, 2);
    buffer y = output(t, counts[i]);
    expect_ok(k->table->random_normal(&no_stream, t, y.data, mean, std, &key, 0, counts[i]));
    for (size_t j = 0; j < counts[i]; j++) {
      double z = normal_of(&key, j), radius = hypot(normal_of(&key, j & ~(size_t)1), normal_of(&key, j | 1));
      expect_close(&y, j, mean + std * z, t == ZT_F32 || t == ZT_F64 ? 4 + 1 / radius : 0.01 + 0.001 / radius);
    }
    buffer_free(&y);
  }
  covers_kernel("random_normal");
}

/* Mean, variance, third and fourth moment, and the product of neighbours, within 4 of their deviations. */
static void normal_has_its_moments(void **state) {
  (void)state;
  const size_t count = 1000000;
  const zt_rng_key key = {zt_rng_mix(42, 8), 5, 0};
  FOR_KERNELS(k) {
    buffer y = output(ZT_F32, count);
    double m1 = 0, m2 = 0, m3 = 0, m4 = 0, pair = 0, n = (double)count;
    expect_ok(k->table->random_normal(&no_stream, ZT_F32, y.data, 0, 1, &key, 0, count));
    for (size_t i = 0; i < count; i++) {
      double z = at(&y, i);
      m1 += z / n, m2 += z * z / n, m3 += z * z * z / n, m4 += z * z * z * z / n;
      pair += z * at(&y, i ^ 1) / n;
    }
    assert_true(fabs(m1) < 4 * sqrt(1 / n) && fabs(m2 - 1) < 4 * sqrt(2 / n));
    assert_true(fabs(m3) < 4 * sqrt(15 / n) && fabs(m4 - 3) < 4 * sqrt(96 / n) && fabs(pair) < 4 * sqrt(2 / n));
    buffer_free(&y);
  }
}

static void threads_change_no_draw(void **state) {
  (void)state;
  const int threads = omp_get_max_threads();
  const size_t count = 200003;
  FOR_KERNELS(k) {
    zt_rng_key key = any_key();
    buffer one = output(ZT_F32, count), two = output(ZT_F32, count);
    omp_set_num_threads(1);
    expect_ok(k->table->random_normal(&no_stream, ZT_F32, one.data, 0, 1, &key, 0, count));
    omp_set_num_threads(3);
    expect_ok(k->table->random_normal(&no_stream, ZT_F32, two.data, 0, 1, &key, 0, count));
    omp_set_num_threads(threads);
    assert_memory_equal(one.data, two.data, one.nbytes);
    buffer_free(&one), buffer_free(&two);
  }
}

/* What begins at element 'first' is the end of what begins at 0: shards of a tensor are drawn where they lie. */
static void fills_begin_anywhere(void **state) {
  (void)state;
  const size_t count = 5000;
  FOR_KERNELS(k) FOR_FLOATS(t) for (size_t first = 0; first <= count; first += 128 * (1 + random_below(9))) {
    zt_rng_key key = any_key();
    size_t nbytes = zt_dtype_nbytes(t), n = random_below(count - first + 1);
    buffer whole = output(t, count), part = output(t, n);
    expect_ok(k->table->random_normal(&no_stream, t, whole.data, 0.5, 2, &key, 0, count));
    expect_ok(k->table->random_normal(&no_stream, t, part.data, 0.5, 2, &key, first, n));
    assert_memory_equal(part.data, (char *)whole.data + first * nbytes, part.nbytes);
    expect_ok(k->table->random_uniform(&no_stream, t, whole.data, -1, 2, &key, 0, count));
    expect_ok(k->table->random_uniform(&no_stream, t, part.data, -1, 2, &key, first, n));
    assert_memory_equal(part.data, (char *)whole.data + first * nbytes, part.nbytes);
    buffer_free(&whole), buffer_free(&part);
  }
}

/* --- sum_squares */
static double block_sum(const buffer *x, size_t first, size_t end) {
  double lane[16] = {0};
  for (size_t i = first; i < end; i++) lane[(i - first) % 16] += at(x, i) * at(x, i);
  for (int n = 8; n > 0; n /= 2)
    for (int j = 0; j < n; j++) lane[j] += lane[j + n];
  return lane[0];
}

static void sum_squares(void **state) {
  (void)state;
  FOR_KERNELS(k) FOR_FLOATS(t) for (int i = 0; i < N_COUNTS; i++) {
    buffer x = input(t, counts[i], -1, 1);
    zt_exact got, want;
    zt_exact_clear(&got);
    zt_exact_clear(&want);
    zt_exact_add(&got, 0.25), zt_exact_add(&want, 0.25); /* it adds to what is there */
    size_t bad = 7;
    expect_ok(k->table->sum_squares(&no_stream, t, &got, &bad, x.data, counts[i]));
    for (size_t at = 0; at < counts[i]; at += 128)
      zt_exact_add(&want, block_sum(&x, at, at + 128 < counts[i] ? at + 128 : counts[i]));
    double a = zt_exact_value(&got), b = zt_exact_value(&want);
    assert_memory_equal(&a, &b, sizeof a);
    assert_int_equal(bad, counts[i]);
    buffer_free(&x);
  }
  covers_kernel("sum_squares");
}

static void sum_squares_finds_the_first_bad_element(void **state) {
  (void)state;
  FOR_KERNELS(k) FOR_FLOATS(t) for (int i = 0; i < N_COUNTS; i++) {
    if (counts[i] == 0) continue;
    buffer x = input(t, counts[i], -1, 1);
    size_t first = random_below(counts[i]), bad;
    for (int more = 0; more < 3; more++) put(t, x.data, first + random_below(counts[i] - first), -INFINITY);
    put(t, x.data, first, i % 2 ? NAN : INFINITY);
    zt_exact sum;
    zt_exact_clear(&sum);
    expect_ok(k->table->sum_squares(&no_stream, t, &sum, &bad, x.data, counts[i]));
    assert_int_equal(bad, first);
    assert_true(isnan(zt_exact_value(&sum)));
    buffer_free(&x);
  }
}

/* --- sample */
typedef struct candidate {
  double weight;
  size_t index;
} candidate;

static int by_weight(const void *a, const void *b) {
  const candidate *x = a, *y = b;
  if (x->weight != y->weight) return x->weight > y->weight ? -1 : 1;
  return x->index < y->index ? -1 : 1;
}

static size_t candidates(const buffer *x, size_t row, size_t cols, double temperature, size_t top_k, double top_p,
                         candidate *c) {
  double max = -INFINITY, sum = 0.0, mass = 0.0;
  size_t n = top_k ? (top_k < cols ? top_k : cols) : cols, kept = 0;
  for (size_t j = 0; j < cols; j++) max = fmax(max, at(x, row * cols + j));
  for (size_t j = 0; j < cols; j++) c[j] = (candidate){exp((at(x, row * cols + j) - max) / temperature), j};
  if (n == cols && top_p >= 1.0) return cols; /* in the order of tokens */
  qsort(c, cols, sizeof *c, by_weight);
  if (n == cols)
    for (size_t j = 0; j < cols; j++) sum += exp((at(x, row * cols + j) - max) / temperature);
  else
    for (size_t j = 0; j < n; j++) sum += c[j].weight;
  while (kept < n && (kept == 0 || mass < top_p * sum)) mass += c[kept++].weight;
  return kept;
}

static size_t expected_token(const candidate *c, size_t n, double u) {
  double mass = 0.0, passed = 0.0;
  for (size_t j = 0; j < n; j++) mass += c[j].weight;
  for (size_t j = 0; j < n; j++)
    if ((passed += c[j].weight) > u * mass) return c[j].index;
  return n;
}

static void sample_as(const zt_kernels *table, int64_t *ids, const buffer *x, double temperature, size_t top_k,
                      double top_p, const zt_rng_key *key, size_t rows, size_t cols) {
  buffer work = output(ZT_F64, table->sample_workspace(x->dtype, rows, cols) / 8);
  expect_ok(table->sample(&no_stream, x->dtype, ids, x->data, temperature, top_k, top_p, key, rows, cols, work.data));
  buffer_free(&work);
}

static void check_sample(const zt_kernels *table, zt_dtype t, size_t rows, size_t cols, double temperature,
                         size_t top_k, double top_p) {
  zt_rng_key key = any_key();
  buffer x = input(t, rows * cols, -4, 4), ids = output(ZT_I64, rows);
  candidate *c = calloc(cols + 1, sizeof *c);
  if (rows && cols > 3) put(t, x.data, 2, at(&x, 0)); /* a tie */
  if (rows && cols > 3) put(t, x.data, 1, -INFINITY);
  sample_as(table, ids.data, &x, temperature, top_k, top_p, &key, rows, cols);
  for (size_t row = 0; row < rows; row++) {
    double u = word_of(&key, key.first_sample + row, 0) * 0x1p-32;
    size_t n = candidates(&x, row, cols, temperature, top_k, top_p, c);
    assert_int_equal(((int64_t *)ids.data)[row], expected_token(c, n, u));
  }
  free(c);
  buffer_free(&x), buffer_free(&ids);
}

static void sample(void **state) {
  (void)state;
  FOR_KERNELS(k) FOR_FLOATS(t) for (int i = 0; i < 60; i++) {
    size_t cols = 1 + random_below(i % 3 ? 40 : 700), top_k = i % 2 ? random_below(cols + 3) : 0;
    check_sample(k->table, t, random_below(i % 10 ? 9 : 90), cols, random_in(0.3, 2), top_k,
                 i % 4 > 1 ? random_in(0.05, 0.99) : 1.0);
  }
  covers_kernel("sample");
}

static void sample_edges(void **state) {
  (void)state;
  const zt_rng_key key = any_key();
  FOR_KERNELS(k) FOR_FLOATS(t) {
    buffer x = input(t, 3 * 5, -1, 0);
    int64_t ids[3];
    put(t, x.data, 3, 2.0), put(t, x.data, 4, 2.0);                                     /* a tie: the first one */
    put(t, x.data, 5, NAN), put(t, x.data, 8, 1.0);                                     /* NaN never wins */
    for (size_t j = 10; j < 15; j++) put(t, x.data, j, j == 12 ? INFINITY : -INFINITY); /* all the mass in one */
    for (int mode = 0; mode < 3; mode++) {
      sample_as(k->table, ids, &x, mode ? 0.01 : 0.0, mode == 1 ? 1 : 0, mode == 2 ? 1e-9 : 1.0, &key, 3, 5);
      assert_true(ids[0] == 3 && ids[1] == 3 && ids[2] == 2);
    }
    sample_as(k->table, ids, &x, 1.0, 0, 1.0, &key, 3, 5);
    assert_int_equal(ids[2], 2);
    buffer_free(&x);
  }
}

/* Each token comes as often as it should: chi squared with 7 degrees of freedom, fixed seed. */
static void sample_frequencies(void **state) {
  (void)state;
  enum { TOKENS = 8, ROWS = 50000 };
  const zt_rng_key key = {zt_rng_mix(42, 9), 1, 0};
  FOR_KERNELS(k) {
    buffer x = output(ZT_F32, (size_t)TOKENS * ROWS), ids = output(ZT_I64, ROWS);
    double weight[TOKENS], sum = 0.0, chi = 0.0, seen[TOKENS] = {0};
    for (int j = 0; j < TOKENS; j++) sum += weight[j] = exp(0.3 * j);
    for (size_t i = 0; i < x.count; i++) put(ZT_F32, x.data, i, 0.3 * (double)(i % TOKENS));
    sample_as(k->table, ids.data, &x, 1.0, 0, 1.0, &key, ROWS, TOKENS);
    for (size_t i = 0; i < ROWS; i++) seen[((int64_t *)ids.data)[i]]++;
    for (int j = 0; j < TOKENS; j++) {
      double want = ROWS * weight[j] / sum;
      chi += (seen[j] - want) * (seen[j] - want) / want;
    }
    assert_true(chi < 24.3); /* 1 in 1000 */
    buffer_free(&x), buffer_free(&ids);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(dropout),
      cmocka_unit_test(dropout_keeps_its_share),
      cmocka_unit_test(uniform),
      cmocka_unit_test(uniform_stays_below_its_end),
      cmocka_unit_test(normal),
      cmocka_unit_test(normal_has_its_moments),
      cmocka_unit_test(threads_change_no_draw),
      cmocka_unit_test(fills_begin_anywhere),
      cmocka_unit_test(sum_squares),
      cmocka_unit_test(sum_squares_finds_the_first_bad_element),
      cmocka_unit_test(sample),
      cmocka_unit_test(sample_edges),
      cmocka_unit_test(sample_frequencies),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
