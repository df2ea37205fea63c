/* bias_act.c - what surrounds the product of a linear layer: bias and activation, and their gradients. */
#include "kernels/cpu/column_sums.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/real.h"

#define T float
#define F(name) name##f
#include "kernels/cpu/bias_act_rows.h"
#include "kernels/cpu/column_sums_rows.h"
#undef T
#undef F
#define T double
#define F(name) name##d
#include "kernels/cpu/bias_act_rows.h"
#include "kernels/cpu/column_sums_rows.h"
#undef T
#undef F

zt_status ZT_K(bias_act)(zt_stream *s, zt_dtype t, void *y, void *pre, const void *bias, zt_act act, size_t rows,
                         size_t cols) {
  (void)s;
#pragma omp parallel for schedule(static) if (zt_worth_threads(rows * cols))
  for (size_t row = 0; row < rows; row++) {
    void *to = zt_after_out(t, y, row * cols), *x = zt_after_out(t, pre, row * cols);
    if (t == ZT_F64)
      bias_act_row_d(t, to, x, bias, act, cols);
    else
      bias_act_row_f(t, to, x, bias, act, cols);
  }
  return ZT_OK;
}

size_t ZT_K(bias_act_bwd_workspace)(zt_dtype t, size_t rows, size_t cols) {
  return zt_n_row_parts(rows) * cols * zt_dtype_nbytes(zt_dtype_stat(t));
}

zt_status ZT_K(bias_act_bwd)(zt_stream *s, zt_dtype t, void *gpre, void *gbias, const void *gy, const void *pre,
                             zt_act act, size_t rows, size_t cols, void *workspace) {
  (void)s;
  size_t n_parts = zt_n_row_parts(rows), n_rows = zt_part_rows(rows);
#pragma omp parallel for schedule(static) if (zt_worth_threads(rows * cols))
  for (size_t part = 0; part < n_parts; part++) {
    size_t first = part * n_rows, end = zt_part_end(part, n_rows, rows);
    void *sums = gbias ? zt_after_out(zt_dtype_stat(t), workspace, part * cols) : NULL;
    if (t == ZT_F64)
      bias_act_bwd_rows_d(t, gpre, sums, gy, pre, act, first, end, cols);
    else
      bias_act_bwd_rows_f(t, gpre, sums, gy, pre, act, first, end, cols);
  }
  if (t == ZT_F64)
    add_parts_d(t, gbias, workspace, n_parts, cols, cols);
  else
    add_parts_f(t, gbias, workspace, n_parts, cols, cols);
  return ZT_OK;
}
