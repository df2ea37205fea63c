/* grad_check.h - gradients of any op against central differences in float64, through the tape.
**
**   static zt_status run_mul(const void *user, zt_ctx *c, zt_tensor *const in[], zt_tensor *out[]) {
**     return zt_mul(c, &out[0], in[0], in[1]);
**   }
**   zt_tensor *in[] = {leaf(c, PLAIN, -1, 1, SHAPE(2, 3)), leaf(c, TRANSPOSED, -1, 1, SHAPE(4, 1, 3))};
**   grad_check(c, "mul", run_mul, NULL, in, 2, 1);       // releases in[]
**
** For each float64 input with requires_grad, and a random gradient for each floating point output, it checks: the
** gradient against differences; the same where this input alone wants one; the sum where the op is used twice; the same
** in float32; that others got none, and that nothing stays allocated. A function with corners must be given inputs
** that stand farther from them than 2e-3. Random ops are replayed. Passing is written down as covered. */
#ifndef zt_grad_check_h
#define zt_grad_check_h

#include "core/tensor/ops.h"
#include "core/tensor/tape.h"
#include "tests/c/kernel_test.h"

/* Computes out[] (owned) from in[]. */
typedef zt_status (*grad_fn)(const void *user, zt_ctx *c, zt_tensor *const in[], zt_tensor *out[]);

/* A list of sizes as two arguments: ndim, shape. */
#define SHAPE(...) \
  (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]) { __VA_ARGS__ }
#define NO_DIMS 0, NULL

static inline zt_ctx *new_context(void) {
  zt_ctx *c;
  expect_ok(zt_ctx_new(NULL, &c));
  zt_ctx_random(c)->seed = random_bits();
  return c;
}
/* And checks that all tensors are gone. */
static inline void free_context(zt_ctx *c) {
  assert_int_equal(zt_tape_length(c), 0);
  assert_int_equal(zt_pool_get_stats(zt_ctx_pool(c)).used_nbytes, 0);
  zt_ctx_free(c);
}

/* --- inputs, uniform in [low, high). How they lie in memory: */
typedef enum leaf_kind { PLAIN, TRANSPOSED, NARROWED, N_LEAF_KINDS } leaf_kind;

static inline zt_tensor *random_tensor(zt_ctx *c, zt_dtype t, double low, double high, int ndim, const int64_t *shape) {
  zt_tensor *x;
  expect_ok(zt_tensor_new(c, &x, t, ndim, shape));
  for (int64_t i = 0; i < zt_tensor_count(x); i++) {
    double v = random_in(low, high);
    put(t, zt_tensor_data(x), (size_t)i, zt_dtype_is_float(t) ? v : floor(v));
  }
  return x;
}
static inline zt_tensor *random_index(zt_ctx *c, int64_t limit, int ndim, const int64_t *shape) {
  return random_tensor(c, ZT_I64, 0, (double)limit, ndim, shape);
}
/* The kinds differ where there are dimensions enough: the last two are swapped, or the last one is cut out of a longer. */
static inline zt_tensor *strided_tensor(zt_ctx *c, zt_dtype t, leaf_kind kind, double low, double high, int ndim,
                                        const int64_t *shape) {
  int64_t whole[ZT_MAX_DIM];
  zt_tensor *base, *view;
  for (int i = 0; i < ndim; i++) whole[i] = shape[i];
  if (kind == TRANSPOSED && ndim >= 2) whole[ndim - 1] = shape[ndim - 2], whole[ndim - 2] = shape[ndim - 1];
  if (kind == NARROWED && ndim >= 1) whole[ndim - 1] += 3;
  base = random_tensor(c, t, low, high, ndim, whole);
  if (kind == PLAIN || ndim < (kind == TRANSPOSED ? 2 : 1)) return base;
  expect_ok(kind == TRANSPOSED ? zt_transpose(c, &view, base, -1, -2)
                               : zt_narrow(c, &view, base, -1, 1, shape[ndim - 1]));
  zt_tensor_release(base);
  return view;
}
static inline zt_tensor *leaf(zt_ctx *c, leaf_kind kind, double low, double high, int ndim, const int64_t *shape) {
  zt_tensor *x = strided_tensor(c, ZT_F64, kind, low, high, ndim, shape);
  x->requires_grad = true;
  return x;
}

/* --- the check */
enum {
  GRAD_MAX_IN = 16,
  GRAD_MAX_OUT = 8,
  GRAD_MAX_ELEMENTS = 64
}; /* elements tried of an input, at random if it has more */

typedef struct grad_run {
  zt_ctx *c;
  const char *op;
  grad_fn fn;
  const void *user;
  zt_tensor **in;
  int n_in, n_out;
  zt_random random;                  /* as it was before the first run */
  zt_tensor *upstream[GRAD_MAX_OUT]; /* float64, contiguous; NULL for an output that is not floating point */
} grad_run;

