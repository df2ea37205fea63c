/* op_matmul.c - products. Matrices go to the kernel as they lie: a transposed view is a flag, not a copy. */
#include <string.h>

#include "core/tensor/ops.h"

zt_status zt_gemm_run(zt_ctx *c, zt_dtype t, void *y, const void *a, const void *b, const zt_gemm *g) {
  zt_tensor *workspace;
  ZT_TRY(zt_workspace(c, zt_k(c)->gemm_workspace(t, g), &workspace));
  zt_status st = zt_k(c)->gemm(zt_s(c), t, y, a, b, g, zt_data_or_null(workspace));
  zt_tensor_release(workspace);
  return st;
}

zt_gemm zt_gemm_plain(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, double beta) {
  return (zt_gemm){.trans_a = trans_a,
                   .trans_b = trans_b,
                   .m = m,
                   .n = n,
                   .k = k,
                   .batch = 1,
                   .lda = trans_a ? m : k,
                   .ldb = trans_b ? k : n,
                   .ldc = n,
                   .alpha = 1,
                   .beta = beta};
}

zt_status zt_gradient_target(zt_ctx *c, const zt_call *call, int i, zt_tensor *gin[], zt_tensor **out, double *beta) {
  *out = call->accum[i], *beta = 1;
  if (*out) return ZT_OK;
  *beta = 0;
  ZT_TRY(zt_tensor_like(c, call->in[i], &gin[i]));
  *out = gin[i];
  return ZT_OK;
}

/* ---- matmul: in = a (..., m, k), b (..., k, n), both of two dimensions or more */

/* Its last two dimensions as a matrix in memory: row-major with leading dimension ld, or that of its transpose. */
static bool matrix_layout(const zt_tensor *t, bool *trans, int64_t *ld) {
  int64_t rows = t->shape[t->ndim - 2], cols = t->shape[t->ndim - 1];
  int64_t down = t->stride[t->ndim - 2], across = t->stride[t->ndim - 1];
  if ((across == 1 || cols <= 1) && (down >= cols || rows <= 1)) {
    *trans = false, *ld = down > cols ? down : cols;
    if (rows <= 1) *ld = cols;
    return true;
  }
  if ((down == 1 || rows <= 1) && (across >= rows || cols <= 1)) {
    *trans = true, *ld = across > rows ? across : rows;
    if (cols <= 1) *ld = rows;
    return true;
  }
  return false;
}

/* t itself where its matrices lie well, else a contiguous copy (owned). */
static zt_status laid_out(zt_ctx *c, zt_tensor *t, zt_tensor **out, bool *trans, int64_t *ld) {
  if (matrix_layout(t, trans, ld)) {
    *out = zt_tensor_retain(t);
    return ZT_OK;
  }
  ZT_TRY(zt_contiguous(c, t, out));
  matrix_layout(*out, trans, ld);
  return ZT_OK;
}

static zt_status matmul_shape(zt_ctx *c, zt_call *call) {
  (void)c;
  zt_tensor *a = call->in[0], *b = call->in[1];
  zt_tensor batch_a = *a, batch_b = *b;
  int ndim;
  int64_t shape[ZT_MAX_DIM];
  ZT_TRY(zt_check_float(a, "the first matrix"));
  ZT_TRY(zt_check_dtype(b, a->dtype, "the second matrix"));
  batch_a.ndim -= 2, batch_b.ndim -= 2;
  if (a->shape[a->ndim - 1] != b->shape[b->ndim - 2] || zt_broadcast_shape(&batch_a, &batch_b, &ndim, shape) != ZT_OK)
    return zt_fail(ZT_SHAPE, "%s x %s", zt_shape_text(a), zt_shape_text(b));
  shape[ndim++] = a->shape[a->ndim - 2];
  shape[ndim++] = b->shape[b->ndim - 1];
  call->save_in = (call->needs_grad >> 1 & 1) | (call->needs_grad & 1) << 1;
  return zt_call_out(call, a->dtype, ndim, shape);
}

/* A header of t's batch dimensions alone, for zt_loop_make. */
static zt_tensor batch_of(const zt_tensor *t) {
  zt_tensor batch = *t;
  batch.ndim -= 2;
  return batch;
}

