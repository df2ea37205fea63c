/* Kernels that go element by element, reduce, pick rows: each row against a naive reference in double, for every
** instruction set that this machine has, every dtype, odd counts, memory that is not aligned, and special values. */
#include "tests/c/kernel_test.h"

static const size_t counts[] = {0, 1, 2, 7, 63, 129, 511, 513, 4099};
enum { N_COUNTS = sizeof counts / sizeof *counts, LARGE = 70001 }; /* LARGE: more than one thread, more than one part */

/* --- loops: dimensions, and operands of which some are broadcast, transposed or have gaps */
typedef struct operand {
  zt_loop loop;
  size_t extent[4]; /* elements that each operand spans */
} operand;

/* mode of an operand: contiguous, a scalar, a row, a column, transposed, with gaps */
enum { WHOLE, SCALAR, ROW, COLUMN, TRANSPOSED, GAPS, N_MODES };

static void set_strides(zt_loop *l, int k, int mode, int64_t a, int64_t b, int64_t c) {
  const int64_t by_mode[N_MODES][3] = {{b * c, c, 1}, {0, 0, 0},     {0, 0, 1},
                                       {b, 1, 0},     {b * c, 1, b}, {2 * b * (c + 3), c + 3, 1}};
  (void)a;
  for (int d = 0; d < 3; d++) l->stride[k][d] = by_mode[mode][d];
}
static operand make_loop(int64_t a, int64_t b, int64_t c, const int mode[4]) {
  operand o = {.loop = {.ndim = 3, .shape = {a, b, c}}};
  for (int k = 0; k < 4; k++) {
    set_strides(&o.loop, k, mode[k], a, b, c);
    bool empty = a == 0 || b == 0 || c == 0;
    o.extent[k] = empty ? 0 : 1;
    for (int d = 0; d < 3 && !empty; d++) o.extent[k] += (size_t)(o.loop.stride[k][d] * (o.loop.shape[d] - 1));
  }
  return o;
}
/* Offset of element i (row-major) in operand k. */
static size_t place(const zt_loop *l, int k, size_t i) {
  int64_t at = 0;
  for (int d = l->ndim - 1; d >= 0; d--) {
    at += (int64_t)(i % (size_t)l->shape[d]) * l->stride[k][d];
    i /= (size_t)l->shape[d];
  }
  return (size_t)at;
}
static size_t loop_count(const zt_loop *l) {
  size_t n = 1;
  for (int d = 0; d < l->ndim; d++) n *= (size_t)l->shape[d];
  return n;
}

/* Shapes for loops: usual, long rows, many short rows, empty, more than one thread. */
static const int64_t shapes[][3] = {{2, 3, 5}, {1, 4, 1031}, {3, 67, 2},    {2, 0, 3},
                                    {1, 1, 1}, {2, 33, 65},  {5, 131, 129}, {1, 2, 40001}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes, N_SMALL_SHAPES = N_SHAPES - 2 };
/* One dtype is enough for the large ones. */
static int n_shapes(zt_dtype t) { return t == ZT_F32 ? N_SHAPES : N_SMALL_SHAPES; }

/* --- memory */
static void test_fill(void **state) {
  (void)state;
  FOR_KERNELS(k) FOR_DTYPES(t) for (int c = 0; c <= N_COUNTS; c++) {
    size_t n = c < N_COUNTS ? counts[c] : LARGE;
    double value = zt_dtype_is_float(t) ? random_in(-3, 3) : (double)random_below(200);
    buffer y = output(t, n);
    expect_ok(k->table->fill(&no_stream, t, y.data, value, n));
    for (size_t i = 0; i < n; i++) expect_equal(&y, i, rounded(t, value));
    buffer_free(&y);
  }
  covers_kernel("fill");
}

static void test_arange(void **state) {
  (void)state;
  FOR_KERNELS(k) FOR_DTYPES(t) for (int c = 0; c < N_COUNTS; c++) {
    size_t n = t == ZT_U8 && counts[c] > 100 ? 100 : counts[c];
    double step = zt_dtype_is_float(t) ? 0.25 : 2, start = t == ZT_U8 ? 3 : -7;
    buffer y = output(t, n);
    expect_ok(k->table->arange(&no_stream, t, y.data, start, step, n));
    for (size_t i = 0; i < n; i++) expect_equal(&y, i, rounded(t, start + (double)i * step));
    buffer_free(&y);
  }
  covers_kernel("arange");
}

static void check_copy(const kernel_set *k, zt_dtype t, const operand *o) {
  buffer y = output(t, o->extent[0]), x = input(t, o->extent[1], 0, 100), before = copy_of(&y);
  size_t n = loop_count(&o->loop), size = zt_dtype_nbytes(t);
  expect_ok(k->table->copy(&no_stream, t, y.data, x.data, &o->loop));
  char *want = before.data;
  for (size_t i = 0; i < n; i++)
    memcpy(want + place(&o->loop, 0, i) * size, (char *)x.data + place(&o->loop, 1, i) * size, size);
  assert_memory_equal(y.data, want, y.nbytes); /* gaps too: they keep their poison */
  buffer_free(&y), buffer_free(&x), buffer_free(&before);
}

