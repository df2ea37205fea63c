#include "core/device/storage.h"

#include "core/base/mem.h"

zt_status zt_storage_new_empty(zt_pool *pool, size_t nbytes, zt_storage **out) {
  *out = zt_calloc(1, sizeof **out);
  ZT_CHECK_ALLOC(*out);
  (*out)->refs = 1;
  (*out)->pool = pool;
  (*out)->nbytes = nbytes;
  return ZT_OK;
}

zt_status zt_storage_new(zt_pool *pool, size_t nbytes, zt_mem_kind kind, zt_storage **out) {
  ZT_TRY(zt_storage_new_empty(pool, nbytes, out));
  zt_status st = zt_storage_return(*out, kind);
  if (st != ZT_OK) {
    zt_free(*out);
    *out = NULL;
  }
  return st;
}

void zt_storage_leave(zt_storage *storage) {
  zt_pool_release(storage->pool, storage->block);
  storage->block = NULL, storage->data = NULL;
}

zt_status zt_storage_return(zt_storage *storage, zt_mem_kind kind) {
  ZT_TRY(zt_pool_alloc(storage->pool, storage->nbytes, kind, &storage->block));
  storage->data = zt_block_data(storage->block);
  return ZT_OK;
}

zt_storage *zt_storage_retain(zt_storage *storage) {
  storage->refs++;
  return storage;
}

void zt_storage_release(zt_storage *storage) {
  if (!storage || --storage->refs) return;
  if (storage->keeper && storage->keeper->release) storage->keeper->release(storage->keeper);
  if (storage->pool) zt_pool_release(storage->pool, storage->block);
  zt_free(storage);
}