/* One kernel call for the innermost run of the batch; the dimensions outside it are walked here. */
static zt_status run_batches(zt_ctx *c, zt_call *call, zt_tensor *a, zt_tensor *b, zt_gemm *g) {
  zt_loop loop;
  zt_tensor *y = call->out[0], by = batch_of(y), ba = batch_of(a), bb = batch_of(b);
  size_t each = zt_dtype_nbytes(y->dtype);
  ZT_TRY(zt_loop_make(&loop, &by, (zt_tensor *[]){&ba, &bb}, 2));
  int last = loop.ndim - 1;
  if (last >= 0) {
    g->batch = loop.shape[last];
    g->stride_c = loop.stride[0][last], g->stride_a = loop.stride[1][last], g->stride_b = loop.stride[2][last];
  }
  int64_t n_outer = 1;
  for (int d = 0; d < last; d++) n_outer *= loop.shape[d];
  for (int64_t i = 0; i < n_outer; i++) {
    int64_t at[3] = {0}, left = i;
    for (int d = last - 1; d >= 0; d--) {
      for (int k = 0; k < 3; k++) at[k] += left % loop.shape[d] * loop.stride[k][d];
      left /= loop.shape[d];
    }
    ZT_TRY(zt_gemm_run(c, y->dtype, (char *)zt_tensor_data(y) + (size_t)at[0] * each,
                       (char *)zt_tensor_data(a) + (size_t)at[1] * each,
                       (char *)zt_tensor_data(b) + (size_t)at[2] * each, g));
  }
  return ZT_OK;
}

static zt_status matmul_forward(zt_ctx *c, zt_call *call) {
  zt_tensor *y = call->out[0], *a, *b;
  zt_gemm g = {.m = y->shape[y->ndim - 2],
               .n = y->shape[y->ndim - 1],
               .k = call->in[0]->shape[call->in[0]->ndim - 1],
               .batch = 1,
               .ldc = y->shape[y->ndim - 1],
               .alpha = 1};
  if (zt_tensor_count(y) == 0) return ZT_OK;
  ZT_TRY(laid_out(c, call->in[0], &a, &g.trans_a, &g.lda));
  zt_status st = laid_out(c, call->in[1], &b, &g.trans_b, &g.ldb);
  if (st == ZT_OK) {
    st = run_batches(c, call, a, b, &g);
    zt_tensor_release(b);
  }
  zt_tensor_release(a);
  return st;
}

/* gin[i] = x y^T or x^T y, summed over the batch dimensions in which in[i] was broadcast. */
static zt_status matmul_back(zt_ctx *c, const zt_call *call, int i, zt_tensor *x, zt_tensor *y, zt_tensor *gin[]) {
  zt_tensor *turned, *g;
  ZT_TRY(zt_transpose(c, &turned, i == 0 ? y : x, -1, -2));
  zt_status st = zt_matmul(c, &g, i == 0 ? x : turned, i == 0 ? turned : y);
  zt_tensor_release(turned);
  ZT_TRY(st);
  st = zt_sum_to(c, g, call->in[i], &gin[i]);
  zt_tensor_release(g);
  return st;
}

static zt_status matmul_backward(zt_ctx *c, const zt_call *call, zt_tensor *const gout[], zt_tensor *gin[]) {
  if (call->needs_grad & 1) ZT_TRY(matmul_back(c, call, 0, gout[0], call->in[1], gin));
  if (call->needs_grad & 2) ZT_TRY(matmul_back(c, call, 1, call->in[0], gout[0], gin));
  return ZT_OK;
}

const zt_op zt_op_matmul = {"matmul", 1, 0, 0, false, matmul_shape, matmul_forward, matmul_backward};

static zt_status apply_matmul(zt_ctx *c, zt_tensor **y, zt_tensor *a, zt_tensor *b) {
  zt_call call = {.op = &zt_op_matmul, .in = {a, b}, .n_in = 2};
  return zt_apply(c, &call, y);
}

/* A vector as a matrix of one row (left) or one column (right); another tensor itself. */
static zt_status as_matrix(zt_ctx *c, zt_tensor *t, bool left, zt_tensor **out) {
  int64_t shape[2] = {left ? 1 : t->shape[0], left ? t->shape[0] : 1};
  if (t->ndim == 1) return zt_reshape(c, out, t, 2, shape);
  *out = zt_tensor_retain(t);
  return ZT_OK;
}

/* Drops the dimensions that as_matrix added. */
static zt_status without_vectors(zt_ctx *c, zt_tensor **y, bool vector_a, bool vector_b) {
  int ndim = 0;
  int64_t shape[ZT_MAX_DIM];
  zt_tensor *whole = *y;
  for (int i = 0; i < whole->ndim; i++) {
    bool dropped = (vector_a && i == whole->ndim - 2) || (vector_b && i == whole->ndim - 1);
    if (!dropped) shape[ndim++] = whole->shape[i];
  }
  zt_status st = zt_reshape(c, y, whole, ndim, shape);
  zt_tensor_release(whole);
  return st;
}

