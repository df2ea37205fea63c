/* A batch of no rows goes through every op of the table, forward and backward, in every dtype: outputs are empty or
** finite, and the gradients of what is not empty (weights) are there and exactly zero. So a rank that has run out of
** data takes part in a step. An op without a function here does not compile. */
#include "tests/c/grad_check.h"

enum { MAX_LEAVES = 4, MAX_OUTS = 2 };

typedef struct run {
  zt_ctx *c;
  zt_dtype t;
  zt_tensor *leaves[MAX_LEAVES], *others[MAX_LEAVES], *out[MAX_OUTS];
  int n_leaves, n_others;
} run;

/* A leaf with random values that lives to the end of the run. */
static zt_tensor *weight(run *r, int ndim, const int64_t *shape) {
  zt_tensor *x = random_tensor(r->c, r->t, 0.5, 1.5, ndim, shape);
  x->requires_grad = true;
  return r->leaves[r->n_leaves++] = x;
}
static zt_tensor *batch(run *r) { return weight(r, SHAPE(0, 3, 4)); }
static zt_tensor *vector(run *r) { return weight(r, SHAPE(4)); }
static zt_tensor *constant(run *r, zt_dtype t, int ndim, const int64_t *shape) {
  zt_tensor *x = random_tensor(r->c, t, 0, 1, ndim, shape);
  return r->others[r->n_others++] = x;
}
static zt_tensor *ids(run *r) { return constant(r, ZT_I64, SHAPE(0, 3)); }

/* --- a function for each op: f(r) gives the status, and outputs in r->out */
#define EMPTY(name, call)                      \
  static zt_status empty_##name(run *r) {      \
    zt_ctx *c = r->c;                          \
    zt_tensor **y = &r->out[0], *x = batch(r); \
    return call;                               \
  }
