/* dropout.c - dropout and random fills. The words of an element are those that core/base/rng.h and kernels.h name, so
** neither threads nor instruction sets change a draw. Compute bound: ten rounds of Philox cost more than the memory. */
#include <math.h>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/philox.h"
#include "kernels/cpu/vmath.h"

/* --- dropout: a group of words at a time */
/* simd: y may be x, and is nothing else that overlaps it. */
#define DROP(T, S)                                                                                        \
  static void drop_##S(T *y, const T *x, const uint32_t *word, uint32_t last_kept, T scale, size_t n) {   \
    _Pragma("omp simd") for (size_t i = 0; i < n; i++) y[i] = word[i] <= last_kept ? x[i] * scale : (T)0; \
  }
DROP(float, f)
DROP(double, d)

typedef struct dropout_call {
  zt_dtype t;
  void *y;
  const void *x;
  uint32_t last_kept; /* the highest word that keeps an element */
  double scale;
  const zt_rng_key *key;
} dropout_call;

/* Elements at ... at + n - 1 of the memory, which are 'column' and on of a sample; column is a multiple of 4. */
static void drop_group(const dropout_call *d, uint64_t sample, uint64_t column, size_t at, size_t n) {
  uint32_t word[PHILOX_WORDS];
  float in[ZT_BLOCK], out[ZT_BLOCK];
  philox_group(word, d->key, sample, column / 4);
  if (d->t == ZT_F64) {
    drop_d((double *)d->y + at, (const double *)d->x + at, word, d->last_kept, d->scale, n);
    return;
  }
  const float *x = zt_block_in(d->t, d->x, at, n, in);
  float *y = zt_block_out(d->t, d->y, at, out);
  drop_f(y, x, word, d->last_kept, (float)d->scale, n);
  zt_block_done(d->t, d->y, at, n, y);
}

zt_status ZT_K(dropout)(zt_stream *s, zt_dtype t, void *y, const void *x, double p, const zt_rng_key *key, size_t rows,
                        size_t cols) {
  uint64_t threshold = zt_rng_keep_threshold(p);
  if (threshold == 0) return ZT_K(fill)(s, t, y, 0.0, rows * cols);
  const dropout_call d = {t, y, x, (uint32_t)(threshold - 1), 1.0 / (1.0 - p), key};
  size_t groups = zt_n_parts(cols, PHILOX_WORDS);
#pragma omp parallel for schedule(static) if (zt_worth_threads(rows * cols))
  for (size_t i = 0; i < rows * groups; i++) {
    size_t row = i / groups, column = i % groups * PHILOX_WORDS;
    drop_group(&d, key->first_sample + row, column, row * cols + column, zt_smaller(PHILOX_WORDS, cols - column));
  }
  return ZT_OK;
}

/* --- random fills: the whole span is one sample */
/* u in [0, 1) by all bits of the word for double, by its upper 24 for float. */
static inline float unit_f(uint32_t word) { return zt_rng_uniform(word); }
static inline double unit_d(uint32_t word) { return (double)word * 0x1p-32; }
/* u in (0, 1], so that its logarithm is finite. */
static inline float positive_unit_f(uint32_t word) { return (float)word * 0x1p-32f + 0x1p-33f; }
static inline double positive_unit_d(uint32_t word) { return (double)word * 0x1p-32 + 0x1p-33; }

/* sin and cos of 2 pi word / 2^32: the upper bits name the nearest quarter turn, the rest is an angle within pi / 4 of
** it, for which Taylor's polynomial is good to float's last place. */
static inline void turn_f(uint32_t word, float *sine, float *cosine) {
  uint32_t quarter = (word + 0x20000000u) >> 30;
  float a = (float)(int32_t)(word - (quarter << 30)) * 1.46291807926715968e-9f; /* 2 pi / 2^32 */
  float b = a * a;
  float s = a + a * b * (-1.66666667e-1f + b * (8.33333333e-3f + b * (-1.98412698e-4f + b * 2.75573192e-6f)));
  float c = 1.0f + b * (-0.5f + b * (4.16666667e-2f + b * (-1.38888889e-3f + b * 2.48015873e-5f)));
  float u = quarter & 1 ? c : s, v = quarter & 1 ? s : c;
  *sine = quarter & 2 ? -u : u;
  *cosine = (quarter + 1) & 2 ? -v : v;
}
static inline void turn_d(uint32_t word, double *sine, double *cosine) {
  double angle = (double)word * (6.283185307179586 * 0x1p-32);
  *sine = sin(angle), *cosine = cos(angle);
}

/* The loops over a group's words; both make all of them. Box-Muller: a pair of words is a radius and an angle. */
#define DRAW(T, S)                                                                         \
  static void uniform_##S(T *y, const uint32_t *word, double low, double high) {           \
    const T from = (T)low, width = (T)(high - low), below = nextafter##S((T)high, (T)low); \
    for (size_t i = 0; i < PHILOX_WORDS; i++) {                                            \
      T x = from + width * unit_##S(word[i]);                                              \
      y[i] = x < (T)high ? x : below; /* rounding may have reached it */                   \
    }                                                                                      \
  }                                                                                        \
  static void normal_##S(T *y, const uint32_t *word, double mean, double std) {            \
    for (size_t i = 0; i < PHILOX_WORDS; i += 2) {                                         \
      T sine, cosine, radius = sqrt##S((T)-2 * zt_log##S(positive_unit_##S(word[i])));     \
      turn_##S(word[i + 1], &sine, &cosine);                                               \
      y[i] = (T)mean + (T)std * (radius * cosine);                                         \
      y[i + 1] = (T)mean + (T)std * (radius * sine);                                       \
    }                                                                                      \
  }
#define sqrtd sqrt
#define nextafterd nextafter
DRAW(float, f)
DRAW(double, d)

typedef void (*draw_f)(float *y, const uint32_t *word, double a, double b);
typedef void (*draw_d)(double *y, const uint32_t *word, double a, double b);

static void draw_group(zt_dtype t, void *y, draw_f f, draw_d d, double a, double b, const uint32_t *word, size_t at,
                       size_t n) {
  if (t == ZT_F64) {
    double out[PHILOX_WORDS];
    d(out, word, a, b);
    memcpy((double *)y + at, out, n * sizeof *out);
  } else {
    float out[PHILOX_WORDS];
    f(out, word, a, b);
    zt_from_floats(t, (char *)y + at * zt_dtype_nbytes(t), out, n);
  }
}

static void draw(zt_dtype t, void *y, draw_f f, draw_d d, double a, double b, const zt_rng_key *key, size_t first,
                 size_t count) {
#pragma omp parallel for schedule(static) if (zt_worth_threads(count))
  for (size_t i = 0; i < zt_n_parts(count, PHILOX_WORDS); i++) {
    size_t at = i * PHILOX_WORDS;
    uint32_t word[PHILOX_WORDS];
    philox_group(word, key, key->first_sample, (first + at) / 4);
    draw_group(t, y, f, d, a, b, word, at, zt_smaller(PHILOX_WORDS, count - at));
  }
}

zt_status ZT_K(random_uniform)(zt_stream *s, zt_dtype t, void *y, double low, double high, const zt_rng_key *key,
                               size_t first, size_t count) {
  (void)s;
  draw(t, y, uniform_f, uniform_d, low, high, key, first, count);
  return ZT_OK;
}

zt_status ZT_K(random_normal)(zt_stream *s, zt_dtype t, void *y, double mean, double std, const zt_rng_key *key,
                              size_t first, size_t count) {
  (void)s;
  draw(t, y, normal_f, normal_d, mean, std, key, first, count);
  return ZT_OK;
}
