/* vmath.h - elementary functions and activations, written so that the compiler vectorizes loops over them: no calls,
** no branches, no tables. Suffix f: float, within 2.5 ulp, right at 0, infinities, NaN and for denormal results.
** Suffix d: double, from libm. So a loop body that is a macro over types pastes f or d: zt_exp##f(x).
** Polynomials are minimax fits (Remez), made in 50 digits and rounded to float. */
#ifndef zt_vmath_h
#define zt_vmath_h

#include <math.h>
#include <stdint.h>

/* One instruction where the target has it; elsewhere fmaf is a slow call, and two roundings do. */
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
#define ZT_FMA(a, b, c) fmaf(a, b, c)
#else
#define ZT_FMA(a, b, c) ((a) * (b) + (c))
#endif

static inline uint32_t zt_float_bits(float x) {
  union {
    float f;
    uint32_t u;
  } v = {x};
  return v.u;
}
static inline float zt_bits_float(uint32_t u) {
  union {
    uint32_t u;
    float f;
  } v = {u};
  return v.f;
}
/* 2^n, n in [-126, 127]. */
static inline float zt_exp2if(int32_t n) { return zt_bits_float((uint32_t)(n + 127) << 23); }
static inline float zt_absf(float x) { return fabsf(x); }
/* NaN stays. */
static inline float zt_clipf(float x, float low, float high) {
  x = x < low ? low : x;
  return x > high ? high : x;
}

/* e^x = 2^n e^r: returns e^r - 1, |r| <= log(2) / 2. x in [-150, 150], or NaN. Adding 1.5 * 2^23 rounds to an integer
** and leaves it in the low bits. log(2) is taken off in two parts; the first has few bits, so its product is exact. */
static inline float zt_expm1_reduced(float x, int32_t *n) {
  const float magic = 12582912.0f;
  float shifted = ZT_FMA(x, 1.44269504f, magic), k = shifted - magic;
  *n = (int32_t)(zt_float_bits(shifted) - zt_float_bits(magic));
  float r = ZT_FMA(k, -0.693359375f, x);
  r = ZT_FMA(k, 2.12194440e-4f, r);
  float q = ZT_FMA(1.394216307e-3f, r, 8.363776149e-3f);
  q = ZT_FMA(q, r, 4.166636343e-2f);
  q = ZT_FMA(q, r, 1.666657336e-1f);
  q = ZT_FMA(q, r, 5.000000029e-1f);
  return ZT_FMA(q, r * r, r);
}

/* Two factors scale, so that results overflow and underflow where they should. */
static inline float zt_expf(float x) {
  int32_t n;
  float p = zt_expm1_reduced(zt_clipf(x, -104.0f, 89.0f), &n) + 1.0f;
  int32_t half = n >> 1;
  return p * zt_exp2if(half) * zt_exp2if(n - half);
}

/* (e^2a - 1) / (e^2a + 1), a = |x|; the numerator keeps its digits near 0. */
static inline float zt_tanhf(float x) {
  int32_t n;
  float a = zt_clipf(zt_absf(x), 0.0f, 10.0f), p = zt_expm1_reduced(2.0f * a, &n), scale = zt_exp2if(n);
  float e = ZT_FMA(scale, p, scale - 1.0f);
  return copysignf(e / (e + 2.0f), x);
}

/* |x| < 0.93: x + x P(x^2). Above: 1 - exp(Q(|x|)), Q a fit of log(erfc). */
static inline float zt_erff(float x) {
  float a = zt_clipf(zt_absf(x), 0.0f, 4.0f), s = x * x;
  float p = ZT_FMA(8.280364504e-5f, s, -8.121877224e-4f);
  p = ZT_FMA(p, s, 5.199246529e-3f);
  p = ZT_FMA(p, s, -2.685870632e-2f);
  p = ZT_FMA(p, s, 1.12836837e-1f);
  p = ZT_FMA(p, s, -3.761263303e-1f);
  p = ZT_FMA(p, s, 1.283791666e-1f);
  float q = ZT_FMA(-1.716131938e-5f, a, 3.820244923e-4f);
  q = ZT_FMA(q, a, -3.883176278e-3f);
  q = ZT_FMA(q, a, 2.427566974e-2f);
  q = ZT_FMA(q, a, -1.068528734e-1f);
  q = ZT_FMA(q, a, -6.34742557e-1f);
  q = ZT_FMA(q, a, -1.128782818f);
  q = ZT_FMA(q, a, 1.538921585e-5f);
  float near = ZT_FMA(p, x, x), far = copysignf(1.0f - zt_expf(q), x);
  return a < 0.93f ? near : far;
}