EMPTY(add, zt_add(c, y, x, vector(r)))
EMPTY(sub, zt_sub(c, y, vector(r), x))
EMPTY(mul, zt_mul(c, y, x, vector(r)))
EMPTY(div, zt_div(c, y, x, vector(r)))
EMPTY(pow, zt_pow(c, y, x, vector(r)))
EMPTY(neg, zt_neg(c, y, x))
EMPTY(exp, zt_exp(c, y, x))
EMPTY(log, zt_log_(c, y, x))
EMPTY(sqrt, zt_sqrt(c, y, x))
EMPTY(rsqrt, zt_rsqrt(c, y, x))
EMPTY(tanh, zt_tanh(c, y, x))
EMPTY(sigmoid, zt_sigmoid(c, y, x))
EMPTY(relu, zt_relu(c, y, x))
EMPTY(gelu, zt_gelu(c, y, x))
EMPTY(gelu_tanh, zt_gelu_tanh(c, y, x))
EMPTY(silu, zt_silu(c, y, x))
EMPTY(clamp, zt_clamp(c, y, x, 0, 1))
EMPTY(affine, zt_affine(c, y, x, 2, 1))
EMPTY(pow_scalar, zt_pow_scalar(c, y, x, 3))
EMPTY(compare, zt_compare_op(c, y, x, vector(r), ZT_COMPARE_LT))
EMPTY(where, zt_where(c, y, constant(r, ZT_U8, SHAPE(0, 3, 4)), x, vector(r)))
EMPTY(masked_fill, zt_masked_fill(c, y, x, constant(r, ZT_U8, SHAPE(0, 3, 1)), 2))
EMPTY(sum, zt_sum(c, y, x, ZT_ALL_DIMS, false))
EMPTY(mean, zt_mean(c, y, x, -1, false))
EMPTY(max, zt_max(c, y, &r->out[1], x, -1, false))
EMPTY(min, zt_min(c, y, &r->out[1], x, 1, true))
EMPTY(var, zt_var(c, y, x, -1, false, 1))
EMPTY(norm, zt_norm(c, y, x, ZT_ALL_DIMS, false))
EMPTY(argmax, zt_argmax(c, y, x, -1, false))
EMPTY(topk, zt_topk(c, y, &r->out[1], x, 2, -1, true))
EMPTY(logsumexp, zt_logsumexp(c, y, x, -1, false))
EMPTY(matmul, zt_matmul(c, y, x, weight(r, SHAPE(4, 5))))
EMPTY(linear, zt_linear(c, y, x, weight(r, SHAPE(5, 4)), weight(r, SHAPE(5)), ZT_ACT_GELU_TANH, false))
EMPTY(layer_norm, zt_layer_norm(c, y, x, vector(r), vector(r), 1e-5))
EMPTY(residual_layer_norm, zt_residual_layer_norm(c, y, &r->out[1], x, batch(r), vector(r), vector(r), 1e-5))
EMPTY(softmax, zt_softmax(c, y, x, constant(r, ZT_U8, SHAPE(0, 3, 4)), -1))
EMPTY(log_softmax, zt_log_softmax(c, y, x, NULL, 1))
EMPTY(dropout, zt_dropout(c, y, x, 0.5))
EMPTY(cross_entropy, zt_cross_entropy(c, y, &r->out[1], x, ids(r), -100, 0.1))
EMPTY(linear_cross_entropy, zt_linear_cross_entropy(c, y, &r->out[1], x, weight(r, SHAPE(7, 4)), ids(r), -100, 0))
EMPTY(mse, zt_mse(c, y, x, batch(r)))
EMPTY(conv1d, zt_conv1d(c, y, x, weight(r, SHAPE(5, 4, 3)), weight(r, SHAPE(5)), 1, 1, 1))
EMPTY(gather, zt_gather(c, y, x, -1, constant(r, ZT_I64, SHAPE(0, 3, 2))))
EMPTY(index_select, zt_index_select(c, y, x, 1, constant(r, ZT_I64, SHAPE(5))))
EMPTY(scatter_add, zt_scatter_add(c, y, x, 2, constant(r, ZT_I64, SHAPE(0, 3, 2)), weight(r, SHAPE(0, 3, 2))))
EMPTY(cat, zt_cat(c, y, (zt_tensor *[]){x, batch(r)}, 2, 0))
EMPTY(reshape, zt_reshape(c, y, x, SHAPE(0, 12)))
EMPTY(transpose, zt_transpose(c, y, x, 1, 2))
EMPTY(permute, zt_permute(c, y, x, (int[]){2, 0, 1}))
EMPTY(narrow, zt_narrow(c, y, x, 1, 1, 2))
EMPTY(copy, zt_copy(c, y, x))
EMPTY(cast, zt_cast(c, y, x, r->t == ZT_F32 ? ZT_BF16 : ZT_F32))

static zt_status empty_expand(run *r) { return zt_expand(r->c, &r->out[0], vector(r), SHAPE(0, 3, 4)); }
static zt_status empty_embedding(run *r) { return zt_embedding(r->c, &r->out[0], weight(r, SHAPE(6, 4)), ids(r)); }

static const zt_attention_options options = {.causal = true, .dropout = 0.5};
static zt_status empty_attention(run *r) {
  zt_tensor *q = weight(r, SHAPE(0, 3, 2, 4)), *k = weight(r, SHAPE(0, 3, 2, 4)), *v = weight(r, SHAPE(0, 3, 2, 4));
  return zt_attention_op(r->c, &r->out[0], q, k, v, constant(r, ZT_U8, SHAPE(0, 3)), weight(r, SHAPE(1, 2, 3, 3)),
                         &options);
}
static zt_status empty_attention_qkv(run *r) {
  return zt_attention_qkv(r->c, &r->out[0], weight(r, SHAPE(0, 3, 24)), 2, constant(r, ZT_U8, SHAPE(0, 3)), NULL,
                          &options);
}

