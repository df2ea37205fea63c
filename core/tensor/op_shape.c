/* op_shape.c - other shapes of the same elements: views where strides can say it, else copies. */
#include <string.h>

#include "core/base/mem.h"
#include "core/tensor/ops.h"

/* Makes call->out[0] a view of in[0]. */
static zt_status view_out(zt_call *call, int ndim, const int64_t *shape, const int64_t *stride, int64_t offset) {
  zt_tensor *x = call->in[0];
  ZT_TRY(zt_tensor_view(x->storage, x->dtype, ndim, shape, stride, offset, &call->out[0]));
  call->n_out = 1;
  return ZT_OK;
}

static zt_status no_shape(zt_ctx *c, zt_call *call) {
  (void)c, (void)call;
  return ZT_OK;
}

/* ---- reshape: attr.i[0] dimensions, attr.i[1..] sizes */

/* Strides of 'shape' over the elements of x, in order; false where a copy is needed. Walks both shapes from the end:
** a run of x's dimensions that lie contiguously in each other can be cut anew. */
static bool view_strides(const zt_tensor *x, int ndim, const int64_t *shape, int64_t *stride) {
  int v = ndim - 1;
  int64_t run = 1, cut = 1;
  for (int d = x->ndim - 1; d >= 0; d--) {
    int64_t base = x->stride[d];
    for (run = x->shape[d]; d > 0 && (x->shape[d - 1] == 1 || x->stride[d - 1] == run * base); d--)
      run *= x->shape[d - 1];
    for (cut = 1; v >= 0 && (cut < run || shape[v] == 1); v--) {
      stride[v] = cut * base;
      cut *= shape[v];
    }
    if (cut != run) return false;
  }
  for (; v >= 0; v--) stride[v] = 1; /* sizes of 1 that are left, or all of a tensor of no dimensions */
  return true;
}

/* A view of the same elements, copied to lie in order first where no strides can say it. */
static zt_status reshape_forward(zt_ctx *c, zt_call *call) {
  zt_tensor *x = call->in[0], *whole;
  int ndim = (int)call->attr.i[0];
  const int64_t *shape = call->attr.i + 1;
  int64_t stride[ZT_MAX_DIM] = {0};
  if (zt_tensor_count(x) == 0 || view_strides(x, ndim, shape, stride))
    return view_out(call, ndim, shape, stride, x->offset);
  ZT_TRY(zt_contiguous(c, x, &whole));
  view_strides(whole, ndim, shape, stride);
  zt_status st = zt_tensor_view(whole->storage, x->dtype, ndim, shape, stride, whole->offset, &call->out[0]);
  call->n_out = st == ZT_OK;
  zt_tensor_release(whole);
  return st;
}

static zt_status reshape_backward(zt_ctx *c, const zt_call *call, zt_tensor *const gout[], zt_tensor *gin[]) {
  return zt_reshape(c, &gin[0], gout[0], call->in[0]->ndim, call->in[0]->shape);
}

const zt_op zt_op_reshape = {"reshape", 1, 0, 0, true, no_shape, reshape_forward, reshape_backward};

/* Fills in the one size that is -1. */
static zt_status infer_size(const zt_tensor *x, int ndim, const int64_t *shape, int64_t *out) {
  int64_t count = zt_tensor_count(x), known = 1;
  int missing = -1;
  if (ndim < 0 || ndim > ZT_MAX_DIM)
    return zt_fail(ZT_SHAPE, "reshape: %d dimensions, at most %d are possible", ndim, ZT_MAX_DIM);
  for (int i = 0; i < ndim; i++) {
    out[i] = shape[i];
    if (shape[i] == -1 && missing < 0)
      missing = i;
    else if (shape[i] < 0)
      return zt_fail(ZT_SHAPE, "reshape: sizes %s", zt_dims_text(ndim, shape));
    else if (__builtin_mul_overflow(known, shape[i], &known))
      known = -1;
  }
  if (missing >= 0 && known > 0 && count % known == 0) out[missing] = count / known, known = count;
  if (known != count || (missing >= 0 && out[missing] < 0))
    return zt_fail(ZT_SHAPE, "reshape: %s has %lld elements, which do not make %s", zt_shape_text(x), (long long)count,
                   zt_dims_text(ndim, shape));
  return ZT_OK;
}

