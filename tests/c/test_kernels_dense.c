/* test_kernels_dense.c - products, bias and activation, norms, softmax, losses, patches: every row against a naive
** reference in double, for every instruction set that this machine has. */
#include "tests/c/kernel_test.h"

#include <omp.h>

/* A workspace is aligned as the pool's blocks are (to 64 bytes at least); 'data' of a buffer is one byte past that. */
static buffer workspace(size_t nbytes) { return output(ZT_U8, nbytes + 63); }
static void *aligned(const buffer *workspace) { return (char *)workspace->data + 63; }
static void free_all(buffer *b, int n) {
  for (int i = 0; i < n; i++) buffer_free(&b[i]);
}

/* --- gemm */

typedef struct gemm_case {
  zt_gemm g;
  buffer a, b, c, before;
} gemm_case;

static void gemm_case_make(gemm_case *k, zt_dtype t, bool shared) {
  zt_gemm *g = &k->g;
  int64_t rows_a = g->trans_a ? g->k : g->m, rows_b = g->trans_b ? g->n : g->k;
  g->lda = (g->trans_a ? g->m : g->k) + (int64_t)random_below(4), g->ldb = (g->trans_b ? g->k : g->n) + 1;
  g->ldc = g->n + (int64_t)random_below(3);
  if (g->lda == 0) g->lda = 1;
  if (g->ldc == 0) g->ldc = 1;
  g->stride_a = rows_a * g->lda, g->stride_b = shared ? 0 : rows_b * g->ldb, g->stride_c = g->m * g->ldc + 5;
  k->a = input(t, (size_t)(g->stride_a * g->batch), -1, 1);
  k->b = input(t, (size_t)(rows_b * g->ldb * (shared ? 1 : g->batch)), -1, 1);
  k->c = output(t, (size_t)(g->stride_c * g->batch));
  if (g->beta != 0) {
    buffer_free(&k->c);
    k->c = input(t, (size_t)(g->stride_c * g->batch), -1, 1);
  }
  k->before = copy_of(&k->c);
}

static void gemm_case_check(gemm_case *k) {
  const zt_gemm *g = &k->g;
  size_t n_seen = 0;
  for (int64_t i = 0; i < g->batch; i++) {
    for (int64_t row = 0; row < g->m; row++) {
      for (int64_t col = 0; col < g->n; col++, n_seen++) {
        double sum = 0, size = 0;
        for (int64_t p = 0; p < g->k; p++) {
          double x = at(&k->a, (size_t)(i * g->stride_a + (g->trans_a ? p * g->lda + row : row * g->lda + p)));
          double y = at(&k->b, (size_t)(i * g->stride_b + (g->trans_b ? col * g->ldb + p : p * g->ldb + col)));
          sum += x * y, size += fabs(x * y);
        }
        size_t place = (size_t)(i * g->stride_c + row * g->ldc + col);
        double old = g->beta == 0 ? 0 : g->beta * at(&k->before, place);
        /* 16-bit results are rounded once from a float32 sum, whose error is small beside it */
        double scale = fabs(old) + (k->c.dtype == ZT_BF16 || k->c.dtype == ZT_F16 ? 1e-3 : 1) * fabs(g->alpha) * size;
        expect_close(&k->c, place, g->alpha * sum + old, scale);
        memcpy((char *)k->before.data + place * zt_dtype_nbytes(k->c.dtype),
               (char *)k->c.data + place * zt_dtype_nbytes(k->c.dtype), zt_dtype_nbytes(k->c.dtype));
      }
    }
  }
  assert_int_equal(n_seen, g->batch * g->m * g->n);
  assert_memory_equal(k->c.data, k->before.data, k->c.nbytes); /* nothing between rows was written */
}

static void gemm_run(const zt_kernels *table, zt_dtype t, zt_gemm g, bool shared) {
  gemm_case k = {.g = g};
  gemm_case_make(&k, t, shared);
  buffer w = workspace(table->gemm_workspace(t, &k.g));
  expect_ok(table->gemm(&no_stream, t, k.c.data, k.a.data, k.b.data, &k.g, aligned(&w)));
  gemm_case_check(&k);
  buffer_free(&w), buffer_free(&k.a), buffer_free(&k.b), buffer_free(&k.c), buffer_free(&k.before);
}

