#include "core/io/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/mem.h"

struct zt_writer {
  char *path, *temp;
  int fd; /* -1: closed */
  size_t nbytes;
};

static zt_status fail_read(const char *path) { return zt_fail(ZT_IO, "cannot read '%s': %s", path, strerror(errno)); }
static zt_status fail_write(const char *path) { return zt_fail(ZT_IO, "cannot write '%s': %s", path, strerror(errno)); }

/* --- reading */

static zt_status open_regular(const char *path, int *fd, size_t *nbytes) {
  struct stat info;
  *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe without a writer would wait for one */
  if (*fd < 0) return fail_read(path);
  zt_status st = ZT_OK;
  if (fstat(*fd, &info) != 0)
    st = fail_read(path);
  else if (!S_ISREG(info.st_mode))
    st = zt_fail(ZT_IO, "cannot read '%s': it is %s", path, S_ISDIR(info.st_mode) ? "a folder" : "not a regular file");
  if (st != ZT_OK)
    close(*fd);
  else
    *nbytes = (size_t)info.st_size;
  return st;
}

static zt_status read_fully(const char *path, int fd, char *data, size_t nbytes, size_t at) {
  size_t done = 0;
  while (done < nbytes) {
    ssize_t n = pread(fd, data + done, nbytes - done, (off_t)(at + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail_read(path);
    if (n == 0) return zt_fail(ZT_IO, "cannot read '%s': it ends after %zu of %zu bytes", path, at + done, at + nbytes);
    done += (size_t)n;
  }
  return ZT_OK;
}

zt_status zt_file_read(const char *path, char **data, size_t *nbytes) {
  int fd;
  *data = NULL, *nbytes = 0;
  ZT_TRY(open_regular(path, &fd, nbytes));
  zt_status st = ZT_NOMEM;
  *data = zt_malloc(*nbytes + 1);
  if (*data) {
    st = read_fully(path, fd, *data, *nbytes, 0);
    (*data)[*nbytes] = 0;
  }
  close(fd);
  if (st != ZT_OK) {
    zt_free(*data);
    *data = NULL, *nbytes = 0;
  }
  return st;
}

zt_status zt_file_nbytes(const char *path, size_t *nbytes) {
  int fd;
  ZT_TRY(open_regular(path, &fd, nbytes));
  close(fd);
  return ZT_OK;
}

zt_status zt_file_read_at(const char *path, size_t at, void *out, size_t nbytes) {
  int fd;
  size_t total;
  ZT_TRY(open_regular(path, &fd, &total));
  zt_status st = read_fully(path, fd, out, nbytes, at);
  close(fd);
  return st;
}

zt_status zt_map_open(const char *path, zt_map *out) {
  int fd;
  size_t nbytes = 0;
  *out = (zt_map){0};
  ZT_TRY(open_regular(path, &fd, &nbytes));
  zt_status st = ZT_OK;
  if (nbytes) {
    void *data = mmap(NULL, nbytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED)
      st = zt_fail(ZT_IO, "cannot map the %zu bytes of '%s': %s", nbytes, path, strerror(errno));
    else
      *out = (zt_map){data, nbytes};
  }
  close(fd);
  return st;
}

void zt_map_close(zt_map *map) {
  if (map->data) munmap((void *)(uintptr_t)map->data, map->nbytes);
  *map = (zt_map){0};
}

/* --- writing */

static zt_status check_target(const char *path) {
  struct stat info;
  if (stat(path, &info) != 0 || S_ISREG(info.st_mode)) return ZT_OK; /* other failures show when the file is opened */
  return zt_fail(ZT_IO, "cannot write '%s': it is %s", path, S_ISDIR(info.st_mode) ? "a folder" : "not a regular file");
}

/* A process that died may have left a file of this name, and process ids come again. */
static int open_temp(const char *temp) {
  int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
  int fd = open(temp, flags, 0666);
  if (fd < 0 && errno == EEXIST && unlink(temp) == 0) fd = open(temp, flags, 0666);
  return fd;
}

static void free_writer(zt_writer *w) {
  zt_free(w->path);
  zt_free(w->temp);
  zt_free(w);
}

zt_status zt_writer_open(const char *path, zt_writer **out) {
  *out = NULL;
  ZT_TRY(check_target(path));
  zt_writer *w = zt_calloc(1, sizeof *w);
  ZT_CHECK_ALLOC(w);
  size_t temp_nbytes = strlen(path) + 32;
  zt_status st = ZT_NOMEM;
  w->path = zt_strdup(path);
  if (w->path) w->temp = zt_malloc(temp_nbytes);
  if (w->temp) {
    snprintf(w->temp, temp_nbytes, "%s.tmp.%ld", path, (long)getpid());
    w->fd = open_temp(w->temp);
    st = w->fd < 0 ? fail_write(path) : ZT_OK;
  }
  if (st != ZT_OK)
    free_writer(w);
  else
    *out = w;
  return st;
}

/* As write, but all of it; adds what was written to '*done'. */
static bool write_fully(int fd, const char *data, size_t nbytes, size_t *done) {
  while (nbytes) {
    ssize_t n = write(fd, data, nbytes);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    data += n, nbytes -= (size_t)n, *done += (size_t)n;
  }
  return true;
}

zt_status zt_writer_write(zt_writer *w, const void *data, size_t nbytes) {
  if (write_fully(w->fd, data, nbytes, &w->nbytes)) return ZT_OK;
  return zt_fail(ZT_IO, "cannot write '%s': %s (after %zu bytes)", w->path, strerror(errno), w->nbytes);
}

size_t zt_writer_nbytes(const zt_writer *w) { return w->nbytes; }

static zt_status fail_folder(const char *what, const char *path) {
  return zt_fail(ZT_IO, "cannot %s the folder of '%s': %s", what, path, strerror(errno));
}

/* The folder in which 'path' lies. Without allocations: what was renamed is not to fail for want of memory. */
static zt_status open_folder(const char *path, int *fd) {
  char folder[PATH_MAX];
  const char *slash = strrchr(path, '/');
  size_t n = slash > path ? (size_t)(slash - path) : 1;
  if (n >= sizeof folder) return errno = ENAMETOOLONG, fail_folder("open", path);
  memcpy(folder, slash ? path : ".", n);
  folder[n] = 0;
  *fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  return *fd < 0 ? fail_folder("open", path) : ZT_OK;
}

/* A rename is on disk once its folder is. Some file systems know no fsync of folders and say EINVAL. */
zt_status zt_folder_sync(const char *path) {
  int fd;
  ZT_TRY(open_folder(path, &fd));
  zt_status st = fsync(fd) == 0 || errno == EINVAL ? ZT_OK : fail_folder("sync", path);
  close(fd);
  return st;
}

static zt_status finish(zt_writer *w) {
  if (fsync(w->fd) != 0) return fail_write(w->path);
  int fd = w->fd;
  w->fd = -1; /* closed even where close fails */
  if (close(fd) != 0) return fail_write(w->path);
  if (rename(w->temp, w->path) != 0) return fail_write(w->path);
  return zt_folder_sync(w->path);
}

zt_status zt_writer_commit(zt_writer *w) {
  zt_status st = finish(w);
  if (st != ZT_OK)
    zt_writer_abort(w);
  else
    free_writer(w);
  return st;
}

void zt_writer_abort(zt_writer *w) {
  if (!w) return;
  if (w->fd >= 0) close(w->fd);
  unlink(w->temp); /* gone already where only the folder could not be synced */
  free_writer(w);
}

zt_status zt_file_write(const char *path, const void *data, size_t nbytes) {
  zt_writer *w;
  ZT_TRY(zt_writer_open(path, &w));
  zt_status st = zt_writer_write(w, data, nbytes);
  if (st == ZT_OK) return zt_writer_commit(w);
  zt_writer_abort(w);
  return st;
}

zt_status zt_file_append(const char *path, const void *data, size_t nbytes) {
  struct stat info;
  size_t done = 0;
  ZT_TRY(check_target(path));
  int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd < 0) return fail_write(path);
  zt_status st = fstat(fd, &info) == 0 && write_fully(fd, data, nbytes, &done) ? ZT_OK : fail_write(path);
  if (st != ZT_OK && done && ftruncate(fd, info.st_size) != 0)
    st = zt_fail(ZT_IO, "'%s' ends in %zu of %zu bytes: %s", path, done, nbytes, strerror(errno));
  if (close(fd) != 0 && st == ZT_OK) st = fail_write(path);
  return st;
}

/* --- folders */

zt_status zt_folder_lock(const char *path, int *lock) {
  ZT_TRY(open_folder(path, lock));
  while (flock(*lock, LOCK_EX) != 0) {
    if (errno == EINTR) continue;
    zt_status st = fail_folder("lock", path);
    close(*lock);
    return st;
  }
  return ZT_OK;
}

void zt_folder_unlock(int lock) { close(lock); }

static zt_status make_dir(const char *path) {
  struct stat info;
  if (mkdir(path, 0777) == 0) return ZT_OK;
  int error = errno; /* a folder that stands may also be reported as EROFS or EACCES */
  if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) return ZT_OK;
  return zt_fail(ZT_IO, "cannot make the folder '%s': %s", path, strerror(error));
}

zt_status zt_make_dirs(const char *path) {
  char *part = zt_strdup(path);
  ZT_CHECK_ALLOC(part);
  zt_status st = ZT_OK;
  for (char *slash = strchr(part + (*part == '/'), '/'); slash && st == ZT_OK; slash = strchr(slash + 1, '/')) {
    *slash = 0;
    st = make_dir(part);
    *slash = '/';
  }
  if (st == ZT_OK) st = make_dir(part);
  zt_free(part);
  return st;
}

bool zt_file_exists(const char *path) { return access(path, F_OK) == 0; }
