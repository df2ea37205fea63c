/* checkpoint.h - the state of a training run on disk: complete or absent, checksummed, the same for any number of ranks.
**
** A checkpoint is a folder. It holds logical tensors by name (parameters, moments, ...) and one JSON text. Each rank writes
** a file with its parts of the tensors; the manifest says which elements of which tensor lie where, and has checksums of
** blocks of at most 4 MiB, and of itself. All of it is written beside ("NAME.tmp..."), synced, and committed by one rename
** after all ranks are done (an existing one is exchanged, then removed), the parent synced. Whoever reads asks for ranges of
** elements, and verifies the blocks that they touch: no rank reads or holds more than its share plus a constant. */
#ifndef zt_checkpoint_h
#define zt_checkpoint_h

#include "core/base/dtype.h"
#include "core/comm/comm.h"
#include "core/io/safetensors.h"

/* A tensor, and the part of it that this rank has: elements [begin, begin + count) in row-major order; count 0: none. The
** parts of all ranks cover each element exactly once, else saving fails on all ranks and names the tensor. Every rank
** lists the same tensors in the same order. */
typedef struct zt_checkpoint_item {
  const char *name; /* "model.h.0.attn.weight", "optimizer.m.h.0.attn.weight"; any UTF-8 */
  zt_dtype dtype;
  int ndim;
  int64_t shape[ZT_SAFETENSORS_MAX_DIM];
  int64_t begin, count;
  const void *data; /* host bytes of the part; NULL: 'source' gives them */
} zt_checkpoint_item;

/* Where data is not in host memory: copies elements [begin, begin + count) of item i's part (begin counted within the
** tensor) to 'out'. Called in order, with at most 4 MiB at a time. */
typedef zt_status (*zt_checkpoint_source)(void *user, size_t i, int64_t begin, int64_t count, void *out);

/* Collective. 'json' is rank 0's (others' is not read): an object, whose integer "step" says which checkpoint is newer. A
** checkpoint that stands at 'path' is replaced, all or nothing; a folder with anything else in it is not. Missing folders
** above are made. On a failure on any rank (a full disk) all ranks fail with its message, what stood at 'path' stands, and
** nothing is left behind. Three collectives. Beyond the caller's, a rank holds a block of 4 MiB and the manifest's parts. */
ZT_API zt_status zt_checkpoint_save(zt_world *world, const char *path, const zt_checkpoint_item *items, size_t count,
                                    const char *json, zt_checkpoint_source source, void *user);

typedef struct zt_checkpoint zt_checkpoint;

/* Reads and verifies the manifest, and that every file is there with its size; any rank, or a program without a world.
** Messages name the file. Keep the object while reading; reading is not thread-safe. It holds two blocks of 4 MiB at most. */
ZT_API zt_status zt_checkpoint_open(const char *path, zt_checkpoint **out);
ZT_API void zt_checkpoint_close(zt_checkpoint *ck);             /* NULL ok */
ZT_API const char *zt_checkpoint_json(const zt_checkpoint *ck); /* borrowed */
ZT_API int64_t zt_checkpoint_step(const zt_checkpoint *ck);     /* the JSON's */
ZT_API size_t zt_checkpoint_count(const zt_checkpoint *ck);
ZT_API const zt_checkpoint_item *zt_checkpoint_get(const zt_checkpoint *ck,
                                                   size_t i); /* begin 0, count all, data NULL */
ZT_API const zt_checkpoint_item *zt_checkpoint_find(const zt_checkpoint *ck, const char *name); /* NULL: absent */
/* Elements [begin, begin + count) of a tensor to 'out' (host, in its dtype). A checksum that is wrong: ZT_FORMAT, with the
** file, the tensor and the place. */
ZT_API zt_status zt_checkpoint_read(zt_checkpoint *ck, const zt_checkpoint_item *item, int64_t begin, int64_t count,
                                    void *out);
/* Reads every block of every file. */
ZT_API zt_status zt_checkpoint_verify(zt_checkpoint *ck);

/* Writes a tensor for each name in 'names' (of the checkpoint; renamed to 'as[i]'), in dtype 'dtypes[i]', to one
** safetensors file, streamed: holds no more than a block. */
ZT_API zt_status zt_checkpoint_export(zt_checkpoint *ck, const char *path, const char *const names[],
                                      const char *const as[], const zt_dtype dtypes[], size_t count);

/* The newest complete checkpoint of a folder, of those named step_N and epoch_N: by the step that they were saved at (of the
** same step, epoch_N), not by names or file times. Its path into *path (zt_free), or ZT_IO with what is there instead. One
** that is damaged is passed over, with a notice (zt_log). */
ZT_API zt_status zt_checkpoint_latest(const char *folder, char **path);
/* Removes the oldest complete checkpoints named so but for 'keep' of them, and what processes that died left of unfinished
** ones. Files that are not a checkpoint's stay. */
ZT_API zt_status zt_checkpoint_prune(const char *folder, int keep);

#endif
