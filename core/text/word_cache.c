#include "core/text/word_cache.h"

#include "core/base/mem.h"

zt_status zti_word_cache_init(zti_word_cache *c) {
  *c = (zti_word_cache){.slots = zt_calloc(ZTI_CACHE_SLOTS, sizeof *c->slots), .used_units = 1};
  ZT_CHECK_ALLOC(c->slots);
  c->units = zt_malloc(ZTI_CACHE_UNITS * sizeof *c->units);
  if (c->units) return ZT_OK;
  zti_word_cache_clear(c);
  return ZT_NOMEM;
}

void zti_word_cache_clear(zti_word_cache *c) {
  zt_free(c->slots);
  zt_free(c->units);
  *c = (zti_word_cache){0};
}

static void forget(zti_word_cache *c) {
  memset(c->slots, 0, ZTI_CACHE_SLOTS * sizeof *c->slots);
  c->used_slots = 0, c->used_units = 1;
}

void zti_word_cache_put(zti_word_cache *c, const unsigned char *piece, size_t nbytes, uint64_t hash,
                        const uint32_t *ids, size_t n_ids) {
  size_t units = n_ids + (nbytes + 3) / 4;
  if (c->used_slots + 1 > ZTI_CACHE_SLOTS / 2 || c->used_units + units > ZTI_CACHE_UNITS) forget(c);
  size_t i = hash % ZTI_CACHE_SLOTS;
  while (c->slots[i].at) i = (i + 1) % ZTI_CACHE_SLOTS;
  c->slots[i] = (zti_cache_slot){(uint32_t)c->used_units, (uint32_t)(hash >> 32), (uint16_t)n_ids, (uint16_t)nbytes};
  memcpy(c->units + c->used_units, ids, n_ids * sizeof *ids);
  memcpy(c->units + c->used_units + n_ids, piece, nbytes);
  c->used_slots++, c->used_units += units;
}
