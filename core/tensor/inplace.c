/* inplace.c - writes into existing tensors, without history. */
#include <string.h>

#include "core/tensor/ctx.h"
#include "core/tensor/late.h"

static zt_status check_writable(const zt_ctx *c, const zt_tensor *t, const char *name) {
  if (t->node && c->grad_enabled)
    return zt_fail(ZT_STATE,
                   "%s: the tensor %s was computed and a gradient must flow through it; use no_grad or detach", name,
                   zt_shape_text(t));
  for (int i = 0; i < t->ndim; i++)
    if (t->shape[i] > 1 && t->stride[i] == 0)
      return zt_fail(ZT_SHAPE, "%s: dimension %d (from 0) of %s repeats the same elements; write to a copy", name, i,
                     zt_shape_text(t));
  return ZT_OK;
}

static zt_status begin_write(zt_tensor *t) {
  ZT_TRY(zt_storage_pin(t->storage));
  t->storage->version++;
  return ZT_OK;
}

static zt_status end_write(zt_tensor *t, zt_status st) {
  zt_storage_unpin(t->storage);
  return st;
}

/* t = fn(t; p0, p1), also where t is a strided view. */
static zt_status map_(zt_ctx *c, zt_tensor *t, zt_unary fn, double p0, double p1) {
  zt_tensor *whole;
  ZT_TRY(zt_contiguous(c, t, &whole));
  zt_status st = zt_k(c)->unary(zt_s(c), fn, t->dtype, zt_tensor_data(whole), zt_tensor_data(whole), p0, p1,
                                (size_t)zt_tensor_count(t));
  if (st == ZT_OK && whole != t) st = zt_copy_(c, t, whole);
  zt_tensor_release(whole);
  return st;
}

zt_status zt_mul_(zt_ctx *c, zt_tensor *t, double factor) {
  ZT_TRY(check_writable(c, t, "mul_"));
  ZT_TRY(begin_write(t));
  return end_write(t, map_(c, t, ZT_UNARY_AFFINE, factor, 0));
}

/* Fills a new contiguous tensor and copies it where t is a strided view; else fills t. */
typedef zt_status (*filler)(zt_ctx *c, zt_tensor *t, double a, double b);
static zt_status fill_through(zt_ctx *c, zt_tensor *t, filler fill, double a, double b) {
  if (zt_tensor_is_contiguous(t)) {
    ZT_TRY(begin_write(t));
    return end_write(t, fill(c, t, a, b));
  }
  zt_tensor *whole;
  ZT_TRY(zt_tensor_like(c, t, &whole));
  zt_status st = fill(c, whole, a, b);
  if (st == ZT_OK) st = zt_copy_(c, t, whole);
  zt_tensor_release(whole);
  return st;
}

/* What has no bytes yet need not get them now. */
static zt_status start(zt_tensor *t, zt_start rule) {
  zt_late_set(t, &rule);
  return ZT_OK;
}

static zt_status fill_value(zt_ctx *c, zt_tensor *t, double value, double unused) {
  (void)unused;
  return zt_k(c)->fill(zt_s(c), t->dtype, zt_tensor_data(t), value, (size_t)zt_tensor_count(t));
}

zt_status zt_fill_(zt_ctx *c, zt_tensor *t, double value) {
  ZT_TRY(check_writable(c, t, "fill_"));
  if (zt_tensor_is_late(t)) return start(t, (zt_start){.kind = ZT_START_VALUE, .a = value});
  return fill_through(c, t, fill_value, value, 0);
}

/* Weights do not depend on where in the batch one stands: the key's sample is 0. */
static zt_rng_key weight_key(zt_ctx *c) {
  zt_rng_key key = zt_next_rng_key(c);
  key.first_sample = 0;
  return key;
}

static zt_status fill_normal(zt_ctx *c, zt_tensor *t, double mean, double std) {
  zt_rng_key key = weight_key(c);
  return zt_k(c)->random_normal(zt_s(c), t->dtype, zt_tensor_data(t), mean, std, &key, 0, (size_t)zt_tensor_count(t));
}

static zt_status fill_uniform(zt_ctx *c, zt_tensor *t, double low, double high) {
  zt_rng_key key = weight_key(c);
  return zt_k(c)->random_uniform(zt_s(c), t->dtype, zt_tensor_data(t), low, high, &key, 0, (size_t)zt_tensor_count(t));
}

zt_status zt_normal_(zt_ctx *c, zt_tensor *t, double mean, double std) {
  ZT_TRY(zt_check_float(t, "normal_: the tensor"));
  ZT_TRY(check_writable(c, t, "normal_"));
  if (!(std >= 0)) return zt_fail(ZT_INVALID, "normal_: the standard deviation is %g, less than 0", std);
  if (zt_tensor_is_late(t))
    return start(t, (zt_start){.kind = ZT_START_NORMAL, .a = mean, .b = std, .key = weight_key(c)});
  return fill_through(c, t, fill_normal, mean, std);
}

