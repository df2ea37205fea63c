/* op_softmax.c - softmax and its logarithm. in = x, mask or NULL (uint8, x's shape); the last dimension is the one that
** sums to 1. attr.i[0] = log. Other dimensions by transposed views. */
#include "core/tensor/ops.h"

static zt_status softmax_shape(zt_ctx *c, zt_call *call) {
  (void)c;
  ZT_TRY(zt_check_float(call->in[0], "the input"));
  if (call->in[1]) ZT_TRY(zt_check_dtype(call->in[1], ZT_U8, "the mask"));
  return zt_call_out(call, call->in[0]->dtype, call->in[0]->ndim, call->in[0]->shape);
}

static zt_status softmax_forward(zt_ctx *c, zt_call *call) {
  zt_tensor *x, *mask = NULL, *y = call->out[0];
  zt_status st;
  ZT_TRY(zt_contiguous(c, call->in[0], &x));
  if (call->in[1]) ZT_TRY_GOTO(zt_contiguous(c, call->in[1], &mask), done);
  st = zt_k(c)->softmax(zt_s(c), y->dtype, zt_tensor_data(y), zt_tensor_data(x), mask ? zt_tensor_data(mask) : NULL,
                        call->attr.i[0] != 0, (size_t)zt_rows(y), (size_t)zt_cols(y));
done:
  zt_tensor_release(x);
  zt_tensor_release(mask);
  return st;
}

static zt_status softmax_backward(zt_ctx *c, const zt_call *call, zt_tensor *const gout[], zt_tensor *gin[]) {
  zt_tensor *gy, *y = call->out[0];
  ZT_TRY(zt_contiguous(c, gout[0], &gy));
  zt_status st = zt_tensor_like(c, y, &gin[0]);
  if (st == ZT_OK)
    st = zt_k(c)->softmax_bwd(zt_s(c), y->dtype, zt_tensor_data(gin[0]), zt_tensor_data(gy), zt_tensor_data(y),
                              call->attr.i[0] != 0, (size_t)zt_rows(y), (size_t)zt_cols(y));
  zt_tensor_release(gy);
  return st;
}

const zt_op zt_op_softmax = {"softmax", 1, 0, 1, false, softmax_shape, softmax_forward, softmax_backward};
const zt_op zt_op_log_softmax = {"log_softmax", 1, 0, 1, false, softmax_shape, softmax_forward, softmax_backward};

/* The mask as a view of x's shape with dimension d last. */
static zt_status turned_mask(zt_ctx *c, zt_tensor *mask, const zt_tensor *x, int d, zt_tensor **out) {
  zt_tensor *whole;
  ZT_TRY(zt_expand(c, &whole, mask, x->ndim, x->shape));
  zt_status st = zt_transpose(c, out, whole, d, -1);
  zt_tensor_release(whole);
  return st;
}

static zt_status apply_softmax(zt_ctx *c, zt_tensor **y, const zt_op *op, zt_tensor *x, zt_tensor *mask, int dim,
                               bool log) {
  *y = NULL;
  int d;
  zt_tensor *turned = NULL, *turned_m = NULL, *result = NULL;
  zt_status st;
  ZT_TRY(zt_wrap(zt_check_dim(x, dim, &d), "%s", op->name));
  ZT_TRY_GOTO(zt_transpose(c, &turned, x, d, -1), done);
  if (mask) ZT_TRY_GOTO(zt_wrap(turned_mask(c, mask, x, d, &turned_m), "%s: the mask", op->name), done);
  zt_call call = {.op = op, .in = {turned, turned_m}, .n_in = 2, .attr.i = {log}};
  ZT_TRY_GOTO(zt_apply(c, &call, &result), done);
  st = zt_transpose(c, y, result, d, -1);
done:
  zt_tensor_release(turned);
  zt_tensor_release(turned_m);
  zt_tensor_release(result);
  return st;
}

zt_status zt_softmax(zt_ctx *c, zt_tensor **y, zt_tensor *x, zt_tensor *mask, int dim) {
  return apply_softmax(c, y, &zt_op_softmax, x, mask, dim, false);
}

zt_status zt_log_softmax(zt_ctx *c, zt_tensor **y, zt_tensor *x, zt_tensor *mask, int dim) {
  return apply_softmax(c, y, &zt_op_log_softmax, x, mask, dim, true);
}
