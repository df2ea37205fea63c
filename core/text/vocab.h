/* vocab.h - the tokens of a tokenizer by id and by spelling. A token has a text, as files spell it, and the bytes
** that it stands for. */
#ifndef zt_vocab_h
#define zt_vocab_h

#include <stdbool.h>

#include "core/text/table.h"

typedef struct zti_token {
  const unsigned char *text;  /* zero-terminated; NULL: no token has this id */
  const unsigned char *bytes; /* zero-terminated; may be 'text' */
  uint32_t ntext, nbytes;
  bool of_model; /* the model knows it; else it was added */
} zti_token;

typedef struct zti_arena_block zti_arena_block;

/* All zero is an empty vocabulary. */
typedef struct zti_vocab {
  zti_token *tokens; /* n_tokens, by id, holes included */
  size_t n_tokens, capacity;
  size_t count;          /* tokens without holes */
  size_t id_limit;       /* ids are lower */
  zti_bytes_map by_text; /* -> id */
  zti_arena_block *arena;
} zti_vocab;

/* Announces 'count' more tokens. Ids must stay below a limit that grows with the number of tokens: tables are as
** long as the highest id, and files from strangers name any number. */
zt_status zti_vocab_reserve(zti_vocab *v, size_t count);
/* Adds a token, its text read in the byte-level alphabet where all of it is of it, else standing for itself.
** Raises where the id or the text are taken, or the id is negative or too high. */
zt_status zti_vocab_add(zti_vocab *v, const char *text, size_t ntext, int64_t id);
/* Adds a token whose text stands for itself, as that of added tokens does. */
zt_status zti_vocab_add_literal(zti_vocab *v, const char *text, size_t ntext, int64_t id);
/* Lets an existing token stand for its text itself. */
void zti_vocab_set_literal(zti_vocab *v, uint32_t id);
void zti_vocab_clear(zti_vocab *v);

static inline uint32_t zti_vocab_id(const zti_vocab *v, const void *text, size_t ntext) {
  return zti_bytes_map_get(&v->by_text, text, ntext);
}
static inline bool zti_vocab_has(const zti_vocab *v, int64_t id) {
  return id >= 0 && (uint64_t)id < v->n_tokens && v->tokens[id].text;
}

#endif
