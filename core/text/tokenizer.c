#include "core/text/tokenizer.h"

#include <string.h>

#include "core/base/mem.h"
#include "core/text/pipeline.h"

const char *const zti_role_names[ZTI_N_ROLES] = {
#define ROLE_NAME(name) #name,
    ZTI_ROLES(ROLE_NAME)
#undef ROLE_NAME
};

/* --- making and freeing */

zt_status zti_tokenizer_new(zt_tokenizer **out) {
  zt_tokenizer *tok = *out = zt_calloc(1, sizeof *tok);
  ZT_CHECK_ALLOC(tok);
  for (int i = 0; i < ZTI_N_ROLES; i++) tok->special[i] = -1;
  tok->bpe.unk = ZTI_NONE;
  tok->settings.max_length = -1;
  tok->has_lock = pthread_mutex_init(&tok->lock, NULL) == 0;
  if (tok->has_lock) return ZT_OK;
  zt_free(tok);
  *out = NULL;
  return zt_fail(ZT_NOMEM, "the system has no room for a mutex");
}

/* FNV-1a, so that the value is the same on every machine. */
static uint64_t hash_more(uint64_t h, const void *data, size_t nbytes) {
  const unsigned char *p = data;
  for (size_t i = 0; i < nbytes; i++) h = (h ^ p[i]) * 0x100000001b3u;
  return h;
}
static uint64_t hash_number(uint64_t h, uint64_t value) {
  for (int i = 0; i < 64; i += 8) h = (h ^ ((value >> i) & 0xff)) * 0x100000001b3u;
  return h;
}
static uint64_t hash_text(uint64_t h, const char *text) {
  return text ? hash_more(h, text, strlen(text) + 1) : hash_number(h, 0);
}

static uint64_t hash_vocab(uint64_t h, const zti_vocab *v) {
  for (size_t id = 0; id < v->n_tokens; id++) {
    const zti_token *t = &v->tokens[id];
    h = hash_number(h, t->text ? 2u * t->ntext + t->of_model : ZTI_NONE);
    h = hash_more(h, t->text, t->ntext);
  }
  return h;
}

/* By id: the order of adding says nothing. */
static uint64_t hash_added(uint64_t h, const zt_tokenizer *tok) {
  for (size_t id = 0; id < tok->vocab.n_tokens; id++) {
    const zti_added_token *t = zti_added_get(&tok->added, (int64_t)id);
    if (!t) continue;
    int flags = t->special | t->lstrip << 1 | t->rstrip << 2 | t->single_word << 3 | t->normalized << 4;
    h = hash_number(hash_number(h, id), (uint64_t)flags);
  }
  return h;
}

static uint64_t hash_tokenizer(const zt_tokenizer *tok) {
  char unicode[32];
  uint64_t h = hash_vocab(0xcbf29ce484222325u, &tok->vocab);
  for (size_t i = 0; i < tok->bpe.n_merges; i++)
    h = hash_number(h, zti_pair(tok->bpe.merges[i].left, tok->bpe.merges[i].right));
  h = hash_number(h, tok->bpe.unk);
  h = hash_number(h, (uint64_t)(tok->bpe.fuse_unk | tok->bpe.ignore_merges << 1));
  h = hash_added(h, tok);
  h = hash_text(hash_text(h, tok->pre_tokenizer), tok->post_processor);
  zti_regex_unicode_version(unicode);
  return zti_hash_mix(hash_text(h, unicode), 0);
}

zt_status zti_tokenizer_finish(zt_tokenizer *tok) {
  bool has_all_bytes = true;
  for (int i = 0; i < 256; i++) has_all_bytes &= tok->bpe.byte_ids[i] != ZTI_NONE;
  if (has_all_bytes) tok->bpe.unk = ZTI_NONE; /* nothing is unknown: it must not make a difference */
  ZT_TRY(zti_added_finish(&tok->added, &tok->vocab));
  tok->hash = hash_tokenizer(tok);
  return ZT_OK;
}

/* --- encoders: what one thread needs while it encodes. They are kept for the next call, with the words they know. */

struct zti_encoder {
  zti_encoder *next;
  const zt_tokenizer *tok;
  zti_regex_match *match;
  zti_word_cache cache;
  zt_ids *ids; /* of this call */
};

static void encoder_free(zti_encoder *e) {
  zti_regex_match_free(e->match);
  zti_word_cache_clear(&e->cache);
  zt_free(e);
}

static zt_status encoder_new(const zt_tokenizer *tok, zti_encoder **out) {
  zti_encoder *e = zt_calloc(1, sizeof *e);
  ZT_CHECK_ALLOC(e);
  e->tok = tok;
  zt_status st = zti_regex_match_new(&e->match);
  if (st == ZT_OK) st = zti_word_cache_init(&e->cache);
  if (st == ZT_OK) return *out = e, ZT_OK;
  encoder_free(e);
  return st;
}

static zt_status take_encoder(zt_tokenizer *tok, zti_encoder **out) {
  pthread_mutex_lock(&tok->lock);
  zti_encoder *e = tok->idle;
  if (e) tok->idle = e->next;
  pthread_mutex_unlock(&tok->lock);
  *out = e;
  return e ? ZT_OK : encoder_new(tok, out);
}

static void give_back_encoder(zt_tokenizer *tok, zti_encoder *e) {
  pthread_mutex_lock(&tok->lock);
  e->next = tok->idle;
  tok->idle = e;
  pthread_mutex_unlock(&tok->lock);
}

static void template_clear(zti_template *t) {
  zt_free(t->items);
  *t = (zti_template){0};
}

