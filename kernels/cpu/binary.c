/* binary.c - two or three operands that broadcast: binary, compare, where. A row's operands come as contiguous blocks or
** single elements (kernels/cpu/loop.h), so each function is written for these two alone. */
#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/loop.h"

/* y[i] = expr of u = a[i] or a[0], v = b[i] or b[0]. y may be a or b. */
#define LOOP(T, expr)                                    \
  if (many_a && many_b) {                                \
    _Pragma("omp simd") for (size_t i = 0; i < n; i++) { \
      const T u = a[i], v = b[i];                        \
      y[i] = (expr);                                     \
    }                                                    \
  } else if (many_a) {                                   \
    const T v = b[0];                                    \
    _Pragma("omp simd") for (size_t i = 0; i < n; i++) { \
      const T u = a[i];                                  \
      y[i] = (expr);                                     \
    }                                                    \
  } else {                                               \
    const T u = a[0];                                    \
    _Pragma("omp simd") for (size_t i = 0; i < n; i++) { \
      const T v = b[many_b ? i : 0];                     \
      y[i] = (expr);                                     \
    }                                                    \
  }                                                      \
  break

#define BINARY(NAME, T, ADD, SUB, MUL, DIV, POW)                                                     \
  static void NAME(zt_binary fn, T *y, const T *a, bool many_a, const T *b, bool many_b, size_t n) { \
    switch (fn) {                                                                                    \
      case ZT_BINARY_ADD:                                                                            \
        LOOP(T, ADD(u, v));                                                                          \
      case ZT_BINARY_SUB:                                                                            \
        LOOP(T, SUB(u, v));                                                                          \
      case ZT_BINARY_MUL:                                                                            \
        LOOP(T, MUL(u, v));                                                                          \
      case ZT_BINARY_DIV:                                                                            \
        LOOP(T, DIV(u, v));                                                                          \
      case ZT_BINARY_POW:                                                                            \
        LOOP(T, POW(u, v));                                                                          \
      case ZT_N_BINARY:                                                                              \
        break;                                                                                       \
    }                                                                                                \
  }

#define PLUS(u, v) (u) + (v)
#define MINUS(u, v) (u) - (v)
#define TIMES(u, v) (u) * (v)
#define OVER(u, v) (u) / (v)
BINARY(binary_f32, float, PLUS, MINUS, TIMES, OVER, powf)
BINARY(binary_f64, double, PLUS, MINUS, TIMES, OVER, pow)

