/* memory.c - fill, arange, copy. copy is the one that makes strided views contiguous. */
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/loop.h"

/* The bytes of one element of t with that value. */
static void element(zt_dtype t, void *cell, double value) {
  switch (t) {
    case ZT_F32:
      *(float *)cell = (float)value;
      break;
    case ZT_F64:
      *(double *)cell = value;
      break;
    case ZT_BF16:
      *(uint16_t *)cell = zt_f32_to_bf16((float)value);
      break;
    case ZT_F16:
      *(uint16_t *)cell = zt_f32_to_f16((float)value);
      break;
    case ZT_I64:
      *(int64_t *)cell = (int64_t)value;
      break;
    case ZT_I32:
      *(int32_t *)cell = (int32_t)(int64_t)value;
      break;
    default:
      *(uint8_t *)cell = (uint8_t)(int64_t)value;
  }
}

zt_status ZT_K(fill)(zt_stream *s, zt_dtype t, void *y, double value, size_t count) {
  (void)s;
  size_t nbytes = zt_dtype_nbytes(t), n_parts = zt_n_parts(count, ZT_PART);
  double cell = 0;
  element(t, &cell, value);
#pragma omp parallel for schedule(static) if (zt_worth_threads(count))
  for (size_t part = 0; part < n_parts; part++) {
    size_t at = part * ZT_PART, n = zt_part_end(part, ZT_PART, count) - at;
    zt_copy_strided(nbytes, (char *)y + at * nbytes, 1, &cell, 0, n);
  }
  return ZT_OK;
}

zt_status ZT_K(arange)(zt_stream *s, zt_dtype t, void *y, double start, double step, size_t count) {
  (void)s;
  size_t nbytes = zt_dtype_nbytes(t);
  for (size_t i = 0; i < count; i++) element(t, (char *)y + i * nbytes, start + (double)i * step);
  return ZT_OK;
}

/* --- copy */
typedef struct copy_args {
  size_t nbytes;
  char *y;
  const char *x;
  int64_t sy, sx;
} copy_args;

static void copy_row(const void *arg, const int64_t offset[4], size_t n) {
  const copy_args *a = arg;
  char *y = a->y + offset[0] * (int64_t)a->nbytes;
  const char *x = a->x + offset[1] * (int64_t)a->nbytes;
  if (a->sy == 1 && a->sx == 1)
    memcpy(y, x, n * a->nbytes);
  else
    zt_copy_strided(a->nbytes, y, a->sy, x, a->sx, n);
}

/* A transposition: the inner dimension of x is strided, an outer one is contiguous. That one is moved next to the last,
** and the two are cut into tiles that stay in the cache; each tile's rows are then short rows of the same copy. */
enum { TILE = 32 };

static int contiguous_dim(const zt_loop *loop) {
  for (int d = 0; d < loop->ndim - 1; d++)
    if (loop->stride[1][d] == 1 && loop->shape[d] > 1) return d;
  return -1;
}

static void copy_tile(const copy_args *a, const int64_t offset[4], int64_t ty, int64_t tx, size_t n_outer, size_t n) {
  for (size_t i = 0; i < n_outer; i++) {
    const int64_t at[4] = {offset[0] + (int64_t)i * ty, offset[1] + (int64_t)i * tx};
    copy_row(a, at, n);
  }
}

static void copy_transposed(const copy_args *a, const zt_loop *loop, int d) {
  int last = loop->ndim - 1;
  size_t n_outer = (size_t)loop->shape[d], n = (size_t)loop->shape[last];
  size_t n_down = zt_n_parts(n_outer, TILE), n_across = zt_n_parts(n, TILE), count = zt_loop_count(loop);
  zt_loop planes = *loop; /* all other dimensions; the walk leaves the last one alone */
  planes.shape[d] = 1;
  size_t n_tasks = count / (n_outer * n) * n_down;
#pragma omp parallel for schedule(static) if (zt_worth_threads(count))
  for (size_t task = 0; task < n_tasks; task++) {
    size_t i = task % n_down * TILE;
    zt_walk w;
    zt_walk_start(&w, &planes, task / n_down);
    for (size_t tile = 0; tile < n_across; tile++) {
      int64_t j = (int64_t)(tile * TILE), offset[4] = {0};
      offset[0] = w.offset[0] + (int64_t)i * loop->stride[0][d] + j * a->sy;
      offset[1] = w.offset[1] + (int64_t)i * loop->stride[1][d] + j * a->sx;
      copy_tile(a, offset, loop->stride[0][d], loop->stride[1][d], zt_smaller(n_outer - i, TILE),
                zt_smaller(n - tile * TILE, TILE));
    }
  }
}

zt_status ZT_K(copy)(zt_stream *s, zt_dtype t, void *y, const void *x, const zt_loop *loop) {
  (void)s;
  copy_args a = {zt_dtype_nbytes(t), y, x, zt_inner_stride(loop, 0), zt_inner_stride(loop, 1)};
  if (zt_loop_count(loop) == 0) return ZT_OK;
  int d = a.sx == 1 || a.sx == 0 ? -1 : contiguous_dim(loop);
  if (d >= 0)
    copy_transposed(&a, loop, d);
  else
    zt_loop_run(loop, copy_row, &a);
  return ZT_OK;
}