zt_status zt_reshape(zt_ctx *c, zt_tensor **y, zt_tensor *x, int ndim, const int64_t *shape) {
  *y = NULL;
  zt_call call = {.op = &zt_op_reshape, .in = {x}, .n_in = 1, .attr.i = {ndim}};
  ZT_TRY(infer_size(x, ndim, shape, call.attr.i + 1));
  return zt_apply(c, &call, y);
}

/* ---- permute and transpose: attr.i[k] is the dimension of x that becomes dimension k */

static zt_status permute_forward(zt_ctx *c, zt_call *call) {
  (void)c;
  zt_tensor *x = call->in[0];
  int64_t shape[ZT_MAX_DIM], stride[ZT_MAX_DIM];
  for (int i = 0; i < x->ndim; i++) {
    shape[i] = x->shape[call->attr.i[i]];
    stride[i] = x->stride[call->attr.i[i]];
  }
  return view_out(call, x->ndim, shape, stride, x->offset);
}

static zt_status permute_backward(zt_ctx *c, const zt_call *call, zt_tensor *const gout[], zt_tensor *gin[]) {
  int inverse[ZT_MAX_DIM] = {0};
  for (int i = 0; i < call->in[0]->ndim; i++) inverse[call->attr.i[i]] = i;
  return zt_permute(c, &gin[0], gout[0], inverse);
}

const zt_op zt_op_permute = {"permute", 1, 0, 0, true, no_shape, permute_forward, permute_backward};
const zt_op zt_op_transpose = {"transpose", 1, 0, 0, true, no_shape, permute_forward, permute_backward};

zt_status zt_permute(zt_ctx *c, zt_tensor **y, zt_tensor *x, const int *order) {
  *y = NULL;
  zt_call call = {.op = &zt_op_permute, .in = {x}, .n_in = 1};
  unsigned seen = 0;
  for (int i = 0; i < x->ndim; i++) {
    int d;
    ZT_TRY(zt_wrap(zt_check_dim(x, order[i], &d), "permute"));
    seen |= 1u << d;
    call.attr.i[i] = d;
  }
  if (seen != (1u << x->ndim) - 1) return zt_fail(ZT_SHAPE, "permute: each dimension of %s once", zt_shape_text(x));
  return zt_apply(c, &call, y);
}

zt_status zt_transpose(zt_ctx *c, zt_tensor **y, zt_tensor *x, int dim1, int dim2) {
  *y = NULL;
  int d1, d2;
  zt_call call = {.op = &zt_op_transpose, .in = {x}, .n_in = 1};
  ZT_TRY(zt_wrap(zt_check_dim(x, dim1, &d1), "transpose"));
  ZT_TRY(zt_wrap(zt_check_dim(x, dim2, &d2), "transpose"));
  for (int i = 0; i < x->ndim; i++) call.attr.i[i] = i == d1 ? d2 : i == d2 ? d1 : i;
  return zt_apply(c, &call, y);
}

/* ---- narrow: attr.i = dim, start, length */

static zt_status narrow_view(const zt_tensor *x, const int64_t *attr, zt_tensor **out) {
  int64_t shape[ZT_MAX_DIM];
  memcpy(shape, x->shape, sizeof shape);
  shape[attr[0]] = attr[2];
  return zt_tensor_view(x->storage, x->dtype, x->ndim, shape, x->stride, x->offset + attr[1] * x->stride[attr[0]], out);
}

static zt_status narrow_forward(zt_ctx *c, zt_call *call) {
  (void)c;
  ZT_TRY(narrow_view(call->in[0], call->attr.i, &call->out[0]));
  call->n_out = 1;
  return ZT_OK;
}