/* --- running them */
static void release_run(run *r) {
  release_all(r->out, MAX_OUTS);
  release_all(r->leaves, r->n_leaves);
  release_all(r->others, r->n_others);
}

/* The sum of all that is floating point, on the tape; NULL where nothing wants a gradient. */
static zt_tensor *total(run *r) {
  zt_tensor *sum = NULL;
  for (int i = 0; i < MAX_OUTS; i++) {
    zt_tensor *y = r->out[i], *term, *wide, *both;
    if (!y || !zt_dtype_is_float(y->dtype)) continue;
    expect_ok(zt_sum(r->c, &term, y, ZT_ALL_DIMS, false));
    expect_ok(zt_cast(r->c, &wide, term, ZT_F64));
    zt_tensor_release(term);
    if (sum) {
      expect_ok(zt_add(r->c, &both, sum, wide));
      release_all((zt_tensor *[]){sum, wide}, 2);
    }
    sum = sum ? both : wide;
  }
  return sum;
}

static void expect_zero_gradient(const char *op, const zt_tensor *x, int number) {
  zt_tensor *g = x->grad;
  if (!g) fail_msg("%s: leaf %d %s got no gradient", op, number, zt_shape_text(x));
  assert_true(zt_tensor_same_shape(g, x) && g->dtype == x->dtype && zt_tensor_is_contiguous(g));
  for (int64_t i = 0; i < zt_tensor_count(g); i++) {
    double value = get(g->dtype, zt_tensor_data(g), (size_t)i);
    if (value != 0) fail_msg("%s: leaf %d %s has a gradient of %g", op, number, zt_dtype_name(x->dtype), value);
  }
}

static void check(zt_ctx *c, const zt_op *op, zt_status (*fn)(run *r), zt_dtype t) {
  run r = {.c = c, .t = t};
  if (fn(&r) != ZT_OK) fail_msg("%s: %s", op->name, zt_message());
  zt_tensor *sum = total(&r);
  if (op->backward) {
    double value = *(double *)zt_tensor_data(sum);
    if (value != 0) fail_msg("%s %s: the sum of no rows is %g", op->name, zt_dtype_name(t), value);
    if (zt_backward(c, sum, NULL, 1) != ZT_OK) fail_msg("%s: %s", op->name, zt_message());
    for (int i = 0; i < r.n_leaves; i++) expect_zero_gradient(op->name, r.leaves[i], i);
  }
  zt_tensor_release(sum);
  release_run(&r);
}

static void every_op(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  FOR_FLOATS(t) {
#define CHECK(name) check(c, &zt_op_##name, empty_##name, t);
    ZT_OPS(CHECK)
#undef CHECK
  }
  free_context(c);
}

static double number_of(zt_tensor *x) {
  double value = get(x->dtype, zt_tensor_data(x), 0);
  zt_tensor_release(x);
  return value;
}

/* The mean of nothing is NaN, as torch's; losses of no rows are 0 and count 0. Gradients are zero either way. */
static void losses_of_no_rows(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  FOR_FLOATS(t) {
    run r = {.c = c, .t = t};
    zt_tensor *w = weight(&r, SHAPE(5, 4)), *x = batch(&r), *h, *mean, *loss, *count;
    expect_ok(zt_linear(c, &h, x, w, NULL, ZT_ACT_NONE, false));
    expect_ok(zt_mean(c, &mean, h, ZT_ALL_DIMS, false));
    expect_ok(zt_backward(c, mean, NULL, 1));
    assert_true(isnan(number_of(mean)));
    for (int i = 0; i < 2; i++) expect_zero_gradient("mean", r.leaves[i], i);
    zt_tensor_release(h);
    expect_ok(zt_linear_cross_entropy(c, &loss, &count, x, w, ids(&r), -100, 0));
    assert_true(number_of(loss) == 0 && number_of(count) == 0);
    release_run(&r);
  }
  free_context(c);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_op), cmocka_unit_test(losses_of_no_rows)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
