/* op_reduce.c - sums, means, extremes and what is made of them. attr.i = dim (or ZT_ALL_DIMS), keepdim, and more where
** an op says so. Kernels see a tensor as (outer, n, inner) around the reduced dimension. */
#include <math.h>
#include <string.h>

#include "core/tensor/ops.h"

static void reduced_shape(const zt_tensor *x, int64_t dim, bool keepdim, int *ndim, int64_t *shape) {
  *ndim = 0;
  for (int i = 0; i < x->ndim; i++) {
    bool reduced = dim == ZT_ALL_DIMS || i == dim;
    if (reduced && !keepdim) continue;
    shape[(*ndim)++] = reduced ? 1 : x->shape[i];
  }
}

static zt_status declare(zt_call *call, zt_dtype dtype) {
  int ndim;
  int64_t shape[ZT_MAX_DIM];
  reduced_shape(call->in[0], call->attr.i[0], call->attr.i[1] != 0, &ndim, shape);
  return zt_call_out(call, dtype, ndim, shape);
}

static zt_status float_shape(zt_ctx *c, zt_call *call) {
  (void)c;
  ZT_TRY(zt_check_float(call->in[0], "the input"));
  return declare(call, call->in[0]->dtype);
}

static zt_status sum_shape(zt_ctx *c, zt_call *call) {
  (void)c;
  if (call->in[0]->dtype != ZT_I64) ZT_TRY(zt_check_float(call->in[0], "the input"));
  return declare(call, call->in[0]->dtype);
}

/* y (and the places of extremes, where index is not NULL) from a whole tensor. */
static zt_status reduce(zt_ctx *c, zt_reduce fn, const zt_tensor *x, int64_t dim, zt_tensor *y, zt_tensor *index) {
  zt_tensor *whole;
  zt_around s = zt_around_dim(x, dim);
  ZT_TRY(zt_contiguous(c, x, &whole));
  zt_status st = zt_k(c)->reduce(zt_s(c), fn, x->dtype, zt_tensor_data(y), index ? zt_tensor_data(index) : NULL,
                                 zt_tensor_data(whole), s.outer, s.n, s.inner);
  zt_tensor_release(whole);
  return st;
}

static zt_status sum_forward(zt_ctx *c, zt_call *call) {
  return reduce(c, ZT_REDUCE_SUM, call->in[0], call->attr.i[0], call->out[0], NULL);
}

static zt_status mean_forward(zt_ctx *c, zt_call *call) {
  return reduce(c, ZT_REDUCE_MEAN, call->in[0], call->attr.i[0], call->out[0], NULL);
}

static zt_status logsumexp_forward(zt_ctx *c, zt_call *call) {
  return reduce(c, ZT_REDUCE_LOGSUMEXP, call->in[0], call->attr.i[0], call->out[0], NULL);
}

/* 't' of the reduced shape, as a view with the reduced dimensions kept as 1: it broadcasts to x. */
static zt_status with_kept_dims(zt_ctx *c, zt_tensor *t, const zt_call *call, zt_tensor **out) {
  int ndim;
  int64_t shape[ZT_MAX_DIM];
  reduced_shape(call->in[0], call->attr.i[0], true, &ndim, shape);
  return zt_reshape(c, out, t, ndim, shape);
}

/* gin[0] = g spread over x. */
static zt_status spread(zt_ctx *c, const zt_call *call, zt_tensor *g, zt_tensor *gin[]) {
  zt_tensor *kept;
  ZT_TRY(with_kept_dims(c, g, call, &kept));
  zt_status st = zt_expand(c, &gin[0], kept, call->in[0]->ndim, call->in[0]->shape);
  zt_tensor_release(kept);
  return st;
}

static zt_status sum_backward(zt_ctx *c, const zt_call *call, zt_tensor *const gout[], zt_tensor *gin[]) {
  return spread(c, call, gout[0], gin);
}

