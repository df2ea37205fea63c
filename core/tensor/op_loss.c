/* op_loss.c - losses. Means are over the rows whose label is not ignored; a count of 0 gives 0. */
#include <math.h>

#include "core/tensor/ops.h"

static zt_status check_labels(zt_ctx *c, const zt_tensor *x, const zt_tensor *labels, int64_t n_classes,
                              int64_t ignore_index) {
  ZT_TRY(zt_check_dtype(labels, ZT_I64, "labels"));
  bool fits = labels->ndim == x->ndim - 1;
  for (int i = 0; fits && i < labels->ndim; i++) fits = labels->shape[i] == x->shape[i];
  if (!fits) return zt_fail(ZT_SHAPE, "labels %s do not go with %s", zt_shape_text(labels), zt_shape_text(x));
  return zt_check_index(c, labels, n_classes, ignore_index, "label");
}

/* The loss and the count, both of no dimensions. */
static zt_status declare(zt_call *call, zt_dtype dtype) {
  ZT_TRY(zt_call_out(call, zt_dtype_stat(dtype), 0, NULL));
  return zt_call_out(call, ZT_I64, 0, NULL);
}

/* max(count, 1) as a scalar of dtype 't' (owned): what sums are divided by. */
static zt_status divisor(zt_ctx *c, zt_tensor *count, zt_dtype t, zt_tensor **out) {
  zt_tensor *n;
  ZT_TRY(zt_cast(c, &n, count, t));
  zt_status st = zt_clamp(c, out, n, 1, INFINITY);
  zt_tensor_release(n);
  return st;
}

/* out[0] = sum of the rows' losses / count, out[1] = count. */
static zt_status finish(zt_ctx *c, zt_call *call, zt_tensor *losses, zt_tensor *labels, int64_t ignore_index) {
  size_t rows = (size_t)zt_tensor_count(losses);
  zt_tensor *loss = call->out[0], *count = call->out[1], *sum = NULL, *n = NULL, *mean = NULL;
  zt_status st;
  ZT_TRY_GOTO(zt_k(c)->count_not_equal(zt_s(c), zt_tensor_data(count), zt_tensor_data(labels), ignore_index, rows),
              done);
  ZT_TRY_GOTO(zt_sum(c, &sum, losses, ZT_ALL_DIMS, false), done);
  ZT_TRY_GOTO(divisor(c, count, loss->dtype, &n), done);
  ZT_TRY_GOTO(zt_div(c, &mean, sum, n), done);
  st = zt_copy_(c, loss, mean);
done:
  zt_tensor_release(sum);
  zt_tensor_release(n);
  zt_tensor_release(mean);
  return st;
}

/* gy / max(count, 1), as a scalar (owned): what the unscaled gradients are multiplied by. It keeps gy's dtype: a loss
** scale is more than float16 holds. */
static zt_status scale_back(zt_ctx *c, zt_tensor *gy, zt_tensor *count, zt_tensor **out) {
  zt_tensor *n;
  ZT_TRY(divisor(c, count, gy->dtype, &n));
  zt_status st = zt_div(c, out, gy, n);
  zt_tensor_release(n);
  return st;
}

/* y = x * factor (a scalar of stat dtype); y may be x. */
static zt_status scale_into(zt_ctx *c, zt_tensor *y, zt_tensor *x, zt_tensor *factor) {
  return zt_k(c)->scale(zt_s(c), y->dtype, x->dtype, zt_tensor_data(y), zt_tensor_data(x), zt_tensor_data(factor),
                        (size_t)zt_tensor_count(x));
}

static zt_status apply_loss(zt_ctx *c, zt_call *call, zt_tensor **loss, zt_tensor **count) {
  zt_tensor *outs[2];
  zt_status st = zt_apply(c, call, outs);
  *loss = outs[0];
  if (count)
    *count = outs[1];
  else
    zt_tensor_release(outs[1]);
  return st;
}

/* ---- cross_entropy: in = logits, labels; attr.i[0] = ignore_index, attr.f[0] = smoothing */

