/* op_attention.c - scaled dot-product attention, from three tensors or from one packed projection. The kernel gets strides,
** so heads are never permuted; probabilities are not kept, backward makes them again from the log-sum-exp of each row.
** attr.f = scale, dropout; attr.i = causal, heads (packed); attr.key. Aux output: the log-sum-exps (B, H, Tq). */
#include <math.h>

#include "core/tensor/ops.h"

/* The operands of the kernel, whichever op they come from. */
typedef struct operands {
  void *q, *k, *v; /* of the tensors, or of their gradients */
} operands;

static zt_status check_extras(const zt_call *call, const zt_tensor *x, const zt_tensor *mask, const zt_tensor *bias,
                              int64_t n_batch, int64_t n_k) {
  double dropout = call->attr.f[1];
  if (!(dropout >= 0 && dropout < 1))
    return zt_fail(ZT_INVALID, "the dropout probability is %g, it must lie in [0, 1)", dropout);
  if (mask) ZT_TRY(zt_check_dtype(mask, ZT_U8, "the mask"));
  if (mask && (mask->ndim != 2 || mask->shape[0] != n_batch || mask->shape[1] != n_k))
    return zt_fail(ZT_SHAPE, "mask %s, (%lld, %lld) is needed: a row of keys for each sequence", zt_shape_text(mask),
                   (long long)n_batch, (long long)n_k);
  return bias ? zt_check_dtype(bias, x->dtype, "the bias") : ZT_OK;
}

static void set_common(zt_attention *a, const zt_call *call) {
  a->causal = call->attr.i[0] != 0;
  a->dropout = call->attr.f[1];
  a->key = call->attr.key;
  a->scale = call->attr.f[0] != 0 ? call->attr.f[0] : 1 / sqrt((double)(a->head_dim ? a->head_dim : 1));
}

static void set_strides(int64_t out[3], const zt_tensor *t) {
  for (int i = 0; i < 3; i++) out[i] = t->stride[i];
  if (t->shape[1] == 1)
    out[1] = t->shape[3]; /* any stride leads to a single row, the kernel's products want a sound one */
}

/* The bias as a view (B, H, Tq, Tk), owned; its strides into 'a'. */
static zt_status spread_bias(zt_ctx *c, zt_tensor *bias, zt_attention *a, zt_tensor **out) {
  *out = NULL;
  if (!bias) return ZT_OK;
  ZT_TRY(zt_expand(c, out, bias, 4, (int64_t[]){a->n_batch, a->n_head, a->n_q, a->n_k}));
  for (int i = 0; i < 4; i++) a->bias_stride[i] = (*out)->stride[i];
  return ZT_OK;
}

static zt_status run(zt_ctx *c, const zt_call *call, zt_attention *a, operands x, zt_tensor *mask, zt_tensor *bias) {
  zt_tensor *whole_mask = NULL, *spread = NULL, *workspace = NULL, *y = call->out[0];
  zt_status st;
  bool grad = zt_ctx_set_grad_enabled(c, false);
  if (mask) ZT_TRY_GOTO(zt_contiguous(c, mask, &whole_mask), done);
  ZT_TRY_GOTO(spread_bias(c, bias, a, &spread), done);
  ZT_TRY_GOTO(zt_workspace(c, zt_k(c)->attention_workspace(y->dtype, a), &workspace), done);
  st = zt_k(c)->attention(zt_s(c), y->dtype, zt_tensor_data(y), zt_tensor_data(call->out[1]), x.q, x.k, x.v,
                          zt_data_or_null(whole_mask), zt_data_or_null(spread), a, zt_data_or_null(workspace));
done:
  zt_ctx_set_grad_enabled(c, grad);
  zt_tensor_release(whole_mask);
  zt_tensor_release(spread);
  zt_tensor_release(workspace);
  return st;
}

/* Gradients of q, k, v go to 'gx'; *gbias (owned) is that of the bias, in its shape, where gbias is not NULL. */
static zt_status run_back(zt_ctx *c, const zt_call *call, zt_attention *a, zt_tensor *gout, operands gx, operands x,
                          zt_tensor *mask, zt_tensor *bias, zt_tensor **gbias) {
  zt_tensor *whole_mask = NULL, *spread = NULL, *workspace = NULL, *gy = NULL, *gwhole = NULL, *y = call->out[0];
  zt_status st;
  if (mask) ZT_TRY_GOTO(zt_contiguous(c, mask, &whole_mask), done);
  ZT_TRY_GOTO(spread_bias(c, bias, a, &spread), done);
  ZT_TRY_GOTO(zt_contiguous(c, gout, &gy), done);
  if (gbias)
    ZT_TRY_GOTO(zt_tensor_new(c, &gwhole, y->dtype, 4, (int64_t[]){a->n_batch, a->n_head, a->n_q, a->n_k}), done);
  ZT_TRY_GOTO(zt_workspace(c, zt_k(c)->attention_bwd_workspace(y->dtype, a), &workspace), done);
  ZT_TRY_GOTO(
      zt_k(c)->attention_bwd(zt_s(c), y->dtype, gx.q, gx.k, gx.v, zt_data_or_null(gwhole), zt_tensor_data(gy), x.q, x.k,
                             x.v, zt_tensor_data(y), zt_tensor_data(call->out[1]), zt_data_or_null(whole_mask),
                             zt_data_or_null(spread), a, zt_data_or_null(workspace)),
      done);
  if (gbias) st = zt_sum_to(c, gwhole, bias, gbias);
done:
  for (int i = 0; i < 5; i++) zt_tensor_release((zt_tensor *[]){whole_mask, spread, workspace, gy, gwhole}[i]);
  return st;
}

