#include "core/tensor/tensor.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/tensor/ctx.h"

static zt_status check_shape(zt_dtype dtype, int ndim, const int64_t *shape) {
  if (ndim < 0 || ndim > ZT_MAX_DIM)
    return zt_fail(ZT_SHAPE, "a tensor has 0 to %d dimensions, not %d", ZT_MAX_DIM, ndim);
  int64_t count = (int64_t)zt_dtype_nbytes(dtype);
  bool too_large = false, empty = false;
  for (int i = 0; i < ndim; i++) {
    if (shape[i] < 0) return zt_fail(ZT_SHAPE, "shape %s has a negative size", zt_dims_text(ndim, shape));
    empty |= shape[i] == 0;
    too_large |= !empty && __builtin_mul_overflow(count, shape[i], &count);
  }
  if (too_large && !empty) return zt_fail(ZT_SHAPE, "shape %s is too large", zt_dims_text(ndim, shape));
  return ZT_OK;
}

zt_status zt_tensor_header(zt_dtype dtype, int ndim, const int64_t *shape, zt_tensor **out) {
  *out = NULL;
  ZT_TRY(check_shape(dtype, ndim, shape));
  zt_tensor *t = zt_calloc(1, sizeof *t);
  ZT_CHECK_ALLOC(t);
  t->refs = 1, t->dtype = dtype, t->ndim = ndim;
  int64_t stride = 1;
  for (int i = ndim - 1; i >= 0; i--) {
    t->shape[i] = shape[i];
    t->stride[i] = stride;
    stride *= shape[i] ? shape[i] : 1;
  }
  *out = t;
  return ZT_OK;
}

zt_status zt_tensor_fill_header(zt_ctx *c, zt_tensor *t) {
  return zt_storage_new(c->pool, zt_tensor_nbytes(t), c->mem_kind, &t->storage);
}

zt_status zt_tensor_new(zt_ctx *c, zt_tensor **out, zt_dtype dtype, int ndim, const int64_t *shape) {
  ZT_TRY(zt_tensor_header(dtype, ndim, shape, out));
  zt_status st = zt_tensor_fill_header(c, *out);
  if (st != ZT_OK) {
    zt_tensor_release(*out);
    *out = NULL;
  }
  return st;
}

zt_status zt_tensor_empty(zt_ctx *c, zt_tensor **out, zt_dtype dtype, int ndim, const int64_t *shape) {
  ZT_TRY(zt_tensor_header(dtype, ndim, shape, out));
  zt_status st = zt_storage_new_empty(c->pool, zt_tensor_nbytes(*out), &(*out)->storage);
  if (st != ZT_OK) {
    zt_tensor_release(*out);
    *out = NULL;
  }
  return st;
}

zt_status zt_tensor_from(zt_ctx *c, zt_tensor **out, zt_dtype dtype, int ndim, const int64_t *shape, const void *data) {
  ZT_TRY(zt_tensor_new(c, out, dtype, ndim, shape));
  zt_status st = zt_tensor_write(c, *out, data);
  if (st != ZT_OK) {
    zt_tensor_release(*out);
    *out = NULL;
  }
  return st;
}

zt_status zt_tensor_like(zt_ctx *c, const zt_tensor *t, zt_tensor **out) {
  return zt_tensor_new(c, out, t->dtype, t->ndim, t->shape);
}

static zt_status filled(zt_ctx *c, zt_tensor **out, zt_dtype dtype, int ndim, const int64_t *shape, double value) {
  ZT_TRY(zt_tensor_new(c, out, dtype, ndim, shape));
  zt_status st = zt_k(c)->fill(zt_s(c), dtype, zt_tensor_data(*out), value, (size_t)zt_tensor_count(*out));
  if (st != ZT_OK) {
    zt_tensor_release(*out);
    *out = NULL;
  }
  return st;
}

zt_status zt_scalar(zt_ctx *c, zt_tensor **out, zt_dtype dtype, double value) {
  return filled(c, out, dtype, 0, NULL, value);
}

zt_status zt_tensor_zeros(zt_ctx *c, zt_tensor **out, zt_dtype dtype, int ndim, const int64_t *shape) {
  return filled(c, out, dtype, ndim, shape, 0);
}

zt_status zt_tensor_view(zt_storage *storage, zt_dtype dtype, int ndim, const int64_t *shape, const int64_t *stride,
                         int64_t offset, zt_tensor **out) {
  ZT_TRY(zt_tensor_header(dtype, ndim, shape, out));
  memcpy((*out)->stride, stride, (size_t)ndim * sizeof *stride);
  (*out)->offset = offset;
  (*out)->storage = storage ? zt_storage_retain(storage) : NULL;
  return ZT_OK;
}

zt_status zt_tensor_alias(const zt_tensor *t, zt_tensor **out) {
  return zt_tensor_view(t->storage, t->dtype, t->ndim, t->shape, t->stride, t->offset, out);
}