static void test_gemm(void **state) {
  (void)state;
  static const int64_t sizes[][4] = {/* m, n, k, batch */
                                     {1, 1, 1, 1},   {3, 5, 7, 1},    {13, 9, 17, 3},   {1, 37, 20, 2},
                                     {41, 1, 33, 1}, {97, 259, 8, 1}, {50, 66, 261, 1}, {7, 3, 2, 11},
                                     {0, 4, 3, 2},   {4, 0, 3, 2},    {5, 6, 0, 2},     {3, 4, 5, 0}};
  static const double factors[][2] = {{1, 0}, {1, 1}, {0.5, 0}, {-2, 0.25}};
  FOR_KERNELS(k) FOR_FLOATS(t) {
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
      for (int form = 0; form < 16; form++) {
        const double *f = factors[form >> 2];
        zt_gemm g = {.trans_a = form & 1,
                     .trans_b = form & 2,
                     .m = sizes[i][0],
                     .n = sizes[i][1],
                     .k = sizes[i][2],
                     .batch = sizes[i][3],
                     .alpha = f[0],
                     .beta = f[1]};
        gemm_run(k->table, t, g, i % 2 == 0);
      }
    }
  }
  covers_kernel("gemm");
}

/* Larger than the tiles of 16-bit floats, in one direction at a time. */
static void test_gemm_tiles(void **state) {
  (void)state;
  static const int64_t sizes[][3] = {{1030, 5, 3}, {3, 1030, 5}, {5, 3, 2055}};
  FOR_KERNELS(k) FOR_FLOATS(t) {
    for (int i = 0; i < 3; i++) {
      for (int form = 0; form < 4; form++) {
        zt_gemm g = {.trans_a = form & 1,
                     .trans_b = form & 2,
                     .m = sizes[i][0],
                     .n = sizes[i][1],
                     .k = sizes[i][2],
                     .batch = 1,
                     .alpha = 1,
                     .beta = form == 3};
        gemm_run(k->table, t, g, false);
      }
    }
  }
}

/* --- bias and activation */

static double act_value(zt_act act, double x) {
  switch (act) {
    case ZT_ACT_RELU:
      return x > 0 ? x : 0;
    case ZT_ACT_GELU:
      return 0.5 * x * (1 + erf(x / sqrt(2)));
    case ZT_ACT_GELU_TANH:
      return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case ZT_ACT_SILU:
      return x / (1 + exp(-x));
    case ZT_ACT_TANH:
      return tanh(x);
    default:
      return x;
  }
}
static double act_slope(zt_act act, double x) {
  double u = sqrt(2 / M_PI) * (x + 0.044715 * x * x * x), s = 1 / (1 + exp(-x));
  switch (act) {
    case ZT_ACT_RELU:
      return x > 0;
    case ZT_ACT_GELU:
      return 0.5 * (1 + erf(x / sqrt(2))) + x * exp(-x * x / 2) / sqrt(2 * M_PI);
    case ZT_ACT_GELU_TANH:
      return 0.5 * (1 + tanh(u)) + 0.5 * x * (1 - tanh(u) * tanh(u)) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
    case ZT_ACT_SILU:
      return s + x * s * (1 - s);
    case ZT_ACT_TANH:
      return 1 - tanh(x) * tanh(x);
    default:
      return 1;
  }
}

static void bias_act_case(const zt_kernels *table, zt_dtype t, zt_act act, size_t rows, size_t cols, bool biased,
                          bool in_place) {
  size_t count = rows * cols;
  buffer pre = input(t, count, -4, 4), bias = input(t, cols, -1, 1), before = copy_of(&pre), y = output(t, count);
  buffer *to = in_place ? &pre : &y;
  expect_ok(table->bias_act(&no_stream, t, to->data, pre.data, biased ? bias.data : NULL, act, rows, cols));
  for (size_t i = 0; i < count; i++) {
    double sum = at(&before, i) + (biased ? at(&bias, i % cols) : 0);
    if (!in_place) expect_close(&pre, i, sum, 0);
    expect_close(to, i, act_value(act, sum), fabs(sum) + (biased ? 1 : 0));
  }
  free_all((buffer[]){pre, bias, before, y}, 4);
}