/* x = m 2^k, m in [sqrt(1/2), sqrt(2)): k log(2) + log(m). Denormals are scaled up first. */
static inline float zt_logf(float x) {
  float tiny = x < 0x1p-126f ? 1.0f : 0.0f;
  uint32_t u = zt_float_bits(tiny != 0.0f ? x * 0x1p25f : x) - 0x3f3504f3u;
  float k = (float)((int32_t)u >> 23) - 25.0f * tiny;
  float f = zt_bits_float((u & 0x7fffffu) + 0x3f3504f3u) - 1.0f, s = f * f;
  float p = ZT_FMA(6.916955675e-2f, f, -1.181132839e-1f);
  p = ZT_FMA(p, f, 1.188332371e-1f);
  p = ZT_FMA(p, f, -1.238156464e-1f);
  p = ZT_FMA(p, f, 1.421701341e-1f);
  p = ZT_FMA(p, f, -1.666935019e-1f);
  p = ZT_FMA(p, f, 2.000230441e-1f);
  p = ZT_FMA(p, f, -2.499998573e-1f);
  p = ZT_FMA(p, f, 3.333330941e-1f);
  float y = ZT_FMA(p * f, s, k * -2.12194440e-4f);
  y = ZT_FMA(-0.5f, s, y) + f;
  y = ZT_FMA(k, 0.693359375f, y);
  y = x < 0.0f ? NAN : x == 0.0f ? -INFINITY : y;
  return x < INFINITY ? y : x; /* infinity and NaN stay */
}

static inline double zt_expd(double x) { return exp(x); }
static inline double zt_tanhd(double x) { return tanh(x); }
static inline double zt_erfd(double x) { return erf(x); }
static inline double zt_logd(double x) { return log(x); }
static inline double zt_absd(double x) { return fabs(x); }
static inline double zt_clipd(double x, double low, double high) {
  x = x < low ? low : x;
  return x > high ? high : x;
}

/* The sigmoid and its slope s (1 - s), from the exponential of -|x| alone: neither tail overflows or cancels. */
#define ZT_SIGMOIDS(T, S)                                  \
  static inline T zt_sigmoid##S(T x) {                     \
    T e = zt_exp##S(-zt_abs##S(x));                        \
    return (x < (T)0 ? e : (T)1) / ((T)1 + e);             \
  }                                                        \
  static inline T zt_sigmoid_slope##S(T x) {               \
    T e = zt_exp##S(-zt_abs##S(x)), d = (T)1 / ((T)1 + e); \
    return e * d * d;                                      \
  }
ZT_SIGMOIDS(float, f)
ZT_SIGMOIDS(double, d)

/* Activations and their derivatives, for T with suffix S.
** gelu: x Phi(x), Phi the normal distribution. gelu_tanh: Hendrycks & Gimpel's approximation (arXiv 1606.08415),
** 0.5 x (1 + tanh(u)) = x sigmoid(2u), u = sqrt(2 / pi) (x + 0.044715 x^3). silu: x sigmoid(x). The derivative of
** gelu_tanh clips x, where the sigmoid is 0 or 1 anyhow, so that x^2 stays finite. */
#define ZT_ACTIVATIONS(T, S)                                                                                 \
  static inline T zt_relu##S(T x) { return x < (T)0 ? (T)0 : x; } /* NaN stays */                            \
  static inline T zt_gelu##S(T x) { return (T)0.5 * x * ((T)1 + zt_erf##S(x * (T)0.70710678118654752440)); } \
  static inline T zt_gelu_grad##S(T x) {                                                                     \
    T density = (T)0.39894228040143267794 * zt_exp##S((T)-0.5 * x * x);                                      \
    return (T)0.5 * ((T)1 + zt_erf##S(x * (T)0.70710678118654752440)) + x * density;                         \
  }                                                                                                          \
  static inline T zt_gelu_tanh##S(T x) {                                                                     \
    return x * zt_sigmoid##S((T)1.59576912160573071176 * (x + (T)0.044715 * x * x * x));                     \
  }                                                                                                          \
  static inline T zt_gelu_tanh_grad##S(T x) {                                                                \
    T z = zt_clip##S(x, (T)-100, (T)100), u = (T)1.59576912160573071176 * (z + (T)0.044715 * z * z * z);     \
    T du = (T)1.59576912160573071176 * ((T)1 + (T)0.134145 * z * z);                                         \
    return zt_sigmoid##S(u) + z * du * zt_sigmoid_slope##S(u);                                               \
  }                                                                                                          \
  static inline T zt_silu##S(T x) { return x * zt_sigmoid##S(x); }                                           \
  static inline T zt_silu_grad##S(T x) { return zt_sigmoid##S(x) + x * zt_sigmoid_slope##S(x); }
ZT_ACTIVATIONS(float, f)
ZT_ACTIVATIONS(double, d)

#endif
