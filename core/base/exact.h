/* exact.h - a sum of float64 values that has no order: fixed point over the whole range of float64.
** Any grouping of the same values, over blocks, pages or ranks, gives the same bits. */
#ifndef zt_exact_h
#define zt_exact_h

#include <stdint.h>

#include "core/base/err.h"

/* Words of 32 bits in 64-bit slots, least significant first: 2^31 additions fit before a carry could overflow.
** The lowest bit weighs 2^-1074, the highest slot holds bits above 2^1023. */
enum { ZT_EXACT_WORDS = 70 };
typedef struct zt_exact {
  int64_t word[ZT_EXACT_WORDS];
  uint64_t n_added; /* since the last carry */
  uint64_t n_bad;   /* infinities and NaNs met: they are counted, not added */
} zt_exact;

ZT_API void zt_exact_clear(zt_exact *sum);
ZT_API void zt_exact_add(zt_exact *sum, double value);
ZT_API void zt_exact_merge(zt_exact *sum, const zt_exact *other);
/* The sum, rounded once; NaN where a bad value was met. */
ZT_API double zt_exact_value(const zt_exact *sum);

#endif
