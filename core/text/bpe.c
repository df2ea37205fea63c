#include "core/text/bpe.h"

#include "core/base/mem.h"
#include "core/text/utf8.h"

enum { SHORT_PIECE = 64 }; /* bytes up to which searching all pairs beats keeping a heap */

void zt_ids_clear(zt_ids *ids) {
  zt_free(ids->data);
  *ids = (zt_ids){0};
}

zt_status zti_ids_reserve(zt_ids *ids, size_t more) {
  if (ids->capacity - ids->count >= more) return ZT_OK;
  size_t capacity = ids->count + more > 2 * ids->capacity ? ids->count + more : 2 * ids->capacity;
  int64_t *data = zt_realloc(ids->data, capacity * sizeof *data);
  ZT_CHECK_ALLOC(data);
  ids->data = data, ids->capacity = capacity;
  return ZT_OK;
}

static uint32_t rank_of(const zti_bpe *m, uint32_t left, uint32_t right) {
  return zti_pair_map_get(&m->ranks, zti_pair(left, right));
}

/* --- merging: both ways do the same, in place on 'id', and return how many ids are left */

static size_t merge_short(const zti_bpe *m, uint32_t *id, size_t count) {
  uint32_t rank[SHORT_PIECE];
  for (size_t i = 0; i + 1 < count; i++) rank[i] = rank_of(m, id[i], id[i + 1]);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; i++)
      if (rank[i] < rank[best]) best = i;
    if (rank[best] == ZTI_NONE) break;
    id[best] = m->merges[rank[best]].id;
    count--;
    for (size_t i = best + 1; i < count; i++) id[i] = id[i + 1];
    for (size_t i = best + 1; i + 1 < count; i++) rank[i] = rank[i + 1];
    if (best + 1 < count) rank[best] = rank_of(m, id[best], id[best + 1]);
    if (best > 0) rank[best - 1] = rank_of(m, id[best - 1], id[best]);
  }
  return count;
}

/* A binary heap of rank << 32 | position: the least is the pair to merge next. Entries whose rank is no longer that of
** their position are stale and skipped. */
typedef struct long_piece {
  uint32_t *id, *rank;   /* by position; rank is of the pair that starts there */
  uint32_t *prev, *next; /* positions of the neighbours; ZTI_NONE: none */
  uint64_t *heap;
  size_t n_heap;
} long_piece;

static void sift_down(uint64_t *heap, size_t count, size_t i) {
  uint64_t moved = heap[i];
  for (size_t child = 2 * i + 1; child < count; i = child, child = 2 * i + 1) {
    if (child + 1 < count && heap[child + 1] < heap[child]) child++;
    if (moved <= heap[child]) break;
    heap[i] = heap[child];
  }
  heap[i] = moved;
}

static void heap_push(long_piece *p, uint64_t entry) {
  size_t i = p->n_heap++;
  for (; i > 0 && entry < p->heap[(i - 1) / 2]; i = (i - 1) / 2) p->heap[i] = p->heap[(i - 1) / 2];
  p->heap[i] = entry;
}

static uint64_t heap_pop(long_piece *p) {
  uint64_t least = p->heap[0];
  p->heap[0] = p->heap[--p->n_heap];
  if (p->n_heap > 0) sift_down(p->heap, p->n_heap, 0);
  return least;
}

static void update_rank(const zti_bpe *m, long_piece *p, uint32_t i) {
  p->rank[i] = p->next[i] == ZTI_NONE ? ZTI_NONE : rank_of(m, p->id[i], p->id[p->next[i]]);
  if (p->rank[i] != ZTI_NONE) heap_push(p, zti_pair(p->rank[i], i));
}

static void merge_at(const zti_bpe *m, long_piece *p, uint32_t i) {
  uint32_t gone = p->next[i];
  p->id[i] = m->merges[p->rank[i]].id;
  p->next[i] = p->next[gone];
  if (p->next[i] != ZTI_NONE) p->prev[p->next[i]] = i;
  p->rank[gone] = ZTI_NONE;
  update_rank(m, p, i);
  if (p->prev[i] != ZTI_NONE) update_rank(m, p, p->prev[i]);
}

