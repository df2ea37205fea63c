/* Checkpoints that several ranks write, and what stands when something goes wrong: a rank that fails, a full disk, no
** permission, kill -9 at any moment, a file system that cannot exchange folders. Ranks are forked before anything else of the
** library runs in them. */
#include "tests/c/checkpoints.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#define CHECK(condition)                                                               \
  do {                                                                                 \
    if (!(condition))                                                                  \
      return zt_fail(ZT_STATE, "line %d: %s; ZT_TEST_SEED=%llu", __LINE__, #condition, \
                     (unsigned long long)scratch_seed());                              \
  } while (0)

static char path[512]; /* of the checkpoint of a test */

static int setup(void **state) {
  int failed = scratch_setup(state);
  snprintf(path, sizeof path, "%s", scratch_path("ck"));
  scratch_seed();
  return failed;
}

static int clear(void **state) {
  (void)state;
  remove_tree(scratch);
  return mkdir(scratch, 0755);
}

static void run(zt_status (*body)(zt_world *w, int rank), int size, int status, const char *line) {
  crew c = {.options = {.size = size, .session = 7}, .body = body};
  crew_start(&c);
  crew_wait(&c, 60);
  for (int r = 0; r < size; r++) assert_rank(&c, r, status, line);
}

/* --- ranks that work together */

static uint64_t collectives(const zt_world *w) {
  zt_comm_stats s = zt_comm_get_stats(w);
  return s.n_all_gather + s.n_all_to_all + s.n_broadcast + s.n_barrier;
}

static zt_status save_thrice(zt_world *w, int rank) {
  (void)rank;
  for (uint64_t version = 1; version <= 3; version++) {
    save s = {.t = version == 2 ? &small_tensors : &odd_tensors, .path = path, .version = version, .cuts = version - 1};
    uint64_t before = collectives(w), checked = 0;
    ZT_TRY(save_part(w, &s));
    CHECK(collectives(w) - before <= 3);
    ZT_TRY(zt_wrap(check_whole(s.t, path, &checked), "version %d", (int)version));
    CHECK(checked == version);
    ZT_TRY(zt_barrier(w, NULL));
  }
  return ZT_OK;
}

static void test_any_number_of_ranks(void **state) {
  (void)state;
  for (int size = 1; size <= 5; size++) {
    run(save_thrice, size, CREW_OK, "");
    assert_version(&odd_tensors, path, 3);
    assert_int_equal(scratch_count(""), 1);
    assert_int_equal(scratch_count("ck"), size + 1);
  }
}

static int n_writers; /* of the checkpoint that the next ranks read */

/* Each reads its share of all tensors, in parts. */
static zt_status read_share(zt_world *w, int rank) {
  zt_checkpoint *ck;
  int size = zt_world_size(w);
  ZT_TRY(zt_checkpoint_open(path, &ck));
  for (size_t i = 0; i < odd_tensors.count; i++) {
    int64_t begin = cut_at(&odd_tensors, i, rank, size, 77), end = cut_at(&odd_tensors, i, rank + 1, size, 77);
    int64_t each = (end - begin) / 3 + 1;
    for (int64_t at = begin; at < end; at += each)
      ZT_TRY(compare_range(ck, &odd_tensors, 4, i, at, end - at < each ? end - at : each));
  }
  zt_checkpoint_close(ck);
  return ZT_OK;
}

static zt_status save_once(zt_world *w, int rank) {
  (void)rank;
  return save_part(w, &(save){.t = &odd_tensors, .path = path, .version = 4, .cuts = 31});
}

static void test_other_numbers_read(void **state) {
  (void)state;
  for (n_writers = 1; n_writers <= 4; n_writers++) {
    run(save_once, n_writers, CREW_OK, "");
    for (int readers = 1; readers <= 4; readers++) run(read_share, readers, CREW_OK, "");
  }
}