/* (..., m, k) x (k, n): the batch belongs to m, so that it is one product, and so is the gradient of b. */
static zt_status matmul_folded(zt_ctx *c, zt_tensor **y, zt_tensor *a, zt_tensor *b) {
  int64_t flat[2] = {-1, a->shape[a->ndim - 1]}, shape[ZT_MAX_DIM];
  memcpy(shape, a->shape, sizeof shape);
  shape[a->ndim - 1] = b->shape[1];
  zt_tensor *rows, *product;
  ZT_TRY(zt_reshape(c, &rows, a, 2, flat));
  zt_status st = apply_matmul(c, &product, rows, b);
  zt_tensor_release(rows);
  ZT_TRY(st);
  st = zt_reshape(c, y, product, a->ndim, shape);
  zt_tensor_release(product);
  return st;
}

zt_status zt_matmul(zt_ctx *c, zt_tensor **y, zt_tensor *a, zt_tensor *b) {
  *y = NULL;
  zt_tensor *left, *right;
  if (a->ndim == 0 || b->ndim == 0) return zt_fail(ZT_SHAPE, "matmul: %s x %s", zt_shape_text(a), zt_shape_text(b));
  ZT_TRY(as_matrix(c, a, true, &left));
  zt_status st = as_matrix(c, b, false, &right);
  if (st == ZT_OK) {
    bool fold = right->ndim == 2 && left->ndim > 2 && zt_cols(left) == right->shape[0] && zt_tensor_count(left) > 0 &&
                zt_tensor_is_contiguous(left);
    st = fold ? matmul_folded(c, y, left, right) : apply_matmul(c, y, left, right);
    zt_tensor_release(right);
  }
  zt_tensor_release(left);
  if (st == ZT_OK && (a->ndim == 1 || b->ndim == 1)) st = without_vectors(c, y, a->ndim == 1, b->ndim == 1);
  return st;
}

/* ---- linear: in = x, w, b or NULL; attr.i = act, in_out; aux output 1: act's input, where backward wants it */

static zt_status linear_shape(zt_ctx *c, zt_call *call) {
  (void)c;
  zt_tensor *x = call->in[0], *w = call->in[1], *b = call->in[2];
  bool in_out = call->attr.i[1] != 0, act = call->attr.i[0] != ZT_ACT_NONE;
  int64_t shape[ZT_MAX_DIM];
  ZT_TRY(zt_check_float(x, "the input"));
  ZT_TRY(zt_check_dtype(w, x->dtype, "the weight"));
  if (x->ndim < 1 || w->ndim != 2 || x->shape[x->ndim - 1] != w->shape[in_out ? 0 : 1])
    return zt_fail(ZT_SHAPE, "input %s, weight %s (%s)", zt_shape_text(x), zt_shape_text(w),
                   in_out ? "in, out" : "out, in");
  memcpy(shape, x->shape, sizeof shape);
  shape[x->ndim - 1] = w->shape[in_out ? 1 : 0];
  if (b) ZT_TRY(zt_check_dtype(b, x->dtype, "the bias"));
  if (b && (b->ndim != 1 || b->shape[0] != shape[x->ndim - 1]))
    return zt_fail(ZT_SHAPE, "bias %s, weight %s (%s)", zt_shape_text(b), zt_shape_text(w),
                   in_out ? "in, out" : "out, in");
  call->save_in = (call->needs_grad >> 1 & 1) | (call->needs_grad & 1) << 1;
  ZT_TRY(zt_call_out(call, x->dtype, x->ndim, shape));
  if (!act || !call->needs_grad) return ZT_OK;
  call->save_out = 2;
  return zt_call_out(call, x->dtype, x->ndim, shape);
}

static zt_status linear_forward(zt_ctx *c, zt_call *call) {
  zt_tensor *y = call->out[0], *pre = call->n_out > 1 ? call->out[1] : y, *b = call->in[2], *x, *w = NULL, *bias = NULL;
  zt_act act = (zt_act)call->attr.i[0];
  int64_t rows = zt_rows(y), cols = y->shape[y->ndim - 1], k = call->in[0]->shape[call->in[0]->ndim - 1];
  zt_status st;
  ZT_TRY(zt_contiguous(c, call->in[0], &x));
  ZT_TRY_GOTO(zt_contiguous(c, call->in[1], &w), done);
  if (b) ZT_TRY_GOTO(zt_contiguous(c, b, &bias), done);
  zt_gemm g = zt_gemm_plain(false, call->attr.i[1] == 0, rows, cols, k, 0);
  ZT_TRY_GOTO(zt_gemm_run(c, y->dtype, zt_tensor_data(pre), zt_tensor_data(x), zt_tensor_data(w), &g), done);
  if (bias || act != ZT_ACT_NONE)
    st = zt_k(c)->bias_act(zt_s(c), y->dtype, zt_tensor_data(y), zt_tensor_data(pre),
                           bias ? zt_tensor_data(bias) : NULL, act, (size_t)rows, (size_t)cols);
done:
  zt_tensor_release(x);
  zt_tensor_release(w);
  zt_tensor_release(bias);
  return st;
}

