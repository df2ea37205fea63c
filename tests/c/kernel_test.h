/* kernel_test.h - what tests of kernels share: the tables that this machine can run, random data of any dtype, outputs
** that are poisoned before and guarded around, and comparison with a reference in double.
**
**   static void test_fill(void **state) {
**     FOR_KERNELS(k) FOR_FLOATS(t) {
**       buffer y = output(t, count);
**       assert_int_equal(k->table->fill(&no_stream, t, y.data, 2.5, count), ZT_OK);
**       for (size_t i = 0; i < count; i++) expect_equal(&y, i, 2.5)  ;
**       buffer_free(&y);                               // checks the guards
**     }
**     covers_kernel("fill");
**   }
** Random numbers follow ZT_TEST_SEED, or the clock; the seed is printed when a test fails. */
#ifndef zt_kernel_test_h
#define zt_kernel_test_h

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "core/tensor/kernels.h"
#include "tests/c/coverage.h"

/* --- tables */
typedef struct kernel_set {
  const char *name;
  const zt_kernels *table; /* NULL ends a list */
} kernel_set;

extern const zt_kernels k_table_base;
#if defined(__x86_64__)
extern const zt_kernels k_table_v3, k_table_v4;
#endif

static inline const kernel_set *kernel_sets(void) {
  static kernel_set sets[4] = {{"base", &k_table_base}};
#if defined(__x86_64__)
  int n = 1;
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) sets[n++] = (kernel_set){"v3", &k_table_v3};
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    sets[n++] = (kernel_set){"v4", &k_table_v4};
#endif
  return sets;
}
#define FOR_KERNELS(k) for (const kernel_set *k = kernel_sets(); k->table; k++)
#define FOR_FLOATS(t) for (zt_dtype t = ZT_F32; t <= ZT_F16; t++)
#define FOR_DTYPES(t) for (zt_dtype t = ZT_F32; t < ZT_N_DTYPES; t++)
__attribute__((unused)) static zt_stream no_stream; /* CPU kernels run where they are called */

/* --- random numbers */
static inline uint64_t *random_state(void) {
  static uint64_t x;
  if (x == 0) {
    const char *given = getenv("ZT_TEST_SEED");
    x = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    fprintf(stderr, "ZT_TEST_SEED=%llu\n", (unsigned long long)x);
  }
  return &x;
}
static inline uint64_t random_bits(void) {
  uint64_t *x = random_state();
  *x += 1;
  return zt_rng_mix(*x, 0);
}
static inline double random_in(double low, double high) {
  return low + (high - low) * (double)(random_bits() >> 11) * 0x1p-53;
}
static inline size_t random_below(size_t limit) { return (size_t)(random_bits() % limit); }

/* --- elements of any dtype as double */
static inline double get(zt_dtype t, const void *data, size_t i) {
  switch (t) {
    case ZT_F32:
      return ((const float *)data)[i];
    case ZT_F64:
      return ((const double *)data)[i];
    case ZT_BF16:
      return zt_bf16_to_f32(((const uint16_t *)data)[i]);
    case ZT_F16:
      return zt_f16_to_f32(((const uint16_t *)data)[i]);
    case ZT_I64:
      return (double)((const int64_t *)data)[i];
    case ZT_I32:
      return ((const int32_t *)data)[i];
    default:
      return ((const uint8_t *)data)[i];
  }
}
static inline void put(zt_dtype t, void *data, size_t i, double value) {
  switch (t) {
    case ZT_F32:
      ((float *)data)[i] = (float)value;
      break;
    case ZT_F64:
      ((double *)data)[i] = value;
      break;
    case ZT_BF16:
      ((uint16_t *)data)[i] = zt_f32_to_bf16((float)value);
      break;
    case ZT_F16:
      ((uint16_t *)data)[i] = zt_f32_to_f16((float)value);
      break;
    case ZT_I64:
      ((int64_t *)data)[i] = (int64_t)value;
      break;
    case ZT_I32:
      ((int32_t *)data)[i] = (int32_t)value;
      break;
    default:
      ((uint8_t *)data)[i] = (uint8_t)(int64_t)value;
  }
}

/* --- buffers: 'data' is aligned to its element and to no more */
enum { GUARD = 128, POISON = 0xCB };
typedef struct buffer {
  zt_dtype dtype;
  size_t count, nbytes;
  unsigned char *block;
  void *data;
} buffer;