static zt_status mean_backward(zt_ctx *c, const zt_call *call, zt_tensor *const gout[], zt_tensor *gin[]) {
  zt_tensor *g;
  size_t n = zt_around_dim(call->in[0], call->attr.i[0]).n;
  ZT_TRY(zt_affine(c, &g, gout[0], n ? 1.0 / (double)n : 0, 0));
  zt_status st = spread(c, call, g, gin);
  zt_tensor_release(g);
  return st;
}

/* g exp(x - y). Where y is -inf, so is x, and the gradient is 0. */
static zt_status logsumexp_backward(zt_ctx *c, const zt_call *call, zt_tensor *const gout[], zt_tensor *gin[]) {
  zt_tensor *low = NULL, *none = NULL, *filled = NULL, *y = NULL, *d = NULL, *e = NULL, *g = NULL;
  zt_status st;
  ZT_TRY_GOTO(zt_scalar(c, &low, call->out[0]->dtype, -INFINITY), done);
  ZT_TRY_GOTO(zt_compare_op(c, &none, call->out[0], low, ZT_COMPARE_EQ), done);
  ZT_TRY_GOTO(zt_masked_fill(c, &filled, call->out[0], none, 0), done);
  ZT_TRY_GOTO(with_kept_dims(c, filled, call, &y), done);
  ZT_TRY_GOTO(zt_sub(c, &d, call->in[0], y), done);
  ZT_TRY_GOTO(zt_exp(c, &e, d), done);
  ZT_TRY_GOTO(with_kept_dims(c, gout[0], call, &g), done);
  st = zt_mul(c, &gin[0], e, g);
done:
  for (int i = 0; i < 7; i++) zt_tensor_release((zt_tensor *[]){low, none, filled, y, d, e, g}[i]);
  return st;
}

const zt_op zt_op_sum = {"sum", 1, 0, 0, false, sum_shape, sum_forward, sum_backward};
const zt_op zt_op_mean = {"mean", 1, 0, 0, false, float_shape, mean_forward, mean_backward};
const zt_op zt_op_logsumexp = {"logsumexp", 1, 1, 1, false, float_shape, logsumexp_forward, logsumexp_backward};

static zt_status apply_reduce(zt_ctx *c, zt_tensor **outs, const zt_op *op, zt_tensor *x, int dim, bool keepdim,
                              int64_t more) {
  memset(outs, 0, (size_t)op->n_out * sizeof *outs);
  int d = ZT_ALL_DIMS;
  if (dim != ZT_ALL_DIMS) ZT_TRY(zt_wrap(zt_check_dim(x, dim, &d), "%s", op->name));
  zt_call call = {.op = op, .in = {x}, .n_in = 1, .attr.i = {d, keepdim, more}};
  return zt_apply(c, &call, outs);
}

zt_status zt_sum(zt_ctx *c, zt_tensor **y, zt_tensor *x, int dim, bool keepdim) {
  return apply_reduce(c, y, &zt_op_sum, x, dim, keepdim, 0);
}

zt_status zt_mean(zt_ctx *c, zt_tensor **y, zt_tensor *x, int dim, bool keepdim) {
  return apply_reduce(c, y, &zt_op_mean, x, dim, keepdim, 0);
}

zt_status zt_logsumexp(zt_ctx *c, zt_tensor **y, zt_tensor *x, int dim, bool keepdim) {
  return apply_reduce(c, y, &zt_op_logsumexp, x, dim, keepdim, 0);
}

/* ---- extremes: outputs value, index */

static zt_status check_some(const zt_call *call) {
  const zt_tensor *x = call->in[0];
  if (zt_around_dim(x, call->attr.i[0]).n == 0)
    return zt_fail(ZT_SHAPE, "there is no extreme of nothing: %s", zt_shape_text(x));
  return ZT_OK;
}

static zt_status extreme_shape(zt_ctx *c, zt_call *call) {
  ZT_TRY(sum_shape(c, call));
  ZT_TRY(check_some(call));
  if (!zt_dtype_is_float(call->in[0]->dtype)) call->needs_grad = 0;
  return declare(call, ZT_I64);
}

static zt_status max_forward(zt_ctx *c, zt_call *call) {
  return reduce(c, ZT_REDUCE_MAX, call->in[0], call->attr.i[0], call->out[0], call->out[1]);
}