/* *gpre (owned): the gradient before bias and activation; gin[2] that of the bias where it is wanted. */
static zt_status linear_epilogue_back(zt_ctx *c, const zt_call *call, zt_tensor *gy, zt_tensor **gpre,
                                      zt_tensor *gin[]) {
  zt_act act = (zt_act)call->attr.i[0];
  bool to_bias = call->needs_grad >> 2 & 1;
  size_t rows = (size_t)zt_rows(gy), cols = (size_t)gy->shape[gy->ndim - 1];
  zt_tensor *workspace = NULL, *whole;
  zt_status st;
  ZT_TRY(zt_contiguous(c, gy, &whole));
  *gpre = whole;
  if (act == ZT_ACT_NONE && !to_bias) return ZT_OK;
  if (act != ZT_ACT_NONE) ZT_TRY_GOTO(zt_tensor_like(c, whole, gpre), done);
  if (to_bias) ZT_TRY_GOTO(zt_tensor_like(c, call->in[2], &gin[2]), done);
  ZT_TRY_GOTO(zt_workspace(c, zt_k(c)->bias_act_bwd_workspace(gy->dtype, rows, cols), &workspace), done);
  st = zt_k(c)->bias_act_bwd(zt_s(c), gy->dtype, act == ZT_ACT_NONE ? NULL : zt_tensor_data(*gpre),
                             to_bias ? zt_tensor_data(gin[2]) : NULL, zt_tensor_data(whole),
                             act == ZT_ACT_NONE ? NULL : zt_tensor_data(call->out[1]), act, rows, cols,
                             zt_data_or_null(workspace));
done:
  zt_tensor_release(workspace);
  if (whole != *gpre) zt_tensor_release(whole);
  return st;
}

static zt_status linear_to_input(zt_ctx *c, const zt_call *call, zt_tensor *gpre, zt_tensor *gin[]) {
  zt_tensor *w, *gx;
  double beta;
  int64_t rows = zt_rows(gpre), cols = gpre->shape[gpre->ndim - 1], k = call->in[0]->shape[call->in[0]->ndim - 1];
  ZT_TRY(zt_contiguous(c, call->in[1], &w));
  zt_status st = zt_gradient_target(c, call, 0, gin, &gx, &beta);
  zt_gemm g = zt_gemm_plain(false, call->attr.i[1] != 0, rows, k, cols, beta);
  if (st == ZT_OK) st = zt_gemm_run(c, gx->dtype, zt_tensor_data(gx), zt_tensor_data(gpre), zt_tensor_data(w), &g);
  zt_tensor_release(w);
  return st;
}

static zt_status linear_to_weight(zt_ctx *c, const zt_call *call, zt_tensor *gpre, zt_tensor *gin[]) {
  zt_tensor *x, *gw;
  double beta;
  bool in_out = call->attr.i[1] != 0;
  int64_t rows = zt_rows(gpre);
  ZT_TRY(zt_contiguous(c, call->in[0], &x));
  zt_status st = zt_gradient_target(c, call, 1, gin, &gw, &beta);
  if (st == ZT_OK) {
    zt_gemm g = zt_gemm_plain(true, false, gw->shape[0], gw->shape[1], rows, beta);
    st = zt_gemm_run(c, gw->dtype, zt_tensor_data(gw), zt_tensor_data(in_out ? x : gpre),
                     zt_tensor_data(in_out ? gpre : x), &g);
  }
  zt_tensor_release(x);
  return st;
}

static zt_status linear_backward(zt_ctx *c, const zt_call *call, zt_tensor *const gout[], zt_tensor *gin[]) {
  zt_tensor *gpre = NULL;
  zt_status st = linear_epilogue_back(c, call, gout[0], &gpre, gin);
  if (st == ZT_OK && call->needs_grad & 1) st = linear_to_input(c, call, gpre, gin);
  if (st == ZT_OK && call->needs_grad & 2) st = linear_to_weight(c, call, gpre, gin);
  zt_tensor_release(gpre);
  return st;
}

const zt_op zt_op_linear = {"linear", 1, 0, 0, false, linear_shape, linear_forward, linear_backward};

zt_status zt_linear(zt_ctx *c, zt_tensor **y, zt_tensor *x, zt_tensor *w, zt_tensor *b, zt_act act, bool in_out) {
  zt_call call = {.op = &zt_op_linear, .in = {x, w, b}, .n_in = 3, .attr.i = {act, in_out}};
  return zt_apply(c, &call, y);
}
