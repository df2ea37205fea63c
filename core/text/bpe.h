/* bpe.h - the model of byte-level BPE: a piece of text, any bytes, to ids. A piece starts as one token a byte;
** while any two neighbours have a merge, the pair whose merge was learned first is merged, the leftmost of equals.
** Does not change after zti_bpe_finish; each thread encodes with a cache of its own. */
#ifndef zt_bpe_h
#define zt_bpe_h

#include "core/text/tokenizer.h"
#include "core/text/vocab.h"
#include "core/text/word_cache.h"

typedef struct zti_merge {
  uint32_t left, right, id; /* ids of the pair and of what it becomes */
} zti_merge;

/* All zero is an empty model. */
typedef struct zti_bpe {
  zti_merge *merges; /* by rank */
  size_t n_merges, capacity;
  zti_pair_map ranks;     /* pair -> rank */
  zti_bytes_map whole;    /* pieces that become the one token they spell -> id */
  size_t longest_whole;   /* bytes */
  uint32_t byte_ids[256]; /* ZTI_NONE: no token is this byte */
  uint32_t unk;           /* what such bytes become; ZTI_NONE: they raise */
  bool fuse_unk;          /* several of them in a row become one */
  bool ignore_merges;     /* a piece that is a token is that token, whatever the merges say */
} zti_bpe;

/* The next merge by the texts of its tokens. Raises where one of them or their concatenation is not in the
** vocabulary. */
zt_status zti_bpe_add_merge(zti_bpe *m, const zti_vocab *v, const char *left, size_t nleft, const char *right,
                            size_t nright);
/* Completes the tables from a vocabulary that holds the model's tokens alone; its texts are borrowed. unk and the flags
** are set by then. */
zt_status zti_bpe_finish(zti_bpe *m, const zti_vocab *v);
void zti_bpe_clear(zti_bpe *m);

zt_status zti_ids_reserve(zt_ids *ids, size_t more);
/* Appends the ids of a piece. */
zt_status zti_bpe_encode(const zti_bpe *m, zti_word_cache *cache, const unsigned char *piece, size_t nbytes,
                         zt_ids *ids);

#endif