static void test_copy(void **state) {
  (void)state;
  FOR_KERNELS(k) FOR_DTYPES(t) for (int s = 0; s < n_shapes(t); s++) for (int from = WHOLE; from < N_MODES; from++) {
    const int to[] = {WHOLE, TRANSPOSED, GAPS};
    for (int i = 0; i < 3; i++) {
      operand o = make_loop(shapes[s][0], shapes[s][1], shapes[s][2], (int[4]){to[i], from, WHOLE, WHOLE});
      check_copy(k, t, &o);
    }
  }
  operand one = {.extent = {1, 1, 1, 1}}; /* no dimensions: one element */
  FOR_KERNELS(k) FOR_DTYPES(t) check_copy(k, t, &one);
  covers_kernel("copy");
}

static double converted(zt_dtype ty, double v) {
  if (zt_dtype_is_float(ty)) return rounded(ty, v);
  int64_t i = (int64_t)v;
  return ty == ZT_I64 ? (double)i : ty == ZT_I32 ? (double)(int32_t)i : (double)(uint8_t)i;
}

static void test_cast(void **state) {
  (void)state;
  FOR_KERNELS(k) FOR_DTYPES(tx) FOR_DTYPES(ty) for (int c = 0; c < N_COUNTS + (ty == ZT_BF16); c++) {
    size_t n = c < N_COUNTS ? counts[c] : LARGE;
    buffer x = input(tx, n, tx == ZT_U8 ? 0 : -300, tx == ZT_U8 ? 256 : 300), y = output(ty, n);
    expect_ok(k->table->cast(&no_stream, ty, tx, y.data, x.data, n));
    for (size_t i = 0; i < n; i++) expect_equal(&y, i, converted(ty, at(&x, i)));
    buffer_free(&x), buffer_free(&y);
  }
  covers_kernel("cast");
}

static void test_cast_special(void **state) {
  (void)state;
  FOR_KERNELS(k) {
    const float x[] = {NAN, INFINITY, -INFINITY, 65519, 65520, 1e-8f, 6e-8f, -0.0f, 3e38f, 1e30f, -1e30f, 0x1p-133f};
    enum { N = sizeof x / sizeof *x };
    uint16_t bf[N], half[N];
    int64_t whole[N];
    expect_ok(k->table->cast(&no_stream, ZT_BF16, ZT_F32, bf, x, N));
    expect_ok(k->table->cast(&no_stream, ZT_F16, ZT_F32, half, x, N));
    expect_ok(k->table->cast(&no_stream, ZT_I64, ZT_F32, whole, x, N));
    for (int i = 0; i < N; i++) {
      assert_int_equal(bf[i], zt_f32_to_bf16(x[i]));
      assert_int_equal(half[i], zt_f32_to_f16(x[i]));
      bool fits = fabsf(x[i]) < 0x1p63f;
      assert_true(whole[i] == (fits ? (int64_t)x[i] : INT64_MIN));
    }
    assert_int_equal(half[3], 0x7bff); /* the last that rounds down to 65504 */
    assert_int_equal(half[4], 0x7c00);
    assert_int_equal(half[6], 1); /* the least denormal */
    assert_int_equal(bf[7], 0x8000);
  }
}

/* --- unary */
static double erf_normal(double x) { return 0.5 * erfc(-x * M_SQRT1_2); }
static double sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double gelu_new(double x) { return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }

static double unary_reference(zt_unary fn, double x, double p0, double p1) {
  switch (fn) {
    case ZT_UNARY_NEG:
      return -x;
    case ZT_UNARY_EXP:
      return exp(x);
    case ZT_UNARY_LOG:
      return log(x);
    case ZT_UNARY_SQRT:
      return sqrt(x);
    case ZT_UNARY_RSQRT:
      return 1 / sqrt(x);
    case ZT_UNARY_TANH:
      return tanh(x);
    case ZT_UNARY_SIGMOID:
      return sigmoid(x);
    case ZT_UNARY_RELU:
      return x < 0 ? 0 : x;
    case ZT_UNARY_GELU:
      return x * erf_normal(x);
    case ZT_UNARY_GELU_TANH:
      return gelu_new(x);
    case ZT_UNARY_SILU:
      return x * sigmoid(x);
    case ZT_UNARY_CLAMP:
      return x < p0 ? p0 : x > p1 ? p1 : x;
    case ZT_UNARY_AFFINE:
      return p0 * x + p1;
    default:
      return pow(x, p0);
  }
}

/* By central differences of the reference, but where it has a corner or a pole. */
static double slope_reference(zt_unary fn, double x, double p0, double p1) {
  if (fn == ZT_UNARY_RELU) return x > 0;
  if (fn == ZT_UNARY_POWS) return p0 == 0 ? 0 : p0 * pow(x, p0 - 1);
  if (fn == ZT_UNARY_CLAMP) return x >= p0 && x <= p1;
  double h = 1e-4 * (fabs(x) < 0.5 ? 0.5 : fabs(x));
  double f1 = unary_reference(fn, x + h, p0, p1) - unary_reference(fn, x - h, p0, p1);
  double f2 = unary_reference(fn, x + 2 * h, p0, p1) - unary_reference(fn, x - 2 * h, p0, p1);
  return (8 * f1 - f2) / (12 * h); /* error h^4 */
}

