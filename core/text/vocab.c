#include "core/text/vocab.h"

#include "core/base/mem.h"
#include "core/text/utf8.h"

/* Token texts live in blocks that never move, so that tables can borrow them. */
struct zti_arena_block {
  zti_arena_block *next;
  size_t used, nbytes;
  unsigned char data[];
};

static unsigned char *arena_take(zti_vocab *v, size_t nbytes) {
  zti_arena_block *b = v->arena;
  if (!b || b->nbytes - b->used < nbytes) {
    size_t room = nbytes > (1 << 16) ? nbytes : 1 << 16;
    b = zt_malloc(sizeof *b + room);
    if (!b) return NULL;
    *b = (zti_arena_block){v->arena, 0, room};
    v->arena = b;
  }
  b->used += nbytes;
  return b->data + b->used - nbytes;
}

static unsigned char *arena_copy(zti_vocab *v, const void *data, size_t nbytes) {
  unsigned char *copy = arena_take(v, nbytes + 1);
  if (!copy) return NULL;
  memcpy(copy, data, nbytes);
  copy[nbytes] = 0;
  return copy;
}

zt_status zti_vocab_reserve(zti_vocab *v, size_t count) {
  ZT_TRY(zti_bytes_map_reserve(&v->by_text, v->count + count));
  size_t limit = 8 * (v->count + count) + (1 << 16);
  v->id_limit = limit < ZTI_NONE ? limit : ZTI_NONE;
  return ZT_OK;
}

static zt_status grow(zti_vocab *v, size_t n_tokens) {
  if (n_tokens > v->capacity) {
    size_t capacity = v->capacity * 2 > n_tokens ? v->capacity * 2 : n_tokens;
    zti_token *tokens = zt_realloc(v->tokens, capacity * sizeof *tokens);
    ZT_CHECK_ALLOC(tokens);
    v->tokens = tokens, v->capacity = capacity;
  }
  if (n_tokens > v->n_tokens) memset(v->tokens + v->n_tokens, 0, (n_tokens - v->n_tokens) * sizeof *v->tokens);
  if (n_tokens > v->n_tokens) v->n_tokens = n_tokens;
  return ZT_OK;
}

static zt_status check_free(const zti_vocab *v, const char *text, size_t ntext, int64_t id) {
  int shown = ntext > 60 ? 60 : (int)ntext;
  if (ntext > UINT32_MAX) return zt_fail(ZT_FORMAT, "a token is %zu bytes long", ntext);
  if (id < 0) return zt_fail(ZT_FORMAT, "token '%.*s' has the id %lld", shown, text, (long long)id);
  if ((uint64_t)id >= v->id_limit)
    return zt_fail(ZT_FORMAT, "token '%.*s' has the id %lld, too high for a vocabulary of this size (the limit is %zu)",
                   shown, text, (long long)id, v->id_limit);
  if (zti_vocab_has(v, id))
    return zt_fail(ZT_FORMAT, "id %lld is that of '%.60s' and of '%.*s'", (long long)id, v->tokens[id].text, shown,
                   text);
  uint32_t other = zti_vocab_id(v, text, ntext);
  if (other != ZTI_NONE)
    return zt_fail(ZT_FORMAT, "token '%.*s' has the ids %u and %lld", shown, text, other, (long long)id);
  return ZT_OK;
}

zt_status zti_vocab_add_literal(zti_vocab *v, const char *text, size_t ntext, int64_t id) {
  ZT_TRY(check_free(v, text, ntext, id));
  ZT_TRY(grow(v, (size_t)id + 1));
  const unsigned char *copy = arena_copy(v, text, ntext);
  ZT_CHECK_ALLOC(copy);
  ZT_TRY(zti_bytes_map_put(&v->by_text, copy, ntext, (uint32_t)id));
  v->tokens[id] = (zti_token){copy, copy, (uint32_t)ntext, (uint32_t)ntext, false};
  v->count++;
  return ZT_OK;
}

/* The bytes that 'text' spells in the alphabet, into out (ntext long at most); false: some of it is not of the
** alphabet. */
static bool read_alphabet(const unsigned char *text, size_t ntext, unsigned char *out, size_t *nbytes) {
  const unsigned char *end = text + ntext;
  *nbytes = 0;
  if (zti_utf8_run(text, end) != end) return false;
  while (text < end) {
    int byte = zti_alphabet_byte(zti_utf8_next(&text));
    if (byte < 0) return false;
    out[(*nbytes)++] = (unsigned char)byte;
  }
  return true;
}

zt_status zti_vocab_add(zti_vocab *v, const char *text, size_t ntext, int64_t id) {
  ZT_TRY(zti_vocab_add_literal(v, text, ntext, id));
  zti_token *token = &v->tokens[id];
  token->of_model = true;
  size_t nbytes = 0;
  unsigned char *bytes = arena_take(v, ntext + 1);
  ZT_CHECK_ALLOC(bytes);
  if (read_alphabet(token->text, ntext, bytes, &nbytes)) {
    bytes[nbytes] = 0;
    token->bytes = bytes, token->nbytes = (uint32_t)nbytes;
  }
  return ZT_OK;
}

void zti_vocab_set_literal(zti_vocab *v, uint32_t id) {
  v->tokens[id].bytes = v->tokens[id].text;
  v->tokens[id].nbytes = v->tokens[id].ntext;
}

void zti_vocab_clear(zti_vocab *v) {
  for (zti_arena_block *b = v->arena, *next; b; b = next) next = b->next, zt_free(b);
  zti_bytes_map_clear(&v->by_text);
  zt_free(v->tokens);
  *v = (zti_vocab){0};
}
