/* bpe_train.c - learning merges. Words are counted over the files on all cores; then, again and again, the most
** frequent pair of neighbours becomes a token. A heap holds the pairs by count, each pair knows the words that it
** is in, so a merge touches those words alone (Sennrich et al., 2016, with the incremental counts of their
** reference code). */
#include <omp.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/io/file.h"
#include "core/text/pipeline.h"
#include "core/text/utf8.h"

enum { CHUNK = 1 << 20 }; /* bytes of a file that a thread counts at a time */

/* --- counting words */

/* Words point into the mapped files. */
typedef struct word_counts {
  zti_bytes_map numbers; /* word -> place in counts */
  int64_t *counts;
  size_t count, capacity;
} word_counts;

static zt_status count_word(word_counts *w, const unsigned char *word, size_t nbytes, int64_t times) {
  uint32_t number = zti_bytes_map_get(&w->numbers, word, nbytes);
  if (number != ZTI_NONE) return w->counts[number] += times, ZT_OK;
  if (w->count == ZTI_NONE) return zt_fail(ZT_INVALID, "more than %zu different words", w->count);
  if (w->count == w->capacity) {
    size_t capacity = w->capacity ? 2 * w->capacity : 4096;
    int64_t *counts = zt_realloc(w->counts, capacity * sizeof *counts);
    ZT_CHECK_ALLOC(counts);
    w->counts = counts, w->capacity = capacity;
  }
  ZT_TRY(zti_bytes_map_put(&w->numbers, word, nbytes, (uint32_t)w->count));
  w->counts[w->count++] = times;
  return ZT_OK;
}

static void word_counts_clear(word_counts *w) {
  zti_bytes_map_clear(&w->numbers);
  zt_free(w->counts);
  *w = (word_counts){0};
}

static zt_status count_piece(void *user, const unsigned char *piece, size_t nbytes) {
  return count_word(user, piece, nbytes, 1);
}

static const unsigned char *line_end(const unsigned char *p, const unsigned char *end) {
  const unsigned char *stop = memchr(p, '\n', (size_t)(end - p));
  return stop ? stop + 1 : end;
}

/* The lines that start in [begin, begin + CHUNK). */
static zt_status count_chunk(const zt_map *map, size_t begin, const zti_split *split, zti_regex_match *match,
                             word_counts *w) {
  const unsigned char *end = map->data + map->nbytes, *p = map->data + begin;
  const unsigned char *stop = map->nbytes - begin > CHUNK ? p + CHUNK : end;
  if (begin > 0 && p[-1] != '\n') p = line_end(p, end);
  for (const unsigned char *next; p < stop; p = next) {
    next = line_end(p, end);
    ZT_TRY(zti_split_run(split, match, p, (size_t)(next - p), count_piece, w));
  }
  return ZT_OK;
}

/* What one thread counts with. Messages are a thread's own, so that of a failure is carried here. */
typedef struct counter {
  zti_regex_match *match;
  word_counts words;
  zt_status st;
  char message[512];
} counter;

static zt_status count_map(const zt_map *map, const zti_split *split, counter *counters, int n_threads) {
  int64_t n_chunks = (int64_t)((map->nbytes + CHUNK - 1) / CHUNK);
#pragma omp parallel for schedule(dynamic) num_threads(n_threads)
  for (int64_t i = 0; i < n_chunks; i++) {
    counter *c = &counters[omp_get_thread_num()];
    if (c->st != ZT_OK) continue;
    c->st = count_chunk(map, (size_t)i * CHUNK, split, c->match, &c->words);
    if (c->st != ZT_OK) strncpy(c->message, zt_message(), sizeof c->message - 1);
  }
  for (int i = 0; i < n_threads; i++)
    if (counters[i].st != ZT_OK) return zt_fail(counters[i].st, "%s", counters[i].message);
  return ZT_OK;
}