/* Integers wrap, so they are computed without sign. x / 0 is 0; so is x ^ -n, but for x = 1 and -1. */
#define INTEGER(T, U)                                                                        \
  static inline T add_##T(T u, T v) { return (T)((U)u + (U)v); }                             \
  static inline T sub_##T(T u, T v) { return (T)((U)u - (U)v); }                             \
  static inline T mul_##T(T u, T v) { return (T)((U)u * (U)v); }                             \
  static inline T div_##T(T u, T v) { return v == 0 ? 0 : v == -1 ? (T)(0 - (U)u) : u / v; } \
  static inline T pow_##T(T u, T v) {                                                        \
    U result = 1, power = (U)u;                                                              \
    if (v < 0) return u == 1 ? 1 : u == -1 ? (v % 2 ? -1 : 1) : 0;                           \
    for (; v; v >>= 1, power *= power)                                                       \
      if (v & 1) result *= power;                                                            \
    return (T)result;                                                                        \
  }                                                                                          \
  BINARY(binary_##T, T, add_##T, sub_##T, mul_##T, div_##T, pow_##T)
INTEGER(int64_t, uint64_t)
INTEGER(int32_t, uint32_t)

#define COMPARE(NAME, T)                                                                                    \
  static void NAME(zt_compare fn, uint8_t *y, const T *a, bool many_a, const T *b, bool many_b, size_t n) { \
    switch (fn) {                                                                                           \
      case ZT_COMPARE_EQ:                                                                                   \
        LOOP(T, u == v);                                                                                    \
      case ZT_COMPARE_NE:                                                                                   \
        LOOP(T, u != v);                                                                                    \
      case ZT_COMPARE_LT:                                                                                   \
        LOOP(T, u < v);                                                                                     \
      case ZT_COMPARE_LE:                                                                                   \
        LOOP(T, u <= v);                                                                                    \
      case ZT_COMPARE_GT:                                                                                   \
        LOOP(T, u > v);                                                                                     \
      case ZT_COMPARE_GE:                                                                                   \
        LOOP(T, u >= v);                                                                                    \
      case ZT_N_COMPARE:                                                                                    \
        break;                                                                                              \
    }                                                                                                       \
  }
COMPARE(compare_f32, float)
COMPARE(compare_f64, double)
COMPARE(compare_i64, int64_t)
COMPARE(compare_i32, int32_t)
COMPARE(compare_u8, uint8_t)

/* --- rows */
typedef struct row_args {
  int fn;
  zt_dtype t, ty; /* of the inputs, of the output */
  char *y;
  const char *a, *b;
  int64_t stride[3]; /* of y, a, b */
} row_args;

static void binary_block(const row_args *r, void *y, const void *a, const void *b, size_t n) {
  zt_binary fn = (zt_binary)r->fn;
  bool many_a = r->stride[1] != 0, many_b = r->stride[2] != 0;
  switch (r->t) {
    case ZT_F64:
      binary_f64(fn, y, a, many_a, b, many_b, n);
      break;
    case ZT_I64:
      binary_int64_t(fn, y, a, many_a, b, many_b, n);
      break;
    case ZT_I32:
      binary_int32_t(fn, y, a, many_a, b, many_b, n);
      break;
    default:
      binary_f32(fn, y, a, many_a, b, many_b, n);
  }
}

static void compare_block(const row_args *r, void *y, const void *a, const void *b, size_t n) {
  zt_compare fn = (zt_compare)r->fn;
  bool many_a = r->stride[1] != 0, many_b = r->stride[2] != 0;
  switch (r->t) {
    case ZT_F64:
      compare_f64(fn, y, a, many_a, b, many_b, n);
      break;
    case ZT_I64:
      compare_i64(fn, y, a, many_a, b, many_b, n);
      break;
    case ZT_I32:
      compare_i32(fn, y, a, many_a, b, many_b, n);
      break;
    case ZT_U8:
      compare_u8(fn, y, a, many_a, b, many_b, n);
      break;
    default:
      compare_f32(fn, y, a, many_a, b, many_b, n);
  }
}

/* Memory that can be computed on as it is needs no blocks. */
static bool is_direct(const row_args *r) {
  bool direct = !zt_is_half(r->t) && r->stride[0] == 1;
  for (int k = 1; k < 3; k++) direct = direct && (r->stride[k] == 0 || r->stride[k] == 1);
  return direct;
}

typedef void (*block_fn)(const row_args *r, void *y, const void *a, const void *b, size_t n);

static inline void run_row(const row_args *r, block_fn fn, const int64_t offset[3], size_t n) {
  int64_t size = (int64_t)zt_dtype_nbytes(r->t), size_y = (int64_t)zt_dtype_nbytes(r->ty);
  size_t step = is_direct(r) ? n : ZT_BLOCK;
  for (size_t at = 0; at < n; at += step) {
    zt_block_buffer y_block, a_block, b_block;
    size_t length = zt_smaller(n - at, step);
    void *y = r->y + (offset[0] + (int64_t)at * r->stride[0]) * size_y;
    const void *a = r->a + (offset[1] + (int64_t)at * r->stride[1]) * size;
    const void *b = r->b + (offset[2] + (int64_t)at * r->stride[2]) * size;
    void *out = zt_row_out(r->ty, y, r->stride[0], &y_block);
    fn(r, out, zt_row_in(r->t, a, r->stride[1], length, &a_block), zt_row_in(r->t, b, r->stride[2], length, &b_block),
       length);
    zt_row_done(r->ty, y, r->stride[0], length, &y_block);
  }
}

static void binary_row(const void *arg, const int64_t offset[4], size_t n) { run_row(arg, binary_block, offset, n); }
static void compare_row(const void *arg, const int64_t offset[4], size_t n) { run_row(arg, compare_block, offset, n); }

static row_args rows_of(int fn, zt_dtype ty, zt_dtype t, void *y, const void *a, const void *b, const zt_loop *loop) {
  row_args r = {.fn = fn, .t = t, .ty = ty, .y = y, .a = a, .b = b};
  for (int k = 0; k < 3; k++) r.stride[k] = zt_inner_stride(loop, k);
  return r;
}

zt_status ZT_K(binary)(zt_stream *s, zt_binary fn, zt_dtype t, void *y, const void *a, const void *b,
                       const zt_loop *loop) {
  (void)s;
  if (t == ZT_U8) return zt_fail(ZT_DTYPE, "binary functions do not take %s", zt_dtype_name(t));
  row_args r = rows_of((int)fn, t, t, y, a, b, loop);
  zt_loop_run(loop, binary_row, &r);
  return ZT_OK;
}

zt_status ZT_K(compare)(zt_stream *s, zt_compare fn, zt_dtype t, uint8_t *y, const void *a, const void *b,
                        const zt_loop *loop) {
  (void)s;
  row_args r = rows_of((int)fn, ZT_U8, t, y, a, b, loop);
  zt_loop_run(loop, compare_row, &r);
  return ZT_OK;
}

/* --- where: moves elements of a size, whatever they are */
typedef struct where_args {
  size_t nbytes;
  char *y;
  const uint8_t *cond;
  const char *a, *b;
  int64_t stride[4];
} where_args;

#define WHERE(T)                                                                                             \
  static void where_##T(T *y, const uint8_t *cond, const T *a, const T *b, const int64_t *sx, size_t n) {    \
    if (sx[0] == 1 && sx[1] == 1 && sx[2] == 1 && sx[3] == 1) {                                              \
      _Pragma("omp simd") for (size_t i = 0; i < n; i++) {                                                   \
        const T u = a[i], v = b[i];                                                                          \
        y[i] = cond[i] ? u : v;                                                                              \
      }                                                                                                      \
    } else {                                                                                                 \
      for (int64_t i = 0; i < (int64_t)n; i++) y[i * sx[0]] = cond[i * sx[1]] ? a[i * sx[2]] : b[i * sx[3]]; \
    }                                                                                                        \
  }