/* Files of two ranks, of the same size: taken for each other, they are found out. */
static const zt_checkpoint_item even_list[] = {{.name = "even", .dtype = ZT_F32, .ndim = 1, .shape = {64}}};
static const tensors even_tensors = {even_list, 1};

static zt_status save_even(zt_world *w, int rank) {
  (void)rank;
  return save_part(w, &(save){.t = &even_tensors, .path = path, .version = 4});
}

static void test_swapped_files(void **state) {
  (void)state;
  char first[1024], second[1024];
  uint64_t version;
  run(save_even, 2, CREW_OK, "");
  snprintf(first, sizeof first, "%s", data_file(path, 0));
  snprintf(second, sizeof second, "%s", data_file(path, 1));
  assert_int_equal(rename(first, scratch_path("aside")), 0);
  assert_int_equal(rename(second, first), 0);
  assert_int_equal(rename(scratch_path("aside"), second), 0);
  assert_fails(check_whole(&even_tensors, path, &version), ZT_FORMAT,
               "tensor 'even': '%s' is damaged: bytes 0 to 127 do not have their checksum", first);
}

/* --- one rank fails: all do, with its message, and the old one stands. Twice: the world works on. */

static zt_status fail_at_third(void *user, size_t i, int64_t begin, int64_t count, void *out) {
  if (i == 2) return zt_fail(ZT_DTYPE, "the device is on fire");
  return give_expected(user, i, begin, count, out);
}

static zt_status fail_source(zt_world *w, int rank) {
  save s = {.t = &small_tensors, .path = path, .version = 2, .source = rank == 1 ? fail_at_third : give_expected};
  char expected[1024];
  snprintf(expected, sizeof expected, "cannot save the checkpoint '%s': rank 1/3: tensor 'c': the device is on fire",
           path);
  for (int n = 0; n < 2; n++) {
    uint64_t before = collectives(w);
    zt_status st = save_part(w, &s);
    CHECK(st == ZT_DTYPE && strcmp(zt_message(), expected) == 0);
    CHECK(collectives(w) - before <= 3);
  }
  return ZT_OK;
}

static zt_status old_one(zt_world *w, int rank) {
  (void)rank;
  return save_part(w, &(save){.t = &small_tensors, .path = path, .version = 1});
}

static void assert_old_stands(void) {
  assert_version(&small_tensors, path, 1);
  assert_int_equal(scratch_count(""), 1);
}

static void test_failing_source(void **state) {
  (void)state;
  run(old_one, 3, CREW_OK, "");
  run(fail_source, 3, CREW_OK, "");
  assert_old_stands();
}

/* What the ranks say does not fit together. */
static void (*change)(zt_checkpoint_item *items, int rank);
static const char *complaint;

static zt_status change_something(zt_world *w, int rank) {
  char expected[2048];
  (void)rank;
  snprintf(expected, sizeof expected, "cannot save the checkpoint '%s': %s", path, complaint);
  zt_status st = save_part(w, &(save){.t = &small_tensors, .path = path, .version = 2, .change = change});
  if (st != ZT_INVALID || strcmp(zt_message(), expected) != 0)
    return zt_fail(ZT_STATE, "'%s', not '%s'", zt_message(), expected);
  return ZT_OK;
}