static bool needs_positive(zt_unary fn, double p0) {
  return fn == ZT_UNARY_LOG || fn == ZT_UNARY_SQRT || fn == ZT_UNARY_RSQRT ||
         (fn == ZT_UNARY_POWS && (p0 < 0 || p0 != floor(p0)));
}

/* What a function cancels: its error is relative to this, as well. */
static double unary_scale(zt_unary fn, double x, double p0, double p1) {
  return fn == ZT_UNARY_AFFINE ? fabs(p0 * x) + fabs(p1) : fn == ZT_UNARY_GELU || fn == ZT_UNARY_GELU_TANH ? 0.5 : 0;
}

static void check_unary(const kernel_set *k, zt_dtype t, zt_unary fn, double p0, double p1, size_t n) {
  double low = needs_positive(fn, p0) ? 0.05 : -6;
  buffer x = input(t, n, low, 6), y = output(t, n);
  expect_ok(k->table->unary(&no_stream, fn, t, y.data, x.data, p0, p1, n));
  for (size_t i = 0; i < n; i++) {
    double v = at(&x, i);
    expect_close(&y, i, unary_reference(fn, v, p0, p1), unary_scale(fn, v, p0, p1));
  }
  buffer inplace = copy_of(&x);
  expect_ok(k->table->unary(&no_stream, fn, t, inplace.data, inplace.data, p0, p1, n));
  assert_memory_equal(inplace.data, y.data, y.nbytes);
  buffer_free(&x), buffer_free(&y), buffer_free(&inplace);
}

static void check_unary_bwd(const kernel_set *k, zt_dtype t, zt_unary fn, double p0, double p1, size_t n) {
  double low = needs_positive(fn, p0) ? 0.3 : -4;
  buffer x = input(t, n, low, 4), y = output(t, n), gy = input(t, n, -2, 2), gx = output(t, n);
  int needs = zt_unary_needs(fn);
  expect_ok(k->table->unary(&no_stream, fn, t, y.data, x.data, p0, p1, n));
  if (needs & 2) /* the slope of the y that there is, rounded */
    for (size_t i = 0; i < n && zt_dtype_nbytes(t) == 2; i++) put(t, y.data, i, unary_reference(fn, at(&x, i), p0, p1));
  expect_ok(k->table->unary_bwd(&no_stream, fn, t, gx.data, gy.data, needs & 1 ? x.data : NULL,
                                needs & 2 ? y.data : NULL, p0, p1, n));
  for (size_t i = 0; i < n; i++) {
    double slope = slope_reference(fn, at(&x, i), p0, p1), g = at(&gy, i);
    double tolerance = (t == ZT_F64 ? 1e-9 : zt_dtype_nbytes(t) == 4 ? 2e-6 : 0.02) * fabs(g) * (1 + fabs(slope));
    if (fabs(at(&gx, i) - g * slope) > tolerance + 1e-7)
      fail_msg("%s: %s function %d at %g: gradient %.10g, want %.10g", k->name, zt_dtype_name(t), fn, at(&x, i),
               at(&gx, i), g * slope);
  }
  buffer inplace = copy_of(&gy);
  expect_ok(k->table->unary_bwd(&no_stream, fn, t, inplace.data, inplace.data, needs & 1 ? x.data : NULL,
                                needs & 2 ? y.data : NULL, p0, p1, n));
  assert_memory_equal(inplace.data, gx.data, gx.nbytes);
  buffer_free(&x), buffer_free(&y), buffer_free(&gy), buffer_free(&gx), buffer_free(&inplace);
}

typedef void (*unary_check)(const kernel_set *k, zt_dtype t, zt_unary fn, double p0, double p1, size_t n);
static void all_unary(unary_check check) {
  const double exponents[] = {0, 1, 2, 3, -1, 0.5, -1.5, 2.5};
  FOR_KERNELS(k) FOR_FLOATS(t) for (int c = 0; c < N_COUNTS; c++) {
    for (zt_unary fn = 0; fn < ZT_UNARY_CLAMP; fn++) check(k, t, fn, 0, 0, counts[c]);
    check(k, t, ZT_UNARY_CLAMP, -1.5, 0.75, counts[c]);
    check(k, t, ZT_UNARY_AFFINE, -2.5, 0.625, counts[c]);
    for (size_t e = 0; e < sizeof exponents / sizeof *exponents; e++)
      check(k, t, ZT_UNARY_POWS, exponents[e], 0, counts[c]);
  }
  FOR_KERNELS(k) FOR_FLOATS(t) check(k, t, ZT_UNARY_GELU_TANH, 0, 0, LARGE);
}
static void test_unary(void **state) {
  (void)state;
  all_unary(check_unary);
  covers_kernel("unary");
}
static void test_unary_bwd(void **state) {
  (void)state;
  all_unary(check_unary_bwd);
  covers_kernel("unary_bwd");
}

