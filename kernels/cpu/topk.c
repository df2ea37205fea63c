/* topk.c - the k first of each row in sorted order. The row's part of 'index' is a heap of the best so far, the worst of
** them at its root; at the end it is sorted in place. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/loop.h"

typedef struct row {
  zt_dtype t;
  const void *x;
  bool largest;
} row;

static double value_at(const row *r, int64_t i) {
  switch (r->t) {
    case ZT_F32:
      return ((const float *)r->x)[i];
    case ZT_F64:
      return ((const double *)r->x)[i];
    case ZT_BF16:
      return zt_bf16_to_f32(((const uint16_t *)r->x)[i]);
    default:
      return zt_f16_to_f32(((const uint16_t *)r->x)[i]);
  }
}

/* Whether the element i of value x stands before the element j of value y. NaN counts as largest. */
static bool before(bool largest, double x, int64_t i, double y, int64_t j) {
  bool nan_x = x != x, nan_y = y != y;
  if (nan_x != nan_y) return nan_x == largest;
  if (x == y || nan_x) return i < j;
  return largest ? x > y : x < y;
}
static bool stands_before(const row *r, int64_t i, int64_t j) {
  return before(r->largest, value_at(r, i), i, value_at(r, j), j);
}

/* Lets heap[at] sink until no child stands behind it. */
static void sink(const row *r, int64_t *heap, size_t at, size_t k) {
  int64_t item = heap[at];
  for (size_t child; (child = 2 * at + 1) < k; at = child) {
    if (child + 1 < k && stands_before(r, heap[child], heap[child + 1])) child++;
    if (!stands_before(r, item, heap[child])) break;
    heap[at] = heap[child];
  }
  heap[at] = item;
}

static void topk_row(const row *r, int64_t *heap, size_t cols, size_t k) {
  for (size_t i = 0; i < k; i++) heap[i] = (int64_t)i;
  for (size_t i = k / 2; i-- > 0;) sink(r, heap, i, k);
  double worst = value_at(r, heap[0]);
  for (int64_t i = (int64_t)k; i < (int64_t)cols; i++) {
    if (!before(r->largest, value_at(r, i), i, worst, heap[0])) continue;
    heap[0] = i;
    sink(r, heap, 0, k);
    worst = value_at(r, heap[0]);
  }
  for (size_t left = k; left-- > 1;) {
    int64_t last = heap[0];
    heap[0] = heap[left], heap[left] = last;
    sink(r, heap, 0, left);
  }
}

zt_status ZT_K(topk)(zt_stream *s, zt_dtype t, void *values, int64_t *index, const void *x, size_t rows, size_t cols,
                     size_t k, bool largest) {
  (void)s;
  if (!zt_dtype_is_float(t)) return zt_fail(ZT_DTYPE, "topk does not take %s", zt_dtype_name(t));
  if (k == 0) return ZT_OK;
  size_t nbytes = zt_dtype_nbytes(t);
#pragma omp parallel for schedule(static) if (zt_worth_threads(rows * cols))
  for (size_t i = 0; i < rows; i++) {
    const row r = {t, (const char *)x + i * cols * nbytes, largest};
    int64_t *best = index + i * k;
    topk_row(&r, best, cols, k);
    for (size_t j = 0; j < k; j++)
      memcpy((char *)values + (i * k + j) * nbytes, (const char *)r.x + (size_t)best[j] * nbytes, nbytes);
  }
  return ZT_OK;
}
