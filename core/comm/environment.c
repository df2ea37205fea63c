/* environment.c - who this process is, as launchers say it. */
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/hash.h"
#include "core/comm/world.h"

/* What starts processes through another launcher comes before it. */
enum { TORCHRUN, OPEN_MPI, MPICH, SLURM, N_LAUNCHERS };

/* Names of variables. */
typedef struct launcher {
  const char *rank, *size, *local_rank, *local_size;
  const char *session[2]; /* what tells one run from another; NULL ok */
} launcher;

/* srun's are those of the step, which a batch script outside of srun does not have. */
static const launcher launchers[N_LAUNCHERS] = {
    [TORCHRUN] = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", {"TORCHELASTIC_RUN_ID"}},
    [OPEN_MPI] = {"OMPI_COMM_WORLD_RANK",
                  "OMPI_COMM_WORLD_SIZE",
                  "OMPI_COMM_WORLD_LOCAL_RANK",
                  "OMPI_COMM_WORLD_LOCAL_SIZE",
                  {"PMIX_NAMESPACE"}},
    [MPICH] = {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", {NULL}},
    [SLURM] = {"SLURM_PROCID",
               "SLURM_STEP_NUM_TASKS",
               "SLURM_LOCALID",
               "SLURM_STEP_TASKS_PER_NODE",
               {"SLURM_JOB_ID", "SLURM_STEP_ID"}},
};

/* Programs set variables like torchrun's by hand and leave some out; the others' are complete, or somebody else's. */
static bool is_there(int kind) {
  const launcher *l = &launchers[kind];
  bool local = getenv(l->local_rank) && getenv(l->local_size);
  return getenv(l->rank) && getenv(l->size) && (local || kind == TORCHRUN);
}

static const char *text_of(const char *name) {
  const char *text = getenv(name);
  return text ? text : "";
}

static zt_status read_number(const char *name, long low, long high, int *out) {
  const char *text = text_of(name);
  char *end;
  errno = 0;
  long value = strtol(text, &end, 10);
  if (errno || end == text || *end || value < low || value > high)
    return zt_fail(ZT_INVALID, "the environment has %s=%.40s: it has to be a number from %ld to %ld", name, text, low,
                   high);
  *out = (int)value;
  return ZT_OK;
}

/* Slurm's "2(x3),1": 2 tasks on each of nodes 0 to 2, 1 on node 3. */
static zt_status tasks_of_node(const char *name, long node, int *out) {
  const char *text = text_of(name), *p = text;
  while (isdigit((unsigned char)*p)) {
    char *end;
    long tasks = strtol(p, &end, 10), times = 1;
    if (strncmp(end, "(x", 2) == 0) {
      times = strtol(end + 2, &end, 10);
      if (*end == ')') end++;
    }
    if (node < times && tasks > 0 && tasks < INT_MAX) {
      *out = (int)tasks;
      return ZT_OK;
    }
    node -= times;
    p = *end == ',' ? end + 1 : "";
  }
  return zt_fail(ZT_INVALID, "the environment has %s=%.40s, which does not say the tasks of this node", name, text);
}

/* The first host of Slurm's "node[07-09,12],other". */
static zt_status first_host(const char *list, char host[256]) {
  size_t prefix = strcspn(list, "[,");
  const char *number = list[prefix] == '[' ? list + prefix + 1 : "";
  int written = snprintf(host, 256, "%.*s%.*s", (int)prefix, list, (int)strcspn(number, "-,]"), number);
  if (prefix == 0 || written >= 256)
    return zt_fail(ZT_INVALID, "the environment has SLURM_STEP_NODELIST=%.80s: no list of hosts", list);
  return ZT_OK;
}

static uint64_t session_of(const launcher *l) {
  uint64_t hash = 0;
  for (int i = 0; i < 2; i++) {
    const char *text = l->session[i] ? getenv(l->session[i]) : NULL;
    if (text) hash = zt_hash_bytes(hash, text, strlen(text));
  }
  return hash;
}

static bool is_this_machine(const char *address) {
  return !*address || strcmp(address, "127.0.0.1") == 0 || strcmp(address, "localhost") == 0;
}

/* torchrun listens at its port itself: rank 0 takes the next one. Slurm does not say a port: ranks of a step agree on one made
** of its number. mpirun says nothing, but then the plane mpi finds one. */
static zt_status read_port(int kind, zt_world_options *o) {
  const char *taken = getenv("TORCHELASTIC_USE_AGENT_STORE");
  if (getenv("MASTER_PORT")) {
    ZT_TRY(read_number("MASTER_PORT", 1, 65534, &o->port));
    if (kind == TORCHRUN && taken && strcmp(taken, "True") == 0) o->port++;
  } else if (kind == TORCHRUN) {
    return zt_fail(ZT_INVALID, "the environment has RANK and WORLD_SIZE, but no MASTER_PORT");
  } else if (kind == SLURM) {
    o->port = 20000 + (int)(o->session % 10000);
  } else {
    o->plane = "mpi";
  }
  return ZT_OK;
}

static zt_status read_address(int kind, zt_world_options *o) {
  const char *address = getenv("MASTER_ADDR"), *nodes = getenv("SLURM_STEP_NODELIST");
  if (kind == SLURM && !address && nodes) return first_host(nodes, o->address);
  if (address && snprintf(o->address, sizeof o->address, "%s", address) >= (int)sizeof o->address)
    return zt_fail(ZT_INVALID, "the environment has MASTER_ADDR=%.40s..., which is too long", address);
  return ZT_OK;
}

static zt_status read_local(int kind, zt_world_options *o) {
  const launcher *l = &launchers[kind];
  int node = 0;
  if (kind == SLURM) {
    if (getenv("SLURM_NODEID")) ZT_TRY(read_number("SLURM_NODEID", 0, INT_MAX, &node));
    ZT_TRY(tasks_of_node(l->local_size, node, &o->local_size));
  } else if (getenv(l->local_size)) {
    ZT_TRY(read_number(l->local_size, 1, o->size, &o->local_size));
  } else if (is_this_machine(o->address)) {
    o->local_size = o->size;
  } else {
    return zt_fail(ZT_INVALID, "the environment has RANK and MASTER_ADDR=%s, but no LOCAL_WORLD_SIZE", o->address);
  }
  if (getenv(l->local_rank)) return read_number(l->local_rank, 0, o->local_size - 1, &o->local_rank);
  if (o->local_size < o->size) return zt_fail(ZT_INVALID, "the environment has LOCAL_WORLD_SIZE, but no LOCAL_RANK");
  o->local_rank = o->rank;
  return ZT_OK;
}

zt_status zt_world_options_from_environment(zt_world_options *out, bool *found) {
  const zt_world_options alone = {.size = 1, .local_size = 1, .listen_fd = -1};
  *out = alone, *found = false;
  int kind = 0;
  while (kind < N_LAUNCHERS && !is_there(kind)) kind++;
  if (kind == N_LAUNCHERS) return ZT_OK;
  zt_world_options o = alone;
  ZT_TRY(read_number(launchers[kind].size, 1, INT_MAX, &o.size));
  ZT_TRY(read_number(launchers[kind].rank, 0, o.size - 1, &o.rank));
  if (o.size == 1) return ZT_OK;
  o.session = session_of(&launchers[kind]);
  ZT_TRY(read_port(kind, &o));
  ZT_TRY(read_address(kind, &o));
  ZT_TRY(read_local(kind, &o));
  *out = o, *found = true;
  return ZT_OK;
}
