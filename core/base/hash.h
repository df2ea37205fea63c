/* hash.h - a checksum of bytes, fast and not cryptographic: it finds accidents, not attackers. A change within 8 bytes that
** start at a multiple of 8 is always found, so every flipped bit. */
#ifndef zt_hash_h
#define zt_hash_h

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "core/base/rng.h"

/* Takes 8 bytes into a hash. For one hash, other bytes give another; the second product spreads the high bits of the first. */
static inline uint64_t zti_hash_word(uint64_t hash, const unsigned char *p) {
  uint64_t word;
  memcpy(&word, p, sizeof word);
  hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
  return (hash << 31 | hash >> 33) * 0xbf58476d1ce4e5b9u;
}

/* Of 'nbytes' bytes, given the hash of what came before (or any seed). Other cuts of the same bytes give other hashes. Four
** hashes go side by side, as a product has to be waited for. */
static inline uint64_t zt_hash_bytes(uint64_t hash, const void *data, size_t nbytes) {
  enum { N_LANES = 4, WORD = 8 };
  const unsigned char *p = (const unsigned char *)data;
  uint64_t lanes[N_LANES], tail = 0;
  hash = zt_rng_mix(hash, nbytes);
  for (uint64_t i = 0; i < N_LANES; i++) lanes[i] = zt_rng_mix(hash, i);
  for (; nbytes >= N_LANES * WORD; p += N_LANES * WORD, nbytes -= N_LANES * WORD)
    for (int i = 0; i < N_LANES; i++) lanes[i] = zti_hash_word(lanes[i], p + i * WORD);
  hash = lanes[0];
  for (int i = 1; i < N_LANES; i++) hash = zt_rng_mix(hash, lanes[i]);
  for (; nbytes >= WORD; p += WORD, nbytes -= WORD) hash = zti_hash_word(hash, p);
  if (nbytes) memcpy(&tail, p, nbytes);
  return zt_rng_mix(hash, tail);
}

#endif