/* All into the first. */
static zt_status merge_counts(counter *counters, int n_threads) {
  for (int i = 1; i < n_threads; i++) {
    word_counts *w = &counters[i].words;
    for (size_t k = 0; w->count > 0 && k <= w->numbers.mask; k++) {
      const zti_bytes_slot *s = &w->numbers.slots[k];
      if (s->key) ZT_TRY(count_word(&counters[0].words, s->key, s->nbytes, w->counts[s->value]));
    }
    word_counts_clear(w);
  }
  return ZT_OK;
}

static zt_status count_files(const zt_map *maps, size_t n_maps, word_counts *out) {
  int n_threads = omp_get_max_threads();
  zti_split split = {0};
  zt_status st = ZT_OK;
  counter *counters = zt_calloc((size_t)n_threads, sizeof *counters);
  ZT_CHECK_ALLOC(counters);
  ZT_TRY_GOTO(zti_split_add_gpt2(&split), done);
  for (int i = 0; i < n_threads; i++) ZT_TRY_GOTO(zti_regex_match_new(&counters[i].match), done);
  for (size_t i = 0; i < n_maps; i++) ZT_TRY_GOTO(count_map(&maps[i], &split, counters, n_threads), done);
  ZT_TRY_GOTO(merge_counts(counters, n_threads), done);
  *out = counters[0].words;
  counters[0].words = (word_counts){0};
done:
  for (int i = 0; i < n_threads; i++) {
    zti_regex_match_free(counters[i].match);
    word_counts_clear(&counters[i].words);
  }
  zti_split_clear(&split);
  zt_free(counters);
  return st;
}

/* --- pairs */

typedef struct pair_info {
  int64_t count;
  uint32_t left, right;
  uint32_t *words; /* that it is or was in; owned */
  uint32_t n_words, capacity;
  uint32_t round; /* the last one in which it got more */
} pair_info;

typedef struct heap_entry {
  int64_t count; /* when it was pushed: more than the pair's count means that it is stale */
  uint32_t pair;
} heap_entry;

typedef struct word {
  size_t begin; /* in symbols */
  uint32_t count;
  int64_t times;
} word;

typedef struct trainer {
  zt_tokenizer *tok;
  uint32_t *symbols; /* of all words */
  word *words;
  size_t n_words;
  zti_pair_map numbers; /* pair -> place in pairs */
  pair_info *pairs;
  size_t n_pairs, pairs_capacity;
  heap_entry *heap;
  size_t n_heap, heap_capacity;
  uint32_t *grown; /* pairs that got more in this round */
  size_t n_grown, grown_capacity;
  uint32_t round;
} trainer;

/* Room for one more element, doubling. */
static zt_status room_for_one(void **array, size_t count, size_t *capacity, size_t nbytes_each) {
  if (count < *capacity) return ZT_OK;
  size_t more = *capacity ? 2 * *capacity : 1024;
  void *bigger = zt_realloc(*array, more * nbytes_each);
  ZT_CHECK_ALLOC(bigger);
  *array = bigger, *capacity = more;
  return ZT_OK;
}

static zt_status find_pair(trainer *t, uint32_t left, uint32_t right, uint32_t *number) {
  uint64_t key = zti_pair(left, right);
  *number = zti_pair_map_get(&t->numbers, key);
  if (*number != ZTI_NONE) return ZT_OK;
  ZT_TRY(room_for_one((void **)&t->pairs, t->n_pairs, &t->pairs_capacity, sizeof *t->pairs));
  *number = (uint32_t)t->n_pairs;
  ZT_TRY(zti_pair_map_put(&t->numbers, key, *number));
  t->pairs[t->n_pairs++] = (pair_info){.left = left, .right = right};
  return ZT_OK;
}

static zt_status add_to_pair(trainer *t, uint32_t left, uint32_t right, uint32_t w) {
  uint32_t number;
  ZT_TRY(find_pair(t, left, right, &number));
  pair_info *p = &t->pairs[number];
  p->count += t->words[w].times;
  if (p->round != t->round) {
    ZT_TRY(room_for_one((void **)&t->grown, t->n_grown, &t->grown_capacity, sizeof *t->grown));
    t->grown[t->n_grown++] = number;
    p->round = t->round;
  }
  if (p->n_words > 0 && p->words[p->n_words - 1] == w) return ZT_OK;
  if (p->n_words == p->capacity) {
    uint32_t capacity = p->capacity ? 2 * p->capacity : 4;
    uint32_t *words = zt_realloc(p->words, capacity * sizeof *words);
    ZT_CHECK_ALLOC(words);
    p->words = words, p->capacity = capacity;
  }
  p->words[p->n_words++] = w;
  return ZT_OK;
}

