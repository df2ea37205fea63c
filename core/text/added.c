#include "core/text/added.h"

#include <stdlib.h>

#include "core/base/mem.h"
#include "core/text/utf8.h"

/* --- the list */

const zti_added_token *zti_added_get(const zti_added *a, int64_t id) {
  uint32_t place = id < 0 || id >= ZTI_NONE ? ZTI_NONE : zti_pair_map_get(&a->by_id, (uint64_t)id);
  return place == ZTI_NONE ? NULL : &a->list[place];
}

zt_status zti_added_put(zti_added *a, zti_added_token token) {
  const zti_added_token *old = zti_added_get(a, token.id);
  if (old) return a->list[old - a->list] = token, ZT_OK;
  if (a->count == a->capacity) {
    size_t capacity = a->capacity ? 2 * a->capacity : 16;
    zti_added_token *list = zt_realloc(a->list, capacity * sizeof *list);
    ZT_CHECK_ALLOC(list);
    a->list = list, a->capacity = capacity;
  }
  ZT_TRY(zti_pair_map_put(&a->by_id, token.id, (uint32_t)a->count));
  a->list[a->count++] = token;
  return ZT_OK;
}

/* --- the sets */

static int by_text(const void *left, const void *right) {
  const zti_token *a = *(const zti_token *const *)left, *b = *(const zti_token *const *)right;
  size_t common = a->ntext < b->ntext ? a->ntext : b->ntext;
  int order = memcmp(a->text, b->text, common);
  return order ? order : (a->ntext > b->ntext) - (a->ntext < b->ntext);
}

static zt_status make_set(const zti_added *a, const zti_vocab *v, bool normalized, zti_added_set *set) {
  set->texts = zt_malloc((a->count + 1) * sizeof *set->texts);
  set->tokens = zt_malloc((a->count + 1) * sizeof *set->tokens);
  if (!set->texts || !set->tokens) return ZT_NOMEM;
  for (size_t i = 0; i < a->count; i++) {
    const zti_token *t = &v->tokens[a->list[i].id];
    if (a->list[i].normalized != normalized || t->ntext == 0) continue;
    set->texts[set->count++] = t;
    set->starts[t->text[0]] = true;
  }
  qsort(set->texts, set->count, sizeof *set->texts, by_text);
  for (size_t i = 0; i < set->count; i++) set->tokens[i] = zti_added_get(a, set->texts[i] - v->tokens);
  return ZT_OK;
}

zt_status zti_added_finish(zti_added *a, const zti_vocab *v) {
  /* Unicode's definition of a word character (UTS 18, annex C), which \w of PCRE2 10.42 is not */
  static const char word[] = "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}]", space[] = "\\s";
  ZT_TRY(make_set(a, v, false, &a->sets[0]));
  ZT_TRY(make_set(a, v, true, &a->sets[1]));
  ZT_TRY(zti_regex_new(word, strlen(word), false, &a->word));
  return zti_regex_new(space, strlen(space), false, &a->space);
}

void zti_added_clear(zti_added *a) {
  for (int i = 0; i < 2; i++) zt_free(a->sets[i].texts), zt_free(a->sets[i].tokens);
  zti_pair_map_clear(&a->by_id);
  zti_regex_free(a->word);
  zti_regex_free(a->space);
  zt_free(a->list);
  *a = (zti_added){0};
}

/* --- finding them in text */

