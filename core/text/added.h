/* added.h - tokens that are found in the text before anything else looks at it: special ones and those a user added. */
#ifndef zt_added_h
#define zt_added_h

#include "core/text/regex.h"
#include "core/text/vocab.h"

/* The flags are those of Hugging Face's AddedToken. */
typedef struct zti_added_token {
  uint32_t id;
  bool special;
  bool lstrip, rstrip; /* takes the white space before or after it along */
  bool single_word;    /* only where no word character touches it */
  bool normalized;     /* looked for after those that are not */
} zti_added_token;

/* Tokens sorted by their texts: those that start with the bytes seen so far are neighbours. */
typedef struct zti_added_set {
  const zti_token **texts; /* sorted; into the vocabulary */
  const zti_added_token **tokens;
  size_t count;
  bool starts[256]; /* bytes that a token starts with */
} zti_added_set;

/* All zero is none. */
typedef struct zti_added {
  zti_added_token *list; /* in the order of adding, an id once */
  size_t count, capacity;
  zti_pair_map by_id;      /* -> place in the list */
  zti_added_set sets[2];   /* not normalized, normalized */
  zti_regex *word, *space; /* a character of each kind */
} zti_added;

/* Adds a token or replaces the flags of one that has its id. */
zt_status zti_added_put(zti_added *a, zti_added_token token);
const zti_added_token *zti_added_get(const zti_added *a, int64_t id); /* NULL: none */
/* Makes the sets; 'v' has all tokens by now and is borrowed. */
zt_status zti_added_finish(zti_added *a, const zti_vocab *v);
void zti_added_clear(zti_added *a);

/* A stretch of text: an added token, or what lies between two (id ZTI_NONE). Never empty. */
typedef zt_status (*zti_segment_fn)(void *user, const unsigned char *text, size_t nbytes, uint32_t id);
/* Leftmost, then longest. 'plain': special tokens are text. */
zt_status zti_added_split(const zti_added *a, zti_regex_match *match, const unsigned char *text, size_t nbytes,
                          bool plain, zti_segment_fn fn, void *user);

#endif