WHERE(uint8_t)
WHERE(uint16_t)
WHERE(uint32_t)
WHERE(uint64_t)

static void where_row(const void *arg, const int64_t offset[4], size_t n) {
  const where_args *w = arg;
  int64_t size = (int64_t)w->nbytes;
  void *y = w->y + offset[0] * size;
  const uint8_t *cond = w->cond + offset[1];
  const void *a = w->a + offset[2] * size, *b = w->b + offset[3] * size;
  switch (w->nbytes) {
    case 1:
      where_uint8_t(y, cond, a, b, w->stride, n);
      break;
    case 2:
      where_uint16_t(y, cond, a, b, w->stride, n);
      break;
    case 4:
      where_uint32_t(y, cond, a, b, w->stride, n);
      break;
    default:
      where_uint64_t(y, cond, a, b, w->stride, n);
  }
}

zt_status ZT_K(where)(zt_stream *s, zt_dtype t, void *y, const uint8_t *cond, const void *a, const void *b,
                      const zt_loop *loop) {
  (void)s;
  where_args w = {.nbytes = zt_dtype_nbytes(t), .y = y, .cond = cond, .a = a, .b = b};
  for (int k = 0; k < 4; k++) w.stride[k] = zt_inner_stride(loop, k);
  zt_loop_run(loop, where_row, &w);
  return ZT_OK;
}