static void take_from_pair(trainer *t, uint32_t left, uint32_t right, uint32_t w) {
  uint32_t number = zti_pair_map_get(&t->numbers, zti_pair(left, right));
  if (number != ZTI_NONE) t->pairs[number].count -= t->words[w].times;
}

/* --- the heap: most frequent first, then the lower ids */

static bool comes_before(const trainer *t, heap_entry a, heap_entry b) {
  const pair_info *p = &t->pairs[a.pair], *q = &t->pairs[b.pair];
  return a.count != b.count ? a.count > b.count : zti_pair(p->left, p->right) < zti_pair(q->left, q->right);
}

static zt_status heap_push(trainer *t, heap_entry entry) {
  ZT_TRY(room_for_one((void **)&t->heap, t->n_heap, &t->heap_capacity, sizeof *t->heap));
  size_t i = t->n_heap++;
  for (; i > 0 && comes_before(t, entry, t->heap[(i - 1) / 2]); i = (i - 1) / 2) t->heap[i] = t->heap[(i - 1) / 2];
  t->heap[i] = entry;
  return ZT_OK;
}

static heap_entry heap_pop(trainer *t) {
  heap_entry first = t->heap[0], moved = t->heap[--t->n_heap];
  size_t i = 0, count = t->n_heap;
  for (size_t child = 1; child < count; i = child, child = 2 * i + 1) {
    if (child + 1 < count && comes_before(t, t->heap[child + 1], t->heap[child])) child++;
    if (!comes_before(t, t->heap[child], moved)) break;
    t->heap[i] = t->heap[child];
  }
  t->heap[i] = moved;
  return first;
}

/* Pairs that grew in this round, with their counts now. */
static zt_status push_grown(trainer *t) {
  for (size_t i = 0; i < t->n_grown; i++) {
    heap_entry entry = {t->pairs[t->grown[i]].count, t->grown[i]};
    if (entry.count > 0) ZT_TRY(heap_push(t, entry));
  }
  t->n_grown = 0;
  t->round++;
  return ZT_OK;
}

/* The most frequent pair; false: none is left. */
static zt_status pop_most_frequent(trainer *t, heap_entry *out, bool *found) {
  for (*found = false; t->n_heap > 0 && !*found;) {
    *out = heap_pop(t);
    int64_t count = t->pairs[out->pair].count;
    *found = count == out->count;
    if (!*found && count > 0) ZT_TRY(heap_push(t, (heap_entry){count, out->pair}));
  }
  return ZT_OK;
}

/* --- learning */

/* Words as the ids of their bytes. */
static zt_status make_words(trainer *t, const word_counts *counts) {
  size_t n_symbols = 0, at = 0;
  const zti_bytes_map *map = &counts->numbers;
  for (size_t i = 0; counts->count > 0 && i <= map->mask; i++)
    n_symbols += map->slots[i].key ? map->slots[i].nbytes : 0;
  t->symbols = zt_malloc(n_symbols * sizeof *t->symbols);
  t->words = zt_malloc(counts->count * sizeof *t->words);
  if (!t->symbols || !t->words) return ZT_NOMEM;
  for (size_t i = 0; counts->count > 0 && i <= map->mask; i++) {
    const zti_bytes_slot *s = &map->slots[i];
    if (!s->key) continue;
    t->words[t->n_words++] = (word){at, s->nbytes, counts->counts[s->value]};
    for (size_t k = 0; k < s->nbytes; k++) t->symbols[at++] = t->tok->bpe.byte_ids[s->key[k]];
  }
  return ZT_OK;
}

