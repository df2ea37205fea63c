/* storage.h - refcounted bytes on a device, under any number of tensors.
** The bytes may leave and come back under living tensors, so nothing else keeps a data pointer across calls, and who reads
** or writes them pins them first. Not thread-safe. */
#ifndef zt_storage_h
#define zt_storage_h

#include "core/device/pool.h"

typedef struct zt_storage zt_storage;

/* Who brings bytes that are away. After pin they are there, and stay until unpin; pins nest. unpin sees by the version
** whether they were written. */
typedef struct zt_keeper {
  zt_status (*pin)(struct zt_keeper *keeper);
  void (*unpin)(struct zt_keeper *keeper);
  void (*release)(struct zt_keeper *keeper); /* the storage is going; NULL ok */
} zt_keeper;

struct zt_storage {
  uint32_t refs;
  uint32_t version; /* raised by every in-place write: the tape finds out what changed after it was saved */
  zt_pool *pool;    /* borrowed; NULL where the bytes belong to somebody else (a mapped file) */
  zt_block *block;  /* owned; NULL while the bytes are away */
  void *data;
  size_t nbytes;
  zt_keeper *keeper; /* borrowed; NULL: the bytes are always there */
};

/* '*out' is owned by the caller (one reference). Empty: its bytes are away. */
ZT_API zt_status zt_storage_new_empty(zt_pool *pool, size_t nbytes, zt_storage **out);
ZT_API zt_status zt_storage_new(zt_pool *pool, size_t nbytes, zt_mem_kind kind, zt_storage **out);
ZT_API zt_storage *zt_storage_retain(zt_storage *storage);
ZT_API void zt_storage_release(zt_storage *storage); /* NULL ok */

/* The bytes go, or come back as a new block, not filled. */
ZT_API void zt_storage_leave(zt_storage *storage);
ZT_API zt_status zt_storage_return(zt_storage *storage, zt_mem_kind kind);

static inline zt_status zt_storage_pin(zt_storage *storage) {
  return storage && storage->keeper ? storage->keeper->pin(storage->keeper) : ZT_OK;
}
static inline void zt_storage_unpin(zt_storage *storage) {
  if (storage && storage->keeper) storage->keeper->unpin(storage->keeper);
}

#endif