static zt_status min_forward(zt_ctx *c, zt_call *call) {
  return reduce(c, ZT_REDUCE_MIN, call->in[0], call->attr.i[0], call->out[0], call->out[1]);
}

/* gx is 0 but at the index: g is added there. */
static zt_status scatter_back(zt_ctx *c, const zt_tensor *x, zt_tensor *g, const zt_tensor *index, zt_around s,
                              size_t k, zt_tensor **gx) {
  zt_tensor *whole;
  ZT_TRY(zt_tensor_zeros(c, gx, x->dtype, x->ndim, x->shape));
  ZT_TRY(zt_contiguous(c, g, &whole));
  zt_status st = zt_k(c)->scatter_add(zt_s(c), x->dtype, zt_tensor_data(*gx), zt_tensor_data(whole),
                                      zt_tensor_data(index), s.outer, s.n, k, s.inner);
  zt_tensor_release(whole);
  return st;
}

static zt_status extreme_backward(zt_ctx *c, const zt_call *call, zt_tensor *const gout[], zt_tensor *gin[]) {
  return scatter_back(c, call->in[0], gout[0], call->out[1], zt_around_dim(call->in[0], call->attr.i[0]), 1, &gin[0]);
}

const zt_op zt_op_max = {"max", 2, 0, 2, false, extreme_shape, max_forward, extreme_backward};
const zt_op zt_op_min = {"min", 2, 0, 2, false, extreme_shape, min_forward, extreme_backward};

static zt_status apply_extreme(zt_ctx *c, zt_tensor **y, zt_tensor **index, const zt_op *op, zt_tensor *x, int dim,
                               bool keepdim) {
  zt_tensor *outs[2];
  zt_status st = apply_reduce(c, outs, op, x, dim, keepdim, 0);
  *y = outs[0];
  if (index)
    *index = outs[1];
  else
    zt_tensor_release(outs[1]);
  return st;
}

zt_status zt_max(zt_ctx *c, zt_tensor **y, zt_tensor **index, zt_tensor *x, int dim, bool keepdim) {
  return apply_extreme(c, y, index, &zt_op_max, x, dim, keepdim);
}

zt_status zt_min(zt_ctx *c, zt_tensor **y, zt_tensor **index, zt_tensor *x, int dim, bool keepdim) {
  return apply_extreme(c, y, index, &zt_op_min, x, dim, keepdim);
}

static zt_status argmax_shape(zt_ctx *c, zt_call *call) {
  (void)c;
  if (call->in[0]->dtype != ZT_I64) ZT_TRY(zt_check_float(call->in[0], "the input"));
  ZT_TRY(check_some(call));
  return declare(call, ZT_I64);
}

static zt_status argmax_forward(zt_ctx *c, zt_call *call) {
  zt_tensor *value;
  ZT_TRY(zt_tensor_new(c, &value, call->in[0]->dtype, call->out[0]->ndim, call->out[0]->shape));
  zt_status st = reduce(c, ZT_REDUCE_MAX, call->in[0], call->attr.i[0], value, call->out[0]);
  zt_tensor_release(value);
  return st;
}

const zt_op zt_op_argmax = {"argmax", 1, 0, 0, false, argmax_shape, argmax_forward, NULL};

zt_status zt_argmax(zt_ctx *c, zt_tensor **index, zt_tensor *x, int dim, bool keepdim) {
  return apply_reduce(c, index, &zt_op_argmax, x, dim, keepdim, 0);
}

/* ---- var: attr.i[2] the correction; aux output 1 the mean, dimensions kept. gx = g 2 (x - mean) / (n - correction) */

static zt_status var_shape(zt_ctx *c, zt_call *call) {
  int ndim;
  int64_t shape[ZT_MAX_DIM];
  ZT_TRY(float_shape(c, call));
  reduced_shape(call->in[0], call->attr.i[0], true, &ndim, shape);
  return zt_call_out(call, call->in[0]->dtype, ndim, shape);
}

