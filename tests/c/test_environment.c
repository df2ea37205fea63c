/* What launchers say of a rank. */
#include "tests/c/scratch.h"

#include "core/comm/world.h"

static const char *const names[] = {"RANK",
                                    "WORLD_SIZE",
                                    "LOCAL_RANK",
                                    "LOCAL_WORLD_SIZE",
                                    "MASTER_ADDR",
                                    "MASTER_PORT",
                                    "TORCHELASTIC_RUN_ID",
                                    "TORCHELASTIC_USE_AGENT_STORE",
                                    "OMPI_COMM_WORLD_RANK",
                                    "OMPI_COMM_WORLD_SIZE",
                                    "OMPI_COMM_WORLD_LOCAL_RANK",
                                    "OMPI_COMM_WORLD_LOCAL_SIZE",
                                    "PMIX_NAMESPACE",
                                    "PMI_RANK",
                                    "PMI_SIZE",
                                    "MPI_LOCALRANKID",
                                    "MPI_LOCALNRANKS",
                                    "SLURM_PROCID",
                                    "SLURM_STEP_NUM_TASKS",
                                    "SLURM_LOCALID",
                                    "SLURM_STEP_TASKS_PER_NODE",
                                    "SLURM_NODEID",
                                    "SLURM_JOB_ID",
                                    "SLURM_STEP_ID",
                                    "SLURM_STEP_NODELIST"};

static zt_world_options got;
static bool found;

/* Reads an environment that has only these: "NAME=value", ..., NULL. */
static zt_status read_env(const char *const pairs[]) {
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) unsetenv(names[i]);
  for (int i = 0; pairs[i]; i++) {
    char name[64];
    const char *equals = strchr(pairs[i], '=');
    snprintf(name, sizeof name, "%.*s", (int)(equals - pairs[i]), pairs[i]);
    setenv(name, equals + 1, 1);
  }
  return zt_world_options_from_environment(&got, &found);
}
#define ENV(...) read_env((const char *const[]){__VA_ARGS__, NULL})

static void expect(int rank, int size, int local_rank, int local_size, const char *address, int port) {
  assert_true(found);
  assert_int_equal(got.rank, rank);
  assert_int_equal(got.size, size);
  assert_int_equal(got.local_rank, local_rank);
  assert_int_equal(got.local_size, local_size);
  assert_string_equal(got.address, address);
  assert_int_equal(got.port, port);
  assert_int_equal(got.listen_fd, -1);
}

static void test_none(void **state) {
  (void)state;
  assert_ok(ENV("MASTER_PORT=29500"));
  assert_false(found);
  assert_int_equal(got.size, 1);
  assert_ok(ENV("RANK=0", "WORLD_SIZE=1"));
  assert_false(found);
  assert_ok(ENV("RANK=3"));
  assert_false(found);
  assert_ok(ENV("SLURM_PROCID=0", "SLURM_NTASKS=4", "SLURM_LOCALID=0")); /* a batch script, outside of srun */
  assert_false(found);
}

static void test_torchrun(void **state) {
  (void)state;
  assert_ok(ENV("RANK=5", "WORLD_SIZE=8", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=4", "MASTER_ADDR=node1",
                "MASTER_PORT=29500", "TORCHELASTIC_RUN_ID=a"));
  expect(5, 8, 1, 4, "node1", 29500);
  assert_null(got.plane);
  uint64_t session = got.session;
  assert_ok(ENV("RANK=1", "WORLD_SIZE=8", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=4", "MASTER_ADDR=node1",
                "MASTER_PORT=29500", "TORCHELASTIC_RUN_ID=b", "TORCHELASTIC_USE_AGENT_STORE=True"));
  expect(1, 8, 1, 4, "node1", 29501);
  assert_true(got.session != session);
  assert_ok(ENV("RANK=1", "WORLD_SIZE=2", "MASTER_PORT=1")); /* by hand, on one machine */
  expect(1, 2, 1, 2, "", 1);
  assert_int_equal(got.session, 0);
}

static void test_mpirun(void **state) {
  (void)state;
  assert_ok(ENV("OMPI_COMM_WORLD_RANK=2", "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_RANK=0",
                "OMPI_COMM_WORLD_LOCAL_SIZE=2", "SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=2", "SLURM_LOCALID=0",
                "SLURM_STEP_TASKS_PER_NODE=1(x2)")); /* its daemons were started by srun */
  expect(2, 4, 0, 2, "", 0);
  assert_string_equal(got.plane, "mpi");
  assert_ok(ENV("PMI_RANK=3", "PMI_SIZE=4", "MPI_LOCALRANKID=3", "MPI_LOCALNRANKS=4", "MASTER_PORT=7"));
  expect(3, 4, 3, 4, "", 7);
  assert_null(got.plane);
}

