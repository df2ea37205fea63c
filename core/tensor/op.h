/* op.h - what an op is, for those who write one (op_*.c). Users of ops include ops.h.
**
** An op is a row of ZT_OPS and a 'const zt_op zt_op_NAME' with three functions: 'shape' checks the inputs and says what
** comes out, 'forward' runs kernels, 'backward' turns the gradients of the outputs into those of the inputs. Backward
** rules call ops or kernels, so they are written once for all devices. Its public function in ops.h fills a zt_call and
** hands it to zt_apply, the one way in: it checks, allocates, runs, and leaves a node on the tape. */
#ifndef zt_op_h
#define zt_op_h

#include "core/tensor/tensor.h"

enum { ZT_MAX_IN = 8, ZT_MAX_OUT = 4 };

typedef struct zt_op zt_op;

/* Numbers that belong to a call: each op uses what it needs and says how in its file. */
typedef struct zt_attr {
  int64_t i[12];
  double f[4];
  zt_rng_key key;
} zt_attr;

typedef struct zt_call {
  const zt_op *op;
  zt_attr attr;
  /* Inputs, borrowed during forward; an optional one that is absent is NULL. In backward: saved ones have their bytes,
  ** others are headers with a shape and no storage. */
  zt_tensor *in[ZT_MAX_IN];
  int n_in;
  /* Outputs: the first op->n_out are the caller's, the rest ('aux') exist for backward. As inputs, in backward. */
  zt_tensor *out[ZT_MAX_OUT];
  int n_out;
  /* Which inputs and outputs backward reads; bit i is in[i], out[i]. zt_apply starts them from the op's row; shape or
  ** forward may change them. */
  uint32_t save_in, save_out;
  /* Set by zt_apply before shape: bit i where in[i] wants a gradient and gradients are enabled; 0 = nothing recorded.
  ** In backward: which gin[] are wanted. */
  uint32_t needs_grad;
  /* In backward: a gradient that already waits where in[i]'s is going, contiguous; the op may add to it in place and
  ** leave gin[i] NULL. NULL: there is none. */
  zt_tensor *accum[ZT_MAX_IN];
} zt_call;

struct zt_op {
  const char *name;
  int n_out; /* outputs that the caller gets */
  uint32_t save_in, save_out;
  bool view; /* forward makes out[] itself, as views; zt_apply allocates nothing */
  /* Fails with the shapes in the message; else calls zt_call_out for each output in order. */
  zt_status (*shape)(zt_ctx *c, zt_call *call);
  zt_status (*forward)(zt_ctx *c, zt_call *call);
  /* gout[i]: gradient of output i < op->n_out, NULL where none arrived (at least one did), borrowed, contiguous or not.
  ** gin[i] starts NULL; set it (owned) for the bits of needs_grad; NULL means zero. Gradients are off inside. A gin may
  ** be gout retained. NULL backward: the op has no gradient. */
  zt_status (*backward)(zt_ctx *c, const zt_call *call, zt_tensor *const gout[], zt_tensor *gin[]);
};

#define ZT_OP_DECLARE(name) extern const zt_op zt_op_##name;

/* Runs a call: op, attr, in and n_in are set. On success 'outs' gets op->n_out owned tensors. Messages get the op's name
** in front. */
zt_status zt_apply(zt_ctx *c, zt_call *call, zt_tensor **outs);

/* In shape(): declares the next output, contiguous. */
zt_status zt_call_out(zt_call *call, zt_dtype dtype, int ndim, const int64_t *shape);

