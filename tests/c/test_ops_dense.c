/* test_ops_dense.c - matmul, linear, norms, softmax, losses, conv1d: gradients against differences in float64, values
** against plain loops in double, and what they say when arguments are wrong. */
#include "tests/c/grad_check.h"

static int64_t count_of(int ndim, const int64_t *shape) {
  int64_t n = 1;
  for (int i = 0; i < ndim; i++) n *= shape[i];
  return n;
}

/* Element i (in row-major order) of a tensor of any strides and dtype. */
static double value_at(const zt_tensor *t, int64_t i) {
  zt_tensor one = *t;
  for (int d = t->ndim - 1; d >= 0; d--) one.offset += i % t->shape[d] * t->stride[d], i /= t->shape[d];
  return get(t->dtype, zt_tensor_data(&one), 0);
}
static void expect_element(const zt_tensor *t, int64_t i, double want, double scale) {
  double got = value_at(t, i);
  if (!is_close(t->dtype, got, want, scale))
    fail_msg("%s %s [%lld]: got %.17g, want %.17g", zt_dtype_name(t->dtype), zt_shape_text(t), (long long)i, got, want);
}
static void expect_shape(const zt_tensor *t, int ndim, const int64_t *shape) {
  assert_int_equal(t->ndim, ndim);
  for (int i = 0; i < ndim; i++) assert_int_equal(t->shape[i], shape[i]);
}
static void expect_fails(zt_status got, zt_status want, const char *text) {
  assert_int_equal(got, want);
  if (!strstr(zt_message(), text)) fail_msg("'%s' does not say '%s'", zt_message(), text);
}
static double narrow_scale(zt_dtype t, double size) { return t == ZT_BF16 || t == ZT_F16 ? 1e-3 * size : size; }

/* --- matmul */

static zt_status run_matmul(const void *user, zt_ctx *c, zt_tensor *const in[], zt_tensor *out[]) {
  (void)user;
  return zt_matmul(c, &out[0], in[0], in[1]);
}

typedef struct matmul_case {
  int dim_a, dim_b, dim_y;
  int64_t a[4], b[4], y[4];
} matmul_case;
static const matmul_case matmul_cases[] = {
    {2, 2, 2, {3, 4}, {4, 5}, {3, 5}},
    {1, 1, 0, {7}, {7}, {0}},
    {1, 2, 1, {4}, {4, 5}, {5}},
    {2, 1, 1, {3, 4}, {4}, {3}},
    {3, 1, 2, {2, 3, 4}, {4}, {2, 3}},
    {1, 3, 2, {4}, {2, 4, 3}, {2, 3}},
    {3, 2, 3, {2, 3, 4}, {4, 5}, {2, 3, 5}},
    {2, 3, 3, {3, 4}, {2, 4, 5}, {2, 3, 5}},
    {3, 3, 3, {6, 3, 4}, {6, 4, 2}, {6, 3, 2}},
    {4, 4, 4, {2, 1, 3, 4}, {1, 3, 4, 2}, {2, 3, 3, 2}},
    {4, 3, 4, {2, 3, 2, 4}, {3, 4, 3}, {2, 3, 2, 3}},
    {2, 2, 2, {1, 1}, {1, 1}, {1, 1}},
    {2, 2, 2, {1, 6}, {6, 1}, {1, 1}},
    {2, 2, 2, {3, 0}, {0, 2}, {3, 2}},
    {3, 3, 3, {0, 3, 4}, {0, 4, 2}, {0, 3, 2}},
    {2, 2, 2, {0, 4}, {4, 2}, {0, 2}},
};
#define FOR_MATMULS(m) \
  for (const matmul_case *m = matmul_cases, *end = m + sizeof matmul_cases / sizeof *m; m < end; m++)

static void test_matmul_gradient(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  FOR_MATMULS(m) {
    for (leaf_kind kind = PLAIN; kind < N_LEAF_KINDS; kind++) {
      zt_tensor *in[2] = {leaf(c, kind, -1, 1, m->dim_a, m->a),
                          leaf(c, (leaf_kind)((kind + 1) % N_LEAF_KINDS), -1, 1, m->dim_b, m->b)};
      grad_check(c, "matmul", run_matmul, NULL, in, 2, 1);
    }
  }
  free_context(c);
}

/* One element of the product of the last two dimensions; a, b have at least two, batch index 'at' counts in y. */
static void expect_product(const zt_tensor *y, const zt_tensor *a, const zt_tensor *b, int64_t i) {
  int64_t m = a->shape[a->ndim - 2], k = a->shape[a->ndim - 1], n = b->shape[b->ndim - 1], batch = i / (m * n);
  int64_t na = zt_tensor_count(a) / (m * k), nb = zt_tensor_count(b) / (k * n), row = i / n % m, col = i % n;
  double sum = 0, size = 0;
  for (int64_t p = 0; p < k; p++) { /* one of the batches may be 1 */
    double v = value_at(a, (batch % na * m + row) * k + p) * value_at(b, (batch % nb * k + p) * n + col);
    sum += v, size += fabs(v);
  }
  expect_element(y, i, sum, narrow_scale(y->dtype, size));
}

