/* philox.h - the words of zt_rng_key in bulk. A group of blocks is computed side by side, so that the loops over it
** vectorize; the words are those of zt_rng_block. */
#ifndef zt_cpu_philox_h
#define zt_cpu_philox_h

#include <string.h>

#include "core/base/rng.h"

enum { PHILOX_BLOCKS = 32, PHILOX_WORDS = 4 * PHILOX_BLOCKS };

/* out = words 4 * block ... 4 * (block + PHILOX_BLOCKS) - 1 of a sample. */
static inline void philox_group(uint32_t out[PHILOX_WORDS], const zt_rng_key *key, uint64_t sample, uint64_t block) {
  for (uint64_t i = 0; i < PHILOX_BLOCKS; i++) {
    uint32_t counter[4] = {(uint32_t)(block + i), (uint32_t)((block + i) >> 32), (uint32_t)sample, key->call};
    zt_philox(key->seed_mix, counter, out + 4 * i);
  }
}

#endif