void zt_tokenizer_free(zt_tokenizer *tok) {
  if (!tok) return;
  for (zti_encoder *e = tok->idle, *next; e; e = next) next = e->next, encoder_free(e);
  if (tok->has_lock) pthread_mutex_destroy(&tok->lock);
  template_clear(&tok->single);
  template_clear(&tok->pair);
  zti_split_clear(&tok->split);
  zti_added_clear(&tok->added);
  zti_bpe_clear(&tok->bpe);
  zti_vocab_clear(&tok->vocab);
  zt_free(tok->pre_tokenizer);
  zt_free(tok->post_processor);
  zt_free(tok->decoder);
  zt_free(tok->config);
  zt_free(tok);
}

/* --- encoding */

static zt_status encode_piece(void *user, const unsigned char *piece, size_t nbytes) {
  zti_encoder *e = user;
  return zti_bpe_encode(&e->tok->bpe, &e->cache, piece, nbytes, e->ids);
}

static zt_status encode_segment(void *user, const unsigned char *text, size_t nbytes, uint32_t id) {
  zti_encoder *e = user;
  if (id == ZTI_NONE) return zti_split_run(&e->tok->split, e->match, text, nbytes, encode_piece, e);
  ZT_TRY(zti_ids_reserve(e->ids, 1));
  e->ids->data[e->ids->count++] = id;
  return ZT_OK;
}

static zt_status encode_text(zti_encoder *e, const char *text, size_t nbytes, bool plain) {
  return zti_added_split(&e->tok->added, e->match, (const unsigned char *)text, nbytes, plain, encode_segment, e);
}

static zt_status encode_template(zti_encoder *e, const char *text, size_t nbytes, bool plain) {
  const zti_template *t = &e->tok->single;
  for (size_t i = 0; i < t->count; i++) {
    if (t->items[i].id < 0)
      ZT_TRY(encode_text(e, text, nbytes, plain));
    else
      ZT_TRY(encode_segment(e, NULL, 0, (uint32_t)t->items[i].id));
  }
  return ZT_OK;
}

zt_status zt_tokenizer_encode(const zt_tokenizer *tok, const char *text, size_t nbytes, const zt_encode_options *o,
                              zt_ids *ids) {
  /* the list of idle encoders is no part of what a tokenizer is */
  zt_tokenizer *holder = (zt_tokenizer *)(uintptr_t)tok;
  size_t before = ids->count;
  zti_encoder *e;
  ZT_TRY(take_encoder(holder, &e));
  e->ids = ids;
  bool plain = o && o->plain, with_template = o && o->add_special_tokens;
  zt_status st = with_template ? encode_template(e, text, nbytes, plain) : encode_text(e, text, nbytes, plain);
  give_back_encoder(holder, e);
  if (st != ZT_OK) ids->count = before;
  return st;
}

/* --- decoding */

static bool is_special(const zt_tokenizer *tok, int64_t id) {
  const zti_added_token *t = zti_added_get(&tok->added, id);
  return t && t->special;
}

static zt_status decoded_nbytes(const zt_tokenizer *tok, const int64_t *ids, size_t count, bool skip_special,
                                size_t *out) {
  *out = 0;
  for (size_t i = 0; i < count; i++) {
    if (!zti_vocab_has(&tok->vocab, ids[i]))
      return zt_fail(ZT_INVALID, "id %lld at position %zu is not in the vocabulary (of %zu ids)", (long long)ids[i], i,
                     tok->vocab.n_tokens);
    if (!(skip_special && is_special(tok, ids[i]))) *out += tok->vocab.tokens[ids[i]].nbytes;
  }
  return ZT_OK;
}

zt_status zt_tokenizer_decode(const zt_tokenizer *tok, const int64_t *ids, size_t count, bool skip_special, char **text,
                              size_t *nbytes) {
  ZT_TRY(decoded_nbytes(tok, ids, count, skip_special, nbytes));
  char *p = *text = zt_malloc(*nbytes + 1);
  ZT_CHECK_ALLOC(p);
  for (size_t i = 0; i < count; i++) {
    const zti_token *t = &tok->vocab.tokens[ids[i]];
    if (skip_special && is_special(tok, ids[i])) continue;
    memcpy(p, t->bytes, t->nbytes);
    p += t->nbytes;
  }
  *p = 0;
  return ZT_OK;
}

/* --- asking */

int64_t zt_tokenizer_vocab_size(const zt_tokenizer *tok) { return (int64_t)tok->vocab.n_tokens; }

int64_t zt_tokenizer_token_to_id(const zt_tokenizer *tok, const char *token) {
  uint32_t id = zti_vocab_id(&tok->vocab, token, strlen(token));
  return id == ZTI_NONE ? -1 : (int64_t)id;
}

const char *zt_tokenizer_id_to_bytes(const zt_tokenizer *tok, int64_t id, size_t *nbytes) {
  if (!zti_vocab_has(&tok->vocab, id)) return NULL;
  *nbytes = tok->vocab.tokens[id].nbytes;
  return (const char *)tok->vocab.tokens[id].bytes;
}

int64_t zt_tokenizer_special(const zt_tokenizer *tok, const char *role) {
  for (int i = 0; i < ZTI_N_ROLES; i++)
    if (strcmp(role, zti_role_names[i]) == 0) return tok->special[i];
  return -1;
}

const zt_template_item *zt_tokenizer_template(const zt_tokenizer *tok, bool pair, size_t *count) {
  const zti_template *t = pair ? &tok->pair : &tok->single;
  *count = t->count;
  return t->items;
}

zt_tokenizer_settings zt_tokenizer_get_settings(const zt_tokenizer *tok) { return tok->settings; }

uint64_t zt_tokenizer_hash(const zt_tokenizer *tok) { return tok->hash; }
