/* checkpoint_folder.c - names of checkpoints and of their files, and removing them: nothing else is ever removed. */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <unistd.h>

#include "core/base/mem.h"
#include "core/train/checkpoint_parts.h"

static const char tmp[] = ".tmp.";
enum { N_DIGITS = 16 };

/* --- names */

char *zt_checkpoint_path(const char *folder, const char *name) {
  size_t nbytes = strlen(folder) + strlen(name) + 2;
  char *path = zt_malloc(nbytes);
  if (path) snprintf(path, nbytes, "%s/%s", folder, name);
  return path;
}

char *zt_checkpoint_parent(const char *path) {
  const char *slash = strrchr(path, '/');
  char *parent = zt_strdup(slash ? path : ".");
  if (parent && slash) parent[slash == path ? 1 : slash - path] = 0;
  return parent;
}

char *zt_checkpoint_temp(const char *path, uint64_t number) {
  size_t nbytes = strlen(path) + sizeof tmp + N_DIGITS;
  char *temp = zt_malloc(nbytes);
  if (temp) snprintf(temp, nbytes, "%s%s%016" PRIx64, path, tmp, number);
  return temp;
}

zt_status zt_checkpoint_draw(uint64_t *number) {
  if (getrandom(number, sizeof *number, 0) == sizeof *number) return ZT_OK;
  return zt_fail(ZT_IO, "the system has no random number: %s", strerror(errno));
}

bool zt_checkpoint_is_numbered(const char *name, size_t length) {
  size_t n = strncmp(name, "step_", 5) == 0 ? 5 : strncmp(name, "epoch_", 6) == 0 ? 6 : 0;
  return n > 0 && length > n && n + strspn(name + n, "0123456789") >= length;
}

/* The length of NAME in NAME.tmp.NUMBER; 0: it is no such name. */
static size_t stem_length(const char *name) {
  size_t n = strlen(name), tail = sizeof tmp - 1 + N_DIGITS;
  if (n <= tail || strncmp(name + n - tail, tmp, sizeof tmp - 1) != 0) return 0;
  return strspn(name + n - N_DIGITS, "0123456789abcdef") == N_DIGITS ? n - tail : 0;
}

static bool is_manifest(const char *name) {
  size_t n = sizeof ZT_CHECKPOINT_MANIFEST - 1;
  return strncmp(name, ZT_CHECKPOINT_MANIFEST, n) == 0 && (!name[n] || strncmp(name + n, tmp, sizeof tmp - 1) == 0);
}

static bool is_data(const char *name) { return strncmp(name, "rank-", 5) == 0 && isdigit((unsigned char)name[5]); }

static bool is_dots(const char *name) { return strcmp(name, ".") == 0 || strcmp(name, "..") == 0; }

/* --- folders */

zt_status zt_checkpoint_check_folder(const char *folder) {
  char other[64] = "";
  bool has_manifest = false;
  DIR *d = opendir(folder);
  if (!d) return zt_fail(ZT_IO, "cannot read the folder '%s': %s", folder, strerror(errno));
  for (struct dirent *e; (e = readdir(d));) {
    has_manifest |= strcmp(e->d_name, ZT_CHECKPOINT_MANIFEST) == 0;
    if (!is_manifest(e->d_name) && !is_data(e->d_name) && !is_dots(e->d_name))
      snprintf(other, sizeof other, "%.60s", e->d_name);
  }
  closedir(d);
  if (has_manifest || !*other) return ZT_OK;
  return zt_fail(ZT_IO, "'%s' is a folder of something else: it has '%s' and no %s", folder, other,
                 ZT_CHECKPOINT_MANIFEST);
}

void zt_checkpoint_remove(const char *folder) {
  DIR *d = opendir(folder);
  if (!d) return;
  for (struct dirent *e; (e = readdir(d));)
    if (is_manifest(e->d_name) || is_data(e->d_name)) unlinkat(dirfd(d), e->d_name, 0);
  closedir(d);
  rmdir(folder);
}

void zt_checkpoint_sweep(const char *folder, uint64_t number, bool others) {
  char digits[N_DIGITS + 1];
  DIR *d = opendir(folder);
  if (!d) return;
  snprintf(digits, sizeof digits, "%016" PRIx64, number);
  for (struct dirent *e; (e = readdir(d));)
    if (is_data(e->d_name) && (strstr(e->d_name, digits) == NULL) == others) unlinkat(dirfd(d), e->d_name, 0);
  closedir(d);
}

int zt_checkpoint_lock(const char *folder) {
  int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
  close(fd);
  return -1;
}

static void remove_unowned(const char *folder, const char *name) {
  char *path = zt_checkpoint_path(folder, name);
  int lock = path ? zt_checkpoint_lock(path) : -1;
  if (lock >= 0) {
    zt_checkpoint_remove(path);
    close(lock);
  }
  zt_free(path);
}

void zt_checkpoint_clean(const char *folder, const char *name) {
  DIR *d = opendir(folder);
  if (!d) return;
  for (struct dirent *e; (e = readdir(d));) {
    size_t n = stem_length(e->d_name);
    if (n == 0) continue;
    if (name ? strlen(name) == n && memcmp(name, e->d_name, n) == 0 : zt_checkpoint_is_numbered(e->d_name, n))
      remove_unowned(folder, e->d_name);
  }
  closedir(d);
}
