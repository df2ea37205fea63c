/* pager.c - pages come when somebody reads them, or a little before, and go when others need the room.
** The future is a list of pages: in forward the order of the last micro-step, in backward what the tape is going to read. It
** decides what is brought up ahead and what goes first; where it is wrong that costs time. All ranks see the same futures and
** the same limits, so they gather the same pages in the same order. */
#include <string.h>

#include "core/base/mem.h"
#include "core/train/parts.h"

enum { AHEAD = 2 }; /* gathers that are on their way for later */

/* --- futures */

static zt_status future_add(zt_future *f, int page) {
  if (f->n && f->pages[f->n - 1] == page) return ZT_OK;
  if (f->n == f->capacity) {
    size_t capacity = f->capacity ? 2 * f->capacity : 64;
    int *pages = zt_realloc(f->pages, capacity * sizeof *pages);
    ZT_CHECK_ALLOC(pages);
    f->pages = pages, f->capacity = capacity;
  }
  f->pages[f->n++] = page;
  return ZT_OK;
}

static void future_clear(zt_future *f) { f->n = f->at = 0; }

/* The place of the page's next use; one behind the end where there is none. */
static size_t next_use(const zt_future *f, int page) {
  size_t i = f ? f->at : 0;
  while (f && i < f->n && f->pages[i] != page) i++;
  return f && i < f->n ? i : SIZE_MAX;
}

/* The page is used now. */
static void advance(zt_future *f, int page) {
  size_t i = next_use(f, page);
  if (i != SIZE_MAX) f->at = i + 1;
}

/* --- gathering */

static zt_status gather(void *user) {
  zt_transfer *t = user;
  const zt_page *p = t->page;
  return zt_all_gather(p->engine->world, &t->label, p->bytes->data, (size_t)p->shard_count * zt_dtype_nbytes(p->dtype));
}

static zt_status bring_shard_and_gather(void *user) {
  const zt_page *p = ((zt_transfer *)user)->page;
  char *place = (char *)p->bytes->data + (size_t)zt_shard_begin(p) * zt_dtype_nbytes(p->dtype);
  ZT_TRY(zt_copy_range(p->engine, place, p->shard->data, p->shard->nbytes));
  return gather(user);
}

static zt_status submit(zt_page *p, zt_job job) {
  zt_engine *e = p->engine;
  p->gather.label = zt_page_label(p, "parameters of page");
  e->n_gathers++;
  ZT_TRY(zt_queue_submit(e->queue, job, &p->gather, &p->gather.ticket));
  return e->options.no_overlap ? zt_wait_transfer(&p->gather) : ZT_OK;
}

zt_status zt_wait_transfer(zt_transfer *t) {
  if (!t->ticket) return ZT_OK;
  zt_status st = zt_queue_wait(t->page->engine->queue, t->ticket);
  zt_storage_release(t->send);
  zt_storage_release(t->recv);
  t->send = t->recv = NULL;
  t->ticket = 0;
  return st;
}

zt_status zt_pager_refresh(zt_page *p) {
  if (p->engine->size == 1) return ZT_OK;
  return submit(p, gather);
}

static bool is_here(const zt_page *p) { return p->bytes->data != NULL; }

static zt_status send_away(zt_page *p) {
  ZT_TRY(zt_wait_transfer(&p->gather));
  p->engine->resident_nbytes -= p->bytes->nbytes;
  zt_storage_leave(p->bytes);
  return ZT_OK;
}

/* Of the pages that are here and not pinned the one whose next use is farthest; of those that have none, the one used
** longest ago. It must be used later than place 'after'. */
static zt_page *victim(zt_engine *e, size_t after) {
  zt_page *best = NULL;
  size_t best_use = 0;
  for (int i = 0; i < e->n_pages; i++) {
    zt_page *p = &e->pages[i];
    if (!is_here(p) || p->pins) continue;
    size_t use = next_use(e->future, i);
    if (use <= after || (best && use < best_use)) continue;
    if (best && use == best_use && p->used >= best->used) continue;
    best = p, best_use = use;
  }
  return best;
}

static bool has_room(const zt_engine *e, size_t nbytes) {
  return nbytes <= e->resident_limit && e->resident_nbytes <= e->resident_limit - nbytes;
}

static zt_status come(zt_page *p) {
  ZT_TRY(zt_storage_return(p->bytes, ZT_MEM_COMMUNICATION));
  p->engine->resident_nbytes += p->bytes->nbytes;
  return submit(p, bring_shard_and_gather);
}

