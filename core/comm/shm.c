/* shm.c - ranks of one machine move bytes through shared memory.
**
** Rank 0 makes a memory file without a name (memfd); the others open it through rank 0's /proc entry, so that nothing can
** remain, whoever is killed when. Each rank has two buffers of a piece in it. A collective is a row of rounds, the same number
** on all ranks: in round k each rank fills its buffer k % 2 and says so ('filled'), reads what it needs of the others'
** buffers, and says so ('drained'). Buffer k % 2 may be filled once all have drained round k - 2. With a round goes the hash of
** the log: a rank in another collective is met before a byte of it is used.
**
** Whoever waits sleeps on a futex: there may be more ranks than cores. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/base/mem.h"
#include "core/comm/state.h"

enum { PIECE = ZT_SHM_PIECE, ALIGNMENT = 64, SPINS = 200, WAIT_NS = 50 * 1000 * 1000 };

/* Rounds are counted modulo 2^32; where they start, the turn is soon, and always tried. */
static const uint32_t first_round = UINT32_MAX - 20;

/* A count that others wait for. */
typedef struct counter {
  _Alignas(ALIGNMENT) _Atomic uint32_t value;
  _Atomic uint32_t n_waiting;
} counter;

typedef struct board {
  counter filled, drained; /* rounds */
  uint64_t hash[2];        /* of the log, with round k at k % 2 */
} board;

typedef struct shared {
  uint64_t token;
  board boards[]; /* of each rank; behind them its two buffers */
} shared;

typedef struct shm {
  shared *shared; /* mapped */
  size_t nbytes;
  int fd; /* rank 0's, until all have it open */
  int spins;
  uint32_t round;
} shm;

static size_t buffers_at(int size) {
  size_t nbytes = sizeof(shared) + (size_t)size * sizeof(board);
  return (nbytes + 4095) / 4096 * 4096;
}

static char *buffer_of(const zt_world *w, const shm *s, int rank) {
  size_t number = 2 * (size_t)rank + s->round % 2;
  return (char *)s->shared + buffers_at(w->options.size) + number * PIECE;
}

static board *board_of(const shm *s, int rank) { return &s->shared->boards[rank]; }

/* --- opening */

static zt_status map(shm *s, int fd) {
  void *data = mmap(NULL, s->nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED)
    return zt_fail(ZT_NOMEM, "cannot map %zu bytes of shared memory: %s", s->nbytes, strerror(errno));
  s->shared = data;
  return ZT_OK;
}

static zt_status create(zt_world *w, shm *s) {
  s->fd = memfd_create("ztrain", MFD_CLOEXEC);
  if (s->fd < 0) return zt_fail(ZT_IO, "cannot make shared memory: %s", strerror(errno));
  int error = posix_fallocate(s->fd, 0, (off_t)s->nbytes); /* an error here, not a signal later */
  if (error) return zt_fail(ZT_NOMEM, "cannot get %zu bytes of shared memory: %s", s->nbytes, strerror(error));
  ZT_TRY(map(s, s->fd));
  if (getrandom(&s->shared->token, sizeof s->shared->token, 0) < 0)
    return zt_fail(ZT_IO, "no random numbers: %s", strerror(errno));
  for (int r = 0; r < w->options.size; r++) board_of(s, r)->filled.value = board_of(s, r)->drained.value = first_round;
  snprintf(w->handle, sizeof w->handle, "%llx /proc/%ld/fd/%d", (unsigned long long)s->shared->token, (long)getpid(),
           s->fd);
  return ZT_OK;
}

/* If rank 0 has just died, then that is the cause, and known in a moment. */
static zt_status not_found(zt_world *w) {
  const struct timespec moment = {.tv_nsec = 200 * 1000 * 1000};
  nanosleep(&moment, NULL);
  ZT_TRY(zt_world_check(w));
  return zt_fail(ZT_PEER, "it does not find the shared memory of rank 0: are all ranks on one machine?");
}

/* The token tells rank 0's memory from that of another process of the same number in another container. */
static zt_status attach(zt_world *w, shm *s) {
  char path[sizeof w->handle] = "";
  unsigned long long token;
  struct stat info;
  int fd = -1;
  if (sscanf(w->handle, "%llx %63s", &token, path) == 2) fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return not_found(w);
  bool fits = fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_size == (off_t)s->nbytes;
  zt_status st = fits ? map(s, fd) : ZT_OK;
  close(fd);
  if (st != ZT_OK) return st;
  return fits && s->shared->token == token ? ZT_OK : not_found(w);
}

static zt_status shm_prepare(zt_world *w, void **out) {
  cpu_set_t cores;
  shm *s = *out = zt_calloc(1, sizeof *s);
  ZT_CHECK_ALLOC(s);
  s->fd = -1, s->round = first_round;
  s->nbytes = buffers_at(w->options.size) + 2 * (size_t)w->options.size * PIECE;
  if (sched_getaffinity(0, sizeof cores, &cores) == 0 && CPU_COUNT(&cores) >= w->options.size) s->spins = SPINS;
  return w->options.rank == 0 ? create(w, s) : ZT_OK;
}

static zt_status shm_open_(zt_world *w, void *plane) { return w->options.rank == 0 ? ZT_OK : attach(w, plane); }

static void shm_close(zt_world *w, void *plane) {
  shm *s = plane;
  (void)w;
  if (s->shared) munmap(s->shared, s->nbytes);
  if (s->fd >= 0) close(s->fd);
  zt_free(s);
}

