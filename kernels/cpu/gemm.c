/* gemm.c - matrix products. float32 is oneDNN's sgemm; float64 is our own blocked product (it serves gradient checks
** and small models); 16-bit floats are widened tile by tile and multiplied in float32. Matrices are row-major. */
#include "kernels/cpu/cpu.h"

#include <dnnl.h>
#include <omp.h>

static int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }

/* Where row 'row', column 'col' of op(x) begins, for an x that lies with row stride ld. */
static int64_t at(bool trans, int64_t ld, int64_t row, int64_t col) { return trans ? col * ld + row : row * ld + col; }

/* --- float32 */

static zt_status sgemm(const zt_gemm *g, float *c, const float *a, const float *b) {
  dnnl_status_t st = dnnl_sgemm(g->trans_a ? 'T' : 'N', g->trans_b ? 'T' : 'N', g->m, g->n, g->k, (float)g->alpha, a,
                                g->lda, b, g->ldb, (float)g->beta, c, g->ldc);
  if (st == dnnl_success) return ZT_OK;
  return zt_fail(st == dnnl_out_of_memory ? ZT_NOMEM : ZT_INVALID,
                 "dnnl_sgemm: status %d for a product of (%lld, %lld) and (%lld, %lld)", (int)st, (long long)g->m,
                 (long long)g->k, (long long)g->k, (long long)g->n);
}

/* Threads share a batch of small products and work together on large ones: below about a million multiplications a
** product is too short to be cut, and with many products per thread none waits long for the last. */
static bool parallel_over_batch(const zt_gemm *g) {
  double work = (double)g->m * (double)g->n * (double)g->k;
  return g->batch > 1 && (work < 1e6 || g->batch >= 4 * (int64_t)omp_get_max_threads());
}

static zt_status gemm_f32(const zt_gemm *g, float *c, const float *a, const float *b) {
  int worst = ZT_OK; /* messages belong to threads: the failing product is run again on the caller's */
  if (parallel_over_batch(g)) {
#pragma omp parallel for schedule(static) reduction(max : worst)
    for (int64_t i = 0; i < g->batch; i++) {
      int st = (int)sgemm(g, c + i * g->stride_c, a + i * g->stride_a, b + i * g->stride_b);
      worst = st > worst ? st : worst;
    }
    return worst == ZT_OK ? ZT_OK
                          : zt_fail((zt_status)worst, "dnnl_sgemm failed in a batch of %lld", (long long)g->batch);
  }
  for (int64_t i = 0; i < g->batch; i++)
    ZT_TRY(sgemm(g, c + i * g->stride_c, a + i * g->stride_a, b + i * g->stride_b));
  return ZT_OK;
}

/* --- float64: tiles of C of at most TILE_M x TILE_N are shared out among the threads. A thread packs the pieces of A
** and B that it needs into strips of STRIP_M rows and STRIP_N columns, so that the inner loop reads both in order. */

enum { STRIP_M = 12, STRIP_N = 8, TILE_M = 96, TILE_N = 256, TILE_K = 256 };

typedef double vec __attribute__((vector_size(STRIP_N * sizeof(double)))); /* the compiler cuts it to what there is */

/* acc (STRIP_M, STRIP_N) = strip of A times strip of B. */
static void multiply_strips(vec acc[STRIP_M], const double *restrict a, const double *restrict b, int64_t n_k) {
  vec sum[STRIP_M] = {0};
  for (int64_t p = 0; p < n_k; p++) {
    vec row = *(const vec *)(b + p * STRIP_N);
    for (int i = 0; i < STRIP_M; i++) sum[i] += a[p * STRIP_M + i] * row;
  }
  for (int i = 0; i < STRIP_M; i++) acc[i] = sum[i];
}

/* Strips of 'width' rows of op(x), beginning at (row, col), each n_k long and padded with zeros to 'width'. */
static void pack(double *restrict out, const double *x, bool trans, int64_t ld, int64_t row, int64_t col,
                 int64_t n_rows, int64_t n_k, int width) {
  for (int64_t r = 0; r < n_rows; r += width) {
    for (int64_t p = 0; p < n_k; p++) {
      for (int i = 0; i < width; i++) out[p * width + i] = r + i < n_rows ? x[at(trans, ld, row + r + i, col + p)] : 0;
    }
    out += (int64_t)width * n_k;
  }
}