/* The first of texts[low .. high) whose byte 'depth' is not below 'byte' (a text that ends there comes first). */
static size_t lower_bound(const zti_added_set *set, size_t low, size_t high, size_t depth, unsigned byte) {
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    const zti_token *t = set->texts[middle];
    if (t->ntext <= depth || t->text[depth] < byte)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

/* The number of the longest token that 'text' starts with; ZTI_NONE: none. */
static size_t longest_at(const zti_added_set *set, const unsigned char *text, const unsigned char *end, bool plain) {
  size_t longest = ZTI_NONE, low = 0, high = set->count;
  for (size_t depth = 0; text + depth < end && low < high; depth++) {
    unsigned byte = text[depth];
    low = lower_bound(set, low, high, depth, byte);
    high = lower_bound(set, low, high, depth, byte + 1);
    bool ends = low < high && set->texts[low]->ntext == depth + 1;
    if (ends && !(plain && set->tokens[low]->special)) longest = low;
  }
  return longest;
}

typedef struct scan {
  const zti_added *added;
  zti_regex_match *match;
  const unsigned char *text, *end;
  bool plain;
  zti_segment_fn fn;
  void *user;
} scan;

/* Whether the character at 'p', or with 'before' the one that ends there, is of a kind; '*nbytes' is its length. */
static zt_status is_kind(const scan *s, const zti_regex *kind, const unsigned char *p, bool before, bool *is,
                         size_t *nbytes) {
  size_t begin, end;
  *is = false, *nbytes = 0;
  if (before) {
    const unsigned char *stop = p;
    while (p > s->text && stop - p < 4 && (p == stop || (*p & 0xc0) == 0x80)) p--;
    if (p == stop || p + zti_utf8_length(p, stop) != stop) return ZT_OK;
  }
  if (p == s->end || (*nbytes = zti_utf8_length(p, s->end)) == 0) return ZT_OK;
  return zti_regex_find(kind, s->match, p, *nbytes, 0, is, &begin, &end);
}

static zt_status touches_word(const scan *s, const unsigned char *from, const unsigned char *to, bool *touches) {
  size_t nbytes;
  ZT_TRY(is_kind(s, s->added->word, from, true, touches, &nbytes));
  return *touches ? ZT_OK : is_kind(s, s->added->word, to, false, touches, &nbytes);
}

/* Moves the bounds of a match over white space; not further back than 'least'. */
static zt_status strip(const scan *s, const zti_added_token *t, const unsigned char *least, const unsigned char **from,
                       const unsigned char **to) {
  bool is = t->lstrip;
  size_t nbytes;
  while (is && *from > least) {
    ZT_TRY(is_kind(s, s->added->space, *from, true, &is, &nbytes));
    if (is) *from -= nbytes;
  }
  for (is = t->rstrip; is;) {
    ZT_TRY(is_kind(s, s->added->space, *to, false, &is, &nbytes));
    if (is) *to += nbytes;
  }
  return ZT_OK;
}

/* Sends on what lies between two tokens: to the other set, or out. */
static zt_status split_set(const scan *s, int number);
static zt_status between(const scan *s, int number, const unsigned char *from, const unsigned char *to) {
  scan rest = *s;
  rest.text = from, rest.end = to;
  if (from >= to) return ZT_OK;
  return number == 0 ? split_set(&rest, 1) : s->fn(s->user, from, (size_t)(to - from), ZTI_NONE);
}

static zt_status split_set(const scan *s, int number) {
  const zti_added_set *set = &s->added->sets[number];
  const unsigned char *done = s->text, *p = set->count ? s->text : s->end;
  while (p < s->end) {
    size_t found = set->starts[*p] ? longest_at(set, p, s->end, s->plain) : ZTI_NONE;
    if (found == ZTI_NONE) {
      p++;
      continue;
    }
    const zti_added_token *t = set->tokens[found];
    const unsigned char *from = p, *to = p += set->texts[found]->ntext;
    bool touches = false;
    if (t->single_word) ZT_TRY(touches_word(s, from, to, &touches));
    if (touches) continue;
    ZT_TRY(strip(s, t, done, &from, &to));
    ZT_TRY(between(s, number, done, from));
    ZT_TRY(s->fn(s->user, from, (size_t)(to - from), t->id));
    p = done = to;
  }
  return between(s, number, done, s->end);
}

zt_status zti_added_split(const zti_added *a, zti_regex_match *match, const unsigned char *text, size_t nbytes,
                          bool plain, zti_segment_fn fn, void *user) {
  scan s = {a, match, text, text + nbytes, plain, fn, user};
  return split_set(&s, 0);
}
