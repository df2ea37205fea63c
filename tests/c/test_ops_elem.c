/* Ops that go element by element, reduce, index and reshape: values against naive code here, gradients against
** differences, errors, and what they take that is odd: broadcasting, strided views, nothing at all. */
#include "core/base/mem.h"
#include "tests/c/grad_check.h"

/* --- reading */
typedef struct host {
  int ndim;
  int64_t shape[ZT_MAX_DIM], count;
  double v[1024];
} host;

static host read_tensor(zt_ctx *c, const zt_tensor *t) {
  host h = {.ndim = t->ndim, .count = zt_tensor_count(t)};
  unsigned char bytes[8192];
  assert_in_range(h.count, 0, 1024);
  memcpy(h.shape, t->shape, sizeof h.shape);
  expect_ok(zt_tensor_read(c, t, bytes));
  for (int64_t i = 0; i < h.count; i++) h.v[i] = get(t->dtype, bytes, (size_t)i);
  return h;
}
static bool has_shape(const host *h, int ndim, const int64_t *shape) {
  return h->ndim == ndim && (ndim == 0 || memcmp(h->shape, shape, (size_t)ndim * sizeof *shape) == 0);
}
/* The element of h that is broadcast to place i of 'out'. */
static double spread(const host *h, const host *out, int64_t i) {
  int64_t at = 0, step = 1;
  for (int d = out->ndim - 1; d >= 0; d--) {
    int own = d - (out->ndim - h->ndim);
    int64_t index = i % out->shape[d];
    i /= out->shape[d];
    if (own < 0) continue;
    at += h->shape[own] == 1 ? 0 : index * step;
    step *= h->shape[own];
  }
  return h->v[at];
}
static void expect_element(zt_dtype t, double got, double want, double scale) {
  if (!is_close(t, got, want, scale)) fail_msg("got %.17g, want %.17g", got, want);
}
static void expect_fails(zt_status got, zt_status want, const char *text) {
  assert_int_equal(got, want);
  if (!strstr(zt_message(), text)) fail_msg("the message is '%s', without '%s'", zt_message(), text);
}

/* --- one operand */
typedef zt_status (*unary_op)(zt_ctx *c, zt_tensor **y, zt_tensor *x);
typedef struct unary_case {
  const char *name;
  unary_op op;
  double low, high;
  double (*reference)(double x);
} unary_case;

static double ref_neg(double x) { return -x; }
static double ref_rsqrt(double x) { return 1 / sqrt(x); }
static double ref_sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double ref_relu(double x) { return x > 0 ? x : 0; }
static double ref_gelu(double x) { return 0.5 * x * erfc(-x / sqrt(2)); }
static double ref_gelu_tanh(double x) { return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }
static double ref_silu(double x) { return x * ref_sigmoid(x); }
static double ref_clamp(double x) { return x < -0.5 ? -0.5 : x > 1.25 ? 1.25 : x; }
static double ref_affine(double x) { return -1.5 * x + 0.25; }
static double ref_cube(double x) { return x * x * x; }

static zt_status clamp(zt_ctx *c, zt_tensor **y, zt_tensor *x) { return zt_clamp(c, y, x, -0.5, 1.25); }
static zt_status affine(zt_ctx *c, zt_tensor **y, zt_tensor *x) { return zt_affine(c, y, x, -1.5, 0.25); }
static zt_status cube(zt_ctx *c, zt_tensor **y, zt_tensor *x) { return zt_pow_scalar(c, y, x, 3); }

static const unary_case unary_cases[] = {{"neg", zt_neg, -2, 2, ref_neg},
                                         {"exp", zt_exp, -2, 2, exp},
                                         {"log", zt_log_, 0.3, 4, log},
                                         {"sqrt", zt_sqrt, 0.3, 4, sqrt},
                                         {"rsqrt", zt_rsqrt, 0.3, 4, ref_rsqrt},
                                         {"tanh", zt_tanh, -2, 2, tanh},
                                         {"sigmoid", zt_sigmoid, -3, 3, ref_sigmoid},
                                         {"relu", zt_relu, -2, 2, ref_relu},
                                         {"gelu", zt_gelu, -3, 3, ref_gelu},
                                         {"gelu_tanh", zt_gelu_tanh, -3, 3, ref_gelu_tanh},
                                         {"silu", zt_silu, -3, 3, ref_silu},
                                         {"clamp", clamp, -2, 2, ref_clamp},
                                         {"affine", affine, -2, 2, ref_affine},
                                         {"pow_scalar", cube, -2, 2, ref_cube}};
enum { N_UNARY_CASES = sizeof unary_cases / sizeof *unary_cases };

static zt_status run_unary(const void *user, zt_ctx *c, zt_tensor *const in[], zt_tensor *out[]) {
  return ((const unary_case *)user)->op(c, &out[0], in[0]);
}
/* Away from the corners of relu and clamp. */
static void avoid(zt_tensor *x, double corner) {
  for (int64_t i = 0; i < zt_tensor_count(x); i++)
    if (fabs(*element(x, i) - corner) < 0.01) *element(x, i) += 0.02;
}

static void unary_values(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  for (const unary_case *u = unary_cases; u < unary_cases + N_UNARY_CASES; u++)
    FOR_FLOATS(t) for (leaf_kind kind = 0; kind < N_LEAF_KINDS; kind++) {
      zt_tensor *x = strided_tensor(c, t, kind, u->low, u->high, SHAPE(3, 5, 7)), *y;
      expect_ok(u->op(c, &y, x));
      host a = read_tensor(c, x), b = read_tensor(c, y);
      assert_true(has_shape(&b, SHAPE(3, 5, 7)) && y->dtype == t);
      for (int64_t i = 0; i < b.count; i++) expect_element(t, b.v[i], u->reference(a.v[i]), 1);
      release_all((zt_tensor *[]){x, y}, 2);
    }
  for (const unary_case *u = unary_cases; u < unary_cases + N_UNARY_CASES; u++) {
    zt_tensor *x = random_tensor(c, ZT_U8, 0, 9, SHAPE(2)), *y;
    expect_fails(u->op(c, &y, x), ZT_DTYPE, "uint8");
    assert_null(y);
    zt_tensor_release(x);
    covers_op(u->name);
  }
  free_context(c);
}
static void unary_gradients(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  for (const unary_case *u = unary_cases; u < unary_cases + N_UNARY_CASES; u++)
    for (leaf_kind kind = 0; kind < N_LEAF_KINDS; kind++) {
      zt_tensor *x = leaf(c, kind, u->low, u->high, SHAPE(3, 4, 2));
      if (u->op == zt_relu) avoid(x, 0);
      if (u->op == clamp) avoid(x, -0.5), avoid(x, 1.25);
      grad_check(c, u->name, run_unary, u, &x, 1, 1);
      x = leaf(c, kind, u->low, u->high, SHAPE(2, 0, 3));
      grad_check(c, u->name, run_unary, u, &x, 1, 1);
      x = leaf(c, kind, 0.5, 0.6, NO_DIMS);
      grad_check(c, u->name, run_unary, u, &x, 1, 1);
    }
  free_context(c);
}

/* The conventions at corners: relu'(0) = 0; clamp's gradient is 1 on its bounds. */
static void corners(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  const double at[] = {0, -0.5, 1.25}, slopes[] = {0, 1, 1};
  for (int i = 0; i < 3; i++) {
    zt_tensor *x, *y;
    expect_ok(zt_tensor_from(c, &x, ZT_F64, 0, NULL, &at[i]));
    x->requires_grad = true;
    expect_ok(i == 0 ? zt_relu(c, &y, x) : clamp(c, &y, x));
    expect_ok(zt_backward(c, y, NULL, 1));
    assert_true(read_tensor(c, x->grad).v[0] == slopes[i]);
    release_all((zt_tensor *[]){x, y}, 2);
  }
  free_context(c);
}