/* Makes room by sending away what is needed later than that; false: not enough could go. */
static zt_status make_room(zt_engine *e, size_t nbytes, size_t after, bool *made) {
  for (;;) {
    *made = has_room(e, nbytes);
    zt_page *p = *made ? NULL : victim(e, after);
    if (!p) return ZT_OK;
    ZT_TRY(send_away(p));
  }
}

static int gathers_on_their_way(const zt_engine *e) {
  int n = 0;
  for (int i = 0; i < e->n_pages; i++) n += e->pages[i].gather.ticket && !e->pages[i].pins;
  return n;
}

/* Brings up the pages that are needed next. */
static zt_status look_ahead(zt_engine *e) {
  const zt_future *f = e->future;
  if (e->options.no_overlap || !f) return ZT_OK;
  for (size_t i = f->at; i < f->n && gathers_on_their_way(e) < AHEAD; i++) {
    zt_page *p = &e->pages[f->pages[i]];
    bool made;
    if (is_here(p)) continue;
    ZT_TRY(make_room(e, p->bytes->nbytes, i, &made));
    if (!made) return ZT_OK;
    ZT_TRY(come(p));
  }
  return ZT_OK;
}

/* --- pins */

/* The page is read by an op: it comes if it is away, and what is next comes behind it. */
static zt_status use(zt_page *p) {
  zt_engine *e = p->engine;
  p->used = ++e->clock;
  if (zt_is_paged(e)) {
    advance(e->future, p->number);
    if (e->future != &e->backward) ZT_TRY(future_add(&e->recorded, p->number));
  }
  if (!is_here(p)) {
    bool made;
    ZT_TRY(make_room(e, p->bytes->nbytes, 0, &made));
    ZT_TRY(come(p));
  }
  if (zt_is_paged(e)) ZT_TRY(look_ahead(e));
  return zt_wait_transfer(&p->gather);
}

static zt_status pin(zt_keeper *keeper) {
  zt_page *p = (zt_page *)keeper;
  ZT_TRY(p->engine->failed);
  if (p->pins++ > 0) return ZT_OK;
  zt_status st = use(p);
  if (st != ZT_OK) {
    p->pins = 0;
    return zt_wrap(st, "the parameters from %s on", p->engine->params[p->first].name);
  }
  p->version = p->bytes->version;
  return ZT_OK;
}

static void unpin(zt_keeper *keeper) {
  zt_page *p = (zt_page *)keeper;
  if (--p->pins > 0 || p->version == p->bytes->version) return;
  zt_status st = zt_page_written(p);
  if (st != ZT_OK) p->engine->failed = st;
}

const zt_keeper zt_page_keeper = {pin, unpin, NULL};

/* --- turns of a micro-step */

zt_status zt_pager_release_all(zt_engine *e) {
  if (!zt_is_paged(e)) return ZT_OK;
  for (int i = 0; i < e->n_pages; i++)
    if (is_here(&e->pages[i]) && !e->pages[i].pins) ZT_TRY(send_away(&e->pages[i]));
  return ZT_OK;
}

void zt_pager_forward(zt_engine *e) {
  future_clear(&e->recorded);
  e->forward.at = 0;
  e->future = &e->forward;
}

typedef struct reading {
  zt_engine *e;
  zt_status st;
} reading;

static void note_read(void *user, const zt_tensor *t) {
  reading *r = user;
  zt_keeper *keeper = t->storage->keeper;
  if (r->st != ZT_OK || !keeper || keeper->pin != pin) return;
  const zt_page *p = (const zt_page *)keeper;
  if (p->engine == r->e) r->st = future_add(&r->e->backward, p->number);
}

/* What forward has read is the next forward's future. */
zt_status zt_pager_backward(zt_engine *e) {
  if (!zt_is_paged(e)) return ZT_OK;
  zt_future last = e->forward;
  e->forward = e->recorded, e->recorded = last;
  future_clear(&e->recorded);
  future_clear(&e->backward);
  reading r = {e, ZT_OK};
  zt_tape_reads(e->c, note_read, &r);
  e->future = &e->backward;
  return r.st;
}

void zt_pager_free(zt_engine *e) {
  zt_free(e->forward.pages);
  zt_free(e->backward.pages);
  zt_free(e->recorded.pages);
}
