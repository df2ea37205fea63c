/* dtype.h - element types. One list; everything that knows them is made from it. */
#ifndef zt_dtype_h
#define zt_dtype_h

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/err.h"

/* X(constant, name in Lua, name in safetensors, bytes of an element, is floating point) */
#define ZT_DTYPES(X)                   \
  X(F32, "float32", "F32", 4, true)    \
  X(F64, "float64", "F64", 8, true)    \
  X(BF16, "bfloat16", "BF16", 2, true) \
  X(F16, "float16", "F16", 2, true)    \
  X(I64, "int64", "I64", 8, false)     \
  X(I32, "int32", "I32", 4, false)     \
  X(U8, "uint8", "U8", 1, false)

typedef enum zt_dtype {
#define ZT_DTYPE_ENUM(id, name, st_name, nbytes, is_float) ZT_##id,
  ZT_DTYPES(ZT_DTYPE_ENUM)
#undef ZT_DTYPE_ENUM
      ZT_N_DTYPES
} zt_dtype;

ZT_API const char *zt_dtype_name(zt_dtype t);
ZT_API size_t zt_dtype_nbytes(zt_dtype t);
ZT_API bool zt_dtype_is_float(zt_dtype t);

/* The dtype in which kernels compute statistics of 't' (means, log-sum-exps): float64 for float64, else float32. */
ZT_API zt_dtype zt_dtype_stat(zt_dtype t);

/* By Lua's name ("float32"); false where there is none. */
ZT_API bool zt_dtype_from_name(const char *name, zt_dtype *out);

/* 16-bit floats as storage. bfloat16: round to nearest even, one quiet NaN. float16: IEEE, round to nearest even. */
static inline float zt_bf16_to_f32(uint16_t h) {
  union {
    uint32_t u;
    float f;
  } v = {(uint32_t)h << 16};
  return v.f;
}
static inline uint16_t zt_f32_to_bf16(float f) {
  union {
    float f;
    uint32_t u;
  } v = {f};
  uint32_t rounded = (v.u + 0x7fffu + ((v.u >> 16) & 1u)) >> 16;
  return (v.u & 0x7fffffffu) > 0x7f800000u ? (uint16_t)0x7fc0 : (uint16_t)rounded;
}
/* Exact. The multiplication by 2^112 moves the exponent's bias, denormals included. */
static inline float zt_f16_to_f32(uint16_t h) {
  union {
    uint32_t u;
    float f;
  } v = {((uint32_t)h & 0x7fffu) << 13}, infinite = {0x7f800000u};
  v.f *= 0x1p112f;
  v.u |= v.f >= 65536.0f ? infinite.u : 0;
  v.u |= ((uint32_t)h & 0x8000u) << 16;
  return v.f;
}
static inline uint16_t zt_f32_to_f16(float f) {
  union {
    float f;
    uint32_t u;
  } v = {f}, magic = {0.5f};
  uint32_t sign = (v.u >> 16) & 0x8000u, out;
  v.u &= 0x7fffffffu;
  if (v.u >= 0x47800000u) { /* 65536 and more, infinity, NaN */
    out = v.u > 0x7f800000u ? 0x7e00u : 0x7c00u;
  } else if (v.u < 0x38800000u) { /* becomes a float16 denormal: the FPU rounds */
    v.f += magic.f;
    out = v.u - magic.u;
  } else {
    uint32_t odd = (v.u >> 13) & 1u;
    out = (v.u - 0x38000000u + 0xfffu + odd) >> 13; /* may carry into infinity, as it should */
  }
  return (uint16_t)(out | sign);
}

#endif