static zt_status check_smoothing(double smoothing) {
  if (smoothing >= 0 && smoothing <= 1) return ZT_OK;
  return zt_fail(ZT_INVALID, "label_smoothing is %g, it must lie in [0, 1]", smoothing);
}

static zt_status cross_entropy_shape(zt_ctx *c, zt_call *call) {
  zt_tensor *logits = call->in[0];
  ZT_TRY(zt_check_float(logits, "logits"));
  ZT_TRY(check_smoothing(call->attr.f[0]));
  if (logits->ndim < 1) return zt_fail(ZT_SHAPE, "logits have no dimensions");
  ZT_TRY(check_labels(c, logits, call->in[1], logits->shape[logits->ndim - 1], call->attr.i[0]));
  return declare(call, logits->dtype);
}

/* The rows' losses, or their gradients, or both (the other NULL); logits and labels contiguous. */
static zt_status row_losses(zt_ctx *c, const zt_call *call, zt_tensor *losses, void *grad, zt_tensor *logits,
                            zt_tensor *labels) {
  size_t cols = (size_t)logits->shape[logits->ndim - 1];
  return zt_k(c)->cross_entropy(zt_s(c), logits->dtype, zt_tensor_data(losses), grad, zt_tensor_data(logits),
                                zt_tensor_data(labels), call->attr.i[0], call->attr.f[0], (size_t)zt_rows(logits), cols,
                                cols);
}

static zt_status new_losses(zt_ctx *c, const zt_tensor *x, zt_tensor **out) {
  int64_t rows[1] = {zt_rows(x)};
  return zt_tensor_new(c, out, zt_dtype_stat(x->dtype), 1, rows);
}

static zt_status cross_entropy_forward(zt_ctx *c, zt_call *call) {
  zt_tensor *logits, *labels = NULL, *losses = NULL;
  zt_status st;
  bool grad = zt_ctx_set_grad_enabled(c, false);
  ZT_TRY_GOTO(zt_contiguous(c, call->in[0], &logits), done);
  ZT_TRY_GOTO(zt_contiguous(c, call->in[1], &labels), done);
  ZT_TRY_GOTO(new_losses(c, logits, &losses), done);
  ZT_TRY_GOTO(row_losses(c, call, losses, NULL, logits, labels), done);
  st = finish(c, call, losses, labels, call->attr.i[0]);
done:
  zt_ctx_set_grad_enabled(c, grad);
  zt_tensor_release(logits);
  zt_tensor_release(labels);
  zt_tensor_release(losses);
  return st;
}

static zt_status cross_entropy_backward(zt_ctx *c, const zt_call *call, zt_tensor *const gout[], zt_tensor *gin[]) {
  zt_tensor *logits, *labels = NULL, *losses = NULL, *scale = NULL;
  zt_status st;
  ZT_TRY(zt_contiguous(c, call->in[0], &logits));
  ZT_TRY_GOTO(zt_contiguous(c, call->in[1], &labels), done);
  ZT_TRY_GOTO(new_losses(c, logits, &losses), done);
  ZT_TRY_GOTO(zt_tensor_like(c, logits, &gin[0]), done);
  ZT_TRY_GOTO(row_losses(c, call, losses, zt_tensor_data(gin[0]), logits, labels), done);
  ZT_TRY_GOTO(scale_back(c, gout[0], call->out[1], &scale), done);
  st = scale_into(c, gin[0], gin[0], scale);
done:
  zt_tensor_release(logits);
  zt_tensor_release(labels);
  zt_tensor_release(losses);
  zt_tensor_release(scale);
  return st;
}

const zt_op zt_op_cross_entropy = {"cross_entropy",       2, 3, 2, false, cross_entropy_shape, cross_entropy_forward,
                                   cross_entropy_backward};

zt_status zt_cross_entropy(zt_ctx *c, zt_tensor **loss, zt_tensor **count, zt_tensor *logits, zt_tensor *labels,
                           int64_t ignore_index, double smoothing) {
  zt_call call = {
      .op = &zt_op_cross_entropy, .in = {logits, labels}, .n_in = 2, .attr = {.i = {ignore_index}, .f = {smoothing}}};
  return apply_loss(c, &call, loss, count);
}