static void test_matmul_values(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  FOR_FLOATS(t) {
    for (int form = 0; form < 27; form++) {
      int64_t batch_a[] = {1, 4, 4}, batch_b[] = {4, 1, 4};
      int pick = form / 9;
      zt_tensor *a = strided_tensor(c, t, (leaf_kind)(form % 3), -1, 1, SHAPE(batch_a[pick], 5, 7));
      zt_tensor *b = strided_tensor(c, t, (leaf_kind)(form / 3 % 3), -1, 1, SHAPE(batch_b[pick], 7, 3)), *y;
      expect_ok(zt_matmul(c, &y, a, b));
      expect_shape(y, SHAPE(4, 5, 3));
      for (int64_t i = 0; i < zt_tensor_count(y); i++) expect_product(y, a, b, i);
      release_all((zt_tensor *[]){a, b, y}, 3);
    }
  }
  FOR_MATMULS(m) {
    zt_tensor *a = random_tensor(c, ZT_F32, -1, 1, m->dim_a, m->a),
              *b = random_tensor(c, ZT_F32, -1, 1, m->dim_b, m->b), *y;
    expect_ok(zt_matmul(c, &y, a, b));
    expect_shape(y, m->dim_y, m->y);
    release_all((zt_tensor *[]){a, b, y}, 3);
  }
  covers_op("matmul");
  free_context(c);
}

/* A transposed view is multiplied as it lies: no bytes are taken but the product's. */
static void test_matmul_copies_nothing(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  zt_tensor *a = strided_tensor(c, ZT_F32, TRANSPOSED, -1, 1, SHAPE(300, 200)), *y;
  zt_tensor *b = strided_tensor(c, ZT_F32, TRANSPOSED, -1, 1, SHAPE(200, 4));
  size_t before = zt_pool_get_stats(zt_ctx_pool(c)).used_nbytes;
  zt_pool_reset_peak(zt_ctx_pool(c));
  expect_ok(zt_matmul(c, &y, a, b));
  assert_true(zt_pool_get_stats(zt_ctx_pool(c)).peak_nbytes - before < 2 * zt_tensor_nbytes(y));
  release_all((zt_tensor *[]){a, b, y}, 3);
  free_context(c);
}

static void test_matmul_refuses(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  zt_tensor *a = random_tensor(c, ZT_F32, -1, 1, SHAPE(2, 3, 4)), *b = random_tensor(c, ZT_F32, -1, 1, SHAPE(3, 5)), *y;
  zt_tensor *d = random_tensor(c, ZT_F64, -1, 1, SHAPE(4, 5)), *e = random_tensor(c, ZT_F32, -1, 1, SHAPE(5, 4, 2));
  expect_fails(zt_matmul(c, &y, a, b), ZT_SHAPE, "matmul: (2, 3, 4) x (3, 5)");
  assert_null(y);
  expect_fails(zt_matmul(c, &y, a, d), ZT_DTYPE, "float32");
  expect_fails(zt_matmul(c, &y, a, e), ZT_SHAPE, "(2, 3, 4) x (5, 4, 2)");
  release_all((zt_tensor *[]){a, b, d, e}, 4);
  free_context(c);
}

/* --- linear */

typedef struct linear_options {
  zt_act act;
  bool in_out;
} linear_options;
static zt_status run_linear(const void *user, zt_ctx *c, zt_tensor *const in[], zt_tensor *out[]) {
  const linear_options *o = user;
  return zt_linear(c, &out[0], in[0], in[1], in[2], o->act, o->in_out);
}

/* Moves leaf 'x' away from relu's corner: linear of positive inputs and weights, less a bias, stays off 0 by luck alone,
** so weights are drawn on a grid of odd multiples. */
static zt_tensor *grid_leaf(zt_ctx *c, leaf_kind kind, double unit, int ndim, const int64_t *shape) {
  zt_tensor *x = leaf(c, kind, -1, 1, ndim, shape);
  for (int64_t i = 0; i < zt_tensor_count(x); i++) *element(x, i) = unit * (double)((int64_t)random_below(8) - 4);
  return x;
}

static void linear_case(zt_ctx *c, linear_options o, leaf_kind kind, int ndim, const int64_t *shape, int64_t out,
                        bool biased) {
  int64_t in = shape[ndim - 1], w_shape[2] = {o.in_out ? in : out, o.in_out ? out : in};
  zt_tensor *list[3] = {grid_leaf(c, kind, 0.25, ndim, shape), grid_leaf(c, kind, 0.25, 2, w_shape), NULL};
  if (biased) list[2] = grid_leaf(c, PLAIN, 0.5, 1, &out);
  for (int64_t i = 0; biased && i < out; i++)
    *element(list[2], i) += 1.0 / 32; /* sums are multiples of 1/16 before it */
  grad_check(c, "linear", run_linear, &o, list, 3, 1);
}

static void test_linear_gradient(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  for (zt_act act = ZT_ACT_NONE; act <= ZT_ACT_TANH; act++) {
    for (int form = 0; form < 6; form++) {
      linear_options o = {act, form & 1};
      bool biased = act == ZT_ACT_RELU || form % 3 != 0;
      linear_case(c, o, (leaf_kind)(form % 3), SHAPE(2, 3, 5), 4, biased);
      linear_case(c, o, (leaf_kind)(form % 3), SHAPE(6), 3, biased);
      linear_case(c, o, PLAIN, SHAPE(0, 5), 4, biased);
      linear_case(c, o, PLAIN, SHAPE(3, 0), 4, biased);
    }
  }
  free_context(c);
}