static void add_strip(double *c, int64_t ldc, const vec acc[STRIP_M], double alpha, int64_t n_rows, int64_t n_cols) {
  for (int64_t i = 0; i < min_i64(n_rows, STRIP_M); i++) {
    for (int64_t j = 0; j < min_i64(n_cols, STRIP_N); j++) c[i * ldc + j] += alpha * acc[i][j];
  }
}

static void scale_tile(double *c, int64_t ldc, double beta, int64_t n_rows, int64_t n_cols) {
  for (int64_t i = 0; i < n_rows; i++) {
    for (int64_t j = 0; j < n_cols; j++) c[i * ldc + j] = beta == 0 ? 0 : beta * c[i * ldc + j];
  }
}

/* One tile of C, at (row, col). B is packed as the rows of its transpose. */
static void multiply_tile(const zt_gemm *g, double *c, const double *a, const double *b, int64_t row, int64_t col,
                          double *packed_a, double *packed_b) {
  int64_t n_rows = min_i64(TILE_M, g->m - row), n_cols = min_i64(TILE_N, g->n - col);
  c += row * g->ldc + col;
  scale_tile(c, g->ldc, g->beta, n_rows, n_cols);
  for (int64_t p = 0; p < g->k; p += TILE_K) {
    int64_t n_k = min_i64(TILE_K, g->k - p);
    pack(packed_a, a, g->trans_a, g->lda, row, p, n_rows, n_k, STRIP_M);
    pack(packed_b, b, !g->trans_b, g->ldb, col, p, n_cols, n_k, STRIP_N);
    for (int64_t j = 0; j < n_cols; j += STRIP_N) {
      for (int64_t i = 0; i < n_rows; i += STRIP_M) {
        vec acc[STRIP_M];
        multiply_strips(acc, packed_a + i * n_k, packed_b + j * n_k, n_k);
        add_strip(c + i * g->ldc + j, g->ldc, acc, g->alpha, n_rows - i, n_cols - j);
      }
    }
  }
}

enum { PACKED_A = TILE_M * TILE_K, PACKED_B = TILE_N * TILE_K };

static void gemm_f64(const zt_gemm *g, double *c, const double *a, const double *b, double *workspace) {
  int64_t tiles_m = (g->m + TILE_M - 1) / TILE_M, tiles_n = (g->n + TILE_N - 1) / TILE_N, tiles = tiles_m * tiles_n;
  bool worth_it = (double)g->batch * (double)g->m * (double)g->n * (double)g->k > 1e5;
#pragma omp parallel for schedule(static) if (worth_it)
  for (int64_t task = 0; task < g->batch * tiles; task++) {
    int64_t i = task / tiles, row = task % tiles / tiles_n * TILE_M, col = task % tiles_n * TILE_N;
    double *packed = workspace + (int64_t)omp_get_thread_num() * (PACKED_A + PACKED_B);
    multiply_tile(g, c + i * g->stride_c, a + i * g->stride_a, b + i * g->stride_b, row, col, packed + PACKED_B,
                  packed);
  }
}

/* --- 16-bit floats: float32 tiles of A, B and C in the workspace, whose three edges are at most TILE_16 long */

enum { TILE_16 = 1024 };

static float load16(zt_dtype t, uint16_t x) { return t == ZT_BF16 ? zt_bf16_to_f32(x) : zt_f16_to_f32(x); }
static uint16_t store16(zt_dtype t, float x) { return t == ZT_BF16 ? zt_f32_to_bf16(x) : zt_f32_to_f16(x); }

/* y (n_rows, n_cols) contiguous = x as it lies. */
static void widen(zt_dtype t, float *y, const uint16_t *x, int64_t ld, int64_t n_rows, int64_t n_cols) {
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < n_rows; i++) {
    for (int64_t j = 0; j < n_cols; j++) y[i * n_cols + j] = load16(t, x[i * ld + j]);
  }
}

/* c = acc + beta * c, rounded once. */
static void narrow(zt_dtype t, uint16_t *c, int64_t ldc, const float *acc, float beta, int64_t n_rows, int64_t n_cols) {
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < n_rows; i++) {
    for (int64_t j = 0; j < n_cols; j++) {
      float old = beta == 0 ? 0 : beta * load16(t, c[i * ldc + j]);
      c[i * ldc + j] = store16(t, acc[i * n_cols + j] + old);
    }
  }
}