static void bias_act_bwd_case(const zt_kernels *table, zt_dtype t, zt_act act, size_t rows, size_t cols, bool biased,
                              bool in_place) {
  size_t count = rows * cols;
  buffer gy = input(t, count, -1, 1), g = copy_of(&gy), pre = input(t, count, -4, 4), gpre = output(t, count);
  buffer gbias = output(t, cols), w = workspace(table->bias_act_bwd_workspace(t, rows, cols));
  buffer *to = in_place ? &gy : &gpre;
  expect_ok(table->bias_act_bwd(&no_stream, t, act == ZT_ACT_NONE ? NULL : to->data, biased ? gbias.data : NULL,
                                gy.data, pre.data, act, rows, cols, aligned(&w)));
  for (size_t j = 0; j < cols; j++) {
    double sum = 0, size = 0;
    for (size_t i = j; i < count; i += cols) {
      double want = at(&g, i) * act_slope(act, at(&pre, i));
      if (act != ZT_ACT_NONE) expect_close(to, i, want, 1);
      sum += want, size += fabs(at(&g, i));
    }
    if (biased) expect_close(&gbias, j, sum, size);
  }
  free_all((buffer[]){gy, g, pre, gpre, gbias, w}, 6);
}

static const size_t row_sizes[][2] = {{1, 1},    {3, 7},     {33, 31}, {2, 513}, {5, 1024},
                                      {130, 17}, {1500, 33}, {0, 5},   {4, 0}};
enum { N_ROW_SIZES = sizeof row_sizes / sizeof *row_sizes };

static void test_bias_act(void **state) {
  (void)state;
  FOR_KERNELS(k) FOR_FLOATS(t) {
    for (int i = 0; i < N_ROW_SIZES * 4; i++) {
      for (zt_act act = ZT_ACT_NONE; act <= ZT_ACT_TANH; act++) {
        bias_act_case(k->table, t, act, row_sizes[i / 4][0], row_sizes[i / 4][1], i & 1, i & 2);
        bias_act_bwd_case(k->table, t, act, row_sizes[i / 4][0], row_sizes[i / 4][1], i & 1, i & 2);
      }
    }
  }
  covers_kernel("bias_act"), covers_kernel("bias_act_bwd");
}

/* --- layer norm */

typedef struct norm_row {
  double mean, rstd;
} norm_row;

static norm_row norm_of(const buffer *h, size_t row, size_t cols, double eps) {
  double mean = 0, var = 0;
  for (size_t j = 0; j < cols; j++) mean += at(h, row * cols + j) / (double)cols;
  for (size_t j = 0; j < cols; j++) var += pow(at(h, row * cols + j) - mean, 2) / (double)cols;
  return (norm_row){mean, 1 / sqrt(var + eps)};
}

static void layer_norm_case(const zt_kernels *table, zt_dtype t, size_t rows, size_t cols, bool affine, bool residual) {
  size_t count = rows * cols;
  zt_dtype stat = zt_dtype_stat(t);
  buffer x = input(t, count, -1, 5), r = input(t, count, -3, 3), w = input(t, cols, -2, 2), b = input(t, cols, -1, 1);
  buffer y = output(t, count), sum = output(t, count), mean = output(stat, rows), rstd = output(stat, rows);
  expect_ok(table->layer_norm(&no_stream, t, y.data, residual ? sum.data : NULL, mean.data, rstd.data, x.data,
                              residual ? r.data : NULL, affine ? w.data : NULL, affine ? b.data : NULL, 1e-5, rows,
                              cols));
  const buffer *h = residual ? &sum : &x;
  for (size_t row = 0; row < rows; row++) {
    norm_row n = norm_of(h, row, cols, 1e-5);
    if (cols > 0) expect_close(&mean, row, n.mean, 5);
    if (cols > 1) expect_close(&rstd, row, n.rstd, 20 * n.rstd);
    for (size_t i = row * cols; i < (row + 1) * cols; i++) {
      if (residual) expect_close(&sum, i, at(&x, i) + at(&r, i), 0);
      double xhat = (at(h, i) - n.mean) * n.rstd, scale = affine ? at(&w, i % cols) : 1;
      double wide = t == ZT_F32 || t == ZT_F64 ? 5 * n.rstd : 5 * n.rstd * 1e-3; /* float32 inside */
      if (cols > 1) expect_close(&y, i, xhat * scale + (affine ? at(&b, i % cols) : 0), fabs(scale) * wide + 1);
    }
  }
  free_all((buffer[]){x, r, w, b, y, sum, mean, rstd}, 8);
}

