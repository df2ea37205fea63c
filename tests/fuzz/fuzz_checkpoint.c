/* Any bytes as a checkpoint's manifest: refused, or opened with every element of every tensor inside of the files. Two files lie
** beside it, and the seeds have their sizes and checksums. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base/hash.h"
#include "core/base/mem.h"
#include "core/train/checkpoint_parts.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes);

static const char *const names[] = {"manifest.json", "rank-0.0000000000000001.bin", "rank-1.0000000000000001.bin"};
static const size_t sizes[] = {0, 161, 100};
static char folder[64] = "/tmp/ztrain.fuzz.XXXXXX";

static void require(int truth) {
  if (!truth) abort();
}

static const char *path_of(int i) {
  static char path[128];
  snprintf(path, sizeof path, "%s/%s", folder, names[i]);
  return path;
}

static void remove_folder(void) { zt_checkpoint_remove(folder); }

/* Byte k of a data file is k. The manifest leads to a file in memory, which is returned. */
static int make_folder(void) {
  char target[64];
  require(mkdtemp(folder) != NULL);
  atexit(remove_folder);
  for (int i = 1; i < 3; i++) {
    uint8_t bytes[256];
    int fd = open(path_of(i), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    for (size_t k = 0; k < sizes[i]; k++) bytes[k] = (uint8_t)k;
    require(fd >= 0 && write(fd, bytes, sizes[i]) == (ssize_t)sizes[i] && close(fd) == 0);
  }
  int fd = memfd_create("manifest", 0);
  snprintf(target, sizeof target, "/proc/self/fd/%d", fd);
  require(fd >= 0 && symlink(target, path_of(0)) == 0);
  return fd;
}

static void read_item(zt_checkpoint *ck, const zt_checkpoint_item *item) {
  int64_t count = 0;
  size_t each = zt_dtype_nbytes(item->dtype);
  require(zt_checkpoint_find(ck, item->name) == item && zt_checkpoint_elements(item, &count) && count == item->count);
  require((uint64_t)count <= (sizes[1] + sizes[2]) / each);
  char *out = malloc((size_t)count * each);
  require(out || count == 0);
  zt_status st = zt_checkpoint_read(ck, item, 0, count, out); /* checksums may be wrong */
  require(st == ZT_OK || strlen(zt_message()) > 0);
  require(zt_checkpoint_read(ck, item, 0, count + 1, out) == ZT_INVALID);
  free(out);
}

static void try_manifest(int fd, const void *data, size_t nbytes) {
  zt_checkpoint *ck;
  require(ftruncate(fd, 0) == 0 && pwrite(fd, data, nbytes, 0) == (ssize_t)nbytes);
  if (zt_checkpoint_open(folder, &ck) != ZT_OK) {
    require(!ck && strlen(zt_message()) > 0);
    return;
  }
  for (size_t i = 0; i < zt_checkpoint_count(ck); i++) read_item(ck, zt_checkpoint_get(ck, i));
  zt_status st = zt_checkpoint_verify(ck);
  require(st == ZT_OK || strlen(zt_message()) > 0);
  require(zt_checkpoint_json(ck) != NULL);
  zt_checkpoint_close(ck);
}

/* With the first line that the rest has to have: no mutation would come past it otherwise. */
static void try_with_true_checksum(int fd, const uint8_t *data, size_t nbytes) {
  char head[ZT_CHECKPOINT_HEAD_NBYTES + 1];
  size_t n = ZT_CHECKPOINT_HEAD_NBYTES;
  if (nbytes < n) return;
  uint8_t *copy = malloc(nbytes);
  require(copy != NULL);
  memcpy(copy, data, nbytes);
  snprintf(head, sizeof head, ZT_CHECKPOINT_HEAD, zt_hash_bytes(0, data + n, nbytes - n));
  memcpy(copy, head, n);
  try_manifest(fd, copy, nbytes);
  free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes) {
  static int fd = -1;
  if (fd < 0) fd = make_folder();
  uint64_t n_live = zt_mem_get_stats().n_live_blocks;
  try_manifest(fd, data, nbytes);
  try_with_true_checksum(fd, data, nbytes);
  require(zt_mem_get_stats().n_live_blocks == n_live);
  return 0;
}