static inline buffer output(zt_dtype t, size_t count) {
  buffer b = {.dtype = t, .count = count, .nbytes = count * zt_dtype_nbytes(t)};
  b.block = malloc(b.nbytes + 3 * GUARD);
  assert_non_null(b.block);
  memset(b.block, POISON, b.nbytes + 3 * GUARD);
  size_t past = (uintptr_t)b.block % 64;
  b.data = b.block + GUARD - past + zt_dtype_nbytes(t);
  return b;
}
static inline void buffer_free(buffer *b) {
  unsigned char *data = b->data, *end = b->block + b->nbytes + 3 * GUARD;
  for (unsigned char *p = b->block; p < data; p++)
    if (*p != POISON) fail_msg("wrote %td bytes before the output", data - p);
  for (unsigned char *p = data + b->nbytes; p < end; p++)
    if (*p != POISON) fail_msg("wrote %td bytes behind the output", p - data - (ptrdiff_t)b->nbytes);
  free(b->block);
}
/* Uniform in [low, high), rounded to the dtype. */
static inline buffer input(zt_dtype t, size_t count, double low, double high) {
  buffer b = output(t, count);
  for (size_t i = 0; i < count; i++)
    put(t, b.data, i, zt_dtype_is_float(t) ? random_in(low, high) : floor(random_in(low, high)));
  return b;
}
/* Indices in [0, limit). */
static inline buffer input_index(size_t count, size_t limit) {
  buffer b = output(ZT_I64, count);
  for (size_t i = 0; i < count; i++) ((int64_t *)b.data)[i] = (int64_t)random_below(limit);
  return b;
}
static inline buffer copy_of(const buffer *from) {
  buffer b = output(from->dtype, from->count);
  memcpy(b.data, from->data, b.nbytes);
  return b;
}
static inline double at(const buffer *b, size_t i) { return get(b->dtype, b->data, i); }
/* The same value as the dtype holds it. */
static inline double rounded(zt_dtype t, double value) {
  uint64_t cell;
  put(t, &cell, 0, value);
  return get(t, &cell, 0);
}

/* --- comparison: |got - want| <= error * (|want| + scale). 'error' is half a unit of the output's last place, plus a
** few of the float32 (float64) arithmetic before it; 'scale' is the size of what was added up or cancelled. */
static inline double dtype_error(zt_dtype t) {
  switch (t) {
    case ZT_F32:
      return 0x1p-21;
    case ZT_F64:
      return 0x1p-49;
    case ZT_BF16:
      return 0x1p-8 + 0x1p-21;
    case ZT_F16:
      return 0x1p-11 + 0x1p-21;
    default:
      return 0;
  }
}
static inline bool is_close(zt_dtype t, double got, double want, double scale) {
  if (isnan(want)) return isnan(got);
  if (isinf(want) || got == want) return got == want;
  double tiny = t == ZT_F16 ? 0x1p-24 : t == ZT_F64 ? 0x1p-1074 : t == ZT_BF16 ? 0x1p-133 : 0x1p-149;
  return fabs(got - want) <= dtype_error(t) * (fabs(want) + scale) + (zt_dtype_is_float(t) ? tiny : 0);
}
static inline void check_close(const buffer *b, size_t i, double want, double scale, const char *file, int line) {
  double got = at(b, i);
  if (is_close(b->dtype, got, want, scale)) return;
  print_error("%s [%zu of %zu]: got %.17g, want %.17g (off by %.3g of its size)\n", zt_dtype_name(b->dtype), i,
              b->count, got, want, fabs(got - want) / (fabs(want) + scale));
  _fail(file, line);
}
#define expect_close(b, i, want, scale) check_close(b, i, want, scale, __FILE__, __LINE__)
/* Exactly; NaN is NaN. */
static inline void check_equal(const buffer *b, size_t i, double want, const char *file, int line) {
  double got = at(b, i);
  if (got == want || (isnan(got) && isnan(want))) return;
  print_error("%s [%zu of %zu]: got %.17g, want exactly %.17g\n", zt_dtype_name(b->dtype), i, b->count, got, want);
  _fail(file, line);
}
#define expect_equal(b, i, want) check_equal(b, i, want, __FILE__, __LINE__)
#define expect_ok(call)                                                                    \
  do {                                                                                     \
    zt_status expect_ok_ = (call);                                                         \
    if (expect_ok_ != ZT_OK) fail_msg("%s: %s", zt_status_text(expect_ok_), zt_message()); \
  } while (0)

#endif
