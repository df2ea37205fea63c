/* op_sample.c - what has no gradient: drawing tokens, and the norm of many tensors. */
#include <math.h>

#include "core/tensor/ops.h"

static zt_status check_sampling(const zt_tensor *logits, double temperature, int64_t top_k, double top_p) {
  ZT_TRY(zt_check_float(logits, "sample: logits"));
  if (logits->ndim != 2 || logits->shape[1] == 0)
    return zt_fail(ZT_SHAPE, "sample: logits %s, (rows, classes) is needed", zt_shape_text(logits));
  if (!(temperature >= 0) || isinf(temperature) || top_k < 0 || !(top_p > 0 && top_p <= 1))
    return zt_fail(ZT_INVALID, "sample: temperature %g (0 or more), top_k %lld (0 or more), top_p %g (in (0, 1])",
                   temperature, (long long)top_k, top_p);
  return ZT_OK;
}

zt_status zt_sample(zt_ctx *c, zt_tensor **ids, zt_tensor *logits, double temperature, int64_t top_k, double top_p) {
  *ids = NULL;
  ZT_TRY(check_sampling(logits, temperature, top_k, top_p));
  size_t rows = (size_t)logits->shape[0], cols = (size_t)logits->shape[1];
  zt_rng_key key = temperature > 0 ? zt_next_rng_key(c) : (zt_rng_key){0};
  zt_tensor *whole = NULL, *workspace = NULL;
  zt_status st;
  ZT_TRY(zt_storage_pin(logits->storage));
  ZT_TRY_GOTO(zt_contiguous(c, logits, &whole), done);
  ZT_TRY_GOTO(zt_workspace(c, zt_k(c)->sample_workspace(logits->dtype, rows, cols), &workspace), done);
  ZT_TRY_GOTO(zt_tensor_new(c, ids, ZT_I64, 1, logits->shape), done);
  st = zt_k(c)->sample(zt_s(c), logits->dtype, zt_tensor_data(*ids), zt_tensor_data(whole), temperature, (size_t)top_k,
                       top_p, &key, rows, cols, zt_data_or_null(workspace));
  if (st != ZT_OK) zt_tensor_release(*ids), *ids = NULL;
done:
  zt_storage_unpin(logits->storage);
  zt_tensor_release(whole);
  zt_tensor_release(workspace);
  return st;
}

/* Adds the squares of x; '*first_bad' is its first element that is not finite, or its count. */
static zt_status add_squares(zt_ctx *c, zt_exact *sum, zt_tensor *x, size_t *first_bad) {
  zt_tensor *whole;
  ZT_TRY(zt_check_float(x, "global_norm: the tensor"));
  ZT_TRY(zt_storage_pin(x->storage));
  zt_status st = zt_contiguous(c, x, &whole);
  if (st == ZT_OK) {
    st = zt_k(c)->sum_squares(zt_s(c), x->dtype, sum, first_bad, zt_tensor_data(whole), (size_t)zt_tensor_count(x));
    zt_tensor_release(whole);
  }
  zt_storage_unpin(x->storage);
  return st;
}

zt_status zt_global_norm(zt_ctx *c, double *norm, int64_t *bad, int64_t *bad_at, zt_tensor *const x[], int n) {
  zt_exact sum;
  int64_t first = -1, at = -1;
  zt_exact_clear(&sum);
  for (int i = 0; i < n; i++) {
    size_t count = (size_t)zt_tensor_count(x[i]), first_bad = count;
    ZT_TRY(add_squares(c, &sum, x[i], &first_bad));
    if (first < 0 && first_bad < count) first = i, at = (int64_t)first_bad;
  }
  *norm = first < 0 ? sqrt(zt_exact_value(&sum)) : NAN;
  if (bad) *bad = first;
  if (bad_at) *bad_at = at;
  return ZT_OK;
}
