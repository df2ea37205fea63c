/* tensor.h - a strided view of a storage, and the context that all ops run in.
** Tensors and storages are refcounted: who stores a pointer retains it. A function's 'zt_tensor **out' is owned by the
** caller and is NULL on failure; tensor arguments are borrowed. Not thread-safe: one context, one thread. */
#ifndef zt_tensor_h
#define zt_tensor_h

#include "core/comm/comm.h"
#include "core/comm/queue.h"
#include "core/device/storage.h"
#include "core/tensor/kernels.h"

typedef struct zt_node zt_node;
typedef struct zt_ctx zt_ctx;

typedef struct zt_tensor {
  uint32_t refs;
  zt_dtype dtype;
  int ndim;
  int64_t shape[ZT_MAX_DIM];
  int64_t stride[ZT_MAX_DIM]; /* in elements; 0 where expanded */
  int64_t offset;             /* in elements */
  zt_storage *storage;        /* owned reference; NULL: shape only (what a node did not need to save) */
  bool requires_grad;
  struct zt_tensor *grad; /* leaves: the accumulated gradient, same shape; owned reference */
  zt_node *node;          /* what computed it, where a gradient can flow; owned reference; NULL: a leaf */
  int node_out;           /* which output of 'node' */
  uint32_t n_uses;        /* leaves, during backward: uses that have not yet delivered */
} zt_tensor;

/* Random state: a random op takes (seed, step, call) and counts call up; zt_rng_key says how they are used. */
typedef struct zt_random {
  uint64_t seed;
  uint64_t step;         /* attempted optimizer step; set by the training loop */
  uint32_t call;         /* random ops so far (within the micro-step, where a training loop resets it) */
  uint64_t first_sample; /* global number of the batch's first row */
} zt_random;

/* Everything ops need. One per interpreter; no globals. */
typedef struct zt_context_options {
  const char *device;   /* NULL: "cpu" */
  size_t device_memory; /* budget in bytes; 0: none */
  zt_world *world;      /* borrowed; NULL: the context opens one of its own, of one rank */
} zt_context_options;

ZT_API zt_status zt_ctx_new(const zt_context_options *options, zt_ctx **out);
/* All tensors made in it must have been released. NULL ok. */
ZT_API void zt_ctx_free(zt_ctx *c);
ZT_API zt_pool *zt_ctx_pool(zt_ctx *c);     /* borrowed */
ZT_API zt_device *zt_ctx_device(zt_ctx *c); /* borrowed */
ZT_API zt_world *zt_ctx_world(zt_ctx *c);   /* borrowed */
/* Where collectives run beside computing (borrowed): made when first asked for, with a thread where there are several ranks.
** Whoever does a collective by himself drains it first. */
ZT_API zt_status zt_ctx_queue(zt_ctx *c, zt_queue **out);
ZT_API zt_random *zt_ctx_random(zt_ctx *c); /* borrowed, may be written */
ZT_API bool zt_ctx_grad_enabled(const zt_ctx *c);
ZT_API bool zt_ctx_set_grad_enabled(zt_ctx *c, bool on); /* returns what it was */
/* What new storages are counted as (ZT_MEM_ACTIVATION at the start); returns what it was. */
ZT_API zt_mem_kind zt_ctx_set_mem_kind(zt_ctx *c, zt_mem_kind kind);

/* --- making and releasing */
ZT_API zt_status zt_tensor_new(zt_ctx *c, zt_tensor **out, zt_dtype dtype, int ndim,
                               const int64_t *shape); /* not filled */
/* Its bytes are away: for whoever keeps them. */
ZT_API zt_status zt_tensor_empty(zt_ctx *c, zt_tensor **out, zt_dtype dtype, int ndim, const int64_t *shape);
/* Copies 'data' (host, contiguous). */
ZT_API zt_status zt_tensor_from(zt_ctx *c, zt_tensor **out, zt_dtype dtype, int ndim, const int64_t *shape,
                                const void *data);
/* The same bytes, shape and strides, with no history: a detached view. */
ZT_API zt_status zt_tensor_alias(const zt_tensor *t, zt_tensor **out);
/* A header with the same dtype and shape and no storage. */
ZT_API zt_status zt_tensor_shape_only(const zt_tensor *t, zt_tensor **out);
/* A header over given bytes of a storage (retained). */
ZT_API zt_status zt_tensor_view(zt_storage *storage, zt_dtype dtype, int ndim, const int64_t *shape,
                                const int64_t *stride, int64_t offset, zt_tensor **out);
ZT_API zt_tensor *zt_tensor_retain(zt_tensor *t);
ZT_API void zt_tensor_release(zt_tensor *t); /* NULL ok */

/* --- asking */
ZT_API int64_t zt_tensor_count(const zt_tensor *t); /* elements */
ZT_API size_t zt_tensor_nbytes(const zt_tensor *t);
ZT_API bool zt_tensor_is_contiguous(const zt_tensor *t);
ZT_API bool zt_tensor_same_shape(const zt_tensor *a, const zt_tensor *b);
/* "(8, 1024, 768)", into a buffer of the thread; four are kept alive. For messages. */
ZT_API const char *zt_shape_text(const zt_tensor *t);
ZT_API const char *zt_dims_text(int ndim, const int64_t *shape);

/* The first element's address on the device. Only between touch and the next op; never kept. */
static inline void *zt_tensor_data(const zt_tensor *t) {
  return (char *)t->storage->data + (size_t)t->offset * zt_dtype_nbytes(t->dtype);
}

/* --- bytes in and out; both wait for the device */
ZT_API zt_status zt_tensor_read(zt_ctx *c, const zt_tensor *t, void *host); /* contiguous copy, nbytes long */
ZT_API zt_status zt_tensor_write(zt_ctx *c, zt_tensor *t, const void *host);
/* The value of a tensor of one element, as a number; an int64 beyond 2^53 is rounded. */
ZT_API zt_status zt_tensor_item(zt_ctx *c, const zt_tensor *t, double *out);

/* --- in place, without history; they raise the storage's version. Raise on a tensor that a gradient must flow through
** (computed, requires_grad) while gradients are enabled; leaves are written as they are. */
ZT_API zt_status zt_fill_(zt_ctx *c, zt_tensor *t, double value);
ZT_API zt_status zt_copy_(zt_ctx *c, zt_tensor *dst, const zt_tensor *src); /* broadcasts, casts */
ZT_API zt_status zt_add_(zt_ctx *c, zt_tensor *dst, const zt_tensor *src,
                         double alpha); /* dst += alpha * src; broadcasts */
ZT_API zt_status zt_mul_(zt_ctx *c, zt_tensor *dst, double factor);
/* From the context's random state (one call). */
ZT_API zt_status zt_normal_(zt_ctx *c, zt_tensor *t, double mean, double std);
ZT_API zt_status zt_uniform_(zt_ctx *c, zt_tensor *t, double low, double high);
/* Next key of the random state; counts a call. */
ZT_API zt_rng_key zt_next_rng_key(zt_ctx *c);

#endif