/* --- waiting */

static bool reached(const counter *c, uint32_t value) { return (int32_t)(atomic_load(&c->value) - value) >= 0; }

static void raise_to(counter *c, uint32_t value) {
  atomic_store(&c->value, value);
  if (atomic_load(&c->n_waiting)) syscall(SYS_futex, &c->value, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static zt_status wait_for(zt_world *w, const shm *s, counter *c, uint32_t value) {
  const struct timespec slice = {.tv_nsec = WAIT_NS};
  for (int i = 0; i < s->spins && !reached(c, value); i++) {
  }
  while (!reached(c, value)) {
    ZT_TRY(zt_world_check(w));
    atomic_fetch_add(&c->n_waiting, 1);
    uint32_t seen = atomic_load(&c->value);
    if ((int32_t)(seen - value) < 0) syscall(SYS_futex, &c->value, FUTEX_WAIT, seen, &slice, NULL, 0);
    atomic_fetch_sub(&c->n_waiting, 1);
  }
  return ZT_OK;
}

/* --- rounds */

/* Waits until this rank's buffer is free. */
static zt_status begin(zt_world *w, const shm *s) {
  for (int r = 0; r < w->options.size; r++)
    if (r != w->options.rank) ZT_TRY(wait_for(w, s, &board_of(s, r)->drained, s->round - 1));
  return ZT_OK;
}

static void filled(zt_world *w, const shm *s) {
  board *mine = board_of(s, w->options.rank);
  mine->hash[s->round % 2] = w->stats.hash;
  raise_to(&mine->filled, s->round + 1);
}

static void drained(zt_world *w, shm *s) {
  s->round++;
  raise_to(&board_of(s, w->options.rank)->drained, s->round);
}

/* Waits until another rank's buffer is full. */
static zt_status wait_filled(zt_world *w, const shm *s, int rank) {
  board *b = board_of(s, rank);
  ZT_TRY(wait_for(w, s, &b->filled, s->round + 1));
  return b->hash[s->round % 2] == w->stats.hash ? ZT_OK : zt_world_differs(w);
}

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

/* --- collectives: there are bytes, so at least one round */

static zt_status shm_all_gather(zt_world *w, void *plane, void *buffer, size_t nbytes_each) {
  shm *s = plane;
  int me = w->options.rank, size = w->options.size;
  char *at = buffer;
  size_t left = nbytes_each;
  while (left) {
    size_t n = smaller(left, PIECE);
    ZT_TRY(begin(w, s));
    memcpy(buffer_of(w, s, me), at + (size_t)me * nbytes_each, n);
    filled(w, s);
    for (int i = 1; i < size; i++) {
      int r = (me + i) % size;
      ZT_TRY(wait_filled(w, s, r));
      memcpy(at + (size_t)r * nbytes_each, buffer_of(w, s, r), n);
    }
    drained(w, s);
    at += n, left -= n;
  }
  return ZT_OK;
}

static zt_status shm_all_to_all(zt_world *w, void *plane, void *recv, const void *send, size_t nbytes_each) {
  shm *s = plane;
  int me = w->options.rank, size = w->options.size;
  size_t slot = PIECE / (size_t)size / ALIGNMENT * ALIGNMENT; /* of a buffer, for each rank */
  const char *from = send;
  char *to = recv;
  size_t left = nbytes_each;
  while (left) {
    size_t n = smaller(left, slot);
    ZT_TRY(begin(w, s));
    for (int r = 0; r < size; r++)
      memcpy(r == me ? to + (size_t)me * nbytes_each : buffer_of(w, s, me) + (size_t)r * slot,
             from + (size_t)r * nbytes_each, n);
    filled(w, s);
    for (int i = 1; i < size; i++) {
      int r = (me + i) % size;
      ZT_TRY(wait_filled(w, s, r));
      memcpy(to + (size_t)r * nbytes_each, buffer_of(w, s, r) + (size_t)me * slot, n);
    }
    drained(w, s);
    from += n, to += n, left -= n;
  }
  return ZT_OK;
}

static zt_status shm_broadcast(zt_world *w, void *plane, void *buffer, size_t nbytes, int root) {
  shm *s = plane;
  char *at = buffer;
  while (nbytes) {
    size_t n = smaller(nbytes, PIECE);
    ZT_TRY(begin(w, s));
    if (w->options.rank == root) memcpy(buffer_of(w, s, root), at, n);
    filled(w, s);
    if (w->options.rank != root) {
      ZT_TRY(wait_filled(w, s, root));
      memcpy(at, buffer_of(w, s, root), n);
    }
    drained(w, s);
    at += n, nbytes -= n;
  }
  return ZT_OK;
}

static zt_status shm_barrier(zt_world *w, void *plane) {
  shm *s = plane;
  ZT_TRY(begin(w, s));
  filled(w, s);
  for (int r = 0; r < w->options.size; r++)
    if (r != w->options.rank) ZT_TRY(wait_filled(w, s, r));
  drained(w, s);
  return ZT_OK;
}

const zt_plane_ops zt_shm_plane = {
    .name = "shm",
    .prepare = shm_prepare,
    .open = shm_open_,
    .close = shm_close,
    .all_gather = shm_all_gather,
    .all_to_all = shm_all_to_all,
    .broadcast = shm_broadcast,
    .barrier = shm_barrier,
};