/* Adds to the gradient of the whole that waits, if one does: the parts of a split then share one. */
static zt_status narrow_backward(zt_ctx *c, const zt_call *call, zt_tensor *const gout[], zt_tensor *gin[]) {
  zt_tensor *x = call->in[0], *whole = call->accum[0], *part;
  if (!whole) {
    ZT_TRY(zt_tensor_zeros(c, &gin[0], x->dtype, x->ndim, x->shape));
    whole = gin[0];
  }
  ZT_TRY(narrow_view(whole, call->attr.i, &part));
  zt_status st = gin[0] ? zt_copy_(c, part, gout[0]) : zt_add_(c, part, gout[0], 1);
  zt_tensor_release(part);
  return st;
}

const zt_op zt_op_narrow = {"narrow", 1, 0, 0, true, no_shape, narrow_forward, narrow_backward};

zt_status zt_narrow(zt_ctx *c, zt_tensor **y, zt_tensor *x, int dim, int64_t start, int64_t length) {
  *y = NULL;
  int d;
  ZT_TRY(zt_wrap(zt_check_dim(x, dim, &d), "narrow"));
  if (start < 0 || length < 0 || start > x->shape[d] - length)
    return zt_fail(ZT_SHAPE, "narrow: %lld elements from %lld (from 0) along dimension %d of %s", (long long)length,
                   (long long)start, d, zt_shape_text(x));
  zt_call call = {.op = &zt_op_narrow, .in = {x}, .n_in = 1, .attr.i = {d, start, length}};
  return zt_apply(c, &call, y);
}

zt_status zt_split(zt_ctx *c, zt_tensor *out[], zt_tensor *x, const int64_t *sizes, int n, int dim) {
  int d, done = 0;
  int64_t start = 0, sum = 0;
  ZT_TRY(zt_wrap(zt_check_dim(x, dim, &d), "split"));
  for (int i = 0; i < n; i++) sum += sizes[i];
  if (sum != x->shape[d])
    return zt_fail(ZT_SHAPE, "split: the parts sum to %lld, dimension %d of %s does not", (long long)sum, d,
                   zt_shape_text(x));
  zt_status st = ZT_OK;
  for (; done < n && st == ZT_OK; done++) {
    st = zt_narrow(c, &out[done], x, d, start, sizes[done]);
    start += sizes[done];
  }
  for (int i = 0; i < done && st != ZT_OK; i++) zt_tensor_release(out[i]), out[i] = NULL;
  return st;
}

/* ---- expand: attr.i[0] dimensions, attr.i[1..] sizes */

static zt_status expand_forward(zt_ctx *c, zt_call *call) {
  (void)c;
  zt_tensor *x = call->in[0];
  int ndim = (int)call->attr.i[0];
  const int64_t *shape = call->attr.i + 1;
  int64_t stride[ZT_MAX_DIM];
  for (int i = 0; i < ndim; i++) {
    int own = i - (ndim - x->ndim);
    if (own >= 0 && x->shape[own] != 1 && x->shape[own] != shape[i])
      return zt_fail(ZT_SHAPE, "%s does not expand to %s", zt_shape_text(x), zt_dims_text(ndim, shape));
    stride[i] = own < 0 || x->shape[own] == 1 ? 0 : x->stride[own];
  }
  return view_out(call, ndim, shape, stride, x->offset);
}

static zt_status expand_backward(zt_ctx *c, const zt_call *call, zt_tensor *const gout[], zt_tensor *gin[]) {
  return zt_sum_to(c, gout[0], call->in[0], &gin[0]);
}

const zt_op zt_op_expand = {"expand", 1, 0, 0, true, no_shape, expand_forward, expand_backward};

zt_status zt_expand(zt_ctx *c, zt_tensor **y, zt_tensor *x, int ndim, const int64_t *shape) {
  *y = NULL;
  if (ndim < x->ndim || ndim > ZT_MAX_DIM)
    return zt_fail(ZT_SHAPE, "expand: %s to %d dimensions", zt_shape_text(x), ndim);
  zt_call call = {.op = &zt_op_expand, .in = {x}, .n_in = 1, .attr.i = {ndim}};
  memcpy(call.attr.i + 1, shape, (size_t)ndim * sizeof *shape);
  return zt_apply(c, &call, y);
}