static void overlap(zt_checkpoint_item *items, int rank) { items[0].count += rank == 0; }
static void leave_hole(zt_checkpoint_item *items, int rank) { items[0].count -= rank == 1; }
static void leave_end(zt_checkpoint_item *items, int rank) { items[0].count -= rank == 2; }
static void leave_begin(zt_checkpoint_item *items, int rank) {
  items[0].begin += rank == 0, items[0].count -= rank == 0;
}
static void take_twice(zt_checkpoint_item *items, int rank) {
  if (rank == 2) items[0].begin = items[1].begin = 0, items[0].count = 15, items[1].count = 3;
}
static void rename_one(zt_checkpoint_item *items, int rank) { items[2].name = rank == 1 ? "d" : "c"; }
static void reshape_one(zt_checkpoint_item *items, int rank) {
  if (rank == 2) items[0].shape[0] = 5, items[0].shape[1] = 3;
}
static void retype_one(zt_checkpoint_item *items, int rank) { items[0].dtype = rank == 2 ? ZT_I32 : ZT_F32; }
static void swap_two(zt_checkpoint_item *items, int rank) {
  zt_checkpoint_item first = items[0];
  if (rank == 1) items[0] = items[1], items[1] = first;
}
static void begin_wrong(zt_checkpoint_item *items, int rank) { items[1].begin -= 2 * (rank == 1); }

static void test_parts_that_do_not_fit(void **state) {
  (void)state;
  static const struct {
    void (*change)(zt_checkpoint_item *items, int rank);
    const char *complaint;
  } cases[] = {
      {overlap, "rank 0/3: tensor 'a': element 5 is on two ranks"},
      {leave_hole, "rank 0/3: tensor 'a': element 9 is on no rank"},
      {leave_end, "rank 0/3: tensor 'a': element 14 is on no rank"},
      {leave_begin, "rank 0/3: tensor 'a': element 0 is on no rank"},
      {take_twice, "rank 0/3: tensor 'a': element 0 is on two ranks"},
      {rename_one, "rank 1/3 lists other tensors than rank 0"},
      {reshape_one, "rank 2/3 lists other tensors than rank 0"},
      {retype_one, "rank 2/3 lists other tensors than rank 0"},
      {swap_two, "rank 1/3 lists other tensors than rank 0"},
      {begin_wrong, "rank 1/3: tensor 'b': a part of 1 elements from -1 on; the tensor has 3"},
  };
  run(old_one, 3, CREW_OK, "");
  for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
    change = cases[k].change, complaint = cases[k].complaint;
    run(change_something, 3, CREW_OK, "");
    assert_old_stands();
  }
}

static zt_status another_path(zt_world *w, int rank) {
  const char *own = rank == 1 ? scratch_path("elsewhere") : path;
  char expected[1024];
  snprintf(expected, sizeof expected, "cannot save the checkpoint '%s': rank 1/2 saves to another path than rank 0",
           own);
  zt_status st = save_part(w, &(save){.t = &small_tensors, .path = own, .version = 2});
  CHECK(st == ZT_INVALID && strcmp(zt_message(), expected) == 0);
  return ZT_OK;
}

static void test_another_path(void **state) {
  (void)state;
  run(old_one, 2, CREW_OK, "");
  run(another_path, 2, CREW_OK, "");
  assert_old_stands();
}

/* D45: one rank alone saves. All end, with the cause. */
static zt_status save_on_rank_0(zt_world *w, int rank) {
  if (rank == 0) return old_one(w, rank);
  return zt_barrier(w, NULL);
}

static void test_one_rank_alone(void **state) {
  (void)state;
  crew c = {.options = {.size = 2, .session = 7}, .body = save_on_rank_0};
  crew_start(&c);
  crew_wait(&c, 10);
  for (int r = 0; r < 2; r++) {
    assert_rank(&c, r, CREW_PEER, NULL);
    assert_said(&c, r, "saving a checkpoint");
    assert_said(&c, r, "barrier");
  }
  assert_int_equal(scratch_count(""), 0);
}

/* An allocation fails on one rank, each in turn. Nobody waits for long, and what stood stands. */
static int failing_allocation;

static zt_status save_with_failure(zt_world *w, int rank) {
  if (rank == 1) zt_mem_fail_at((uint64_t)failing_allocation, false);
  zt_status st = save_part(w, &(save){.t = &small_tensors, .path = path, .version = 2});
  zt_mem_fail_at(0, false);
  if (st == ZT_NOMEM && rank == 1) zt_world_fail(w, zt_message(), 1); /* as a script that raises does */
  return st;
}

