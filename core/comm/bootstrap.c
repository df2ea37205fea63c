/* bootstrap.c - how ranks find each other. Rank 0 listens; the others dial it, say who they are (HELLO), hear that they are
** known (HEARD), and that all are there (WELCOME). What does not speak like this, or is of another session, is closed
** without a word. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "core/base/mem.h"
#include "core/comm/control.h"

/* Connections that have not yet said who they are; one more drops the oldest. */
enum { MAX_STRANGERS = 32 };

typedef struct gathering {
  zt_world *w;
  zt_conn *conns; /* of the world's control: those that are in */
  int n_in;       /* ranks that are, rank 0 included */
  zt_conn strangers[MAX_STRANGERS];
  int n_strangers;
  struct pollfd *polls; /* listening socket, strangers, conns */
} gathering;

static bool is_local(const char *address) {
  return !*address || strcmp(address, "127.0.0.1") == 0 || strcmp(address, "localhost") == 0;
}

static void text_of(char *out, size_t room, const char *text) { snprintf(out, room, "%s", text); }

/* --- rank 0 */

static void drop_stranger(gathering *g, int i) {
  zt_conn_close(&g->strangers[i]);
  g->n_strangers--;
  memmove(&g->strangers[i], &g->strangers[i + 1], (size_t)(g->n_strangers - i) * sizeof *g->strangers);
}

static void accept_stranger(gathering *g) {
  int fd = accept4(g->w->options.listen_fd, NULL, NULL, SOCK_CLOEXEC);
  if (fd < 0) return; /* it went away */
  if (g->n_strangers == MAX_STRANGERS) drop_stranger(g, 0);
  int i = g->n_strangers++;
  if (zt_conn_open(&g->strangers[i], fd) != ZT_OK) drop_stranger(g, i);
}

/* Whether it can be one of this world; a failure ends the bootstrap for all. */
static zt_status check_hello(const gathering *g, const zt_hello *h, size_t nbytes) {
  const zt_world_options *o = &g->w->options;
  if (strcmp(h->version, ZT_VERSION) != 0 || nbytes != sizeof *h)
    return zt_fail(ZT_PEER, "rank %d runs ztrain %s, rank 0 runs %s", (int)h->rank, h->version, ZT_VERSION);
  if (h->size != o->size)
    return zt_fail(ZT_PEER, "rank %d was started as one of %d ranks, rank 0 as one of %d", (int)h->rank, (int)h->size,
                   o->size);
  if (h->rank < 1 || h->rank >= o->size)
    return zt_fail(ZT_PEER, "a process says it is rank %d of %d", (int)h->rank, o->size);
  if (g->conns[h->rank].fd >= 0) return zt_fail(ZT_PEER, "two processes say they are rank %d", (int)h->rank);
  if (strcmp(h->plane, g->w->plane->name) != 0)
    return zt_fail(ZT_PEER, "rank %d was started with the plane '%s', rank 0 with '%s'", (int)h->rank, h->plane,
                   g->w->plane->name);
  return ZT_OK;
}

static void tell_failure(zt_conn *c, const char *message) {
  zt_fail_frame frame = {.exit_status = 1};
  text_of(frame.message, sizeof frame.message, message);
  zt_conn_send(c, ZT_FAIL, &frame, sizeof frame); /* who has gone need not hear it */
}

/* Reads from stranger i, and lets it in or drops it; '*stays' where it has yet to speak. */
static zt_status hear_stranger(gathering *g, int i, bool *stays) {
  char payload[ZT_FRAME_BYTES];
  zt_hello hello = {0};
  uint16_t type;
  size_t nbytes;
  zt_conn *c = &g->strangers[i];
  zt_status st = zt_conn_receive(c, &type, payload, &nbytes);
  *stays = st == ZT_OK && type == 0;
  if (*stays) return ZT_OK;
  bool speaks = st == ZT_OK && type == ZT_HELLO && nbytes >= offsetof(zt_hello, plane);
  if (speaks) memcpy(&hello, payload, nbytes < sizeof hello ? nbytes : sizeof hello);
  hello.version[sizeof hello.version - 1] = hello.plane[sizeof hello.plane - 1] = '\0';
  if (!speaks || hello.session != g->w->options.session) {
    drop_stranger(g, i);
    return ZT_OK;
  }
  st = check_hello(g, &hello, nbytes);
  if (st != ZT_OK) {
    char why[sizeof g->w->message];
    text_of(why, sizeof why, zt_message());
    tell_failure(c, why);
    drop_stranger(g, i);
    return zt_fail(st, "%s", why);
  }
  zt_conn_send(c, ZT_HEARD, NULL, 0);
  g->conns[hello.rank] = *c;
  c->fd = -1, c->out = (zt_buffer){0}; /* moved */
  drop_stranger(g, i);
  g->n_in++;
  return ZT_OK;
}