static double powers_of(double x, double p) { return pow(x, p); }
static zt_status run_power(const void *user, zt_ctx *c, zt_tensor *const in[], zt_tensor *out[]) {
  return zt_pow_scalar(c, &out[0], in[0], *(const double *)user);
}
static void powers(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  const double exponents[] = {0, 1, 2, 3, -1, -2, 0.5, 2.5, -0.5};
  for (size_t e = 0; e < sizeof exponents / sizeof *exponents; e++) {
    bool whole = exponents[e] == floor(exponents[e]) && exponents[e] >= 0;
    zt_tensor *x = leaf(c, PLAIN, whole ? -2 : 0.4, 2, SHAPE(3, 3)), *y;
    expect_ok(zt_pow_scalar(c, &y, x, exponents[e]));
    host a = read_tensor(c, x), b = read_tensor(c, y);
    for (int i = 0; i < 9; i++) expect_element(ZT_F64, b.v[i], powers_of(a.v[i], exponents[e]), 0);
    zt_tensor_release(y);
    grad_check(c, "pow_scalar", run_power, &exponents[e], &x, 1, 1);
  }
  free_context(c);
}

static void affine_of_integers(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  for (zt_dtype t = ZT_I64; t <= ZT_I32; t++) {
    zt_tensor *x = random_tensor(c, t, -50, 50, SHAPE(4, 3)), *y;
    expect_ok(zt_affine(c, &y, x, 3, -7));
    host a = read_tensor(c, x), b = read_tensor(c, y);
    assert_int_equal(y->dtype, t);
    for (int i = 0; i < 12; i++) assert_true(b.v[i] == 3 * a.v[i] - 7);
    release_all((zt_tensor *[]){x, y}, 2);
  }
  free_context(c);
}

/* --- two operands that broadcast */
typedef zt_status (*binary_op)(zt_ctx *c, zt_tensor **y, zt_tensor *a, zt_tensor *b);
typedef struct binary_case {
  const char *name;
  binary_op op;
  double (*reference)(double a, double b);
} binary_case;
static double ref_add(double a, double b) { return a + b; }
static double ref_sub(double a, double b) { return a - b; }
static double ref_mul(double a, double b) { return a * b; }
static double ref_div(double a, double b) { return a / b; }
static const binary_case binary_cases[] = {{"add", zt_add, ref_add},
                                           {"sub", zt_sub, ref_sub},
                                           {"mul", zt_mul, ref_mul},
                                           {"div", zt_div, ref_div},
                                           {"pow", zt_pow, pow}};
enum { N_BINARY_CASES = 5 };

typedef struct dims {
  int n;
  int64_t size[4];
} dims;
/* a, b, result */
static const dims pairs[][3] = {{{3, {2, 3, 4}}, {3, {2, 3, 4}}, {3, {2, 3, 4}}},
                                {{3, {2, 3, 4}}, {1, {4}}, {3, {2, 3, 4}}},
                                {{2, {3, 1}}, {3, {2, 1, 4}}, {3, {2, 3, 4}}},
                                {{0, {0}}, {2, {3, 2}}, {2, {3, 2}}},
                                {{3, {2, 3, 1}}, {0, {0}}, {3, {2, 3, 1}}},
                                {{2, {0, 3}}, {2, {1, 3}}, {2, {0, 3}}},
                                {{4, {2, 1, 3, 1}}, {4, {1, 4, 3, 5}}, {4, {2, 4, 3, 5}}},
                                {{0, {0}}, {0, {0}}, {0, {0}}}};
enum { N_PAIRS = sizeof pairs / sizeof *pairs };

static void binary_values(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  for (const binary_case *o = binary_cases; o < binary_cases + N_BINARY_CASES; o++) {
    for (zt_dtype t = ZT_F32; t <= ZT_I32; t++)
      for (int p = 0; p < N_PAIRS; p++)
        for (leaf_kind kind = 0; kind < N_LEAF_KINDS; kind++) {
          const dims *d = pairs[p];
          zt_tensor *a = strided_tensor(c, t, kind, 1, 6, d[0].n, d[0].size), *y;
          zt_tensor *b = strided_tensor(c, t, (kind + 1) % N_LEAF_KINDS, 1, 4, d[1].n, d[1].size);
          expect_ok(o->op(c, &y, a, b));
          host ha = read_tensor(c, a), hb = read_tensor(c, b), hy = read_tensor(c, y);
          assert_true(has_shape(&hy, d[2].n, d[2].size) && y->dtype == t);
          for (int64_t i = 0; i < hy.count; i++) {
            double want = o->reference(spread(&ha, &hy, i), spread(&hb, &hy, i));
            expect_element(t, hy.v[i], zt_dtype_is_float(t) ? want : trunc(want), 0);
          }
          release_all((zt_tensor *[]){a, b, y}, 3);
        }
    covers_op(o->name);
  }
  free_context(c);
}

/* What both cast to float32 by hand give; gradients reach both in their own dtypes. */
static void check_mixed(zt_ctx *c, const binary_case *o, zt_dtype ta, zt_dtype tb) {
  zt_tensor *a = random_tensor(c, ta, 1, 3, SHAPE(2, 3)), *b = random_tensor(c, tb, 1, 3, SHAPE(3)), *y, *z, *wa, *wb;
  a->requires_grad = b->requires_grad = true;
  expect_ok(o->op(c, &y, a, b));
  expect_ok(zt_cast(c, &wa, a, ZT_F32));
  expect_ok(zt_cast(c, &wb, b, ZT_F32));
  expect_ok(o->op(c, &z, wa, wb));
  assert_true(y->dtype == ZT_F32);
  host hy = read_tensor(c, y), hz = read_tensor(c, z);
  for (int64_t i = 0; i < hy.count; i++) assert_true(hy.v[i] == hz.v[i]);
  zt_tensor *g = random_tensor(c, ZT_F32, 0.5, 1, SHAPE(2, 3));
  expect_ok(zt_backward(c, y, g, 1));
  assert_true(a->grad->dtype == ta && b->grad->dtype == tb);
  zt_tensor *got[2] = {a->grad, b->grad};
  a->grad = b->grad = NULL;
  expect_ok(zt_backward(c, z, g, 1));
  for (int k = 0; k < 2; k++) {
    host h = read_tensor(c, got[k]), want = read_tensor(c, k ? b->grad : a->grad);
    for (int64_t i = 0; i < h.count; i++) assert_true(h.v[i] == want.v[i]);
  }
  release_all((zt_tensor *[]){a, b, y, z, wa, wb, g, got[0], got[1]}, 9);
}

static void floats_of_two_dtypes_meet_in_float32(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  for (const binary_case *o = binary_cases; o < binary_cases + N_BINARY_CASES; o++) {
    FOR_FLOATS(ta) FOR_FLOATS(tb) if (ta != tb && ta != ZT_F64 && tb != ZT_F64) check_mixed(c, o, ta, tb);
  }
  zt_tensor *x = random_tensor(c, ZT_F32, 1, 2, SHAPE(2)), *n = random_tensor(c, ZT_I64, 1, 9, SHAPE(2)), *y;
  zt_tensor *h = random_tensor(c, ZT_BF16, 3, 4, SHAPE(2));
  expect_ok(zt_compare_op(c, &y, x, h, ZT_COMPARE_LT));
  assert_true(read_tensor(c, y).v[0] == 1);
  zt_tensor_release(y);
  assert_int_equal(zt_add(c, &y, x, n), ZT_DTYPE);
  assert_non_null(strstr(zt_message(), "float32 (2) and int64 (2) have different dtypes"));
  assert_int_equal(zt_compare_op(c, &y, n, h, ZT_COMPARE_LT), ZT_DTYPE);
  release_all((zt_tensor *[]){x, n, h}, 3);
  free_context(c);
}

