/* pool.c - segments from the device, cut best-fit into blocks, merged when freed.
** Small and large requests have segments of their own, so that a small block does not split a large hole. Free blocks
** stand in bins by power of two; inside a bin the smallest that fits wins, then the oldest segment and the lowest
** offset: a choice that does not depend on addresses. */
#include "core/device/pool.h"

#include <stdio.h>

#include "core/base/mem.h"

enum {
  UNIT = 512,
  SMALL_LIMIT = 1 << 20, /* requests up to here are small */
  SMALL_SEGMENT = 2 << 20,
  LARGE_SEGMENT = 64 << 20, /* segments are shared by requests up to half of them; a larger one gets its own */
  LARGE_UNIT = 2 << 20,     /* ... of a multiple of this */
  N_BINS = 56,
};

typedef struct segment {
  struct segment *prev, *next;
  void *data;
  size_t nbytes;
  uint64_t number; /* in order of creation */
  zt_block *first;
  bool small;
} segment;

struct zt_block {
  segment *home;
  zt_block *before, *after;      /* neighbours by address */
  zt_block *bin_prev, *bin_next; /* where free */
  size_t offset, nbytes;
  zt_mem_kind kind;
  bool used;
};

struct zt_pool {
  zt_device *device;
  size_t budget;
  zt_pool_reclaim reclaim;
  void *reclaim_user;
  segment *segments;
  uint64_t n_segments_made;
  zt_block *bins[2][N_BINS]; /* [small] */
  zt_pool_stats stats;
};

static size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

static int bin_of(size_t nbytes) {
  int bin = 63 - __builtin_clzll(nbytes / UNIT);
  return bin < N_BINS ? bin : N_BINS - 1;
}

static zt_block **bin_head(zt_pool *pool, const zt_block *b) { return &pool->bins[b->home->small][bin_of(b->nbytes)]; }

static void bin_insert(zt_pool *pool, zt_block *b) {
  zt_block **head = bin_head(pool, b);
  b->bin_prev = NULL, b->bin_next = *head;
  if (*head) (*head)->bin_prev = b;
  *head = b;
}

static void bin_remove(zt_pool *pool, zt_block *b) {
  if (b->bin_prev)
    b->bin_prev->bin_next = b->bin_next;
  else
    *bin_head(pool, b) = b->bin_next;
  if (b->bin_next) b->bin_next->bin_prev = b->bin_prev;
}

static bool better(const zt_block *a, const zt_block *b) {
  if (a->nbytes != b->nbytes) return a->nbytes < b->nbytes;
  if (a->home != b->home) return a->home->number < b->home->number;
  return a->offset < b->offset;
}

static zt_block *find_free(zt_pool *pool, size_t nbytes, bool small) {
  for (int bin = bin_of(nbytes); bin < N_BINS; bin++) {
    zt_block *best = NULL;
    for (zt_block *b = pool->bins[small][bin]; b; b = b->bin_next)
      if (b->nbytes >= nbytes && (!best || better(b, best))) best = b;
    if (best) return best;
  }
  return NULL;
}

zt_status zt_pool_new(zt_device *device, size_t budget, zt_pool **out) {
  *out = zt_calloc(1, sizeof **out);
  ZT_CHECK_ALLOC(*out);
  (*out)->device = device;
  (*out)->budget = budget;
  return ZT_OK;
}

void zt_pool_free(zt_pool *pool) {
  if (!pool) return;
  zt_pool_flush(pool);
  zt_free(pool);
}

void zt_pool_set_reclaim(zt_pool *pool, zt_pool_reclaim fn, void *user) {
  pool->reclaim = fn, pool->reclaim_user = user;
}