typedef struct norm_grads {
  double *gx, *gw, *gb, *size_w, *size_b;
} norm_grads;

static double *zeros(size_t count) {
  double *p = calloc(count + 1, sizeof *p);
  assert_non_null(p);
  return p;
}

static norm_grads norm_reference(const buffer *g, const buffer *h, const buffer *w, size_t rows, size_t cols) {
  norm_grads o = {zeros(rows * cols), zeros(cols), zeros(cols), zeros(cols), zeros(cols)};
  for (size_t row = 0; row < rows; row++) {
    norm_row n = norm_of(h, row, cols, 1e-5);
    double m1 = 0, m2 = 0;
    for (size_t j = 0; j < cols; j++) {
      double xhat = (at(h, row * cols + j) - n.mean) * n.rstd, gy = at(g, row * cols + j), gw = gy * (w ? at(w, j) : 1);
      m1 += gw / (double)cols, m2 += gw * xhat / (double)cols;
      o.gw[j] += gy * xhat, o.gb[j] += gy, o.size_w[j] += fabs(gy) * (fabs(xhat) + 5 * n.rstd), o.size_b[j] += fabs(gy);
    }
    for (size_t j = 0; j < cols; j++) {
      double xhat = (at(h, row * cols + j) - n.mean) * n.rstd;
      o.gx[row * cols + j] = n.rstd * (at(g, row * cols + j) * (w ? at(w, j) : 1) - m1 - xhat * m2);
    }
  }
  return o;
}

static void layer_norm_bwd_case(const zt_kernels *table, zt_dtype t, size_t rows, size_t cols, bool affine, bool more) {
  size_t count = rows * cols;
  zt_dtype stat = zt_dtype_stat(t);
  buffer g = input(t, count, -1, 1), gsum = input(t, count, -1, 1), h = input(t, count, -3, 3),
         w = input(t, cols, -2, 2);
  buffer gx = output(t, count), gw = output(t, cols), gb = output(t, cols), mean = output(stat, rows);
  buffer rstd = output(stat, rows), space = workspace(table->layer_norm_bwd_workspace(t, rows, cols));
  for (size_t row = 0; row < rows; row++) {
    norm_row n = norm_of(&h, row, cols, 1e-5);
    put(stat, mean.data, row, n.mean), put(stat, rstd.data, row, n.rstd);
  }
  expect_ok(table->layer_norm_bwd(&no_stream, t, gx.data, affine ? gw.data : NULL, affine || more ? gb.data : NULL,
                                  g.data, more ? gsum.data : NULL, h.data, mean.data, rstd.data, affine ? w.data : NULL,
                                  rows, cols, aligned(&space)));
  norm_grads want = norm_reference(&g, &h, affine ? &w : NULL, rows, cols);
  for (size_t i = 0; i < count && cols > 1; i++) {
    double r = at(&rstd, i / cols), size = 4 * r * (1 + 3 * r);
    expect_close(&gx, i, want.gx[i] + (more ? at(&gsum, i) : 0), size + 1);
  }
  for (size_t j = 0; j < cols && cols > 1; j++) {
    if (affine) expect_close(&gw, j, want.gw[j], want.size_w[j]);
    if (affine || more) expect_close(&gb, j, want.gb[j], want.size_b[j]);
  }
  free(want.gx), free(want.gw), free(want.gb), free(want.size_w), free(want.size_b);
  free_all((buffer[]){g, gsum, h, w, gx, gw, gb, mean, rstd, space}, 10);
}

