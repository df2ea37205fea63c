/* mpi.c - ranks that mpirun or srun started move bytes through MPI, which is opened when it is wanted (mpi_shim.h).
**
** MPI's calls cannot be left once they have begun, and mixed up they write anywhere. So all are non-blocking, and each begins
** with an agreement: the least of all ranks' hashes and of their complements are this rank's own, where all are in the same
** collective. Whoever waits tries, and sleeps in between: there may be more ranks than cores. MPI does not know ranks that
** died; after a failure it is not called again, and not finalized either. */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "core/base/mem.h"
#include "core/comm/mpi_shim.h"
#include "core/comm/state.h"
#include "core/comm/wire.h"

enum { N_TRIES = 100, SLEEP_NS = 50 * 1000 };

typedef struct mpi {
  const zt_mpi *calls;
  uint64_t hashes[2]; /* of an agreement that is on its way */
} mpi;

static zt_status check(const mpi *m, int code) {
  char text[256];
  if (code == 0) return ZT_OK;
  m->calls->describe(code, text, sizeof text);
  return zt_fail(ZT_IO, "MPI: %s", text);
}

/* --- opening */

/* Beside the file that this code is in, or where an installation has its libraries, or where the loader looks. It stays open:
** MPI cannot be unloaded. Its own plugins look for its symbols, hence RTLD_GLOBAL. */
static void *open_library(void) {
  static const char *const places[] = {"", "../lib/", "../", "../../"};
  Dl_info info;
  const char *slash = dladdr((const void *)&zt_mpi_plane, &info) ? strrchr(info.dli_fname, '/') : NULL;
  for (size_t i = 0; slash && i < sizeof places / sizeof *places; i++) {
    char path[4096];
    int folder = (int)(slash - info.dli_fname) + 1;
    int length = snprintf(path, sizeof path, "%.*s%slibztrain_mpi.so", folder, info.dli_fname, places[i]);
    if (length < (int)sizeof path && access(path, R_OK) == 0) return dlopen(path, RTLD_NOW | RTLD_GLOBAL);
  }
  return dlopen("libztrain_mpi.so", RTLD_NOW | RTLD_GLOBAL);
}

static zt_status load(mpi *m) {
  void *library = open_library();
  if (!library)
    return zt_fail(ZT_IO,
                   "the plane 'mpi' cannot be opened: %s (it is built with -DZT_MPI=ON; MASTER_ADDR and MASTER_PORT "
                   "in the environment make ranks of one machine do without)",
                   dlerror());
  m->calls = dlsym(library, ZT_MPI_SYMBOL);
  if (m->calls && m->calls->nbytes == sizeof *m->calls) return ZT_OK;
  return zt_fail(ZT_IO, "the plane 'mpi' cannot be opened: libztrain_mpi.so is of another version");
}

/* Rank 0 listens at any port, and MPI tells the others. */
static zt_status share_address(zt_world *w, const mpi *m) {
  struct {
    char host[sizeof w->options.address];
    int port;
    uint64_t session;
    char why[256];
  } first = {.why = ""};
  zt_world_options *o = &w->options;
  zt_status st = ZT_OK;
  if (o->rank == 0) {
    bool loopback = o->local_size == o->size;
    if (!loopback && gethostname(first.host, sizeof first.host - 1) != 0) first.host[0] = '\0';
    if (getrandom(&first.session, sizeof first.session, 0) < 0) st = zt_fail(ZT_IO, "getrandom: %s", strerror(errno));
    if (st == ZT_OK) st = zt_listen(loopback, &first.port, &o->listen_fd);
    if (st != ZT_OK) snprintf(first.why, sizeof first.why, "%s", zt_message());
  }
  ZT_TRY(check(m, m->calls->share(&first, sizeof first)));
  if (first.why[0]) return zt_fail(ZT_PEER, "rank 0/%d: %s", o->size, first.why);
  memcpy(o->address, first.host, sizeof o->address);
  o->port = first.port, o->session = first.session;
  return ZT_OK;
}

