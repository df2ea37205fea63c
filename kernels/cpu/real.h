/* real.h - for kernels whose arithmetic is written once and compiled twice, for float (with 16-bit floats as storage) and
** for double. Such a body is a file *_rows.h that kernels include twice, with these macros set:
**   T            float, or double
**   F(name)      name##f, or name##d: T's variant of a function
** Blocks are those of convert.h; a block of double is memory itself. Sums over a row are taken in T over a block, and in
** double over blocks, so that their error does not grow with the row. */
#ifndef zt_cpu_real_h
#define zt_cpu_real_h

#include "kernels/cpu/convert.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vmath.h"

static inline const float *zt_inf(zt_dtype t, const void *x, size_t at, size_t n, float *buffer) {
  return zt_block_in(t, x, at, n, buffer);
}
static inline float *zt_outf(zt_dtype t, void *y, size_t at, float *buffer) { return zt_block_out(t, y, at, buffer); }
static inline void zt_donef(zt_dtype t, void *y, size_t at, size_t n, const float *block) {
  zt_block_done(t, y, at, n, block);
}
static inline const double *zt_ind(zt_dtype t, const void *x, size_t at, size_t n, double *buffer) {
  (void)t, (void)n, (void)buffer;
  return (const double *)x + at;
}
static inline double *zt_outd(zt_dtype t, void *y, size_t at, double *buffer) {
  (void)t, (void)buffer;
  return (double *)y + at;
}
static inline void zt_doned(zt_dtype t, void *y, size_t at, size_t n, const double *block) {
  (void)t, (void)y, (void)at, (void)n, (void)block;
}

/* A row of memory of type t, 'count' elements on. */
static inline const void *zt_after(zt_dtype t, const void *x, size_t count) {
  return x ? (const char *)x + count * zt_dtype_nbytes(t) : NULL;
}
static inline void *zt_after_out(zt_dtype t, void *y, size_t count) {
  return y ? (char *)y + count * zt_dtype_nbytes(t) : NULL;
}

/* Blocks of a row of 'cols': at = 0, ZT_BLOCK, ...; n = the block's length. */
#define ZT_FOR_BLOCKS(at, n, cols) \
  for (size_t at = 0, n = zt_smaller(cols, ZT_BLOCK); at < (cols); at += n, n = zt_smaller((cols)-at, ZT_BLOCK))

#endif