static void test_layer_norm(void **state) {
  (void)state;
  FOR_KERNELS(k) FOR_FLOATS(t) {
    for (int i = 0; i < N_ROW_SIZES * 4; i++) {
      layer_norm_case(k->table, t, row_sizes[i / 4][0], row_sizes[i / 4][1], i & 1, i & 2);
      layer_norm_bwd_case(k->table, t, row_sizes[i / 4][0], row_sizes[i / 4][1], i & 1, i & 2);
    }
  }
  covers_kernel("layer_norm"), covers_kernel("layer_norm_bwd");
}

/* Column sums are cut by the count of rows alone. */
static void test_thread_count(void **state) {
  (void)state;
  enum { ROWS = 777, COLS = 65 };
  int n_threads = omp_get_max_threads();
  FOR_KERNELS(k) {
    buffer g = input(ZT_F32, ROWS * COLS, -1, 1), h = input(ZT_F32, ROWS * COLS, -1, 1), s = input(ZT_F32, ROWS, 1, 2);
    buffer gx = output(ZT_F32, ROWS * COLS), w = workspace(k->table->layer_norm_bwd_workspace(ZT_F32, ROWS, COLS));
    buffer first[3] = {{0}};
    for (int n = 1; n <= 5; n++) {
      buffer sums[3] = {output(ZT_F32, COLS), output(ZT_F32, COLS), output(ZT_F32, COLS)};
      omp_set_num_threads(n);
      expect_ok(k->table->layer_norm_bwd(&no_stream, ZT_F32, gx.data, sums[0].data, sums[1].data, g.data, NULL, h.data,
                                         s.data, s.data, NULL, ROWS, COLS, aligned(&w)));
      expect_ok(k->table->bias_act_bwd(&no_stream, ZT_F32, gx.data, sums[2].data, g.data, h.data, ZT_ACT_GELU, ROWS,
                                       COLS, aligned(&w)));
      for (int i = 0; i < 3; i++) {
        if (n > 1) assert_memory_equal(sums[i].data, first[i].data, first[i].nbytes);
        if (n > 1)
          buffer_free(&sums[i]);
        else
          first[i] = sums[i];
      }
    }
    free_all((buffer[]){g, h, s, gx, w, first[0], first[1], first[2]}, 8);
  }
  omp_set_num_threads(n_threads);
}

/* --- softmax */

static void softmax_case(const zt_kernels *table, zt_dtype t, size_t rows, size_t cols, bool log_of, bool masked) {
  size_t count = rows * cols;
  buffer x = input(t, count, -30, 30), mask = input(ZT_U8, count, 0, 2), y = output(t, count);
  if (masked && rows > 1) memset((char *)mask.data + cols, 0, cols); /* a row with none left */
  expect_ok(table->softmax(&no_stream, t, y.data, x.data, masked ? mask.data : NULL, log_of, rows, cols));
  for (size_t row = 0; row < rows; row++) {
    double sum = 0, span = 60; /* exp(x - max): the rounding of x - max is a relative error of the result */
    for (size_t i = row * cols; i < (row + 1) * cols; i++) sum += masked && at(&mask, i) == 0 ? 0 : exp(at(&x, i));
    for (size_t i = row * cols; i < (row + 1) * cols; i++) {
      bool out = masked && at(&mask, i) == 0;
      double want = log_of ? (out ? -INFINITY : at(&x, i) - log(sum)) : out ? 0 : exp(at(&x, i)) / sum;
      expect_close(&y, i, want, log_of ? (t == ZT_BF16 || t == ZT_F16 ? 0.1 : 30) : want * (1 + 0.25 * span));
    }
  }
  free_all((buffer[]){x, mask, y}, 3);
}