/* A new segment with one free block of 'nbytes', in its bin. */
static zt_status segment_new(zt_pool *pool, size_t nbytes, bool small) {
  if (pool->budget && (nbytes > pool->budget || pool->stats.held_nbytes > pool->budget - nbytes))
    return zt_fail(ZT_NOMEM, "over the budget");
  zt_status st = ZT_NOMEM;
  segment *s = zt_calloc(1, sizeof *s);
  zt_block *b = zt_calloc(1, sizeof *b);
  if (!s || !b) goto fail;
  ZT_TRY_GOTO(pool->device->ops->alloc(pool->device, nbytes, &s->data), fail);
  s->nbytes = nbytes, s->number = pool->n_segments_made++, s->first = b, s->small = small;
  s->next = pool->segments;
  if (s->next) s->next->prev = s;
  pool->segments = s;
  b->home = s, b->nbytes = nbytes;
  bin_insert(pool, b);
  pool->stats.held_nbytes += nbytes;
  if (pool->stats.held_nbytes > pool->stats.held_peak_nbytes) pool->stats.held_peak_nbytes = pool->stats.held_nbytes;
  return ZT_OK;
fail:
  zt_free(s);
  zt_free(b);
  return st;
}

static void segment_free(zt_pool *pool, segment *s) {
  bin_remove(pool, s->first);
  if (s->prev)
    s->prev->next = s->next;
  else
    pool->segments = s->next;
  if (s->next) s->next->prev = s->prev;
  pool->stats.held_nbytes -= s->nbytes;
  pool->device->ops->free(pool->device, s->data, s->nbytes);
  zt_free(s->first);
  zt_free(s);
}

void zt_pool_flush(zt_pool *pool) {
  for (segment *s = pool->segments, *next; s; s = next) {
    next = s->next;
    if (!s->first->used && !s->first->after) segment_free(pool, s);
  }
}

static zt_status grow(zt_pool *pool, size_t nbytes, bool small) {
  size_t shared = small ? SMALL_SEGMENT : LARGE_SEGMENT;
  if (nbytes <= shared / 2 && segment_new(pool, shared, small) == ZT_OK) return ZT_OK;
  if (!small && segment_new(pool, round_up(nbytes, LARGE_UNIT), false) == ZT_OK) return ZT_OK;
  return segment_new(pool, nbytes, small); /* what little the budget has left */
}

/* Cuts 'b' to nbytes; what remains becomes a free block behind it. */
static zt_status split(zt_pool *pool, zt_block *b, size_t nbytes) {
  if (b->nbytes == nbytes) return ZT_OK;
  zt_block *rest = zt_calloc(1, sizeof *rest);
  ZT_CHECK_ALLOC(rest);
  *rest = (zt_block){
      .home = b->home, .before = b, .after = b->after, .offset = b->offset + nbytes, .nbytes = b->nbytes - nbytes};
  if (b->after) b->after->before = rest;
  b->after = rest;
  b->nbytes = nbytes;
  bin_insert(pool, rest);
  return ZT_OK;
}

static zt_status take(zt_pool *pool, size_t nbytes, bool small, zt_block **out) {
  zt_block *b = find_free(pool, nbytes, small);
  if (!b) {
    ZT_TRY(grow(pool, nbytes, small));
    b = find_free(pool, nbytes, small);
  }
  bin_remove(pool, b);
  zt_status st = split(pool, b, nbytes);
  if (st != ZT_OK) {
    bin_insert(pool, b);
    return st;
  }
  *out = b;
  return ZT_OK;
}

static void count(zt_pool *pool, zt_mem_kind kind, size_t nbytes) {
  zt_pool_stats *s = &pool->stats;
  s->used[kind] += nbytes;
  s->used_nbytes += nbytes;
  if (s->used_nbytes <= s->peak_nbytes) return;
  s->peak_nbytes = s->used_nbytes;
  for (int k = 0; k < ZT_N_MEM_KINDS; k++) s->peak[k] = s->used[k];
}

