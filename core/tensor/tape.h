/* tape.h - reverse-mode differentiation over a linear tape.
** Each op that needs a gradient leaves a node; nodes stand in the order of execution, which is a topological order, so
** backward walks the list from the end. A tensor holds its node, a node holds the nodes and leaves that it reads, so a
** branch nobody can reach any more leaves the tape by itself. A node owns what it saved and gives it up as backward
** passes it. A *mark* is a node whose backward is a callback: a checkpointed segment is one (zt_checkpoint). */
#ifndef zt_tape_h
#define zt_tape_h

#include "core/tensor/tensor.h"

/* Runs backward from a scalar 'loss' seeded with 'seed' (the loss scale, or 1), or from any tensor seeded with 'grad'
** (same shape; NULL where a scalar). Gradients are added to the leaves' 'grad'. Counts each leaf's uses first; when the
** last has delivered, the leaf's gradient is final and observers hear of it. A second backward
** through the same nodes raises ZT_STATE. After a failure the tape from 'loss' is spent, too. Not from
** inside a backward (a segment's second run, an observer): ZT_STATE. */
ZT_API zt_status zt_backward(zt_ctx *c, zt_tensor *loss, zt_tensor *grad, double seed);

/* Who follows backward; a failure ends it with that. Owned by whoever adds it, in place until it is removed. */
typedef struct zt_observer {
  zt_status (*begin)(void *user, zt_ctx *c);                  /* uses are counted, nothing has run; NULL ok */
  zt_status (*final)(void *user, zt_ctx *c, zt_tensor *leaf); /* this leaf's gradient is final */
  zt_status (*end)(void *user, zt_ctx *c); /* all that was reached has run; not after a failure; NULL ok */
  void *user;
  struct zt_observer *next;
} zt_observer;
ZT_API void zt_ctx_add_observer(zt_ctx *c, zt_observer *observer);
ZT_API void zt_ctx_remove_observer(zt_ctx *c, zt_observer *observer); /* also where it was not added */

/* For the observer's begin: the tensors whose bytes backward is going to read, in that order; a checkpointed segment's
** inputs as its second run reads them, then backward. */
typedef void (*zt_tape_visit)(void *user, const zt_tensor *t);
ZT_API void zt_tape_reads(const zt_ctx *c, zt_tape_visit visit, void *user);

/* A segment that keeps none of its activations: 'run' is called now with gradients off, and again in backward.
** It must compute the same from the same inputs; random ops replay. run() gives up to 'n_out' owned tensors in out[],
** which starts as NULLs, the same number each time. */
typedef zt_status (*zt_segment_run)(void *user, zt_ctx *c, zt_tensor *const in[], int n_in, zt_tensor *out[],
                                    int n_out);
typedef struct zt_segment {
  zt_segment_run run;
  void (*release)(void *user); /* called when the segment is no longer needed; NULL ok */
  void *user;
} zt_segment;
/* Takes over 'segment', also on failure. Leaves that run() reads are found by watching it. Bit-equal gradients: the
** second run records on the same tape and delivers in the same order as without a checkpoint. */
ZT_API zt_status zt_checkpoint_segment(zt_ctx *c, zt_segment segment, zt_tensor *const in[], int n_in, zt_tensor *out[],
                                       int n_out);

/* Nodes now on the tape (tests, reports). */
ZT_API size_t zt_tape_length(const zt_ctx *c);

#endif