static inline double *element(const zt_tensor *t, int64_t i) {
  int64_t at = 0;
  for (int d = t->ndim - 1; d >= 0; d--) {
    at += i % t->shape[d] * t->stride[d];
    i /= t->shape[d];
  }
  return (double *)zt_tensor_data(t) + at;
}

static inline void run_fn(const grad_run *r, zt_tensor *const in[], zt_tensor *out[]) {
  *zt_ctx_random(r->c) = r->random;
  zt_status st = r->fn(r->user, r->c, in, out);
  if (st != ZT_OK) fail_msg("%s: %s", r->op, zt_message());
}
static inline void release_all(zt_tensor **list, int n) {
  for (int i = 0; i < n; i++) zt_tensor_release(list[i]), list[i] = NULL;
}

/* The sum of outputs times their upstream gradients, without the tape. */
static inline double loss_value(const grad_run *r) {
  zt_tensor *out[GRAD_MAX_OUT] = {NULL};
  double loss = 0;
  bool grad = zt_ctx_set_grad_enabled(r->c, false);
  run_fn(r, r->in, out);
  for (int k = 0; k < r->n_out; k++)
    for (int64_t i = 0; r->upstream[k] && i < zt_tensor_count(out[k]); i++)
      loss += *element(out[k], i) * *element(r->upstream[k], i);
  zt_ctx_set_grad_enabled(r->c, grad);
  release_all(out, r->n_out);
  return loss;
}

static inline double numeric_gradient(const grad_run *r, double *x) {
  double was = *x, h = 1e-3, f[4];
  const double step[4] = {-2, -1, 1, 2};
  for (int i = 0; i < 4; i++) {
    *x = was + step[i] * h;
    f[i] = loss_value(r);
  }
  *x = was;
  return (f[0] - 8 * f[1] + 8 * f[2] - f[3]) / (12 * h); /* error h^4 */
}

/* Adds sum(out * upstream) to '*loss' (NULL at first), on the tape. */
static inline void add_term(zt_ctx *c, zt_tensor **loss, zt_tensor *out, zt_tensor *upstream) {
  zt_tensor *u, *product, *term, *sum;
  expect_ok(zt_cast(c, &u, upstream, out->dtype));
  expect_ok(zt_mul(c, &product, out, u));
  expect_ok(zt_sum(c, &term, product, ZT_ALL_DIMS, false));
  if (*loss) {
    expect_ok(zt_add(c, &sum, *loss, term));
    zt_tensor_release(term);
  } else {
    sum = term;
  }
  release_all((zt_tensor *[]){u, product, *loss}, 3);
  *loss = sum;
}

/* Runs the op 'times' times on 'in' and backward through all; clears gradients first. One output is seeded as it is. */
static inline void backward_through(const grad_run *r, zt_tensor *const in[], int times) {
  zt_tensor *loss = NULL;
  for (int i = 0; i < r->n_in; i++)
    if (in[i]) release_all(&in[i]->grad, 1);
  if (times == 1 && r->n_out == 1 && in == r->in) {
    run_fn(r, in, &loss);
    expect_ok(zt_backward(r->c, loss, r->upstream[0], 1));
  } else {
    for (int n = 0; n < times; n++) {
      zt_tensor *out[GRAD_MAX_OUT] = {NULL};
      run_fn(r, in, out);
      for (int k = 0; k < r->n_out; k++)
        if (r->upstream[k]) add_term(r->c, &loss, out[k], r->upstream[k]);
      release_all(out, r->n_out);
    }
    expect_ok(zt_backward(r->c, loss, NULL, 1));
  }
  zt_tensor_release(loss);
}

static inline double grad_at(const grad_run *r, const zt_tensor *x, int number, int64_t i) {
  if (!x->grad) fail_msg("%s: input %d got no gradient", r->op, number);
  if (!zt_tensor_same_shape(x->grad, x) || x->grad->dtype != x->dtype)
    fail_msg("%s: input %d %s has a gradient %s", r->op, number, zt_shape_text(x), zt_shape_text(x->grad));
  double v;
  zt_tensor one = *x->grad; /* a view of that element, whatever the strides */
  for (int d = x->ndim - 1; d >= 0; d--) one.offset += i % x->shape[d] * one.stride[d], i /= x->shape[d];
  v = get(one.dtype, zt_tensor_data(&one), 0);
  return v;
}

/* Element i's gradient, taken in one of the ways, must be 'want'. */
static inline void expect_gradient(const grad_run *r, const zt_tensor *x, int number, int64_t i, double want,
                                   double tolerance, const char *way) {
  double got = grad_at(r, x, number, i);
  if (!(fabs(got - want) <= tolerance * (1 + fabs(want))))
    fail_msg("%s: gradient of input %d %s at element %lld is %.12g, %s say %.12g", r->op, number, zt_shape_text(x),
             (long long)i, got, way, want);
}

static inline bool wants(const zt_tensor *x) { return x && x->requires_grad; }