static void softmax_bwd_case(const zt_kernels *table, zt_dtype t, size_t rows, size_t cols, bool log_of, bool masked) {
  size_t count = rows * cols;
  buffer y = input(t, count, log_of ? -3 : 0, log_of ? 0 : 0.3), gy = input(t, count, -1, 1), gx = output(t, count);
  for (size_t i = 0; masked && i < count; i += 3) put(t, y.data, i, log_of ? -INFINITY : 0);
  expect_ok(table->softmax_bwd(&no_stream, t, gx.data, gy.data, y.data, log_of, rows, cols));
  for (size_t row = 0; row < rows; row++) {
    double dot = 0, size = 0;
    for (size_t i = row * cols; i < (row + 1) * cols; i++) {
      double part = log_of ? (isinf(at(&y, i)) ? 0 : at(&gy, i)) : at(&gy, i) * at(&y, i);
      dot += part, size += fabs(part);
    }
    for (size_t i = row * cols; i < (row + 1) * cols; i++) {
      double p = log_of ? exp(at(&y, i)) : at(&y, i), g = at(&gy, i);
      double want = log_of ? (isinf(at(&y, i)) ? 0 : g - p * dot) : p * (g - dot);
      expect_close(&gx, i, want, (log_of ? 1 : p) * (1 + size));
    }
  }
  free_all((buffer[]){y, gy, gx}, 3);
}

static void test_softmax(void **state) {
  (void)state;
  FOR_KERNELS(k) FOR_FLOATS(t) {
    for (int i = 0; i < N_ROW_SIZES * 4; i++) {
      softmax_case(k->table, t, row_sizes[i / 4][0], row_sizes[i / 4][1], i & 1, i & 2);
      softmax_bwd_case(k->table, t, row_sizes[i / 4][0], row_sizes[i / 4][1], i & 1, i & 2);
    }
  }
  covers_kernel("softmax"), covers_kernel("softmax_bwd");
}

/* What does not occur in random rows: infinities, NaN, a maximum that comes late, rows of -inf. */
static void test_softmax_extremes(void **state) {
  (void)state;
  enum { COLS = 1200 };
  FOR_KERNELS(k) FOR_FLOATS(t) {
    buffer x = input(t, COLS, -1, 1), y = output(t, COLS);
    put(t, x.data, COLS - 1, 20000), put(t, x.data, 3, -INFINITY);
    expect_ok(k->table->softmax(&no_stream, t, y.data, x.data, NULL, false, 1, COLS));
    for (size_t i = 0; i < COLS; i++) expect_close(&y, i, i == COLS - 1, 0);
    put(t, x.data, 700, NAN);
    expect_ok(k->table->softmax(&no_stream, t, y.data, x.data, NULL, false, 1, COLS));
    for (size_t i = 0; i < COLS; i++) expect_close(&y, i, NAN, 0);
    for (size_t i = 0; i < COLS; i++) put(t, x.data, i, i == 600 ? -20000 : -INFINITY);
    expect_ok(k->table->softmax(&no_stream, t, y.data, x.data, NULL, false, 1, COLS));
    for (size_t i = 0; i < COLS; i++) expect_close(&y, i, i == 600, 0);
    put(t, x.data, 600, -INFINITY);
    expect_ok(k->table->softmax(&no_stream, t, y.data, x.data, NULL, false, 1, COLS));
    for (size_t i = 0; i < COLS; i++) expect_close(&y, i, 0, 0);
    buffer_free(&x), buffer_free(&y);
  }
}

/* --- cross entropy */

static void cross_entropy_case(const zt_kernels *table, zt_dtype t, size_t rows, size_t cols, double smoothing,
                               int form) {
  size_t ld = cols + 3;
  buffer x = input(t, rows * ld, -10, 10), labels = input_index(rows, cols), grad = output(t, rows * ld);
  buffer before = copy_of(&x), loss = output(zt_dtype_stat(t), rows), *to = form == 2 ? &x : &grad;
  for (size_t i = 1; i < rows; i += 4) ((int64_t *)labels.data)[i] = -100;
  expect_ok(table->cross_entropy(&no_stream, t, loss.data, form ? to->data : NULL, x.data, labels.data, -100, smoothing,
                                 rows, cols, ld));
  for (size_t row = 0; row < rows; row++) {
    int64_t label = ((int64_t *)labels.data)[row];
    long double sum = 0, mean = 0;
    for (size_t j = 0; j < cols; j++)
      sum += exp(at(&before, row * ld + j)), mean += at(&before, row * ld + j) / (double)cols;
    double target = label < 0 ? 0 : (1 - smoothing) * at(&before, row * ld + (size_t)label) + smoothing * (double)mean;
    expect_close(&loss, row, label < 0 ? 0 : (double)logl(sum) - target, 10);
    for (size_t j = 0; form && j < cols; j++) {
      double p = (double)(exp(at(&before, row * ld + j)) / sum),
             one = ((int64_t)j == label ? 1 - smoothing : 0) + smoothing / (double)cols;
      bool wide = t == ZT_F32 || t == ZT_F64; /* as in softmax_case, x - max is at most 20 */
      expect_close(to, row * ld + j, label < 0 ? 0 : p - one, wide ? 6 * p + one : 1e-2 * (p + one));
    }
    for (size_t j = cols; form == 2 && j < ld; j++) expect_close(to, row * ld + j, at(&before, row * ld + j), 0);
  }
  free_all((buffer[]){x, labels, grad, before, loss}, 5);
}