static void test_allocations_of_one_rank(void **state) {
  (void)state;
  run(old_one, 2, CREW_OK, "");
  for (failing_allocation = 1; failing_allocation < 100; failing_allocation++) {
    crew c = {.options = {.size = 2, .session = 7}, .body = save_with_failure};
    crew_start(&c);
    crew_wait(&c, 10);
    int first = WEXITSTATUS(c.ranks[0].status), second = WEXITSTATUS(c.ranks[1].status);
    if (first == CREW_OK && second == CREW_OK) break;
    assert_int_equal(second, CREW_ERROR);
    assert_true(first == CREW_ERROR || first == CREW_PEER);
    for (int r = 0; r < 2; r++) assert_said(&c, r, "host memory: ");
    assert_old_stands();
  }
  assert_true(failing_allocation > 8 && failing_allocation < 100);
  assert_version(&small_tensors, path, 2);
}

/* --- disks */

/* On all ranks: saving the large tensors fails with a message that has these parts. */
static zt_status expect_failure(zt_world *w, const char *target, const char *who, const char *why) {
  zt_status st = save_part(w, &(save){.t = &odd_tensors, .path = target, .version = 2});
  if (st == ZT_IO && strstr(zt_message(), who) && strstr(zt_message(), why) && !strchr(zt_message(), '\n'))
    return ZT_OK;
  return zt_fail(ZT_STATE, "status %d: %s", st, zt_message());
}

static zt_status limited_files(zt_world *w, int rank) {
  struct rlimit small = {100000, 100000};
  signal(SIGXFSZ, SIG_IGN);
  if (rank == 1) CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
  ZT_TRY(expect_failure(w, path, "rank 1/3: ", "File too large (after 100000 bytes)"));
  return expect_failure(w, path, "rank 1/3: ", "File too large (after 100000 bytes)");
}

static void test_file_size_limit(void **state) {
  (void)state;
  run(old_one, 3, CREW_OK, "");
  run(limited_files, 3, CREW_OK, "");
  assert_old_stands();
}

/* In a process with a mount namespace of its own, a disk that is large enough for the old one and a part of the new one.
** Exit 77: it cannot be mounted here. */
static zt_status fill_disk(zt_world *w, int rank) {
  const char *target = scratch_path("disk/ck");
  uint64_t version;
  ZT_TRY(save_part(w, &(save){.t = &small_tensors, .path = target, .version = 1}));
  for (int n = 0; n < 2; n++) {
    ZT_TRY(expect_failure(w, target, "cannot write '", "No space left on device"));
    ZT_TRY(zt_barrier(w, NULL));
    if (rank == 0) {
      ZT_TRY(check_whole(&small_tensors, target, &version));
      CHECK(version == 1 && scratch_count("disk") == 1 && scratch_count("disk/ck") == 3);
    }
    ZT_TRY(zt_barrier(w, NULL));
  }
  return ZT_OK;
}

static int run_on_small_disk(void) {
  const char *disk = scratch_path("disk");
  if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return 77;
  if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) return 77;
  if (mount("tmpfs", disk, "tmpfs", 0, "size=6m") != 0) return 77;
  run(fill_disk, 2, CREW_OK, "");
  return 0;
}

static void test_full_disk(void **state) {
  (void)state;
  int status;
  assert_int_equal(mkdir(scratch_path("disk"), 0700), 0);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) _exit(run_on_small_disk());
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) skip();
  assert_int_equal(WEXITSTATUS(status), 0);
}

static zt_status not_permitted(zt_world *w, int rank) {
  (void)rank;
  if (geteuid() == 0) CHECK(setuid(65534) == 0);
  ZT_TRY(expect_failure(w, scratch_path("closed/ck"), "rank 0/2: cannot make the folder '", "Permission denied"));
  return expect_failure(w, scratch_path("closed/new/ck"), "rank 0/2: cannot make the folder '", "Permission denied");
}