/* 1 / (n - correction): infinite where nothing is left, as torch.var has it. */
static double var_scale(const zt_call *call) {
  double n = (double)zt_around_dim(call->in[0], call->attr.i[0]).n - (double)call->attr.i[2];
  return n > 0 ? 1 / n : NAN;
}

static zt_status var_forward(zt_ctx *c, zt_call *call) {
  zt_tensor *d = NULL, *square = NULL, *sum = NULL;
  zt_status st;
  bool grad = zt_ctx_set_grad_enabled(c, false);
  ZT_TRY_GOTO(reduce(c, ZT_REDUCE_MEAN, call->in[0], call->attr.i[0], call->out[1], NULL), done);
  ZT_TRY_GOTO(zt_sub(c, &d, call->in[0], call->out[1]), done);
  ZT_TRY_GOTO(zt_mul(c, &square, d, d), done);
  ZT_TRY_GOTO(zt_tensor_like(c, call->out[0], &sum), done);
  ZT_TRY_GOTO(reduce(c, ZT_REDUCE_SUM, square, call->attr.i[0], sum, NULL), done);
  st = zt_k(c)->unary(zt_s(c), ZT_UNARY_AFFINE, sum->dtype, zt_tensor_data(call->out[0]), zt_tensor_data(sum),
                      var_scale(call), 0, (size_t)zt_tensor_count(sum));
done:
  zt_ctx_set_grad_enabled(c, grad);
  zt_tensor_release(d);
  zt_tensor_release(square);
  zt_tensor_release(sum);
  return st;
}

static zt_status var_backward(zt_ctx *c, const zt_call *call, zt_tensor *const gout[], zt_tensor *gin[]) {
  zt_tensor *d = NULL, *scaled = NULL, *g = NULL;
  zt_status st;
  ZT_TRY_GOTO(zt_sub(c, &d, call->in[0], call->out[1]), done);
  ZT_TRY_GOTO(zt_affine(c, &scaled, d, 2 * var_scale(call), 0), done);
  ZT_TRY_GOTO(with_kept_dims(c, gout[0], call, &g), done);
  st = zt_mul(c, &gin[0], scaled, g);
done:
  zt_tensor_release(d);
  zt_tensor_release(scaled);
  zt_tensor_release(g);
  return st;
}

const zt_op zt_op_var = {"var", 1, 1, 2, false, var_shape, var_forward, var_backward};

zt_status zt_var(zt_ctx *c, zt_tensor **y, zt_tensor *x, int dim, bool keepdim, int correction) {
  return apply_reduce(c, y, &zt_op_var, x, dim, keepdim, correction);
}

/* ---- norm: y = sqrt(sum x^2); gx = g x / y, 0 where y is 0 */

static zt_status norm_forward(zt_ctx *c, zt_call *call) {
  zt_tensor *square = NULL, *sum = NULL;
  zt_status st;
  bool grad = zt_ctx_set_grad_enabled(c, false);
  ZT_TRY_GOTO(zt_mul(c, &square, call->in[0], call->in[0]), done);
  ZT_TRY_GOTO(zt_tensor_like(c, call->out[0], &sum), done);
  ZT_TRY_GOTO(reduce(c, ZT_REDUCE_SUM, square, call->attr.i[0], sum, NULL), done);
  st = zt_k(c)->unary(zt_s(c), ZT_UNARY_SQRT, sum->dtype, zt_tensor_data(call->out[0]), zt_tensor_data(sum), 0, 0,
                      (size_t)zt_tensor_count(sum));
done:
  zt_ctx_set_grad_enabled(c, grad);
  zt_tensor_release(square);
  zt_tensor_release(sum);
  return st;
}

