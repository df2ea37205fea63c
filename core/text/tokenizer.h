/* tokenizer.h - text to ids and back, from Hugging Face files; training of byte-level BPE.
** A tokenizer does not change after it was made: encoding may run on several threads at once. */
#ifndef zt_tokenizer_h
#define zt_tokenizer_h

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/err.h"

typedef struct zt_tokenizer zt_tokenizer;

/* From a folder: tokenizer.json, else vocab.json + merges.txt, else encoder.json + vocab.bpe; tokenizer_config.json,
** special_tokens_map.json and added_tokens.json are read where they are. Or from one tokenizer.json by its path. */
ZT_API zt_status zt_tokenizer_load(const char *path, zt_tokenizer **out);
ZT_API void zt_tokenizer_free(zt_tokenizer *tok); /* NULL ok */
/* Writes tokenizer.json, vocab.json, merges.txt, tokenizer_config.json and special_tokens_map.json, atomically each;
** transformers opens the folder. */
ZT_API zt_status zt_tokenizer_save(const zt_tokenizer *tok, const char *folder);

typedef struct zt_ids {
  int64_t *data; /* owned; zt_ids_clear */
  size_t count, capacity;
} zt_ids;
ZT_API void zt_ids_clear(zt_ids *ids);

typedef struct zt_encode_options {
  bool add_special_tokens; /* what the post-processor adds, where it has one */
  bool plain;              /* special tokens in the text are text, not ids */
} zt_encode_options;
/* Appends to 'ids'. Any bytes: what is not UTF-8 is encoded as bytes. On failure nothing was appended. */
ZT_API zt_status zt_tokenizer_encode(const zt_tokenizer *tok, const char *text, size_t nbytes,
                                     const zt_encode_options *o, zt_ids *ids);
/* The text of ids, exact; '*text' is owned (zt_free), zero-terminated after '*nbytes'. An id outside the vocabulary
** raises with its position. */
ZT_API zt_status zt_tokenizer_decode(const zt_tokenizer *tok, const int64_t *ids, size_t count, bool skip_special,
                                     char **text, size_t *nbytes);

ZT_API int64_t zt_tokenizer_vocab_size(const zt_tokenizer *tok);                     /* one more than the highest id */
ZT_API int64_t zt_tokenizer_token_to_id(const zt_tokenizer *tok, const char *token); /* -1: none */
/* The bytes that an id stands for; borrowed; NULL: none. */
ZT_API const char *zt_tokenizer_id_to_bytes(const zt_tokenizer *tok, int64_t id, size_t *nbytes);
/* Ids of the roles "bos", "eos", "unk", "pad", "sep", "cls", "mask"; -1 where not set. */
ZT_API int64_t zt_tokenizer_special(const zt_tokenizer *tok, const char *role);
/* What the post-processor puts around one text, or two ('pair'): the tokens and texts of a sequence, in order.
** Borrowed. */
typedef struct zt_template_item {
  int64_t id;  /* of a token; -1: a text goes here */
  int text;    /* which: 0 or 1 */
  int type_id; /* token_type_ids of it */
} zt_template_item;
ZT_API const zt_template_item *zt_tokenizer_template(const zt_tokenizer *tok, bool pair, size_t *count);
/* What tokenizer_config.json says of batches. */
typedef struct zt_tokenizer_settings {
  int64_t max_length; /* model_max_length; -1: none */
  bool pad_left, truncate_left;
  bool type_ids; /* the model takes token_type_ids */
} zt_tokenizer_settings;
ZT_API zt_tokenizer_settings zt_tokenizer_get_settings(const zt_tokenizer *tok);
/* A checksum of everything that encoding depends on: the key of caches. */
ZT_API uint64_t zt_tokenizer_hash(const zt_tokenizer *tok);

typedef struct zt_bpe_options {
  size_t vocab_size;    /* with the 256 bytes and the special tokens; may end lower where no pair is left */
  size_t min_frequency; /* of a pair that is merged; 2 */
  const char *const *special_tokens; /* NULL-ended; the first ids, as Hugging Face's trainer does */
} zt_bpe_options;
/* Learns merges from files, GPT-2's regular expression splitting the text, each line (with its end) for itself as
** Hugging Face's trainer does. Ties: the pair of lower ids first. The same files give the same tokenizer. The
** first special token becomes bos and eos. */
ZT_API zt_status zt_tokenizer_train_bpe(const char *const *paths, size_t n_paths, const zt_bpe_options *o,
                                        zt_tokenizer **out);

#endif