static void test_no_permission(void **state) {
  (void)state;
  assert_int_equal(mkdir(scratch_path("closed"), 0755), 0);
  assert_ok(save_version(&small_tensors, scratch_path("closed/ck"), 1));
  assert_int_equal(chmod(scratch_path("closed"), 0555), 0);
  run(not_permitted, 2, CREW_OK, "");
  assert_int_equal(chmod(scratch_path("closed"), 0755), 0);
  assert_version(&small_tensors, scratch_path("closed/ck"), 1);
  assert_int_equal(scratch_count("closed"), 1);
}

/* --- a file system that cannot exchange folders: the call is refused */

static int refuse_exchange(void) {
  struct sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_renameat2, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[4])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {sizeof code / sizeof *code, code};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return -1;
  return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

static bool can_refuse(void) {
  int status;
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) _exit(refuse_exchange() == 0 ? 0 : 77);
  assert_int_equal(waitpid(child, &status, 0), child);
  return status == 0;
}

static zt_status save_without_exchange(zt_world *w, int rank) {
  CHECK(refuse_exchange() == 0);
  CHECK(renameat2(AT_FDCWD, "/a", AT_FDCWD, "/b", RENAME_EXCHANGE) != 0 && errno == EINVAL);
  return save_thrice(w, rank);
}

static void test_without_exchange(void **state) {
  (void)state;
  if (!can_refuse()) skip();
  for (int size = 1; size <= 4; size++) {
    run(save_without_exchange, size, CREW_OK, "");
    assert_version(&odd_tensors, path, 3);
    assert_int_equal(scratch_count(""), 1);
    assert_int_equal(scratch_count("ck"), size + 1);
  }
}

/* --- killed before each system call in turn */

static char calls[1000]; /* of the last child: f fsync, r rename, x exchange, in their order */

static void note_call(pid_t child) {
  struct __ptrace_syscall_info info;
  if (ptrace(PTRACE_GET_SYSCALL_INFO, child, sizeof info, &info) <= 0 || info.op != PTRACE_SYSCALL_INFO_ENTRY) return;
  long number = (long)info.entry.nr;
  size_t n = strlen(calls);
#ifdef SYS_rename
  if (number == SYS_rename) number = SYS_renameat;
#endif
  calls[n] = number == SYS_fsync ? 'f' : number == SYS_renameat ? 'r' : number == SYS_renameat2 ? 'x' : 0;
  calls[n + 1] = 0;
}

/* Runs 'body' in a child, and kills that when it is about to make its n-th call. Whether it came to its end before; 77: there
** is no tracing here. */
static int kill_before(int (*body)(void), int n) {
  int status;
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0) _exit(77);
    raise(SIGSTOP);
    _exit(body());
  }
  assert_int_equal(waitpid(child, &status, 0), child);
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  assert_int_equal(ptrace(PTRACE_SETOPTIONS, child, NULL, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL), 0);
  *calls = 0;
  for (int stops = 0; stops < 2 * n - 1; stops++) { /* each call stops it twice */
    assert_int_equal(ptrace(PTRACE_SYSCALL, child, NULL, NULL), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFSTOPPED(status)) note_call(child);
    if (!WIFEXITED(status)) continue;
    assert_int_equal(WEXITSTATUS(status), 0);
    return true;
  }
  assert_int_equal(kill(child, SIGKILL), 0);
  assert_int_equal(waitpid(child, &status, 0), child);
  return false;
}

static int save_second(void) { return save_version(&small_tensors, path, 2) == ZT_OK ? 0 : 1; }
static int save_second_without_exchange(void) { return refuse_exchange() == 0 ? save_second() : 1; }
static int prune_to_one(void) { return zt_checkpoint_prune(scratch, 1) == ZT_OK ? 0 : 1; }

