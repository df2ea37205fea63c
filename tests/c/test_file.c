/* Reading, mapping and writing files: complete or absent, whatever fails. */
#include "tests/c/scratch.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "core/io/file.h"

static void assert_content(const char *path, const void *expected, size_t nbytes) {
  char *data;
  size_t got;
  assert_ok(zt_file_read(path, &data, &got));
  assert_int_equal(got, nbytes);
  if (nbytes) assert_memory_equal(data, expected, nbytes);
  assert_int_equal(data[nbytes], 0);
  zt_free(data);
}

static void test_round_trip(void **state) {
  (void)state;
  static unsigned char bytes[100003];
  size_t sizes[] = {0, 1, 4095, 4096, sizeof bytes};
  for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (unsigned char)scratch_random();
  for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
    const char *path = scratch_path("round");
    assert_ok(zt_file_write(path, bytes, sizes[k]));
    assert_content(path, bytes, sizes[k]);
    zt_map map;
    assert_ok(zt_map_open(path, &map));
    assert_int_equal(map.nbytes, sizes[k]);
    assert_true((map.data == NULL) == (sizes[k] == 0));
    if (sizes[k]) assert_memory_equal(map.data, bytes, sizes[k]);
    zt_map_close(&map);
    zt_map_close(&map);
  }
  assert_int_equal(scratch_count(""), 1);
  remove(scratch_path("round"));
}

static void test_pieces_and_abort(void **state) {
  (void)state;
  zt_writer *w;
  const char *path = scratch_path("pieces");
  assert_ok(zt_file_write(path, "old", 3));
  assert_ok(zt_writer_open(path, &w));
  assert_ok(zt_writer_write(w, "ab", 2));
  assert_ok(zt_writer_write(w, "", 0));
  assert_ok(zt_writer_write(w, "cde", 3));
  assert_int_equal(zt_writer_nbytes(w), 5);
  assert_content(path, "old", 3); /* until it is committed */
  zt_writer_abort(w);
  assert_content(path, "old", 3);
  zt_writer_abort(NULL);
  assert_ok(zt_writer_open(path, &w));
  assert_ok(zt_writer_write(w, "new", 3));
  assert_ok(zt_writer_commit(w));
  assert_content(path, "new", 3);
  assert_int_equal(scratch_count(""), 1);
  remove(path);
}

static void test_stale_temp(void **state) {
  (void)state;
  char name[64];
  snprintf(name, sizeof name, "stale.tmp.%ld", (long)getpid());
  scratch_write(name, "left by a process that died", 27);
  assert_ok(zt_file_write(scratch_path("stale"), "x", 1));
  assert_content(scratch_path("stale"), "x", 1);
  assert_int_equal(scratch_count(""), 1);
  remove(scratch_path("stale"));
}

static void test_read_errors(void **state) {
  (void)state;
  char *data;
  size_t nbytes;
  zt_map map;
  const char *absent = scratch_path("absent"), *fifo = scratch_path("fifo");
  assert_fails(zt_file_read(absent, &data, &nbytes), ZT_IO, "cannot read '%s': No such file or directory", absent);
  assert_null(data);
  assert_fails(zt_map_open(absent, &map), ZT_IO, "cannot read '%s': No such file or directory", absent);
  assert_null(map.data);
  assert_fails(zt_file_read(scratch, &data, &nbytes), ZT_IO, "cannot read '%s': it is a folder", scratch);
  assert_fails(zt_map_open("/dev/null", &map), ZT_IO, "cannot read '/dev/null': it is not a regular file");
  assert_int_equal(mkfifo(fifo, 0600), 0);
  int keep = open(fifo, O_RDWR); /* else opening it would wait for a writer */
  assert_fails(zt_file_read(fifo, &data, &nbytes), ZT_IO, "cannot read '%s': it is not a regular file", fifo);
  close(keep);
  remove(fifo);
}

