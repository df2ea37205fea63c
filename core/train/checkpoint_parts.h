/* checkpoint_parts.h - what checkpoint.c (writing), checkpoint_read.c and checkpoint_list.c share.
**
** A checkpoint's folder has manifest.json, state.json (the caller's text) and rank-R.bin for each rank that wrote. The
** manifest's first line is the checksum of all that follows; it lists files with the checksums of their blocks, and tensors with
** the pieces that they lie in. */
#ifndef zt_checkpoint_parts_h
#define zt_checkpoint_parts_h

#include "core/base/buffer.h"
#include "core/train/checkpoint.h"

#define ZT_CHECKPOINT_FORMAT "ztrain checkpoint"
enum {
  ZT_CHECKPOINT_VERSION = 1,
  ZT_CHECKPOINT_BLOCK = 4 << 20, /* bytes under one checksum */
  ZT_CHECKPOINT_ALIGN = 64,      /* pieces start at multiples of it */
  ZT_CHECKSUM_DIGITS = 16,
};

static inline int64_t zt_checkpoint_items_count(const zt_checkpoint_item *item) {
  int64_t count = 1;
  for (int i = 0; i < item->ndim; i++) count *= item->shape[i];
  return count;
}

/* The checksum of block 'number' of a file: of its bytes, and its place. */
uint64_t zt_checkpoint_checksum(uint64_t number, const void *data, size_t nbytes);
/* folder/name; free with zt_free. NULL: no memory. */
char *zt_checkpoint_path(const char *folder, const char *name);
/* The body of a text whose first line is its checksum; NULL where it is not. */
const char *zt_checkpoint_body(const char *text, size_t nbytes, size_t *body_nbytes);
/* The files of a folder, and the folder. Failures are not told: what could not be removed stays. */
void zt_checkpoint_remove(const char *folder);

#endif