/* --- what op files share */
/* Pins the bytes of all tensors (NULL ok): around everything that reads or writes bytes outside of an op's own functions,
** for which zt_apply and backward do it. All or none. */
zt_status zt_pin_all(zt_tensor *const t[], int n);
void zt_unpin_all(zt_tensor *const t[], int n);
/* Both ranks up to ZT_MAX_DIM: the common shape; 'what' names the op in the message. */
zt_status zt_broadcast_shape(const zt_tensor *a, const zt_tensor *b, int *ndim, int64_t *shape);
/* The loop of 'out' and n_in inputs broadcast to it, dimensions merged where all strides allow. */
zt_status zt_loop_make(zt_loop *loop, const zt_tensor *out, zt_tensor *const in[], int n_in);
/* t itself (retained) where contiguous, else a contiguous copy. No history. */
zt_status zt_contiguous(zt_ctx *c, const zt_tensor *t, zt_tensor **out);
/* Sums 'g' over the dimensions in which a tensor of shape 'like' was broadcast to it. May be g retained. */
zt_status zt_sum_to(zt_ctx *c, zt_tensor *g, const zt_tensor *like, zt_tensor **out);
/* New tensor like 't' (contiguous). */
zt_status zt_tensor_like(zt_ctx *c, const zt_tensor *t, zt_tensor **out);
zt_status zt_scalar(zt_ctx *c, zt_tensor **out, zt_dtype dtype, double value); /* of no dimensions */
zt_status zt_tensor_zeros(zt_ctx *c, zt_tensor **out, zt_dtype dtype, int ndim, const int64_t *shape);
/* A tensor as rows of its last dimension: the product of the others (1 for a vector), and its length. */
static inline int64_t zt_rows(const zt_tensor *t) {
  int64_t rows = 1;
  for (int i = 0; i < t->ndim - 1; i++) rows *= t->shape[i];
  return rows;
}
static inline int64_t zt_cols(const zt_tensor *t) { return t->shape[t->ndim - 1]; }
/* A contiguous tensor as kernels see it around dimension 'dim', or all of it as the middle (ZT_ALL_DIMS). */
enum { ZT_ALL_DIMS = 1000 };
typedef struct zt_around {
  size_t outer, n, inner;
} zt_around;
static inline zt_around zt_around_dim(const zt_tensor *t, int64_t dim) {
  zt_around s = {1, 1, 1};
  for (int i = 0; i < t->ndim; i++)
    *(dim == ZT_ALL_DIMS || i == dim ? &s.n : i < dim ? &s.outer : &s.inner) *= (size_t)t->shape[i];
  return s;
}
static inline void *zt_data_or_null(const zt_tensor *t) { return t ? zt_tensor_data(t) : NULL; }
/* A dimension as the caller gave it (0-based, negative from the end) to 0 .. ndim-1. */
zt_status zt_check_dim(const zt_tensor *t, int64_t dim, int *out);
zt_status zt_check_float(const zt_tensor *t, const char *which);
zt_status zt_check_dtype(const zt_tensor *t, zt_dtype dtype, const char *which);
/* Every element of the int64 'index' lies in [0, limit) or is 'ignore'; else the message names 'what', the value and its
** position. ZT_NO_IGNORE: no value is. */
#define ZT_NO_IGNORE INT64_MIN
zt_status zt_check_index(zt_ctx *c, const zt_tensor *index, int64_t limit, int64_t ignore, const char *what);
/* Bytes for a kernel's workspace, as a tensor of uint8; *out NULL for 0. */
zt_status zt_workspace(zt_ctx *c, size_t nbytes, zt_tensor **out);
/* The product, with the workspace that it needs. A simple one: y (m, n) = op(a) op(b) + beta y, all contiguous. */
zt_status zt_gemm_run(zt_ctx *c, zt_dtype t, void *y, const void *a, const void *b, const zt_gemm *g);
zt_gemm zt_gemm_plain(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, double beta);
/* Where the gradient of in[i] goes: the one that waits (then *beta is 1), or a new tensor of its shape, owned by gin[i]
** (*beta 0). */
zt_status zt_gradient_target(zt_ctx *c, const zt_call *call, int i, zt_tensor *gin[], zt_tensor **out, double *beta);
/* The kernel table and the stream of the context's device. */
const zt_kernels *zt_k(zt_ctx *c);
zt_stream *zt_s(zt_ctx *c);

#endif
