/* loop.c - shapes that meet: broadcasting, loops over strided operands, and what op files share. */
#include <string.h>

#include "core/tensor/ctx.h"

/* Size and stride of 't' in dimension i of an ndim-dimensional result; missing leading dimensions are 1. */
static int64_t size_at(const zt_tensor *t, int ndim, int i) {
  int own = i - (ndim - t->ndim);
  return own < 0 ? 1 : t->shape[own];
}

static int64_t stride_at(const zt_tensor *t, int ndim, int i) {
  int own = i - (ndim - t->ndim);
  return own < 0 || t->shape[own] == 1 ? 0 : t->stride[own];
}

zt_status zt_broadcast_shape(const zt_tensor *a, const zt_tensor *b, int *ndim, int64_t *shape) {
  *ndim = a->ndim > b->ndim ? a->ndim : b->ndim;
  for (int i = 0; i < *ndim; i++) {
    int64_t x = size_at(a, *ndim, i), y = size_at(b, *ndim, i);
    if (x != y && x != 1 && y != 1)
      return zt_fail(ZT_SHAPE, "%s and %s do not broadcast", zt_shape_text(a), zt_shape_text(b));
    shape[i] = x == 1 ? y : x;
  }
  return ZT_OK;
}

static bool can_merge(const zt_loop *loop, const int64_t stride[4], int64_t shape, int n) {
  int last = loop->ndim - 1;
  for (int k = 0; k < n; k++)
    if (loop->stride[k][last] != stride[k] * shape) return false;
  return true;
}

/* Adds an inner dimension, merged into the last one where all operands allow. */
static void loop_push(zt_loop *loop, int64_t shape, const int64_t stride[4], int n) {
  if (shape == 1) return;
  bool merge = loop->ndim > 0 && can_merge(loop, stride, shape, n);
  int d = merge ? loop->ndim - 1 : loop->ndim++;
  loop->shape[d] = merge ? loop->shape[d] * shape : shape;
  for (int k = 0; k < n; k++) loop->stride[k][d] = stride[k];
}

zt_status zt_loop_make(zt_loop *loop, const zt_tensor *out, zt_tensor *const in[], int n_in) {
  memset(loop, 0, sizeof *loop);
  for (int i = 0; i < out->ndim; i++) {
    int64_t stride[4] = {out->stride[i]};
    for (int k = 0; k < n_in; k++) {
      int64_t size = size_at(in[k], out->ndim, i);
      if (in[k]->ndim > out->ndim || (size != 1 && size != out->shape[i]))
        return zt_fail(ZT_SHAPE, "%s does not broadcast to %s", zt_shape_text(in[k]), zt_shape_text(out));
      stride[k + 1] = stride_at(in[k], out->ndim, i);
    }
    loop_push(loop, out->shape[i], stride, n_in + 1);
  }
  return ZT_OK;
}

static zt_status copy_into(zt_ctx *c, zt_tensor *dst, const zt_tensor *src) {
  zt_loop loop;
  zt_tensor *in[1] = {(zt_tensor *)src};
  ZT_TRY(zt_loop_make(&loop, dst, in, 1));
  return zt_k(c)->copy(zt_s(c), dst->dtype, zt_tensor_data(dst), zt_tensor_data(src), &loop);
}

zt_status zt_contiguous(zt_ctx *c, const zt_tensor *t, zt_tensor **out) {
  if (zt_tensor_is_contiguous(t)) {
    *out = zt_tensor_retain((zt_tensor *)t);
    return ZT_OK;
  }
  ZT_TRY(zt_tensor_like(c, t, out));
  zt_status st = copy_into(c, *out, t);
  if (st != ZT_OK) {
    zt_tensor_release(*out);
    *out = NULL;
  }
  return st;
}

/* Sums dimensions [d, d + n) of the contiguous '*t' to one of size 1; replaces *t. */
static zt_status sum_dims(zt_ctx *c, zt_tensor **t, int d, int n) {
  int64_t outer = 1, middle = 1, inner = 1, shape[ZT_MAX_DIM];
  for (int i = 0; i < (*t)->ndim; i++) {
    int64_t size = (*t)->shape[i];
    shape[i] = i >= d && i < d + n ? 1 : size;
    *(i < d ? &outer : i < d + n ? &middle : &inner) *= size;
  }
  zt_tensor *y;
  ZT_TRY(zt_tensor_new(c, &y, (*t)->dtype, (*t)->ndim, shape));
  zt_status st = zt_k(c)->reduce(zt_s(c), ZT_REDUCE_SUM, y->dtype, zt_tensor_data(y), NULL, zt_tensor_data(*t),
                                 (size_t)outer, (size_t)middle, (size_t)inner);
  zt_tensor_release(*t);
  *t = y;
  return st;
}

zt_status zt_sum_to(zt_ctx *c, zt_tensor *g, const zt_tensor *like, zt_tensor **out) {
  if (zt_tensor_same_shape(g, like)) {
    *out = zt_tensor_retain(g);
    return ZT_OK;
  }
  zt_status st;
  zt_tensor *t, *view;
  ZT_TRY(zt_contiguous(c, g, &t));
  for (int i = 0; i < t->ndim;) {
    int n = 0; /* neighbouring dimensions that were broadcast go together */
    while (i + n < t->ndim && size_at(like, t->ndim, i + n) == 1 && t->shape[i + n] != 1) n++;
    if (n) ZT_TRY_GOTO(sum_dims(c, &t, i, n), done);
    i += n ? n : 1;
  }
  st = zt_tensor_header(t->dtype, like->ndim, like->shape, &view); /* drops leading dimensions of size 1 */
  if (st == ZT_OK) {
    view->storage = zt_storage_retain(t->storage);
    view->offset = t->offset;
    *out = view;
  }
done:
  zt_tensor_release(t);
  return st;
}

zt_status zt_check_dim(const zt_tensor *t, int64_t dim, int *out) {
  int64_t d = dim < 0 ? dim + t->ndim : dim;
  if (d < 0 || d >= t->ndim)
    return zt_fail(ZT_SHAPE, "dimension %lld of a tensor of %d dimensions %s (from 0)", (long long)dim, t->ndim,
                   zt_shape_text(t));
  *out = (int)d;
  return ZT_OK;
}

zt_status zt_check_float(const zt_tensor *t, const char *which) {
  if (zt_dtype_is_float(t->dtype)) return ZT_OK;
  return zt_fail(ZT_DTYPE, "%s must be a floating point tensor, it is %s %s", which, zt_dtype_name(t->dtype),
                 zt_shape_text(t));
}

zt_status zt_check_dtype(const zt_tensor *t, zt_dtype dtype, const char *which) {
  if (t->dtype == dtype) return ZT_OK;
  return zt_fail(ZT_DTYPE, "%s must be %s, it is %s %s", which, zt_dtype_name(dtype), zt_dtype_name(t->dtype),
                 zt_shape_text(t));
}

zt_status zt_workspace(zt_ctx *c, size_t nbytes, zt_tensor **out) {
  *out = NULL;
  if (nbytes == 0) return ZT_OK;
  int64_t shape[1] = {(int64_t)nbytes};
  return zt_tensor_new(c, out, ZT_U8, 1, shape);
}
