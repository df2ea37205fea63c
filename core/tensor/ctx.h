/* ctx.h - what is inside a context. For core/tensor alone; others use the functions of tensor.h. */
#ifndef zt_ctx_h
#define zt_ctx_h

#include "core/tensor/op.h"
#include "core/tensor/tape.h"

/* Nodes in the order of execution. */
typedef struct zt_tape {
  zt_node *first, *last;
  size_t length;
  uint64_t n_made;
  zt_node *waiting; /* nodes that wait to be freed, and whether somebody is at it */
  bool freeing;
  bool in_backward;
  zt_node *backward_from; /* where the backward that goes on began */
} zt_tape;

/* Tensors from outside that the first run of a checkpointed segment reads: leaves, and computed ones. */
typedef struct zt_watch {
  zt_tensor **read; /* retained, each once */
  size_t count, capacity;
  struct zt_watch *outer; /* a segment inside a segment is watched by both */
} zt_watch;

struct zt_ctx {
  zt_device *device;
  zt_pool *pool;
  zt_world *world;
  bool owns_world;
  zt_random random;
  zt_mem_kind mem_kind;
  bool grad_enabled;
  zt_tape tape;
  zt_watch *watch; /* innermost; NULL: nobody watches */
  zt_observer *observers;
  zt_queue *queue; /* owned; NULL until asked for */
};

/* Records the call on the tape and ties its outputs to the node (tape.c). */
zt_status zt_tape_record(zt_ctx *c, const zt_call *call);
/* Notes the call's inputs for the segments that run now (tape.c). */
zt_status zt_watch_inputs(zt_ctx *c, const zt_call *call);
/* Drops a reference; at the last one the node leaves the tape (tape.c). */
void zt_node_release(zt_node *node);

/* A header without storage, contiguous strides. */
zt_status zt_tensor_header(zt_dtype dtype, int ndim, const int64_t *shape, zt_tensor **out);
/* Gives a header its storage. */
zt_status zt_tensor_fill_header(zt_ctx *c, zt_tensor *t);

static inline bool zt_wants_grad(const zt_tensor *t) { return t->node || t->requires_grad; }

#endif