/* ---- linear_cross_entropy: in = x, w, labels; attr as above, and attr.i[1], i[2]: which aux output is the unscaled
** gradient of x, of w (0: none is wanted). That of w is a sum over all rows, in stat dtype: float16 may not hold it. */

enum { CHUNK_NBYTES = 64 << 20, MIN_CHUNK_ROWS = 64 };

static zt_status linear_ce_shape(zt_ctx *c, zt_call *call) {
  zt_tensor *x = call->in[0], *w = call->in[1];
  ZT_TRY(check_smoothing(call->attr.f[0]));
  ZT_TRY(zt_check_float(x, "the input"));
  ZT_TRY(zt_check_dtype(w, x->dtype, "the weight"));
  if (x->ndim < 1 || w->ndim != 2 || x->shape[x->ndim - 1] != w->shape[1])
    return zt_fail(ZT_SHAPE, "input %s, weight %s (classes, width)", zt_shape_text(x), zt_shape_text(w));
  ZT_TRY(check_labels(c, x, call->in[2], w->shape[0], call->attr.i[0]));
  ZT_TRY(declare(call, x->dtype));
  for (int i = 0; i < 2; i++) {
    call->attr.i[1 + i] = 0;
    if (!(call->needs_grad >> i & 1)) continue;
    call->attr.i[1 + i] = call->n_out;
    call->save_out |= 1u << call->n_out;
    ZT_TRY(zt_call_out(call, i == 0 ? x->dtype : zt_dtype_stat(x->dtype), call->in[i]->ndim, call->in[i]->shape));
  }
  return ZT_OK;
}

typedef struct classifier {
  zt_tensor *x, *w, *labels;  /* contiguous */
  zt_tensor *losses, *logits; /* of all rows; of one chunk */
  zt_tensor *gx, *gw;         /* unscaled, NULL where not wanted */
  int64_t rows, cols, width, chunk;
} classifier;

static char *row_at(const zt_tensor *t, int64_t row, int64_t width) {
  return (char *)zt_tensor_data(t) + (size_t)(row * width) * zt_dtype_nbytes(t->dtype);
}

/* gw += glogits^T x over the chunk; 16-bit operands are widened, so that the sum over chunks is float32. */
static zt_status add_to_weight(zt_ctx *c, classifier *k, int64_t start, int64_t n) {
  int64_t logits_shape[2] = {n, k->cols}, x_shape[2] = {n, k->width}, strides[2][2] = {{k->cols, 1}, {k->width, 1}};
  zt_tensor *part[2] = {NULL}, *wide[2] = {NULL};
  zt_gemm g = zt_gemm_plain(true, false, k->cols, k->width, n, start ? 1 : 0);
  zt_status st;
  ZT_TRY_GOTO(
      zt_tensor_view(k->logits->storage, k->logits->dtype, 2, logits_shape, strides[0], k->logits->offset, &part[0]),
      done);
  ZT_TRY_GOTO(
      zt_tensor_view(k->x->storage, k->x->dtype, 2, x_shape, strides[1], k->x->offset + start * k->width, &part[1]),
      done);
  for (int i = 0; i < 2; i++) ZT_TRY_GOTO(zt_cast(c, &wide[i], part[i], k->gw->dtype), done);
  st = zt_gemm_run(c, k->gw->dtype, zt_tensor_data(k->gw), zt_tensor_data(wide[0]), zt_tensor_data(wide[1]), &g);
done:
  for (int i = 0; i < 2; i++) {
    zt_tensor_release(part[i]);
    zt_tensor_release(wide[i]);
  }
  return st;
}

