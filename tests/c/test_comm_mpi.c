/* The plane mpi: this program starts itself under mpirun. Skipped where libztrain_mpi.so was not built (-DZT_MPI=ON). */
#include "tests/c/collectives.h"

static zt_status differs(zt_world *w, int rank) {
  char data[400] = "";
  zt_world_set_where(w, here, rank == 1 ? "recipe.lua:9" : "recipe.lua:3");
  return zt_all_gather(w, &(zt_label){.what = "parameters of page", .id = 3 + (rank == 1)}, data, 100);
}

static zt_status raises(zt_world *w, int rank) {
  ZT_TRY(zt_barrier(w, NULL));
  if (rank == 2) zt_world_fail(w, "recipe.lua:7: broken", 7);
  return zt_barrier(w, NULL);
}

static zt_status ends(zt_world *w, int rank) { return rank == 1 ? ZT_OK : zt_barrier(w, NULL); }

static zt_status killed(zt_world *w, int rank) {
  ZT_TRY(zt_barrier(w, NULL));
  if (rank == 1) kill(getpid(), SIGKILL);
  return zt_barrier(w, NULL);
}

static zt_status says_plane(zt_world *w, int rank) {
  (void)rank;
  crew_say("rank %d of %d, %d of %d, %s\n", zt_world_rank(w), zt_world_size(w), zt_world_local_rank(w),
           zt_world_local_size(w), zt_world_plane(w));
  return ZT_OK;
}

static const struct {
  const char *name;
  zt_status (*body)(zt_world *w, int rank);
} bodies[] = {{"odd_sizes", odd_sizes}, {"stress", stress},   {"barrier", barrier}, {"sums", sums},
              {"stats", stats},         {"differs", differs}, {"raises", raises},   {"ends", ends},
              {"killed", killed},       {"plane", says_plane}};

/* A rank: says the message of a failure, and exits with 0, so that mpirun lets the others go on. */
static int work(const char *name) {
  zt_world_options o;
  bool found;
  zt_world *w;
  size_t i = 0;
  crew_out = STDOUT_FILENO;
  while (strcmp(bodies[i].name, name) != 0) i++;
  zt_status st = zt_world_options_from_environment(&o, &found);
  if (st == ZT_OK && !found) st = zt_fail(ZT_STATE, "no environment of mpirun");
  if (st == ZT_OK) st = zt_world_open(&o, &w);
  if (st != ZT_OK) {
    crew_say("cannot open: %s\n", zt_message());
    return 0;
  }
  st = bodies[i].body(w, o.rank);
  crew_say("rank %d: %s\n", o.rank, st == ZT_OK ? "well" : zt_message());
  zt_world_close(w);
  return 0;
}

static char said[1 << 16];

/* What the ranks of a run said. */
static void run(int size, const char *name) {
  char command[512], self[256];
  ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
  assert_true(length > 0);
  self[length] = '\0';
  snprintf(command, sizeof command, "timeout -k 5 100 mpirun --allow-run-as-root --oversubscribe -np %d %s %s 2>&1",
           size, self, name);
  FILE *pipe = popen(command, "r");
  assert_non_null(pipe);
  said[fread(said, 1, sizeof said - 1, pipe)] = '\0';
  pclose(pipe);
}

static void expect(const char *text) {
  if (!strstr(said, text)) fail_msg("not there: %s\nin: %s", text, said);
}

static void expect_all(int size, int but, const char *text) {
  char line[1200];
  for (int r = 0; r < size; r++) {
    snprintf(line, sizeof line, "rank %d: %s\n", r, text);
    if (r != but) expect(line);
  }
}

static bool is_there(void) {
  return access(ZT_TEST_BUILD "/../libztrain_mpi.so", R_OK) == 0 && system("command -v mpirun >/dev/null") == 0;
}

static void test_collectives(void **state) {
  (void)state;
  if (!is_there()) skip();
  char seed[32];
  snprintf(seed, sizeof seed, "%llu", (unsigned long long)scratch_seed());
  setenv("ZT_TEST_SEED", seed, 1);
  const char *names[] = {"odd_sizes", "stress", "barrier", "sums", "stats"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    run(3, names[i]);
    expect_all(3, -1, "well");
  }
  run(4, "odd_sizes");
  expect_all(4, -1, "well");
  unsetenv("ZT_TEST_SEED");
}

static void test_plane(void **state) {
  (void)state;
  if (!is_there()) skip();
  run(2, "plane");
  expect("rank 0 of 2, 0 of 2, mpi\n");
  expect("rank 1 of 2, 1 of 2, mpi\n");
  setenv("MASTER_PORT", "29413", 1); /* then nobody asks MPI */
  run(2, "plane");
  unsetenv("MASTER_PORT");
  expect("rank 0 of 2, 0 of 2, shm\n");
}

static void test_faults(void **state) {
  (void)state;
  if (!is_there()) skip();
  run(3, "differs");
  expect_all(3, -1,
             "ranks differ at collective 2: rank 0 is in all_gather 'parameters of page 3' (recipe.lua:3), rank 1 in "
             "all_gather 'parameters of page 4' (recipe.lua:9)");
  run(3, "raises");
  expect_all(3, -1, "rank 2/3: recipe.lua:7: broken");
  run(3, "ends");
  expect_all(3, 1, "rank 1/3 ended, while rank 0 waits in barrier");
  expect("rank 1: well\n");
  double start = crew_now();
  run(3, "killed");
  if (!strstr(said, "signal 9")) /* else mpirun was faster, and ended the others */
    expect_all(3, 1, "rank 1/3 died (its connection closed)");
  assert_true(crew_now() - start < 10);
}

/* Without mpirun, MPI is one rank. */
static void test_alone(void **state) {
  (void)state;
  zt_world *w;
  if (!is_there()) skip();
  assert_fails(zt_world_open(&(zt_world_options){.size = 2, .listen_fd = -1, .plane = "mpi"}, &w), ZT_INVALID,
               "this is rank 0 of 2, but for MPI rank 0 of 1: mpirun or srun start ranks for the plane 'mpi'");
}

static void test_not_built(void **state) {
  (void)state;
  zt_world *w;
  if (is_there()) skip();
  assert_int_equal(zt_world_open(&(zt_world_options){.size = 2, .listen_fd = -1, .plane = "mpi"}, &w), ZT_IO);
  assert_non_null(strstr(zt_message(), "the plane 'mpi' cannot be opened: libztrain_mpi.so: "));
}

int main(int argc, char *argv[]) {
  if (argc > 1) return work(argv[1]);
  /* Several ranks on few cores, in a container without ssh. */
  setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0);
  setenv("OMPI_MCA_plm", "isolated", 0);
  setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_collectives), cmocka_unit_test(test_plane),
                                     cmocka_unit_test(test_faults), cmocka_unit_test(test_alone),
                                     cmocka_unit_test(test_not_built)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