static size_t merge_long(const zti_bpe *m, long_piece *p, size_t count) {
  for (uint32_t i = 0; i < count; i++) {
    p->prev[i] = i ? i - 1 : ZTI_NONE;
    p->next[i] = i + 1 < count ? i + 1 : ZTI_NONE;
    p->rank[i] = i + 1 < count ? rank_of(m, p->id[i], p->id[i + 1]) : ZTI_NONE;
    if (p->rank[i] != ZTI_NONE) p->heap[p->n_heap++] = zti_pair(p->rank[i], i);
  }
  for (size_t i = p->n_heap / 2; i-- > 0;) sift_down(p->heap, p->n_heap, i);
  while (p->n_heap > 0) {
    uint64_t entry = heap_pop(p);
    if (p->rank[(uint32_t)entry] == entry >> 32) merge_at(m, p, (uint32_t)entry);
  }
  size_t left = 0;
  for (uint32_t i = 0; i != ZTI_NONE; i = p->next[i]) p->id[left++] = p->id[i];
  return left;
}

/* --- from bytes to ids */

/* One id a byte; returns how many (fewer where unknown bytes are fused). */
static zt_status byte_ids(const zti_bpe *m, const unsigned char *piece, size_t nbytes, uint32_t *id, size_t *count) {
  bool after_unknown = false;
  *count = 0;
  for (size_t i = 0; i < nbytes; i++) {
    bool unknown = m->byte_ids[piece[i]] == ZTI_NONE;
    if (unknown && m->unk == ZTI_NONE)
      return zt_fail(ZT_INVALID, "byte 0x%02x has no token in the vocabulary, and there is no unk token", piece[i]);
    if (!(unknown && after_unknown && m->fuse_unk)) id[(*count)++] = unknown ? m->unk : m->byte_ids[piece[i]];
    after_unknown = unknown;
  }
  return ZT_OK;
}

static zt_status encode_long(const zti_bpe *m, const unsigned char *piece, size_t nbytes, zt_ids *ids) {
  if (nbytes >= ZTI_NONE)
    return zt_fail(ZT_INVALID, "a piece of %zu bytes without a split is too long to encode", nbytes);
  /* each merge takes one entry off the heap and puts at most two on it */
  uint64_t *room = zt_malloc(nbytes * (4 * sizeof(uint32_t) + 2 * sizeof(uint64_t)));
  ZT_CHECK_ALLOC(room);
  uint32_t *id = (uint32_t *)(room + 2 * nbytes);
  long_piece p = {id, id + nbytes, id + 2 * nbytes, id + 3 * nbytes, room, 0};
  size_t count;
  zt_status st = byte_ids(m, piece, nbytes, id, &count);
  if (st == ZT_OK) count = merge_long(m, &p, count);
  for (size_t i = 0; st == ZT_OK && i < count; i++) ids->data[ids->count++] = id[i];
  zt_free(room);
  return st;
}

static void append(zt_ids *ids, const uint32_t *id, size_t count) {
  for (size_t i = 0; i < count; i++) ids->data[ids->count + i] = id[i];
  ids->count += count;
}

zt_status zti_bpe_encode(const zti_bpe *m, zti_word_cache *cache, const unsigned char *piece, size_t nbytes,
                         zt_ids *ids) {
  if (nbytes == 0) return ZT_OK;
  ZT_TRY(zti_ids_reserve(ids, nbytes));
  uint64_t hash = 0;
  if (nbytes <= m->longest_whole || nbytes <= ZTI_WORD_BYTES) hash = zti_hash_bytes(piece, nbytes);
  if (nbytes <= m->longest_whole) {
    const zti_bytes_slot *s = zti_bytes_map_slot(&m->whole, piece, nbytes, hash);
    if (s->key) return ids->data[ids->count++] = s->value, ZT_OK;
  }
  if (nbytes > SHORT_PIECE) return encode_long(m, piece, nbytes, ids);
  size_t count = 0;
  const uint32_t *known = nbytes > ZTI_WORD_BYTES ? NULL : zti_word_cache_get(cache, piece, nbytes, hash, &count);
  if (known) return append(ids, known, count), ZT_OK;
  uint32_t id[SHORT_PIECE];
  ZT_TRY(byte_ids(m, piece, nbytes, id, &count));
  count = merge_short(m, id, count);
  if (nbytes <= ZTI_WORD_BYTES) zti_word_cache_put(cache, piece, nbytes, hash, id, count);
  append(ids, id, count);
  return ZT_OK;
}