static double activation(zt_act act, double x) {
  switch (act) {
    case ZT_ACT_RELU:
      return x > 0 ? x : 0;
    case ZT_ACT_GELU:
      return 0.5 * x * (1 + erf(x / sqrt(2)));
    case ZT_ACT_GELU_TANH:
      return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case ZT_ACT_SILU:
      return x / (1 + exp(-x));
    case ZT_ACT_TANH:
      return tanh(x);
    default:
      return x;
  }
}

static void linear_values(zt_ctx *c, zt_dtype t, linear_options o, bool biased, bool wants_grad) {
  enum { ROWS = 6, IN = 7, OUT = 5 };
  int64_t w_shape[2] = {o.in_out ? IN : OUT, o.in_out ? OUT : IN};
  zt_tensor *x = random_tensor(c, t, -1, 1, SHAPE(2, 3, IN)), *w = strided_tensor(c, t, TRANSPOSED, -1, 1, 2, w_shape),
            *y;
  zt_tensor *b = biased ? random_tensor(c, t, -1, 1, SHAPE(OUT)) : NULL;
  x->requires_grad = wants_grad;
  expect_ok(zt_linear(c, &y, x, w, b, o.act, o.in_out));
  expect_shape(y, SHAPE(2, 3, OUT));
  for (int64_t i = 0; i < ROWS * OUT; i++) {
    double sum = b ? value_at(b, i % OUT) : 0;
    for (int64_t p = 0; p < IN; p++)
      sum += value_at(x, i / OUT * IN + p) * value_at(w, o.in_out ? p * OUT + i % OUT : i % OUT * IN + p);
    expect_element(y, i, activation(o.act, sum), 4); /* 16-bit: the product is rounded before bias and activation */
  }
  release_all((zt_tensor *[]){x, w, b, y}, 4);
}

static void test_linear_values(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  FOR_FLOATS(t) {
    for (zt_act act = ZT_ACT_NONE; act <= ZT_ACT_TANH; act++) {
      for (int form = 0; form < 8; form++) linear_values(c, t, (linear_options){act, form & 1}, form & 2, form & 4);
    }
  }
  covers_op("linear");
  free_context(c);
}

/* What is kept for backward: the input of the activation, only where there is one and a gradient is wanted. */
static void test_linear_keeps_little(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  zt_tensor *x = random_tensor(c, ZT_F32, -1, 1, SHAPE(64, 64)), *w = random_tensor(c, ZT_F32, -1, 1, SHAPE(256, 64)),
            *y;
  size_t before = zt_pool_get_stats(zt_ctx_pool(c)).used_nbytes, each = 64 * 256 * sizeof(float);
  for (int form = 0; form < 4; form++) {
    w->requires_grad = form & 1;
    expect_ok(zt_linear(c, &y, x, w, NULL, form & 2 ? ZT_ACT_GELU : ZT_ACT_NONE, false));
    assert_int_equal(zt_pool_get_stats(zt_ctx_pool(c)).used_nbytes - before, form == 3 ? 2 * each : each);
    zt_tensor_release(y);
  }
  release_all((zt_tensor *[]){x, w}, 2);
  free_context(c);
}

static void test_linear_refuses(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  zt_tensor *x = random_tensor(c, ZT_F32, -1, 1, SHAPE(2, 4)), *w = random_tensor(c, ZT_F32, -1, 1, SHAPE(3, 5)), *y;
  zt_tensor *v = random_tensor(c, ZT_F32, -1, 1, SHAPE(3, 4));
  expect_fails(zt_linear(c, &y, x, w, NULL, ZT_ACT_NONE, false), ZT_SHAPE, "linear: input (2, 4), weight (3, 5)");
  expect_fails(zt_linear(c, &y, x, v, x, ZT_ACT_NONE, false), ZT_SHAPE, "bias (2, 4)");
  release_all((zt_tensor *[]){x, w, v}, 3);
  free_context(c);
}

/* --- layer norm */

static zt_status run_layer_norm(const void *user, zt_ctx *c, zt_tensor *const in[], zt_tensor *out[]) {
  (void)user;
  return zt_layer_norm(c, &out[0], in[0], in[1], in[2], 1e-5);
}
static zt_status run_residual_norm(const void *user, zt_ctx *c, zt_tensor *const in[], zt_tensor *out[]) {
  (void)user;
  return zt_residual_layer_norm(c, &out[0], &out[1], in[0], in[1], in[2], in[3], 1e-5);
}
/* One output alone: the other gets no gradient. */
static zt_status run_residual_part(const void *user, zt_ctx *c, zt_tensor *const in[], zt_tensor *out[]) {
  zt_tensor *both[2];
  int which = *(const int *)user;
  ZT_TRY(zt_residual_layer_norm(c, &both[0], &both[1], in[0], in[1], in[2], in[3], 1e-5));
  out[0] = both[which];
  zt_tensor_release(both[1 - which]);
  return ZT_OK;
}

