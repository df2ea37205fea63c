/* parts.h - what the files of the engine share: engine.c (life, the step), page.c (the layout), pager.c (pages come and go),
** reduce.c (gradients leave), state.c (checksums, checkpoints). */
#ifndef zt_parts_h
#define zt_parts_h

#include "core/base/exact.h"
#include "core/comm/queue.h"
#include "core/tensor/op.h"
#include "core/train/engine.h"

/* Tensors and shards start at multiples of it, so that no block of squares is cut. */
enum { ZT_ALIGN = 128 };

typedef struct zt_param {
  zt_tensor *tensor; /* retained */
  char *name;        /* owned */
  zt_dtype dtype;    /* what it computes in */
  int optimizer, group;
  int page;
  int64_t offset, count; /* in its page; elements */
  int64_t steps;
  bool begun;     /* momentum has been written */
  bool is_packed; /* this backward's gradient has arrived */
} zt_param;

/* What 'grad' of a page holds. */
typedef enum zt_grad_state {
  ZT_GRAD_NONE,
  ZT_GRAD_OWN, /* one micro-step's gradient of the only rank, in the page's dtype */
  ZT_GRAD_SUM, /* sums of count x gradient, in the accumulator's dtype */
} zt_grad_state;

/* A collective that is on its way for a page, with its buffers. */
typedef struct zt_transfer {
  struct zt_page *page;
  zt_label label;
  zt_storage *send, *recv; /* owned; NULL where not needed */
  bool adds;
  zt_ticket ticket;
} zt_transfer;

typedef struct zt_page {
  zt_keeper keeper; /* first: the page is found by it */
  zt_engine *engine;
  int number;
  zt_dtype dtype;
  bool trainable;
  int optimizer;
  int first, n_params;        /* in the engine's list */
  int64_t count, shard_count; /* elements, padded */
  zt_storage *bytes; /* under the tensors; away in stage 3, where there is more than one rank and nobody reads it */
  zt_storage *shard; /* this rank's part in stage 3; NULL where it is in 'bytes' */
  zt_storage *master, *m, *v; /* of the span; master NULL where the parameters are it */
  /* gradients */
  zt_storage *grad; /* NULL before the first */
  zt_grad_state grad_state;
  zt_storage *packing; /* this backward's gradients, page-shaped, until they leave */
  int n_final;         /* parameters in it */
  /* paging */
  uint32_t pins;
  uint32_t version; /* of the bytes when they were pinned first */
  uint64_t used;    /* when it was pinned last */
  zt_transfer gather;
} zt_page;

/* Pages in the order in which they are going to be read. */
typedef struct zt_future {
  int *pages;
  size_t n, capacity;
  size_t at; /* up to here it has happened */
} zt_future;

/* The first gradient that was not finite. */
typedef struct zt_bad {
  int64_t micro; /* from 1; 0: none */
  int64_t order; /* of becoming final within it */
  int64_t param, element;
} zt_bad;

enum { ZT_IN_FLIGHT = 2 }; /* reductions at a time */

struct zt_engine {
  zt_ctx *c;
  zt_world *world;
  zt_queue *queue; /* the context's */
  zt_observer observer;
  bool is_reached; /* by the backward that goes on */
  zt_engine_options options;
  int rank, size;
  zt_param *params;
  int n_params, params_capacity;
  zt_page *pages;
  int n_pages;
  bool built;
  zt_status failed; /* of a place that cannot return it; raised at the next one that can */
  /* the step so far */
  bool micro_open, closing, finished;
  int64_t micro, count;             /* micro-steps begun; this rank's sum of counts */
  int64_t micro_count, first_count; /* of this micro-step; of the one whose gradient is kept as it is */
  double scale;
  int64_t n_finals;
  zt_bad bad;
  zt_engine_result result;
  int64_t *counts;   /* of the micro-step, by rank; the queue's */
  double *weights;   /* the same; of one rank: {1} */
  int64_t own_count; /* this rank's, of them */
  zt_label counts_label;
  zt_ticket counts_ticket;
  zt_transfer reducing[ZT_IN_FLIGHT];
  unsigned n_reducing; /* submitted so far */
  /* paging */
  zt_future forward, backward, recorded; /* last micro-step's, this one's */
  zt_future *future;
  size_t resident_nbytes, resident_limit;
  uint64_t clock;
  uint64_t n_gathers, n_reductions;
};

