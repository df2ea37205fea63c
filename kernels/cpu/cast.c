/* cast.c - between all dtypes. 16-bit floats go through float32. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/loop.h"

/* Towards zero; what int64 cannot hold, NaN too, becomes its minimum. */
static inline int64_t truncated(double v) { return v >= -0x1p63 && v < 0x1p63 ? (int64_t)v : INT64_MIN; }

/* From a real (R) or an integer (I) to: */
#define R_TO_F32(v) (float)(v)
#define R_TO_F64(v) (double)(v)
#define R_TO_I64(v) truncated((double)(v))
#define R_TO_I32(v) (int32_t) truncated((double)(v))
#define R_TO_U8(v) (uint8_t) truncated((double)(v))
#define I_TO_F32(v) (float)(v)
#define I_TO_F64(v) (double)(v)
#define I_TO_I64(v) (int64_t)(v)
#define I_TO_I32(v) (int32_t)(v)
#define I_TO_U8(v) (uint8_t)(v)

/* One function for each source type, with a loop for each destination. */
#define CAST_TO(TO, TY, TX, KIND)                                                     \
  case ZT_##TO:                                                                       \
    for (size_t i = 0; i < n; i++) ((TY *)y)[i] = KIND##_TO_##TO(((const TX *)x)[i]); \
    break;
#define CAST_FROM(FROM, TX, KIND)                                          \
  static void cast_##FROM(zt_dtype ty, void *y, const void *x, size_t n) { \
    switch (ty) {                                                          \
      CAST_TO(F32, float, TX, KIND)                                        \
      CAST_TO(F64, double, TX, KIND)                                       \
      CAST_TO(I64, int64_t, TX, KIND)                                      \
      CAST_TO(I32, int32_t, TX, KIND)                                      \
      CAST_TO(U8, uint8_t, TX, KIND)                                       \
      default:                                                             \
        break;                                                             \
    }                                                                      \
  }
CAST_FROM(F32, float, R)
CAST_FROM(F64, double, R)
CAST_FROM(I64, int64_t, I)
CAST_FROM(I32, int32_t, I)
CAST_FROM(U8, uint8_t, I)

static void cast_plain(zt_dtype ty, zt_dtype tx, void *y, const void *x, size_t n) {
  switch (tx) {
    case ZT_F32:
      cast_F32(ty, y, x, n);
      break;
    case ZT_F64:
      cast_F64(ty, y, x, n);
      break;
    case ZT_I64:
      cast_I64(ty, y, x, n);
      break;
    case ZT_I32:
      cast_I32(ty, y, x, n);
      break;
    default:
      cast_U8(ty, y, x, n);
  }
}

static void cast_block(zt_dtype ty, zt_dtype tx, void *y, const void *x, size_t n) {
  zt_block_buffer in, out;
  const void *from = zt_row_in(tx, x, 1, n, &in);
  void *to = zt_row_out(ty, y, 1, &out);
  cast_plain(zt_compute_dtype(ty), zt_compute_dtype(tx), to, from, n);
  zt_row_done(ty, y, 1, n, &out);
}

zt_status ZT_K(cast)(zt_stream *s, zt_dtype ty, zt_dtype tx, void *y, const void *x, size_t count) {
  (void)s;
  size_t ny = zt_dtype_nbytes(ty), nx = zt_dtype_nbytes(tx), n_blocks = zt_n_parts(count, ZT_BLOCK);
#pragma omp parallel for schedule(static) if (zt_worth_threads(count))
  for (size_t block = 0; block < n_blocks; block++) {
    size_t at = block * ZT_BLOCK;
    cast_block(ty, tx, (char *)y + at * ny, (const char *)x + at * nx, zt_smaller(count - at, ZT_BLOCK));
  }
  return ZT_OK;
}