static zt_status run_binary(const void *user, zt_ctx *c, zt_tensor *const in[], zt_tensor *out[]) {
  return ((const binary_case *)user)->op(c, &out[0], in[0], in[1]);
}
static void binary_gradients(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  for (const binary_case *o = binary_cases; o < binary_cases + N_BINARY_CASES; o++)
    for (int p = 0; p < N_PAIRS; p++)
      for (leaf_kind kind = 0; kind < N_LEAF_KINDS; kind++) {
        const dims *d = pairs[p];
        zt_tensor *in[] = {leaf(c, kind, 0.5, 2, d[0].n, d[0].size),
                           leaf(c, (kind + 1) % N_LEAF_KINDS, 0.5, 2, d[1].n, d[1].size)};
        grad_check(c, o->name, run_binary, o, in, 2, 1);
      }
  free_context(c);
}
static zt_status run_with_itself(const void *user, zt_ctx *c, zt_tensor *const in[], zt_tensor *out[]) {
  return ((const binary_case *)user)->op(c, &out[0], in[0], in[0]);
}
static void an_operand_with_itself(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  for (const binary_case *o = binary_cases; o < binary_cases + N_BINARY_CASES; o++) {
    zt_tensor *x = leaf(c, PLAIN, 0.5, 2, SHAPE(3, 2));
    grad_check(c, o->name, run_with_itself, o, &x, 1, 1);
  }
  free_context(c);
}
static void binary_errors(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  zt_tensor *a = random_tensor(c, ZT_F32, 0, 1, SHAPE(2, 3)), *b = random_tensor(c, ZT_F32, 0, 1, SHAPE(4)), *y;
  zt_tensor *wide = random_tensor(c, ZT_F64, 0, 1, SHAPE(3)), *bytes = random_tensor(c, ZT_U8, 0, 9, SHAPE(3));
  expect_fails(zt_add(c, &y, a, b), ZT_SHAPE, "add: (2, 3) and (4)");
  expect_fails(zt_mul(c, &y, a, wide), ZT_DTYPE, "mul: float32 (2, 3) and float64 (3)");
  expect_fails(zt_sub(c, &y, bytes, bytes), ZT_DTYPE, "uint8");
  assert_null(y);
  release_all((zt_tensor *[]){a, b, wide, bytes}, 4);
  free_context(c);
}
/* 0^b: the gradient of b is 0, not NaN. */
static void power_of_zero(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  const double zero = 0, two = 2;
  zt_tensor *a, *b, *y;
  expect_ok(zt_tensor_from(c, &a, ZT_F64, 0, NULL, &zero));
  expect_ok(zt_tensor_from(c, &b, ZT_F64, 0, NULL, &two));
  b->requires_grad = true;
  expect_ok(zt_pow(c, &y, a, b));
  expect_ok(zt_backward(c, y, NULL, 1));
  assert_true(read_tensor(c, b->grad).v[0] == 0);
  release_all((zt_tensor *[]){a, b, y}, 3);
  free_context(c);
}

/* --- choosing */
static bool compared(zt_compare fn, double a, double b) {
  const bool by[] = {a == b, a != b, a<b, a <= b, a> b, a >= b};
  return by[fn];
}
static void compare_values(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  FOR_DTYPES(t) for (zt_compare fn = 0; fn < ZT_N_COMPARE; fn++) for (int p = 0; p < N_PAIRS; p++) {
    const dims *d = pairs[p];
    zt_tensor *a = strided_tensor(c, t, fn % 3, 0, 3, d[0].n, d[0].size),
              *b = strided_tensor(c, t, (fn + 1) % 3, 0, 3, d[1].n, d[1].size), *y;
    expect_ok(zt_compare_op(c, &y, a, b, fn));
    host ha = read_tensor(c, a), hb = read_tensor(c, b), hy = read_tensor(c, y);
    assert_true(has_shape(&hy, d[2].n, d[2].size) && y->dtype == ZT_U8);
    for (int64_t i = 0; i < hy.count; i++)
      assert_true(hy.v[i] == compared(fn, spread(&ha, &hy, i), spread(&hb, &hy, i)));
    release_all((zt_tensor *[]){a, b, y}, 3);
  }
  covers_op("compare");
  free_context(c);
}

static void where_values(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  FOR_DTYPES(t) for (int p = 0; p < N_PAIRS; p++) for (int m = 0; m < 3; m++) {
    const dims *d = pairs[p];
    zt_tensor *cond = strided_tensor(c, ZT_U8, m, 0, 2, d[(m + 1) % 3].n, d[(m + 1) % 3].size), *y;
    zt_tensor *a = strided_tensor(c, t, m, 0, 50, d[0].n, d[0].size),
              *b = strided_tensor(c, t, m, 0, 50, d[1].n, d[1].size);
    expect_ok(zt_where(c, &y, cond, a, b));
    host hc = read_tensor(c, cond), ha = read_tensor(c, a), hb = read_tensor(c, b), hy = read_tensor(c, y);
    assert_true(has_shape(&hy, d[2].n, d[2].size) && y->dtype == t);
    for (int64_t i = 0; i < hy.count; i++)
      assert_true(hy.v[i] == (spread(&hc, &hy, i) != 0 ? spread(&ha, &hy, i) : spread(&hb, &hy, i)));
    release_all((zt_tensor *[]){cond, a, b, y}, 4);
  }
  covers_op("where");
  free_context(c);
}
static void masked_fill_values(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  FOR_DTYPES(t) for (int m = 0; m < 3; m++) {
    zt_tensor *x = strided_tensor(c, t, m, 0, 50, SHAPE(2, 3, 4)),
              *mask = strided_tensor(c, ZT_U8, m, 0, 2, SHAPE(3, 1)), *y;
    expect_ok(zt_masked_fill(c, &y, x, mask, 77));
    host hx = read_tensor(c, x), hm = read_tensor(c, mask), hy = read_tensor(c, y);
    for (int64_t i = 0; i < hy.count; i++) assert_true(hy.v[i] == (spread(&hm, &hy, i) != 0 ? 77 : hx.v[i]));
    release_all((zt_tensor *[]){x, mask, y}, 3);
  }
  zt_tensor *x = random_tensor(c, ZT_F32, 0, 1, SHAPE(3)), *mask = random_tensor(c, ZT_U8, 0, 2, SHAPE(2, 3)), *y;
  expect_fails(zt_masked_fill(c, &y, x, mask, 0), ZT_SHAPE, "(2, 3)"); /* the mask may not enlarge x */
  expect_fails(zt_masked_fill(c, &y, x, x, 0), ZT_DTYPE, "uint8");
  release_all((zt_tensor *[]){x, mask}, 2);
  covers_op("masked_fill");
  free_context(c);
}
static zt_status run_where(const void *user, zt_ctx *c, zt_tensor *const in[], zt_tensor *out[]) {
  (void)user;
  return zt_where(c, &out[0], in[0], in[1], in[2]);
}
static zt_status run_masked_fill(const void *user, zt_ctx *c, zt_tensor *const in[], zt_tensor *out[]) {
  (void)user;
  return zt_masked_fill(c, &out[0], in[0], in[1], -5);
}
static void choosing_gradients(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  for (int p = 0; p < N_PAIRS; p++)
    for (leaf_kind kind = 0; kind < N_LEAF_KINDS; kind++) {
      const dims *d = pairs[p];
      zt_tensor *in[] = {strided_tensor(c, ZT_U8, kind, 0, 2, d[2].n, d[2].size),
                         leaf(c, kind, -1, 1, d[0].n, d[0].size), leaf(c, kind, -1, 1, d[1].n, d[1].size)};
      grad_check(c, "where", run_where, NULL, in, 3, 1);
      zt_tensor *fill[] = {leaf(c, kind, -1, 1, d[2].n, d[2].size), random_tensor(c, ZT_U8, 0, 2, d[0].n, d[0].size)};
      grad_check(c, "masked_fill", run_masked_fill, NULL, fill, 2, 1);
    }
  free_context(c);
}

/* --- reductions */
typedef zt_status (*reduce_op)(zt_ctx *c, zt_tensor **y, zt_tensor *x, int dim, bool keepdim);
static zt_status max_value(zt_ctx *c, zt_tensor **y, zt_tensor *x, int dim, bool keepdim) {
  return zt_max(c, y, NULL, x, dim, keepdim);
}
static zt_status min_value(zt_ctx *c, zt_tensor **y, zt_tensor *x, int dim, bool keepdim) {
  return zt_min(c, y, NULL, x, dim, keepdim);
}
static zt_status var_1(zt_ctx *c, zt_tensor **y, zt_tensor *x, int dim, bool keepdim) {
  return zt_var(c, y, x, dim, keepdim, 1);
}
static zt_status var_0(zt_ctx *c, zt_tensor **y, zt_tensor *x, int dim, bool keepdim) {
  return zt_var(c, y, x, dim, keepdim, 0);
}