/* ---- attention: in = q, k, v, mask or NULL, bias or NULL */

static zt_status attention_shape(zt_ctx *c, zt_call *call) {
  zt_tensor *q = call->in[0], *k = call->in[1], *v = call->in[2];
  ZT_TRY(zt_check_float(q, "q"));
  ZT_TRY(zt_check_dtype(k, q->dtype, "k"));
  ZT_TRY(zt_check_dtype(v, q->dtype, "v"));
  if (q->ndim != 4 || k->ndim != 4 || !zt_tensor_same_shape(k, v) || k->shape[0] != q->shape[0] ||
      k->shape[2] != q->shape[2] || k->shape[3] != q->shape[3])
    return zt_fail(ZT_SHAPE, "q %s, k %s, v %s; (batch, time, heads, width) is needed", zt_shape_text(q),
                   zt_shape_text(k), zt_shape_text(v));
  ZT_TRY(check_extras(call, q, call->in[3], call->in[4], k->shape[0], k->shape[1]));
  if (call->attr.f[1] > 0) call->attr.key = zt_next_rng_key(c);
  ZT_TRY(zt_call_out(call, q->dtype, 4, q->shape));
  return zt_call_out(call, zt_dtype_stat(q->dtype), 3, (int64_t[]){q->shape[0], q->shape[2], q->shape[1]});
}

/* Rows as the kernel wants them: whole, and not over one another as in an expanded view; or a copy (owned). */
static zt_status whole_rows(zt_ctx *c, zt_tensor *t, zt_tensor **out) {
  bool apart = t->shape[1] == 1 || t->stride[1] >= t->shape[3];
  if ((t->stride[3] != 1 && t->shape[3] > 1) || !apart) return zt_contiguous(c, t, out);
  *out = zt_tensor_retain(t);
  return ZT_OK;
}

static zt_attention sizes_of(const zt_call *call, zt_tensor *const t[3]) {
  const zt_tensor *q = t[0], *k = t[1];
  zt_attention a = {
      .n_batch = q->shape[0], .n_q = q->shape[1], .n_head = q->shape[2], .head_dim = q->shape[3], .n_k = k->shape[1]};
  set_strides(a.q_stride, q), set_strides(a.k_stride, k), set_strides(a.v_stride, t[2]);
  set_strides(a.out_stride, call->out[0]);
  set_common(&a, call);
  return a;
}

static zt_status attention_forward(zt_ctx *c, zt_call *call) {
  zt_tensor *t[3] = {NULL};
  zt_status st = ZT_OK;
  for (int i = 0; i < 3 && st == ZT_OK; i++) st = whole_rows(c, call->in[i], &t[i]);
  if (st == ZT_OK) {
    zt_attention a = sizes_of(call, t);
    operands x = {zt_tensor_data(t[0]), zt_tensor_data(t[1]), zt_tensor_data(t[2])};
    st = run(c, call, &a, x, call->in[3], call->in[4]);
  }
  for (int i = 0; i < 3; i++) zt_tensor_release(t[i]);
  return st;
}

/* The kernel writes all three gradients, in the strides of q, k, v: whole ones, so that they are whole, too. */
static zt_status attention_backward(zt_ctx *c, const zt_call *call, zt_tensor *const gout[], zt_tensor *gin[]) {
  zt_tensor *t[3] = {NULL}, *g[3] = {NULL};
  zt_status st = ZT_OK;
  for (int i = 0; i < 3 && st == ZT_OK; i++) {
    st = zt_contiguous(c, call->in[i], &t[i]);
    if (st == ZT_OK) st = zt_tensor_like(c, t[i], &g[i]);
  }
  if (st == ZT_OK) {
    zt_attention a = sizes_of(call, t);
    operands x = {zt_tensor_data(t[0]), zt_tensor_data(t[1]), zt_tensor_data(t[2])};
    operands gx = {zt_tensor_data(g[0]), zt_tensor_data(g[1]), zt_tensor_data(g[2])};
    st = run_back(c, call, &a, gout[0], gx, x, call->in[3], call->in[4], call->needs_grad >> 4 & 1 ? &gin[4] : NULL);
  }
  for (int i = 0; i < 3; i++) {
    if (st == ZT_OK && call->needs_grad >> i & 1) gin[i] = zt_tensor_retain(g[i]);
    zt_tensor_release(t[i]);
    zt_tensor_release(g[i]);
  }
  return st;
}

