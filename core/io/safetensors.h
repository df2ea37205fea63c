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
  size_t position; /* among the tensors of its file's header */
} zt_safetensors_entry;

/* Maps a .safetensors file, or all files of a .safetensors.index.json (each opened once, beside it). Entries are in the
** order of their data; shards in the order of their names. The format's BOOL reads as uint8 (0 and 1). A dtype that
** ztrain does not have, in any entry, is an error. */
ZT_API zt_status zt_safetensors_open(const char *path, zt_safetensors **out);
/* The same from the bytes of one file (borrowed until close); 'name' stands in messages. */
ZT_API zt_status zt_safetensors_open_bytes(const char *name, const void *data, size_t nbytes, zt_safetensors **out);
ZT_API void zt_safetensors_close(zt_safetensors *st); /* NULL ok */
ZT_API size_t zt_safetensors_count(const zt_safetensors *st);
ZT_API const zt_safetensors_entry *zt_safetensors_get(const zt_safetensors *st, size_t i);
ZT_API const zt_safetensors_entry *zt_safetensors_find(const zt_safetensors *st, const char *name); /* NULL: absent */
/* Metadata strings of a single file ("format" = "pt"); NULL: absent. */
ZT_API const char *zt_safetensors_metadata(const zt_safetensors *st, const char *key);
/* The i-th key (from 0) and its string; NULL past the last. */
ZT_API const char *zt_safetensors_metadata_at(const zt_safetensors *st, size_t i, const char **value);

/* Writes atomically. 'source' is called once an item, in the order given, and must write its bytes to 'w', neither more
** nor less. Data starts 8-aligned; items are not padded (wider dtypes first keep all of them aligned). */
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