static void test_unary_integers(void **state) {
  (void)state;
  FOR_KERNELS(k) {
    int64_t wide[] = {5, -3, (int64_t)1 << 60};
    int32_t narrow[] = {5, -3, INT32_MAX};
    uint8_t byte[] = {1};
    expect_ok(k->table->unary(&no_stream, ZT_UNARY_AFFINE, ZT_I64, wide, wide, 2, -1, 3));
    expect_ok(k->table->unary(&no_stream, ZT_UNARY_NEG, ZT_I32, narrow, narrow, 0, 0, 3));
    assert_true(wide[0] == 9 && wide[1] == -7 && wide[2] == ((int64_t)1 << 61) - 1);
    assert_true(narrow[0] == -5 && narrow[1] == 3 && narrow[2] == -INT32_MAX);
    assert_int_equal(k->table->unary(&no_stream, ZT_UNARY_EXP, ZT_I64, wide, wide, 0, 0, 3), ZT_DTYPE);
    assert_int_equal(k->table->unary(&no_stream, ZT_UNARY_NEG, ZT_U8, byte, byte, 0, 0, 1), ZT_DTYPE);
  }
}

/* Edges of the vectorized functions, and their whole range at random, in units of the last place. */
static void check_ulps(const kernel_set *k, zt_unary fn, float x, double want, double limit) {
  float y;
  expect_ok(k->table->unary(&no_stream, fn, ZT_F32, &y, &x, 0, 0, 1));
  float nearest = (float)want;
  if (isnan(nearest) ? isnan(y) : y == nearest) return;
  double ulp = fabsf(nearest) < 0x1p-126f ? 0x1p-149 : ldexp(1, ilogb(nearest) - 23);
  if (!(fabs(y - want) <= limit * ulp)) fail_msg("%s: function %d of %a is %a, want %a", k->name, fn, x, y, want);
}
static void test_unary_edges(void **state) {
  (void)state;
  const float edges[] = {0,       -0.0f,   1e-30f, -1e-30f, 0x1p-149f, 88.72f,    88.73f, -87.4f,
                         -103.9f, -104.1f, 1e10f,  -1e10f,  INFINITY,  -INFINITY, NAN};
  FOR_KERNELS(k) for (size_t i = 0; i < 3000; i++) {
    union {
      uint32_t u;
      float f;
    } any = {(uint32_t)random_bits()};
    float x = i < sizeof edges / sizeof *edges ? edges[i] : i % 2 ? any.f : (float)random_in(-110, 100);
    check_ulps(k, ZT_UNARY_EXP, x, exp(x), 2);
    check_ulps(k, ZT_UNARY_LOG, x, log(x), 2);
    check_ulps(k, ZT_UNARY_TANH, x, tanh(x), 3);
    check_ulps(k, ZT_UNARY_SIGMOID, x, x < 0 ? exp(x) / (1 + exp(x)) : sigmoid(x), 3);
    check_ulps(k, ZT_UNARY_SQRT, x, sqrt(x), 0.51);
  }
}

/* --- binary, compare, where */
static double binary_reference(zt_binary fn, double a, double b) {
  switch (fn) {
    case ZT_BINARY_ADD:
      return a + b;
    case ZT_BINARY_SUB:
      return a - b;
    case ZT_BINARY_MUL:
      return a * b;
    case ZT_BINARY_DIV:
      return a / b;
    default:
      return pow(a, b);
  }
}
static double integer_reference(zt_binary fn, int64_t a, int64_t b) {
  return fn == ZT_BINARY_DIV            ? b == 0 ? 0 : (double)(a / b)
                    : fn == ZT_BINARY_POW && b < 0 ? a == 1    ? 1
                                                     : a == -1 ? b % 2 ? -1 : 1
                                                               : 0
                                        : binary_reference(fn, (double)a, (double)b);
}

static void check_binary(const kernel_set *k, zt_dtype t, zt_binary fn, const operand *o) {
  bool is_float = zt_dtype_is_float(t), is_pow = fn == ZT_BINARY_POW;
  buffer y = output(t, o->extent[0]), a = input(t, o->extent[1], is_pow && is_float ? 0.2 : -8, 8);
  buffer b = input(t, o->extent[2], is_pow ? -3 : is_float ? 0.2 : -8, is_pow ? 4 : 8);
  expect_ok(k->table->binary(&no_stream, fn, t, y.data, a.data, b.data, &o->loop));
  for (size_t i = 0; i < loop_count(&o->loop); i++) {
    double u = at(&a, place(&o->loop, 1, i)), v = at(&b, place(&o->loop, 2, i));
    double want = is_float ? binary_reference(fn, u, v) : integer_reference(fn, (int64_t)u, (int64_t)v);
    expect_close(&y, place(&o->loop, 0, i), want, 0);
  }
  buffer_free(&y), buffer_free(&a), buffer_free(&b);
}