/* Of n elements that are 'step' apart. */
typedef double (*reducer)(const double *x, int64_t n, int64_t step);
static double ref_sum(const double *x, int64_t n, int64_t step) {
  double y = 0;
  for (int64_t i = 0; i < n; i++) y += x[i * step];
  return y;
}
static double ref_mean(const double *x, int64_t n, int64_t step) { return ref_sum(x, n, step) / (double)n; }
static double ref_argmax(const double *x, int64_t n, int64_t step) {
  int64_t best = 0;
  for (int64_t i = 1; i < n; i++) best = x[i * step] > x[best * step] ? i : best;
  return (double)best;
}
static double ref_max(const double *x, int64_t n, int64_t step) { return x[(int64_t)ref_argmax(x, n, step) * step]; }
static double ref_min(const double *x, int64_t n, int64_t step) {
  double y = x[0];
  for (int64_t i = 1; i < n; i++) y = x[i * step] < y ? x[i * step] : y;
  return y;
}
static double squares(const double *x, int64_t n, int64_t step, double mean) {
  double y = 0;
  for (int64_t i = 0; i < n; i++) y += (x[i * step] - mean) * (x[i * step] - mean);
  return y;
}
static double ref_norm(const double *x, int64_t n, int64_t step) { return sqrt(squares(x, n, step, 0)); }
static double ref_var_1(const double *x, int64_t n, int64_t step) {
  return squares(x, n, step, ref_mean(x, n, step)) / (double)(n - 1);
}
static double ref_var_0(const double *x, int64_t n, int64_t step) {
  return squares(x, n, step, ref_mean(x, n, step)) / (double)n;
}
static double ref_logsumexp(const double *x, int64_t n, int64_t step) {
  double y = 0;
  for (int64_t i = 0; i < n; i++) y += exp(x[i * step]);
  return log(y);
}

typedef struct reduce_case {
  const char *name;
  reduce_op op;
  reducer reference;
} reduce_case;
static const reduce_case reduce_cases[] = {{"sum", zt_sum, ref_sum},         {"mean", zt_mean, ref_mean},
                                           {"max", max_value, ref_max},      {"min", min_value, ref_min},
                                           {"var", var_1, ref_var_1},        {"var", var_0, ref_var_0},
                                           {"norm", zt_norm, ref_norm},      {"logsumexp", zt_logsumexp, ref_logsumexp},
                                           {"argmax", zt_argmax, ref_argmax}};
enum { N_REDUCE_CASES = sizeof reduce_cases / sizeof *reduce_cases };

static void check_reduced(zt_ctx *c, const reduce_case *r, zt_tensor *x, int dim, bool keepdim) {
  zt_tensor *y;
  int d = dim < 0 ? dim + x->ndim : dim, n_kept = 0;
  int64_t inner = 1, n = dim == ZT_ALL_DIMS ? zt_tensor_count(x) : x->shape[d], kept[ZT_MAX_DIM];
  for (int i = d + 1; i < x->ndim && dim != ZT_ALL_DIMS; i++) inner *= x->shape[i];
  for (int i = 0; i < x->ndim; i++)
    if (dim == ZT_ALL_DIMS || i == d) {
      if (keepdim) kept[n_kept++] = 1;
    } else
      kept[n_kept++] = x->shape[i];
  expect_ok(r->op(c, &y, x, dim, keepdim));
  host hx = read_tensor(c, x), hy = read_tensor(c, y);
  assert_true(has_shape(&hy, n_kept, kept));
  assert_int_equal(y->dtype, strcmp(r->name, "argmax") == 0 ? ZT_I64 : x->dtype);
  for (int64_t i = 0; i < hy.count; i++)
    expect_element(x->dtype, hy.v[i], r->reference(hx.v + i / inner * n * inner + i % inner, n, inner), 4 * (double)n);
  zt_tensor_release(y);
}
static void reduce_values(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  for (const reduce_case *r = reduce_cases; r < reduce_cases + N_REDUCE_CASES; r++) {
    FOR_FLOATS(t) for (leaf_kind kind = 0; kind < N_LEAF_KINDS; kind++) for (int keep = 0; keep < 2; keep++) {
      zt_tensor *x = strided_tensor(c, t, kind, -3, 3, SHAPE(4, 5, 6)),
                *row = strided_tensor(c, t, kind, -3, 3, SHAPE(9));
      for (int dim = -3; dim < 3; dim++) check_reduced(c, r, x, dim, keep);
      check_reduced(c, r, x, ZT_ALL_DIMS, keep);
      check_reduced(c, r, row, 0, keep);
      release_all((zt_tensor *[]){x, row}, 2);
    }
    covers_op(r->name);
  }
  free_context(c);
}

static void reduce_integers(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  zt_tensor *x = random_tensor(c, ZT_I64, -90, 90, SHAPE(3, 7)), *small = random_tensor(c, ZT_I32, 0, 9, SHAPE(3)), *y;
  const reduce_case *takes[] = {&reduce_cases[0], &reduce_cases[2], &reduce_cases[3], &reduce_cases[8]};
  for (int i = 0; i < 4; i++) check_reduced(c, takes[i], x, 1, false);
  expect_fails(zt_mean(c, &y, x, 0, false), ZT_DTYPE,
               "mean: the input must be a floating point tensor, it is int64 (3, 7)");
  expect_fails(zt_sum(c, &y, small, 0, false), ZT_DTYPE, "int32");
  expect_fails(zt_sum(c, &y, x, 2, false), ZT_SHAPE, "sum: dimension 2");
  expect_fails(zt_sum(c, &y, x, -3, false), ZT_SHAPE, "dimension -3");
  release_all((zt_tensor *[]){x, small}, 2);
  free_context(c);
}
static void reduce_nothing(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  zt_tensor *x = random_tensor(c, ZT_F32, 0, 1, SHAPE(2, 0)), *y;
  const double want[] = {0, NAN, 0, -INFINITY};
  const reduce_op ops[] = {zt_sum, zt_mean, zt_norm, zt_logsumexp};
  for (int i = 0; i < 4; i++) {
    expect_ok(ops[i](c, &y, x, 1, false));
    host h = read_tensor(c, y);
    assert_true(has_shape(&h, SHAPE(2)));
    for (int j = 0; j < 2; j++) assert_true(h.v[j] == want[i] || (isnan(h.v[j]) && isnan(want[i])));
    zt_tensor_release(y);
    expect_ok(ops[i](c, &y, x, 0, false)); /* over the dimension of 2: no elements */
    assert_int_equal(zt_tensor_count(y), 0);
    zt_tensor_release(y);
  }
  expect_fails(zt_max(c, &y, NULL, x, 1, false), ZT_SHAPE, "max: there is no extreme of nothing: (2, 0)");
  expect_fails(zt_argmax(c, &y, x, 1, false), ZT_SHAPE, "argmax");
  zt_tensor_release(x);
  free_context(c);
}

/* The places of extremes: the first where several are equal, and their gradient goes there. */
static void extremes_with_places(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  const double data[] = {1, 5, 5, 2, 0, 0, 3, 0};
  zt_tensor *x, *y, *index;
  for (int least = 0; least < 2; least++) {
    const double want_place[] = {least ? 0 : 1, least ? 0 : 2},
                 want_grad[2][8] = {{0, 1, 0, 0, 0, 0, 1, 0}, {1, 0, 0, 0, 1, 0, 0, 0}};
    expect_ok(zt_tensor_from(c, &x, ZT_F64, 2, (int64_t[]){2, 4}, data));
    x->requires_grad = true;
    expect_ok(least ? zt_min(c, &y, &index, x, 1, false) : zt_max(c, &y, &index, x, 1, false));
    host places = read_tensor(c, index);
    zt_tensor *ones;
    expect_ok(zt_tensor_from(c, &ones, ZT_F64, 1, (int64_t[]){2}, (double[]){1, 1}));
    expect_ok(zt_backward(c, y, ones, 1));
    host g = read_tensor(c, x->grad);
    for (int i = 0; i < 2; i++) assert_true(places.v[i] == want_place[i]);
    for (int i = 0; i < 8; i++) assert_true(g.v[i] == want_grad[least][i]);
    release_all((zt_tensor *[]){x, y, index, ones}, 4);
  }
  free_context(c);
}

