/* op_elementwise.c - one element in, one element out. */
#include "core/tensor/ops.h"

/* ---- one operand: attr.i[0] the function, attr.f its parameters */

static zt_status unary_shape(zt_ctx *c, zt_call *call) {
  (void)c;
  zt_tensor *x = call->in[0];
  int needs = zt_unary_needs((zt_unary)call->attr.i[0]);
  ZT_TRY(zt_check_float(x, "the input"));
  call->save_in = (uint32_t)needs & 1, call->save_out = (uint32_t)needs >> 1 & 1;
  return zt_call_out(call, x->dtype, x->ndim, x->shape);
}

static zt_status unary_forward(zt_ctx *c, zt_call *call) {
  zt_tensor *x, *y = call->out[0];
  ZT_TRY(zt_contiguous(c, call->in[0], &x));
  zt_status st = zt_k(c)->unary(zt_s(c), (zt_unary)call->attr.i[0], y->dtype, zt_tensor_data(y), zt_tensor_data(x),
                                call->attr.f[0], call->attr.f[1], (size_t)zt_tensor_count(y));
  zt_tensor_release(x);
  return st;
}

/* What was saved of 't', contiguous (owned); NULL where it was not. */
static zt_status saved(zt_ctx *c, const zt_tensor *t, zt_tensor **out) {
  *out = NULL;
  return t->storage ? zt_contiguous(c, t, out) : ZT_OK;
}

static zt_status unary_backward(zt_ctx *c, const zt_call *call, zt_tensor *const gout[], zt_tensor *gin[]) {
  zt_tensor *x = NULL, *y = NULL, *gy = NULL;
  zt_status st;
  ZT_TRY_GOTO(zt_contiguous(c, gout[0], &gy), done);
  ZT_TRY_GOTO(saved(c, call->in[0], &x), done);
  ZT_TRY_GOTO(saved(c, call->out[0], &y), done);
  ZT_TRY_GOTO(zt_tensor_like(c, gy, &gin[0]), done);
  st = zt_k(c)->unary_bwd(zt_s(c), (zt_unary)call->attr.i[0], gy->dtype, zt_tensor_data(gin[0]), zt_tensor_data(gy),
                          zt_data_or_null(x), zt_data_or_null(y), call->attr.f[0], call->attr.f[1],
                          (size_t)zt_tensor_count(gy));
done:
  zt_tensor_release(x);
  zt_tensor_release(y);
  zt_tensor_release(gy);
  return st;
}

static zt_status apply_unary(zt_ctx *c, zt_tensor **y, const zt_op *op, zt_unary fn, zt_tensor *x, double p0,
                             double p1) {
  zt_call call = {.op = op, .in = {x}, .n_in = 1, .attr = {.i = {fn}, .f = {p0, p1}}};
  return zt_apply(c, &call, y);
}