static zt_status count_pairs(trainer *t) {
  for (uint32_t w = 0; w < t->n_words; w++) {
    const uint32_t *s = t->symbols + t->words[w].begin;
    for (uint32_t i = 0; i + 1 < t->words[w].count; i++) ZT_TRY(add_to_pair(t, s[i], s[i + 1], w));
  }
  return push_grown(t);
}

/* Replaces a pair by 'id' in one word, left to right, and moves the counts of its neighbours. */
static zt_status merge_in_word(trainer *t, uint32_t left, uint32_t right, uint32_t id, uint32_t w) {
  uint32_t *s = t->symbols + t->words[w].begin, count = t->words[w].count, n = 0;
  for (uint32_t i = 0; i < count; i++) {
    if (s[i] != left || i + 1 == count || s[i + 1] != right) {
      s[n++] = s[i];
      continue;
    }
    if (n > 0) take_from_pair(t, s[n - 1], left, w);
    if (n > 0) ZT_TRY(add_to_pair(t, s[n - 1], id, w));
    if (i + 2 < count) take_from_pair(t, right, s[i + 2], w);
    if (i + 2 < count) ZT_TRY(add_to_pair(t, id, s[i + 2], w));
    s[n++] = id;
    i++;
  }
  t->words[w].count = n;
  return ZT_OK;
}

/* The token that a pair becomes: a new id, or that of a token which is spelled the same. */
static zt_status joined_token(zt_tokenizer *tok, uint32_t left, uint32_t right, uint32_t *id) {
  const zti_token a = tok->vocab.tokens[left], b = tok->vocab.tokens[right];
  size_t ntext = (size_t)a.ntext + b.ntext;
  char *text = zt_malloc(ntext);
  ZT_CHECK_ALLOC(text);
  memcpy(text, a.text, a.ntext);
  memcpy(text + a.ntext, b.text, b.ntext);
  *id = zti_vocab_id(&tok->vocab, text, ntext);
  zt_status st = ZT_OK;
  if (*id == ZTI_NONE) {
    *id = (uint32_t)tok->vocab.n_tokens;
    st = zti_vocab_add(&tok->vocab, text, ntext, *id);
  }
  if (st == ZT_OK)
    st = zti_bpe_add_merge(&tok->bpe, &tok->vocab, (const char *)a.text, a.ntext, (const char *)b.text, b.ntext);
  zt_free(text);
  return st;
}

static zt_status merge_pair(trainer *t, uint32_t number) {
  pair_info p = t->pairs[number];
  uint32_t id;
  ZT_TRY(joined_token(t->tok, p.left, p.right, &id));
  t->pairs[number].words = NULL; /* 'p' has them: pairs may move while words change */
  t->pairs[number].n_words = t->pairs[number].capacity = 0;
  t->pairs[number].count = 0;
  zt_status st = ZT_OK;
  for (uint32_t i = 0; st == ZT_OK && i < p.n_words; i++) st = merge_in_word(t, p.left, p.right, id, p.words[i]);
  zt_free(p.words);
  return st == ZT_OK ? push_grown(t) : st;
}

static zt_status learn(trainer *t, const zt_bpe_options *o) {
  heap_entry most;
  bool found;
  int64_t least = o->min_frequency > 1 ? (int64_t)o->min_frequency : 1;
  ZT_TRY(zti_vocab_reserve(&t->tok->vocab, o->vocab_size));
  ZT_TRY(count_pairs(t));
  while (t->tok->vocab.n_tokens < o->vocab_size) {
    ZT_TRY(pop_most_frequent(t, &most, &found));
    if (!found || most.count < least) break;
    ZT_TRY(merge_pair(t, most.pair));
  }
  return ZT_OK;
}

static void trainer_clear(trainer *t) {
  for (size_t i = 0; i < t->n_pairs; i++) zt_free(t->pairs[i].words);
  zti_pair_map_clear(&t->numbers);
  zt_free(t->pairs);
  zt_free(t->heap);
  zt_free(t->grown);
  zt_free(t->symbols);
  zt_free(t->words);
}

/* --- the tokenizer around it */