/* --- making a model */

static zt_status find_token(const zti_vocab *v, const char *text, size_t ntext, uint32_t *id) {
  *id = zti_vocab_id(v, text, ntext);
  if (*id != ZTI_NONE) return ZT_OK;
  return zt_fail(ZT_FORMAT, "'%.*s' is not in the vocabulary", ntext > 60 ? 60 : (int)ntext, text);
}

static zt_status find_joined(const zti_vocab *v, const char *left, size_t nleft, const char *right, size_t nright,
                             uint32_t *id) {
  char small[256], *joined = nleft + nright <= sizeof small ? small : zt_malloc(nleft + nright);
  ZT_CHECK_ALLOC(joined);
  memcpy(joined, left, nleft);
  memcpy(joined + nleft, right, nright);
  zt_status st = find_token(v, joined, nleft + nright, id);
  if (joined != small) zt_free(joined);
  return st;
}

zt_status zti_bpe_add_merge(zti_bpe *m, const zti_vocab *v, const char *left, size_t nleft, const char *right,
                            size_t nright) {
  zti_merge merge;
  ZT_TRY(find_token(v, left, nleft, &merge.left));
  ZT_TRY(find_token(v, right, nright, &merge.right));
  ZT_TRY(find_joined(v, left, nleft, right, nright, &merge.id));
  if (m->n_merges == m->capacity) {
    size_t capacity = m->capacity ? 2 * m->capacity : 1024;
    zti_merge *merges = zt_realloc(m->merges, capacity * sizeof *merges);
    ZT_CHECK_ALLOC(merges);
    m->merges = merges, m->capacity = capacity;
  }
  if (m->n_merges >= ZTI_NONE - 1) return zt_fail(ZT_FORMAT, "more than %zu merges", m->n_merges);
  ZT_TRY(zti_pair_map_put(&m->ranks, zti_pair(merge.left, merge.right), (uint32_t)m->n_merges));
  m->merges[m->n_merges++] = merge;
  return ZT_OK;
}

/* Whether merging the bytes of a token ends in that token: then a piece that spells it needs no merging. */
static bool is_reached(const zti_bpe *m, const zti_token *token, uint32_t id) {
  uint32_t ids[SHORT_PIECE];
  if (token->nbytes > SHORT_PIECE) return false;
  for (size_t i = 0; i < token->nbytes; i++) {
    ids[i] = m->byte_ids[token->bytes[i]];
    if (ids[i] == ZTI_NONE) return false;
  }
  return merge_short(m, ids, token->nbytes) == 1 && ids[0] == id;
}

zt_status zti_bpe_finish(zti_bpe *m, const zti_vocab *v) {
  for (unsigned byte = 0; byte < 256; byte++) {
    unsigned char text[2];
    size_t ntext = zti_alphabet_spell((unsigned char)byte, text);
    m->byte_ids[byte] = zti_vocab_id(v, text, ntext);
  }
  ZT_TRY(zti_bytes_map_reserve(&m->whole, v->count));
  for (uint32_t id = 0; id < v->n_tokens; id++) {
    const zti_token *t = &v->tokens[id];
    bool spelled = t->text && t->bytes != t->text && t->nbytes > 0;
    if (!spelled || !(m->ignore_merges || is_reached(m, t, id))) continue;
    ZT_TRY(zti_bytes_map_put(&m->whole, t->bytes, t->nbytes, id));
    if (t->nbytes > m->longest_whole) m->longest_whole = t->nbytes;
  }
  return ZT_OK;
}

void zti_bpe_clear(zti_bpe *m) {
  zt_free(m->merges);
  zti_pair_map_clear(&m->ranks);
  zti_bytes_map_clear(&m->whole);
  *m = (zti_bpe){0};
}