/* Every mode of each operand with one of the others. */
static operand some_loop(int s, int a, int b, int c) {
  int y = a == GAPS ? GAPS : b == TRANSPOSED ? TRANSPOSED : WHOLE;
  return make_loop(shapes[s][0], shapes[s][1], shapes[s][2], (int[4]){y, a, b, c});
}
static void test_binary(void **state) {
  (void)state;
  FOR_KERNELS(k)
  for (zt_dtype t = ZT_F32; t < ZT_U8; t++)
    for (zt_binary fn = 0; fn < ZT_N_BINARY; fn++)
      for (int s = 0; s < N_SMALL_SHAPES; s++)
        for (int a = 0; a < N_MODES; a++)
          for (int b = 0; b < N_MODES; b++) {
            operand o = some_loop(s, a, b, WHOLE);
            check_binary(k, t, fn, &o);
          }
  for (int s = N_SMALL_SHAPES; s < N_SHAPES; s++)
    for (int b = 0; b < N_MODES; b++) FOR_KERNELS(k) FOR_FLOATS(t) {
        operand o = some_loop(s, WHOLE, b, WHOLE);
        check_binary(k, t, ZT_BINARY_MUL, &o);
      }
  covers_kernel("binary");
}
/* y = a + b where y is a, and where y is b. */
static void test_binary_in_place(void **state) {
  (void)state;
  FOR_KERNELS(k) FOR_FLOATS(t) for (int which = 1; which <= 2; which++) {
    operand o = make_loop(2, 33, 65, (int[4]){WHOLE, WHOLE, WHOLE, WHOLE});
    buffer a = input(t, o.extent[1], -1, 1), b = input(t, o.extent[2], -1, 1), y = output(t, o.extent[0]);
    expect_ok(k->table->binary(&no_stream, ZT_BINARY_SUB, t, y.data, a.data, b.data, &o.loop));
    expect_ok(k->table->binary(&no_stream, ZT_BINARY_SUB, t, which == 1 ? a.data : b.data, a.data, b.data, &o.loop));
    assert_memory_equal(which == 1 ? a.data : b.data, y.data, y.nbytes);
    buffer_free(&a), buffer_free(&b), buffer_free(&y);
  }
}

static bool compare_reference(zt_compare fn, double a, double b) {
  switch (fn) {
    case ZT_COMPARE_EQ:
      return a == b;
    case ZT_COMPARE_NE:
      return a != b;
    case ZT_COMPARE_LT:
      return a < b;
    case ZT_COMPARE_LE:
      return a <= b;
    case ZT_COMPARE_GT:
      return a > b;
    default:
      return a >= b;
  }
}
/* Few values, so that equal ones meet; and NaN. */
static buffer few_values(zt_dtype t, size_t n) {
  buffer b = input(t, n, 0, 4);
  for (size_t i = 0; i < n; i++) put(t, b.data, i, zt_dtype_is_float(t) && i % 7 == 3 ? NAN : floor(at(&b, i)));
  return b;
}
static void test_compare(void **state) {
  (void)state;
  FOR_KERNELS(k)
  FOR_DTYPES(t)
  for (zt_compare fn = 0; fn < ZT_N_COMPARE; fn++)
    for (int s = 0; s < N_SMALL_SHAPES; s++)
      for (int m = 0; m < N_MODES; m++) {
        operand o = some_loop(s, m, (m + fn) % N_MODES, WHOLE);
        buffer y = output(ZT_U8, o.extent[0]), a = few_values(t, o.extent[1]), b = few_values(t, o.extent[2]);
        expect_ok(k->table->compare(&no_stream, fn, t, y.data, a.data, b.data, &o.loop));
        for (size_t i = 0; i < loop_count(&o.loop); i++)
          expect_equal(&y, place(&o.loop, 0, i),
                       compare_reference(fn, at(&a, place(&o.loop, 1, i)), at(&b, place(&o.loop, 2, i))));
        buffer_free(&y), buffer_free(&a), buffer_free(&b);
      }
  covers_kernel("compare");
}

static void test_where(void **state) {
  (void)state;
  FOR_KERNELS(k) FOR_DTYPES(t) for (int s = 0; s < n_shapes(t); s++) for (int m = 0; m < N_MODES; m++) {
    operand o = some_loop(s, m, (m * 2) % N_MODES, (m * 3 + s) % N_MODES);
    buffer y = output(t, o.extent[0]), cond = input(ZT_U8, o.extent[1], 0, 3);
    buffer a = input(t, o.extent[2], 0, 100), b = input(t, o.extent[3], 0, 100);
    expect_ok(k->table->where(&no_stream, t, y.data, cond.data, a.data, b.data, &o.loop));
    for (size_t i = 0; i < loop_count(&o.loop); i++) {
      bool yes = at(&cond, place(&o.loop, 1, i)) != 0;
      expect_equal(&y, place(&o.loop, 0, i), yes ? at(&a, place(&o.loop, 2, i)) : at(&b, place(&o.loop, 3, i)));
    }
    buffer_free(&y), buffer_free(&cond), buffer_free(&a), buffer_free(&b);
  }
  covers_kernel("where");
}

/* --- reduce */
typedef struct reduced {
  double value, scale;
  int64_t place;
} reduced;

