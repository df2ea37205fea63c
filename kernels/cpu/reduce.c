/* reduce.c - reductions over the middle of (outer, n, inner): along rows where inner is 1, else down strips of columns. */
#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/loop.h"
#include "kernels/cpu/vmath.h"

enum {
  STRIP = 64,       /* columns that a task takes */
  GROUP = 64,       /* rows that are summed before their sum is added to the total */
  LONG_ROW = 65536, /* elements; such a row is work for all threads */
  MAX_PIECES = 64
};

static size_t piece_length(size_t n) {
  size_t length = zt_n_parts(n, MAX_PIECES);
  return length < ZT_PART ? ZT_PART : zt_n_parts(length, ZT_BLOCK) * ZT_BLOCK;
}

static inline void store_float(zt_dtype t, void *y, size_t at, float value) {
  zt_from_floats(t, t == ZT_F32 ? (void *)((float *)y + at) : (void *)((uint16_t *)y + at), &value, 1);
}

#define T float
#define SUM double
#define NAME(x) x##_f32
#define IN zt_block_in
#define OUT store_float
#define IS_NAN(x) ((x) != (x))
#include "kernels/cpu/reduce_body.h"

static inline const double *double_in(zt_dtype t, const void *x, size_t at, size_t n, double *buffer) {
  (void)t, (void)n, (void)buffer;
  return (const double *)x + at;
}
static inline void store_double(zt_dtype t, void *y, size_t at, double value) {
  (void)t;
  ((double *)y)[at] = value;
}

#define T double
#define SUM double
#define NAME(x) x##_f64
#define IN double_in
#define OUT store_double
#define IS_NAN(x) ((x) != (x))
#include "kernels/cpu/reduce_body.h"

static inline const int64_t *int64_in(zt_dtype t, const void *x, size_t at, size_t n, int64_t *buffer) {
  (void)t, (void)n, (void)buffer;
  return (const int64_t *)x + at;
}
static inline void store_int64(zt_dtype t, void *y, size_t at, int64_t value) {
  (void)t;
  ((int64_t *)y)[at] = value;
}

/* Sums wrap. */
#define T int64_t
#define SUM uint64_t
#define NAME(x) x##_i64
#define IN int64_in
#define OUT store_int64
#define IS_NAN(x) false
#include "kernels/cpu/reduce_body.h"

/* --- logsumexp: m + log(sum(exp(x - m))), m the maximum; m itself where it is infinite or NaN */
#define LOGSUMEXP(T, S, NAME, IN, OUT)                                                                                 \
  static T finish_##NAME(T top, double sum) { return top - top == (T)0 ? (T)(top + log(sum)) : top; }                  \
  static void logsumexp_row_##NAME(zt_dtype t, void *y, const void *x, size_t o, size_t n) {                           \
    size_t place;                                                                                                      \
    T buffer[ZT_BLOCK], top = top_##NAME(t, x, o * n, n, false, &place);                                               \
    double sum = 0;                                                                                                    \
    for (size_t i = 0; i < n; i += ZT_BLOCK) {                                                                         \
      size_t n_block = zt_smaller(n - i, ZT_BLOCK);                                                                    \
      const T *p = IN(t, x, o * n + i, n_block, buffer);                                                               \
      T part = 0;                                                                                                      \
      _Pragma("omp simd reduction(+ : part)") for (size_t j = 0; j < n_block; j++) part += zt_exp##S(p[j] - top);      \
      sum += part;                                                                                                     \
    }                                                                                                                  \
    OUT(t, y, o, finish_##NAME(top, sum));                                                                             \
  }                                                                                                                    \
  static void logsumexp_strip_##NAME(zt_dtype t, void *y, const void *x, size_t at, size_t to, size_t n, size_t inner, \
                                     size_t n_columns) {                                                               \
    T buffer[ZT_BLOCK], top[STRIP], sum[STRIP] = {0};                                                                  \
    int64_t place[STRIP];                                                                                              \
    column_tops_##NAME(t, top, place, x, at, n, inner, n_columns, false);                                              \
    for (size_t i = 0; i < n; i++) {                                                                                   \
      const T *p = IN(t, x, at + i * inner, n_columns, buffer);                                                        \
      for (size_t j = 0; j < n_columns; j++) sum[j] += zt_exp##S(p[j] - top[j]);                                       \
    }                                                                                                                  \
    for (size_t j = 0; j < n_columns; j++) OUT(t, y, to + j, finish_##NAME(top[j], sum[j]));                           \
  }
LOGSUMEXP(float, f, f32, zt_block_in, store_float)
LOGSUMEXP(double, d, f64, double_in, store_double)

static void logsumexp_task(zt_dtype t, void *y, const void *x, size_t task, size_t n, size_t inner) {
  size_t n_strips = zt_n_parts(inner, STRIP), o = task / n_strips, column = task % n_strips * STRIP;
  size_t at = o * n * inner + column, to = o * inner + column, n_columns = zt_smaller(inner - column, STRIP);
  if (inner == 1 && t == ZT_F64)
    logsumexp_row_f64(t, y, x, o, n);
  else if (inner == 1)
    logsumexp_row_f32(t, y, x, o, n);
  else if (t == ZT_F64)
    logsumexp_strip_f64(t, y, x, at, to, n, inner, n_columns);
  else
    logsumexp_strip_f32(t, y, x, at, to, n, inner, n_columns);
}

static zt_status logsumexp(zt_stream *s, zt_dtype t, void *y, const void *x, size_t outer, size_t n, size_t inner) {
  if (t == ZT_I64) return zt_fail(ZT_DTYPE, "logsumexp does not take %s", zt_dtype_name(t));
  if (n == 0) return ZT_K(fill)(s, t, y, -INFINITY, outer * inner);
  size_t n_tasks = outer * zt_n_parts(inner, STRIP);
#pragma omp parallel for schedule(static) if (zt_worth_threads(outer * n * inner))
  for (size_t task = 0; task < n_tasks; task++) logsumexp_task(t, y, x, task, n, inner);
  return ZT_OK;
}

zt_status ZT_K(reduce)(zt_stream *s, zt_reduce fn, zt_dtype t, void *y, int64_t *index, const void *x, size_t outer,
                       size_t n, size_t inner) {
  if (t == ZT_I32 || t == ZT_U8 || (t == ZT_I64 && fn == ZT_REDUCE_MEAN))
    return zt_fail(ZT_DTYPE, "this reduction does not take %s", zt_dtype_name(t));
  if (fn == ZT_REDUCE_LOGSUMEXP) return logsumexp(s, t, y, x, outer, n, inner);
  if (t == ZT_I64)
    inner == 1 ? reduce_rows_i64(fn, t, y, index, x, outer, n)
               : reduce_columns_i64(fn, t, y, index, x, outer, n, inner);
  else if (t == ZT_F64)
    inner == 1 ? reduce_rows_f64(fn, t, y, index, x, outer, n)
               : reduce_columns_f64(fn, t, y, index, x, outer, n, inner);
  else
    inner == 1 ? reduce_rows_f32(fn, t, y, index, x, outer, n)
               : reduce_columns_f32(fn, t, y, index, x, outer, n, inner);
  return ZT_OK;
}
