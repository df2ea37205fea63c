/* table.h - the hash tables of core/text: bytes -> number and pair of ids -> number. Open addressing, linear probing, a
** power of two slots, at most half of them used. Neither removes. Lookups may run on several threads at once. */
#ifndef zt_table_h
#define zt_table_h

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "core/base/err.h"

#define ZTI_NONE UINT32_MAX

/* --- hashing: 64x64 -> 128 bit products, folded */
static inline uint64_t zti_hash_mix(uint64_t a, uint64_t b) {
  uint64_t z = (a ^ 0x2d358dccaa6c78a5u) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 32) ^ b) * 0xd6e8feb86659fd93u;
  return z ^ (z >> 32);
}
static inline uint64_t zti_load64(const unsigned char *p) {
  uint64_t v;
  memcpy(&v, p, sizeof v);
  return v;
}
static inline uint64_t zti_load32(const unsigned char *p) {
  uint32_t v;
  memcpy(&v, p, sizeof v);
  return v;
}
/* The last 1 to 8 bytes as a number, read by loads that may overlap but never leave the string. */
static inline uint64_t zti_load_tail(const unsigned char *p, size_t nbytes) {
  if (nbytes >= 8) return zti_load64(p + nbytes - 8);
  if (nbytes >= 4) return zti_load32(p) << 32 | zti_load32(p + nbytes - 4);
  return (uint64_t)p[0] << 16 | (uint64_t)p[nbytes / 2] << 8 | p[nbytes - 1];
}
/* Not the same on machines of different byte order: never stored. */
static inline uint64_t zti_hash_bytes(const unsigned char *p, size_t nbytes) {
  uint64_t h = nbytes;
  if (nbytes == 0) return h;
  for (; nbytes > 8; p += 8, nbytes -= 8) h = zti_hash_mix(h, zti_load64(p));
  return zti_hash_mix(h, zti_load_tail(p, nbytes));
}

/* --- bytes -> number. Keys are borrowed: they must live as long as the map. */
typedef struct zti_bytes_slot {
  const unsigned char *key; /* NULL: empty */
  uint32_t nbytes, hash;
  uint32_t value;
} zti_bytes_slot;
typedef struct zti_bytes_map {
  zti_bytes_slot *slots; /* mask + 1 of them, or NULL */
  size_t mask, count;
} zti_bytes_map;

/* Makes room for 'count' keys, so that as many puts can not fail. */
zt_status zti_bytes_map_reserve(zti_bytes_map *map, size_t count);
/* The slot of a key, or the empty slot where it belongs; room must have been reserved. */
static inline zti_bytes_slot *zti_bytes_map_slot(const zti_bytes_map *map, const unsigned char *key, size_t nbytes,
                                                 uint64_t hash) {
  size_t i = hash & map->mask;
  while (map->slots[i].key) {
    zti_bytes_slot *s = &map->slots[i];
    if (s->hash == (uint32_t)(hash >> 32) && s->nbytes == nbytes && memcmp(s->key, key, nbytes) == 0) break;
    i = (i + 1) & map->mask;
  }
  return &map->slots[i];
}
/* ZTI_NONE where there is none. */
static inline uint32_t zti_bytes_map_get(const zti_bytes_map *map, const void *key, size_t nbytes) {
  if (map->count == 0) return ZTI_NONE;
  const zti_bytes_slot *s = zti_bytes_map_slot(map, key, nbytes, zti_hash_bytes(key, nbytes));
  return s->key ? s->value : ZTI_NONE;
}
/* Adds a key or replaces its value. */
zt_status zti_bytes_map_put(zti_bytes_map *map, const void *key, size_t nbytes, uint32_t value);
void zti_bytes_map_clear(zti_bytes_map *map);

/* --- pair of ids -> number */
typedef struct zti_pair_slot {
  uint64_t key;
  uint32_t value; /* ZTI_NONE: empty */
} zti_pair_slot;
typedef struct zti_pair_map {
  zti_pair_slot *slots;
  size_t mask, count;
} zti_pair_map;

static inline uint64_t zti_pair(uint32_t left, uint32_t right) { return (uint64_t)left << 32 | right; }
zt_status zti_pair_map_reserve(zti_pair_map *map, size_t count);
static inline zti_pair_slot *zti_pair_map_slot(const zti_pair_map *map, uint64_t key) {
  size_t i = zti_hash_mix(key, 0) & map->mask;
  while (map->slots[i].value != ZTI_NONE && map->slots[i].key != key) i = (i + 1) & map->mask;
  return &map->slots[i];
}
static inline uint32_t zti_pair_map_get(const zti_pair_map *map, uint64_t key) {
  return map->count == 0 ? ZTI_NONE : zti_pair_map_slot(map, key)->value;
}
zt_status zti_pair_map_put(zti_pair_map *map, uint64_t key, uint32_t value); /* value is not ZTI_NONE */
void zti_pair_map_clear(zti_pair_map *map);

#endif
