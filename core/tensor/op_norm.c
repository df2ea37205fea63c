/* op_norm.c - layer normalization over the last dimension, alone or of a sum. in = x, w, b (or x, residual, w, b); w and
** b may be NULL. attr.f[0] = eps. Aux outputs: mean and 1 / standard deviation of each row. */
#include "core/tensor/ops.h"

static zt_status check_vector(const zt_tensor *x, const zt_tensor *v, const char *which) {
  if (!v) return ZT_OK;
  ZT_TRY(zt_check_dtype(v, x->dtype, which));
  if (v->ndim == 1 && v->shape[0] == x->shape[x->ndim - 1]) return ZT_OK;
  return zt_fail(ZT_SHAPE, "%s %s, input %s", which, zt_shape_text(v), zt_shape_text(x));
}

/* Outputs: n_outs like x, then mean and rstd. */
static zt_status declare(zt_call *call, const zt_tensor *w, const zt_tensor *b, int n_outs) {
  const zt_tensor *x = call->in[0];
  ZT_TRY(zt_check_float(x, "the input"));
  if (x->ndim < 1) return zt_fail(ZT_SHAPE, "the input has no dimensions");
  if (!(call->attr.f[0] >= 0)) return zt_fail(ZT_INVALID, "eps is %g, it must not be negative", call->attr.f[0]);
  ZT_TRY(check_vector(x, w, "weight"));
  ZT_TRY(check_vector(x, b, "bias"));
  for (int i = 0; i < n_outs; i++) ZT_TRY(zt_call_out(call, x->dtype, x->ndim, x->shape));
  for (int i = 0; i < 2; i++) ZT_TRY(zt_call_out(call, zt_dtype_stat(x->dtype), x->ndim - 1, x->shape));
  return ZT_OK;
}

/* Contiguous versions of the inputs (owned), NULL where there is none. */
static zt_status all_contiguous(zt_ctx *c, zt_tensor *const in[], int n, zt_tensor *out[]) {
  for (int i = 0; i < n; i++)
    if (in[i]) ZT_TRY(zt_contiguous(c, in[i], &out[i]));
  return ZT_OK;
}

static void release_all(zt_tensor *list[], int n) {
  for (int i = 0; i < n; i++) zt_tensor_release(list[i]);
}

/* in = x, residual or NULL, w, b; sum NULL without a residual. */
static zt_status run(zt_ctx *c, zt_tensor *const in[4], zt_tensor *y, zt_tensor *sum, zt_tensor *mean, zt_tensor *rstd,
                     double eps) {
  zt_tensor *t[4] = {NULL};
  zt_status st = all_contiguous(c, in, 4, t);
  if (st == ZT_OK)
    st = zt_k(c)->layer_norm(zt_s(c), y->dtype, zt_tensor_data(y), zt_data_or_null(sum), zt_tensor_data(mean),
                             zt_tensor_data(rstd), zt_tensor_data(t[0]), zt_data_or_null(t[1]), zt_data_or_null(t[2]),
                             zt_data_or_null(t[3]), eps, (size_t)zt_rows(y), (size_t)zt_cols(y));
  release_all(t, 4);
  return st;
}

typedef struct saved {
  zt_tensor *h, *mean, *rstd, *w, *b; /* h: what was normalized; b: a header */
} saved;

/* *gx = the gradient of h, gsum (or NULL) included; *gw and *gb where wanted (else NULL in 'to'). */
static zt_status run_back(zt_ctx *c, saved s, zt_tensor *gy, zt_tensor *gsum, zt_tensor **gx, zt_tensor **gw,
                          zt_tensor **gb) {
  zt_tensor *in[4] = {s.h, gy, gsum, s.w}, *t[4] = {NULL}, *workspace = NULL, *g = NULL;
  size_t rows = (size_t)zt_rows(s.h), cols = (size_t)zt_cols(s.h);
  zt_status st;
  ZT_TRY_GOTO(all_contiguous(c, in, 4, t), done);
  ZT_TRY_GOTO(zt_tensor_like(c, s.h, &g), done);
  if (gw) ZT_TRY_GOTO(zt_tensor_like(c, s.w, gw), done);
  if (gb) ZT_TRY_GOTO(zt_tensor_like(c, s.b, gb), done);
  ZT_TRY_GOTO(zt_workspace(c, zt_k(c)->layer_norm_bwd_workspace(gy->dtype, rows, cols), &workspace), done);
  st = zt_k(c)->layer_norm_bwd(zt_s(c), gy->dtype, zt_tensor_data(g), gw ? zt_tensor_data(*gw) : NULL,
                               gb ? zt_tensor_data(*gb) : NULL, zt_tensor_data(t[1]), zt_data_or_null(t[2]),
                               zt_tensor_data(t[0]), zt_tensor_data(s.mean), zt_tensor_data(s.rstd),
                               zt_data_or_null(t[3]), rows, cols, zt_data_or_null(workspace));
done:
  *gx = g; /* NOLINT(clang-analyzer-core.NullDereference): every caller passes one */
  release_all(t, 4);
  zt_tensor_release(workspace);
  return st;
}

