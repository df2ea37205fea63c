/* engine.h - trains a model's parameters on any number of ranks: they live in pages, their gradients leave as they become
** final, and the optimizer's state is kept by shard. ZeRO's stages are what is sharded of it; numbers do not depend on them.
**
** A step:  zt_engine_micro_step (count, loss scale) - forward - zt_backward - ... - zt_engine_finish - zt_engine_step -
** zt_engine_zero. Every rank calls all of them; each but micro_step is a collective. Ops find a parameter's bytes by
** themselves: reading one brings its page. Not thread-safe. */
#ifndef zt_engine_h
#define zt_engine_h

#include "core/tensor/tape.h"
#include "core/train/checkpoint.h"
#include "core/train/optim.h"

typedef enum zt_accumulate {
  ZT_ACCUMULATE_SHARDED, /* every micro-step reduces; a rank holds the sum of its shard: least memory */
  ZT_ACCUMULATE_LOCAL,   /* a rank sums up whole gradients by itself, one reduction at the end: least traffic */
} zt_accumulate;

typedef struct zt_engine_options {
  int stage; /* 0 .. 3: shards nothing; optimizer state; and gradients; and parameters */
  zt_accumulate accumulate;
  int64_t micro_steps; /* gradient_accumulation_steps */
  size_t page_nbytes; /* 0: a sixteenth of the parameters, from 64 KiB to 32 MiB. A larger parameter has its own page */
  size_t
      resident_nbytes; /* stage 3: gathered pages at once (one that is in use may exceed it); 0: the largest page and two
                           ** more; SIZE_MAX: no limit */
  bool no_overlap;     /* collectives run when they are asked for, and nothing is brought up ahead of use */
  uint32_t (*flags)(void *user); /* what this rank adds to the control word (a stop that was asked for); NULL ok */
  void *flags_user;
} zt_engine_options;

typedef struct zt_engine zt_engine;

ZT_API zt_status zt_engine_new(zt_ctx *c, const zt_engine_options *options, zt_engine **out);
/* Waits for communication. Parameters that are not whole on this rank (stage 3, several ranks) raise from then on. NULL ok. */
ZT_API void zt_engine_free(zt_engine *e);

/* Before build, in the order in which the model was put together: 'tensor' (a contiguous float leaf, retained) computes in
** 'dtype'; where that has 16 bits, a float32 master is kept. 'optimizer' is a number from 0 and says whose step it follows,
** -1: nobody's. 'group' is the optimizer's. Frozen parameters (requires_grad off) are kept in pages of their own. */
ZT_API zt_status zt_engine_add(zt_engine *e, const char *name, zt_tensor *tensor, zt_dtype dtype, int optimizer,
                               int group);
ZT_API zt_status zt_engine_build(zt_engine *e);

/* A micro-step begins: this rank's loss is a mean over 'count' tokens (or samples), seeded with 'scale'. The step's gradient
** is the sum over micro-steps and ranks of count x gradient, over the sum of counts. Several backwards of one micro-step add
** up. A backward without it is a micro-step of count 1. */
ZT_API zt_status zt_engine_micro_step(zt_engine *e, int64_t count, double scale);
/* Whether this micro-step is the step's last (so at the start): from its backward on gradients can be read. */
ZT_API void zt_engine_set_closing(zt_engine *e, bool closing);
/* Ends it: the next backward begins another. */
ZT_API void zt_engine_micro_end(zt_engine *e);

/* What all ranks know of a step's gradients. */
typedef struct zt_engine_result {
  int64_t count;       /* global; 0: there was nothing to learn from */
  double norm;         /* of the whole gradient, unscaled and unclipped; NaN or infinite where 'bad' is set */
  const char *bad;     /* the parameter whose gradient was the first that is not finite; NULL: all are; borrowed */
  int64_t bad_element; /* row-major, from 0 */
  int64_t bad_micro;   /* micro-step, from 1; 0: only the sum over ranks or micro-steps overflowed */
  int bad_rank;        /* -1: that sum */
  uint32_t flags;      /* those of all ranks, or-ed */
} zt_engine_result;
/* Completes the reductions and agrees on the result: one small exchange, the step's control word. Again without a backward
** in between: the same result. */
ZT_API zt_status zt_engine_finish(zt_engine *e, zt_engine_result *out);

/* One step of an optimizer's parameters with gradients times 'factor' (clipping); h: one for each group. Nothing is written
** where memory runs out. */
ZT_API zt_status zt_engine_step(zt_engine *e, int optimizer, zt_optim_kind kind, const zt_hyper h[], int n_groups,
                                double factor);
/* Forgets the gradients: the next backward begins a new step. */
ZT_API void zt_engine_zero(zt_engine *e);

/* The whole gradient of a parameter, unscaled and unclipped, float32 (float64 for float64): a new tensor; NULL where there is
** none, or the step's last micro-step has not come. Collective; finishes the step's gradients. */
ZT_API zt_status zt_engine_gradient(zt_engine *e, const zt_tensor *tensor, zt_tensor **out);
/* Whose parameter a tensor is; NULL: nobody's. */
ZT_API zt_engine *zt_engine_of(const zt_tensor *tensor);

/* One checksum of all masters (parameters as they are, where they have none) as float32 (float64 for float64), by name: the
** same for every layout. */
ZT_API zt_status zt_engine_hash(zt_engine *e, uint64_t *hash);

typedef struct zt_engine_stats {
  size_t n_pages, n_parameters;
  int64_t n_elements, n_padded; /* of parameters; of pages, padding included */
  uint64_t n_gathers, n_reductions;
} zt_engine_stats;
ZT_API zt_engine_stats zt_engine_get_stats(const zt_engine *e);

/* --- checkpoints (checkpoint.h). Tensors: "model.NAME" (the master), "optimizer.m.NAME", "optimizer.v.NAME"; each rank
** reads and writes its own shard. 'extra' are tensors that every rank has whole (buffers): names as they are, rank 0
** writes. Steps of each parameter: zt_engine_get_steps, kept in the JSON by the caller. */
typedef struct zt_engine_extra {
  const char *name;
  zt_tensor *tensor; /* contiguous */
} zt_engine_extra;
ZT_API zt_status zt_engine_save(zt_engine *e, const char *path, const char *json, const zt_engine_extra extra[],
                                int n_extra);
/* All names and shapes are checked before anything is written. */
ZT_API zt_status zt_engine_load(zt_engine *e, zt_checkpoint *ck, const zt_engine_extra extra[], int n_extra);
/* Parameter i: its name (borrowed), its optimizer's steps so far, and whether momentum has begun. */
ZT_API zt_status zt_engine_get_steps(const zt_engine *e, size_t i, const char **name, int64_t *steps, bool *begun);
ZT_API zt_status zt_engine_set_steps(zt_engine *e, const char *name, int64_t steps, bool begun);

#endif
