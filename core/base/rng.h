/* rng.h - counter-based random numbers (Philox4x32-10, Salmon et al., SC'11).
** A number depends on its key and position alone, so recompute replays it and any layout draws the same. */
#ifndef zt_rng_h
#define zt_rng_h

#include <stdint.h>

#include "core/base/err.h"

/* Where a kernel's random numbers come from: element i of sample s draws word i % 4 of
** philox(key = mix(seed, step), counter = {lo(i / 4), hi(i / 4), lo(s), call}). */
typedef struct zt_rng_key {
  uint64_t seed_mix;     /* zt_rng_mix(seed, step): the Philox key */
  uint32_t call;         /* which random op within the step */
  uint64_t first_sample; /* global number of row 0; row r is sample first_sample + r */
} zt_rng_key;

/* Mixes two numbers into one key (SplitMix64's finalizer). */
static inline uint64_t zt_rng_mix(uint64_t a, uint64_t b) {
  uint64_t z = a + 0x9e3779b97f4a7c15u * (b + 1);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/* Ten rounds of Philox4x32. Inline so that loops over counters vectorize. */
static inline void zt_philox(uint64_t key, const uint32_t counter[4], uint32_t out[4]) {
  uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
  uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
  for (int round = 0; round < 10; round++) {
    uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
    c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
    c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
    c1 = (uint32_t)p1;
    c3 = (uint32_t)p0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

/* The four words of block 'block' (elements 4*block ... 4*block+3) of a sample. */
static inline void zt_rng_block(const zt_rng_key *key, uint64_t sample, uint64_t block, uint32_t out[4]) {
  uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), (uint32_t)sample, key->call};
  zt_philox(key->seed_mix, counter, out);
}

/* A word as a float in [0, 1), from its upper 24 bits. */
static inline float zt_rng_uniform(uint32_t word) { return (float)(word >> 8) * 0x1p-24f; }

/* Dropout keeps an element where its word is below this (p in [0, 1]): keep probability 1 - p to 2^-32. */
static inline uint64_t zt_rng_keep_threshold(double p) { return (uint64_t)((1.0 - p) * 4294967296.0); }

#endif