typedef struct reduce_user {
  reduce_op op;
  int dim;
  bool keepdim;
} reduce_user;
static zt_status run_reduce(const void *user, zt_ctx *c, zt_tensor *const in[], zt_tensor *out[]) {
  const reduce_user *u = user;
  return u->op(c, &out[0], in[0], u->dim, u->keepdim);
}
/* Different everywhere, so that no step of the differences changes which is greatest. */
static void set_apart(zt_tensor *x) {
  int64_t n = zt_tensor_count(x), shift = (int64_t)random_below((size_t)n + 1);
  for (int64_t i = 0; i < n; i++)
    *element(x, i) += 3 * (double)((i * 7 + shift) % (n > 7 && n % 7 ? n : n + 1)) / (double)n;
}
static void reduce_gradients(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  const int over[] = {0, 1, -1, ZT_ALL_DIMS};
  for (const reduce_case *r = reduce_cases; r < reduce_cases + N_REDUCE_CASES - 1; r++)
    for (leaf_kind kind = 0; kind < N_LEAF_KINDS; kind++)
      for (int d = 0; d < 4; d++) {
        reduce_user user = {r->op, over[d], (d + (int)kind) % 2};
        bool tops = r->op == max_value || r->op == min_value;
        double low = r->op == zt_norm ? 0.3 : tops ? 0 : -1; /* near 0 a norm bends too sharply for differences */
        zt_tensor *x = leaf(c, kind, low, tops ? 0.01 : 1, SHAPE(3, 4, 2));
        if (tops) set_apart(x);
        grad_check(c, r->name, run_reduce, &user, &x, 1, 1);
        if (tops) continue;
        x = leaf(c, kind, -1, 1, SHAPE(2, 0, 3));
        if (r->reference == ref_mean || d == 1 || d == 3)
          x->requires_grad = r->reference != ref_var_0 && r->reference != ref_var_1;
        if (x->requires_grad)
          grad_check(c, r->name, run_reduce, &user, &x, 1, 1);
        else
          zt_tensor_release(x);
      }
  free_context(c);
}
/* The norm's gradient at 0 is 0; a logsumexp of nothing but -inf passes none on. */
static void gradients_at_singular_points(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  const double low[] = {-INFINITY, -INFINITY}, zeros[] = {0, 0};
  const reduce_op ops[] = {zt_norm, zt_logsumexp};
  for (int i = 0; i < 2; i++) {
    zt_tensor *x, *y;
    expect_ok(zt_tensor_from(c, &x, ZT_F64, 1, (int64_t[]){2}, i ? low : zeros));
    x->requires_grad = true;
    expect_ok(ops[i](c, &y, x, 0, false));
    expect_ok(zt_backward(c, y, NULL, 1));
    host g = read_tensor(c, x->grad);
    assert_true(g.v[0] == 0 && g.v[1] == 0);
    release_all((zt_tensor *[]){x, y}, 2);
  }
  free_context(c);
}

/* --- topk */
typedef struct topk_user {
  int64_t k;
  int dim;
  bool largest;
} topk_user;
static zt_status run_topk(const void *user, zt_ctx *c, zt_tensor *const in[], zt_tensor *out[]) {
  const topk_user *u = user;
  return zt_topk(c, &out[0], &out[1], in[0], u->k, u->dim, u->largest);
}
static void check_topk(zt_ctx *c, zt_tensor *x, const topk_user *u) {
  zt_tensor *values, *index;
  int d = u->dim < 0 ? u->dim + x->ndim : u->dim;
  int64_t n = x->shape[d], inner = 1;
  for (int i = d + 1; i < x->ndim; i++) inner *= x->shape[i];
  expect_ok(zt_topk(c, &values, &index, x, u->k, u->dim, u->largest));
  host hx = read_tensor(c, x), hv = read_tensor(c, values), hi = read_tensor(c, index);
  assert_true(hv.shape[d] == u->k && hi.shape[d] == u->k);
  for (int64_t i = 0; i < hv.count; i++) {
    int64_t o = i / (u->k * inner), rank = i / inner % u->k, j = i % inner, n_before = 0;
    const double *row = hx.v + o * n * inner + j;
    assert_true(row[(int64_t)hi.v[i] * inner] == hv.v[i]);
    for (int64_t m = 0; m < n; m++) {
      double v = row[m * inner];
      n_before += u->largest ? v > hv.v[i] : v < hv.v[i];
      n_before += v == hv.v[i] && (double)m < hi.v[i];
    }
    assert_int_equal(n_before, rank);
  }
  release_all((zt_tensor *[]){values, index}, 2);
}
static void topk(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  const topk_user users[] = {{3, -1, true}, {2, 0, false}, {5, 1, true}, {1, 1, false}, {0, 1, true}};
  for (int u = 0; u < 5; u++)
    for (leaf_kind kind = 0; kind < N_LEAF_KINDS; kind++) {
      FOR_FLOATS(t) {
        zt_tensor *x = strided_tensor(c, t, kind, -3, 3, SHAPE(4, 5, 3));
        check_topk(c, x, &users[u]);
        zt_tensor_release(x);
      }
      zt_tensor *x = leaf(c, kind, 0, 0.01, SHAPE(4, 5, 3));
      set_apart(x);
      grad_check(c, "topk", run_topk, &users[u], &x, 1, 2);
    }
  zt_tensor *x = random_tensor(c, ZT_F32, 0, 1, SHAPE(2, 3)), *y, *index;
  expect_fails(zt_topk(c, &y, &index, x, 4, 1, true), ZT_SHAPE, "topk: k is 4");
  expect_fails(zt_topk(c, &y, &index, x, 1, 2, true), ZT_SHAPE, "topk: dimension 2");
  zt_tensor_release(x);
  covers_op("topk");
  free_context(c);
}

/* --- indexing */
static int64_t flat(const host *h, const int64_t *at) {
  int64_t i = 0;
  for (int d = 0; d < h->ndim; d++) i = i * h->shape[d] + at[d];
  return i;
}
static void unflat(const host *h, int64_t i, int64_t *at) {
  for (int d = h->ndim - 1; d >= 0; d--) at[d] = i % h->shape[d], i /= h->shape[d];
}