/* What stands is the old one or the new one, and both come about. 'order': of the calls that make it last. */
static void sweep_of_replacing(int (*body)(void), const char *order) {
  uint64_t version, n_kills[3] = {0};
  for (int n = 1, ended = false; !ended; n++) {
    assert_ok(save_version(&small_tensors, path, 1)); /* and nothing else: what was killed is removed */
    assert_int_equal(scratch_count(""), 1);
    assert_int_equal(scratch_count("ck"), 2);
    ended = kill_before(body, n);
    if (ended == 77) skip();
    assert_ok(check_whole(&small_tensors, path, &version));
    n_kills[version]++;
  }
  assert_int_equal(version, 2);
  assert_true(n_kills[1] > 20 && n_kills[2] > 3);
  assert_string_equal(calls, order);
}

static void test_each_call_in_place(void **state) {
  (void)state;
  sweep_of_replacing(save_second, "frf" /* data */ "frf" /* manifest */ "r" /* refused: one is there */ "xf");
}

static void test_each_call_without_exchange(void **state) {
  (void)state;
  if (!can_refuse()) skip();
  sweep_of_replacing(save_second_without_exchange, "frffrfrx" /* refused */ "rf" /* data moves */ "rf" /* manifest */);
}

static void test_each_call_at_a_new_path(void **state) {
  (void)state;
  uint64_t version;
  for (int n = 1, ended = false; !ended; n++) {
    remove_tree(path);
    ended = kill_before(save_second, n);
    if (ended == 77) skip();
    if (ended || zt_file_exists(path)) assert_ok(check_whole(&small_tensors, path, &version));
    assert_true(scratch_count("") <= 2);
  }
  assert_string_equal(calls, "frffrfrf");
}

static void test_each_call_of_pruning(void **state) {
  (void)state;
  char name[32];
  for (int n = 1, ended = false; !ended; n++) {
    for (uint64_t k = 1; k <= 3; k++) {
      snprintf(name, sizeof name, "step_%d", (int)k);
      if (!zt_file_exists(scratch_path(name))) assert_ok(save_version(&small_tensors, scratch_path(name), k));
    }
    ended = kill_before(prune_to_one, n);
    if (ended == 77) skip();
    for (uint64_t k = 1; k <= 3; k++) {
      snprintf(name, sizeof name, "step_%d", (int)k);
      if (k == 3 || zt_file_exists(scratch_path(name))) assert_version(&small_tensors, scratch_path(name), k);
    }
  }
  assert_int_equal(scratch_count(""), 1);
}

/* --- kill -9 at any moment */

static bool in_place; /* over one path, else to step_1, step_2, ... */

/* Writes a byte to 'out' after each save. */
static int save_for_ever(uint64_t version, int out) {
  char target[600];
  for (;; version++) {
    snprintf(target, sizeof target, "%s", path);
    if (!in_place) snprintf(target, sizeof target, "%s/step_%d", scratch, (int)version);
    if (save_version(&small_tensors, target, version) != ZT_OK) return 2;
    if (!in_place && zt_checkpoint_prune(scratch, 2) != ZT_OK) return 3;
    if (write(out, "", 1) != 1) return 4;
  }
}

/* Starts it with 'version', kills it after no, one or two saves and a part of another: how long one takes depends on the
** disk. */
static void kill_one(uint64_t version) {
  static double one_save = 0.005;
  int status, ends[2];
  char byte;
  assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) _exit(save_for_ever(version, ends[1]));
  for (uint64_t n = scratch_below(3); n > 0; n--) {
    double start = crew_now();
    assert_int_equal(read(ends[0], &byte, 1), 1);
    one_save = crew_now() - start;
  }
  crew_sleep(1.5 * one_save * (double)scratch_below(1000) / 1000);
  assert_int_equal(kill(child, SIGKILL), 0);
  assert_int_equal(waitpid(child, &status, 0), child);
  close(ends[0]), close(ends[1]);
  if (!WIFSIGNALED(status)) fail_msg("it ended by itself: %x", (unsigned)status);
}