static void test_srun(void **state) {
  (void)state;
#define STEP "SLURM_STEP_NUM_TASKS=7", "SLURM_STEP_TASKS_PER_NODE=2(x3),1", "SLURM_JOB_ID=77", "SLURM_STEP_ID=0"
  assert_ok(ENV(STEP, "SLURM_PROCID=0", "SLURM_LOCALID=0", "SLURM_NODEID=0", "SLURM_STEP_NODELIST=gpu[07-09,12]-x"));
  int port = got.port;
  expect(0, 7, 0, 2, "gpu07", port);
  assert_in_range(port, 20000, 29999);
  assert_ok(ENV(STEP, "SLURM_PROCID=6", "SLURM_LOCALID=0", "SLURM_NODEID=3", "SLURM_STEP_NODELIST=a-1,b-2"));
  expect(6, 7, 0, 1, "a-1", port);
  assert_ok(ENV(STEP, "SLURM_PROCID=5", "SLURM_LOCALID=1", "SLURM_NODEID=2", "MASTER_ADDR=h", "PMI_RANK=5",
                "PMI_SIZE=7")); /* srun --mpi=pmi2 */
  expect(5, 7, 1, 2, "h", port);
  assert_fails(ENV(STEP, "SLURM_PROCID=6", "SLURM_LOCALID=0", "SLURM_NODEID=4"), ZT_INVALID,
               "the environment has SLURM_STEP_TASKS_PER_NODE=2(x3),1, which does not say the tasks of this node");
  assert_fails(ENV(STEP, "SLURM_PROCID=1", "SLURM_LOCALID=0", "SLURM_STEP_NODELIST=[1-2]"), ZT_INVALID,
               "the environment has SLURM_STEP_NODELIST=[1-2]: no list of hosts");
  assert_fails(ENV("SLURM_STEP_NUM_TASKS=2", "SLURM_STEP_TASKS_PER_NODE=2(x", "SLURM_PROCID=1", "SLURM_LOCALID=0"),
               ZT_INVALID,
               "the environment has SLURM_STEP_TASKS_PER_NODE=2(x, which does not say the tasks of this node");
}

static void test_wrong(void **state) {
  (void)state;
  assert_fails(ENV("RANK=4", "WORLD_SIZE=4", "MASTER_PORT=1"), ZT_INVALID,
               "the environment has RANK=4: it has to be a number from 0 to 3");
  assert_false(found);
  assert_int_equal(got.size, 1);
  assert_fails(ENV("RANK=", "WORLD_SIZE=4", "MASTER_PORT=1"), ZT_INVALID,
               "the environment has RANK=: it has to be a number from 0 to 3");
  assert_fails(ENV("RANK=1", "WORLD_SIZE=4x", "MASTER_PORT=1"), ZT_INVALID,
               "the environment has WORLD_SIZE=4x: it has to be a number from 1 to 2147483647");
  assert_fails(ENV("RANK=1", "WORLD_SIZE=4"), ZT_INVALID,
               "the environment has RANK and WORLD_SIZE, but no MASTER_PORT");
  assert_fails(ENV("RANK=1", "WORLD_SIZE=4", "MASTER_PORT=99999999999999999999"), ZT_INVALID,
               "the environment has MASTER_PORT=99999999999999999999: it has to be a number from 1 to 65534");
  assert_fails(ENV("RANK=1", "WORLD_SIZE=4", "MASTER_PORT=1", "MASTER_ADDR=other"), ZT_INVALID,
               "the environment has RANK and MASTER_ADDR=other, but no LOCAL_WORLD_SIZE");
  assert_fails(ENV("RANK=1", "WORLD_SIZE=4", "MASTER_PORT=1", "MASTER_ADDR=other", "LOCAL_WORLD_SIZE=2"), ZT_INVALID,
               "the environment has LOCAL_WORLD_SIZE, but no LOCAL_RANK");
  char pair[400] = "MASTER_ADDR=";
  memset(pair + 12, 'a', 300);
  assert_fails(ENV("RANK=1", "WORLD_SIZE=4", "MASTER_PORT=1", pair), ZT_INVALID,
               "the environment has MASTER_ADDR=%.40s..., which is too long", pair + 12);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_none), cmocka_unit_test(test_torchrun), cmocka_unit_test(test_mpirun),
      cmocka_unit_test(test_srun), cmocka_unit_test(test_wrong),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
