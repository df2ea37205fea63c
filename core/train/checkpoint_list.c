/* checkpoint_list.c - the checkpoints of a folder: finding the newest, removing old ones. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/mem.h"
#include "core/train/checkpoint_parts.h"

void zt_checkpoint_remove(const char *folder) {
  DIR *d = opendir(folder);
  if (!d) return;
  for (struct dirent *e; (e = readdir(d));)
    if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) unlinkat(dirfd(d), e->d_name, 0);
  closedir(d);
  rmdir(folder);
}

typedef struct found {
  char *path; /* owned */
  int64_t step;
} found;

typedef struct listing {
  found *list;
  size_t count, capacity, n_broken;
  char broken[400]; /* why the last one could not be read */
} listing;

static void listing_free(listing *l) {
  for (size_t i = 0; i < l->count; i++) zt_free(l->list[i].path);
  zt_free(l->list);
}

/* step_N and epoch_N, and those that stepped aside for a new one. */
static bool is_name(const char *name) {
  const char *digits = strncmp(name, "step_", 5) == 0 ? name + 5 : strncmp(name, "epoch_", 6) == 0 ? name + 6 : "";
  size_t n = strspn(digits, "0123456789");
  return n > 0 && (digits[n] == 0 || strcmp(digits + n, ".old") == 0);
}

static zt_status add(listing *l, char *path, int64_t step) {
  if (l->count == l->capacity) {
    size_t capacity = l->capacity ? 2 * l->capacity : 16;
    found *list = zt_realloc(l->list, capacity * sizeof *list);
    ZT_CHECK_ALLOC(list);
    l->list = list, l->capacity = capacity;
  }
  l->list[l->count++] = (found){path, step};
  return ZT_OK;
}

static zt_status look_at(listing *l, const char *folder, const char *name) {
  zt_checkpoint *ck;
  char *path = zt_checkpoint_path(folder, name);
  ZT_CHECK_ALLOC(path);
  zt_status st = zt_checkpoint_open(path, &ck);
  if (st == ZT_OK) {
    int64_t step = zt_checkpoint_step(ck);
    zt_checkpoint_close(ck);
    st = add(l, path, step);
    if (st == ZT_OK) return ZT_OK;
  } else if (st != ZT_NOMEM) {
    l->n_broken++;
    snprintf(l->broken, sizeof l->broken, "%s", zt_message());
    st = ZT_OK;
  }
  zt_free(path);
  return st;
}

/* Newest first; of the same step the later name. */
static int newest_first(const void *a, const void *b) {
  const found *x = a, *y = b;
  if (x->step != y->step) return x->step > y->step ? -1 : 1;
  return strcmp(y->path, x->path);
}

static zt_status list_folder(const char *folder, listing *l) {
  DIR *d = opendir(folder);
  if (!d) return zt_fail(ZT_IO, "cannot read the folder '%s': %s", folder, strerror(errno));
  zt_status st = ZT_OK;
  for (struct dirent *e; st == ZT_OK && (e = readdir(d));)
    if (is_name(e->d_name)) st = look_at(l, folder, e->d_name);
  closedir(d);
  if (l->count) qsort(l->list, l->count, sizeof *l->list, newest_first);
  return st;
}

zt_status zt_checkpoint_latest(const char *folder, char **path) {
  listing l = {0};
  *path = NULL;
  zt_status st = list_folder(folder, &l);
  if (st == ZT_OK && l.count == 0) {
    st = l.n_broken ? zt_fail(ZT_IO, "'%s' has no complete checkpoint; %zu cannot be read, such as: %s", folder,
                              l.n_broken, l.broken)
                    : zt_fail(ZT_IO, "'%s' has no checkpoint (a folder step_N or epoch_N)", folder);
  } else if (st == ZT_OK) {
    *path = l.list[0].path;
    l.list[0].path = NULL;
  }
  listing_free(&l);
  return st;
}

/* Unfinished ones have ".tmp." and a number behind their name. */
static bool is_unfinished(const char *name) {
  const char *tmp = strstr(name, ".tmp.");
  char stem[64];
  if (!tmp || tmp - name >= (ptrdiff_t)sizeof stem || strlen(tmp) != 5 + ZT_CHECKSUM_DIGITS) return false;
  snprintf(stem, sizeof stem, "%.*s", (int)(tmp - name), name);
  return is_name(stem);
}

static zt_status remove_unfinished(const char *folder) {
  DIR *d = opendir(folder);
  if (!d) return zt_fail(ZT_IO, "cannot read the folder '%s': %s", folder, strerror(errno));
  for (struct dirent *e; (e = readdir(d));) {
    char *path = is_unfinished(e->d_name) ? zt_checkpoint_path(folder, e->d_name) : NULL;
    if (path) zt_checkpoint_remove(path);
    zt_free(path);
  }
  closedir(d);
  return ZT_OK;
}

zt_status zt_checkpoint_prune(const char *folder, int keep) {
  listing l = {0};
  if (keep < 1) return zt_fail(ZT_INVALID, "%d checkpoints are to stay; 1 is the least", keep);
  zt_status st = list_folder(folder, &l);
  for (size_t i = (size_t)keep; i < l.count && st == ZT_OK; i++) zt_checkpoint_remove(l.list[i].path);
  listing_free(&l);
  return st == ZT_OK ? remove_unfinished(folder) : st;
}
