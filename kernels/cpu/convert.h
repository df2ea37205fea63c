/* convert.h - how one kernel body serves float32, bfloat16 and float16: it works on blocks of float. zt_block_in gives
** 'n' elements as float (float32 memory itself, or converted into 'buffer'), zt_block_out says where results go, and
** zt_block_done brings them to memory. float64 has a body of its own, made by the same macro with T double.
**
**   float in[ZT_BLOCK], out[ZT_BLOCK];
**   const float *x = zt_block_in(t, px, at, n, in);
**   float *y = zt_block_out(t, py, at, out);
**   for (size_t i = 0; i < n; i++) y[i] = f(x[i]);
**   zt_block_done(t, py, at, n, y);
*/
#ifndef zt_convert_h
#define zt_convert_h

#include "core/base/dtype.h"

/* Elements of a block: a few of them stay in the first-level cache, and a multiple of every vector. */
enum { ZT_BLOCK = 512 };

/* Floats from and to memory of type t (float32, bfloat16, float16); x, y at their first element. */
static inline void zt_to_floats(zt_dtype t, float *y, const void *x, size_t count) {
  const uint16_t *half = x;
  if (t == ZT_BF16)
    for (size_t i = 0; i < count; i++) y[i] = zt_bf16_to_f32(half[i]);
  else if (t == ZT_F16)
    for (size_t i = 0; i < count; i++) y[i] = zt_f16_to_f32(half[i]);
  else
    for (size_t i = 0; i < count; i++) y[i] = ((const float *)x)[i];
}
static inline void zt_from_floats(zt_dtype t, void *y, const float *x, size_t count) {
  uint16_t *half = y;
  if (t == ZT_BF16)
    for (size_t i = 0; i < count; i++) half[i] = zt_f32_to_bf16(x[i]);
  else if (t == ZT_F16)
    for (size_t i = 0; i < count; i++) half[i] = zt_f32_to_f16(x[i]);
  else
    for (size_t i = 0; i < count; i++) ((float *)y)[i] = x[i];
}

static inline const float *zt_block_in(zt_dtype t, const void *x, size_t at, size_t n, float buffer[ZT_BLOCK]) {
  if (t == ZT_F32) return (const float *)x + at;
  zt_to_floats(t, buffer, (const uint16_t *)x + at, n);
  return buffer;
}
static inline float *zt_block_out(zt_dtype t, void *y, size_t at, float buffer[ZT_BLOCK]) {
  return t == ZT_F32 ? (float *)y + at : buffer;
}
static inline void zt_block_done(zt_dtype t, void *y, size_t at, size_t n, const float *block) {
  if (t != ZT_F32) zt_from_floats(t, (uint16_t *)y + at, block, n);
}

#endif
