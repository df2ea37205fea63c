/* pipeline.h - what a tokenizer is made of, and how its files describe it. Text goes through
**   added tokens -> pre-tokenizer (split) -> model (bpe) -> post-processor (templates)
** and ids come back through the tokens' bytes. Private to core/text. */
#ifndef zt_pipeline_h
#define zt_pipeline_h

#include <pthread.h>

#include "core/io/json.h"
#include "core/text/added.h"
#include "core/text/bpe.h"
#include "core/text/split.h"
#include "core/text/tokenizer.h"

/* X(role): transformers' order, in which missing ones are added to a vocabulary */
#define ZTI_ROLES(X) X(bos) X(eos) X(unk) X(sep) X(pad) X(cls) X(mask)
typedef enum zti_role {
#define ZTI_ROLE_ENUM(name) ZTI_ROLE_##name,
  ZTI_ROLES(ZTI_ROLE_ENUM)
#undef ZTI_ROLE_ENUM
      ZTI_N_ROLES
} zti_role;
extern const char *const zti_role_names[ZTI_N_ROLES]; /* "bos", ... */

typedef struct zti_template {
  zt_template_item *items; /* owned */
  size_t count;
} zti_template;

typedef struct zti_encoder zti_encoder;

struct zt_tokenizer {
  zti_vocab vocab;
  zti_bpe bpe;
  zti_added added;
  zti_split split;
  zti_template single, pair;
  int64_t special[ZTI_N_ROLES]; /* -1: not set */
  zt_tokenizer_settings settings;
  uint64_t hash;
  /* as JSON, for saving; owned */
  char *pre_tokenizer, *post_processor, *decoder;
  char *config;         /* tokenizer_config.json; NULL: there was none */
  pthread_mutex_t lock; /* of idle */
  bool has_lock;
  zti_encoder *idle; /* encoders that no thread is using */
};

/* An empty tokenizer, to be filled and finished by those who make one. */
zt_status zti_tokenizer_new(zt_tokenizer **out);
/* Completes it: sets of added tokens, the hash. */
zt_status zti_tokenizer_finish(zt_tokenizer *tok);

/* --- sections of tokenizer.json (sections.c). All raise "SECTION.key: VALUE is not supported" for what they do
** not know. */
zt_status zti_read_normalizer(const json_t *section);
zt_status zti_read_pre_tokenizer(const json_t *section, zti_split *split);
zt_status zti_read_post_processor(const json_t *section, const zti_vocab *v, zti_template *single, zti_template *pair);
zt_status zti_read_decoder(const json_t *section);
/* The four, into 'tok', which keeps their text. */
zt_status zti_read_sections(const json_t *root, zt_tokenizer *tok);

/* Typed fields of an object; an absent one or null is the fallback, another type raises. 'where' names the object. */
zt_status zti_get_bool(const json_t *object, const char *where, const char *key, bool fallback, bool *out);
zt_status zti_get_string(const json_t *object, const char *where, const char *key, const char **out); /* NULL: none */
zt_status zti_get_integer(const json_t *object, const char *where, const char *key, int64_t fallback, int64_t *out);
/* Raises for a key that is not among 'known' (NULL ends it), unless its value says nothing: null, false, "". */
zt_status zti_check_keys(const json_t *object, const char *where, const char *const known[]);
zt_status zti_refuse(const char *where, const char *key, const json_t *value); /* "where.key: VALUE is not supported" */
/* Compact text of a value; owned. */
zt_status zti_json_text(const json_t *value, char **out);

#endif
