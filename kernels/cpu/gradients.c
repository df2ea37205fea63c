/* gradients.c - what gradients go through between the loss and the optimizer: scaling, packing, sums over ranks; and
** masters that follow what was written into parameters. Memory bound. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/parallel.h"

/* simd: y may be x, and is nothing else that overlaps it. */
#define SCALE(T, S)                                                          \
  static void scale_##S(T *y, const T *x, T factor, size_t n) {              \
    _Pragma("omp simd") for (size_t i = 0; i < n; i++) y[i] = x[i] * factor; \
  }
SCALE(float, f)
SCALE(double, d)

zt_status ZT_K(scale)(zt_stream *s, zt_dtype ty, zt_dtype tx, void *y, const void *x, const void *factor,
                      size_t count) {
  (void)s;
#pragma omp parallel for schedule(static) if (zt_worth_threads(count))
  for (size_t part = 0; part < zt_n_parts(count, ZT_BLOCK); part++) {
    float in[ZT_BLOCK], out[ZT_BLOCK];
    size_t at = part * ZT_BLOCK, n = zt_smaller(ZT_BLOCK, count - at);
    if (tx == ZT_F64) {
      scale_d((double *)y + at, (const double *)x + at, *(const double *)factor, n);
      continue;
    }
    float *block = zt_block_out(ty, y, at, out);
    scale_f(block, zt_block_in(tx, x, at, n, in), *(const float *)factor, n);
    zt_block_done(ty, y, at, n, block);
  }
  return ZT_OK;
}

/* sum[0, n) += w * x[0, n), or = */
#define ADD_TERM(T, S)                                                                       \
  static void add_term_##S(T *restrict sum, bool adds, const T *restrict x, T w, size_t n) { \
    if (adds)                                                                                \
      for (size_t i = 0; i < n; i++) sum[i] += w * x[i];                                     \
    else                                                                                     \
      for (size_t i = 0; i < n; i++) sum[i] = w * x[i];                                      \
  }
ADD_TERM(float, f)
ADD_TERM(double, d)

typedef struct terms {
  zt_dtype ts, t;
  void *sum;
  bool adds;
  const void *x;
  const double *weights;
  size_t n, stride;
} terms;

/* Elements [at, at + n) of the sum in float32, n <= ZT_BLOCK. */
static void sum_block_f(const terms *s, size_t at, size_t n) {
  float *sum = (float *)s->sum + at, buffer[ZT_BLOCK];
  bool adds = s->adds;
  for (size_t r = 0; r < s->n; r++) {
    if (s->weights[r] == 0) continue;
    add_term_f(sum, adds, zt_block_in(s->t, s->x, r * s->stride + at, n, buffer), (float)s->weights[r], n);
    adds = true;
  }
  if (!adds) memset(sum, 0, n * sizeof *sum);
}

static void sum_block_d(const terms *s, size_t at, size_t n) {
  double *sum = (double *)s->sum + at, wide[ZT_BLOCK];
  float buffer[ZT_BLOCK];
  bool adds = s->adds;
  for (size_t r = 0; r < s->n; r++) {
    if (s->weights[r] == 0) continue;
    const double *x = (const double *)s->x + r * s->stride + at;
    if (s->t != ZT_F64) {
      const float *narrow = zt_block_in(s->t, s->x, r * s->stride + at, n, buffer);
      for (size_t i = 0; i < n; i++) wide[i] = (double)narrow[i];
      x = wide;
    }
    add_term_d(sum, adds, x, s->weights[r], n);
    adds = true;
  }
  if (!adds) memset(sum, 0, n * sizeof *sum);
}

zt_status ZT_K(weighted_sum)(zt_stream *s, zt_dtype ts, zt_dtype t, void *sum, bool adds, const void *x,
                             const double *weights, size_t n, size_t stride, size_t count) {
  (void)s;
  const terms all = {ts, t, sum, adds, x, weights, n, stride};
#pragma omp parallel for schedule(static) if (zt_worth_threads(count))
  for (size_t part = 0; part < zt_n_parts(count, ZT_BLOCK); part++) {
    size_t at = part * ZT_BLOCK, length = zt_smaller(ZT_BLOCK, count - at);
    if (ts == ZT_F64)
      sum_block_d(&all, at, length);
    else
      sum_block_f(&all, at, length);
  }
  return ZT_OK;
}

/* The place of the first element of [at, end) that is not finite, or 'none'. An exponent of all ones says so. */
#define FIRST_BAD(U, S, EXPONENT)                                               \
  static size_t first_bad_##S(const U *x, size_t at, size_t end, size_t none) { \
    bool bad = false;                                                           \
    for (size_t i = at; i < end; i++) bad |= (x[i] & (EXPONENT)) == (EXPONENT); \
    for (size_t i = at; bad && i < end; i++)                                    \
      if ((x[i] & (EXPONENT)) == (EXPONENT)) return i;                          \
    return none;                                                                \
  }
FIRST_BAD(uint32_t, f32, 0x7f800000u)
FIRST_BAD(uint64_t, f64, 0x7ff0000000000000u)
FIRST_BAD(uint16_t, bf16, 0x7f80u)
FIRST_BAD(uint16_t, f16, 0x7c00u)

static size_t first_bad_of(zt_dtype t, const void *x, size_t at, size_t end, size_t none) {
  switch (t) {
    case ZT_F32:
      return first_bad_f32(x, at, end, none);
    case ZT_F64:
      return first_bad_f64(x, at, end, none);
    case ZT_BF16:
      return first_bad_bf16(x, at, end, none);
    default:
      return first_bad_f16(x, at, end, none);
  }
}

zt_status ZT_K(copy_checked)(zt_stream *s, zt_dtype t, void *y, size_t *first_bad, const void *x, size_t count) {
  (void)s;
  size_t first = count, nbytes = zt_dtype_nbytes(t);
#pragma omp parallel for schedule(static) reduction(min : first) if (zt_worth_threads(count))
  for (size_t part = 0; part < zt_n_parts(count, ZT_PART); part++) {
    size_t at = part * ZT_PART, end = zt_part_end(part, ZT_PART, count);
    first = zt_smaller(first, first_bad_of(t, x, at, end, count));
    if (y) memcpy((char *)y + at * nbytes, (const char *)x + at * nbytes, (end - at) * nbytes);
  }
  *first_bad = first;
  return ZT_OK;
}

#define UPDATE(S)                                                                                                    \
  static void update_##S(float *restrict master, const uint16_t *restrict x, size_t n) {                             \
    for (size_t i = 0; i < n; i++) master[i] = zt_f32_to_##S(master[i]) == x[i] ? master[i] : zt_##S##_to_f32(x[i]); \
  }
UPDATE(bf16)
UPDATE(f16)

zt_status ZT_K(update_master)(zt_stream *s, zt_dtype t, float *master, const void *x, size_t count) {
  (void)s;
#pragma omp parallel for schedule(static) if (zt_worth_threads(count))
  for (size_t part = 0; part < zt_n_parts(count, ZT_PART); part++) {
    size_t at = part * ZT_PART, n = zt_part_end(part, ZT_PART, count) - at;
    (t == ZT_BF16 ? update_bf16 : update_f16)(master + at, (const uint16_t *)x + at, n);
  }
  return ZT_OK;
}