static void widen_op(zt_dtype t, float *y, const uint16_t *x, bool trans, int64_t ld, int64_t row, int64_t col,
                     int64_t n_rows, int64_t n_cols) {
  widen(t, y, x + at(trans, ld, row, col), ld, trans ? n_cols : n_rows, trans ? n_rows : n_cols);
}

static zt_status tile_16(zt_dtype t, const zt_gemm *g, uint16_t *c, const uint16_t *a, const uint16_t *b, int64_t row,
                         int64_t col, float *workspace) {
  float *wide_a = workspace, *wide_b = wide_a + TILE_16 * TILE_16, *acc = wide_b + TILE_16 * TILE_16;
  zt_gemm tile = {.trans_a = g->trans_a, .trans_b = g->trans_b, .alpha = g->alpha};
  tile.m = min_i64(TILE_16, g->m - row), tile.n = tile.ldc = min_i64(TILE_16, g->n - col);
  for (int64_t p = 0; p < g->k; p += TILE_16) {
    tile.k = min_i64(TILE_16, g->k - p);
    tile.lda = g->trans_a ? tile.m : tile.k, tile.ldb = g->trans_b ? tile.k : tile.n;
    widen_op(t, wide_a, a, g->trans_a, g->lda, row, p, tile.m, tile.k);
    widen_op(t, wide_b, b, g->trans_b, g->ldb, p, col, tile.k, tile.n);
    ZT_TRY(sgemm(&tile, acc, wide_a, wide_b));
    tile.beta = 1;
  }
  narrow(t, c + row * g->ldc + col, g->ldc, acc, (float)g->beta, tile.m, tile.n);
  return ZT_OK;
}

static zt_status gemm_16(zt_dtype t, const zt_gemm *g, uint16_t *c, const uint16_t *a, const uint16_t *b,
                         float *workspace) {
  for (int64_t i = 0; i < g->batch; i++) {
    for (int64_t row = 0; row < g->m; row += TILE_16) {
      for (int64_t col = 0; col < g->n; col += TILE_16)
        ZT_TRY(tile_16(t, g, c + i * g->stride_c, a + i * g->stride_a, b + i * g->stride_b, row, col, workspace));
    }
  }
  return ZT_OK;
}

/* --- k = 0: the sum is empty, and libraries differ on what they do then */

static void scale_only(zt_dtype t, const zt_gemm *g, void *c) {
  float beta = (float)g->beta;
  for (int64_t i = 0; i < g->batch * g->m; i++) {
    int64_t row = i / g->m * g->stride_c + i % g->m * g->ldc;
    for (int64_t j = row; j < row + g->n; j++) {
      if (t == ZT_F64)
        ((double *)c)[j] = g->beta == 0 ? 0 : g->beta * ((double *)c)[j];
      else if (t == ZT_F32)
        ((float *)c)[j] = beta == 0 ? 0 : beta * ((float *)c)[j];
      else
        ((uint16_t *)c)[j] = store16(t, beta == 0 ? 0 : beta * load16(t, ((uint16_t *)c)[j]));
    }
  }
}

size_t ZT_K(gemm_workspace)(zt_dtype t, const zt_gemm *g) {
  if (g->batch == 0 || g->m == 0 || g->n == 0 || g->k == 0) return 0;
  if (t == ZT_F64) return (size_t)omp_get_max_threads() * (PACKED_A + PACKED_B) * sizeof(double);
  return t == ZT_F32 ? 0 : 3 * (size_t)TILE_16 * TILE_16 * sizeof(float);
}

zt_status ZT_K(gemm)(zt_stream *s, zt_dtype t, void *c, const void *a, const void *b, const zt_gemm *g,
                     void *workspace) {
  (void)s;
  if (g->batch == 0 || g->m == 0 || g->n == 0) return ZT_OK;
  if (g->k == 0) {
    scale_only(t, g, c);
    return ZT_OK;
  }
  if (t == ZT_F32) return gemm_f32(g, c, a, b);
  if (t != ZT_F64) return gemm_16(t, g, c, a, b, workspace);
  gemm_f64(g, c, a, b, workspace);
  return ZT_OK;
}
