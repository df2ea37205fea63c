/* checkpoint_list.c - the checkpoints of a folder: the newest, and the oldest. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/log.h"
#include "core/base/mem.h"
#include "core/train/checkpoint_parts.h"

typedef struct found {
  char *path; /* owned */
  int64_t step;
} found;

typedef struct listing {
  const char *folder;
  found *list; /* newest first */
  size_t count, capacity;
  char damage[1000]; /* of one that is not complete; "": all are */
  char others[160];  /* what else is there, for messages */
} listing;

static void clear(listing *l) {
  for (size_t i = 0; i < l->count; i++) zt_free(l->list[i].path);
  zt_free(l->list);
}

/* --- looking */

static void note_other(listing *l, const char *name) {
  size_t n = strlen(l->others);
  if (n + strlen(name) + 8 < sizeof l->others)
    snprintf(l->others + n, sizeof l->others - n, "%s%s", n ? ", " : "", name);
  else if (n < 4 || strcmp(l->others + n - 3, "...") != 0)
    snprintf(l->others + n, sizeof l->others - n, "%s...", n ? ", " : "");
}

static zt_status reserve(listing *l) {
  if (l->count < l->capacity) return ZT_OK;
  size_t capacity = l->capacity ? 2 * l->capacity : 8;
  found *list = zt_realloc(l->list, capacity * sizeof *list);
  ZT_CHECK_ALLOC(list);
  l->list = list, l->capacity = capacity;
  return ZT_OK;
}

/* Takes 'path' over where a checkpoint is there, whole as far as its manifest and its files' sizes say; else frees it. */
static zt_status take(listing *l, char *path) {
  zt_checkpoint *ck;
  zt_status st = zt_checkpoint_open(path, &ck);
  if (st == ZT_OK) {
    l->list[l->count++] = (found){path, zt_checkpoint_step(ck)};
    zt_checkpoint_close(ck);
    return ZT_OK;
  }
  zt_free(path);
  if (st == ZT_NOMEM) return st;
  snprintf(l->damage, sizeof l->damage, "%s", zt_message());
  zt_log("a checkpoint is passed over: %s", l->damage);
  return ZT_OK;
}

static zt_status look_at(listing *l, const char *name) {
  if (*name == '.') return ZT_OK;
  size_t n = l->count;
  if (zt_checkpoint_is_numbered(name, strlen(name))) {
    ZT_TRY(reserve(l));
    char *path = zt_checkpoint_path(l->folder, name);
    ZT_CHECK_ALLOC(path);
    ZT_TRY(take(l, path));
  }
  if (l->count == n) note_other(l, name);
  return ZT_OK;
}

/* Of the same step epoch_N, which was written when the epoch had ended. */
static int newer_first(const void *a, const void *b) {
  const found *x = a, *y = b;
  if (x->step != y->step) return x->step > y->step ? -1 : 1;
  return strcmp(x->path, y->path);
}

static zt_status look(listing *l) {
  DIR *d = opendir(l->folder);
  if (!d) return zt_fail(ZT_IO, "cannot read the folder '%s': %s", l->folder, strerror(errno));
  zt_status st = ZT_OK;
  for (struct dirent *e; st == ZT_OK && (e = readdir(d));) st = look_at(l, e->d_name);
  closedir(d);
  if (l->count) qsort(l->list, l->count, sizeof *l->list, newer_first);
  return st;
}

zt_status zt_checkpoint_latest(const char *folder, char **path) {
  listing l = {.folder = folder};
  *path = NULL;
  zt_status st = look(&l);
  if (st == ZT_OK && l.count == 0 && *l.damage)
    st = zt_fail(ZT_IO, "'%s' has no complete checkpoint: %s", folder, l.damage);
  else if (st == ZT_OK && l.count == 0)
    st = zt_fail(ZT_IO, "'%s' has no checkpoint (a folder step_N or epoch_N); it has: %s", folder,
                 *l.others ? l.others : "nothing");
  if (st == ZT_OK) {
    *path = l.list[0].path;
    l.list[0].path = NULL;
  }
  clear(&l);
  return st;
}

/* --- removing. A checkpoint loses its name before its files, so that none is seen that has lost some. */

static zt_status remove_checkpoint(const char *path) {
  uint64_t number;
  ZT_TRY(zt_checkpoint_draw(&number));
  char *temp = zt_checkpoint_temp(path, number);
  ZT_CHECK_ALLOC(temp);
  zt_status st = ZT_OK;
  if (rename(path, temp) == 0)
    zt_checkpoint_remove(temp);
  else
    st = zt_fail(ZT_IO, "cannot remove '%s': %s", path, strerror(errno));
  zt_free(temp);
  return st;
}

zt_status zt_checkpoint_prune(const char *folder, int keep) {
  if (keep < 1) return zt_fail(ZT_INVALID, "%d checkpoints are to stay; 1 is the least", keep);
  listing l = {.folder = folder};
  zt_status st = look(&l);
  for (size_t i = (size_t)keep; i < l.count && st == ZT_OK; i++) st = remove_checkpoint(l.list[i].path);
  clear(&l);
  if (st == ZT_OK) zt_checkpoint_clean(folder, NULL);
  return st;
}