/* U(row and name of the op, function's name, constant) */
#define UNARY_ROW(name) const zt_op zt_op_##name = {#name, 1, 0, 0, false, unary_shape, unary_forward, unary_backward};
#define UNARY(name, function, id)                                    \
  UNARY_ROW(name)                                                    \
  zt_status function(zt_ctx *c, zt_tensor **y, zt_tensor *x) {       \
    return apply_unary(c, y, &zt_op_##name, ZT_UNARY_##id, x, 0, 0); \
  }
UNARY(neg, zt_neg, NEG)
UNARY(exp, zt_exp, EXP)
UNARY(log, zt_log_, LOG)
UNARY(sqrt, zt_sqrt, SQRT)
UNARY(rsqrt, zt_rsqrt, RSQRT)
UNARY(tanh, zt_tanh, TANH)
UNARY(sigmoid, zt_sigmoid, SIGMOID)
UNARY(relu, zt_relu, RELU)
UNARY(gelu, zt_gelu, GELU)
UNARY(gelu_tanh, zt_gelu_tanh, GELU_TANH)
UNARY(silu, zt_silu, SILU)
UNARY_ROW(clamp)
UNARY_ROW(affine)
UNARY_ROW(pow_scalar)

zt_status zt_clamp(zt_ctx *c, zt_tensor **y, zt_tensor *x, double low, double high) {
  return apply_unary(c, y, &zt_op_clamp, ZT_UNARY_CLAMP, x, low, high);
}

zt_status zt_pow_scalar(zt_ctx *c, zt_tensor **y, zt_tensor *x, double exponent) {
  return apply_unary(c, y, &zt_op_pow_scalar, ZT_UNARY_POWS, x, exponent, 0);
}

/* Integers go through float64: exact up to 2^53. */
static zt_status integer_affine(zt_ctx *c, zt_tensor **y, zt_tensor *x, double factor, double shift) {
  zt_tensor *wide, *result;
  ZT_TRY(zt_cast(c, &wide, x, ZT_F64));
  zt_status st = apply_unary(c, &result, &zt_op_affine, ZT_UNARY_AFFINE, wide, factor, shift);
  zt_tensor_release(wide);
  ZT_TRY(st);
  st = zt_cast(c, y, result, x->dtype);
  zt_tensor_release(result);
  return st;
}

zt_status zt_affine(zt_ctx *c, zt_tensor **y, zt_tensor *x, double factor, double shift) {
  *y = NULL;
  if (x->dtype == ZT_I64 || x->dtype == ZT_I32) return integer_affine(c, y, x, factor, shift);
  return apply_unary(c, y, &zt_op_affine, ZT_UNARY_AFFINE, x, factor, shift);
}

/* ---- two operands: attr.i[0] the function. Backward saves only what the other side's gradient reads */

static zt_status check_operands(const zt_call *call) {
  zt_tensor *a = call->in[0], *b = call->in[1];
  if (a->dtype != b->dtype)
    return zt_fail(ZT_DTYPE, "%s %s and %s %s have different dtypes", zt_dtype_name(a->dtype), zt_shape_text(a),
                   zt_dtype_name(b->dtype), zt_shape_text(b));
  return ZT_OK;
}

static zt_status binary_shape(zt_ctx *c, zt_call *call) {
  (void)c;
  int ndim;
  int64_t shape[ZT_MAX_DIM];
  bool to_a = call->needs_grad & 1, to_b = call->needs_grad >> 1 & 1;
  ZT_TRY(check_operands(call));
  if (call->in[0]->dtype == ZT_U8) return zt_fail(ZT_DTYPE, "uint8 tensors have no arithmetic");
  ZT_TRY(zt_broadcast_shape(call->in[0], call->in[1], &ndim, shape));
  switch (call->attr.i[0]) {
    case ZT_BINARY_MUL:
      call->save_in = (to_b ? 1u : 0) | (to_a ? 2u : 0);
      break;
    case ZT_BINARY_DIV:
      call->save_in = 2, call->save_out = to_b;
      break;
    case ZT_BINARY_POW:
      call->save_in = 3, call->save_out = to_b;
      break;
    default:
      break;
  }
  return zt_call_out(call, call->in[0]->dtype, ndim, shape);
}

static zt_status binary_forward(zt_ctx *c, zt_call *call) {
  zt_loop loop;
  zt_tensor *y = call->out[0];
  ZT_TRY(zt_loop_make(&loop, y, call->in, 2));
  return zt_k(c)->binary(zt_s(c), (zt_binary)call->attr.i[0], y->dtype, zt_tensor_data(y), zt_tensor_data(call->in[0]),
                         zt_tensor_data(call->in[1]), &loop);
}

/* gin[i] = g summed to the shape of in[i]. Takes over g. */
static zt_status give(zt_ctx *c, const zt_call *call, int i, zt_tensor *g, zt_tensor *gin[]) {
  zt_status st = zt_sum_to(c, g, call->in[i], &gin[i]);
  zt_tensor_release(g);
  return st;
}

static zt_status add_backward(zt_ctx *c, const zt_call *call, zt_tensor *const gout[], zt_tensor *gin[]) {
  for (int i = 0; i < 2; i++)
    if (call->needs_grad >> i & 1) ZT_TRY(zt_sum_to(c, gout[0], call->in[i], &gin[i]));
  return ZT_OK;
}

static zt_status sub_backward(zt_ctx *c, const zt_call *call, zt_tensor *const gout[], zt_tensor *gin[]) {
  zt_tensor *g;
  if (call->needs_grad & 1) ZT_TRY(zt_sum_to(c, gout[0], call->in[0], &gin[0]));
  if (!(call->needs_grad & 2)) return ZT_OK;
  ZT_TRY(zt_neg(c, &g, gout[0]));
  return give(c, call, 1, g, gin);
}

static zt_status mul_backward(zt_ctx *c, const zt_call *call, zt_tensor *const gout[], zt_tensor *gin[]) {
  for (int i = 0; i < 2; i++) {
    zt_tensor *g;
    if (!(call->needs_grad >> i & 1)) continue;
    ZT_TRY(zt_mul(c, &g, gout[0], call->in[1 - i]));
    ZT_TRY(give(c, call, i, g, gin));
  }
  return ZT_OK;
}

/* y = a / b: ga = g / b, gb = -(g / b) y. */
static zt_status div_backward(zt_ctx *c, const zt_call *call, zt_tensor *const gout[], zt_tensor *gin[]) {
  zt_tensor *ga, *product = NULL, *gb = NULL;
  ZT_TRY(zt_div(c, &ga, gout[0], call->in[1]));
  zt_status st = ZT_OK;
  if (call->needs_grad & 2) {
    ZT_TRY_GOTO(zt_mul(c, &product, ga, call->out[0]), done);
    ZT_TRY_GOTO(zt_neg(c, &gb, product), done);
    ZT_TRY_GOTO(zt_sum_to(c, gb, call->in[1], &gin[1]), done);
  }
  if (call->needs_grad & 1) st = zt_sum_to(c, ga, call->in[0], &gin[0]);
done:
  zt_tensor_release(ga);
  zt_tensor_release(product);
  zt_tensor_release(gb);
  return st;
}

/* y = a^b: ga = g b a^(b-1). */
static zt_status pow_to_base(zt_ctx *c, const zt_call *call, zt_tensor *g, zt_tensor *gin[]) {
  zt_tensor *less = NULL, *power = NULL, *slope = NULL, *ga = NULL;
  zt_status st;
  ZT_TRY_GOTO(zt_affine(c, &less, call->in[1], 1, -1), done);
  ZT_TRY_GOTO(zt_pow(c, &power, call->in[0], less), done);
  ZT_TRY_GOTO(zt_mul(c, &slope, power, call->in[1]), done);
  ZT_TRY_GOTO(zt_mul(c, &ga, slope, g), done);
  st = zt_sum_to(c, ga, call->in[0], &gin[0]);
done:
  zt_tensor_release(less);
  zt_tensor_release(power);
  zt_tensor_release(slope);
  zt_tensor_release(ga);
  return st;
}

/* gb = g y ln a, and 0 where y is 0 (0^b: the limit), as PyTorch has it. */
static zt_status pow_to_exponent(zt_ctx *c, const zt_call *call, zt_tensor *g, zt_tensor *gin[]) {
  zt_tensor *log = NULL, *slope = NULL, *zero = NULL, *is_zero = NULL, *safe = NULL, *gb = NULL;
  zt_status st;
  ZT_TRY_GOTO(zt_log_(c, &log, call->in[0]), done);
  ZT_TRY_GOTO(zt_mul(c, &slope, log, call->out[0]), done);
  ZT_TRY_GOTO(zt_scalar(c, &zero, g->dtype, 0), done);
  ZT_TRY_GOTO(zt_compare_op(c, &is_zero, call->in[0], zero, ZT_COMPARE_EQ), done);
  ZT_TRY_GOTO(zt_where(c, &safe, is_zero, zero, slope), done);
  ZT_TRY_GOTO(zt_mul(c, &gb, safe, g), done);
  st = zt_sum_to(c, gb, call->in[1], &gin[1]);
done:
  zt_tensor_release(log);
  zt_tensor_release(slope);
  zt_tensor_release(zero);
  zt_tensor_release(is_zero);
  zt_tensor_release(safe);
  zt_tensor_release(gb);
  return st;
}

static zt_status pow_backward(zt_ctx *c, const zt_call *call, zt_tensor *const gout[], zt_tensor *gin[]) {
  if (call->needs_grad & 1) ZT_TRY(pow_to_base(c, call, gout[0], gin));
  if (call->needs_grad & 2) ZT_TRY(pow_to_exponent(c, call, gout[0], gin));
  return ZT_OK;
}

/* Mixed precision makes pairs of float32, bfloat16 and float16: they meet in float32. Other pairs are mistakes. */
static bool meet_in_float32(const zt_tensor *a, const zt_tensor *b) {
  return a->dtype != b->dtype && zt_dtype_is_float(a->dtype) && zt_dtype_is_float(b->dtype) && a->dtype != ZT_F64 &&
         b->dtype != ZT_F64;
}

static zt_status apply_pair(zt_ctx *c, zt_call *call, zt_tensor **y, zt_tensor *a, zt_tensor *b) {
  bool meet = meet_in_float32(a, b);
  *y = NULL;
  ZT_TRY(zt_cast(c, &call->in[0], a, meet ? ZT_F32 : a->dtype));
  zt_status st = zt_cast(c, &call->in[1], b, meet ? ZT_F32 : b->dtype);
  if (st == ZT_OK) st = zt_apply(c, call, y);
  zt_tensor_release(call->in[0]);
  zt_tensor_release(call->in[1]);
  return st;
}

#define BINARY(name, id)                                                                             \
  const zt_op zt_op_##name = {#name, 1, 0, 0, false, binary_shape, binary_forward, name##_backward}; \
  zt_status zt_##name(zt_ctx *c, zt_tensor **y, zt_tensor *a, zt_tensor *b) {                        \
    zt_call call = {.op = &zt_op_##name, .n_in = 2, .attr.i = {ZT_BINARY_##id}};                     \
    return apply_pair(c, &call, y, a, b);                                                            \
  }
BINARY(add, ADD)
BINARY(sub, SUB)
BINARY(mul, MUL)
BINARY(div, DIV)
BINARY(pow, POW)

static zt_status compare_shape(zt_ctx *c, zt_call *call) {
  (void)c;
  int ndim;
  int64_t shape[ZT_MAX_DIM];
  ZT_TRY(check_operands(call));
  ZT_TRY(zt_broadcast_shape(call->in[0], call->in[1], &ndim, shape));
  return zt_call_out(call, ZT_U8, ndim, shape);
}

static zt_status compare_forward(zt_ctx *c, zt_call *call) {
  zt_loop loop;
  ZT_TRY(zt_loop_make(&loop, call->out[0], call->in, 2));
  return zt_k(c)->compare(zt_s(c), (zt_compare)call->attr.i[0], call->in[0]->dtype, zt_tensor_data(call->out[0]),
                          zt_tensor_data(call->in[0]), zt_tensor_data(call->in[1]), &loop);
}

const zt_op zt_op_compare = {"compare", 1, 0, 0, false, compare_shape, compare_forward, NULL};

zt_status zt_compare_op(zt_ctx *c, zt_tensor **y, zt_tensor *a, zt_tensor *b, zt_compare fn) {
  zt_call call = {.op = &zt_op_compare, .n_in = 2, .attr.i = {fn}};
  return apply_pair(c, &call, y, a, b);
}

/* ---- choosing: in = cond, a, b */

static zt_status where_shape(zt_ctx *c, zt_call *call) {
  (void)c;
  zt_tensor *cond = call->in[0], *a = call->in[1], *b = call->in[2];
  zt_tensor both = {0};
  int ndim;
  int64_t shape[ZT_MAX_DIM];
  ZT_TRY(zt_check_dtype(cond, ZT_U8, "the condition"));
  if (a->dtype != b->dtype)
    return zt_fail(ZT_DTYPE, "%s and %s have different dtypes", zt_dtype_name(a->dtype), zt_dtype_name(b->dtype));
  ZT_TRY(zt_broadcast_shape(a, b, &both.ndim, both.shape));
  ZT_TRY(zt_broadcast_shape(cond, &both, &ndim, shape));
  if (!zt_dtype_is_float(a->dtype)) call->needs_grad = 0;
  return zt_call_out(call, a->dtype, ndim, shape);
}

static zt_status where_forward(zt_ctx *c, zt_call *call) {
  zt_loop loop;
  ZT_TRY(zt_loop_make(&loop, call->out[0], call->in, 3));
  return zt_k(c)->where(zt_s(c), call->out[0]->dtype, zt_tensor_data(call->out[0]), zt_tensor_data(call->in[0]),
                        zt_tensor_data(call->in[1]), zt_tensor_data(call->in[2]), &loop);
}

static zt_status where_backward(zt_ctx *c, const zt_call *call, zt_tensor *const gout[], zt_tensor *gin[]) {
  zt_tensor *zero, *g;
  zt_status st = zt_scalar(c, &zero, gout[0]->dtype, 0);
  for (int i = 1; i <= 2 && st == ZT_OK; i++) {
    if (!(call->needs_grad >> i & 1)) continue;
    st = zt_where(c, &g, call->in[0], i == 1 ? gout[0] : zero, i == 1 ? zero : gout[0]);
    if (st == ZT_OK) st = give(c, call, i, g, gin);
  }
  zt_tensor_release(zero);
  return st;
}

const zt_op zt_op_where = {"where", 1, 1, 0, false, where_shape, where_forward, where_backward};

zt_status zt_where(zt_ctx *c, zt_tensor **y, zt_tensor *cond, zt_tensor *a, zt_tensor *b) {
  zt_call call = {.op = &zt_op_where, .in = {cond, a, b}, .n_in = 3};
  return zt_apply(c, &call, y);
}

/* ---- masked_fill: in = x, mask; attr.f[0] the value */

static zt_status masked_fill_shape(zt_ctx *c, zt_call *call) {
  (void)c;
  ZT_TRY(zt_check_dtype(call->in[1], ZT_U8, "the mask"));
  if (!zt_dtype_is_float(call->in[0]->dtype)) call->needs_grad = 0;
  return zt_call_out(call, call->in[0]->dtype, call->in[0]->ndim, call->in[0]->shape);
}

static zt_status fill_where(zt_ctx *c, zt_tensor *y, zt_tensor *x, zt_tensor *mask, double value) {
  zt_loop loop;
  zt_tensor *filler;
  ZT_TRY(zt_scalar(c, &filler, x->dtype, value));
  zt_tensor *in[3] = {mask, filler, x};
  zt_status st = zt_loop_make(&loop, y, in, 3);
  if (st == ZT_OK)
    st = zt_k(c)->where(zt_s(c), y->dtype, zt_tensor_data(y), zt_tensor_data(mask), zt_tensor_data(filler),
                        zt_tensor_data(x), &loop);
  zt_tensor_release(filler);
  return st;
}

static zt_status masked_fill_forward(zt_ctx *c, zt_call *call) {
  return fill_where(c, call->out[0], call->in[0], call->in[1], call->attr.f[0]);
}

static zt_status masked_fill_backward(zt_ctx *c, const zt_call *call, zt_tensor *const gout[], zt_tensor *gin[]) {
  return zt_masked_fill(c, &gin[0], gout[0], call->in[1], 0);
}

const zt_op zt_op_masked_fill = {"masked_fill",       1, 2, 0, false, masked_fill_shape, masked_fill_forward,
                                 masked_fill_backward};

zt_status zt_masked_fill(zt_ctx *c, zt_tensor **y, zt_tensor *x, zt_tensor *mask, double value) {
  zt_call call = {.op = &zt_op_masked_fill, .in = {x, mask}, .n_in = 2, .attr.f = {value}};
  return zt_apply(c, &call, y);
}