static reduced reduce_reference(zt_reduce fn, const buffer *x, size_t first, size_t n, size_t inner) {
  double sum = 0, size = 0, top = 0, exps = 0;
  int64_t best = -1;
  for (size_t i = 0; i < n; i++) {
    double v = at(x, first + i * inner);
    sum += v, size += fabs(v);
    bool better = best < 0 || (isnan(v) && !isnan(top)) || (fn == ZT_REDUCE_MIN ? v < top : v > top);
    if (better) top = v, best = (int64_t)i;
  }
  for (size_t i = 0; i < n; i++) exps += exp(at(x, first + i * inner) - top);
  switch (fn) {
    case ZT_REDUCE_SUM:
      return (reduced){sum, size, -1};
    case ZT_REDUCE_MEAN:
      return (reduced){sum / (double)n, size / (double)n, -1};
    case ZT_REDUCE_LOGSUMEXP:
      return (reduced){n && !isinf(top) ? top + log(exps) : n ? top : -INFINITY, 1, -1};
    default:
      return (reduced){top, 0, best};
  }
}

static void check_reduce(const kernel_set *k, zt_dtype t, zt_reduce fn, size_t outer, size_t n, size_t inner,
                         const buffer *x) {
  bool tops = fn == ZT_REDUCE_MAX || fn == ZT_REDUCE_MIN;
  buffer y = output(t, outer * inner), index = output(ZT_I64, outer * inner);
  expect_ok(k->table->reduce(&no_stream, fn, t, y.data, tops ? index.data : NULL, x->data, outer, n, inner));
  for (size_t o = 0; o < outer; o++)
    for (size_t j = 0; j < inner; j++) {
      reduced want = reduce_reference(fn, x, o * n * inner + j, n, inner);
      expect_close(&y, o * inner + j, want.value, want.scale);
      if (tops) expect_equal(&index, o * inner + j, (double)want.place);
    }
  if (tops && n) { /* without index the same values */
    buffer again = output(t, outer * inner);
    expect_ok(k->table->reduce(&no_stream, fn, t, again.data, NULL, x->data, outer, n, inner));
    assert_memory_equal(again.data, y.data, y.nbytes);
    buffer_free(&again);
  }
  buffer_free(&y), buffer_free(&index);
}

static void test_reduce(void **state) {
  (void)state;
  const size_t cases[][3] = {{3, 7, 1}, {1, 1, 1}, {2, 513, 1}, {5, 64, 3},    {2, 3, 65},    {1, 129, 130}, {0, 4, 1},
                             {3, 4, 0}, {2, 0, 1}, {2, 0, 5},   {1, LARGE, 1}, {2, 1500, 17}, {40, 1100, 1}};
  FOR_KERNELS(k) for (zt_dtype t = ZT_F32; t <= ZT_I64; t++) for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    size_t outer = cases[c][0], n = cases[c][1], inner = cases[c][2];
    buffer x = input(t, outer * n * inner, -5, 5);
    for (zt_reduce fn = 0; fn < ZT_N_REDUCE; fn++) {
      bool tops = fn == ZT_REDUCE_MAX || fn == ZT_REDUCE_MIN;
      if ((t == ZT_I64 && (fn == ZT_REDUCE_MEAN || fn == ZT_REDUCE_LOGSUMEXP)) || (n == 0 && tops)) continue;
      check_reduce(k, t, fn, outer, n, inner, &x);
    }
    buffer_free(&x);
  }
  FOR_KERNELS(k) {
    int64_t one = 1, y;
    assert_int_equal(k->table->reduce(&no_stream, ZT_REDUCE_MEAN, ZT_I64, &y, NULL, &one, 1, 1, 1), ZT_DTYPE);
    assert_int_equal(k->table->reduce(&no_stream, ZT_REDUCE_SUM, ZT_U8, &y, NULL, &one, 1, 1, 1), ZT_DTYPE);
  }
  covers_kernel("reduce");
}

/* NaN, infinities, and equal extremes at random places, in rows and in columns. */
static void test_reduce_special(void **state) {
  (void)state;
  const double special[] = {NAN, INFINITY, -INFINITY, 9, -9};
  const size_t cases[][3] = {{7, 1300, 1}, {3, 90, 70}, {1, LARGE, 1}};
  FOR_KERNELS(k) FOR_FLOATS(t) for (int round = 0; round < 5; round++) for (int c = 0; c < 3; c++) {
    size_t outer = cases[c][0], n = cases[c][1], inner = cases[c][2];
    buffer x = input(t, outer * n * inner, -5, 5);
    for (size_t i = 0; i < outer * inner * 2; i++) put(t, x.data, random_below(x.count), special[(size_t)round]);
    for (zt_reduce fn = ZT_REDUCE_MAX; fn < ZT_N_REDUCE; fn++) check_reduce(k, t, fn, outer, n, inner, &x);
    buffer_free(&x);
  }
  FOR_KERNELS(k) { /* nothing but -inf */
    const float x[3] = {-INFINITY, -INFINITY, -INFINITY};
    float y;
    expect_ok(k->table->reduce(&no_stream, ZT_REDUCE_LOGSUMEXP, ZT_F32, &y, NULL, x, 1, 3, 1));
    assert_true(y == -INFINITY);
  }
}

