/* op_dropout.c - dropout by Philox: the mask is never stored, backward draws it again. attr.f[0] = p, attr.key.
** Dimension 0 is the sample: the key counts rows of what one sample holds. */
#include "core/tensor/ops.h"

static zt_status dropout_shape(zt_ctx *c, zt_call *call) {
  double p = call->attr.f[0];
  ZT_TRY(zt_check_float(call->in[0], "the input"));
  if (!(p >= 0 && p < 1)) return zt_fail(ZT_INVALID, "the probability is %g, it must lie in [0, 1)", p);
  call->attr.key = zt_next_rng_key(c);
  return zt_call_out(call, call->in[0]->dtype, call->in[0]->ndim, call->in[0]->shape);
}

static zt_status run(zt_ctx *c, const zt_call *call, zt_tensor *x, zt_tensor *y) {
  zt_tensor *whole;
  size_t rows = x->ndim ? (size_t)x->shape[0] : 1, count = (size_t)zt_tensor_count(x);
  ZT_TRY(zt_contiguous(c, x, &whole));
  zt_status st = zt_k(c)->dropout(zt_s(c), x->dtype, zt_tensor_data(y), zt_tensor_data(whole), call->attr.f[0],
                                  &call->attr.key, rows, rows ? count / rows : 0);
  zt_tensor_release(whole);
  return st;
}

static zt_status dropout_forward(zt_ctx *c, zt_call *call) { return run(c, call, call->in[0], call->out[0]); }

static zt_status dropout_backward(zt_ctx *c, const zt_call *call, zt_tensor *const gout[], zt_tensor *gin[]) {
  ZT_TRY(zt_tensor_like(c, gout[0], &gin[0]));
  return run(c, call, gout[0], gin[0]);
}

const zt_op zt_op_dropout = {"dropout", 1, 0, 0, false, dropout_shape, dropout_forward, dropout_backward};

zt_status zt_dropout(zt_ctx *c, zt_tensor **y, zt_tensor *x, double p) {
  if (p == 0) {
    *y = zt_tensor_retain(x);
    return ZT_OK;
  }
  zt_call call = {.op = &zt_op_dropout, .in = {x}, .n_in = 1, .attr.f = {p}};
  return zt_apply(c, &call, y);
}