static zt_status mpi_prepare(zt_world *w, void **out) {
  zt_world_options *o = &w->options;
  zt_mpi_place place;
  mpi *m = *out = zt_calloc(1, sizeof *m);
  ZT_CHECK_ALLOC(m);
  ZT_TRY(load(m));
  ZT_TRY(check(m, m->calls->init(&place)));
  if (place.rank != o->rank || place.size != o->size)
    return zt_fail(ZT_INVALID,
                   "this is rank %d of %d, but for MPI rank %d of %d: mpirun or srun start ranks for the plane 'mpi'",
                   o->rank, o->size, place.rank, place.size);
  o->local_rank = place.local_rank, o->local_size = place.local_size;
  return o->port == 0 ? share_address(w, m) : ZT_OK;
}

static zt_status mpi_open(zt_world *w, void *plane) {
  (void)w, (void)plane;
  return ZT_OK;
}

/* mpirun ends all processes where one exits without finalize: the others get time to hear of the failure, and to say so. */
static void mpi_close(zt_world *w, void *plane) {
  const struct timespec grace = {.tv_nsec = 500 * 1000 * 1000};
  mpi *m = plane;
  if (w->opened && !atomic_load(&w->failed)) m->calls->finalize();
  if (atomic_load(&w->failed)) nanosleep(&grace, NULL);
  zt_free(m);
}

/* --- waiting */

static zt_status wait_for(zt_world *w, const mpi *m) {
  const struct timespec pause = {.tv_nsec = SLEEP_NS};
  bool done = false;
  for (int i = 0;; i++) {
    ZT_TRY(check(m, m->calls->test(&done)));
    if (done) return ZT_OK;
    ZT_TRY(zt_world_check(w));
    if (i >= N_TRIES) nanosleep(&pause, NULL);
  }
}

/* After what MPI says has gone wrong, nothing is left to do for this world. */
static zt_status fail_all(zt_world *w, zt_status st) {
  if (st == ZT_IO) zt_world_fail(w, zt_message(), 1);
  return st == ZT_IO ? zt_world_check(w) : st;
}

static zt_status run(zt_world *w, const mpi *m, int code) {
  zt_status st = check(m, code);
  return fail_all(w, st == ZT_OK ? wait_for(w, m) : st);
}

/* Returns where all ranks are in this collective. */
static zt_status agree(zt_world *w, mpi *m) {
  uint64_t hash = w->stats.hash;
  m->hashes[0] = hash, m->hashes[1] = ~hash;
  ZT_TRY(run(w, m, m->calls->least(m->hashes, 2)));
  return m->hashes[0] == hash && m->hashes[1] == ~hash ? ZT_OK : zt_world_differs(w);
}

/* --- collectives */

static zt_status mpi_all_gather(zt_world *w, void *plane, void *buffer, size_t nbytes_each) {
  mpi *m = plane;
  ZT_TRY(agree(w, m));
  return run(w, m, m->calls->all_gather(buffer, nbytes_each));
}

static zt_status mpi_all_to_all(zt_world *w, void *plane, void *recv, const void *send, size_t nbytes_each) {
  mpi *m = plane;
  ZT_TRY(agree(w, m));
  return run(w, m, m->calls->all_to_all(recv, send, nbytes_each));
}

static zt_status mpi_broadcast(zt_world *w, void *plane, void *buffer, size_t nbytes, int root) {
  mpi *m = plane;
  ZT_TRY(agree(w, m));
  return run(w, m, m->calls->broadcast(buffer, nbytes, root));
}

static zt_status mpi_barrier(zt_world *w, void *plane) { return agree(w, plane); }

const zt_plane_ops zt_mpi_plane = {
    .name = "mpi",
    .ends_together = true,
    .prepare = mpi_prepare,
    .open = mpi_open,
    .close = mpi_close,
    .all_gather = mpi_all_gather,
    .all_to_all = mpi_all_to_all,
    .broadcast = mpi_broadcast,
    .barrier = mpi_barrier,
};
