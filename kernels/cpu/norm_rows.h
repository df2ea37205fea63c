/* norm_rows.h - body for T (real.h): one row of layer_norm, some rows of its gradient. */

static void F(add_row_)(zt_dtype t, void *sum, const void *x, const void *residual, size_t cols) {
  ZT_FOR_BLOCKS(at, n, cols) {
    T a_in[ZT_BLOCK], b_in[ZT_BLOCK], buffer[ZT_BLOCK], *out = F(zt_out)(t, sum, at, buffer);
    const T *a = F(zt_in)(t, x, at, n, a_in), *b = F(zt_in)(t, residual, at, n, b_in);
    for (size_t i = 0; i < n; i++) out[i] = a[i] + b[i];
    F(zt_done)(t, sum, at, n, out);
  }
}

static double F(row_mean_)(zt_dtype t, const void *h, size_t cols) {
  double total = 0;
  ZT_FOR_BLOCKS(at, n, cols) {
    T buffer[ZT_BLOCK], sum = 0;
    const T *x = F(zt_in)(t, h, at, n, buffer);
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < n; i++) sum += x[i];
    total += (double)sum;
  }
  return total / (double)cols;
}

static double F(row_variance_)(zt_dtype t, const void *h, T mean, size_t cols) {
  double total = 0;
  ZT_FOR_BLOCKS(at, n, cols) {
    T buffer[ZT_BLOCK], sum = 0;
    const T *x = F(zt_in)(t, h, at, n, buffer);
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < n; i++) sum += (x[i] - mean) * (x[i] - mean);
    total += (double)sum;
  }
  return total / (double)cols;
}

static void F(layer_norm_row_)(zt_dtype t, void *y, T *mean, T *rstd, const void *h, const void *w, const void *b,
                               double eps, size_t cols) {
  T m = *mean = (T)F(row_mean_)(t, h, cols);
  T r = *rstd = (T)(1 / sqrt(F(row_variance_)(t, h, m, cols) + eps));
  ZT_FOR_BLOCKS(at, n, cols) {
    T in[ZT_BLOCK], other[ZT_BLOCK], buffer[ZT_BLOCK], *restrict out = F(zt_out)(t, y, at, buffer);
    const T *x = F(zt_in)(t, h, at, n, in);
    for (size_t i = 0; i < n; i++) out[i] = (x[i] - m) * r;
    x = w ? F(zt_in)(t, w, at, n, other) : NULL;
    for (size_t i = 0; x && i < n; i++) out[i] *= x[i];
    x = b ? F(zt_in)(t, b, at, n, other) : NULL;
    for (size_t i = 0; x && i < n; i++) out[i] += x[i];
    F(zt_done)(t, y, at, n, out);
  }
}

/* What the gradient of a row needs of all its columns: means of g w and of g w xhat; xhat = (h - mean) rstd. */
typedef struct F(row_means_) {
  double gw, gw_xhat;
} F(row_means_);

/* Adds the row to the sums of g xhat and of g over rows (cols each, NULL ok) on the way. */
static F(row_means_) F(norm_means_)(zt_dtype t, T *restrict gw_sum, T *restrict gb_sum, const void *gy, const void *h,
                                    const void *w, T mean, T rstd, size_t cols) {
  F(row_means_) m = {0, 0};
  ZT_FOR_BLOCKS(at, n, cols) {
    T g_in[ZT_BLOCK], h_in[ZT_BLOCK], w_in[ZT_BLOCK], xhat[ZT_BLOCK], s1 = 0, s2 = 0;
    const T *g = F(zt_in)(t, gy, at, n, g_in), *x = F(zt_in)(t, h, at, n, h_in);
    for (size_t i = 0; i < n; i++) xhat[i] = (x[i] - mean) * rstd;
    for (size_t i = 0; gw_sum && i < n; i++) gw_sum[at + i] += g[i] * xhat[i];
    for (size_t i = 0; gb_sum && i < n; i++) gb_sum[at + i] += g[i];
    const T *scale = w ? F(zt_in)(t, w, at, n, w_in) : NULL;
#pragma omp simd reduction(+ : s1, s2)
    for (size_t i = 0; i < n; i++) {
      T gw = scale ? g[i] * scale[i] : g[i];
      s1 += gw;
      s2 += gw * xhat[i];
    }
    m.gw += (double)s1, m.gw_xhat += (double)s2;
  }
  m.gw /= (double)cols, m.gw_xhat /= (double)cols;
  return m;
}

static void F(norm_bwd_row_)(zt_dtype t, void *gx, const void *gy, const void *gsum, const void *h, const void *w,
                             T mean, T rstd, F(row_means_) m, size_t cols) {
  T mean_gw = (T)m.gw, mean_gw_xhat = (T)m.gw_xhat;
  ZT_FOR_BLOCKS(at, n, cols) {
    T in[ZT_BLOCK], other[ZT_BLOCK], buffer[ZT_BLOCK], grad[ZT_BLOCK];
    const T *g = F(zt_in)(t, gy, at, n, in), *p = w ? F(zt_in)(t, w, at, n, other) : NULL;
    for (size_t i = 0; i < n; i++) grad[i] = g[i];
    for (size_t i = 0; p && i < n; i++) grad[i] *= p[i];
    p = F(zt_in)(t, h, at, n, other);
    for (size_t i = 0; i < n; i++) grad[i] = rstd * (grad[i] - mean_gw - (p[i] - mean) * rstd * mean_gw_xhat);
    p = gsum ? F(zt_in)(t, gsum, at, n, other) : NULL;
    for (size_t i = 0; p && i < n; i++) grad[i] += p[i];
    T *out = F(zt_out)(t, gx, at, buffer);
    for (size_t i = 0; i < n; i++) out[i] = grad[i];
    F(zt_done)(t, gx, at, n, out);
  }
}

/* Rows first .. end-1. */
static void F(layer_norm_bwd_rows_)(zt_dtype t, void *gx, T *gw_sum, T *gb_sum, const void *gy, const void *gsum,
                                    const void *h, const T *mean, const T *rstd, const void *w, size_t first,
                                    size_t end, size_t cols) {
  for (size_t i = 0; gw_sum && i < cols; i++) gw_sum[i] = 0;
  for (size_t i = 0; gb_sum && i < cols; i++) gb_sum[i] = 0;
  for (size_t row = first; row < end; row++) {
    const void *g = zt_after(t, gy, row * cols), *x = zt_after(t, h, row * cols), *gs = zt_after(t, gsum, row * cols);
    F(row_means_) m = F(norm_means_)(t, gw_sum, gb_sum, g, x, w, mean[row], rstd[row], cols);
    F(norm_bwd_row_)(t, zt_after_out(t, gx, row * cols), g, gs, x, w, mean[row], rstd[row], m, cols);
  }
}
