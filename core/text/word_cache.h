/* word_cache.h - what a model made of the pieces it met last: piece -> ids, for short pieces, bounded. Text repeats its
** words, so most pieces are found here. One cache a thread; when it is full it starts again from nothing. */
#ifndef zt_word_cache_h
#define zt_word_cache_h

#include "core/text/table.h"

enum { ZTI_WORD_BYTES = 48, ZTI_CACHE_SLOTS = 1 << 15, ZTI_CACHE_UNITS = 1 << 18 };

typedef struct zti_cache_slot {
  uint32_t at; /* in units: the ids, then the piece's bytes; 0: empty */
  uint32_t hash;
  uint16_t n_ids, nbytes;
} zti_cache_slot;
typedef struct zti_word_cache {
  zti_cache_slot *slots; /* ZTI_CACHE_SLOTS, at most half of them used */
  uint32_t *units;       /* ZTI_CACHE_UNITS */
  size_t used_slots, used_units;
} zti_word_cache;

zt_status zti_word_cache_init(zti_word_cache *c);
void zti_word_cache_clear(zti_word_cache *c);
/* The ids of a piece, borrowed until the next put; NULL: not there. */
static inline const uint32_t *zti_word_cache_get(const zti_word_cache *c, const unsigned char *piece, size_t nbytes,
                                                 uint64_t hash, size_t *n_ids) {
  size_t i = hash % ZTI_CACHE_SLOTS;
  for (; c->slots[i].at; i = (i + 1) % ZTI_CACHE_SLOTS) {
    const zti_cache_slot *s = &c->slots[i];
    if (s->hash != (uint32_t)(hash >> 32) || s->nbytes != nbytes) continue;
    const uint32_t *ids = c->units + s->at;
    *n_ids = s->n_ids;
    if (memcmp(ids + s->n_ids, piece, nbytes) == 0) return ids;
  }
  return NULL;
}
/* Remembers a piece that is not there yet, of at most ZTI_WORD_BYTES bytes and as many ids. */
void zti_word_cache_put(zti_word_cache *c, const unsigned char *piece, size_t nbytes, uint64_t hash,
                        const uint32_t *ids, size_t n_ids);

#endif
