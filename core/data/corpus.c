#include "core/data/corpus.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/base/buffer.h"
#include "core/base/hash.h"
#include "core/base/log.h"
#include "core/base/mem.h"

enum {
  LINES_PER_GROUP = 1000, /* the batch size of datasets' map */
  GROUPS_PER_WAVE = 64    /* encoded at once: bounds memory */
};

/* --- a cache file is: its key, the ids (uint32, padded to 8 bytes), a row for each group, its end */
typedef struct cache_key {
  char magic[8];
  uint64_t version, path_hash, text_nbytes, text_mtime_ns, tokenizer_hash;
} cache_key;

typedef struct cache_group {
  uint64_t end;  /* tokens in this group and all before it */
  uint64_t hash; /* of its ids */
} cache_group;

typedef struct cache_end {
  uint64_t n_groups, n_tokens;
  uint64_t hash; /* of the key, the groups, and the two numbers before */
} cache_end;

struct zt_corpus {
  char *path;
  size_t block_size;
  zt_map map;          /* the cache file; or else */
  zt_buffer memory;    /* the same bytes */
  const uint32_t *ids; /* in one of them, as the groups are */
  const cache_group *groups;
  size_t n_groups;
  size_t *first_block; /* of each group; and the number of all blocks */
};

static uint64_t end_hash(const cache_key *key, const cache_group *groups, const cache_end *end) {
  uint64_t hash = zt_hash_bytes(0, key, sizeof *key);
  hash = zt_hash_bytes(hash, groups, end->n_groups * sizeof *groups);
  return zt_hash_bytes(hash, end, offsetof(cache_end, hash));
}

static size_t padded_ids_nbytes(uint64_t n_tokens) { return (n_tokens + 1) / 2 * 8; }

/* --- reading a cache. It may be cut off, of another text, or anything at all: nothing is used before it is checked. */

static bool ids_match(const uint32_t *ids, const cache_group *groups, size_t n_groups) {
  bool match = true;
#pragma omp parallel for schedule(dynamic, 16) reduction(&& : match)
  for (size_t g = 0; g < n_groups; g++) {
    uint64_t begin = g ? groups[g - 1].end : 0;
    match = match && zt_hash_bytes(0, ids + begin, (groups[g].end - begin) * sizeof *ids) == groups[g].hash;
  }
  return match;
}

static bool ends_rise(const cache_group *groups, size_t n_groups, uint64_t n_tokens) {
  uint64_t end = 0;
  for (size_t g = 0; g < n_groups; g++) {
    if (groups[g].end < end) return false;
    end = groups[g].end;
  }
  return end == n_tokens;
}

/* Points the corpus into a cache's bytes (8-aligned) where they are what 'key' stands for. */
static bool use_bytes(zt_corpus *corpus, const cache_key *key, const void *bytes, size_t nbytes) {
  const char *data = bytes;
  cache_end end;
  if (nbytes < sizeof *key + sizeof end || memcmp(data, key, sizeof *key) != 0) return false;
  memcpy(&end, data + nbytes - sizeof end, sizeof end);
  size_t room = nbytes - sizeof *key - sizeof end;
  if (end.n_groups > room / sizeof(cache_group) || end.n_tokens > room / sizeof(uint32_t)) return false;
  size_t ids_nbytes = padded_ids_nbytes(end.n_tokens), groups_nbytes = end.n_groups * sizeof(cache_group);
  if (ids_nbytes + groups_nbytes != room) return false;
  const uint32_t *ids = (const void *)(data + sizeof *key);
  const cache_group *groups = (const void *)(data + sizeof *key + ids_nbytes);
  if (end_hash(key, groups, &end) != end.hash || !ends_rise(groups, end.n_groups, end.n_tokens)) return false;
  if (!ids_match(ids, groups, end.n_groups)) return false;
  corpus->ids = ids, corpus->groups = groups, corpus->n_groups = end.n_groups;
  return true;
}

static bool use_cache(zt_corpus *corpus, const cache_key *key, const char *cache_path) {
  if (zt_map_open(cache_path, &corpus->map) != ZT_OK) return false;
  if (use_bytes(corpus, key, corpus->map.data, corpus->map.nbytes)) return true;
  zt_map_close(&corpus->map);
  return false;
}

/* --- encoding */

/* What a worker made of one group. A worker's message is its own thread's, so it is carried over. */
typedef struct encoded {
  uint32_t *ids;
  size_t count;
  uint64_t hash;
  zt_status st;
  char message[256];
} encoded;