static void test_cross_entropy(void **state) {
  (void)state;
  FOR_KERNELS(k) FOR_FLOATS(t) {
    for (int i = 0; i < N_ROW_SIZES * 6; i++) {
      if (row_sizes[i / 6][1] == 0) continue; /* no label fits */
      cross_entropy_case(k->table, t, row_sizes[i / 6][0], row_sizes[i / 6][1], i % 2 ? 0.1 : 0, i / 2 % 3);
    }
    cross_entropy_case(k->table, t, 3, 50257, 0, 2);
  }
  covers_kernel("cross_entropy");
}

/* --- patches */

static void conv_case(const zt_kernels *table, zt_dtype t, const size_t *n, size_t width, size_t stride,
                      size_t dilation, size_t pad) {
  size_t batch = n[0], n_t = n[1], n_c = n[2], n_out = (n_t + 2 * pad - dilation * (width - 1) - 1) / stride + 1;
  size_t n_patches = batch * n_out * n_c * width;
  buffer x = input(t, batch * n_t * n_c, -1, 1), y = output(t, n_patches), gy = input(t, n_patches, -1, 1);
  buffer gx = output(t, x.count);
  double *sum = zeros(x.count), *size = zeros(x.count);
  expect_ok(table->unfold1d(&no_stream, t, y.data, x.data, batch, n_t, n_c, n_out, width, stride, dilation, pad));
  expect_ok(table->fold1d(&no_stream, t, gx.data, gy.data, batch, n_t, n_c, n_out, width, stride, dilation, pad));
  for (size_t i = 0; i < n_patches; i++) {
    size_t tap = i % width, c = i / width % n_c, u = i / width / n_c % n_out, b = i / width / n_c / n_out;
    size_t place = u * stride + tap * dilation, from = (b * n_t + place - pad) * n_c + c;
    bool inside = place >= pad && place < n_t + pad;
    expect_close(&y, i, inside ? at(&x, from) : 0, 0);
    if (inside) sum[from] += at(&gy, i), size[from] += fabs(at(&gy, i));
  }
  for (size_t i = 0; i < x.count; i++) expect_close(&gx, i, sum[i], size[i]);
  free(sum), free(size);
  free_all((buffer[]){x, y, gy, gx}, 4);
}

static void test_conv(void **state) {
  (void)state;
  static const size_t sizes[][3] = {{1, 9, 1}, {3, 17, 5}, {2, 11, 600}, {0, 9, 4}, {2, 9, 0}};
  FOR_KERNELS(k) FOR_FLOATS(t) {
    for (int i = 0; i < 5 * 24; i++)
      conv_case(k->table, t, sizes[i / 24], 1 + (size_t)(i % 3), 1 + (size_t)(i / 3 % 2), 1 + (size_t)(i / 6 % 2),
                (size_t)(i / 12 % 2) * 2);
  }
  covers_kernel("unfold1d"), covers_kernel("fold1d");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_gemm),
      cmocka_unit_test(test_gemm_tiles),
      cmocka_unit_test(test_bias_act),
      cmocka_unit_test(test_layer_norm),
      cmocka_unit_test(test_thread_count),
      cmocka_unit_test(test_softmax),
      cmocka_unit_test(test_softmax_extremes),
      cmocka_unit_test(test_cross_entropy),
      cmocka_unit_test(test_conv),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