static void norm_gradients(zt_ctx *c, leaf_kind kind, int ndim, const int64_t *shape, bool w, bool b) {
  int64_t cols = shape[ndim - 1];
  zt_tensor *in[3] = {leaf(c, kind, -2, 2, ndim, shape), w ? leaf(c, PLAIN, 0.5, 2, 1, &cols) : NULL,
                      b ? leaf(c, PLAIN, -1, 1, 1, &cols) : NULL};
  grad_check(c, "layer_norm", run_layer_norm, NULL, in, 3, 1);
  for (int part = 0; part < 3; part++) {
    zt_tensor *both[4] = {leaf(c, kind, -2, 2, ndim, shape), leaf(c, kind, -2, 2, ndim, shape),
                          w ? leaf(c, PLAIN, 0.5, 2, 1, &cols) : NULL, b ? leaf(c, PLAIN, -1, 1, 1, &cols) : NULL};
    if (part == 1) { /* the sum alone does not reach w and b */
      for (int i = 2; i < 4; i++)
        if (both[i]) both[i]->requires_grad = false;
    }
    grad_check(c, "residual_layer_norm", part == 2 ? run_residual_norm : run_residual_part, &part, both, 4,
               part == 2 ? 2 : 1);
  }
}

static void test_norm_gradient(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  for (leaf_kind kind = PLAIN; kind < N_LEAF_KINDS; kind++) {
    norm_gradients(c, kind, SHAPE(2, 3, 7), true, true);
    norm_gradients(c, kind, SHAPE(4, 5), true, false);
    norm_gradients(c, kind, SHAPE(4, 5), false, true);
    norm_gradients(c, kind, SHAPE(9), false, false);
  }
  norm_gradients(c, PLAIN, SHAPE(0, 5), true, true);
  norm_gradients(c, PLAIN, SHAPE(3, 0), true, true);
  free_context(c);
}

static void test_norm_values(void **state) {
  (void)state;
  enum { ROWS = 6, COLS = 9 };
  zt_ctx *c = new_context();
  FOR_FLOATS(t) {
    zt_tensor *x = strided_tensor(c, t, TRANSPOSED, -1, 3, SHAPE(2, 3, COLS)),
              *r = random_tensor(c, t, -1, 3, SHAPE(2, 3, COLS));
    zt_tensor *w = random_tensor(c, t, -1, 1, SHAPE(COLS)), *b = random_tensor(c, t, -1, 1, SHAPE(COLS)), *y, *sum, *z;
    expect_ok(zt_residual_layer_norm(c, &y, &sum, x, r, w, b, 1e-5));
    expect_ok(zt_layer_norm(c, &z, sum, w, b, 1e-5));
    for (int64_t row = 0; row < ROWS; row++) {
      double mean = 0, var = 0;
      for (int64_t i = row * COLS; i < (row + 1) * COLS; i++) mean += value_at(sum, i) / COLS;
      for (int64_t i = row * COLS; i < (row + 1) * COLS; i++) var += pow(value_at(sum, i) - mean, 2) / COLS;
      for (int64_t i = row * COLS; i < (row + 1) * COLS; i++) {
        double want = (value_at(sum, i) - mean) / sqrt(var + 1e-5) * value_at(w, i % COLS) + value_at(b, i % COLS);
        expect_element(sum, i, value_at(x, i) + value_at(r, i), 0);
        expect_element(y, i, want, narrow_scale(t, 8));
        expect_element(z, i, want, narrow_scale(t, 8));
      }
    }
    release_all((zt_tensor *[]){x, r, w, b, y, sum, z}, 7);
  }
  covers_op("layer_norm"), covers_op("residual_layer_norm");
  free_context(c);
}

static void test_norm_refuses(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  zt_tensor *x = random_tensor(c, ZT_F32, -1, 1, SHAPE(2, 4)), *w = random_tensor(c, ZT_F32, -1, 1, SHAPE(3)), *y, *s;
  expect_fails(zt_layer_norm(c, &y, x, w, NULL, 1e-5), ZT_SHAPE, "(3)");
  expect_fails(zt_residual_layer_norm(c, &y, &s, x, w, NULL, NULL, 1e-5), ZT_SHAPE, "residual float32 (3)");
  release_all((zt_tensor *[]){x, w}, 2);
  free_context(c);
}

/* --- softmax */

typedef struct softmax_options {
  int dim;
  bool log;
} softmax_options;
static zt_status run_softmax(const void *user, zt_ctx *c, zt_tensor *const in[], zt_tensor *out[]) {
  const softmax_options *o = user;
  return o->log ? zt_log_softmax(c, &out[0], in[0], in[1], o->dim) : zt_softmax(c, &out[0], in[0], in[1], o->dim);
}
/* With a mask, log softmax has outputs of -inf, which a sum of outputs cannot take: they are replaced. */
static zt_status run_masked_log(const void *user, zt_ctx *c, zt_tensor *const in[], zt_tensor *out[]) {
  zt_tensor *y, *low, *none;
  ZT_TRY(run_softmax(user, c, in, &y));
  ZT_TRY(zt_scalar(c, &low, y->dtype, -INFINITY));
  ZT_TRY(zt_compare_op(c, &none, y, low, ZT_COMPARE_EQ));
  ZT_TRY(zt_masked_fill(c, &out[0], y, none, 0));
  release_all((zt_tensor *[]){y, low, none}, 3);
  return ZT_OK;
}