static zt_status pack(encoded *e, const zt_ids *ids) {
  e->ids = zt_malloc(ids->count * sizeof *e->ids);
  ZT_CHECK_ALLOC(e->ids);
  e->count = ids->count;
  for (size_t i = 0; i < ids->count; i++) {
    if (ids->data[i] < 0 || ids->data[i] > UINT32_MAX)
      return zt_fail(ZT_INVALID, "token id %lld does not fit in 32 bits", (long long)ids->data[i]);
    e->ids[i] = (uint32_t)ids->data[i];
  }
  e->hash = zt_hash_bytes(0, e->ids, e->count * sizeof *e->ids);
  return ZT_OK;
}

static const char *next_line(const char *text, const char *end) {
  const char *newline = memchr(text, '\n', (size_t)(end - text));
  return newline ? newline + 1 : end;
}

static zt_status encode_lines(const zt_tokenizer *tok, const char *text, const char *end, encoded *e) {
  static const zt_encode_options options = {.add_special_tokens = false};
  zt_ids ids = {0};
  zt_status st = ZT_OK;
  for (const char *next; text < end && st == ZT_OK; text = next) {
    next = next_line(text, end);
    st = zt_tokenizer_encode(tok, text, (size_t)(next - text), &options, &ids);
  }
  if (st == ZT_OK) st = pack(e, &ids);
  zt_ids_clear(&ids);
  return st;
}

/* Where groups begin, and where the text ends. */
typedef struct group_list {
  const char **starts; /* n_groups + 1 */
  size_t n_groups;
} group_list;

static zt_status find_groups(const char *text, const char *end, group_list *out) {
  zt_buffer starts = {0};
  zt_status st = ZT_OK;
  *out = (group_list){0};
  while (text < end && st == ZT_OK) {
    st = zt_buffer_add(&starts, &text, sizeof text);
    for (int i = 0; i < LINES_PER_GROUP && text < end; i++) text = next_line(text, end);
    out->n_groups++;
  }
  if (st == ZT_OK) st = zt_buffer_add(&starts, &text, sizeof text);
  if (st != ZT_OK) zt_buffer_clear(&starts);
  out->starts = (void *)starts.data;
  return st;
}

/* Encodes 'count' groups from 'first' on. The groups do not depend on each other, so that the threads change nothing. */
static zt_status encode_wave(const zt_tokenizer *tok, const group_list *groups, size_t first, size_t count,
                             encoded *wave) {
#pragma omp parallel for schedule(dynamic)
  for (size_t i = 0; i < count; i++) {
    encoded *e = &wave[i];
    e->st = encode_lines(tok, groups->starts[first + i], groups->starts[first + i + 1], e);
    if (e->st != ZT_OK) snprintf(e->message, sizeof e->message, "%s", zt_message());
  }
  for (size_t i = 0; i < count; i++)
    if (wave[i].st != ZT_OK)
      return zt_fail(wave[i].st, "lines from %zu on: %s", (first + i) * LINES_PER_GROUP + 1, wave[i].message);
  return ZT_OK;
}

/* --- writing a cache, to a file or to memory */

typedef struct sink {
  zt_writer *file; /* NULL: memory */
  zt_buffer *memory;
} sink;

static zt_status emit(const sink *to, const void *data, size_t nbytes) {
  return to->file ? zt_writer_write(to->file, data, nbytes) : zt_buffer_add(to->memory, data, nbytes);
}

static zt_status emit_wave(const sink *to, const encoded *wave, size_t count, cache_group *rows, uint64_t *n_tokens) {
  for (size_t i = 0; i < count; i++) {
    ZT_TRY(emit(to, wave[i].ids, wave[i].count * sizeof *wave[i].ids));
    rows[i] = (cache_group){ *n_tokens += wave[i].count, wave[i].hash};
  }
  return ZT_OK;
}

static zt_status emit_groups(const sink *to, const zt_tokenizer *tok, const group_list *groups, encoded *wave,
                             cache_group *rows, uint64_t *n_tokens) {
  zt_status st = ZT_OK;
  for (size_t first = 0, count; first < groups->n_groups && st == ZT_OK; first += count) {
    count = groups->n_groups - first < GROUPS_PER_WAVE ? groups->n_groups - first : GROUPS_PER_WAVE;
    st = encode_wave(tok, groups, first, count, wave);
    if (st == ZT_OK) st = emit_wave(to, wave, count, rows + first, n_tokens);
    for (size_t i = 0; i < count; i++) zt_free(wave[i].ids);
    memset(wave, 0, count * sizeof *wave);
  }
  return st;
}

