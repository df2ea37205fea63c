/* unary.c - y = f(x) and its derivative, elementwise. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/loop.h"
#include "kernels/cpu/vmath.h"

/* A loop over one operand; 'v' is the element. y may be x: each element is read before it is written. */
#define MAP(T, expr)                                   \
  _Pragma("omp simd") for (size_t i = 0; i < n; i++) { \
    const T v = x[i];                                  \
    y[i] = (expr);                                     \
  }                                                    \
  break

/* Common exponents have their own loops, as pow does not vectorize. */
#define UNARY(T, S, SQRT, POW)                                                         \
  static void pow_##S(T *y, const T *x, T p, size_t n) {                               \
    int known = p == (T)2 ? 2 : p == (T)3 ? 3 : p == (T)-1 ? -1 : p == (T)0.5 ? 5 : 0; \
    switch (known) {                                                                   \
      case 2:                                                                          \
        MAP(T, v *v);                                                                  \
      case 3:                                                                          \
        MAP(T, v *v *v);                                                               \
      case -1:                                                                         \
        MAP(T, (T)1 / v);                                                              \
      case 5:                                                                          \
        MAP(T, SQRT(v + (T)0));                                                        \
      default:                                                                         \
        MAP(T, POW(v, p));                                                             \
    }                                                                                  \
  }                                                                                    \
  static void unary_##S(zt_unary fn, T *y, const T *x, T p0, T p1, size_t n) {         \
    switch (fn) {                                                                      \
      case ZT_UNARY_NEG:                                                               \
        MAP(T, -v);                                                                    \
      case ZT_UNARY_EXP:                                                               \
        MAP(T, zt_exp##S(v));                                                          \
      case ZT_UNARY_LOG:                                                               \
        MAP(T, zt_log##S(v));                                                          \
      case ZT_UNARY_SQRT:                                                              \
        MAP(T, SQRT(v));                                                               \
      case ZT_UNARY_RSQRT:                                                             \
        MAP(T, (T)1 / SQRT(v));                                                        \
      case ZT_UNARY_TANH:                                                              \
        MAP(T, zt_tanh##S(v));                                                         \
      case ZT_UNARY_SIGMOID:                                                           \
        MAP(T, zt_sigmoid##S(v));                                                      \
      case ZT_UNARY_RELU:                                                              \
        MAP(T, zt_relu##S(v));                                                         \
      case ZT_UNARY_GELU:                                                              \
        MAP(T, zt_gelu##S(v));                                                         \
      case ZT_UNARY_GELU_TANH:                                                         \
        MAP(T, zt_gelu_tanh##S(v));                                                    \
      case ZT_UNARY_SILU:                                                              \
        MAP(T, zt_silu##S(v));                                                         \
      case ZT_UNARY_CLAMP:                                                             \
        MAP(T, zt_clip##S(v, p0, p1));                                                 \
      case ZT_UNARY_AFFINE:                                                            \
        MAP(T, p0 *v + p1);                                                            \
      case ZT_UNARY_POWS:                                                              \
        pow_##S(y, x, p0, n);                                                          \
        break;                                                                         \
      case ZT_N_UNARY:                                                                 \
        break;                                                                         \
    }                                                                                  \
  }
UNARY(float, f, sqrtf, powf)
UNARY(double, d, sqrt, pow)

/* Integers wrap; p0 and p1 are whole numbers. */
#define UNARY_INTEGER(T, U)                                                             \
  static zt_status unary_##T(zt_unary fn, T *y, const T *x, U p0, U p1, size_t count) { \
    if (fn == ZT_UNARY_NEG) p0 = (U)-1, p1 = 0;                                         \
    if (fn != ZT_UNARY_NEG && fn != ZT_UNARY_AFFINE)                                    \
      return zt_fail(ZT_DTYPE, "of the unary functions integers have neg and affine");  \
    for (size_t i = 0; i < count; i++) y[i] = (T)((U)x[i] * p0 + p1);                   \
    return ZT_OK;                                                                       \
  }
UNARY_INTEGER(int64_t, uint64_t)
UNARY_INTEGER(int32_t, uint32_t)

zt_status ZT_K(unary)(zt_stream *s, zt_unary fn, zt_dtype t, void *y, const void *x, double p0, double p1,
                      size_t count) {
  (void)s;
  if (t == ZT_I64) return unary_int64_t(fn, y, x, (uint64_t)(int64_t)p0, (uint64_t)(int64_t)p1, count);
  if (t == ZT_I32) return unary_int32_t(fn, y, x, (uint32_t)(int64_t)p0, (uint32_t)(int64_t)p1, count);
  if (!zt_dtype_is_float(t)) return zt_fail(ZT_DTYPE, "unary functions do not take %s", zt_dtype_name(t));
  size_t n_blocks = zt_n_parts(count, ZT_BLOCK);
#pragma omp parallel for schedule(static) if (zt_worth_threads(count))
  for (size_t block = 0; block < n_blocks; block++) {
    size_t at = block * ZT_BLOCK, n = zt_smaller(count - at, ZT_BLOCK);
    float in[ZT_BLOCK], out[ZT_BLOCK];
    if (t == ZT_F64) {
      unary_d(fn, (double *)y + at, (const double *)x + at, p0, p1, n);
      continue;
    }
    float *to = zt_block_out(t, y, at, out);
    unary_f(fn, to, zt_block_in(t, x, at, n, in), (float)p0, (float)p1, n);
    zt_block_done(t, y, at, n, to);
  }
  return ZT_OK;
}

/* --- derivatives: 'v' is the element of FROM (x or y; the gradient where f' is a constant), 'g' the gradient. */
#define MAP_BWD(T, FROM, expr)                         \
  _Pragma("omp simd") for (size_t i = 0; i < n; i++) { \
    const T g = gy[i], v = FROM[i];                    \
    (void)g;                                           \
    gx[i] = (expr);                                    \
  }                                                    \
  break

#define UNARY_BWD(T, S, POW)                                                                                 \
  static void pow_bwd_##S(T *gx, const T *gy, const T *x, T p, size_t n) {                                   \
    int known = p == (T)0 ? 0 : p == (T)1 ? 1 : p == (T)2 ? 2 : p == (T)3 ? 3 : -1;                          \
    switch (known) {                                                                                         \
      case 0:                                                                                                \
        MAP_BWD(T, x, g *v *(T)0);                                                                           \
      case 1:                                                                                                \
        MAP_BWD(T, gy, v);                                                                                   \
      case 2:                                                                                                \
        MAP_BWD(T, x, g *(T)2 * v);                                                                          \
      case 3:                                                                                                \
        MAP_BWD(T, x, g *(T)3 * v * v);                                                                      \
      default:                                                                                               \
        MAP_BWD(T, x, g *p *POW(v, p - (T)1));                                                               \
    }                                                                                                        \
  }                                                                                                          \
  static void unary_bwd_##S(zt_unary fn, T *gx, const T *gy, const T *x, const T *y, T p0, T p1, size_t n) { \
    switch (fn) {                                                                                            \
      case ZT_UNARY_NEG:                                                                                     \
        MAP_BWD(T, gy, -v);                                                                                  \
      case ZT_UNARY_EXP:                                                                                     \
        MAP_BWD(T, y, g *v);                                                                                 \
      case ZT_UNARY_LOG:                                                                                     \
        MAP_BWD(T, x, g / v);                                                                                \
      case ZT_UNARY_SQRT:                                                                                    \
        MAP_BWD(T, y, g *(T)0.5 / v);                                                                        \
      case ZT_UNARY_RSQRT:                                                                                   \
        MAP_BWD(T, y, g *(T)-0.5 * v * v * v);                                                               \
      case ZT_UNARY_TANH:                                                                                    \
        MAP_BWD(T, y, g *((T)1 - v) * ((T)1 + v));                                                           \
      case ZT_UNARY_SIGMOID:                                                                                 \
        MAP_BWD(T, y, g *v *((T)1 - v));                                                                     \
      case ZT_UNARY_RELU:                                                                                    \
        MAP_BWD(T, y, v <= (T)0 ? (T)0 : g);                                                                 \
      case ZT_UNARY_GELU:                                                                                    \
        MAP_BWD(T, x, g *zt_gelu_grad##S(v));                                                                \
      case ZT_UNARY_GELU_TANH:                                                                               \
        MAP_BWD(T, x, g *zt_gelu_tanh_grad##S(v));                                                           \
      case ZT_UNARY_SILU:                                                                                    \
        MAP_BWD(T, x, g *zt_silu_grad##S(v));                                                                \
      case ZT_UNARY_CLAMP:                                                                                   \
        MAP_BWD(T, x, v<p0 || v> p1 ? (T)0 : g);                                                             \
      case ZT_UNARY_AFFINE:                                                                                  \
        MAP_BWD(T, gy, p0 *v);                                                                               \
      case ZT_UNARY_POWS:                                                                                    \
        pow_bwd_##S(gx, gy, x, p0, n);                                                                       \
        break;                                                                                               \
      case ZT_N_UNARY:                                                                                       \
        break;                                                                                               \
    }                                                                                                        \
  }
UNARY_BWD(float, f, powf)
UNARY_BWD(double, d, pow)

static void bwd_block(zt_unary fn, zt_dtype t, void *gx, const void *gy, const void *x, const void *y, float p0,
                      float p1, size_t at, size_t n) {
  float g_in[ZT_BLOCK], x_in[ZT_BLOCK], y_in[ZT_BLOCK], out[ZT_BLOCK];
  const float *g = zt_block_in(t, gy, at, n, g_in);
  const float *fx = x ? zt_block_in(t, x, at, n, x_in) : NULL, *fy = y ? zt_block_in(t, y, at, n, y_in) : NULL;
  float *to = zt_block_out(t, gx, at, out);
  unary_bwd_f(fn, to, g, fx, fy, p0, p1, n);
  zt_block_done(t, gx, at, n, to);
}

zt_status ZT_K(unary_bwd)(zt_stream *s, zt_unary fn, zt_dtype t, void *gx, const void *gy, const void *x, const void *y,
                          double p0, double p1, size_t count) {
  (void)s;
  if (!zt_dtype_is_float(t)) return zt_fail(ZT_DTYPE, "unary functions have no gradient in %s", zt_dtype_name(t));
  size_t n_blocks = zt_n_parts(count, ZT_BLOCK);
#pragma omp parallel for schedule(static) if (zt_worth_threads(count))
  for (size_t block = 0; block < n_blocks; block++) {
    size_t at = block * ZT_BLOCK, n = zt_smaller(count - at, ZT_BLOCK);
    if (t == ZT_F64)
      unary_bwd_d(fn, (double *)gx + at, (const double *)gy + at, x ? (const double *)x + at : NULL,
                  y ? (const double *)y + at : NULL, p0, p1, n);
    else
      bwd_block(fn, t, gx, gy, x, y, (float)p0, (float)p1, at, n);
  }
  return ZT_OK;
}
