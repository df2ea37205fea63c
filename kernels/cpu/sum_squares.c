/* sum_squares.c - squares summed without an order: in float64 within blocks of 128 elements, exactly between them.
** Within a block, lane j of 16 adds up elements j, j + 16, ... in order; then the upper half of the lanes is added to
** the lower one until one is left. A shorter last block counts as filled with zeros. */
#include <math.h>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/parallel.h"

enum { SQUARES_BLOCK = 128, LANES = 16 };

static double add_lanes(double lane[LANES]) {
  for (size_t n = LANES / 2; n > 0; n /= 2)
    for (size_t j = 0; j < n; j++) lane[j] += lane[j + n];
  return lane[0];
}

#define BLOCK_SQUARES(T, S)                                                              \
  static double block_squares_##S(const T *x, size_t n) {                                \
    double lane[LANES] = {0};                                                            \
    size_t i = 0;                                                                        \
    for (; i + LANES <= n; i += LANES)                                                   \
      for (size_t j = 0; j < LANES; j++) lane[j] += (double)x[i + j] * (double)x[i + j]; \
    for (size_t j = 0; i + j < n; j++) lane[j] += (double)x[i + j] * (double)x[i + j];   \
    return add_lanes(lane);                                                              \
  }                                                                                      \
  static size_t first_bad_##S(const T *x, size_t n) {                                    \
    size_t i = 0;                                                                        \
    while (i < n && isfinite(x[i])) i++;                                                 \
    return i;                                                                            \
  }
BLOCK_SQUARES(float, f)
BLOCK_SQUARES(double, d)

/* The sum of a block's squares; where it is not finite, '*bad' is the place of the first element that is not, or n. */
static double block_squares(zt_dtype t, const void *x, size_t at, size_t n, size_t *bad) {
  if (t == ZT_F64) {
    const double *in = (const double *)x + at;
    double sum = block_squares_d(in, n);
    *bad = isfinite(sum) ? n : first_bad_d(in, n);
    return sum;
  }
  float buffer[ZT_BLOCK];
  const float *in = zt_block_in(t, x, at, n, buffer);
  double sum = block_squares_f(in, n);
  *bad = isfinite(sum) ? n : first_bad_f(in, n);
  return sum;
}

/* Adds the blocks of [at, end) to 'sum'; the place of the first bad element, or 'none'. */
static size_t add_squares(zt_dtype t, zt_exact *sum, const void *x, size_t at, size_t end, size_t none) {
  size_t first = none;
  for (; at < end; at += SQUARES_BLOCK) {
    size_t n = zt_smaller(SQUARES_BLOCK, end - at), bad;
    zt_exact_add(sum, block_squares(t, x, at, n, &bad));
    if (bad < n && first == none) first = at + bad;
  }
  return first;
}

zt_status ZT_K(sum_squares)(zt_stream *s, zt_dtype t, zt_exact *sum, size_t *first_bad, const void *x, size_t count) {
  (void)s;
  size_t first = count;
#pragma omp parallel if (zt_worth_threads(count)) reduction(min : first)
  {
    zt_exact mine;
    zt_exact_clear(&mine);
#pragma omp for schedule(static)
    for (size_t part = 0; part < zt_n_parts(count, ZT_PART); part++)
      first = zt_smaller(first, add_squares(t, &mine, x, part * ZT_PART, zt_part_end(part, ZT_PART, count), count));
#pragma omp critical(zt_sum_squares)
    zt_exact_merge(sum, &mine);
  }
  *first_bad = first;
  return ZT_OK;
}
