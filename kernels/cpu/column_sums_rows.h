/* column_sums_rows.h - body for T (real.h): y (cols, dtype t, NULL ok) = the sum of n_parts slices, 'stride' apart. */
static void F(add_parts_)(zt_dtype t, void *y, const T *parts, size_t n_parts, size_t stride, size_t cols) {
  if (!y) return;
  ZT_FOR_BLOCKS(at, n, cols) {
    T sum[ZT_BLOCK] = {0}, buffer[ZT_BLOCK], *out = F(zt_out)(t, y, at, buffer);
    for (size_t part = 0; part < n_parts; part++) {
      for (size_t i = 0; i < n; i++) sum[i] += parts[part * stride + at + i];
    }
    for (size_t i = 0; i < n; i++) out[i] = sum[i];
    F(zt_done)(t, y, at, n, out);
  }
}