static void test_softmax_gradient(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  for (int form = 0; form < 36; form++) {
    softmax_options o = {form % 3 - (form & 1 ? 3 : 0), form / 3 % 2};
    int masked = form / 6 % 3; /* none; broadcast; whole */
    const char *name = o.log ? "log_softmax" : "softmax";
    zt_tensor *in[2] = {leaf(c, (leaf_kind)(form % N_LEAF_KINDS), -2, 2, SHAPE(3, 4, 5)), NULL};
    if (masked == 1) in[1] = random_tensor(c, ZT_U8, 0, 2, SHAPE(4, 1));
    if (masked == 2) in[1] = random_tensor(c, ZT_U8, 0, 2, SHAPE(3, 4, 5));
    grad_check(c, name, masked && o.log ? run_masked_log : run_softmax, &o, in, 2, 1);
  }
  for (int form = 0; form < 4; form++) {
    softmax_options o = {form & 1, form & 2};
    zt_tensor *in[2] = {leaf(c, PLAIN, -2, 2, SHAPE(3, 0)), NULL};
    grad_check(c, o.log ? "log_softmax" : "softmax", run_softmax, &o, in, 2, 1);
  }
  free_context(c);
}

/* Values along 'dim' of (2, 3, 4), the mask (3, 1) broadcast; row 1 of the mask is out. */
static void softmax_values(zt_ctx *c, zt_dtype t, int dim, bool masked) {
  zt_tensor *x = strided_tensor(c, t, TRANSPOSED, -4, 4, SHAPE(2, 3, 4)), *y, *logs;
  zt_tensor *mask = random_tensor(c, ZT_U8, 1, 2, SHAPE(3, 1));
  put(ZT_U8, zt_tensor_data(mask), 1, 0);
  expect_ok(zt_softmax(c, &y, x, masked ? mask : NULL, dim));
  expect_ok(zt_log_softmax(c, &logs, x, masked ? mask : NULL, dim));
  int64_t inner[] = {12, 4, 1}, size = x->shape[dim], step = inner[dim];
  for (int64_t i = 0; i < 24; i++) {
    int64_t first = i - i / step % size * step;
    double sum = 0;
    for (int64_t j = first; j < first + size * step; j += step)
      sum += masked && j / 4 % 3 == 1 ? 0 : exp(value_at(x, j));
    bool out = masked && i / 4 % 3 == 1;
    expect_element(y, i, out ? 0 : exp(value_at(x, i)) / sum, narrow_scale(t, 8));
    expect_element(logs, i, out ? -INFINITY : value_at(x, i) - log(sum), narrow_scale(t, 8));
  }
  release_all((zt_tensor *[]){x, y, logs, mask}, 4);
}

static void test_softmax_values(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  FOR_FLOATS(t) {
    for (int form = 0; form < 6; form++) softmax_values(c, t, form / 2, form & 1);
  }
  zt_tensor *x = random_tensor(c, ZT_F32, -1, 1, SHAPE(2, 3)), *mask = random_tensor(c, ZT_U8, 0, 2, SHAPE(3, 3)), *y;
  expect_fails(zt_softmax(c, &y, x, mask, 1), ZT_SHAPE, "mask");
  expect_fails(zt_softmax(c, &y, x, NULL, 2), ZT_SHAPE, "dimension 2");
  expect_fails(zt_softmax(c, &y, x, x, 1), ZT_DTYPE, "uint8");
  release_all((zt_tensor *[]){x, mask}, 2);
  covers_op("softmax"), covers_op("log_softmax");
  free_context(c);
}

/* --- losses */

typedef struct loss_options {
  double smoothing;
} loss_options;
enum { IGNORED = -100 };

static zt_status run_cross_entropy(const void *user, zt_ctx *c, zt_tensor *const in[], zt_tensor *out[]) {
  return zt_cross_entropy(c, &out[0], NULL, in[0], in[1], IGNORED, ((const loss_options *)user)->smoothing);
}
static zt_status run_linear_ce(const void *user, zt_ctx *c, zt_tensor *const in[], zt_tensor *out[]) {
  return zt_linear_cross_entropy(c, &out[0], &out[1], in[0], in[1], in[2], IGNORED,
                                 ((const loss_options *)user)->smoothing);
}
static zt_status run_mse(const void *user, zt_ctx *c, zt_tensor *const in[], zt_tensor *out[]) {
  (void)user;
  return zt_mse(c, &out[0], in[0], in[1]);
}

/* Labels of which the first n_ignored count for nothing. */
static zt_tensor *labels_for(zt_ctx *c, int64_t classes, int64_t n_ignored, int ndim, const int64_t *shape) {
  zt_tensor *labels = random_index(c, classes, ndim, shape);
  for (int64_t i = 0; i < n_ignored; i++) ((int64_t *)zt_tensor_data(labels))[i] = IGNORED;
  return labels;
}

