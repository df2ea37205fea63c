/* loop.h - walks a zt_loop row by row (a row is the innermost dimension) and hands each row's operands to compute code
** as contiguous blocks, so that arithmetic is written for contiguous memory and scalars alone. */
#ifndef zt_cpu_loop_h
#define zt_cpu_loop_h

#include <string.h>

#include "core/tensor/kernels.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/parallel.h"

/* One row, or a piece of one: 'offset' in elements of each operand, n > 0. Rows run in parallel, in any order. */
typedef void (*zt_row_fn)(const void *arg, const int64_t offset[4], size_t n);

/* Where row number 'row' starts: the outer dimensions' coordinates and each operand's offset. */
typedef struct zt_walk {
  int64_t at[ZT_MAX_DIM], offset[4];
} zt_walk;

static inline void zt_walk_start(zt_walk *w, const zt_loop *loop, size_t row) {
  memset(w, 0, sizeof *w);
  for (int d = loop->ndim - 2; d >= 0; d--) {
    w->at[d] = (int64_t)(row % (size_t)loop->shape[d]);
    row /= (size_t)loop->shape[d];
    for (int k = 0; k < 4; k++) w->offset[k] += w->at[d] * loop->stride[k][d];
  }
}
static inline void zt_walk_next(zt_walk *w, const zt_loop *loop) {
  for (int d = loop->ndim - 2; d >= 0; d--) {
    for (int k = 0; k < 4; k++) w->offset[k] += loop->stride[k][d];
    if (++w->at[d] < loop->shape[d]) return;
    for (int k = 0; k < 4; k++) w->offset[k] -= loop->shape[d] * loop->stride[k][d];
    w->at[d] = 0;
  }
}

static inline size_t zt_loop_count(const zt_loop *loop) {
  size_t count = 1;
  for (int d = 0; d < loop->ndim; d++) count *= (size_t)loop->shape[d];
  return count;
}
static inline int64_t zt_inner_stride(const zt_loop *loop, int operand) {
  return loop->ndim ? loop->stride[operand][loop->ndim - 1] : 1;
}

/* A part is a group of short rows, or a piece of a long one. */
static inline void zt_loop_run(const zt_loop *loop, zt_row_fn fn, const void *arg) {
  size_t count = zt_loop_count(loop), n = loop->ndim ? (size_t)loop->shape[loop->ndim - 1] : 1;
  if (count == 0) return;
  size_t n_rows = count / n, n_pieces = zt_n_parts(n, ZT_PART), n_group = n < ZT_PART ? ZT_PART / n : 1;
  size_t n_parts = zt_n_parts(n_rows, n_group) * n_pieces;
#pragma omp parallel for schedule(static) if (zt_worth_threads(count))
  for (size_t part = 0; part < n_parts; part++) {
    size_t group = part / n_pieces, first = part % n_pieces * ZT_PART, length = zt_smaller(n - first, ZT_PART);
    size_t end = zt_part_end(group, n_group, n_rows);
    zt_walk w;
    zt_walk_start(&w, loop, group * n_group);
    for (size_t row = group * n_group; row < end; row++, zt_walk_next(&w, loop)) {
      int64_t offset[4];
      for (int k = 0; k < 4; k++) offset[k] = w.offset[k] + (int64_t)first * zt_inner_stride(loop, k);
      fn(arg, offset, length);
    }
  }
}

/* --- blocks of a row's operands, up to ZT_BLOCK elements */
typedef union zt_block_buffer {
  double f64[ZT_BLOCK];
  float f32[ZT_BLOCK];
  int64_t i64[ZT_BLOCK];
  int32_t i32[ZT_BLOCK];
  uint16_t u16[ZT_BLOCK];
  uint8_t u8[ZT_BLOCK];
} zt_block_buffer;

/* y[i * sy] = x[i * sx], elements of 'nbytes'. */
static inline void zt_copy_strided(size_t nbytes, void *y, int64_t sy, const void *x, int64_t sx, size_t n) {
#define ZT_COPY_STRIDED(T) \
  for (size_t i = 0; i < n; i++) ((T *)y)[(int64_t)i * sy] = ((const T *)x)[(int64_t)i * sx]
  if (nbytes == 4)
    ZT_COPY_STRIDED(uint32_t);
  else if (nbytes == 2)
    ZT_COPY_STRIDED(uint16_t);
  else if (nbytes == 8)
    ZT_COPY_STRIDED(uint64_t);
  else
    ZT_COPY_STRIDED(uint8_t);
#undef ZT_COPY_STRIDED
}

/* The elements as they are: contiguous, or one where stride is 0. */
static inline const void *zt_row_raw(size_t nbytes, const void *x, int64_t stride, size_t n, zt_block_buffer *buffer) {
  if (stride == 0 || stride == 1) return x;
  zt_copy_strided(nbytes, buffer, 1, x, stride, n);
  return buffer;
}

static inline bool zt_is_half(zt_dtype t) { return t == ZT_BF16 || t == ZT_F16; }
/* The dtype in which elements of t are computed with. */
static inline zt_dtype zt_compute_dtype(zt_dtype t) { return zt_is_half(t) ? ZT_F32 : t; }

/* The same in the compute dtype. */
static inline const void *zt_row_in(zt_dtype t, const void *x, int64_t stride, size_t n, zt_block_buffer *buffer) {
  if (!zt_is_half(t)) return zt_row_raw(zt_dtype_nbytes(t), x, stride, n, buffer);
  uint16_t raw[ZT_BLOCK];
  if (stride != 0 && stride != 1) zt_copy_strided(2, raw, 1, x, stride, n);
  zt_to_floats(t, buffer->f32, stride == 0 || stride == 1 ? x : raw, stride ? n : 1);
  return buffer->f32;
}
/* Where results in the compute dtype go, and bringing them to memory. */
static inline void *zt_row_out(zt_dtype t, void *y, int64_t stride, zt_block_buffer *buffer) {
  return stride == 1 && !zt_is_half(t) ? y : buffer;
}
static inline void zt_row_done(zt_dtype t, void *y, int64_t stride, size_t n, zt_block_buffer *buffer) {
  if (zt_is_half(t) && stride == 1) {
    zt_from_floats(t, y, buffer->f32, n);
  } else if (zt_is_half(t)) {
    uint16_t raw[ZT_BLOCK];
    zt_from_floats(t, raw, buffer->f32, n);
    zt_copy_strided(2, y, stride, raw, 1, n);
  } else if (stride != 1) {
    zt_copy_strided(zt_dtype_nbytes(t), y, stride, buffer, 1, n);
  }
}

#endif