const zt_op zt_op_attention = {"attention", 1, 31, 3, false, attention_shape, attention_forward, attention_backward};

zt_status zt_attention_op(zt_ctx *c, zt_tensor **y, zt_tensor *q, zt_tensor *k, zt_tensor *v, zt_tensor *key_mask,
                          zt_tensor *bias, const zt_attention_options *o) {
  zt_call call = {.op = &zt_op_attention,
                  .in = {q, k, v, key_mask, bias},
                  .n_in = 5,
                  .attr = {.i = {o->causal}, .f = {o->scale, o->dropout}}};
  return zt_apply(c, &call, y);
}

/* ---- attention_qkv: in = qkv (B, T, 3 H D), mask or NULL, bias or NULL */

static zt_status qkv_shape(zt_ctx *c, zt_call *call) {
  zt_tensor *qkv = call->in[0];
  int64_t heads = call->attr.i[1];
  ZT_TRY(zt_check_float(qkv, "qkv"));
  if (qkv->ndim != 3 || heads < 1 || qkv->shape[2] % (3 * heads) != 0)
    return zt_fail(ZT_SHAPE, "qkv %s and %lld heads; (batch, time, 3 * heads * width) is needed", zt_shape_text(qkv),
                   (long long)heads);
  int64_t B = qkv->shape[0], T = qkv->shape[1];
  ZT_TRY(check_extras(call, qkv, call->in[1], call->in[2], B, T));
  if (call->attr.f[1] > 0) call->attr.key = zt_next_rng_key(c);
  ZT_TRY(zt_call_out(call, qkv->dtype, 3, (int64_t[]){B, T, qkv->shape[2] / 3}));
  return zt_call_out(call, zt_dtype_stat(qkv->dtype), 3, (int64_t[]){B, heads, T});
}

static zt_attention qkv_sizes(const zt_call *call) {
  const int64_t *shape = call->in[0]->shape;
  int64_t T = shape[1], heads = call->attr.i[1], width = shape[2] / 3, head_dim = width / heads;
  zt_attention a = {.n_batch = shape[0], .n_q = T, .n_k = T, .n_head = heads, .head_dim = head_dim};
  for (int i = 0; i < 3; i++) {
    int64_t in[3] = {T * 3 * width, 3 * width, head_dim}, out[3] = {T * width, width, head_dim};
    a.q_stride[i] = a.k_stride[i] = a.v_stride[i] = in[i];
    a.out_stride[i] = out[i];
  }
  set_common(&a, call);
  return a;
}

static operands qkv_parts(const zt_tensor *qkv) {
  char *data = zt_tensor_data(qkv);
  size_t width = (size_t)(qkv->shape[2] / 3) * zt_dtype_nbytes(qkv->dtype);
  return (operands){data, data + width, data + 2 * width};
}

static zt_status qkv_forward(zt_ctx *c, zt_call *call) {
  zt_tensor *qkv;
  zt_attention a = qkv_sizes(call);
  ZT_TRY(zt_contiguous(c, call->in[0], &qkv));
  zt_status st = run(c, call, &a, qkv_parts(qkv), call->in[1], call->in[2]);
  zt_tensor_release(qkv);
  return st;
}

static zt_status qkv_backward(zt_ctx *c, const zt_call *call, zt_tensor *const gout[], zt_tensor *gin[]) {
  zt_tensor *qkv, *g = NULL;
  zt_attention a = qkv_sizes(call);
  ZT_TRY(zt_contiguous(c, call->in[0], &qkv));
  zt_status st = zt_tensor_like(c, qkv, &g);
  if (st == ZT_OK)
    st = run_back(c, call, &a, gout[0], qkv_parts(g), qkv_parts(qkv), call->in[1], call->in[2],
                  call->needs_grad >> 2 & 1 ? &gin[2] : NULL);
  zt_tensor_release(qkv);
  if (st == ZT_OK && call->needs_grad & 1)
    gin[0] = g;
  else
    zt_tensor_release(g);
  return st;
}

const zt_op zt_op_attention_qkv = {"attention_qkv", 1, 7, 3, false, qkv_shape, qkv_forward, qkv_backward};

zt_status zt_attention_qkv(zt_ctx *c, zt_tensor **y, zt_tensor *qkv, int64_t n_head, zt_tensor *key_mask,
                           zt_tensor *bias, const zt_attention_options *o) {
  zt_call call = {.op = &zt_op_attention_qkv,
                  .in = {qkv, key_mask, bias},
                  .n_in = 3,
                  .attr = {.i = {o->causal, n_head}, .f = {o->scale, o->dropout}}};
  return zt_apply(c, &call, y);
}