static void test_loss_gradient(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  for (int form = 0; form < 18; form++) {
    loss_options o = {form & 1 ? 0.2 : 0};
    leaf_kind kind = (leaf_kind)(form / 2 % 3);
    int64_t n_ignored = form / 6 * 3; /* none, half, all of 6 rows */
    zt_tensor *plain[2] = {leaf(c, kind, -3, 3, SHAPE(2, 3, 7)), labels_for(c, 7, n_ignored, SHAPE(2, 3))};
    grad_check(c, "cross_entropy", run_cross_entropy, &o, plain, 2, 1);
    zt_tensor *fused[3] = {leaf(c, kind, -1, 1, SHAPE(2, 3, 5)), leaf(c, kind, -1, 1, SHAPE(7, 5)),
                           labels_for(c, 7, n_ignored, SHAPE(2, 3))};
    grad_check(c, "linear_cross_entropy", run_linear_ce, &o, fused, 3, 2);
    zt_tensor *pair[2] = {leaf(c, kind, -1, 1, SHAPE(3, 4)), leaf(c, PLAIN, -1, 1, SHAPE(3, 4))};
    grad_check(c, "mse", run_mse, NULL, pair, 2, 1);
  }
  loss_options o = {0};
  zt_tensor *one[2] = {leaf(c, PLAIN, -3, 3, SHAPE(5)), labels_for(c, 5, 0, NO_DIMS)};
  grad_check(c, "cross_entropy", run_cross_entropy, &o, one, 2, 1);
  zt_tensor *no_rows[2] = {leaf(c, PLAIN, -3, 3, SHAPE(0, 5)), labels_for(c, 5, 0, SHAPE(0))};
  grad_check(c, "cross_entropy", run_cross_entropy, &o, no_rows, 2, 1);
  zt_tensor *none[3] = {leaf(c, PLAIN, -1, 1, SHAPE(0, 5)), leaf(c, PLAIN, -1, 1, SHAPE(7, 5)),
                        labels_for(c, 7, 0, SHAPE(0))};
  grad_check(c, "linear_cross_entropy", run_linear_ce, &o, none, 3, 2);
  zt_tensor *nothing[2] = {leaf(c, PLAIN, -1, 1, SHAPE(0, 4)), leaf(c, PLAIN, -1, 1, SHAPE(0, 4))};
  grad_check(c, "mse", run_mse, NULL, nothing, 2, 1);
  free_context(c);
}

static double mean_loss(const zt_tensor *logits, const zt_tensor *labels, double smoothing, int64_t *n_counted) {
  int64_t cols = logits->shape[logits->ndim - 1], rows = cols ? zt_tensor_count(logits) / cols : 0;
  double total = 0;
  *n_counted = 0;
  for (int64_t row = 0; row < rows; row++) {
    int64_t label = (int64_t)value_at(labels, row);
    if (label == IGNORED) continue;
    double sum = 0, mean = 0;
    for (int64_t j = 0; j < cols; j++)
      sum += exp(value_at(logits, row * cols + j)), mean += value_at(logits, row * cols + j) / (double)cols;
    total += log(sum) - (1 - smoothing) * value_at(logits, row * cols + label) - smoothing * mean;
    ++*n_counted;
  }
  return *n_counted ? total / (double)*n_counted : 0;
}

static void loss_values(zt_ctx *c, zt_dtype t, double smoothing, int64_t n_ignored) {
  zt_tensor *x = random_tensor(c, t, -1, 1, SHAPE(2, 3, 5)), *w = random_tensor(c, t, -1, 1, SHAPE(7, 5)), *logits;
  zt_tensor *labels = labels_for(c, 7, n_ignored, SHAPE(2, 3)), *loss, *count, *fused, *fused_count;
  int64_t n_counted;
  double got;
  expect_ok(zt_linear(c, &logits, x, w, NULL, ZT_ACT_NONE, false));
  double want = mean_loss(logits, labels, smoothing, &n_counted);
  expect_ok(zt_cross_entropy(c, &loss, &count, logits, labels, IGNORED, smoothing));
  expect_ok(zt_linear_cross_entropy(c, &fused, &fused_count, x, w, labels, IGNORED, smoothing));
  assert_int_equal(loss->dtype, zt_dtype_stat(t));
  assert_int_equal(count->dtype, ZT_I64);
  expect_element(loss, 0, want, 4);
  expect_element(fused, 0, want, 4);
  expect_element(count, 0, (double)n_counted, 0);
  expect_ok(zt_tensor_item(c, fused_count, &got));
  assert_int_equal((int64_t)got, n_counted);
  release_all((zt_tensor *[]){x, w, logits, labels, loss, count, fused, fused_count}, 8);
}

static void test_loss_values(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  FOR_FLOATS(t) {
    for (int form = 0; form < 6; form++) loss_values(c, t, form & 1 ? 0.1 : 0, form / 2 * 3);
    zt_tensor *x = random_tensor(c, t, -1, 1, SHAPE(3, 5)), *target = random_tensor(c, t, -1, 1, SHAPE(3, 5)), *loss;
    double want = 0;
    for (int64_t i = 0; i < 15; i++) want += pow(rounded(t, value_at(x, i) - value_at(target, i)), 2) / 15;
    expect_ok(zt_mse(c, &loss, x, target));
    expect_element(loss, 0, want, 1);
    release_all((zt_tensor *[]){x, target, loss}, 3);
  }
  covers_op("cross_entropy"), covers_op("linear_cross_entropy"), covers_op("mse");
  free_context(c);
}

static void test_loss_refuses(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  zt_tensor *x = random_tensor(c, ZT_F32, -1, 1, SHAPE(2, 3, 5)), *w = random_tensor(c, ZT_F32, -1, 1, SHAPE(7, 5)), *y;
  zt_tensor *labels = labels_for(c, 5, 2, SHAPE(2, 3)), *few = labels_for(c, 5, 0, SHAPE(2, 2));
  ((int64_t *)zt_tensor_data(labels))[4] = 503;
  expect_fails(zt_cross_entropy(c, &y, NULL, x, labels, IGNORED, 0), ZT_INVALID, "label 503 at position 4");
  expect_fails(zt_linear_cross_entropy(c, &y, NULL, x, w, labels, IGNORED, 0), ZT_INVALID, "is not in [0, 7)");
  ((int64_t *)zt_tensor_data(labels))[4] = -1;
  expect_fails(zt_cross_entropy(c, &y, NULL, x, labels, IGNORED, 0), ZT_INVALID, "label -1 at position 4");
  expect_fails(zt_cross_entropy(c, &y, NULL, x, few, IGNORED, 0), ZT_SHAPE, "(2, 2)");
  expect_fails(zt_cross_entropy(c, &y, NULL, x, x, IGNORED, 0), ZT_DTYPE, "int64");
  expect_fails(zt_mse(c, &y, x, w), ZT_SHAPE, "(7, 5)");
  release_all((zt_tensor *[]){x, w, labels, few}, 4);
  free_context(c);
}