/* ---- copy and cast */

static zt_status same_shape(zt_ctx *c, zt_call *call) {
  (void)c;
  return zt_call_out(call, call->in[0]->dtype, call->in[0]->ndim, call->in[0]->shape);
}

static zt_status copy_forward(zt_ctx *c, zt_call *call) { return zt_copy_(c, call->out[0], call->in[0]); }

static zt_status copy_backward(zt_ctx *c, const zt_call *call, zt_tensor *const gout[], zt_tensor *gin[]) {
  (void)c, (void)call;
  gin[0] = zt_tensor_retain(gout[0]);
  return ZT_OK;
}

const zt_op zt_op_copy = {"copy", 1, 0, 0, false, same_shape, copy_forward, copy_backward};

zt_status zt_copy(zt_ctx *c, zt_tensor **y, zt_tensor *x) {
  zt_call call = {.op = &zt_op_copy, .in = {x}, .n_in = 1};
  return zt_apply(c, &call, y);
}

static zt_status cast_shape(zt_ctx *c, zt_call *call) {
  (void)c;
  if (!zt_dtype_is_float((zt_dtype)call->attr.i[0])) call->needs_grad = 0;
  return zt_call_out(call, (zt_dtype)call->attr.i[0], call->in[0]->ndim, call->in[0]->shape);
}

static zt_status cast_backward(zt_ctx *c, const zt_call *call, zt_tensor *const gout[], zt_tensor *gin[]) {
  return zt_cast(c, &gin[0], gout[0], call->in[0]->dtype);
}

const zt_op zt_op_cast = {"cast", 1, 0, 0, false, cast_shape, copy_forward, cast_backward};

zt_status zt_cast(zt_ctx *c, zt_tensor **y, zt_tensor *x, zt_dtype dtype) {
  if (x->dtype == dtype) {
    *y = zt_tensor_retain(x);
    return ZT_OK;
  }
  zt_call call = {.op = &zt_op_cast, .in = {x}, .n_in = 1, .attr.i = {dtype}};
  return zt_apply(c, &call, y);
}

/* ---- cat: attr.i[0] is the dimension */

static zt_status cat_shape(zt_ctx *c, zt_call *call) {
  (void)c;
  zt_tensor *first = call->in[0];
  int dim = (int)call->attr.i[0];
  int64_t shape[ZT_MAX_DIM];
  memcpy(shape, first->shape, sizeof shape);
  shape[dim] = 0;
  for (int i = 0; i < call->n_in; i++) {
    zt_tensor *x = call->in[i];
    bool fits = x->ndim == first->ndim && x->dtype == first->dtype;
    for (int d = 0; fits && d < x->ndim; d++) fits = d == dim || x->shape[d] == first->shape[d];
    if (!fits)
      return zt_fail(ZT_SHAPE, "%s %s does not go with %s %s along dimension %d", zt_dtype_name(x->dtype),
                     zt_shape_text(x), zt_dtype_name(first->dtype), zt_shape_text(first), dim);
    shape[dim] += x->shape[dim];
  }
  return zt_call_out(call, first->dtype, first->ndim, shape);
}

/* The view of 'whole' where input i of the call stands; attr as narrow's. */
static zt_status cat_part(const zt_call *call, int i, zt_tensor *whole, zt_tensor **out) {
  int64_t dim = call->attr.i[0], attr[3] = {dim, 0, call->in[i]->shape[dim]};
  for (int k = 0; k < i; k++) attr[1] += call->in[k]->shape[dim];
  return narrow_view(whole, attr, out);
}

static zt_status cat_forward(zt_ctx *c, zt_call *call) {
  for (int i = 0; i < call->n_in; i++) {
    zt_tensor *part;
    ZT_TRY(cat_part(call, i, call->out[0], &part));
    zt_status st = zt_copy_(c, part, call->in[i]);
    zt_tensor_release(part);
    ZT_TRY(st);
  }
  return ZT_OK;
}