/* "rank 3 has", "ranks 1, 2 have" */
static void name_missing(const gathering *g, char *text, size_t room) {
  int n = g->w->options.size, n_missing = n - g->n_in, n_named = 0;
  size_t used = (size_t)snprintf(text, room, "rank%s", n_missing == 1 ? "" : "s");
  for (int r = 1; r < n; r++) {
    if (g->conns[r].fd >= 0) continue;
    if (n_named++ == 8) {
      used += (size_t)snprintf(text + used, room - used, " and %d more", n_missing - 8);
      break;
    }
    used += (size_t)snprintf(text + used, room - used, "%s %d", n_named > 1 ? "," : "", r);
  }
  snprintf(text + used, room - used, " %s", n_missing == 1 ? "has" : "have");
}

static zt_status wait_for_events(gathering *g, double deadline, nfds_t *n) {
  int size = g->w->options.size;
  struct pollfd *p = g->polls;
  *p++ = (struct pollfd){.fd = g->w->options.listen_fd, .events = POLLIN};
  for (int i = 0; i < g->n_strangers; i++) *p++ = (struct pollfd){.fd = g->strangers[i].fd, .events = POLLIN};
  for (int r = 1; r < size; r++) *p++ = (struct pollfd){.fd = g->conns[r].fd, .events = POLLIN}; /* -1: skipped */
  *n = (nfds_t)(p - g->polls);
  double left = deadline - zt_now();
  if (left > 0) {
    if (poll(g->polls, *n, (int)(left * 1000) + 1) >= 0 || errno == EINTR) return ZT_OK;
    return zt_fail(ZT_IO, "poll: %s", strerror(errno));
  }
  char missing[160];
  name_missing(g, missing, sizeof missing);
  return zt_fail(ZT_PEER, "after %g s %s not come (of %d; rank 0 listens at port %d)", g->w->options.open_limit,
                 missing, size, g->w->options.port);
}

/* One that is in has nothing to say before it is welcome, but that it died. */
static zt_status check_member(gathering *g, int rank) {
  char payload[ZT_FRAME_BYTES];
  uint16_t type;
  size_t nbytes;
  zt_status st = zt_conn_receive(&g->conns[rank], &type, payload, &nbytes);
  if (st == ZT_OK && type != 0) st = zt_fail(ZT_FORMAT, "it speaks before it is asked");
  if (st == ZT_OK) return ZT_OK;
  char why[256];
  text_of(why, sizeof why, zt_message());
  return zt_fail(ZT_PEER, "rank %d/%d died (%s)", rank, g->w->options.size, why);
}

static zt_status gather(gathering *g) {
  double deadline = zt_now() + g->w->options.open_limit;
  while (g->n_in < g->w->options.size) {
    nfds_t n;
    ZT_TRY(wait_for_events(g, deadline, &n));
    int n_before = g->n_strangers;
    for (int i = n_before - 1; i >= 0; i--) { /* from the end: those that go move what is behind them */
      bool stays;
      if (g->polls[1 + i].revents) ZT_TRY(hear_stranger(g, i, &stays));
    }
    for (int r = 1; r < g->w->options.size; r++)
      if (g->polls[n_before + r].revents) ZT_TRY(check_member(g, r));
    if (g->polls[0].revents) accept_stranger(g);
  }
  return ZT_OK;
}

/* Tells those that are in how it went, and closes all other connections. Passes 'st' on, with its message. */
static zt_status answer_all(gathering *g, zt_status st) {
  const zt_world *w = g->w;
  char why[sizeof w->message];
  text_of(why, sizeof why, zt_message());
  for (int r = 1; r < w->options.size; r++) {
    if (g->conns[r].fd < 0) continue;
    if (st == ZT_OK)
      zt_conn_send(&g->conns[r], ZT_WELCOME, w->handle, sizeof w->handle); /* that one died is seen soon */
    else
      tell_failure(&g->conns[r], why);
  }
  while (g->n_strangers) drop_stranger(g, 0);
  return st == ZT_OK ? ZT_OK : zt_fail(st, "%s", why);
}

/* Nobody else is to come, and the port is free again. */
static void close_listener(zt_world *w) {
  if (w->options.listen_fd >= 0) close(w->options.listen_fd);
  w->options.listen_fd = -1;
}