static zt_status run_chunk(zt_ctx *c, const zt_call *call, classifier *k, int64_t start, int64_t n) {
  zt_dtype t = k->x->dtype;
  bool grad = k->gx || k->gw;
  void *logits = zt_tensor_data(k->logits);
  zt_gemm forward = zt_gemm_plain(false, true, n, k->cols, k->width, 0);
  zt_gemm back = zt_gemm_plain(false, false, n, k->width, k->cols, 0);
  ZT_TRY(zt_gemm_run(c, t, logits, row_at(k->x, start, k->width), zt_tensor_data(k->w), &forward));
  ZT_TRY(zt_k(c)->cross_entropy(zt_s(c), t, row_at(k->losses, start, 1), grad ? logits : NULL, logits,
                                (const int64_t *)zt_tensor_data(k->labels) + start, call->attr.i[0], call->attr.f[0],
                                (size_t)n, (size_t)k->cols, (size_t)k->cols));
  if (k->gx) ZT_TRY(zt_gemm_run(c, t, row_at(k->gx, start, k->width), logits, zt_tensor_data(k->w), &back));
  return k->gw ? add_to_weight(c, k, start, n) : ZT_OK;
}

static zt_status run_chunks(zt_ctx *c, const zt_call *call, classifier *k) {
  int64_t shape[2] = {k->chunk, k->cols};
  if (k->gw && k->rows == 0) ZT_TRY(zt_fill_(c, k->gw, 0));
  ZT_TRY(zt_tensor_new(c, &k->logits, k->x->dtype, 2, shape));
  for (int64_t start = 0; start < k->rows; start += k->chunk)
    ZT_TRY(run_chunk(c, call, k, start, k->rows - start < k->chunk ? k->rows - start : k->chunk));
  return ZT_OK;
}

/* Rows in a chunk: as many as CHUNK_NBYTES of logits hold, evened out over the chunks. */
static int64_t chunk_rows(int64_t rows, int64_t cols, size_t each) {
  int64_t most = cols > 0 ? CHUNK_NBYTES / (cols * (int64_t)each) : rows;
  if (most < MIN_CHUNK_ROWS) most = MIN_CHUNK_ROWS;
  int64_t n_chunks = (rows + most - 1) / most;
  return n_chunks > 1 ? (rows + n_chunks - 1) / n_chunks : rows;
}

static zt_status open_classifier(zt_ctx *c, zt_call *call, classifier *k) {
  ZT_TRY(zt_contiguous(c, call->in[0], &k->x));
  ZT_TRY(zt_contiguous(c, call->in[1], &k->w));
  ZT_TRY(zt_contiguous(c, call->in[2], &k->labels));
  ZT_TRY(new_losses(c, k->x, &k->losses));
  k->rows = zt_rows(k->x), k->cols = k->w->shape[0], k->width = k->w->shape[1];
  k->chunk = chunk_rows(k->rows, k->cols, zt_dtype_nbytes(k->x->dtype));
  if (call->attr.i[1]) k->gx = zt_tensor_retain(call->out[call->attr.i[1]]);
  if (call->attr.i[2]) k->gw = zt_tensor_retain(call->out[call->attr.i[2]]);
  return ZT_OK;
}

static void close_classifier(classifier *k) {
  zt_tensor *all[7] = {k->x, k->w, k->labels, k->losses, k->logits, k->gx, k->gw};
  for (int i = 0; i < 7; i++) zt_tensor_release(all[i]);
}

static zt_status linear_ce_forward(zt_ctx *c, zt_call *call) {
  classifier k = {0};
  bool grad = zt_ctx_set_grad_enabled(c, false);
  zt_status st = open_classifier(c, call, &k);
  if (st == ZT_OK) st = run_chunks(c, call, &k);
  if (st == ZT_OK) st = finish(c, call, k.losses, k.labels, call->attr.i[0]);
  close_classifier(&k);
  zt_ctx_set_grad_enabled(c, grad);
  return st;
}

static zt_status linear_ce_backward(zt_ctx *c, const zt_call *call, zt_tensor *const gout[], zt_tensor *gin[]) {
  zt_tensor *scale;
  zt_dtype t = call->in[0]->dtype;
  ZT_TRY(scale_back(c, gout[0], call->out[1], &scale));
  zt_status st = ZT_OK;
  for (int i = 0; i < 2 && st == ZT_OK; i++) {
    if (!call->attr.i[1 + i]) continue;
    zt_tensor *g = call->out[call->attr.i[1 + i]];
    if (g->dtype == t)
      gin[i] = zt_tensor_retain(g);
    else
      st = zt_tensor_new(c, &gin[i], t, g->ndim, g->shape);
    if (st == ZT_OK) st = scale_into(c, gin[i], g, scale);
  }
  zt_tensor_release(scale);
  return st;
}

