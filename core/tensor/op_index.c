/* op_index.c - elements and rows picked by int64 indices. Kernels see a tensor as (outer, n, inner) around the
** dimension that is indexed. */
#include <inttypes.h>
#include <string.h>

#include "core/tensor/ops.h"

zt_status zt_check_index(zt_ctx *c, const zt_tensor *index, int64_t limit, int64_t ignore, const char *what) {
  zt_tensor *whole;
  ZT_TRY(zt_contiguous(c, index, &whole));
  size_t count = (size_t)zt_tensor_count(index), bad_at = count;
  zt_status st = zt_k(c)->check_index(zt_s(c), &bad_at, zt_tensor_data(whole), limit, ignore, count);
  int64_t bad = 0;
  if (st == ZT_OK && bad_at < count) {
    const int64_t *at = (const int64_t *)zt_tensor_data(whole) + bad_at;
    st = zt_ctx_device(c)->ops->copy(zt_s(c), &bad, at, sizeof bad);
    if (st == ZT_OK)
      st = zt_fail(ZT_INVALID, "%s %" PRId64 " at position %zu of %s (from 0) is not in [0, %" PRId64 ")", what, bad,
                   bad_at, zt_shape_text(index), limit);
  }
  zt_tensor_release(whole);
  return st;
}

/* ---- picking rows: in = x, index of any shape; attr.i[0] = dim. The index' dimensions stand in dim's place */

static zt_status select_shape(zt_ctx *c, zt_call *call) {
  zt_tensor *x = call->in[0], *index = call->in[1];
  int dim = (int)call->attr.i[0], ndim = x->ndim - 1 + index->ndim, at = 0;
  int64_t shape[2 * ZT_MAX_DIM];
  ZT_TRY(zt_check_dtype(index, ZT_I64, "the index"));
  if (ndim > ZT_MAX_DIM) return zt_fail(ZT_SHAPE, "%s picked by %s", zt_shape_text(x), zt_shape_text(index));
  ZT_TRY(zt_check_index(c, index, x->shape[dim], ZT_NO_IGNORE, "index"));
  for (int i = 0; i < dim; i++) shape[at++] = x->shape[i];
  for (int i = 0; i < index->ndim; i++) shape[at++] = index->shape[i];
  for (int i = dim + 1; i < x->ndim; i++) shape[at++] = x->shape[i];
  if (!zt_dtype_is_float(x->dtype)) call->needs_grad = 0;
  return zt_call_out(call, x->dtype, ndim, shape);
}

static zt_status select_forward(zt_ctx *c, zt_call *call) {
  zt_tensor *x, *index = NULL, *y = call->out[0];
  zt_around s = zt_around_dim(call->in[0], (int)call->attr.i[0]);
  ZT_TRY(zt_contiguous(c, call->in[0], &x));
  zt_status st = zt_contiguous(c, call->in[1], &index);
  if (st == ZT_OK)
    st = zt_k(c)->index_select(zt_s(c), y->dtype, zt_tensor_data(y), zt_tensor_data(x), zt_tensor_data(index), s.outer,
                               s.n, (size_t)zt_tensor_count(index), s.inner);
  zt_tensor_release(x);
  zt_tensor_release(index);
  return st;
}

/* y (contiguous) += rows g at 'index'. */
static zt_status add_rows(zt_ctx *c, zt_tensor *y, zt_tensor *g, zt_tensor *index, int dim) {
  zt_around s = zt_around_dim(y, dim);
  size_t n_index = (size_t)zt_tensor_count(index);
  zt_tensor *rows = NULL, *ids = NULL, *workspace = NULL;
  zt_status st;
  ZT_TRY_GOTO(zt_contiguous(c, g, &rows), done);
  ZT_TRY_GOTO(zt_contiguous(c, index, &ids), done);
  ZT_TRY_GOTO(zt_workspace(c, zt_k(c)->index_add_workspace(y->dtype, s.outer, s.n, n_index, s.inner), &workspace),
              done);
  st = zt_k(c)->index_add(zt_s(c), y->dtype, zt_tensor_data(y), zt_tensor_data(rows), zt_tensor_data(ids), s.outer, s.n,
                          n_index, s.inner, zt_data_or_null(workspace));
done:
  zt_tensor_release(rows);
  zt_tensor_release(ids);
  zt_tensor_release(workspace);
  return st;
}

