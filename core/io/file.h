/* file.h - reading whole files and mapping them, and writing so that a file is complete or absent.
** Messages name the file and the system's reason. */
#ifndef zt_file_h
#define zt_file_h

#include <stdbool.h>
#include <stddef.h>

#include "core/base/err.h"

/* '*data' is nbytes long plus a zero byte; free with zt_free. */
ZT_API zt_status zt_file_read(const char *path, char **data, size_t *nbytes);

/* Bytes of a regular file, and 'nbytes' of them from byte 'at' on; ZT_IO where it ends before. */
ZT_API zt_status zt_file_nbytes(const char *path, size_t *nbytes);
ZT_API zt_status zt_file_read_at(const char *path, size_t at, void *out, size_t nbytes);

/* A read-only mapping; an empty file gives data NULL, nbytes 0. Somebody who shortens the file while it is mapped ends
** the process (SIGBUS); replacing it (rename) is harmless. */
typedef struct zt_map {
  const unsigned char *data;
  size_t nbytes;
} zt_map;
ZT_API zt_status zt_map_open(const char *path, zt_map *out);
ZT_API void zt_map_close(zt_map *map);

/* Writes beside 'path' (path.tmp.PID), then fsyncs, renames over it and fsyncs the folder. Until commit the old file
** stands; abort leaves nothing behind. What stands at 'path' must be a regular file or nothing. One writer for a path at
** a time in a process; of several processes, the last commit stays. */
typedef struct zt_writer zt_writer;
ZT_API zt_status zt_writer_open(const char *path, zt_writer **out);
ZT_API zt_status zt_writer_write(zt_writer *w, const void *data, size_t nbytes);
ZT_API size_t zt_writer_nbytes(const zt_writer *w); /* written so far */
ZT_API zt_status zt_writer_commit(zt_writer *w);    /* closes and frees w, also on failure (then as abort) */
ZT_API void zt_writer_abort(zt_writer *w);          /* NULL ok */
/* open, write, commit */
ZT_API zt_status zt_file_write(const char *path, const void *data, size_t nbytes);

/* Adds the whole of 'data' to the end of a file, made where it does not exist, or nothing of it. */
ZT_API zt_status zt_file_append(const char *path, const void *data, size_t nbytes);

/* Waits until nobody else, of any process, holds the folder in which 'path' lies; then holds it until the unlock, or the
** end of the process. ZT_IO where the file system knows no locks. */
ZT_API zt_status zt_folder_lock(const char *path, int *lock);
ZT_API void zt_folder_unlock(int lock);

ZT_API zt_status zt_folder_sync(const char *path); /* what was renamed in the folder in which 'path' lies is on disk */
ZT_API zt_status zt_make_dirs(const char *path);   /* as mkdir -p */
ZT_API bool zt_file_exists(const char *path);      /* a file or folder that can be seen from here */

#endif