/* ---- layer_norm: in = x, w, b; out = y, mean, rstd */

static zt_status layer_norm_shape(zt_ctx *c, zt_call *call) {
  (void)c;
  return declare(call, call->in[1], call->in[2], 1);
}

static zt_status layer_norm_forward(zt_ctx *c, zt_call *call) {
  zt_tensor *in[4] = {call->in[0], NULL, call->in[1], call->in[2]};
  return run(c, in, call->out[0], NULL, call->out[1], call->out[2], call->attr.f[0]);
}

static zt_status layer_norm_backward(zt_ctx *c, const zt_call *call, zt_tensor *const gout[], zt_tensor *gin[]) {
  saved s = {call->in[0], call->out[1], call->out[2], call->in[1], call->in[2]};
  return run_back(c, s, gout[0], NULL, &gin[0], call->needs_grad & 2 ? &gin[1] : NULL,
                  call->needs_grad & 4 ? &gin[2] : NULL);
}

const zt_op zt_op_layer_norm = {"layer_norm",       1, 3, 6, false, layer_norm_shape, layer_norm_forward,
                                layer_norm_backward};

zt_status zt_layer_norm(zt_ctx *c, zt_tensor **y, zt_tensor *x, zt_tensor *w, zt_tensor *b, double eps) {
  zt_call call = {.op = &zt_op_layer_norm, .in = {x, w, b}, .n_in = 3, .attr.f = {eps}};
  return zt_apply(c, &call, y);
}

/* ---- residual_layer_norm: in = x, residual, w, b; out = y, sum, mean, rstd */

static zt_status residual_shape(zt_ctx *c, zt_call *call) {
  (void)c;
  zt_tensor *x = call->in[0], *residual = call->in[1];
  if (!zt_tensor_same_shape(x, residual) || x->dtype != residual->dtype)
    return zt_fail(ZT_SHAPE, "input %s %s, residual %s %s", zt_dtype_name(x->dtype), zt_shape_text(x),
                   zt_dtype_name(residual->dtype), zt_shape_text(residual));
  return declare(call, call->in[2], call->in[3], 2);
}

static zt_status residual_forward(zt_ctx *c, zt_call *call) {
  return run(c, call->in, call->out[0], call->out[1], call->out[2], call->out[3], call->attr.f[0]);
}

static zt_status residual_backward(zt_ctx *c, const zt_call *call, zt_tensor *const gout[], zt_tensor *gin[]) {
  saved s = {call->out[1], call->out[2], call->out[3], call->in[2], call->in[3]};
  zt_tensor *g = NULL;
  zt_status st = ZT_OK;
  if (gout[0])
    st = run_back(c, s, gout[0], gout[1], &g, call->needs_grad & 4 ? &gin[2] : NULL,
                  call->needs_grad & 8 ? &gin[3] : NULL);
  else
    g = zt_tensor_retain(gout[1]); /* only the sum was used */
  for (int i = 0; i < 2 && st == ZT_OK; i++)
    if (call->needs_grad >> i & 1) gin[i] = zt_tensor_retain(g);
  zt_tensor_release(g);
  return st;
}

const zt_op zt_op_residual_layer_norm = {"residual_layer_norm", 2, 4, 14, false, residual_shape, residual_forward,
                                         residual_backward};

zt_status zt_residual_layer_norm(zt_ctx *c, zt_tensor **y, zt_tensor **sum, zt_tensor *x, zt_tensor *residual,
                                 zt_tensor *w, zt_tensor *b, double eps) {
  zt_tensor *outs[2];
  zt_call call = {.op = &zt_op_residual_layer_norm, .in = {x, residual, w, b}, .n_in = 4, .attr.f = {eps}};
  zt_status st = zt_apply(c, &call, outs);
  *y = outs[0], *sum = outs[1];
  return st;
}