static zt_status emit_end(const sink *to, const cache_key *key, const cache_group *rows, size_t n_groups,
                          uint64_t n_tokens) {
  static const uint32_t padding = 0;
  cache_end end = {n_groups, n_tokens, 0};
  end.hash = end_hash(key, rows, &end);
  if (n_tokens % 2) ZT_TRY(emit(to, &padding, sizeof padding));
  ZT_TRY(emit(to, rows, n_groups * sizeof *rows));
  return emit(to, &end, sizeof end);
}

static zt_status emit_all(const sink *to, const cache_key *key, const zt_map *text, const zt_tokenizer *tok) {
  group_list groups;
  uint64_t n_tokens = 0;
  ZT_TRY(emit(to, key, sizeof *key));
  ZT_TRY(find_groups((const char *)text->data, (const char *)text->data + text->nbytes, &groups));
  cache_group *rows = zt_malloc(groups.n_groups * sizeof *rows);
  encoded *wave = rows ? zt_calloc(GROUPS_PER_WAVE, sizeof *wave) : NULL;
  zt_status st = wave ? emit_groups(to, tok, &groups, wave, rows, &n_tokens) : ZT_NOMEM;
  if (st == ZT_OK) st = emit_end(to, key, rows, groups.n_groups, n_tokens);
  zt_free(wave);
  zt_free(rows);
  zt_free(groups.starts);
  return st;
}

static zt_status write_cache(const char *cache_path, const cache_key *key, const zt_map *text,
                             const zt_tokenizer *tok) {
  sink to = {0};
  ZT_TRY(zt_writer_open(cache_path, &to.file));
  zt_status st = emit_all(&to, key, text, tok);
  if (st == ZT_OK) return zt_writer_commit(to.file);
  zt_writer_abort(to.file);
  return st;
}

/* --- opening */

static zt_status make_key(const char *path, const zt_tokenizer *tok, cache_key *key) {
  char full_path[PATH_MAX];
  struct stat info;
  if (stat(path, &info) != 0 || !realpath(path, full_path)) return zt_fail(ZT_IO, "cannot read '%s': %m", path);
  *key = (cache_key){"ZTIDS\r\n", 1, 0, 0, 0, 0};
  key->path_hash = zt_hash_bytes(0, full_path, strlen(full_path));
  key->text_nbytes = (uint64_t)info.st_size;
  key->text_mtime_ns = (uint64_t)info.st_mtim.tv_sec * 1000000000u + (uint64_t)info.st_mtim.tv_nsec;
  key->tokenizer_hash = zt_tokenizer_hash(tok);
  return ZT_OK;
}

/* Where the cache goes: one file for a text and a tokenizer, so that a changed text replaces its old cache. 'out' stays
** empty where no place is known. */
static zt_status cache_path(const char *folder, const cache_key *key, zt_buffer *out) {
  const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
  if (folder)
    ZT_TRY(zt_buffer_addf(out, "%s", folder));
  else if (xdg && *xdg == '/') /* relative ones are to be ignored, the XDG specification says */
    ZT_TRY(zt_buffer_addf(out, "%s/ztrain", xdg));
  else if (home && *home)
    ZT_TRY(zt_buffer_addf(out, "%s/.cache/ztrain", home));
  else
    return ZT_OK;
  zt_status st = zt_make_dirs(out->data);
  if (st == ZT_NOMEM) return st; /* after any other failure the file cannot be written either, which says why */
  return zt_buffer_addf(out, "/corpus-%016llx.ids",
                        (unsigned long long)zt_rng_mix(key->path_hash, key->tokenizer_hash));
}

/* Encodes the text into the cache file; where that cannot be written, or was replaced at once by another, into memory. */
static zt_status encode(zt_corpus *corpus, const cache_key *key, const zt_tokenizer *tok, const char *cache) {
  zt_map text;
  ZT_TRY(zt_map_open(corpus->path, &text));
  zt_status st = cache ? write_cache(cache, key, &text, tok) : ZT_OK;
  if (st == ZT_IO) {
    zt_log("the ids of '%s' are not kept: %s", corpus->path, zt_message());
    st = ZT_OK;
  }
  bool in_use = st == ZT_OK && cache && use_cache(corpus, key, cache);
  if (st == ZT_OK && !in_use) {
    st = emit_all(&(sink){.memory = &corpus->memory}, key, &text, tok);
    if (st == ZT_OK) use_bytes(corpus, key, corpus->memory.data, corpus->memory.nbytes);
  }
  zt_map_close(&text);
  return zt_wrap(st, "%s", corpus->path);
}

