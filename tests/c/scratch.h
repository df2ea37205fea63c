/* scratch.h - what tests of files share: a folder of their own, random numbers with a seed that is printed when a test
** fails, and allocation number 1, 2, 3, ... made to fail. */
#ifndef zt_test_scratch_h
#define zt_test_scratch_h

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dirent.h>
#include <ftw.h>
#include <sys/random.h>
#include <unistd.h>

#include "core/base/mem.h"
#include "core/base/rng.h"

static char scratch[256];

static inline int scratch_setup(void **state) {
  const char *tmp = getenv("TMPDIR");
  (void)state;
  snprintf(scratch, sizeof scratch, "%s/ztrain.test.XXXXXX", tmp ? tmp : "/tmp");
  return mkdtemp(scratch) ? 0 : -1;
}

static inline int scratch_remove_one(const char *path, const struct stat *info, int kind, struct FTW *where) {
  (void)info, (void)kind, (void)where;
  return remove(path);
}

static inline int scratch_teardown(void **state) {
  (void)state;
  return nftw(scratch, scratch_remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* The path of a file of the folder; 64 are kept alive. */
static inline const char *scratch_path(const char *name) {
  static char paths[64][512];
  static int turn;
  char *path = paths[turn++ % 64];
  snprintf(path, sizeof *paths, "%s/%s", scratch, name);
  return path;
}

/* Files and folders in a folder of the scratch folder ("" is itself). */
static inline int scratch_count(const char *name) {
  int count = 0;
  DIR *dir = opendir(scratch_path(name));
  assert_non_null(dir);
  for (struct dirent *e = readdir(dir); e; e = readdir(dir)) count += e->d_name[0] != '.';
  closedir(dir);
  return count;
}

static inline void scratch_write(const char *name, const void *data, size_t nbytes) {
  FILE *file = fopen(scratch_path(name), "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(data, 1, nbytes, file), nbytes);
  assert_int_equal(fclose(file), 0);
}

/* ZT_TEST_SEED replays a failure. */
static inline uint64_t scratch_seed(void) {
  static uint64_t seed;
  const char *given = getenv("ZT_TEST_SEED");
  if (given) seed = strtoull(given, NULL, 10);
  while (!seed)
    if (getrandom(&seed, sizeof seed, 0) != sizeof seed) fail_msg("no random numbers");
  return seed;
}

static inline uint64_t scratch_random(void) {
  static uint64_t count;
  return zt_rng_mix(scratch_seed(), count++);
}

static inline uint64_t scratch_below(uint64_t n) { return scratch_random() % n; }

#define assert_fails(status, expected, ...)     \
  do {                                          \
    zt_status got_ = (status);                  \
    char text_[4096];                           \
    snprintf(text_, sizeof text_, __VA_ARGS__); \
    assert_string_equal(zt_message(), text_);   \
    assert_int_equal(got_, expected);           \
  } while (0)

#define assert_ok(status)                                \
  do {                                                   \
    if ((status) != ZT_OK) fail_msg("%s", zt_message()); \
  } while (0)

/* Calls try(user) with the first, second, ... allocation failing until it succeeds; every failure must be ZT_NOMEM and
** leave no block behind. try frees what it made. Returns how many failed. */
static inline uint64_t fail_each_allocation(zt_status (*attempt)(void *user), void *user) {
  uint64_t n_live = zt_mem_get_stats().n_live_blocks;
  for (uint64_t n = 1;; n++) {
    zt_mem_fail_at(n, false);
    zt_status st = attempt(user);
    zt_mem_fail_at(0, false);
    if (zt_mem_get_stats().n_live_blocks != n_live)
      fail_msg("allocation %d: %d blocks leak", (int)n, (int)(zt_mem_get_stats().n_live_blocks - n_live));
    if (st == ZT_OK) return n - 1;
    if (st != ZT_NOMEM || !strstr(zt_message(), "host memory")) fail_msg("allocation %d: %s", (int)n, zt_message());
    if (n > 100000) fail_msg("it never succeeds");
  }
}

#endif