static zt_status run_select(const void *user, zt_ctx *c, zt_tensor *const in[], zt_tensor *out[]) {
  return zt_index_select(c, &out[0], in[0], *(const int *)user, in[1]);
}
static zt_status run_embedding(const void *user, zt_ctx *c, zt_tensor *const in[], zt_tensor *out[]) {
  (void)user;
  return zt_embedding(c, &out[0], in[0], in[1]);
}
static void index_select(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  for (int dim = 0; dim < 3; dim++)
    for (leaf_kind kind = 0; kind < N_LEAF_KINDS; kind++) {
      FOR_DTYPES(t) {
        zt_tensor *x = strided_tensor(c, t, kind, 0, 50, SHAPE(3, 4, 5)),
                  *index = strided_tensor(c, ZT_I64, NARROWED, 0, 3, SHAPE(7)), *y;
        expect_ok(zt_index_select(c, &y, x, dim - 3, index));
        host hx = read_tensor(c, x), hi = read_tensor(c, index), hy = read_tensor(c, y);
        for (int64_t i = 0; i < hy.count; i++) {
          int64_t at[ZT_MAX_DIM];
          unflat(&hy, i, at);
          at[dim] = (int64_t)hi.v[at[dim]];
          assert_true(hy.v[i] == hx.v[flat(&hx, at)]);
        }
        assert_int_equal(hy.shape[dim], 7);
        release_all((zt_tensor *[]){x, index, y}, 3);
      }
      zt_tensor *in[] = {leaf(c, kind, -1, 1, SHAPE(3, 4, 5)), random_index(c, 3, SHAPE(7))};
      grad_check(c, "index_select", run_select, &dim, in, 2, 1);
      zt_tensor *none[] = {leaf(c, kind, -1, 1, SHAPE(3, 4, 5)), random_index(c, 3, SHAPE(0))};
      grad_check(c, "index_select", run_select, &dim, none, 2, 1);
    }
  covers_op("index_select");
  free_context(c);
}
static void embedding(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  for (leaf_kind kind = 0; kind < N_LEAF_KINDS; kind++) {
    zt_tensor *w = strided_tensor(c, ZT_F32, kind, -1, 1, SHAPE(11, 6)),
              *ids = strided_tensor(c, ZT_I64, kind, 0, 11, SHAPE(3, 4)), *y;
    expect_ok(zt_embedding(c, &y, w, ids));
    host hw = read_tensor(c, w), hi = read_tensor(c, ids), hy = read_tensor(c, y);
    assert_true(has_shape(&hy, SHAPE(3, 4, 6)));
    for (int64_t i = 0; i < hy.count; i++) assert_true(hy.v[i] == hw.v[(int64_t)hi.v[i / 6] * 6 + i % 6]);
    release_all((zt_tensor *[]){w, ids, y}, 3);
    zt_tensor *in[] = {leaf(c, kind, -1, 1, SHAPE(5, 6)), strided_tensor(c, ZT_I64, kind, 0, 5, SHAPE(3, 4))};
    grad_check(c, "embedding", run_embedding, NULL, in, 2, 1);
    zt_tensor *none[] = {leaf(c, kind, -1, 1, SHAPE(5, 6)), random_index(c, 5, SHAPE(0, 4))};
    grad_check(c, "embedding", run_embedding, NULL, none, 2, 1);
  }
  zt_tensor *w = random_tensor(c, ZT_F32, -1, 1, SHAPE(5, 2)), *ids = random_index(c, 5, SHAPE(2, 3)), *y;
  ((int64_t *)zt_tensor_data(ids))[4] = 5;
  expect_fails(zt_embedding(c, &y, w, ids), ZT_INVALID,
               "embedding: index 5 at position 4 of (2, 3) (from 0) is not in [0, 5)");
  expect_fails(zt_embedding(c, &y, w, w), ZT_DTYPE, "int64");
  release_all((zt_tensor *[]){w, ids}, 2);
  covers_op("embedding");
  free_context(c);
}

static zt_status run_gather(const void *user, zt_ctx *c, zt_tensor *const in[], zt_tensor *out[]) {
  return zt_gather(c, &out[0], in[0], *(const int *)user, in[1]);
}
static zt_status run_scatter(const void *user, zt_ctx *c, zt_tensor *const in[], zt_tensor *out[]) {
  return zt_scatter_add(c, &out[0], in[0], *(const int *)user, in[1], in[2]);
}
/* The index may be shorter than x in the other dimensions. */
static const int64_t index_shapes[][3] = {{3, 4, 5}, {2, 3, 4}, {3, 4, 1}, {0, 4, 2}};
static void gather(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  for (int dim = 0; dim < 3; dim++)
    for (int s = 0; s < 4; s++)
      for (leaf_kind kind = 0; kind < N_LEAF_KINDS; kind++) {
        zt_tensor *x = strided_tensor(c, ZT_F32, kind, -1, 1, SHAPE(3, 4, 5)), *y;
        zt_tensor *index = strided_tensor(c, ZT_I64, kind, 0, 3, 3, index_shapes[s]);
        expect_ok(zt_gather(c, &y, x, dim, index));
        host hx = read_tensor(c, x), hi = read_tensor(c, index), hy = read_tensor(c, y);
        assert_true(has_shape(&hy, 3, index_shapes[s]));
        for (int64_t i = 0; i < hy.count; i++) {
          int64_t at[ZT_MAX_DIM];
          unflat(&hy, i, at);
          at[dim] = (int64_t)hi.v[i];
          assert_true(hy.v[i] == hx.v[flat(&hx, at)]);
        }
        release_all((zt_tensor *[]){x, y}, 2);
        zt_tensor *in[] = {leaf(c, kind, -1, 1, SHAPE(3, 4, 5)), index};
        grad_check(c, "gather", run_gather, &dim, in, 2, 1);
      }
  covers_op("gather");
  free_context(c);
}
static void scatter_add(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  for (int dim = 0; dim < 3; dim++)
    for (int s = 0; s < 4; s++)
      for (leaf_kind kind = 0; kind < N_LEAF_KINDS; kind++) {
        zt_tensor *index = strided_tensor(c, ZT_I64, kind, 0, 3, 3, index_shapes[s]), *y;
        zt_tensor *in[] = {leaf(c, kind, -1, 1, SHAPE(3, 4, 5)), index, leaf(c, kind, -1, 1, 3, index_shapes[s])};
        expect_ok(zt_scatter_add(c, &y, in[0], dim, index, in[2]));
        host want = read_tensor(c, in[0]), hi = read_tensor(c, index), src = read_tensor(c, in[2]),
             hy = read_tensor(c, y);
        for (int64_t i = 0; i < src.count; i++) {
          int64_t at[ZT_MAX_DIM];
          unflat(&src, i, at);
          at[dim] = (int64_t)hi.v[i];
          want.v[flat(&want, at)] += src.v[i];
        }
        assert_true(has_shape(&hy, SHAPE(3, 4, 5)));
        for (int64_t i = 0; i < hy.count; i++) assert_true(hy.v[i] == want.v[i]);
        zt_tensor_release(y);
        grad_check(c, "scatter_add", run_scatter, &dim, in, 3, 1);
      }
  covers_op("scatter_add");
  free_context(c);
}
static void index_errors(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  zt_tensor *x = random_tensor(c, ZT_F32, 0, 1, SHAPE(2, 3)), *index = random_index(c, 2, SHAPE(2, 3)), *y;
  zt_tensor *flat_index = random_index(c, 2, SHAPE(3)), *large = random_index(c, 2, SHAPE(3, 3));
  expect_fails(zt_index_select(c, &y, x, 0, index), ZT_SHAPE, "index_select: the index is (2, 3)");
  expect_fails(zt_gather(c, &y, x, 0, flat_index), ZT_SHAPE, "gather");
  expect_fails(zt_gather(c, &y, x, 1, large), ZT_SHAPE, "gather");
  expect_fails(zt_scatter_add(c, &y, x, 0, index, index), ZT_SHAPE, "scatter_add");
  ((int64_t *)zt_tensor_data(index))[1] = -1;
  expect_fails(zt_gather(c, &y, x, 0, index), ZT_INVALID, "index -1 at position 1");
  expect_fails(zt_index_select(c, &y, x, 5, flat_index), ZT_SHAPE, "dimension 5");
  assert_null(y);
  release_all((zt_tensor *[]){x, index, flat_index, large}, 4);
  free_context(c);
}

/* --- shapes */
typedef struct shape_user {
  zt_status (*op)(zt_ctx *c, zt_tensor **y, zt_tensor *x);
  const char *name;
} shape_user;
static zt_status reshape_43(zt_ctx *c, zt_tensor **y, zt_tensor *x) { return zt_reshape(c, y, x, SHAPE(4, -1, 2)); }
static zt_status transpose_02(zt_ctx *c, zt_tensor **y, zt_tensor *x) { return zt_transpose(c, y, x, 0, -1); }
static zt_status permute_201(zt_ctx *c, zt_tensor **y, zt_tensor *x) { return zt_permute(c, y, x, (int[]){2, 0, -2}); }
static zt_status narrow_1(zt_ctx *c, zt_tensor **y, zt_tensor *x) { return zt_narrow(c, y, x, 1, 1, 2); }
static zt_status expand_5(zt_ctx *c, zt_tensor **y, zt_tensor *x) { return zt_expand(c, y, x, SHAPE(5, 2, 3, 4)); }
static const shape_user shape_users[] = {{reshape_43, "reshape"}, {transpose_02, "transpose"}, {permute_201, "permute"},
                                         {narrow_1, "narrow"},    {expand_5, "expand"},        {zt_copy, "copy"}};