/* Of several processes that want the same ids at once, the first encodes, and the others wait and read. Where a folder
** cannot be locked, each encodes. */
static zt_status encode_once(zt_corpus *corpus, const cache_key *key, const zt_tokenizer *tok, const char *cache) {
  int lock;
  zt_status st = cache ? zt_folder_lock(cache, &lock) : ZT_IO;
  if (st == ZT_NOMEM) return st;
  bool locked = st == ZT_OK;
  st = locked && use_cache(corpus, key, cache) ? ZT_OK : encode(corpus, key, tok, cache);
  if (locked) zt_folder_unlock(lock);
  return st;
}

static zt_status find_ids(zt_corpus *corpus, const zt_tokenizer *tok, const char *cache_folder) {
  cache_key key;
  zt_buffer cache = {0};
  ZT_TRY(make_key(corpus->path, tok, &key));
  if (key.text_nbytes == 0) return zt_fail(ZT_FORMAT, "%s: the file is empty", corpus->path);
  zt_status st = cache_path(cache_folder, &key, &cache);
  bool in_use = st == ZT_OK && cache.data && use_cache(corpus, &key, cache.data);
  if (st == ZT_OK && !in_use) st = encode_once(corpus, &key, tok, cache.data);
  zt_buffer_clear(&cache);
  return st;
}

static zt_status cut_blocks(zt_corpus *corpus) {
  corpus->first_block = zt_malloc((corpus->n_groups + 1) * sizeof *corpus->first_block);
  ZT_CHECK_ALLOC(corpus->first_block);
  size_t n_blocks = 0, begin = 0;
  for (size_t g = 0; g < corpus->n_groups; g++) {
    corpus->first_block[g] = n_blocks;
    n_blocks += (corpus->groups[g].end - begin) / corpus->block_size;
    begin = corpus->groups[g].end;
  }
  corpus->first_block[corpus->n_groups] = n_blocks;
  if (n_blocks) return ZT_OK;
  return zt_fail(ZT_FORMAT, "%s: too short: its %zu tokens, in groups of %d lines, fill no block of %zu", corpus->path,
                 begin, LINES_PER_GROUP, corpus->block_size);
}

zt_status zt_corpus_open(const char *text_path, const zt_tokenizer *tok, size_t block_size, const char *cache_folder,
                         zt_corpus **out) {
  *out = NULL;
  if (block_size == 0) return zt_fail(ZT_INVALID, "%s: blocks of 0 tokens", text_path);
  zt_corpus *corpus = zt_calloc(1, sizeof *corpus);
  ZT_CHECK_ALLOC(corpus);
  corpus->block_size = block_size;
  corpus->path = zt_strdup(text_path);
  zt_status st = corpus->path ? find_ids(corpus, tok, cache_folder) : ZT_NOMEM;
  if (st == ZT_OK) st = cut_blocks(corpus);
  if (st == ZT_OK)
    *out = corpus;
  else
    zt_corpus_close(corpus);
  return st;
}

void zt_corpus_close(zt_corpus *corpus) {
  if (!corpus) return;
  zt_map_close(&corpus->map);
  zt_buffer_clear(&corpus->memory);
  zt_free(corpus->first_block);
  zt_free(corpus->path);
  zt_free(corpus);
}

/* --- asking */

size_t zt_corpus_block_count(const zt_corpus *corpus) { return corpus->first_block[corpus->n_groups]; }
size_t zt_corpus_token_count(const zt_corpus *corpus) { return zt_corpus_block_count(corpus) * corpus->block_size; }

/* The ids of block 'i': of the last group whose first block is not after it. */
static const uint32_t *block_ids(const zt_corpus *corpus, size_t i) {
  size_t low = 0, high = corpus->n_groups;
  while (high - low > 1) {
    size_t middle = low + (high - low) / 2;
    if (corpus->first_block[middle] <= i)
      low = middle;
    else
      high = middle;
  }
  size_t begin = low ? corpus->groups[low - 1].end : 0;
  return corpus->ids + begin + (i - corpus->first_block[low]) * corpus->block_size;
}

zt_status zt_corpus_get_block(const zt_corpus *corpus, size_t i, int64_t *ids) {
  if (i >= zt_corpus_block_count(corpus))
    return zt_fail(ZT_INVALID, "%s: block %zu of %zu", corpus->path, i, zt_corpus_block_count(corpus));
  const uint32_t *block = block_ids(corpus, i);
  for (size_t k = 0; k < corpus->block_size; k++) ids[k] = block[k];
  return ZT_OK;
}