static void test_parts(void **state) {
  (void)state;
  char out[4] = "";
  size_t nbytes;
  const char *path = scratch_path("parts"), *absent = scratch_path("absent");
  scratch_write("parts", "0123456789", 10);
  assert_ok(zt_file_nbytes(path, &nbytes));
  assert_int_equal(nbytes, 10);
  assert_ok(zt_file_read_at(path, 6, out, 4));
  assert_memory_equal(out, "6789", 4);
  assert_ok(zt_file_read_at(path, 10, out, 0));
  assert_fails(zt_file_read_at(path, 8, out, 4), ZT_IO, "cannot read '%s': it ends after 10 of 12 bytes", path);
  assert_fails(zt_file_read_at(path, 20, out, 4), ZT_IO, "cannot read '%s': it ends after 20 of 24 bytes", path);
  assert_fails(zt_file_read_at(absent, 0, out, 4), ZT_IO, "cannot read '%s': No such file or directory", absent);
  assert_fails(zt_file_nbytes(absent, &nbytes), ZT_IO, "cannot read '%s': No such file or directory", absent);
  assert_fails(zt_file_nbytes(scratch, &nbytes), ZT_IO, "cannot read '%s': it is a folder", scratch);
  assert_ok(zt_folder_sync(path));
  assert_fails(zt_folder_sync("/nowhere/x"), ZT_IO,
               "cannot open the folder of '/nowhere/x': No such file or directory");
  remove(path);
}

static void test_write_errors(void **state) {
  (void)state;
  const char *nowhere = scratch_path("no/where"), *under_file = scratch_path("plain/x");
  assert_fails(zt_file_write(nowhere, "x", 1), ZT_IO, "cannot write '%s': No such file or directory", nowhere);
  assert_fails(zt_file_write(scratch, "x", 1), ZT_IO, "cannot write '%s': it is a folder", scratch);
  assert_fails(zt_file_write("/dev/full", "x", 1), ZT_IO, "cannot write '/dev/full': it is not a regular file");
  scratch_write("plain", "", 0);
  assert_fails(zt_file_write(under_file, "x", 1), ZT_IO, "cannot write '%s': Not a directory", under_file);
  assert_fails(zt_make_dirs(under_file), ZT_IO, "cannot make the folder '%s': File exists", scratch_path("plain"));
  assert_int_equal(scratch_count(""), 1);
  remove(scratch_path("plain"));
}

static void test_file_size_limit(void **state) {
  (void)state;
  static const char bytes[10000];
  struct rlimit before, small;
  const char *path = scratch_path("limited");
  assert_ok(zt_file_write(path, "old", 3));
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
  small = before, small.rlim_cur = 4096;
  signal(SIGXFSZ, SIG_IGN);
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
  zt_status st = zt_file_write(path, bytes, sizeof bytes); /* a short write of 4096 bytes, then none */
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, SIG_DFL);
  assert_fails(st, ZT_IO, "cannot write '%s': File too large (after 4096 bytes)", path);
  assert_content(path, "old", 3);
  assert_int_equal(scratch_count(""), 1);
  remove(path);
}

static void test_append(void **state) {
  (void)state;
  static const char bytes[10000];
  struct rlimit before, small;
  const char *path = scratch_path("lines");
  assert_ok(zt_file_append(path, "", 0));
  assert_ok(zt_file_append(path, "one\n", 4));
  assert_ok(zt_file_append(path, "two\n", 4));
  assert_content(path, "one\ntwo\n", 8);
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
  small = before, small.rlim_cur = 4096;
  signal(SIGXFSZ, SIG_IGN);
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
  zt_status st = zt_file_append(path, bytes, sizeof bytes);
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, SIG_DFL);
  assert_fails(st, ZT_IO, "cannot write '%s': File too large", path);
  assert_content(path, "one\ntwo\n", 8); /* a part of a line is taken back */
  assert_fails(zt_file_append(scratch_path("no/file"), "x", 1), ZT_IO, "cannot write '%s': No such file or directory",
               scratch_path("no/file"));
  remove(path);
}

/* A pipe would block the reader until somebody writes. */
static void test_pipe(void **state) {
  (void)state;
  char *data;
  size_t nbytes;
  const char *path = scratch_path("pipe");
  assert_int_equal(mkfifo(path, 0600), 0);
  assert_fails(zt_file_read(path, &data, &nbytes), ZT_IO, "cannot read '%s': it is not a regular file", path);
  assert_fails(zt_file_append(path, "x", 1), ZT_IO, "cannot write '%s': it is not a regular file", path);
  remove(path);
}