enum { N_KILLS = 20 };

static void test_kills_in_place(void **state) {
  (void)state;
  uint64_t version, last = 1;
  in_place = true;
  assert_ok(save_version(&small_tensors, path, last));
  for (int n = 0; n < N_KILLS; n++, last = version) {
    kill_one(last + 1);
    assert_ok(check_whole(&small_tensors, path, &version));
    assert_true(version >= last);
    assert_true(scratch_count("") <= 2); /* what was left before is gone */
  }
  if (last < 5) fail_msg("only %d saves in %d rounds", (int)last, N_KILLS);
}

static void test_kills_at_new_paths(void **state) {
  (void)state;
  uint64_t version, last = 1;
  char *found;
  in_place = false;
  assert_ok(save_version(&small_tensors, scratch_path("step_1"), last));
  for (int n = 0; n < N_KILLS; n++, last = version) {
    kill_one(last + 1);
    assert_ok(zt_checkpoint_latest(scratch, &found));
    assert_ok(check_whole(&small_tensors, found, &version));
    zt_free(found);
    assert_true(version >= last);
    assert_ok(zt_checkpoint_prune(scratch, 2));
    assert_true(scratch_count("") <= 2); /* what was left is gone */
  }
  if (last < 5) fail_msg("only %d saves in %d rounds", (int)last, N_KILLS);
}

/* One of several ranks is killed: the others end, and what stands is whole. */
static zt_status save_on_and_on(zt_world *w, int rank) {
  (void)rank;
  for (uint64_t version = 2;; version++)
    ZT_TRY(save_part(w, &(save){.t = &odd_tensors, .path = path, .version = version, .cuts = version}));
}

static void test_killed_rank(void **state) {
  (void)state;
  uint64_t version;
  for (int n = 0; n < 6; n++) {
    assert_ok(save_version(&odd_tensors, path, 1));
    assert_int_equal(scratch_count(""), 1);
    crew c = {.options = {.size = 3, .session = 7}, .body = save_on_and_on};
    crew_start(&c);
    usleep((useconds_t)(50000 + scratch_below(200000)));
    assert_int_equal(kill(c.ranks[n % 3].pid, SIGKILL), 0);
    crew_wait(&c, 60);
    for (int r = 0; r < 3; r++)
      if (r != n % 3) assert_rank(&c, r, CREW_PEER, NULL);
    assert_ok(check_whole(&odd_tensors, path, &version));
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(test_any_number_of_ranks, clear),
      cmocka_unit_test_setup(test_other_numbers_read, clear),
      cmocka_unit_test_setup(test_swapped_files, clear),
      cmocka_unit_test_setup(test_failing_source, clear),
      cmocka_unit_test_setup(test_parts_that_do_not_fit, clear),
      cmocka_unit_test_setup(test_another_path, clear),
      cmocka_unit_test_setup(test_one_rank_alone, clear),
      cmocka_unit_test_setup(test_allocations_of_one_rank, clear),
      cmocka_unit_test_setup(test_file_size_limit, clear),
      cmocka_unit_test_setup(test_full_disk, clear),
      cmocka_unit_test_setup(test_no_permission, clear),
      cmocka_unit_test_setup(test_without_exchange, clear),
      cmocka_unit_test_setup(test_each_call_in_place, clear),
      cmocka_unit_test_setup(test_each_call_without_exchange, clear),
      cmocka_unit_test_setup(test_each_call_at_a_new_path, clear),
      cmocka_unit_test_setup(test_each_call_of_pruning, clear),
      cmocka_unit_test_setup(test_kills_in_place, clear),
      cmocka_unit_test_setup(test_kills_at_new_paths, clear),
      cmocka_unit_test_setup(test_killed_rank, clear),
  };
  return cmocka_run_group_tests(tests, setup, scratch_teardown);
}
