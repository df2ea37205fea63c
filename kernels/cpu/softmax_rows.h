/* softmax_rows.h - body for T (real.h): softmax, its gradient, and cross entropy of one row. */

/* Elements at .. at+n-1 of a row, those that the mask leaves out as -inf. */
static const T *F(masked_block_)(zt_dtype t, const void *x, const uint8_t *mask, size_t at, size_t n, T *buffer) {
  const T *block = F(zt_in)(t, x, at, n, buffer);
  if (!mask) return block;
  for (size_t i = 0; i < n; i++) buffer[i] = mask[at + i] ? block[i] : (T)-INFINITY;
  return buffer;
}

/* Of a row: the sum of exp(x - shift), shift near its largest element (0 where none is above -inf). One pass: the sum so
** far is scaled when the maximum grows. A NaN makes the sum NaN. */
static double F(exp_sum_)(zt_dtype t, T *shift, const void *x, const uint8_t *mask, size_t cols) {
  double total = 0;
  T largest = (T)-INFINITY, used = 0;
  ZT_FOR_BLOCKS(at, n, cols) {
    T buffer[ZT_BLOCK], m = largest, sum = 0;
    const T *block = F(masked_block_)(t, x, mask, at, n, buffer);
#pragma omp simd reduction(max : m)
    for (size_t i = 0; i < n; i++) m = block[i] > m ? block[i] : m;
    T before = used;
    used = m > (T)-INFINITY ? m : 0;
    if (total != 0 && used != before) total *= exp((double)before - (double)used);
    largest = m;
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < n; i++) sum += F(zt_exp)(block[i] - used);
    total += (double)sum;
  }
  *shift = used;
  return total;
}

static void F(softmax_row_)(zt_dtype t, void *y, const void *x, const uint8_t *mask, bool log_of, size_t cols) {
  T shift;
  double total = F(exp_sum_)(t, &shift, x, mask, cols);
  T scale = (T)(total == 0 ? 0 : 1 / total), log_total = (T)(total == 0 ? 0 : log(total));
  ZT_FOR_BLOCKS(at, n, cols) {
    T in[ZT_BLOCK], buffer[ZT_BLOCK], *out = F(zt_out)(t, y, at, buffer);
    const T *block = F(masked_block_)(t, x, mask, at, n, in);
    if (log_of) {
      for (size_t i = 0; i < n; i++) out[i] = block[i] - shift - log_total;
    } else {
#pragma omp simd
      for (size_t i = 0; i < n; i++) out[i] = F(zt_exp)(block[i] - shift) * scale;
    }
    F(zt_done)(t, y, at, n, out);
  }
}

/* The row's sum of gy y; for log softmax, of gy where y is above -inf. */
static double F(softmax_dot_)(zt_dtype t, const void *gy, const void *y, bool log_of, size_t cols) {
  double total = 0;
  ZT_FOR_BLOCKS(at, n, cols) {
    T g_in[ZT_BLOCK], y_in[ZT_BLOCK], sum = 0;
    const T *g = F(zt_in)(t, gy, at, n, g_in), *p = F(zt_in)(t, y, at, n, y_in);
    if (log_of) {
#pragma omp simd reduction(+ : sum)
      for (size_t i = 0; i < n; i++) sum += p[i] == (T)-INFINITY ? 0 : g[i];
    } else {
#pragma omp simd reduction(+ : sum)
      for (size_t i = 0; i < n; i++) sum += g[i] * p[i];
    }
    total += (double)sum;
  }
  return total;
}

static void F(softmax_bwd_row_)(zt_dtype t, void *gx, const void *gy, const void *y, bool log_of, size_t cols) {
  T dot = (T)F(softmax_dot_)(t, gy, y, log_of, cols);
  ZT_FOR_BLOCKS(at, n, cols) {
    T g_in[ZT_BLOCK], y_in[ZT_BLOCK], buffer[ZT_BLOCK], *out = F(zt_out)(t, gx, at, buffer);
    const T *g = F(zt_in)(t, gy, at, n, g_in), *p = F(zt_in)(t, y, at, n, y_in);
    if (log_of) {
#pragma omp simd
      for (size_t i = 0; i < n; i++) out[i] = p[i] == (T)-INFINITY ? 0 : g[i] - F(zt_exp)(p[i]) * dot;
    } else {
#pragma omp simd
      for (size_t i = 0; i < n; i++) out[i] = p[i] * (g[i] - dot);
    }
    F(zt_done)(t, gx, at, n, out);
  }
}

static double F(row_sum_)(zt_dtype t, const void *x, size_t cols) {
  double total = 0;
  ZT_FOR_BLOCKS(at, n, cols) {
    T buffer[ZT_BLOCK], sum = 0;
    const T *block = F(zt_in)(t, x, at, n, buffer);
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < n; i++) sum += block[i];
    total += (double)sum;
  }
  return total;
}

/* The gradient of a row, softmax - target: 'hit' is the target's part on the label, 'every' its part everywhere. */
static void F(cross_entropy_grad_)(zt_dtype t, void *grad, const void *x, T shift, T scale, size_t label, T hit,
                                   T every, size_t cols) {
  ZT_FOR_BLOCKS(at, n, cols) {
    T in[ZT_BLOCK], buffer[ZT_BLOCK], *out = F(zt_out)(t, grad, at, buffer);
    const T *block = F(zt_in)(t, x, at, n, in);
#pragma omp simd
    for (size_t i = 0; i < n; i++) out[i] = F(zt_exp)(block[i] - shift) * scale - every;
    if (label >= at && label < at + n) out[label - at] -= hit;
    F(zt_done)(t, grad, at, n, out);
  }
}

/* log sum exp x - (1 - smoothing) x[label] - smoothing mean(x), from differences to 'shift' so that nothing cancels. */
static T F(cross_entropy_row_)(zt_dtype t, void *grad, const void *x, size_t label, double smoothing, size_t cols) {
  T shift, cell;
  double total = F(exp_sum_)(t, &shift, x, NULL, cols),
         target = (double)*F(zt_in)(t, x, label, 1, &cell) - (double)shift;
  if (smoothing != 0) {
    double mean = F(row_sum_)(t, x, cols) / (double)cols - (double)shift;
    target = (1 - smoothing) * target + smoothing * mean;
  }
  if (grad) F(cross_entropy_grad_)
  (t, grad, x, shift, (T)(1 / total), label, (T)(1 - smoothing), (T)(smoothing / (double)cols), cols);
  return (T)(log(total) - target);
}
