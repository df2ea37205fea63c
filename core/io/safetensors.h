/* safetensors.h - the file format: 8 bytes of header length, a JSON header, raw little-endian tensors.
** Files come from strangers: every length, range, dtype and shape is checked before use. */
#ifndef zt_safetensors_h
#define zt_safetensors_h

#include "core/base/dtype.h"
#include "core/io/file.h"

enum { ZT_SAFETENSORS_MAX_DIM = 6 };

typedef struct zt_safetensors zt_safetensors;

typedef struct zt_safetensors_entry {
  const char *name; /* borrowed from the file object */
  zt_dtype dtype;
  int ndim;
  int64_t shape[ZT_SAFETENSORS_MAX_DIM];
  const void *data; /* in the mapping; may be unaligned */
  size_t nbytes;
} zt_safetensors_entry;

/* Maps a .safetensors file, or all files of a .safetensors.index.json (each opened once, beside it). Entries are in the
** order of their data; shards in the order of their names. */
ZT_API zt_status zt_safetensors_open(const char *path, zt_safetensors **out);
ZT_API void zt_safetensors_close(zt_safetensors *st); /* NULL ok */
ZT_API size_t zt_safetensors_count(const zt_safetensors *st);
ZT_API const zt_safetensors_entry *zt_safetensors_get(const zt_safetensors *st, size_t i);
ZT_API const zt_safetensors_entry *zt_safetensors_find(const zt_safetensors *st, const char *name); /* NULL: absent */
/* Metadata strings of a single file ("format" = "pt"); NULL: absent. */
ZT_API const char *zt_safetensors_metadata(const zt_safetensors *st, const char *key);

/* Writes atomically. 'read' is called once an entry, in the order given, and must give its bytes to 'write'. */
typedef struct zt_safetensors_item {
  const char *name;
  zt_dtype dtype;
  int ndim;
  int64_t shape[ZT_SAFETENSORS_MAX_DIM];
} zt_safetensors_item;
typedef zt_status (*zt_safetensors_source)(void *user, size_t i, zt_writer *w);
/* metadata: pairs key, value, ..., NULL; NULL for none. */
ZT_API zt_status zt_safetensors_save(const char *path, const zt_safetensors_item *items, size_t count,
                                     const char *const *metadata, zt_safetensors_source source, void *user);

#endif
