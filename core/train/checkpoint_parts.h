/* checkpoint_parts.h - what the files of checkpoint.h share: what lies in a checkpoint's folder, and the names of it.
** docs/formats.md has the whole. */
#ifndef zt_checkpoint_parts_h
#define zt_checkpoint_parts_h

#include <inttypes.h>

#include "core/train/checkpoint.h"

#define ZT_CHECKPOINT_FORMAT "ztrain checkpoint"
#define ZT_CHECKPOINT_MANIFEST "manifest.json"
/* The manifest's first line, with the checksum of all that follows it. */
#define ZT_CHECKPOINT_HEAD "{\"checksum\":\"%016" PRIx64 "\",\n"
enum {
  ZT_CHECKPOINT_VERSION = 1,
  ZT_CHECKPOINT_HEAD_NBYTES = 32,
  ZT_CHECKPOINT_BLOCK = 4 << 20, /* bytes of a file that have one checksum */
  ZT_CHECKPOINT_ALIGN = 64,      /* pieces begin at multiples of it */
};

/* Elements [begin, begin + count) of a tensor lie in a file from byte 'offset' on. */
typedef struct zt_checkpoint_piece {
  uint64_t where; /* number of the file (reading), of the tensor (saving) */
  int64_t offset, begin, count;
} zt_checkpoint_piece;

static inline size_t zt_checkpoint_blocks(int64_t nbytes) {
  return (size_t)(nbytes / ZT_CHECKPOINT_BLOCK + (nbytes % ZT_CHECKPOINT_BLOCK > 0));
}

/* Elements of an item's whole tensor; false where a size is negative, or its bytes cannot be counted in 62 bits. */
bool zt_checkpoint_elements(const zt_checkpoint_item *item, int64_t *count);

/* --- names; what is returned is owned, NULL: no memory */

char *zt_checkpoint_path(const char *folder, const char *name); /* folder/name */
char *zt_checkpoint_parent(const char *path);                   /* the folder in which 'path' lies */
/* path.tmp.NUMBER, a random one: where what shall be 'path' is put together, or what was it is removed. */
char *zt_checkpoint_temp(const char *path, uint64_t number);
zt_status zt_checkpoint_draw(uint64_t *number);
/* Whether the first 'length' characters are step_N or epoch_N. */
bool zt_checkpoint_is_numbered(const char *name, size_t length);

/* --- folders. What cannot be removed stays, and is not told: a checkpoint stands or not without it. */

/* Whether what lies in a folder is a checkpoint's, or there is at least a manifest beside it. */
zt_status zt_checkpoint_check_folder(const char *folder);
/* Removes files that have a checkpoint's names, and the folder where nothing else is in it. */
void zt_checkpoint_remove(const char *folder);
/* Removes data files that have this number in their names, or all others. */
void zt_checkpoint_sweep(const char *folder, uint64_t number, bool others);
/* Removes unfinished folders whose writer died: of this name, or (NULL) of any step_N and epoch_N. */
void zt_checkpoint_clean(const char *folder, const char *name);
/* What the writer of an unfinished folder holds; the system takes it back from who dies. -1: another has it, or the file
** system knows no locks. */
int zt_checkpoint_lock(const char *folder);

#endif