/* A million float32 numbers of one sign: the sum is good to the last place. */
static void test_sum_is_accurate(void **state) {
  (void)state;
  size_t n = 1000003;
  buffer x = input(ZT_F32, n, 0, 1);
  double want = 0;
  for (size_t i = 0; i < n; i++) want += at(&x, i);
  FOR_KERNELS(k) {
    float y;
    expect_ok(k->table->reduce(&no_stream, ZT_REDUCE_SUM, ZT_F32, &y, NULL, x.data, 1, n, 1));
    assert_true(fabs(y - want) <= want * 0x1p-22);
  }
  buffer_free(&x);
}

/* --- topk */
static bool stands_before(const buffer *x, size_t row, size_t i, size_t j, bool largest) {
  double a = at(x, row + i), b = at(x, row + j);
  if (isnan(a) != isnan(b)) return isnan(a) == largest;
  return a == b || isnan(a) ? i < j : largest ? a > b : a < b;
}
static void check_topk(const kernel_set *k, zt_dtype t, size_t rows, size_t cols, size_t n_top, bool largest) {
  buffer x = few_values(t, rows * cols), values = output(t, rows * n_top), index = output(ZT_I64, rows * n_top);
  for (size_t i = 0; i < x.count; i += 2) put(t, x.data, i, random_in(-4, 4));
  expect_ok(k->table->topk(&no_stream, t, values.data, index.data, x.data, rows, cols, n_top, largest));
  for (size_t r = 0; r < rows; r++)
    for (size_t c = 0; c < cols; c++) { /* the rank of each element is where it stands */
      size_t rank = 0;
      for (size_t other = 0; other < cols && rank < n_top; other++)
        rank += other != c && stands_before(&x, r * cols, other, c, largest);
      if (rank >= n_top) continue;
      expect_equal(&index, r * n_top + rank, (double)c);
      expect_equal(&values, r * n_top + rank, at(&x, r * cols + c));
    }
  buffer_free(&x), buffer_free(&values), buffer_free(&index);
}
static void test_topk(void **state) {
  (void)state;
  FOR_KERNELS(k) FOR_FLOATS(t) for (int largest = 0; largest < 2; largest++) {
    const size_t cases[][3] = {{3, 17, 5}, {1, 1, 1}, {4, 300, 300}, {2, 129, 1}, {0, 5, 2}, {3, 5, 0}, {9, 4000, 7}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
      check_topk(k, t, cases[c][0], cases[c][1], cases[c][2], largest);
  }
  covers_kernel("topk");
}

/* --- index */
static void test_check_index(void **state) {
  (void)state;
  FOR_KERNELS(k) for (int c = 0; c < N_COUNTS; c++) {
    size_t n = counts[c], bad = 12345;
    buffer index = input_index(n, 50);
    int64_t *p = index.data;
    for (size_t i = 0; i < n; i += 3) p[i] = -100;
    expect_ok(k->table->check_index(&no_stream, &bad, p, 50, -100, n));
    assert_int_equal(bad, n);
    for (int wrong = 0; wrong < 3 && n; wrong++) {
      size_t where = random_below(n);
      int64_t was = p[where];
      p[where] = wrong == 0 ? 50 : wrong == 1 ? -1 : INT64_MIN;
      expect_ok(k->table->check_index(&no_stream, &bad, p, 50, -100, n));
      assert_int_equal(bad, where);
      p[where] = was;
    }
    buffer_free(&index);
  }
  covers_kernel("check_index");
}
static void test_count_not_equal(void **state) {
  (void)state;
  FOR_KERNELS(k) for (int c = 0; c < N_COUNTS; c++) {
    buffer x = input_index(counts[c], 3);
    int64_t want = 0, got = -1;
    for (size_t i = 0; i < x.count; i++) want += at(&x, i) != 2;
    expect_ok(k->table->count_not_equal(&no_stream, &got, x.data, 2, x.count));
    assert_true(got == want);
    buffer_free(&x);
  }
  covers_kernel("count_not_equal");
}

/* outer, n, n_index, inner */
static const size_t index_cases[][4] = {{1, 5, 9, 3}, {3, 7, 4, 1}, {2, 1, 6, 129},    {0, 4, 3, 2},
                                        {2, 4, 0, 3}, {2, 4, 3, 0}, {1, 500, 65, 700}, {4, 30, 257, 40}};
#define FOR_INDEX_CASES(c) \
  for (const size_t *c = index_cases[0]; c < index_cases[0] + sizeof index_cases / sizeof(size_t); c += 4)

static void test_index_select(void **state) {
  (void)state;
  FOR_KERNELS(k) FOR_DTYPES(t) FOR_INDEX_CASES(c) {
    size_t outer = c[0], n = c[1], n_index = c[2], inner = c[3];
    buffer x = input(t, outer * n * inner, 0, 100), index = input_index(n_index, n),
           y = output(t, outer * n_index * inner);
    const int64_t *p = index.data;
    expect_ok(k->table->index_select(&no_stream, t, y.data, x.data, p, outer, n, n_index, inner));
    for (size_t o = 0; o < outer; o++)
      for (size_t i = 0; i < n_index; i++)
        for (size_t j = 0; j < inner; j++)
          expect_equal(&y, (o * n_index + i) * inner + j, at(&x, (o * n + (size_t)p[i]) * inner + j));
    buffer_free(&x), buffer_free(&index), buffer_free(&y);
  }
  covers_kernel("index_select");
}

static void check_index_add(const kernel_set *k, zt_dtype t, const size_t *c, size_t n_distinct) {
  size_t outer = c[0], n = c[1], n_index = c[2], inner = c[3];
  buffer y = input(t, outer * n * inner, -2, 2), x = input(t, outer * n_index * inner, -2, 2), before = copy_of(&y);
  buffer index = input_index(n_index, n_distinct < n ? n_distinct : n);
  buffer work = output(ZT_U8, k->table->index_add_workspace(t, outer, n, n_index, inner) + 8);
  void *aligned = (void *)(((uintptr_t)work.data + 7) / 8 * 8);
  const int64_t *p = index.data;
  expect_ok(k->table->index_add(&no_stream, t, y.data, x.data, p, outer, n, n_index, inner, aligned));
  for (size_t o = 0; o < outer; o++)
    for (size_t r = 0; r < n; r++)
      for (size_t j = 0; j < inner; j++) {
        double sum = 0, size = 0, was = at(&before, (o * n + r) * inner + j);
        for (size_t i = 0; i < n_index; i++) {
          double v = (size_t)p[i] == r ? at(&x, (o * n_index + i) * inner + j) : 0;
          sum += v, size += fabs(v);
        }
        double scale = zt_dtype_nbytes(t) == 2 ? size * 0x1p-8 : size + fabs(was); /* summed in float32, rounded once */
        expect_close(&y, (o * n + r) * inner + j, was + sum, scale);
      }
  buffer_free(&y), buffer_free(&x), buffer_free(&before), buffer_free(&index), buffer_free(&work);
}
static void test_index_add(void **state) {
  (void)state;
  FOR_KERNELS(k) FOR_FLOATS(t) FOR_INDEX_CASES(c) {
    check_index_add(k, t, c, c[1]);
    check_index_add(k, t, c, 2); /* mostly the same */
  }
  covers_kernel("index_add");
}

static void test_gather(void **state) {
  (void)state;
  FOR_KERNELS(k) FOR_DTYPES(t) FOR_INDEX_CASES(c) {
    size_t outer = c[0], n = c[1], n_index = c[2], inner = c[3];
    buffer x = input(t, outer * n * inner, 0, 100), index = input_index(outer * n_index * inner, n),
           y = output(t, index.count);
    const int64_t *p = index.data;
    expect_ok(k->table->gather(&no_stream, t, y.data, x.data, p, outer, n, n_index, inner));
    for (size_t i = 0; i < y.count; i++)
      expect_equal(&y, i, at(&x, (i / inner / n_index * n + (size_t)p[i]) * inner + i % inner));
    buffer_free(&x), buffer_free(&index), buffer_free(&y);
  }
  covers_kernel("gather");
}

static void test_scatter_add(void **state) {
  (void)state;
  FOR_KERNELS(k) for (zt_dtype t = ZT_F32; t < ZT_U8; t++) FOR_INDEX_CASES(c) {
    size_t outer = c[0], n = c[1], n_index = c[2], inner = c[3];
    buffer y = input(t, outer * n * inner, -2, 2), want = copy_of(&y), index = input_index(outer * n_index * inner, n);
    buffer x = input(t, index.count, -2, 2);
    const int64_t *p = index.data;
    expect_ok(k->table->scatter_add(&no_stream, t, y.data, x.data, p, outer, n, n_index, inner));
    for (size_t i = 0; i < x.count; i++) { /* in order, so exact: each addition is rounded */
      size_t to = (i / inner / n_index * n + (size_t)p[i]) * inner + i % inner;
      put(t, want.data, to, at(&want, to) + at(&x, i));
    }
    for (size_t i = 0; i < y.count; i++) expect_equal(&y, i, at(&want, i));
    buffer_free(&y), buffer_free(&want), buffer_free(&index), buffer_free(&x);
  }
  covers_kernel("scatter_add");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_fill),
                                     cmocka_unit_test(test_arange),
                                     cmocka_unit_test(test_copy),
                                     cmocka_unit_test(test_cast),
                                     cmocka_unit_test(test_cast_special),
                                     cmocka_unit_test(test_unary),
                                     cmocka_unit_test(test_unary_bwd),
                                     cmocka_unit_test(test_unary_integers),
                                     cmocka_unit_test(test_unary_edges),
                                     cmocka_unit_test(test_binary),
                                     cmocka_unit_test(test_binary_in_place),
                                     cmocka_unit_test(test_compare),
                                     cmocka_unit_test(test_where),
                                     cmocka_unit_test(test_reduce),
                                     cmocka_unit_test(test_reduce_special),
                                     cmocka_unit_test(test_sum_is_accurate),
                                     cmocka_unit_test(test_topk),
                                     cmocka_unit_test(test_check_index),
                                     cmocka_unit_test(test_count_not_equal),
                                     cmocka_unit_test(test_index_select),
                                     cmocka_unit_test(test_index_add),
                                     cmocka_unit_test(test_gather),
                                     cmocka_unit_test(test_scatter_add)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