/* The gradient that backward adds to: the one that waits, or a new one of zeros, then owned by gin[0]. */
static zt_status gradient_to_add_to(zt_ctx *c, const zt_call *call, zt_tensor *gin[], zt_tensor **out) {
  const zt_tensor *x = call->in[0];
  *out = call->accum[0];
  if (*out) return ZT_OK;
  ZT_TRY(zt_tensor_zeros(c, &gin[0], x->dtype, x->ndim, x->shape));
  *out = gin[0];
  return ZT_OK;
}

static zt_status select_backward(zt_ctx *c, const zt_call *call, zt_tensor *const gout[], zt_tensor *gin[]) {
  zt_tensor *to;
  ZT_TRY(gradient_to_add_to(c, call, gin, &to));
  return add_rows(c, to, gout[0], call->in[1], (int)call->attr.i[0]);
}

const zt_op zt_op_index_select = {"index_select", 1, 2, 0, false, select_shape, select_forward, select_backward};
const zt_op zt_op_embedding = {"embedding", 1, 2, 0, false, select_shape, select_forward, select_backward};

zt_status zt_index_select(zt_ctx *c, zt_tensor **y, zt_tensor *x, int dim, zt_tensor *index) {
  *y = NULL;
  int d;
  ZT_TRY(zt_wrap(zt_check_dim(x, dim, &d), "index_select"));
  if (index->ndim != 1)
    return zt_fail(ZT_SHAPE, "index_select: the index is %s, one dimension is needed", zt_shape_text(index));
  zt_call call = {.op = &zt_op_index_select, .in = {x, index}, .n_in = 2, .attr.i = {d}};
  return zt_apply(c, &call, y);
}

zt_status zt_embedding(zt_ctx *c, zt_tensor **y, zt_tensor *w, zt_tensor *ids) {
  *y = NULL;
  if (w->ndim != 2)
    return zt_fail(ZT_SHAPE, "embedding: the weight is %s, (vocabulary, width) is needed", zt_shape_text(w));
  zt_call call = {.op = &zt_op_embedding, .in = {w, ids}, .n_in = 2, .attr.i = {0}};
  return zt_apply(c, &call, y);
}

/* ---- gather: in = x, index; scatter_add: in = x, index, src; attr.i[0] = dim */

/* index has x's shape but for 'dim', and for the other dimensions may be shorter where x is then cut to it. */
static zt_status check_places(zt_ctx *c, const zt_tensor *x, const zt_tensor *index, int dim) {
  ZT_TRY(zt_check_dtype(index, ZT_I64, "the index"));
  bool fits = index->ndim == x->ndim;
  for (int i = 0; fits && i < x->ndim; i++) fits = i == dim || index->shape[i] <= x->shape[i];
  if (!fits)
    return zt_fail(ZT_SHAPE, "an index %s along dimension %d of %s", zt_shape_text(index), dim, zt_shape_text(x));
  return zt_check_index(c, index, x->shape[dim], ZT_NO_IGNORE, "index");
}

/* x cut to the index' sizes in the dimensions other than 'dim'. A view. */
static zt_status cut_to(const zt_tensor *x, const zt_tensor *index, int dim, zt_tensor **out) {
  int64_t shape[ZT_MAX_DIM];
  memcpy(shape, index->shape, sizeof shape);
  shape[dim] = x->shape[dim];
  return zt_tensor_view(x->storage, x->dtype, x->ndim, shape, x->stride, x->offset, out);
}

static zt_status gather_shape(zt_ctx *c, zt_call *call) {
  ZT_TRY(check_places(c, call->in[0], call->in[1], (int)call->attr.i[0]));
  if (!zt_dtype_is_float(call->in[0]->dtype)) call->needs_grad = 0;
  return zt_call_out(call, call->in[0]->dtype, call->in[1]->ndim, call->in[1]->shape);
}

static zt_status gather_forward(zt_ctx *c, zt_call *call) {
  int dim = (int)call->attr.i[0];
  zt_tensor *cut = NULL, *x = NULL, *index = NULL, *y = call->out[0];
  zt_status st;
  ZT_TRY_GOTO(cut_to(call->in[0], call->in[1], dim, &cut), done);
  ZT_TRY_GOTO(zt_contiguous(c, cut, &x), done);
  ZT_TRY_GOTO(zt_contiguous(c, call->in[1], &index), done);
  zt_around s = zt_around_dim(x, dim);
  st = zt_k(c)->gather(zt_s(c), y->dtype, zt_tensor_data(y), zt_tensor_data(x), zt_tensor_data(index), s.outer, s.n,
                       (size_t)index->shape[dim], s.inner);
done:
  zt_tensor_release(cut);
  zt_tensor_release(x);
  zt_tensor_release(index);
  return st;
}

