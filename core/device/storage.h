/* storage.h - refcounted bytes on a device, under any number of tensors.
** The bytes may leave and come back under living tensors, so nothing else keeps a data pointer across calls.
** Not thread-safe. */
#ifndef zt_storage_h
#define zt_storage_h

#include "core/device/pool.h"

typedef struct zt_storage {
  uint32_t refs;
  uint32_t version; /* raised by every in-place write: the tape finds out what changed after it was saved */
  zt_pool *pool;    /* borrowed; NULL where the bytes belong to somebody else (a mapped file) */
  zt_block *block;  /* owned */
  void *data;
  size_t nbytes;
} zt_storage;

/* '*out' is owned by the caller (one reference). */
ZT_API zt_status zt_storage_new(zt_pool *pool, size_t nbytes, zt_mem_kind kind, zt_storage **out);
ZT_API zt_storage *zt_storage_retain(zt_storage *storage);
ZT_API void zt_storage_release(zt_storage *storage); /* NULL ok */

#endif
