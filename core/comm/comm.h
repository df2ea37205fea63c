/* comm.h - what ranks do together: collectives over a data plane, each logged and counted.
**
** Every rank calls the same collectives in the same order. Each is logged (sequence number, kind, label, bytes, script
** line) and goes into a running hash. One that has waited 2 s sends the log's end over the control plane; where logs
** differ, or a rank has ended or died, all ranks fail within 10 s with what each side was doing. Where data meets (all planes
** compare the hash), a difference is found at once, before a byte is used. A rank that is only slow is waited for: a notice
** after 10 s (zt_log, in the thread that waits), a failure after the world's timeout.
**
** One thread at a time; calls return when this rank's part is done and its buffers are free. Sums are in rank order, in
** float32 for float dtypes of up to 32 bits, float64 for float64, int64 for int64: the same bits on every rank and plane. */
#ifndef zt_comm_h
#define zt_comm_h

#include <stddef.h>
#include <stdint.h>

#include "core/base/dtype.h"
#include "core/comm/world.h"

/* What a collective is for, as logs name it: "gradients of page 3 (h.1.mlp.c_fc.weight ...)". 'where' is the script's line
** (zt_label_here fills it in the thread that knows; empty: asked when the collective begins, if that is the thread). */
typedef struct zt_label {
  const char *what; /* static or living as long as the call: "gradients of page"; NULL: none */
  int64_t id;       /* number of the page; -1: none */
  const char *name; /* NULL: none; e.g. the first parameter of the page */
  char where[96];
} zt_label;
ZT_API zt_label zt_label_here(const zt_world *world, const char *what, int64_t id, const char *name);

/* In place: 'buffer' has size x nbytes_each bytes, chunk 'rank' is this rank's. */
ZT_API zt_status zt_all_gather(zt_world *w, const zt_label *label, void *buffer, size_t nbytes_each);
/* Chunk r of 'send' goes to rank r; chunk r of 'recv' comes from rank r. nbytes_each each, not overlapping. */
ZT_API zt_status zt_all_to_all(zt_world *w, const zt_label *label, void *recv, const void *send, size_t nbytes_each);
ZT_API zt_status zt_broadcast(zt_world *w, const zt_label *label, void *buffer, size_t nbytes, int root);
ZT_API zt_status zt_barrier(zt_world *w, const zt_label *label);
/* Sums. dtypes: float32, float64, bfloat16, float16, int64. all_reduce in place; reduce_scatter: 'send' has size chunks of
** 'count' elements, 'recv' gets the sum of everybody's chunk 'rank'. Host memory from zt_malloc for what is in flight. */
ZT_API zt_status zt_all_reduce(zt_world *w, const zt_label *label, zt_dtype t, void *buffer, size_t count);
ZT_API zt_status zt_reduce_scatter(zt_world *w, const zt_label *label, zt_dtype t, void *recv, const void *send,
                                   size_t count);

/* Collectives so far (tests, reports), and the running hash of kinds, labels' what and id, and bytes. */
typedef struct zt_comm_stats {
  uint64_t n_all_gather, n_all_to_all, n_broadcast, n_barrier;
  uint64_t nbytes_sent; /* by this rank, to others */
  uint64_t hash;
  double waited; /* seconds inside of collectives */
} zt_comm_stats;
ZT_API zt_comm_stats zt_comm_get_stats(const zt_world *w);

#endif
