/* op_conv.c - 1-d convolution, channels last, as a product: unfold lays the window of each output place in a row. in = x
** (B, T, C_in), w (C_out, C_in, width), b or NULL; attr.i = stride, pad, dilation. */
#include "core/tensor/ops.h"

typedef struct sizes {
  int64_t batch, n_t, n_c, n_out, width, c_out, stride, pad, dilation;
} sizes;

static sizes sizes_of(const zt_call *call) {
  const zt_tensor *x = call->in[0], *w = call->in[1];
  const int64_t *a = call->attr.i;
  sizes s = {x->shape[0], x->shape[1], x->shape[2], 0, w->shape[2], w->shape[0], a[0], a[1], a[2]};
  int64_t span = s.n_t + 2 * s.pad - s.dilation * (s.width - 1) - 1;
  s.n_out = span < 0 ? 0 : span / s.stride + 1;
  return s;
}

static zt_status conv1d_shape(zt_ctx *c, zt_call *call) {
  (void)c;
  zt_tensor *x = call->in[0], *w = call->in[1], *b = call->in[2];
  ZT_TRY(zt_check_float(x, "the input"));
  ZT_TRY(zt_check_dtype(w, x->dtype, "the weight"));
  if (x->ndim != 3 || w->ndim != 3 || x->shape[2] != w->shape[1] || w->shape[2] < 1)
    return zt_fail(ZT_SHAPE, "input %s (batch, time, channels), weight %s (out, in, width)", zt_shape_text(x),
                   zt_shape_text(w));
  if (call->attr.i[0] < 1 || call->attr.i[1] < 0 || call->attr.i[2] < 1)
    return zt_fail(ZT_INVALID, "stride %lld, padding %lld, dilation %lld", (long long)call->attr.i[0],
                   (long long)call->attr.i[1], (long long)call->attr.i[2]);
  if (b) ZT_TRY(zt_check_dtype(b, x->dtype, "the bias"));
  if (b && (b->ndim != 1 || b->shape[0] != w->shape[0]))
    return zt_fail(ZT_SHAPE, "bias %s, weight %s", zt_shape_text(b), zt_shape_text(w));
  sizes s = sizes_of(call);
  return zt_call_out(call, x->dtype, 3, (int64_t[]){s.batch, s.n_out, s.c_out});
}

/* (B * T_out, C_in * width), owned. */
static zt_status unfold(zt_ctx *c, const zt_call *call, sizes s, zt_tensor **out) {
  zt_tensor *x;
  ZT_TRY(zt_contiguous(c, call->in[0], &x));
  zt_status st = zt_tensor_new(c, out, x->dtype, 2, (int64_t[]){s.batch * s.n_out, s.n_c * s.width});
  if (st == ZT_OK)
    st = zt_k(c)->unfold1d(zt_s(c), x->dtype, zt_tensor_data(*out), zt_tensor_data(x), (size_t)s.batch, (size_t)s.n_t,
                           (size_t)s.n_c, (size_t)s.n_out, (size_t)s.width, (size_t)s.stride, (size_t)s.dilation,
                           (size_t)s.pad);
  zt_tensor_release(x);
  return st;
}

static zt_status conv1d_forward(zt_ctx *c, zt_call *call) {
  sizes s = sizes_of(call);
  zt_tensor *y = call->out[0], *windows = NULL, *w = NULL, *b = NULL;
  zt_gemm g = zt_gemm_plain(false, true, s.batch * s.n_out, s.c_out, s.n_c * s.width, 0);
  zt_status st;
  ZT_TRY_GOTO(unfold(c, call, s, &windows), done);
  ZT_TRY_GOTO(zt_contiguous(c, call->in[1], &w), done);
  if (call->in[2]) ZT_TRY_GOTO(zt_contiguous(c, call->in[2], &b), done);
  ZT_TRY_GOTO(zt_gemm_run(c, y->dtype, zt_tensor_data(y), zt_tensor_data(windows), zt_tensor_data(w), &g), done);
  if (b)
    st = zt_k(c)->bias_act(zt_s(c), y->dtype, zt_tensor_data(y), zt_tensor_data(y), zt_tensor_data(b), ZT_ACT_NONE,
                           (size_t)(s.batch * s.n_out), (size_t)s.c_out);
done:
  zt_tensor_release(windows);
  zt_tensor_release(w);
  zt_tensor_release(b);
  return st;
}

