/* optim.c - one step of Adam, AdamW, SGD and Lion over a span. Memory bound.
** Each operation rounds once and none is fused, in the order in which PyTorch's single-tensor optimizers compute, so
** that every instruction set and every device gives the same bits: constants are made in double and rounded once. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/parallel.h"

/* 'n' gradients in the state's dtype: memory itself where it has that dtype, else converted into 'buffer'. */
static inline const float *gradients_f(zt_dtype t, const void *grad, size_t at, size_t n, float buffer[ZT_BLOCK]) {
  if (t != ZT_F64) return zt_block_in(t, grad, at, n, buffer);
  for (size_t i = 0; i < n; i++) buffer[i] = (float)((const double *)grad)[at + i];
  return buffer;
}
static inline const double *gradients_d(zt_dtype t, const void *grad, size_t at, size_t n, double buffer[ZT_BLOCK]) {
  if (t == ZT_F64) return (const double *)grad + at;
  float floats[ZT_BLOCK];
  const float *g = zt_block_in(t, grad, at, n, floats);
  for (size_t i = 0; i < n; i++) buffer[i] = (double)g[i];
  return buffer;
}

/* The loops over a block. With weight decay 0 neither 'decay' nor 'l2' changes a value.
** adam: torch.Tensor.lerp_ has two forms, one for each half of the weights, so that both ends are exact. */
#define STEPS(T, S)                                                                                                 \
  static void adam_##S(T *restrict p, T *restrict m, T *restrict v, const T *restrict grad, const zt_optim_step *c, \
                       size_t n) {                                                                                  \
    const T scale = (T)c->grad_scale, decay = (T)(c->decoupled ? 1.0 - c->lr * c->weight_decay : 1.0);              \
    const T l2 = (T)(c->decoupled ? 0.0 : c->weight_decay), w = (T)(1.0 - c->beta1), rest = (T)c->beta1;            \
    const T beta2 = (T)c->beta2, w2 = (T)(1.0 - c->beta2), bias2 = (T)c->bias2_sqrt, eps = (T)c->eps;               \
    const T step = (T)-c->step_size;                                                                                \
    for (size_t i = 0; i < n; i++) {                                                                                \
      T x = p[i] * decay, g = grad[i] * scale + x * l2, d = g - m[i];                                               \
      T mean = c->beta1 > 0.5 ? m[i] + w * d : g - d * rest;                                                        \
      T square = v[i] * beta2 + (w2 * g) * g, root = sqrt##S(square) / bias2 + eps;                                 \
      m[i] = mean, v[i] = square, p[i] = x + step * mean / root;                                                    \
    }                                                                                                               \
  }                                                                                                                 \
  static void sgd_##S(T *restrict p, T *restrict m, const T *restrict grad, const zt_optim_step *c, size_t n) {     \
    const T scale = (T)c->grad_scale, l2 = (T)c->weight_decay, step = (T)-c->lr, momentum = (T)c->momentum;         \
    const T keep = c->first ? (T)0 : momentum, take = c->first ? (T)1 : (T)(1.0 - c->dampening);                    \
    for (size_t i = 0; i < n && !m; i++) p[i] = p[i] + step * (grad[i] * scale + p[i] * l2);                        \
    if (!m) return;                                                                                                 \
    if (c->first) memset(m, 0, n * sizeof *m); /* its bytes mean nothing yet */                                     \
    for (size_t i = 0; i < n; i++) {                                                                                \
      T g = grad[i] * scale + p[i] * l2, mean = m[i] * keep + g * take;                                             \
      m[i] = mean, p[i] = p[i] + step * (c->nesterov ? g + momentum * mean : mean);                                 \
    }                                                                                                               \
  }                                                                                                                 \
  static void lion_##S(T *restrict p, T *restrict m, const T *restrict grad, const zt_optim_step *c, size_t n) {    \
    const T scale = (T)c->grad_scale, decay = (T)(1.0 - c->lr * c->weight_decay), step = (T)-c->lr;                 \
    const T beta1 = (T)c->beta1, w1 = (T)(1.0 - c->beta1), beta2 = (T)c->beta2, w2 = (T)(1.0 - c->beta2);           \
    for (size_t i = 0; i < n; i++) {                                                                                \
      T g = grad[i] * scale, d = m[i] * beta1 + g * w1;                                                             \
      T sign = d > (T)0 ? (T)1 : d < (T)0 ? (T)-1 : d; /* 0 and NaN stay */                                         \
      p[i] = p[i] * decay + step * sign, m[i] = m[i] * beta2 + g * w2;                                              \
    }                                                                                                               \
  }
#define sqrtd sqrt
STEPS(float, f)
STEPS(double, d)

/* Runs CALL for each block: 'at' is its first element, 'n' its length, 'g' its gradients. */
#define FOR_BLOCKS(T, S, CALL)                                                                                      \
  _Pragma("omp parallel for schedule(static) if (zt_worth_threads(count))") for (size_t part = 0;                   \
                                                                                 part < zt_n_parts(count, ZT_PART); \
                                                                                 part++) {                          \
    size_t end = zt_part_end(part, ZT_PART, count);                                                                 \
    for (size_t at = part * ZT_PART; at < end; at += ZT_BLOCK) {                                                    \
      T buffer[ZT_BLOCK];                                                                                           \
      size_t n = zt_smaller(ZT_BLOCK, end - at);                                                                    \
      const T *g = gradients_##S(tg, grad, at, n, buffer);                                                          \
      CALL;                                                                                                         \
    }                                                                                                               \
  }

zt_status ZT_K(optim_adam)(zt_stream *s, zt_dtype state, zt_dtype tg, void *p, void *m, void *v, const void *grad,
                           const zt_optim_step *c, size_t count) {
  (void)s;
  if (state == ZT_F64)
    FOR_BLOCKS(double, d, adam_d((double *)p + at, (double *)m + at, (double *)v + at, g, c, n))
  else
    FOR_BLOCKS(float, f, adam_f((float *)p + at, (float *)m + at, (float *)v + at, g, c, n))
  return ZT_OK;
}

zt_status ZT_K(optim_sgd)(zt_stream *s, zt_dtype state, zt_dtype tg, void *p, void *m, const void *grad,
                          const zt_optim_step *c, size_t count) {
  (void)s;
  if (state == ZT_F64)
    FOR_BLOCKS(double, d, sgd_d((double *)p + at, m ? (double *)m + at : NULL, g, c, n))
  else
    FOR_BLOCKS(float, f, sgd_f((float *)p + at, m ? (float *)m + at : NULL, g, c, n))
  return ZT_OK;
}

zt_status ZT_K(optim_lion)(zt_stream *s, zt_dtype state, zt_dtype tg, void *p, void *m, const void *grad,
                           const zt_optim_step *c, size_t count) {
  (void)s;
  if (state == ZT_F64)
    FOR_BLOCKS(double, d, lion_d((double *)p + at, (double *)m + at, g, c, n))
  else
    FOR_BLOCKS(float, f, lion_f((float *)p + at, (float *)m + at, g, c, n))
  return ZT_OK;
}