static zt_status cat_backward(zt_ctx *c, const zt_call *call, zt_tensor *const gout[], zt_tensor *gin[]) {
  (void)c;
  for (int i = 0; i < call->n_in; i++)
    if (call->needs_grad >> i & 1) ZT_TRY(cat_part(call, i, gout[0], &gin[i]));
  return ZT_OK;
}

const zt_op zt_op_cat = {"cat", 1, 0, 0, false, cat_shape, cat_forward, cat_backward};

/* At most ZT_MAX_IN tensors. */
static zt_status cat_few(zt_ctx *c, zt_tensor **y, zt_tensor *const x[], int n, int dim) {
  zt_call call = {.op = &zt_op_cat, .n_in = n, .attr.i = {dim}};
  memcpy(call.in, x, (size_t)n * sizeof *x);
  return zt_apply(c, &call, y);
}

/* More than fit in a call are joined in groups, and the groups again: each element is copied once a level. */
static zt_status cat_level(zt_ctx *c, zt_tensor **y, zt_tensor *const x[], int n, int dim) {
  if (n <= ZT_MAX_IN) return cat_few(c, y, x, n, dim);
  int n_groups = (n + ZT_MAX_IN - 1) / ZT_MAX_IN, made = 0;
  zt_tensor **groups = zt_calloc((size_t)n_groups, sizeof *groups);
  ZT_CHECK_ALLOC(groups);
  zt_status st = ZT_OK;
  for (; made < n_groups && st == ZT_OK; made++) {
    int start = made * ZT_MAX_IN, left = n - start;
    st = cat_few(c, &groups[made], x + start, left < ZT_MAX_IN ? left : ZT_MAX_IN, dim);
  }
  if (st == ZT_OK) st = cat_level(c, y, groups, n_groups, dim);
  for (int i = 0; i < made; i++) zt_tensor_release(groups[i]);
  zt_free(groups);
  return st;
}

zt_status zt_cat(zt_ctx *c, zt_tensor **y, zt_tensor *const x[], int n, int dim) {
  *y = NULL;
  int d;
  if (n < 1) return zt_fail(ZT_INVALID, "cat: no tensors");
  ZT_TRY(zt_wrap(zt_check_dim(x[0], dim, &d), "cat"));
  return cat_level(c, y, x, n, d);
}

/* x[i] with a new dimension of size 1 at d. */
static zt_status unsqueeze(zt_ctx *c, zt_tensor **y, zt_tensor *x, int d) {
  int64_t shape[ZT_MAX_DIM + 1];
  for (int i = 0; i <= x->ndim; i++) shape[i] = i < d ? x->shape[i] : i == d ? 1 : x->shape[i - 1];
  return zt_reshape(c, y, x, x->ndim + 1, shape);
}

zt_status zt_stack(zt_ctx *c, zt_tensor **y, zt_tensor *const x[], int n, int dim) {
  *y = NULL;
  if (n < 1) return zt_fail(ZT_INVALID, "stack: no tensors");
  int d = dim < 0 ? dim + x[0]->ndim + 1 : dim, made = 0;
  if (x[0]->ndim == ZT_MAX_DIM)
    return zt_fail(ZT_SHAPE, "stack: tensors %s have %d dimensions, no more are possible", zt_shape_text(x[0]),
                   ZT_MAX_DIM);
  if (d < 0 || d > x[0]->ndim) return zt_fail(ZT_SHAPE, "stack: dimension %d of tensors %s", dim, zt_shape_text(x[0]));
  zt_tensor **parts = zt_calloc((size_t)n, sizeof *parts);
  ZT_CHECK_ALLOC(parts);
  zt_status st = ZT_OK;
  for (; made < n && st == ZT_OK; made++)
    st = zt_tensor_same_shape(x[made], x[0])
             ? unsqueeze(c, &parts[made], x[made], d)
             : zt_fail(ZT_SHAPE, "stack: %s and %s", zt_shape_text(x[0]), zt_shape_text(x[made]));
  if (st == ZT_OK) st = zt_cat(c, y, parts, n, d);
  for (int i = 0; i < made; i++) zt_tensor_release(parts[i]);
  zt_free(parts);
  return st;
}
