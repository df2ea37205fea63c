/* late.h - tensors whose bytes come into being when somebody first reads or writes them. Until then they are a rule: a
** number, a random draw, or a part of a file. A parameter that is going to be sharded is made so: each rank then makes its
** own share of it, and nobody the whole. */
#ifndef zt_late_h
#define zt_late_h

#include "core/tensor/tensor.h"

typedef enum zt_start_kind { ZT_START_VALUE, ZT_START_NORMAL, ZT_START_UNIFORM, ZT_START_BYTES } zt_start_kind;

typedef struct zt_start {
  zt_start_kind kind;
  double a, b;                 /* value; mean and deviation; low and high */
  zt_rng_key key;              /* of the draw */
  const void *bytes;           /* host, row-major, all elements; may be unaligned; they stay until release */
  zt_dtype dtype;              /* theirs */
  void (*release)(void *user); /* called when the rule is no longer needed; NULL ok */
  void *user;
} zt_start;

/* Starts as zeros. */
ZT_API zt_status zt_tensor_new_late(zt_ctx *c, zt_tensor **out, zt_dtype dtype, int ndim, const int64_t *shape);
/* Whether it is all of a storage that is late still. */
ZT_API bool zt_tensor_is_late(const zt_tensor *t);
/* Another rule for a late tensor; takes over 'start'. */
ZT_API void zt_late_set(zt_tensor *t, const zt_start *start);
/* Elements [first, first + count) of a late tensor, row-major, in its dtype, to 'out' (device); it stays late. first is a
** multiple of 128. */
ZT_API zt_status zt_late_values(zt_ctx *c, const zt_tensor *t, int64_t first, int64_t count, void *out);

#endif
