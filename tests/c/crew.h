/* crew.h - ranks for tests: forked processes, each with a world, that say what they have to say into a pipe. The test must not
** have started threads. */
#ifndef zt_test_crew_h
#define zt_test_crew_h

#include "tests/c/scratch.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>

#include "core/base/log.h"
#include "core/comm/comm.h"

enum { CREW_MAX = 8, CREW_OK = 0, CREW_PEER = 10, CREW_ERROR = 11, CREW_LEAK = 12 };

typedef struct crew_rank {
  pid_t pid; /* 0: none */
  int fd;
  char text[8192]; /* what it said, and the message it ended with */
  size_t length;
  int status;     /* of waitpid */
  double seconds; /* when it ended, after the start */
  bool gone;
} crew_rank;

typedef struct crew {
  zt_world_options options; /* of each, but for rank and listen_fd */
  zt_status (*body)(zt_world *w, int rank);
  bool (*absent)(int rank); /* ranks not to start; NULL: all start */
  crew_rank ranks[CREW_MAX];
  double start;
} crew;

static int crew_out; /* in a rank: the pipe */

static inline double crew_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline void crew_sleep(double seconds) {
  struct timespec t = {(time_t)seconds, (long)(1e9 * (seconds - (double)(time_t)seconds))};
  while (nanosleep(&t, &t) != 0 && errno == EINTR) {
  }
}

static inline void ZT_PRINTF(1, 2) crew_say(const char *fmt, ...) {
  char text[2048];
  va_list args;
  va_start(args, fmt);
  int n = vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  if (write(crew_out, text, (size_t)n) != n) _exit(99);
}

static inline void crew_log(void *user, const char *line) { (void)user, crew_say("log: %s\n", line); }

static inline int crew_child(const crew *c, int rank, int listener) {
  zt_world_options o = c->options;
  zt_world *w;
  uint64_t n_live = zt_mem_get_stats().n_live_blocks;
  o.rank = rank, o.listen_fd = rank == 0 ? listener : -1;
  zt_log_set_sink(crew_log, NULL);
  zt_status st = zt_world_open(&o, &w);
  if (st == ZT_OK) {
    st = c->body(w, rank);
    if (st != ZT_OK) crew_say("%s\n", zt_message());
    zt_world_close(w);
  } else {
    crew_say("%s\n", zt_message());
  }
  if (zt_mem_get_stats().n_live_blocks != n_live) return CREW_LEAK;
  return st == ZT_OK ? CREW_OK : st == ZT_PEER ? CREW_PEER : CREW_ERROR;
}

/* A listening socket at a free port of the loopback. */
static inline int crew_listen(int *port) {
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t length = sizeof at;
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_true(fd >= 0);
  assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
  assert_int_equal(listen(fd, 64), 0);
  assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &length), 0);
  *port = ntohs(at.sin_port);
  return fd;
}

static inline int crew_connect(int port) {
  struct sockaddr_in at = {
      .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_true(fd >= 0);
  if (connect(fd, (struct sockaddr *)&at, sizeof at) == 0) return fd;
  close(fd);
  return -1;
}

static inline void crew_start(crew *c) {
  int listener = crew_listen(&c->options.port);
  c->start = crew_now();
  for (int r = 0; r < c->options.size; r++) {
    int ends[2];
    c->ranks[r].gone = true;
    if (c->absent && c->absent(r)) continue;
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
      crew_out = ends[1];
      close(ends[0]);
      if (r != 0) close(listener);
      exit(crew_child(c, r, listener));
    }
    close(ends[1]);
    c->ranks[r] = (crew_rank){.pid = pid, .fd = ends[0]};
  }
  close(listener);
}

/* Reads what there is from a rank; at the end of its pipe it is reaped. */
static inline void crew_read(crew *c, crew_rank *r) {
  ssize_t n = read(r->fd, r->text + r->length, sizeof r->text - 1 - r->length);
  assert_true(n >= 0);
  r->length += (size_t)n;
  if (n > 0) return;
  assert_int_equal(waitpid(r->pid, &r->status, 0), r->pid);
  r->seconds = crew_now() - c->start;
  r->gone = true;
  close(r->fd);
}

/* Reads until done(c) or all are gone; kills and fails after 'limit' seconds. */
static inline void crew_until(crew *c, bool (*done)(const crew *), double limit) {
  double deadline = crew_now() + limit;
  for (;;) {
    struct pollfd polls[CREW_MAX];
    int left = 0;
    for (int r = 0; r < c->options.size; r++) {
      polls[r] = (struct pollfd){.fd = c->ranks[r].gone ? -1 : c->ranks[r].fd, .events = POLLIN};
      left += !c->ranks[r].gone;
    }
    if (left == 0 || (done && done(c))) return;
    int n = poll(polls, (nfds_t)c->options.size, 100);
    for (int r = 0; r < c->options.size; r++)
      if (n > 0 && polls[r].revents) crew_read(c, &c->ranks[r]);
    if (crew_now() < deadline) continue;
    for (int r = 0; r < c->options.size; r++)
      if (!c->ranks[r].gone) kill(c->ranks[r].pid, SIGKILL);
    for (int r = 0; r < c->options.size; r++) print_error("rank %d: %s\n", r, c->ranks[r].text);
    fail_msg("it did not end within %g s", limit);
  }
}

static inline void crew_wait(crew *c, double limit) { crew_until(c, NULL, limit); }

/* How a rank ended: its exit status, and exactly its last line. */
static inline void assert_rank(const crew *c, int rank, int status, const char *line) {
  const crew_rank *r = &c->ranks[rank];
  char last[2048] = "";
  const char *end = r->text + r->length, *begin = end;
  if (begin > r->text && begin[-1] == '\n') begin--, end--;
  while (begin > r->text && begin[-1] != '\n') begin--;
  snprintf(last, sizeof last, "%.*s", (int)(end - begin), begin);
  if (!WIFEXITED(r->status) || WEXITSTATUS(r->status) != status)
    fail_msg("rank %d: status %x, not %d; it said: %s", rank, (unsigned)r->status, status, r->text);
  if (line) assert_string_equal(last, line);
}

static inline void assert_said(const crew *c, int rank, const char *part) {
  if (!strstr(c->ranks[rank].text, part)) fail_msg("rank %d said: %s, not: %s", rank, c->ranks[rank].text, part);
}

#endif
