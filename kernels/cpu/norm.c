/* norm.c - layer normalization over rows, with the addition of a residual before it. */
#include "kernels/cpu/column_sums.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/real.h"

#define T float
#define F(name) name##f
#include "kernels/cpu/column_sums_rows.h"
#include "kernels/cpu/norm_rows.h"
#undef T
#undef F
#define T double
#define F(name) name##d
#include "kernels/cpu/column_sums_rows.h"
#include "kernels/cpu/norm_rows.h"
#undef T
#undef F

zt_status ZT_K(layer_norm)(zt_stream *s, zt_dtype t, void *y, void *sum, void *mean, void *rstd, const void *x,
                           const void *residual, const void *w, const void *b, double eps, size_t rows, size_t cols) {
  (void)s;
  if (cols == 0) return ZT_OK;
#pragma omp parallel for schedule(static) if (zt_worth_threads(rows * cols))
  for (size_t row = 0; row < rows; row++) {
    size_t at = row * cols;
    void *to = zt_after_out(t, y, at), *h_sum = zt_after_out(t, sum, at);
    const void *h = zt_after(t, x, at), *other = zt_after(t, residual, at);
    if (t == ZT_F64) {
      if (other) add_row_d(t, h_sum, h, other, cols);
      layer_norm_row_d(t, to, (double *)mean + row, (double *)rstd + row, other ? h_sum : h, w, b, eps, cols);
    } else {
      if (other) add_row_f(t, h_sum, h, other, cols);
      layer_norm_row_f(t, to, (float *)mean + row, (float *)rstd + row, other ? h_sum : h, w, b, eps, cols);
    }
  }
  return ZT_OK;
}

/* For each part of the rows a slice of gw and one of gb. */
size_t ZT_K(layer_norm_bwd_workspace)(zt_dtype t, size_t rows, size_t cols) {
  return zt_n_row_parts(rows) * 2 * cols * zt_dtype_nbytes(zt_dtype_stat(t));
}

zt_status ZT_K(layer_norm_bwd)(zt_stream *s, zt_dtype t, void *gx, void *gw, void *gb, const void *gy, const void *gsum,
                               const void *x, const void *mean, const void *rstd, const void *w, size_t rows,
                               size_t cols, void *workspace) {
  (void)s;
  if (cols == 0) return ZT_OK;
  size_t n_parts = zt_n_row_parts(rows), n_rows = zt_part_rows(rows);
  zt_dtype stat = zt_dtype_stat(t);
#pragma omp parallel for schedule(static) if (zt_worth_threads(rows * cols))
  for (size_t part = 0; part < n_parts; part++) {
    size_t first = part * n_rows, end = zt_part_end(part, n_rows, rows);
    void *gw_sum = gw ? zt_after_out(stat, workspace, part * 2 * cols) : NULL;
    void *gb_sum = gb ? zt_after_out(stat, workspace, (part * 2 + 1) * cols) : NULL;
    if (t == ZT_F64)
      layer_norm_bwd_rows_d(t, gx, gw_sum, gb_sum, gy, gsum, x, mean, rstd, w, first, end, cols);
    else
      layer_norm_bwd_rows_f(t, gx, gw_sum, gb_sum, gy, gsum, x, mean, rstd, w, first, end, cols);
  }
  void *second = zt_after_out(stat, workspace, cols);
  if (t == ZT_F64) {
    add_parts_d(t, gw, workspace, n_parts, 2 * cols, cols);
    add_parts_d(t, gb, second, n_parts, 2 * cols, cols);
  } else {
    add_parts_f(t, gw, workspace, n_parts, 2 * cols, cols);
    add_parts_f(t, gb, second, n_parts, 2 * cols, cols);
  }
  return ZT_OK;
}
