/* hash.h - a checksum of bytes, fast and not cryptographic: it finds accidents, not attackers. */
#ifndef zt_hash_h
#define zt_hash_h

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "core/base/rng.h"

/* Of 'nbytes' bytes, given the hash of what came before (or any seed). Other cuts of the same bytes give other hashes. */
static inline uint64_t zt_hash_bytes(uint64_t hash, const void *data, size_t nbytes) {
  const unsigned char *p = (const unsigned char *)data;
  uint64_t word;
  hash = zt_rng_mix(hash, nbytes);
  for (; nbytes >= sizeof word; p += sizeof word, nbytes -= sizeof word) {
    memcpy(&word, p, sizeof word);
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 32;
  }
  word = 0;
  if (nbytes) memcpy(&word, p, nbytes);
  return zt_rng_mix(hash, word);
}

#endif
