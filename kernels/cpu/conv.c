/* conv.c - 1-d convolution as a product: patches laid out as rows, and the transpose of that. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/real.h"

typedef struct conv_geometry {
  size_t n_t, n_c, n_out, width, stride, dilation, pad;
} conv_geometry;

#define T float
#define F(name) name##f
#include "kernels/cpu/conv_rows.h"
#undef T
#undef F
#define T double
#define F(name) name##d
#include "kernels/cpu/conv_rows.h"
#undef T
#undef F

/* One row of patches, (n_c, width), for output at_out: elements are moved, so their size is all that matters. */
#define UNFOLD(T)                                                                                        \
  static void unfold_row_##T(T *y, const T *x, size_t at_out, const conv_geometry *g) {                  \
    for (size_t j = 0; j < g->width; j++) {                                                              \
      size_t place = at_out * g->stride + j * g->dilation;                                               \
      const T *from = place >= g->pad && place - g->pad < g->n_t ? x + (place - g->pad) * g->n_c : NULL; \
      for (size_t c = 0; c < g->n_c; c++) y[c * g->width + j] = from ? from[c] : 0;                      \
    }                                                                                                    \
  }
UNFOLD(uint16_t)
UNFOLD(uint32_t)
UNFOLD(uint64_t)

zt_status ZT_K(unfold1d)(zt_stream *s, zt_dtype t, void *y, const void *x, size_t batch, size_t n_t, size_t n_c,
                         size_t n_out, size_t width, size_t stride, size_t dilation, size_t pad) {
  (void)s;
  const conv_geometry g = {n_t, n_c, n_out, width, stride, dilation, pad};
#pragma omp parallel for schedule(static) if (zt_worth_threads(batch * n_out * n_c * width))
  for (size_t row = 0; row < batch * n_out; row++) {
    void *to = zt_after_out(t, y, row * n_c * width);
    const void *sample = zt_after(t, x, row / n_out * n_t * n_c);
    if (t == ZT_F64)
      unfold_row_uint64_t(to, sample, row % n_out, &g);
    else if (t == ZT_F32)
      unfold_row_uint32_t(to, sample, row % n_out, &g);
    else
      unfold_row_uint16_t(to, sample, row % n_out, &g);
  }
  return ZT_OK;
}

zt_status ZT_K(fold1d)(zt_stream *s, zt_dtype t, void *x, const void *y, size_t batch, size_t n_t, size_t n_c,
                       size_t n_out, size_t width, size_t stride, size_t dilation, size_t pad) {
  (void)s;
  const conv_geometry g = {n_t, n_c, n_out, width, stride, dilation, pad};
#pragma omp parallel for schedule(static) if (zt_worth_threads(batch * n_out * n_c * width))
  for (size_t row = 0; row < batch * n_t; row++) {
    void *to = zt_after_out(t, x, row * n_c);
    const void *sample = zt_after(t, y, row / n_t * n_out * n_c * width);
    if (t == ZT_F64)
      fold_row_d(t, to, sample, row % n_t, &g);
    else
      fold_row_f(t, to, sample, row % n_t, &g);
  }
  return ZT_OK;
}
