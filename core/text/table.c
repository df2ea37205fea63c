#include "core/text/table.h"

#include "core/base/mem.h"

/* Slots for 'count' keys at half load, as a power of two; 0: more than can be addressed. */
static size_t slots_for(size_t count) {
  size_t n = 16;
  while (n / 2 < count && n) n *= 2;
  return n;
}

zt_status zti_bytes_map_reserve(zti_bytes_map *map, size_t count) {
  if (map->slots && count <= (map->mask + 1) / 2) return ZT_OK;
  size_t n = slots_for(count);
  zti_bytes_map bigger = {n ? zt_calloc(n, sizeof *map->slots) : NULL, n - 1, map->count};
  if (!bigger.slots) return zt_fail(ZT_NOMEM, "host memory: a table of %zu entries does not fit", count);
  for (size_t i = 0; map->slots && i <= map->mask; i++) {
    zti_bytes_slot *s = &map->slots[i];
    if (s->key) *zti_bytes_map_slot(&bigger, s->key, s->nbytes, zti_hash_bytes(s->key, s->nbytes)) = *s;
  }
  zt_free(map->slots);
  *map = bigger;
  return ZT_OK;
}

zt_status zti_bytes_map_put(zti_bytes_map *map, const void *key, size_t nbytes, uint32_t value) {
  if (nbytes > UINT32_MAX) return zt_fail(ZT_INVALID, "a key of %zu bytes is too long for a table", nbytes);
  if (!map->slots || map->count + 1 > (map->mask + 1) / 2) ZT_TRY(zti_bytes_map_reserve(map, map->count + 1));
  uint64_t hash = zti_hash_bytes(key, nbytes);
  zti_bytes_slot *s = zti_bytes_map_slot(map, key, nbytes, hash);
  if (!s->key) map->count++, *s = (zti_bytes_slot){key, (uint32_t)nbytes, (uint32_t)(hash >> 32), value};
  s->value = value;
  return ZT_OK;
}

void zti_bytes_map_clear(zti_bytes_map *map) {
  zt_free(map->slots);
  *map = (zti_bytes_map){0};
}

zt_status zti_pair_map_reserve(zti_pair_map *map, size_t count) {
  if (map->slots && count <= (map->mask + 1) / 2) return ZT_OK;
  size_t n = slots_for(count);
  zti_pair_map bigger = {n ? zt_calloc(n, sizeof *map->slots) : NULL, n - 1, map->count};
  if (!bigger.slots) return zt_fail(ZT_NOMEM, "host memory: a table of %zu entries does not fit", count);
  for (size_t i = 0; i < n; i++) bigger.slots[i].value = ZTI_NONE;
  for (size_t i = 0; map->slots && i <= map->mask; i++)
    if (map->slots[i].value != ZTI_NONE) *zti_pair_map_slot(&bigger, map->slots[i].key) = map->slots[i];
  zt_free(map->slots);
  *map = bigger;
  return ZT_OK;
}

zt_status zti_pair_map_put(zti_pair_map *map, uint64_t key, uint32_t value) {
  if (!map->slots || map->count + 1 > (map->mask + 1) / 2) ZT_TRY(zti_pair_map_reserve(map, map->count + 1));
  zti_pair_slot *s = zti_pair_map_slot(map, key);
  if (s->value == ZTI_NONE) map->count++;
  *s = (zti_pair_slot){key, value};
  return ZT_OK;
}

void zti_pair_map_clear(zti_pair_map *map) {
  zt_free(map->slots);
  *map = (zti_pair_map){0};
}