const zt_op zt_op_linear_cross_entropy = {"linear_cross_entropy", 2, 0, 2, false, linear_ce_shape, linear_ce_forward,
                                          linear_ce_backward};

zt_status zt_linear_cross_entropy(zt_ctx *c, zt_tensor **loss, zt_tensor **count, zt_tensor *x, zt_tensor *w,
                                  zt_tensor *labels, int64_t ignore_index, double smoothing) {
  zt_call call = {.op = &zt_op_linear_cross_entropy,
                  .in = {x, w, labels},
                  .n_in = 3,
                  .attr = {.i = {ignore_index}, .f = {smoothing}}};
  return apply_loss(c, &call, loss, count);
}

/* ---- mse: in = x, target */

static zt_status mse_shape(zt_ctx *c, zt_call *call) {
  (void)c;
  zt_tensor *x = call->in[0], *target = call->in[1];
  ZT_TRY(zt_check_float(x, "the input"));
  if (!zt_tensor_same_shape(x, target) || x->dtype != target->dtype)
    return zt_fail(ZT_SHAPE, "input %s %s, target %s %s", zt_dtype_name(x->dtype), zt_shape_text(x),
                   zt_dtype_name(target->dtype), zt_shape_text(target));
  return zt_call_out(call, zt_dtype_stat(x->dtype), 0, NULL);
}

static zt_status mse_forward(zt_ctx *c, zt_call *call) {
  zt_tensor *d = NULL, *square = NULL, *wide = NULL, *sum = NULL;
  int64_t n = zt_tensor_count(call->in[0]);
  zt_status st;
  bool grad = zt_ctx_set_grad_enabled(c, false);
  ZT_TRY_GOTO(zt_sub(c, &d, call->in[0], call->in[1]), done);
  ZT_TRY_GOTO(zt_cast(c, &wide, d, call->out[0]->dtype), done);
  ZT_TRY_GOTO(zt_mul(c, &square, wide, wide), done);
  ZT_TRY_GOTO(zt_sum(c, &sum, square, ZT_ALL_DIMS, false), done);
  st = zt_k(c)->unary(zt_s(c), ZT_UNARY_AFFINE, sum->dtype, zt_tensor_data(call->out[0]), zt_tensor_data(sum),
                      n ? 1.0 / (double)n : 0, 0, 1);
done:
  zt_ctx_set_grad_enabled(c, grad);
  zt_tensor_release(d);
  zt_tensor_release(square);
  zt_tensor_release(wide);
  zt_tensor_release(sum);
  return st;
}

/* gx = g 2 (x - target) / n, and its negative for the target. */
static zt_status mse_backward(zt_ctx *c, const zt_call *call, zt_tensor *const gout[], zt_tensor *gin[]) {
  int64_t n = zt_tensor_count(call->in[0]);
  zt_tensor *d = NULL, *scale = NULL;
  zt_status st;
  ZT_TRY_GOTO(zt_sub(c, &d, call->in[0], call->in[1]), done);
  ZT_TRY_GOTO(zt_affine(c, &scale, gout[0], n ? 2.0 / (double)n : 0, 0), done);
  ZT_TRY_GOTO(scale_into(c, d, d, scale), done);
  if (call->needs_grad & 2) ZT_TRY_GOTO(zt_neg(c, &gin[1], d), done);
  if (call->needs_grad & 1) gin[0] = zt_tensor_retain(d);
done:
  zt_tensor_release(d);
  zt_tensor_release(scale);
  return st;
}

const zt_op zt_op_mse = {"mse", 1, 3, 0, false, mse_shape, mse_forward, mse_backward};

zt_status zt_mse(zt_ctx *c, zt_tensor **loss, zt_tensor *x, zt_tensor *target) {
  zt_call call = {.op = &zt_op_mse, .in = {x, target}, .n_in = 2};
  return zt_apply(c, &call, loss);
}