/* All of an input's gradients as they are now (freed by the caller). */
static inline double *all_gradients(const grad_run *r, int k) {
  int64_t count = zt_tensor_count(r->in[k]);
  double *g = malloc((size_t)count * sizeof *g + 1);
  assert_non_null(g);
  for (int64_t i = 0; i < count; i++) g[i] = grad_at(r, r->in[k], k, i);
  return g;
}

static inline void expect_all(const grad_run *r, const zt_tensor *x, int k, const double *want, double factor,
                              double tolerance, const char *way) {
  for (int64_t i = 0; i < zt_tensor_count(x); i++) expect_gradient(r, x, k, i, factor * want[i], tolerance, way);
}

static inline void check_numeric(const grad_run *r) {
  for (int k = 0; k < r->n_in; k++) {
    zt_tensor *x = r->in[k];
    if (!wants(x)) {
      assert_true(!x || !x->grad);
      continue;
    }
    int64_t count = zt_tensor_count(x), n = count < GRAD_MAX_ELEMENTS ? count : GRAD_MAX_ELEMENTS;
    for (int64_t j = 0; j < n; j++) {
      int64_t i = n == count ? j : (int64_t)random_below((size_t)count);
      expect_gradient(r, x, k, i, numeric_gradient(r, element(x, i)), 2e-8, "differences");
    }
    if (count == 0) assert_true(!x->grad || zt_tensor_same_shape(x->grad, x));
  }
}

/* One input at a time wants a gradient: what an op saves depends on it. */
static inline void check_alone(const grad_run *r, double *const want[]) {
  bool wanted[GRAD_MAX_IN];
  for (int k = 0; k < r->n_in; k++) wanted[k] = wants(r->in[k]);
  for (int k = 0; k < r->n_in; k++) {
    if (!wanted[k]) continue;
    for (int i = 0; i < r->n_in; i++)
      if (r->in[i]) r->in[i]->requires_grad = i == k;
    backward_through(r, r->in, 1);
    expect_all(r, r->in[k], k, want[k], 1, 1e-12, "all inputs together");
    for (int i = 0; i < r->n_in; i++) assert_true(i == k || !r->in[i] || !r->in[i]->grad || r->in[i] == r->in[k]);
  }
  for (int k = 0; k < r->n_in; k++)
    if (r->in[k]) r->in[k]->requires_grad = wanted[k];
}

static inline void check_float32(const grad_run *r, double *const want[]) {
  zt_tensor *in[GRAD_MAX_IN] = {NULL};
  for (int k = 0; k < r->n_in; k++) {
    zt_tensor *x = r->in[k];
    if (!x) continue;
    bool grad = zt_ctx_set_grad_enabled(r->c, false);
    expect_ok(x->dtype == ZT_F64 ? zt_cast(r->c, &in[k], x, ZT_F32) : zt_tensor_alias(x, &in[k]));
    zt_ctx_set_grad_enabled(r->c, grad);
    in[k]->requires_grad = x->requires_grad;
  }
  backward_through(r, in, 1);
  for (int k = 0; k < r->n_in; k++)
    if (wants(in[k])) expect_all(r, in[k], k, want[k], 1, 3e-4, "float64's");
  release_all(in, r->n_in);
}

static inline void make_upstream(grad_run *r) {
  zt_tensor *out[GRAD_MAX_OUT] = {NULL};
  bool grad = zt_ctx_set_grad_enabled(r->c, false);
  run_fn(r, r->in, out);
  for (int k = 0; k < r->n_out; k++)
    if (zt_dtype_is_float(out[k]->dtype))
      r->upstream[k] = random_tensor(r->c, ZT_F64, -1, 1, out[k]->ndim, out[k]->shape);
  zt_ctx_set_grad_enabled(r->c, grad);
  release_all(out, r->n_out);
}

static inline void grad_check(zt_ctx *c, const char *op, grad_fn fn, const void *user, zt_tensor *in[], int n_in,
                              int n_out) {
  grad_run r = {.c = c, .op = op, .fn = fn, .user = user, .in = in, .n_in = n_in, .n_out = n_out};
  double *want[GRAD_MAX_IN] = {NULL};
  r.random = *zt_ctx_random(c);
  make_upstream(&r);
  backward_through(&r, in, 1);
  check_numeric(&r);
  for (int k = 0; k < n_in; k++)
    if (wants(in[k]) && zt_tensor_count(in[k])) want[k] = all_gradients(&r, k);
  check_alone(&r, want);
  backward_through(&r, in, 2);
  for (int k = 0; k < n_in; k++)
    if (want[k]) expect_all(&r, in[k], k, want[k], 2, 1e-12, "twice the gradients of one use");
  check_float32(&r, want);
  for (int k = 0; k < n_in; k++) free(want[k]);
  release_all(r.upstream, n_out);
  release_all(in, n_in);
  assert_int_equal(zt_tape_length(c), 0);
  covers_grad(op);
}

#endif