/* Special tokens, then the 256 bytes in the order of the characters that spell them. */
static zt_status first_tokens(zt_tokenizer *tok, const char *const *special) {
  size_t n_special = 0;
  while (special && special[n_special]) n_special++;
  ZT_TRY(zti_vocab_reserve(&tok->vocab, n_special + 256));
  for (size_t i = 0; i < n_special; i++) {
    if (!*special[i]) return zt_fail(ZT_INVALID, "special token %zu is empty", i + 1);
    ZT_TRY(zti_vocab_add(&tok->vocab, special[i], strlen(special[i]), (int64_t)i));
    ZT_TRY(zti_added_put(&tok->added, (zti_added_token){.id = (uint32_t)i, .special = true}));
  }
  for (uint32_t c = 0; c < 324; c++) {
    unsigned char text[2];
    int byte = zti_alphabet_byte(c);
    if (byte < 0) continue;
    size_t ntext = zti_alphabet_spell((unsigned char)byte, text);
    tok->bpe.byte_ids[byte] = zti_vocab_id(&tok->vocab, text, ntext);
    if (tok->bpe.byte_ids[byte] != ZTI_NONE) continue;
    tok->bpe.byte_ids[byte] = (uint32_t)tok->vocab.n_tokens;
    ZT_TRY(zti_vocab_add(&tok->vocab, (const char *)text, ntext, (int64_t)tok->vocab.n_tokens));
  }
  if (n_special > 0) tok->special[ZTI_ROLE_bos] = tok->special[ZTI_ROLE_eos] = 0;
  return ZT_OK;
}

static zt_status finish(zt_tokenizer *tok) {
  static const char sections[] =
      "{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true},"
      "\"post_processor\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":false,\"use_regex\":true},"
      "\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true}}";
  json_t *root = NULL;
  ZT_TRY(zt_json_parse("sections", sections, strlen(sections), &root));
  zt_status st = zti_read_sections(root, tok);
  json_decref(root);
  ZT_TRY(st);
  ZT_TRY(zti_bpe_finish(&tok->bpe, &tok->vocab));
  for (size_t i = 0; i < tok->added.count; i++) zti_vocab_set_literal(&tok->vocab, tok->added.list[i].id);
  return zti_tokenizer_finish(tok);
}

static zt_status train(zt_tokenizer *tok, const zt_map *maps, size_t n_maps, const zt_bpe_options *o) {
  word_counts counts = {0};
  trainer t = {.tok = tok, .round = 1};
  ZT_TRY(first_tokens(tok, o->special_tokens));
  if (o->vocab_size < tok->vocab.n_tokens || o->vocab_size > 1 << 24)
    return zt_fail(ZT_INVALID, "vocab_size %zu: %zu (the bytes and the special tokens) to %d are possible",
                   o->vocab_size, tok->vocab.n_tokens, 1 << 24);
  zt_status st = count_files(maps, n_maps, &counts);
  if (st == ZT_OK) st = make_words(&t, &counts);
  word_counts_clear(&counts);
  if (st == ZT_OK) st = learn(&t, o);
  trainer_clear(&t);
  return st == ZT_OK ? finish(tok) : st;
}

zt_status zt_tokenizer_train_bpe(const char *const *paths, size_t n_paths, const zt_bpe_options *o,
                                 zt_tokenizer **out) {
  zt_tokenizer *tok = NULL;
  zt_status st = ZT_OK;
  size_t n_maps = 0;
  *out = NULL;
  zt_map *maps = zt_calloc(n_paths, sizeof *maps);
  ZT_CHECK_ALLOC(maps);
  for (; st == ZT_OK && n_maps < n_paths; n_maps++) st = zt_map_open(paths[n_maps], &maps[n_maps]);
  if (st != ZT_OK) n_maps--;
  if (st == ZT_OK) st = zti_tokenizer_new(&tok);
  if (st == ZT_OK) st = zt_wrap(train(tok, maps, n_maps, o), "training a tokenizer");
  for (size_t i = 0; i < n_maps; i++) zt_map_close(&maps[i]);
  zt_free(maps);
  if (st == ZT_OK)
    *out = tok;
  else
    zt_tokenizer_free(tok);
  return st;
}