static zt_status be_found(zt_world *w) {
  zt_world_options *o = &w->options;
  gathering *g = zt_calloc(1, sizeof *g);
  ZT_CHECK_ALLOC(g);
  g->w = w, g->conns = w->control->conns, g->n_in = 1;
  g->polls = zt_calloc(1 + MAX_STRANGERS + (size_t)o->size, sizeof *g->polls);
  zt_status st = g->polls ? ZT_OK : ZT_NOMEM;
  if (st == ZT_OK && o->listen_fd < 0) st = zt_listen(is_local(o->address), &o->port, &o->listen_fd);
  if (st == ZT_OK) st = zt_no_blocking(o->listen_fd); /* who knocked may be gone when it is accepted */
  if (st == ZT_OK) st = gather(g);
  st = answer_all(g, st);
  close_listener(w);
  zt_free(g->polls);
  zt_free(g);
  return st;
}

/* --- the others */

/* Waits for a frame up to the deadline. */
static zt_status next_frame(zt_conn *c, double deadline, uint16_t *type, char payload[ZT_FRAME_BYTES], size_t *nbytes) {
  for (;;) {
    ZT_TRY(zt_conn_receive(c, type, payload, nbytes));
    if (*type) return ZT_OK;
    struct pollfd ready = {.fd = c->fd, .events = POLLIN};
    double left = deadline - zt_now();
    if (left <= 0) return zt_fail(ZT_IO, "it does not answer");
    if (poll(&ready, 1, (int)(left * 1000) + 1) < 0 && errno != EINTR) return zt_fail(ZT_IO, "%s", strerror(errno));
  }
}

/* Dials rank 0 and says hello. '*type' is what it answered: HEARD; FAIL, whose message is then the thread's; 0: nothing. */
static zt_status knock(zt_world *w, double deadline, uint16_t *type) {
  const zt_world_options *o = &w->options;
  zt_conn *c = &w->control->conns[0];
  zt_hello hello = {.session = o->session, .rank = o->rank, .size = o->size};
  char payload[ZT_FRAME_BYTES];
  size_t nbytes;
  int fd;
  *type = 0;
  text_of(hello.version, sizeof hello.version, ZT_VERSION);
  text_of(hello.plane, sizeof hello.plane, w->plane->name);
  ZT_TRY(zt_dial(*o->address ? o->address : "127.0.0.1", o->port, deadline - zt_now(), &fd));
  ZT_TRY(zt_conn_open(c, fd));
  ZT_TRY(zt_conn_send(c, ZT_HELLO, &hello, sizeof hello));
  ZT_TRY(next_frame(c, deadline, type, payload, &nbytes));
  if (*type == ZT_HEARD) return ZT_OK;
  if (*type == ZT_FAIL) return zt_control_read_fail(payload, nbytes);
  *type = 0;
  return zt_fail(ZT_FORMAT, "it is no rank 0");
}

/* Once it is known at rank 0, that decides how long to wait for others. */
static zt_status wait_for_welcome(zt_world *w) {
  char payload[ZT_FRAME_BYTES], why[256];
  uint16_t type;
  size_t nbytes;
  enum { GRACE_SECONDS = 5 };
  zt_status st =
      next_frame(&w->control->conns[0], zt_now() + w->options.open_limit + GRACE_SECONDS, &type, payload, &nbytes);
  if (st == ZT_OK && type == ZT_FAIL) return zt_control_read_fail(payload, nbytes);
  if (st == ZT_OK && (type != ZT_WELCOME || nbytes != sizeof w->handle)) st = zt_fail(ZT_FORMAT, "it says no welcome");
  text_of(why, sizeof why, zt_message());
  if (st != ZT_OK) return zt_fail(ZT_PEER, "rank 0/%d died (%s)", w->options.size, why);
  memcpy(w->handle, payload, nbytes);
  w->handle[sizeof w->handle - 1] = '\0';
  return ZT_OK;
}

static zt_status find(zt_world *w) {
  const zt_world_options *o = &w->options;
  const struct timespec pause = {.tv_nsec = 50 * 1000 * 1000};
  double deadline = zt_now() + o->open_limit;
  for (;;) {
    uint16_t type;
    zt_status st = knock(w, deadline, &type);
    if (type == ZT_HEARD) return wait_for_welcome(w);
    if (type == ZT_FAIL || st == ZT_NOMEM) return st;
    zt_conn_close(&w->control->conns[0]);
    if (zt_now() + 0.05 < deadline) {
      nanosleep(&pause, NULL);
      continue;
    }
    char why[256];
    text_of(why, sizeof why, zt_message());
    return zt_fail(ZT_PEER, "rank %d cannot join rank 0 at %s:%d within %g s: %s", o->rank,
                   *o->address ? o->address : "127.0.0.1", o->port, o->open_limit, why);
  }
}

zt_status zt_bootstrap(zt_world *w) { return w->options.rank == 0 ? be_found(w) : find(w); }