/* --- page.c */
zt_status zt_pages_build(zt_engine *e);
void zt_pages_free(zt_engine *e);
static inline int64_t zt_round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }
static inline zt_dtype zt_acc_dtype(const zt_page *p) { return zt_dtype_stat(p->dtype); }
/* Whether the pages of this engine are away when nobody reads them. */
static inline bool zt_is_paged(const zt_engine *e) { return e->options.stage == 3 && e->size > 1; }
/* The part of a page whose state this rank keeps. */
static inline int64_t zt_span_begin(const zt_page *p) {
  return p->engine->options.stage == 0 ? 0 : p->engine->rank * p->shard_count;
}
static inline int64_t zt_span_count(const zt_page *p) {
  return p->engine->options.stage == 0 ? p->count : p->shard_count;
}
static inline int64_t zt_shard_begin(const zt_page *p) { return p->engine->rank * p->shard_count; }
/* The bytes of the element 'at' (within the page) of what this rank has of the parameters. */
void *zt_page_values(const zt_page *p, int64_t at);
/* The master of an element of the span: its place, and its dtype. */
void *zt_page_master(const zt_page *p, int64_t at);
zt_dtype zt_page_master_dtype(const zt_page *p);
/* The elements [*from, *to) of the page that a parameter and [begin, begin + count) share; false: none. */
bool zt_overlap(const zt_param *p, int64_t begin, int64_t count, int64_t *from, int64_t *to);
/* The parameter that a tensor is; NULL: none of the engine's (NULL: of any). */
zt_param *zt_find_param(const zt_engine *e, const zt_tensor *t);
static inline zt_page *zt_page_of(const zt_engine *e, const zt_param *p) { return &e->pages[p->page]; }
zt_label zt_page_label(const zt_page *p, const char *what);
zt_status zt_page_buffer(const zt_page *p, zt_dtype t, int64_t count, zt_mem_kind kind, zt_storage **out);
zt_status zt_zero_range(zt_engine *e, zt_dtype t, void *data, int64_t count);
zt_status zt_copy_range(zt_engine *e, void *dst, const void *src, size_t nbytes);
/* Takes over what somebody wrote into the (resident) page: its shard and master. */
zt_status zt_page_written(zt_page *p);
/* The span's master goes, rounded, into what this rank has of the parameters. */
zt_status zt_page_publish(zt_page *p);

/* --- engine.c */
/* A moment of the page's span, of zeros, where there is none yet. */
zt_status zt_state_new(zt_page *p, zt_storage **state);

/* --- pager.c */
extern const zt_keeper zt_page_keeper;
void zt_pager_free(zt_engine *e);
/* Sends resident pages away that nobody has pinned. */
zt_status zt_pager_release_all(zt_engine *e);
/* The page's bytes are up to date on this rank alone (its shard): gathers them in place, behind everything submitted. */
zt_status zt_pager_refresh(zt_page *p);
void zt_pager_forward(zt_engine *e);        /* a micro-step begins: its order will be that of the last */
zt_status zt_pager_backward(zt_engine *e);  /* backward begins: the tape knows the order */
zt_status zt_wait_transfer(zt_transfer *t); /* and frees its buffers */

/* --- reduce.c */
zt_status zt_reduce_begin(void *user, zt_ctx *c);
zt_status zt_reduce_final(void *user, zt_ctx *c, zt_tensor *leaf);
zt_status zt_reduce_end(void *user, zt_ctx *c);
zt_status zt_reduce_finish(zt_engine *e); /* waits for all; with the policy 'local': reduces */
void zt_reduce_free(zt_engine *e);        /* waits for what is on its way */

#endif