zt_status zt_tensor_shape_only(const zt_tensor *t, zt_tensor **out) {
  return zt_tensor_header(t->dtype, t->ndim, t->shape, out);
}

zt_tensor *zt_tensor_retain(zt_tensor *t) {
  t->refs++;
  return t;
}

void zt_tensor_release(zt_tensor *t) {
  if (!t || --t->refs) return;
  zt_node *node = t->node;
  zt_tensor_release(t->grad);
  zt_storage_release(t->storage);
  zt_free(t);
  if (node) zt_node_release(node);
}

int64_t zt_tensor_count(const zt_tensor *t) {
  int64_t count = 1;
  for (int i = 0; i < t->ndim; i++) count *= t->shape[i];
  return count;
}

size_t zt_tensor_nbytes(const zt_tensor *t) { return (size_t)zt_tensor_count(t) * zt_dtype_nbytes(t->dtype); }

bool zt_tensor_is_contiguous(const zt_tensor *t) {
  int64_t stride = 1;
  for (int i = t->ndim - 1; i >= 0; i--) {
    if (t->shape[i] == 0) return true;
    if (t->shape[i] != 1 && t->stride[i] != stride) return false;
    stride *= t->shape[i];
  }
  return true;
}

bool zt_tensor_same_shape(const zt_tensor *a, const zt_tensor *b) {
  return a->ndim == b->ndim && memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape) == 0;
}

const char *zt_dims_text(int ndim, const int64_t *shape) {
  enum { N_KEPT = 4, NBYTES = 160 };
  static _Thread_local char texts[N_KEPT][NBYTES];
  static _Thread_local unsigned turn;
  char *text = texts[turn++ % N_KEPT];
  size_t length = (size_t)snprintf(text, NBYTES, "(");
  for (int i = 0; i < ndim && i < ZT_MAX_DIM; i++)
    length += (size_t)snprintf(text + length, NBYTES - length, "%s%" PRId64, i ? ", " : "", shape[i]);
  snprintf(text + length, NBYTES - length, ")");
  return text;
}

const char *zt_shape_text(const zt_tensor *t) { return zt_dims_text(t->ndim, t->shape); }

static zt_status read_pinned(zt_ctx *c, const zt_tensor *t, void *host) {
  zt_tensor *whole;
  ZT_TRY(zt_contiguous(c, t, &whole));
  zt_status st = c->device->ops->copy(zt_s(c), host, zt_tensor_data(whole), zt_tensor_nbytes(t));
  if (st == ZT_OK) st = c->device->ops->sync(zt_s(c));
  zt_tensor_release(whole);
  return st;
}

zt_status zt_tensor_read(zt_ctx *c, const zt_tensor *t, void *host) {
  ZT_TRY(zt_storage_pin(t->storage));
  zt_status st = read_pinned(c, t, host);
  zt_storage_unpin(t->storage);
  return st;
}

zt_status zt_tensor_write(zt_ctx *c, zt_tensor *t, const void *host) {
  if (!zt_tensor_is_contiguous(t)) {
    zt_tensor *whole;
    ZT_TRY(zt_tensor_from(c, &whole, t->dtype, t->ndim, t->shape, host));
    zt_status st = zt_copy_(c, t, whole);
    zt_tensor_release(whole);
    return st;
  }
  ZT_TRY(zt_storage_pin(t->storage));
  t->storage->version++;
  zt_status st = c->device->ops->copy(zt_s(c), zt_tensor_data(t), host, zt_tensor_nbytes(t));
  if (st == ZT_OK) st = c->device->ops->sync(zt_s(c));
  zt_storage_unpin(t->storage);
  return st;
}

static double element_value(zt_dtype dtype, const void *p) {
  union {
    float f32;
    double f64;
    uint16_t u16;
    int64_t i64;
    int32_t i32;
    uint8_t u8;
  } v;
  memcpy(&v, p, zt_dtype_nbytes(dtype));
  switch (dtype) {
    case ZT_F32:
      return v.f32;
    case ZT_F64:
      return v.f64;
    case ZT_BF16:
      return zt_bf16_to_f32(v.u16);
    case ZT_F16:
      return zt_f16_to_f32(v.u16);
    case ZT_I64:
      return (double)v.i64;
    case ZT_I32:
      return v.i32;
    default:
      return v.u8;
  }
}

zt_status zt_tensor_item(zt_ctx *c, const zt_tensor *t, double *out) {
  if (zt_tensor_count(t) != 1)
    return zt_fail(ZT_SHAPE, "item: a tensor of one element is needed, this is %s", zt_shape_text(t));
  char bytes[8];
  ZT_TRY(zt_tensor_read(c, t, bytes));
  *out = element_value(t->dtype, bytes);
  return ZT_OK;
}