/* Gradients in 16 bits, with a loss scale, are float32's of the same inputs: neither the scale nor a sum over many rows
** has to fit into float16. in[] has n inputs, the first 'wanted' of which get gradients. */
static void check_scaled(zt_ctx *c, grad_fn fn, zt_tensor *in[], int n, int wanted, double seed) {
  zt_tensor *wide[3] = {NULL}, *out[2] = {NULL};
  for (int k = 0; k < n; k++) {
    expect_ok(k < wanted ? zt_cast(c, &wide[k], in[k], ZT_F32) : zt_tensor_alias(in[k], &wide[k]));
    in[k]->requires_grad = wide[k]->requires_grad = k < wanted;
  }
  for (int run = 0; run < 2; run++) {
    expect_ok(fn(&(loss_options){0}, c, run ? wide : in, out));
    expect_ok(zt_backward(c, out[0], NULL, seed));
    release_all(out, 2);
  }
  for (int k = 0; k < wanted; k++) {
    double largest = 0;
    for (int64_t i = 0; i < zt_tensor_count(in[k]); i++) largest = fmax(largest, fabs(value_at(wide[k]->grad, i)));
    for (int64_t i = 0; i < zt_tensor_count(in[k]); i++)
      expect_element(in[k]->grad, i, value_at(wide[k]->grad, i), 2 * largest);
  }
  release_all(wide, n), release_all(in, n);
}

/* A classifier's weight (3, 4) whose first row, the label's, has the other sign: nothing cancels. */
static zt_tensor *uncancelled(zt_ctx *c, zt_dtype t, double size) {
  zt_tensor *w = random_tensor(c, t, size / 2, size, SHAPE(3, 4));
  for (size_t j = 0; j < 4; j++) put(t, zt_tensor_data(w), j, -size);
  return w;
}

static void test_loss_scales(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  for (zt_dtype t = ZT_BF16; t <= ZT_F16; t++) {
    zt_tensor *sure[2] = {random_tensor(c, t, 0, 1, SHAPE(1, 5)), labels_for(c, 1, 0, SHAPE(1))};
    put(t, zt_tensor_data(sure[0]), 0, 7); /* the label's logit: the gradient is small */
    check_scaled(c, run_cross_entropy, sure, 2, 1, 0x1p18);
    zt_tensor *one[3] = {random_tensor(c, t, 0, 0.01, SHAPE(1, 4)), uncancelled(c, t, 0.01),
                         labels_for(c, 1, 0, SHAPE(1))};
    check_scaled(c, run_linear_ce, one, 3, 2, 0x1p18);
    zt_tensor *many[3] = {random_tensor(c, t, 50, 100, SHAPE(3000, 4)), uncancelled(c, t, 0.001),
                          labels_for(c, 1, 0, SHAPE(3000))}; /* the sum for its row: 3000 * 75 * 2 / 3 */
    check_scaled(c, run_linear_ce, many, 3, 2, 1);
    zt_tensor *pair[2] = {random_tensor(c, t, 1, 1, SHAPE(2)), random_tensor(c, t, 1.0625, 1.0625, SHAPE(2))};
    check_scaled(c, run_mse, pair, 2, 2, 0x1p18);
  }
  free_context(c);
}

/* Rows of logits so long that they go in several chunks: the same loss and gradients as the two ops apart. The fused op
** never holds all logits. */
static void test_chunks(void **state) {
  (void)state;
  enum { ROWS = 150, WIDTH = 3, CLASSES = 280001 };
  zt_ctx *c = new_context();
  zt_tensor *x = random_tensor(c, ZT_F32, -1, 1, SHAPE(ROWS, WIDTH)),
            *w = random_tensor(c, ZT_F32, -1, 1, SHAPE(CLASSES, WIDTH));
  zt_tensor *labels = labels_for(c, CLASSES, 7, SHAPE(ROWS)), *grads[2][2], *loss[2], *logits;
  zt_pool *pool = zt_ctx_pool(c);
  for (int apart = 0; apart < 2; apart++) {
    x->requires_grad = w->requires_grad = true;
    zt_pool_reset_peak(pool);
    if (apart) {
      expect_ok(zt_linear(c, &logits, x, w, NULL, ZT_ACT_NONE, false));
      expect_ok(zt_cross_entropy(c, &loss[1], NULL, logits, labels, IGNORED, 0.1));
      zt_tensor_release(logits);
    } else {
      expect_ok(zt_linear_cross_entropy(c, &loss[0], NULL, x, w, labels, IGNORED, 0.1));
      assert_true(zt_pool_get_stats(pool).peak_nbytes < (size_t)ROWS * CLASSES * sizeof(float) * 3 / 5);
    }
    expect_ok(zt_backward(c, loss[apart], NULL, 4));
    grads[apart][0] = x->grad, grads[apart][1] = w->grad;
    x->grad = w->grad = NULL;
  }
  expect_element(loss[0], 0, value_at(loss[1], 0), 0);
  for (int k = 0; k < 2; k++) {
    for (int64_t i = 0; i < zt_tensor_count(grads[0][k]); i++)
      expect_element(grads[0][k], i, value_at(grads[1][k], i), k ? 0.1 : 1);
  }
  release_all((zt_tensor *[]){x, w, labels, loss[0], loss[1], grads[0][0], grads[0][1], grads[1][0], grads[1][1]}, 9);
  free_context(c);
}

