/* pool.h - owns all of a device's memory: caches freed blocks, keeps a hard budget, counts bytes by kind.
** Blocks are cut best-fit from segments got from the device and merged again when freed, so that the same
** requests in the same order always give the same addresses and the same peak. Not thread-safe. */
#ifndef zt_pool_h
#define zt_pool_h

#include "core/device/device.h"

/* What bytes are held for. X(constant, word in messages) */
#define ZT_MEM_KINDS(X)             \
  X(PARAMETER, "parameters")        \
  X(GRADIENT, "gradients")          \
  X(OPTIMIZER, "optimizer")         \
  X(ACTIVATION, "activations")      \
  X(COMMUNICATION, "communication") \
  X(OTHER, "other")

typedef enum zt_mem_kind {
#define ZT_MEM_KIND_ENUM(id, word) ZT_MEM_##id,
  ZT_MEM_KINDS(ZT_MEM_KIND_ENUM)
#undef ZT_MEM_KIND_ENUM
      ZT_N_MEM_KINDS
} zt_mem_kind;

typedef struct zt_pool zt_pool;
typedef struct zt_block zt_block; /* one allocation */

/* Asked once when the budget or the device is exhausted, after the cache was flushed: may free blocks (Lua's GC). */
typedef void (*zt_pool_reclaim)(void *user);

/* 'budget' in bytes, 0 for no limit. Keeps 'device' (borrowed). */
ZT_API zt_status zt_pool_new(zt_device *device, size_t budget, zt_pool **out);
ZT_API void zt_pool_free(zt_pool *pool); /* all blocks must have been freed; NULL ok */
ZT_API void zt_pool_set_reclaim(zt_pool *pool, zt_pool_reclaim fn, void *user);

/* A block of at least 'nbytes', aligned to 512 bytes, not zeroed. Over the budget: flush, reclaim, retry once, then
** ZT_NOMEM "cpu: asks for 1.5 GiB, 22.9 of 24.0 GiB are in use (parameters 2.9 GiB, ...)". */
ZT_API zt_status zt_pool_alloc(zt_pool *pool, size_t nbytes, zt_mem_kind kind, zt_block **out);
ZT_API void zt_pool_release(zt_pool *pool, zt_block *block); /* NULL ok */
ZT_API void *zt_block_data(const zt_block *block);
ZT_API void zt_block_set_kind(zt_pool *pool, zt_block *block, zt_mem_kind kind); /* a tensor that became a parameter */

/* Gives wholly free segments back to the device. */
ZT_API void zt_pool_flush(zt_pool *pool);

typedef struct zt_pool_stats {
  size_t used[ZT_N_MEM_KINDS];          /* bytes in live blocks now */
  size_t peak[ZT_N_MEM_KINDS];          /* at the moment of the peak of their sum */
  size_t used_nbytes, peak_nbytes;      /* sums */
  size_t held_nbytes, held_peak_nbytes; /* got from the device: used + cached */
} zt_pool_stats;
ZT_API zt_pool_stats zt_pool_get_stats(const zt_pool *pool);
ZT_API void zt_pool_reset_peak(zt_pool *pool);

#endif