/* Where element i of the result comes from in x (2, 3, 4), at[] its place in the result. */
static int64_t source(const char *name, const int64_t *at, int64_t i) {
  if (strcmp(name, "transpose") == 0) return at[2] * 12 + at[1] * 4 + at[0];
  if (strcmp(name, "permute") == 0) return at[1] * 12 + at[2] * 4 + at[0];
  if (strcmp(name, "narrow") == 0) return at[0] * 12 + (at[1] + 1) * 4 + at[2];
  return i % 24;
}
static zt_status run_shape(const void *user, zt_ctx *c, zt_tensor *const in[], zt_tensor *out[]) {
  return ((const shape_user *)user)->op(c, &out[0], in[0]);
}
static void shapes(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  for (size_t u = 0; u < sizeof shape_users / sizeof *shape_users; u++) {
    const shape_user *s = &shape_users[u];
    FOR_DTYPES(t) for (leaf_kind kind = 0; kind < N_LEAF_KINDS; kind++) {
      zt_tensor *x = strided_tensor(c, t, kind, 0, 90, SHAPE(2, 3, 4)), *y;
      expect_ok(s->op(c, &y, x));
      host hx = read_tensor(c, x), hy = read_tensor(c, y);
      for (int64_t i = 0; i < hy.count; i++) {
        int64_t at[ZT_MAX_DIM];
        unflat(&hy, i, at);
        assert_true(hy.v[i] == hx.v[source(s->name, at, i)]);
      }
      assert_true((y->storage == x->storage) == (s->op != zt_copy && !(s->op == reshape_43 && kind != PLAIN)));
      release_all((zt_tensor *[]){x, y}, 2);
    }
    for (leaf_kind kind = 0; kind < N_LEAF_KINDS; kind++) {
      zt_tensor *x = leaf(c, kind, -1, 1, SHAPE(2, 3, 4));
      grad_check(c, s->name, run_shape, s, &x, 1, 1);
    }
    covers_op(s->name);
  }
  free_context(c);
}

static void reshape_shapes(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  zt_tensor *x = random_tensor(c, ZT_F32, 0, 1, SHAPE(2, 3, 4)), *empty = random_tensor(c, ZT_F32, 0, 1, SHAPE(0, 3)),
            *y;
  expect_ok(zt_reshape(c, &y, x, SHAPE(1, 6, 1, -1)));
  assert_true(y->shape[3] == 4);
  zt_tensor_release(y);
  expect_ok(zt_reshape(c, &y, empty, SHAPE(5, 0)));
  assert_int_equal(zt_tensor_count(y), 0);
  zt_tensor_release(y);
  expect_fails(zt_reshape(c, &y, x, SHAPE(5, -1)), ZT_SHAPE, "reshape: (2, 3, 4) has 24 elements");
  expect_fails(zt_reshape(c, &y, x, SHAPE(-1, -1)), ZT_SHAPE, "reshape");
  expect_fails(zt_reshape(c, &y, x, SHAPE(23)), ZT_SHAPE, "(23)");
  expect_fails(zt_reshape(c, &y, x, SHAPE((int64_t)1 << 40, (int64_t)1 << 40)), ZT_SHAPE, "reshape");
  expect_fails(zt_permute(c, &y, x, (int[]){0, 0, 1}), ZT_SHAPE, "permute");
  expect_fails(zt_narrow(c, &y, x, 1, 2, 2), ZT_SHAPE, "narrow");
  expect_fails(zt_narrow(c, &y, x, 1, -1, 2), ZT_SHAPE, "narrow");
  expect_fails(zt_narrow(c, &y, x, 1, INT64_MAX, 1), ZT_SHAPE, "narrow");
  expect_fails(zt_expand(c, &y, x, SHAPE(2, 5, 4)), ZT_SHAPE, "expand");
  release_all((zt_tensor *[]){x, empty}, 2);
  free_context(c);
}

/* Every view that strides can say is one: reshapes of transposed and cut tensors against a copy. */
static void reshape_of_views(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  for (int round = 0; round < 400; round++) {
    int64_t a = (int64_t)random_below(3) + 1, b = (int64_t)random_below(3) + 1, d = (int64_t)random_below(4) + 1,
            e = (int64_t)random_below(3) + 1;
    zt_tensor *x = strided_tensor(c, ZT_F32, (leaf_kind)random_below(3), 0, 1, SHAPE(a, b, d, e)), *y;
    const int64_t to[][4] = {
        {a * b, d, e, 1}, {a, b * d, 1, e}, {1, a * b * d * e, 1, 1}, {e, d, b, a}, {a, b, d * e, 1}};
    expect_ok(zt_reshape(c, &y, x, 4, to[random_below(5)]));
    host hx = read_tensor(c, x), hy = read_tensor(c, y);
    for (int64_t i = 0; i < hx.count; i++) assert_true(hx.v[i] == hy.v[i]);
    release_all((zt_tensor *[]){x, y}, 2);
  }
  free_context(c);
}

static void casts(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  FOR_DTYPES(from) FOR_DTYPES(to) for (leaf_kind kind = 0; kind < N_LEAF_KINDS; kind++) {
    zt_tensor *x = strided_tensor(c, from, kind, 0, 90, SHAPE(3, 5)), *y;
    expect_ok(zt_cast(c, &y, x, to));
    host hx = read_tensor(c, x), hy = read_tensor(c, y);
    assert_true(y->dtype == to && (from != to || y == x));
    for (int64_t i = 0; i < 15; i++) assert_true(hy.v[i] == rounded(to, hx.v[i]));
    release_all((zt_tensor *[]){x, y}, 2);
  }
  covers_op("cast");
  free_context(c);
}
/* In float32 differences say nothing: the gradient is the upstream one, in the input's dtype. */
static void cast_gradients(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  FOR_FLOATS(from) FOR_FLOATS(to) {
    zt_tensor *x = random_tensor(c, from, -1, 1, SHAPE(3, 5)), *g = random_tensor(c, to, -1, 1, SHAPE(3, 5)), *y;
    x->requires_grad = true;
    if (from != to) {
      expect_ok(zt_cast(c, &y, x, to));
      expect_ok(zt_backward(c, y, g, 1));
      host hg = read_tensor(c, g), hx = read_tensor(c, x->grad);
      assert_int_equal(x->grad->dtype, from);
      for (int i = 0; i < 15; i++) assert_true(hx.v[i] == rounded(from, hg.v[i]));
      zt_tensor_release(y);
    }
    release_all((zt_tensor *[]){x, g}, 2);
  }
  zt_tensor *x = leaf(c, PLAIN, 0, 9, SHAPE(2)), *y;
  expect_ok(zt_cast(c, &y, x, ZT_I64)); /* no gradient flows through integers */
  assert_null(y->node);
  release_all((zt_tensor *[]){x, y}, 2);
  covers_grad("cast");
  free_context(c);
}

/* --- cat, stack, split */
typedef struct cat_user {
  int n, dim;
} cat_user;
static zt_status run_cat(const void *user, zt_ctx *c, zt_tensor *const in[], zt_tensor *out[]) {
  const cat_user *u = user;
  return zt_cat(c, &out[0], in, u->n, u->dim);
}
static zt_status run_stack(const void *user, zt_ctx *c, zt_tensor *const in[], zt_tensor *out[]) {
  const cat_user *u = user;
  return zt_stack(c, &out[0], in, u->n, u->dim);
}
static zt_status run_split(const void *user, zt_ctx *c, zt_tensor *const in[], zt_tensor *out[]) {
  return zt_split(c, out, in[0], (int64_t[]){2, 0, 1, 3}, 4, *(const int *)user);
}