/* --- conv1d */

typedef struct conv_options {
  int64_t stride, pad, dilation;
} conv_options;
static zt_status run_conv(const void *user, zt_ctx *c, zt_tensor *const in[], zt_tensor *out[]) {
  const conv_options *o = user;
  return zt_conv1d(c, &out[0], in[0], in[1], in[2], o->stride, o->pad, o->dilation);
}

static void test_conv_gradient(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  for (int form = 0; form < 24; form++) {
    conv_options o = {1 + form % 2, form / 2 % 3, 1 + form / 6 % 2};
    leaf_kind kind = (leaf_kind)(form % 3);
    zt_tensor *in[3] = {leaf(c, kind, -1, 1, SHAPE(2, 9, 3)), leaf(c, kind, -1, 1, SHAPE(4, 3, 3)),
                        form & 1 ? leaf(c, PLAIN, -1, 1, SHAPE(4)) : NULL};
    grad_check(c, "conv1d", run_conv, &o, in, 3, 1);
  }
  conv_options o = {1, 1, 1};
  zt_tensor *none[3] = {leaf(c, PLAIN, -1, 1, SHAPE(0, 9, 3)), leaf(c, PLAIN, -1, 1, SHAPE(4, 3, 3)),
                        leaf(c, PLAIN, -1, 1, SHAPE(4))};
  grad_check(c, "conv1d", run_conv, &o, none, 3, 1);
  free_context(c);
}

static void conv_values(zt_ctx *c, zt_dtype t, conv_options o) {
  enum { B = 2, T = 9, IN = 3, OUT = 4, WIDTH = 3 };
  zt_tensor *x = strided_tensor(c, t, TRANSPOSED, -1, 1, SHAPE(B, T, IN)),
            *w = random_tensor(c, t, -1, 1, SHAPE(OUT, IN, WIDTH)), *y;
  zt_tensor *b = random_tensor(c, t, -1, 1, SHAPE(OUT));
  int64_t n_out = (T + 2 * o.pad - o.dilation * (WIDTH - 1) - 1) / o.stride + 1;
  expect_ok(zt_conv1d(c, &y, x, w, b, o.stride, o.pad, o.dilation));
  expect_shape(y, SHAPE(B, n_out, OUT));
  for (int64_t i = 0; i < count_of(3, y->shape); i++) {
    int64_t ch = i % OUT, u = i / OUT % n_out, sample = i / OUT / n_out;
    double sum = value_at(b, ch);
    for (int64_t p = 0; p < IN * WIDTH; p++) {
      int64_t place = u * o.stride + p % WIDTH * o.dilation - o.pad;
      if (place < 0 || place >= T) continue;
      sum += value_at(x, (sample * T + place) * IN + p / WIDTH) * value_at(w, ch * IN * WIDTH + p);
    }
    expect_element(y, i, sum, 4);
  }
  release_all((zt_tensor *[]){x, w, y, b}, 4);
}

static void test_conv_values(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  FOR_FLOATS(t) {
    for (int form = 0; form < 12; form++) conv_values(c, t, (conv_options){1 + form % 2, form / 2 % 3, 1 + form / 6});
  }
  zt_tensor *x = random_tensor(c, ZT_F32, -1, 1, SHAPE(2, 9, 3)), *w = random_tensor(c, ZT_F32, -1, 1, SHAPE(4, 2, 3)),
            *y;
  expect_fails(zt_conv1d(c, &y, x, w, NULL, 1, 0, 1), ZT_SHAPE, "weight (4, 2, 3)");
  zt_tensor *v = random_tensor(c, ZT_F32, -1, 1, SHAPE(4, 3, 3));
  expect_fails(zt_conv1d(c, &y, x, v, NULL, 0, 0, 1), ZT_INVALID, "stride 0");
  release_all((zt_tensor *[]){x, w, v}, 3);
  covers_op("conv1d");
  free_context(c);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_matmul_gradient),       cmocka_unit_test(test_matmul_values),
      cmocka_unit_test(test_matmul_copies_nothing), cmocka_unit_test(test_matmul_refuses),
      cmocka_unit_test(test_linear_gradient),       cmocka_unit_test(test_linear_values),
      cmocka_unit_test(test_linear_keeps_little),   cmocka_unit_test(test_linear_refuses),
      cmocka_unit_test(test_norm_gradient),         cmocka_unit_test(test_norm_values),
      cmocka_unit_test(test_norm_refuses),          cmocka_unit_test(test_softmax_gradient),
      cmocka_unit_test(test_softmax_values),        cmocka_unit_test(test_loss_gradient),
      cmocka_unit_test(test_loss_values),           cmocka_unit_test(test_loss_refuses),
      cmocka_unit_test(test_loss_scales),           cmocka_unit_test(test_chunks),
      cmocka_unit_test(test_conv_gradient),         cmocka_unit_test(test_conv_values),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
