/* conv_rows.h - body for T (real.h): one row of fold1d. */

/* x (n_c) = the sum over taps j of y[u, :, j], where output u reads place at_t by tap j: u stride + j dilation - pad = at_t.
** 'y' is one sample, (n_out, n_c, width). */
static void F(fold_row_)(zt_dtype t, void *x, const void *y, size_t at_t, const conv_geometry *g) {
  for (size_t first = 0; first < g->n_c; first += ZT_BLOCK) {
    size_t n = zt_smaller(g->n_c - first, ZT_BLOCK);
    T sum[ZT_BLOCK] = {0}, cell, buffer[ZT_BLOCK], *out = F(zt_out)(t, x, first, buffer);
    for (size_t j = 0; j < g->width; j++) {
      size_t u = at_t + g->pad - j * g->dilation;
      if (j * g->dilation > at_t + g->pad || u % g->stride != 0 || u / g->stride >= g->n_out) continue;
      size_t from = u / g->stride * g->n_c * g->width + first * g->width + j;
      for (size_t i = 0; i < n; i++) sum[i] += *F(zt_in)(t, y, from + i * g->width, 1, &cell);
    }
    for (size_t i = 0; i < n; i++) out[i] = sum[i];
    F(zt_done)(t, x, first, n, out);
  }
}