/* y += src at index; y is contiguous, or cut and then written back. */
static zt_status add_places(zt_ctx *c, zt_tensor *y, zt_tensor *index, zt_tensor *src, int dim) {
  zt_tensor *cut = NULL, *part = NULL, *ids = NULL, *values = NULL;
  zt_status st;
  ZT_TRY_GOTO(cut_to(y, index, dim, &cut), done);
  ZT_TRY_GOTO(zt_contiguous(c, cut, &part), done);
  ZT_TRY_GOTO(zt_contiguous(c, index, &ids), done);
  ZT_TRY_GOTO(zt_contiguous(c, src, &values), done);
  zt_around s = zt_around_dim(part, dim);
  st = zt_k(c)->scatter_add(zt_s(c), y->dtype, zt_tensor_data(part), zt_tensor_data(values), zt_tensor_data(ids),
                            s.outer, s.n, (size_t)ids->shape[dim], s.inner);
  if (st == ZT_OK && part != cut) st = zt_copy_(c, cut, part);
done:
  zt_tensor_release(cut);
  zt_tensor_release(part);
  zt_tensor_release(ids);
  zt_tensor_release(values);
  return st;
}

static zt_status gather_backward(zt_ctx *c, const zt_call *call, zt_tensor *const gout[], zt_tensor *gin[]) {
  zt_tensor *to;
  ZT_TRY(gradient_to_add_to(c, call, gin, &to));
  return add_places(c, to, call->in[1], gout[0], (int)call->attr.i[0]);
}

const zt_op zt_op_gather = {"gather", 1, 2, 0, false, gather_shape, gather_forward, gather_backward};

zt_status zt_gather(zt_ctx *c, zt_tensor **y, zt_tensor *x, int dim, zt_tensor *index) {
  *y = NULL;
  int d;
  ZT_TRY(zt_wrap(zt_check_dim(x, dim, &d), "gather"));
  zt_call call = {.op = &zt_op_gather, .in = {x, index}, .n_in = 2, .attr.i = {d}};
  return zt_apply(c, &call, y);
}

static zt_status scatter_shape(zt_ctx *c, zt_call *call) {
  zt_tensor *x = call->in[0], *index = call->in[1], *src = call->in[2];
  ZT_TRY(check_places(c, x, index, (int)call->attr.i[0]));
  if (!zt_tensor_same_shape(index, src) || src->dtype != x->dtype)
    return zt_fail(ZT_SHAPE, "values %s %s at an index %s into %s", zt_dtype_name(src->dtype), zt_shape_text(src),
                   zt_shape_text(index), zt_dtype_name(x->dtype));
  return zt_call_out(call, x->dtype, x->ndim, x->shape);
}

static zt_status scatter_forward(zt_ctx *c, zt_call *call) {
  ZT_TRY(zt_copy_(c, call->out[0], call->in[0]));
  return add_places(c, call->out[0], call->in[1], call->in[2], (int)call->attr.i[0]);
}

static zt_status scatter_backward(zt_ctx *c, const zt_call *call, zt_tensor *const gout[], zt_tensor *gin[]) {
  if (call->needs_grad & 1) gin[0] = zt_tensor_retain(gout[0]);
  if (call->needs_grad & 4) return zt_gather(c, &gin[2], gout[0], (int)call->attr.i[0], call->in[1]);
  return ZT_OK;
}

const zt_op zt_op_scatter_add = {"scatter_add", 1, 2, 0, false, scatter_shape, scatter_forward, scatter_backward};

zt_status zt_scatter_add(zt_ctx *c, zt_tensor **y, zt_tensor *x, int dim, zt_tensor *index, zt_tensor *src) {
  *y = NULL;
  int d;
  ZT_TRY(zt_wrap(zt_check_dim(x, dim, &d), "scatter_add"));
  zt_call call = {.op = &zt_op_scatter_add, .in = {x, index, src}, .n_in = 3, .attr.i = {d}};
  return zt_apply(c, &call, y);
}
