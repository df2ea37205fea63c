/* softmax.c - softmax and cross entropy over rows. A row is read from memory once and stays in the cache for the second
** pass; exponentials are computed twice, which is cheaper than to store them. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/real.h"

#include <string.h>

#define T float
#define F(name) name##f
#include "kernels/cpu/softmax_rows.h"
#undef T
#undef F
#define T double
#define F(name) name##d
#include "kernels/cpu/softmax_rows.h"
#undef T
#undef F

zt_status ZT_K(softmax)(zt_stream *s, zt_dtype t, void *y, const void *x, const uint8_t *mask, bool log, size_t rows,
                        size_t cols) {
  (void)s;
#pragma omp parallel for schedule(static) if (zt_worth_threads(rows * cols))
  for (size_t row = 0; row < rows; row++) {
    size_t at = row * cols;
    const uint8_t *row_mask = mask ? mask + at : NULL;
    if (t == ZT_F64)
      softmax_row_d(t, zt_after_out(t, y, at), zt_after(t, x, at), row_mask, log, cols);
    else
      softmax_row_f(t, zt_after_out(t, y, at), zt_after(t, x, at), row_mask, log, cols);
  }
  return ZT_OK;
}

zt_status ZT_K(softmax_bwd)(zt_stream *s, zt_dtype t, void *gx, const void *gy, const void *y, bool log, size_t rows,
                            size_t cols) {
  (void)s;
#pragma omp parallel for schedule(static) if (zt_worth_threads(rows * cols))
  for (size_t row = 0; row < rows; row++) {
    size_t at = row * cols;
    void *to = zt_after_out(t, gx, at);
    if (t == ZT_F64)
      softmax_bwd_row_d(t, to, zt_after(t, gy, at), zt_after(t, y, at), log, cols);
    else
      softmax_bwd_row_f(t, to, zt_after(t, gy, at), zt_after(t, y, at), log, cols);
  }
  return ZT_OK;
}

static void ignored_row(zt_dtype t, void *loss, void *grad, size_t row, size_t cols) {
  if (t == ZT_F64)
    ((double *)loss)[row] = 0;
  else
    ((float *)loss)[row] = 0;
  if (grad) memset(grad, 0, cols * zt_dtype_nbytes(t));
}

zt_status ZT_K(cross_entropy)(zt_stream *s, zt_dtype t, void *loss, void *grad, const void *logits,
                              const int64_t *labels, int64_t ignore_index, double smoothing, size_t rows, size_t cols,
                              size_t ld) {
  (void)s;
#pragma omp parallel for schedule(static) if (zt_worth_threads(rows * cols))
  for (size_t row = 0; row < rows; row++) {
    void *to = zt_after_out(t, grad, row * ld);
    const void *x = zt_after(t, logits, row * ld);
    size_t label = (size_t)labels[row];
    if (labels[row] == ignore_index)
      ignored_row(t, loss, to, row, cols);
    else if (t == ZT_F64)
      ((double *)loss)[row] = cross_entropy_row_d(t, to, x, label, smoothing, cols);
    else
      ((float *)loss)[row] = cross_entropy_row_f(t, to, x, label, smoothing, cols);
  }
  return ZT_OK;
}