static zt_status to_input(zt_ctx *c, const zt_call *call, sizes s, zt_tensor *gy, zt_tensor *gin[]) {
  zt_tensor *w, *windows = NULL;
  zt_gemm g = zt_gemm_plain(false, false, s.batch * s.n_out, s.n_c * s.width, s.c_out, 0);
  zt_status st;
  ZT_TRY(zt_contiguous(c, call->in[1], &w));
  ZT_TRY_GOTO(zt_tensor_new(c, &windows, gy->dtype, 2, (int64_t[]){g.m, g.n}), done);
  ZT_TRY_GOTO(zt_gemm_run(c, gy->dtype, zt_tensor_data(windows), zt_tensor_data(gy), zt_tensor_data(w), &g), done);
  ZT_TRY_GOTO(zt_tensor_like(c, call->in[0], &gin[0]), done);
  st = zt_k(c)->fold1d(zt_s(c), gy->dtype, zt_tensor_data(gin[0]), zt_tensor_data(windows), (size_t)s.batch,
                       (size_t)s.n_t, (size_t)s.n_c, (size_t)s.n_out, (size_t)s.width, (size_t)s.stride,
                       (size_t)s.dilation, (size_t)s.pad);
done:
  zt_tensor_release(w);
  zt_tensor_release(windows);
  return st;
}

static zt_status to_weight(zt_ctx *c, const zt_call *call, sizes s, zt_tensor *gy, zt_tensor *gin[]) {
  zt_tensor *windows = NULL, *gw;
  double beta;
  zt_status st = unfold(c, call, s, &windows);
  if (st == ZT_OK) st = zt_gradient_target(c, call, 1, gin, &gw, &beta);
  if (st == ZT_OK) {
    zt_gemm g = zt_gemm_plain(true, false, s.c_out, s.n_c * s.width, s.batch * s.n_out, beta);
    st = zt_gemm_run(c, gy->dtype, zt_tensor_data(gw), zt_tensor_data(gy), zt_tensor_data(windows), &g);
  }
  zt_tensor_release(windows);
  return st;
}

static zt_status to_bias(zt_ctx *c, const zt_call *call, sizes s, zt_tensor *gy, zt_tensor *gin[]) {
  size_t rows = (size_t)(s.batch * s.n_out), cols = (size_t)s.c_out;
  zt_tensor *workspace;
  ZT_TRY(zt_tensor_like(c, call->in[2], &gin[2]));
  ZT_TRY(zt_workspace(c, zt_k(c)->bias_act_bwd_workspace(gy->dtype, rows, cols), &workspace));
  zt_status st = zt_k(c)->bias_act_bwd(zt_s(c), gy->dtype, NULL, zt_tensor_data(gin[2]), zt_tensor_data(gy), NULL,
                                       ZT_ACT_NONE, rows, cols, zt_data_or_null(workspace));
  zt_tensor_release(workspace);
  return st;
}

static zt_status conv1d_backward(zt_ctx *c, const zt_call *call, zt_tensor *const gout[], zt_tensor *gin[]) {
  sizes s = sizes_of(call);
  zt_tensor *gy;
  ZT_TRY(zt_contiguous(c, gout[0], &gy));
  zt_status st = ZT_OK;
  if (call->needs_grad & 1) st = to_input(c, call, s, gy, gin);
  if (st == ZT_OK && call->needs_grad & 2) st = to_weight(c, call, s, gy, gin);
  if (st == ZT_OK && call->needs_grad & 4) st = to_bias(c, call, s, gy, gin);
  zt_tensor_release(gy);
  return st;
}

const zt_op zt_op_conv1d = {"conv1d", 1, 3, 0, false, conv1d_shape, conv1d_forward, conv1d_backward};

zt_status zt_conv1d(zt_ctx *c, zt_tensor **y, zt_tensor *x, zt_tensor *w, zt_tensor *b, int64_t stride, int64_t pad,
                    int64_t dilation) {
  zt_call call = {.op = &zt_op_conv1d, .in = {x, w, b}, .n_in = 3, .attr.i = {stride, pad, dilation}};
  return zt_apply(c, &call, y);
}