static zt_status norm_backward(zt_ctx *c, const zt_call *call, zt_tensor *const gout[], zt_tensor *gin[]) {
  zt_tensor *zero = NULL, *is_zero = NULL, *ratio = NULL, *safe = NULL, *kept = NULL;
  zt_status st;
  ZT_TRY_GOTO(zt_scalar(c, &zero, gout[0]->dtype, 0), done);
  ZT_TRY_GOTO(zt_compare_op(c, &is_zero, call->out[0], zero, ZT_COMPARE_EQ), done);
  ZT_TRY_GOTO(zt_div(c, &ratio, gout[0], call->out[0]), done);
  ZT_TRY_GOTO(zt_masked_fill(c, &safe, ratio, is_zero, 0), done);
  ZT_TRY_GOTO(with_kept_dims(c, safe, call, &kept), done);
  st = zt_mul(c, &gin[0], call->in[0], kept);
done:
  zt_tensor_release(zero);
  zt_tensor_release(is_zero);
  zt_tensor_release(ratio);
  zt_tensor_release(safe);
  zt_tensor_release(kept);
  return st;
}

const zt_op zt_op_norm = {"norm", 1, 1, 1, false, float_shape, norm_forward, norm_backward};

zt_status zt_norm(zt_ctx *c, zt_tensor **y, zt_tensor *x, int dim, bool keepdim) {
  return apply_reduce(c, y, &zt_op_norm, x, dim, keepdim, 0);
}

/* ---- topk over the last dimension: attr.i = k, largest; outputs values, index. Other dimensions by transposition */

static zt_status topk_shape(zt_ctx *c, zt_call *call) {
  (void)c;
  zt_tensor *x = call->in[0];
  int64_t k = call->attr.i[0], shape[ZT_MAX_DIM];
  ZT_TRY(zt_check_float(x, "the input"));
  if (k < 0 || k > x->shape[x->ndim - 1])
    return zt_fail(ZT_SHAPE, "k is %lld, there are %lld elements along the dimension of %s", (long long)k,
                   (long long)x->shape[x->ndim - 1], zt_shape_text(x));
  memcpy(shape, x->shape, sizeof shape);
  shape[x->ndim - 1] = k;
  ZT_TRY(zt_call_out(call, x->dtype, x->ndim, shape));
  return zt_call_out(call, ZT_I64, x->ndim, shape);
}

static zt_status topk_forward(zt_ctx *c, zt_call *call) {
  zt_tensor *x;
  zt_around s = zt_around_dim(call->in[0], call->in[0]->ndim - 1);
  ZT_TRY(zt_contiguous(c, call->in[0], &x));
  zt_status st = zt_k(c)->topk(zt_s(c), x->dtype, zt_tensor_data(call->out[0]), zt_tensor_data(call->out[1]),
                               zt_tensor_data(x), s.outer, s.n, (size_t)call->attr.i[0], call->attr.i[1] != 0);
  zt_tensor_release(x);
  return st;
}

static zt_status topk_backward(zt_ctx *c, const zt_call *call, zt_tensor *const gout[], zt_tensor *gin[]) {
  zt_around s = zt_around_dim(call->in[0], call->in[0]->ndim - 1);
  return scatter_back(c, call->in[0], gout[0], call->out[1], s, (size_t)call->attr.i[0], &gin[0]);
}

const zt_op zt_op_topk = {"topk", 2, 0, 2, false, topk_shape, topk_forward, topk_backward};

zt_status zt_topk(zt_ctx *c, zt_tensor **values, zt_tensor **index, zt_tensor *x, int64_t k, int dim, bool largest) {
  *values = *index = NULL;
  int d;
  zt_tensor *turned, *outs[2] = {NULL, NULL};
  ZT_TRY(zt_wrap(zt_check_dim(x, dim, &d), "topk"));
  ZT_TRY(zt_transpose(c, &turned, x, d, -1));
  zt_call call = {.op = &zt_op_topk, .in = {turned}, .n_in = 1, .attr.i = {k, largest}};
  zt_status st = zt_apply(c, &call, outs);
  if (st == ZT_OK) st = zt_transpose(c, values, outs[0], d, -1);
  if (st == ZT_OK) st = zt_transpose(c, index, outs[1], d, -1);
  if (st != ZT_OK) zt_tensor_release(*values), *values = NULL;
  zt_tensor_release(turned);
  zt_tensor_release(outs[0]);
  zt_tensor_release(outs[1]);
  return st;
}
