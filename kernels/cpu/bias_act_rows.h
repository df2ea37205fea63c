/* bias_act_rows.h - body for T (real.h): one block of bias and activation, and of their gradient. */
#define MAP(expr)                                                   \
  _Pragma("omp simd") for (size_t i = 0; i < n; i++) y[i] = (expr); \
  break

static void F(act_)(zt_act act, T *y, const T *x, size_t n) {
  switch (act) {
    case ZT_ACT_NONE:
      MAP(x[i]);
    case ZT_ACT_RELU:
      MAP(F(zt_relu)(x[i]));
    case ZT_ACT_GELU:
      MAP(F(zt_gelu)(x[i]));
    case ZT_ACT_GELU_TANH:
      MAP(F(zt_gelu_tanh)(x[i]));
    case ZT_ACT_SILU:
      MAP(F(zt_silu)(x[i]));
    case ZT_ACT_TANH:
      MAP(F(zt_tanh)(x[i]));
  }
}

static T F(tanh_grad_)(T x) {
  T y = F(zt_tanh)(x);
  return ((T)1 - y) * ((T)1 + y);
}

/* y = g * act'(x). */
static void F(act_bwd_)(zt_act act, T *y, const T *g, const T *x, size_t n) {
  switch (act) {
    case ZT_ACT_NONE:
      MAP(g[i]);
    case ZT_ACT_RELU:
      MAP(x[i] <= 0 ? 0 : g[i]);
    case ZT_ACT_GELU:
      MAP(g[i] * F(zt_gelu_grad)(x[i]));
    case ZT_ACT_GELU_TANH:
      MAP(g[i] * F(zt_gelu_tanh_grad)(x[i]));
    case ZT_ACT_SILU:
      MAP(g[i] * F(zt_silu_grad)(x[i]));
    case ZT_ACT_TANH:
      MAP(g[i] * F(tanh_grad_)(x[i]));
  }
}
#undef MAP

static void F(bias_act_row_)(zt_dtype t, void *y, void *pre, const void *bias, zt_act act, size_t cols) {
  ZT_FOR_BLOCKS(at, n, cols) {
    T x_in[ZT_BLOCK], b_in[ZT_BLOCK], sum[ZT_BLOCK], out[ZT_BLOCK];
    const T *x = F(zt_in)(t, pre, at, n, x_in);
    if (bias) {
      const T *b = F(zt_in)(t, bias, at, n, b_in);
      T *to = F(zt_out)(t, pre, at, sum);
      for (size_t i = 0; i < n; i++) to[i] = x[i] + b[i];
      if (y != pre) F(zt_done)(t, pre, at, n, to);
      x = to;
    }
    if (y == pre && act == ZT_ACT_NONE) {
      F(zt_done)(t, y, at, n, x);
      continue;
    }
    T *to = F(zt_out)(t, y, at, out);
    F(act_)(act, to, x, n);
    F(zt_done)(t, y, at, n, to);
  }
}

/* Rows first .. end-1; their columns are added up in 'sums' (cols; NULL ok). */
static void F(bias_act_bwd_rows_)(zt_dtype t, void *gpre, T *restrict sums, const void *gy, const void *pre, zt_act act,
                                  size_t first, size_t end, size_t cols) {
  for (size_t i = 0; sums && i < cols; i++) sums[i] = 0;
  for (size_t row = first; row < end; row++) {
    ZT_FOR_BLOCKS(at, n, cols) {
      T g_in[ZT_BLOCK], x_in[ZT_BLOCK], buffer[ZT_BLOCK];
      const T *g = F(zt_in)(t, gy, row * cols + at, n, g_in);
      if (act != ZT_ACT_NONE) {
        T *out = F(zt_out)(t, gpre, row * cols + at, buffer);
        F(act_bwd_)(act, out, g, F(zt_in)(t, pre, row * cols + at, n, x_in), n);
        F(zt_done)(t, gpre, row * cols + at, n, out);
        g = out;
      }
      if (!sums) continue;
      for (size_t i = 0; i < n; i++) sums[at + i] += g[i];
    }
  }
}