static void cat_values(zt_ctx *c, int n, int dim) {
  zt_tensor *x[64] = {NULL}, *y;
  host whole;
  int64_t sum = 0, start = 0;
  for (int i = 0; i < n; i++) {
    int64_t shape[3] = {2, 3, 2};
    shape[dim] = (int64_t)random_below(3);
    sum += shape[dim];
    x[i] = strided_tensor(c, ZT_F32, (leaf_kind)(i % 3), 0, 1, 3, shape);
  }
  expect_ok(zt_cat(c, &y, x, n, dim - 3));
  whole = read_tensor(c, y);
  assert_true(whole.shape[dim] == sum);
  for (int i = 0; i < n; i++) {
    host part = read_tensor(c, x[i]);
    for (int64_t j = 0; j < part.count; j++) {
      int64_t at[ZT_MAX_DIM];
      unflat(&part, j, at);
      at[dim] += start;
      assert_true(whole.v[flat(&whole, at)] == part.v[j]);
    }
    start += part.shape[dim];
  }
  release_all(x, n);
  zt_tensor_release(y);
}
static void cat(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  for (int dim = 0; dim < 3; dim++) {
    const int numbers[] = {1, 2, 8, 9, 64};
    for (int i = 0; i < 5; i++) cat_values(c, numbers[i], dim);
    for (int n = 1; n <= 11; n += 5) {
      zt_tensor *in[16];
      for (int i = 0; i < n; i++) {
        int64_t shape[3] = {2, 3, 2};
        shape[dim] = i % 4;
        in[i] = leaf(c, (leaf_kind)(i % 3), -1, 1, 3, shape);
      }
      grad_check(c, "cat", run_cat, &(cat_user){n, dim}, in, n, 1);
    }
  }
  zt_tensor *bad[] = {random_tensor(c, ZT_F32, 0, 1, SHAPE(2, 3)), random_tensor(c, ZT_F32, 0, 1, SHAPE(2, 4)),
                      random_tensor(c, ZT_F64, 0, 1, SHAPE(2, 3))},
            *y;
  expect_fails(zt_cat(c, &y, bad, 2, 0), ZT_SHAPE, "cat");
  expect_fails(zt_cat(c, &y, bad + 1, 2, 1), ZT_SHAPE, "cat");
  expect_fails(zt_cat(c, &y, bad, 0, 0), ZT_INVALID, "no tensors");
  expect_fails(zt_cat(c, &y, bad, 2, 2), ZT_SHAPE, "dimension 2");
  release_all(bad, 3);
  covers_op("cat");
  free_context(c);
}
static void stack_and_split(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  for (int dim = 0; dim < 3; dim++) {
    zt_tensor *in[10], *y, *back, *parts[4];
    for (int i = 0; i < 10; i++) in[i] = leaf(c, (leaf_kind)(i % 3), -1, 1, SHAPE(2, 3));
    expect_ok(zt_stack(c, &y, in, 10, dim));
    assert_true(y->ndim == 3 && y->shape[dim] == 10);
    expect_ok(zt_narrow(c, &back, y, dim, 7, 1));
    host h = read_tensor(c, back), want = read_tensor(c, in[7]);
    for (int i = 0; i < 6; i++) assert_true(h.v[i] == want.v[i]);
    release_all((zt_tensor *[]){y, back}, 2);
    grad_check(c, "cat", run_stack, &(cat_user){10, dim}, in, 10, 1);
    int64_t shape[3] = {2, 3, 2};
    shape[dim] = 6;
    zt_tensor *x = leaf(c, (leaf_kind)dim, -1, 1, 3, shape);
    const int64_t sizes[4] = {2, 0, 1, 3};
    expect_ok(zt_split(c, parts, x, sizes, 4, dim));
    for (int i = 0; i < 4; i++) assert_true(parts[i]->storage == x->storage && parts[i]->shape[dim] == sizes[i]);
    release_all(parts, 4);
    expect_fails(zt_split(c, parts, x, (int64_t[]){2, 3}, 2, dim), ZT_SHAPE, "split");
    grad_check(c, "narrow", run_split, &dim, &x, 1, 4);
  }
  free_context(c);
}

/* --- an op leaves nothing behind when memory ends, wherever that is */
static zt_status some_of_everything(zt_ctx *c, zt_tensor *x, zt_tensor *index) {
  zt_tensor *t[12] = {NULL};
  zt_status st;
  ZT_TRY_GOTO(zt_gelu(c, &t[0], x), done);
  ZT_TRY_GOTO(zt_transpose(c, &t[1], t[0], 0, 1), done);
  ZT_TRY_GOTO(zt_pow(c, &t[2], t[1], x), done);
  ZT_TRY_GOTO(zt_var(c, &t[3], t[2], 0, true, 1), done);
  ZT_TRY_GOTO(zt_div(c, &t[4], t[2], t[3]), done);
  ZT_TRY_GOTO(zt_index_select(c, &t[5], t[4], 1, index), done);
  ZT_TRY_GOTO(zt_stack(c, &t[6], (zt_tensor *[]){t[5], t[5]}, 2, 1), done);
  ZT_TRY_GOTO(zt_topk(c, &t[7], &t[8], t[6], 2, 0, true), done);
  ZT_TRY_GOTO(zt_logsumexp(c, &t[9], t[7], 1, false), done);
  ZT_TRY_GOTO(zt_norm(c, &t[10], t[9], ZT_ALL_DIMS, false), done);
  st = zt_backward(c, t[10], NULL, 1);
done:
  release_all(t, 12);
  return st;
}
static void memory_that_ends(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  zt_tensor *x = leaf(c, PLAIN, 0.5, 1, SHAPE(3, 3)), *index = random_index(c, 3, SHAPE(4));
  uint64_t live = zt_mem_get_stats().n_live_blocks;
  size_t used = zt_pool_get_stats(zt_ctx_pool(c)).used_nbytes;
  zt_status st = ZT_NOMEM;
  for (uint64_t nth = 1; st != ZT_OK && nth < 2000; nth++) {
    zt_mem_fail_at(nth, false);
    st = some_of_everything(c, x, index);
    zt_mem_fail_at(0, false);
    release_all(&x->grad, 1);
    zt_pool_flush(zt_ctx_pool(c));
    if (st != ZT_OK) assert_int_equal(st, ZT_NOMEM);
    assert_int_equal(zt_tape_length(c), 0);
    assert_int_equal(zt_pool_get_stats(zt_ctx_pool(c)).used_nbytes, used);
  }
  assert_int_equal(st, ZT_OK);
  assert_in_range(zt_mem_get_stats().n_live_blocks, 0, live + 64); /* the pool may keep its own bookkeeping */
  release_all((zt_tensor *[]){x, index}, 2);
  free_context(c);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(unary_values),
                                     cmocka_unit_test(unary_gradients),
                                     cmocka_unit_test(corners),
                                     cmocka_unit_test(powers),
                                     cmocka_unit_test(affine_of_integers),
                                     cmocka_unit_test(binary_values),
                                     cmocka_unit_test(floats_of_two_dtypes_meet_in_float32),
                                     cmocka_unit_test(binary_gradients),
                                     cmocka_unit_test(an_operand_with_itself),
                                     cmocka_unit_test(binary_errors),
                                     cmocka_unit_test(power_of_zero),
                                     cmocka_unit_test(compare_values),
                                     cmocka_unit_test(where_values),
                                     cmocka_unit_test(masked_fill_values),
                                     cmocka_unit_test(choosing_gradients),
                                     cmocka_unit_test(reduce_values),
                                     cmocka_unit_test(reduce_integers),
                                     cmocka_unit_test(reduce_nothing),
                                     cmocka_unit_test(extremes_with_places),
                                     cmocka_unit_test(reduce_gradients),
                                     cmocka_unit_test(gradients_at_singular_points),
                                     cmocka_unit_test(topk),
                                     cmocka_unit_test(index_select),
                                     cmocka_unit_test(embedding),
                                     cmocka_unit_test(gather),
                                     cmocka_unit_test(scatter_add),
                                     cmocka_unit_test(index_errors),
                                     cmocka_unit_test(shapes),
                                     cmocka_unit_test(reshape_shapes),
                                     cmocka_unit_test(reshape_of_views),
                                     cmocka_unit_test(casts),
                                     cmocka_unit_test(cast_gradients),
                                     cmocka_unit_test(cat),
                                     cmocka_unit_test(stack_and_split),
                                     cmocka_unit_test(memory_that_ends)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