zt_status zt_uniform_(zt_ctx *c, zt_tensor *t, double low, double high) {
  ZT_TRY(zt_check_float(t, "uniform_: the tensor"));
  ZT_TRY(check_writable(c, t, "uniform_"));
  if (!(low <= high)) return zt_fail(ZT_INVALID, "uniform_: low %g is above high %g", low, high);
  if (zt_tensor_is_late(t))
    return start(t, (zt_start){.kind = ZT_START_UNIFORM, .a = low, .b = high, .key = weight_key(c)});
  return fill_through(c, t, fill_uniform, low, high);
}

static bool same_places(const zt_tensor *a, const zt_tensor *b) {
  return a->offset == b->offset && zt_tensor_same_shape(a, b) &&
         memcmp(a->stride, b->stride, (size_t)a->ndim * sizeof *a->stride) == 0;
}

/* src itself (retained), or a copy of it where writing dst may change elements of src that are still to be read. */
static zt_status kept_apart(zt_ctx *c, const zt_tensor *dst, const zt_tensor *src, zt_tensor **out) {
  if (src->storage != dst->storage || same_places(dst, src)) {
    *out = zt_tensor_retain((zt_tensor *)src);
    return ZT_OK;
  }
  ZT_TRY(zt_tensor_like(c, src, out));
  zt_status st = zt_copy_(c, *out, src);
  if (st != ZT_OK) zt_tensor_release(*out), *out = NULL;
  return st;
}

/* src in that dtype, contiguous (owned). */
static zt_status converted(zt_ctx *c, const zt_tensor *src, zt_dtype dtype, zt_tensor **out) {
  zt_tensor *whole;
  ZT_TRY(zt_contiguous(c, src, &whole));
  if (src->dtype == dtype) {
    *out = whole;
    return ZT_OK;
  }
  zt_status st = zt_tensor_new(c, out, dtype, src->ndim, src->shape);
  if (st == ZT_OK)
    st = zt_k(c)->cast(zt_s(c), dtype, src->dtype, zt_tensor_data(*out), zt_tensor_data(whole),
                       (size_t)zt_tensor_count(src));
  if (st != ZT_OK) zt_tensor_release(*out), *out = NULL;
  zt_tensor_release(whole);
  return st;
}

static zt_status copy_pinned(zt_ctx *c, zt_tensor *dst, const zt_tensor *src) {
  zt_loop loop;
  zt_tensor *in[1];
  ZT_TRY(src->dtype == dst->dtype ? kept_apart(c, dst, src, &in[0]) : converted(c, src, dst->dtype, &in[0]));
  zt_status st = zt_loop_make(&loop, dst, in, 1);
  if (st == ZT_OK) st = zt_k(c)->copy(zt_s(c), dst->dtype, zt_tensor_data(dst), zt_tensor_data(in[0]), &loop);
  zt_tensor_release(in[0]);
  return st;
}

zt_status zt_copy_(zt_ctx *c, zt_tensor *dst, const zt_tensor *src) {
  ZT_TRY(check_writable(c, dst, "copy_"));
  ZT_TRY(zt_storage_pin(src->storage));
  zt_status st = begin_write(dst);
  if (st == ZT_OK) st = end_write(dst, copy_pinned(c, dst, src));
  zt_storage_unpin(src->storage);
  return zt_wrap(st, "copy_");
}

/* dst += alpha * src for a contiguous src of the same dtype. */
static zt_status add_scaled(zt_ctx *c, zt_tensor *dst, zt_tensor *src, double alpha) {
  zt_tensor *term = zt_tensor_retain(src);
  zt_status st = ZT_OK;
  if (alpha != 1) {
    zt_tensor_release(term);
    ZT_TRY(zt_tensor_like(c, src, &term));
    st = zt_k(c)->unary(zt_s(c), ZT_UNARY_AFFINE, src->dtype, zt_tensor_data(term), zt_tensor_data(src), alpha, 0,
                        (size_t)zt_tensor_count(src));
  }
  zt_loop loop;
  zt_tensor *in[2] = {dst, term};
  if (st == ZT_OK) st = zt_loop_make(&loop, dst, in, 2);
  if (st == ZT_OK)
    st = zt_k(c)->binary(zt_s(c), ZT_BINARY_ADD, dst->dtype, zt_tensor_data(dst), zt_tensor_data(dst),
                         zt_tensor_data(term), &loop);
  zt_tensor_release(term);
  return st;
}

static zt_status add_pinned(zt_ctx *c, zt_tensor *dst, const zt_tensor *src, double alpha) {
  zt_tensor *apart, *term;
  ZT_TRY(kept_apart(c, dst, src, &apart));
  zt_status st = converted(c, apart, dst->dtype, &term);
  zt_tensor_release(apart);
  ZT_TRY(st);
  st = add_scaled(c, dst, term, alpha);
  zt_tensor_release(term);
  return st;
}

zt_status zt_add_(zt_ctx *c, zt_tensor *dst, const zt_tensor *src, double alpha) {
  ZT_TRY(check_writable(c, dst, "add_"));
  ZT_TRY(zt_storage_pin(src->storage));
  zt_status st = begin_write(dst);
  if (st == ZT_OK) st = end_write(dst, add_pinned(c, dst, src, alpha));
  zt_storage_unpin(src->storage);
  return zt_wrap(st, "add_");
}