/* "1.5 GiB" into text[24]. */
static const char *amount(size_t nbytes, char text[24]) {
  static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  double value = (double)nbytes;
  int unit = 0;
  while (value >= 1024 && unit < 4) value /= 1024, unit++;
  snprintf(text, 24, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
  return text;
}

static zt_status no_memory(const zt_pool *pool, size_t nbytes) {
  static const char *const words[] = {
#define ZT_KIND_WORD(id, word) word,
      ZT_MEM_KINDS(ZT_KIND_WORD)
#undef ZT_KIND_WORD
  };
  char asked[24], used[24], budget[24], part[24], kinds[256] = "";
  size_t length = 0;
  for (int k = 0; k < ZT_N_MEM_KINDS; k++) {
    if (!pool->stats.used[k]) continue;
    length += (size_t)snprintf(kinds + length, sizeof kinds - length, "%s%s %s", length ? ", " : "", words[k],
                               amount(pool->stats.used[k], part));
  }
  amount(nbytes, asked), amount(pool->stats.used_nbytes, used);
  const char *open = length ? " (" : "", *close = length ? ")" : "";
  if (!pool->budget)
    return zt_fail(ZT_NOMEM, "%s: asks for %s, the device has no more; %s are in use%s%s%s", pool->device->name, asked,
                   used, open, kinds, close);
  return zt_fail(ZT_NOMEM, "%s: asks for %s, %s of %s are in use%s%s%s", pool->device->name, asked, used,
                 amount(pool->budget, budget), open, kinds, close);
}

zt_status zt_pool_alloc(zt_pool *pool, size_t nbytes, zt_mem_kind kind, zt_block **out) {
  *out = NULL;
  if (nbytes > SIZE_MAX / 2) return no_memory(pool, nbytes);
  size_t rounded = round_up(nbytes ? nbytes : 1, UNIT);
  bool small = rounded <= SMALL_LIMIT;
  zt_status st = take(pool, rounded, small, out);
  if (st != ZT_OK) {
    if (pool->reclaim) pool->reclaim(pool->reclaim_user);
    zt_pool_flush(pool);
    st = take(pool, rounded, small, out);
  }
  if (st != ZT_OK) return no_memory(pool, nbytes);
  (*out)->used = true;
  (*out)->kind = kind;
  count(pool, kind, rounded);
  return ZT_OK;
}

/* Merges the free block 'b' with the free block behind it. */
static void merge(zt_pool *pool, zt_block *b) {
  zt_block *rest = b->after;
  bin_remove(pool, rest);
  b->nbytes += rest->nbytes;
  b->after = rest->after;
  if (b->after) b->after->before = b;
  zt_free(rest);
}

void zt_pool_release(zt_pool *pool, zt_block *b) {
  if (!b) return;
  pool->stats.used[b->kind] -= b->nbytes;
  pool->stats.used_nbytes -= b->nbytes;
  b->used = false;
  if (b->after && !b->after->used) merge(pool, b);
  if (b->before && !b->before->used) {
    b = b->before;
    bin_remove(pool, b);
    bin_insert(pool, b->after); /* merge takes the right one out of its bin */
    merge(pool, b);
  }
  bin_insert(pool, b);
}

void *zt_block_data(const zt_block *b) { return (char *)b->home->data + b->offset; }

void zt_block_set_kind(zt_pool *pool, zt_block *b, zt_mem_kind kind) {
  pool->stats.used[b->kind] -= b->nbytes;
  pool->stats.used[kind] += b->nbytes;
  b->kind = kind;
}

zt_pool_stats zt_pool_get_stats(const zt_pool *pool) { return pool->stats; }

void zt_pool_reset_peak(zt_pool *pool) {
  pool->stats.peak_nbytes = pool->stats.used_nbytes;
  pool->stats.held_peak_nbytes = pool->stats.held_nbytes;
  for (int k = 0; k < ZT_N_MEM_KINDS; k++) pool->stats.peak[k] = pool->stats.used[k];
}