/* In a process with a mount namespace of its own: a disk of 64 KiB. Exit 77: it cannot be mounted here. */
static int fill_small_disk(void) {
  static const char bytes[200000];
  char expected[1024];
  const char *disk = scratch_path("disk"), *path = scratch_path("disk/big");
  if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return 77;
  if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) return 77;
  if (mount("tmpfs", disk, "tmpfs", 0, "size=64k") != 0) return 77;
  if (zt_file_write(path, "old", 3) != ZT_OK) return 1;
  if (zt_file_write(path, bytes, sizeof bytes) != ZT_IO) return 2;
  snprintf(expected, sizeof expected, "cannot write '%s': No space left on device (after ", path);
  if (strncmp(zt_message(), expected, strlen(expected)) != 0) return 3;
  return scratch_count("disk") == 1 && access(path, F_OK) == 0 ? 0 : 4;
}

static void test_full_disk(void **state) {
  (void)state;
  int status;
  assert_int_equal(mkdir(scratch_path("disk"), 0700), 0);
  pid_t child = fork();
  if (child == 0) _exit(fill_small_disk());
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  rmdir(scratch_path("disk"));
  if (WEXITSTATUS(status) == 77) skip();
  assert_int_equal(WEXITSTATUS(status), 0);
}

static void test_make_dirs(void **state) {
  (void)state;
  assert_ok(zt_make_dirs(scratch_path("a/b//c/")));
  assert_true(zt_file_exists(scratch_path("a/b/c")));
  assert_ok(zt_make_dirs(scratch_path("a/b/c")));
  assert_ok(zt_make_dirs("/"));
  assert_false(zt_file_exists(scratch_path("a/b/d")));
  assert_fails(zt_make_dirs(""), ZT_IO, "cannot make the folder '': No such file or directory");
  for (const char **p = (const char *[]){"a/b/c", "a/b", "a", NULL}; *p; p++) rmdir(scratch_path(*p));
}

/* A child that has to wait for the folder, and then sees what was written while it was held. */
static void test_folder_lock(void **state) {
  (void)state;
  int lock, status;
  assert_ok(zt_folder_lock(scratch_path("any"), &lock));
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    zt_folder_unlock(lock); /* its copy */
    if (zt_folder_lock(scratch_path("any"), &lock) != ZT_OK) _exit(1);
    _exit(zt_file_exists(scratch_path("marker")) ? 0 : 2);
  }
  usleep(50000);
  scratch_write("marker", "", 0);
  zt_folder_unlock(lock);
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, 0);
  assert_int_equal(remove(scratch_path("marker")), 0);
  assert_fails(zt_folder_lock("/nowhere/any", &lock), ZT_IO,
               "cannot open the folder of '/nowhere/any': No such file or directory");
}

static void test_relative_paths(void **state) {
  (void)state;
  char before[512];
  assert_non_null(getcwd(before, sizeof before));
  assert_int_equal(chdir(scratch), 0);
  zt_status st = zt_file_write("relative", "x", 1);
  assert_int_equal(chdir(before), 0);
  assert_ok(st);
  assert_int_equal(remove(scratch_path("relative")), 0);
}

static zt_status write_and_read(void *user) {
  char *data;
  size_t nbytes;
  zt_map map;
  int lock;
  (void)user;
  ZT_TRY(zt_make_dirs(scratch_path("deep/er")));
  ZT_TRY(zt_file_write(scratch_path("deep/er/f"), "12345", 5));
  ZT_TRY(zt_folder_lock(scratch_path("deep/er/f"), &lock));
  zt_folder_unlock(lock);
  ZT_TRY(zt_map_open(scratch_path("deep/er/f"), &map));
  zt_map_close(&map);
  ZT_TRY(zt_file_read(scratch_path("deep/er/f"), &data, &nbytes));
  zt_free(data);
  return ZT_OK;
}

static void test_out_of_memory(void **state) {
  (void)state;
  assert_true(fail_each_allocation(write_and_read, NULL) >= 4);
  assert_int_equal(scratch_count("deep/er"), 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_round_trip),
      cmocka_unit_test(test_pieces_and_abort),
      cmocka_unit_test(test_stale_temp),
      cmocka_unit_test(test_read_errors),
      cmocka_unit_test(test_parts),
      cmocka_unit_test(test_write_errors),
      cmocka_unit_test(test_file_size_limit),
      cmocka_unit_test(test_append),
      cmocka_unit_test(test_pipe),
      cmocka_unit_test(test_full_disk),
      cmocka_unit_test(test_make_dirs),
      cmocka_unit_test(test_relative_paths),
      cmocka_unit_test(test_folder_lock),
      cmocka_unit_test(test_out_of_memory),
  };
  return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
