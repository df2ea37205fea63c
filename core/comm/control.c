#include "core/comm/control.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "core/base/mem.h"

static const double tick_seconds = 0.25, ask_seconds = 1, between_rounds = 0.5, flush_seconds = 1;

static bool is_first(const zt_world *w) { return w->options.rank == 0; }
/* The rank at the other end of connection i. */
static int rank_at(const zt_world *w, int i) { return is_first(w) ? i : 0; }

void zt_control_wake(zt_world *w) {
  uint64_t one = 1;
  ssize_t n = write(w->control->wake, &one, sizeof one); /* fails only where it is awake already */
  (void)n;
}

/* A frame to where connection i goes. That it is broken is found where it is read. */
static void send_to(zt_world *w, int i, uint16_t type, const void *payload, size_t nbytes) {
  zt_conn *c = &w->control->conns[i];
  if (c->fd >= 0) zt_conn_send(c, type, payload, nbytes);
}

static void send_to_all(zt_world *w, uint16_t type, const void *payload, size_t nbytes) {
  for (int i = 0; i < w->control->n_conns; i++) send_to(w, i, type, payload, nbytes);
}

/* --- failures */

zt_status zt_control_read_fail(const char *payload, size_t nbytes) {
  zt_fail_frame frame;
  if (nbytes != sizeof frame) return zt_fail(ZT_FORMAT, "it does not speak as ranks do");
  memcpy(&frame, payload, sizeof frame);
  frame.message[sizeof frame.message - 1] = '\0';
  return zt_fail(ZT_PEER, "%s", frame.message);
}

void zt_control_fail(zt_world *w, const char *message, int exit_status, bool by_others) {
  zt_control *c = w->control;
  if (atomic_load(&w->failed)) return;
  zt_fail_frame frame = {.exit_status = exit_status};
  snprintf(frame.message, sizeof frame.message, "%s", message);
  memcpy(w->message, frame.message, sizeof w->message);
  w->exit_status = exit_status;
  atomic_store(&w->failed, true);
  if (!c) return; /* one rank */
  c->by_others = by_others;
  if (is_first(w) || !by_others) send_to_all(w, ZT_FAIL, &frame, sizeof frame);
  pthread_cond_broadcast(&c->changed);
  zt_control_wake(w);
}

/* Connection i is of no more use. */
static void lost(zt_world *w, int i, const char *why) {
  zt_control *c = w->control;
  char text[256];
  int rank = rank_at(w, i);
  snprintf(text, sizeof text, "rank %d/%d died (%.160s)", rank, w->options.size, why);
  zt_conn_close(&c->conns[i]);
  bool expected = is_first(w) ? c->peers[rank].ended : c->all_ended;
  if (!expected) zt_control_fail(w, text, 1, true);
}

/* Calls on_failure where it is due; without the lock. */
static void tell_embedder(zt_world *w) {
  pthread_mutex_lock(&w->calling);
  pthread_mutex_lock(&w->lock);
  bool due = w->control->by_others && !w->control->told && w->on_failure;
  if (due) w->control->told = true;
  pthread_mutex_unlock(&w->lock);
  if (due) w->on_failure(w->on_failure_user, w->message, w->exit_status);
  pthread_mutex_unlock(&w->calling);
}

/* --- reports */

static void report(const zt_world *w, zt_report *r) {
  *r = (zt_report){.seq = w->seq, .waited = w->since > 0 ? zt_now() - w->since : -1};
  memcpy(r->entries, w->log, sizeof r->entries);
}

static void take_report(zt_peer *p, const zt_report *r) {
  p->known = true;
  p->report = *r;
  for (int i = 0; i < ZT_LOG_ENTRIES; i++) {
    zt_entry *e = &p->report.entries[i];
    e->label[sizeof e->label - 1] = e->where[sizeof e->where - 1] = '\0';
  }
}

static void notify(zt_world *w, const char *text) {
  snprintf(w->control->notice, sizeof w->control->notice, "%s", text);
  atomic_store(&w->control->has_notice, true);
}

/* --- rank 0 asks all where they are, and judges */

static void begin_round(zt_world *w) {
  zt_control *c = w->control;
  c->look = c->suspect = false;
  c->asking = true, c->asked = zt_now();
  c->round++;
  for (int r = 1; r < w->options.size; r++) {
    if (c->peers[r].ended) continue;
    c->peers[r].known = false;
    send_to(w, r, ZT_ASK, &c->round, sizeof c->round);
  }
}

static bool all_answered(const zt_world *w) {
  for (int r = 1; r < w->options.size; r++)
    if (!w->control->peers[r].known) return false;
  return true;
}

static void end_round(zt_world *w) {
  zt_control *c = w->control;
  c->asking = false;
  c->peers[0].known = true;
  report(w, &c->peers[0].report);
  zt_verdict v = zt_judge(c->peers, w->options.size, w->options.timeout);
  if (v.kind == ZT_FAILURE) zt_control_fail(w, v.text, 1, true);
  if (v.kind != ZT_NOTICE || v.seq == c->noticed) return;
  c->noticed = v.seq;
  if (v.to == 0)
    notify(w, v.text);
  else
    send_to(w, v.to, ZT_NOTIFY, v.text, sizeof v.text);
}

static void tick(zt_world *w) {
  zt_control *c = w->control;
  double now = zt_now(), look = w->options.timeout < ZT_LOOK_SECONDS ? w->options.timeout : ZT_LOOK_SECONDS;
  if (atomic_load(&w->failed)) return;
  if (w->since > 0 && now - w->since >= look && now - c->looked >= look) {
    c->looked = now;
    zt_control_look(w, false);
  }
  if (!is_first(w)) return;
  if (!c->asking && (c->suspect || (c->look && now - c->asked >= between_rounds))) begin_round(w);
  if (c->asking && (all_answered(w) || now - c->asked >= ask_seconds)) end_round(w);
}

void zt_control_look(zt_world *w, bool suspect) {
  zt_control *c = w->control;
  char byte = (char)suspect;
  if (!is_first(w)) {
    send_to(w, 0, ZT_LOOK, &byte, 1);
    return;
  }
  c->look = true;
  if (!suspect || c->suspect) return;
  c->suspect = true;
  zt_control_wake(w);
}

/* --- frames. They return false for what the other side should not have sent. */

static bool from_rank(zt_world *w, int r, uint16_t type, const char *payload, size_t nbytes) {
  zt_control *c = w->control;
  zt_report bye;
  zt_answer answer;
  switch (type) {
    case ZT_LOOK:
      c->look = true;
      c->suspect |= nbytes == 1 && payload[0];
      return nbytes == 1;
    case ZT_ANSWER:
      if (nbytes != sizeof answer) return false;
      memcpy(&answer, payload, sizeof answer);
      if (c->asking && answer.round == c->round) take_report(&c->peers[r], &answer.report);
      return true;
    case ZT_BYE:
      if (nbytes != sizeof bye) return false;
      memcpy(&bye, payload, sizeof bye);
      take_report(&c->peers[r], &bye);
      c->peers[r].ended = true;
      pthread_cond_broadcast(&c->changed);
      return true;
    default:
      return false;
  }
}

static bool from_first(zt_world *w, uint16_t type, const char *payload, size_t nbytes) {
  zt_answer answer;
  char notice[sizeof w->control->notice];
  switch (type) {
    case ZT_ASK:
      if (nbytes != sizeof answer.round) return false;
      memcpy(&answer.round, payload, sizeof answer.round);
      report(w, &answer.report);
      send_to(w, 0, ZT_ANSWER, &answer, sizeof answer);
      return true;
    case ZT_NOTIFY:
      if (nbytes != sizeof notice) return false;
      memcpy(notice, payload, sizeof notice);
      notice[sizeof notice - 1] = '\0';
      notify(w, notice);
      return true;
    case ZT_END:
      w->control->all_ended = true;
      pthread_cond_broadcast(&w->control->changed);
      return nbytes == 0;
    default:
      return false;
  }
}

static void take_failure(zt_world *w, const char *payload, size_t nbytes) {
  zt_fail_frame frame;
  memcpy(&frame, payload, nbytes);
  zt_control_fail(w, zt_message(), frame.exit_status, true);
}

/* Reads all there is from connection i. */
static void serve(zt_world *w, int i) {
  zt_conn *c = &w->control->conns[i];
  char payload[ZT_FRAME_BYTES];
  uint16_t type;
  size_t nbytes;
  while (c->fd >= 0) {
    zt_status st = zt_conn_receive(c, &type, payload, &nbytes);
    if (st == ZT_OK && type == 0) return;
    if (st == ZT_OK && type == ZT_FAIL && zt_control_read_fail(payload, nbytes) == ZT_PEER) {
      take_failure(w, payload, nbytes);
      continue;
    }
    bool known =
        st == ZT_OK && (is_first(w) ? from_rank(w, i, type, payload, nbytes) : from_first(w, type, payload, nbytes));
    if (known) continue;
    char why[256];
    snprintf(why, sizeof why, "%s", st == ZT_OK ? "it does not speak as ranks do" : zt_message());
    lost(w, i, why);
  }
}

/* --- the thread */

static void handle(zt_world *w) {
  zt_control *c = w->control;
  uint64_t count;
  if (c->polls[0].revents && read(c->wake, &count, sizeof count) < 0 && errno != EAGAIN) c->polls[0].fd = -1;
  for (int i = 0; i < c->n_conns; i++) {
    int events = c->polls[1 + i].revents;
    if (events & POLLOUT) zt_conn_flush(&c->conns[i]);
    if (events & ~POLLOUT) serve(w, i);
  }
  tick(w);
}

static void *thread_main(void *user) {
  zt_world *w = user;
  zt_control *c = w->control;
  for (;;) {
    pthread_mutex_lock(&w->lock);
    bool stop = c->stop;
    for (int i = 0; i < c->n_conns; i++) {
      short out = zt_conn_has_output(&c->conns[i]) ? POLLOUT : 0;
      c->polls[1 + i] = (struct pollfd){.fd = c->conns[i].fd, .events = (short)(POLLIN | out)};
    }
    pthread_mutex_unlock(&w->lock);
    if (stop) return NULL;
    int n = poll(c->polls, 1 + (nfds_t)c->n_conns, (int)(1000 * tick_seconds));
    pthread_mutex_lock(&w->lock);
    if (n >= 0) handle(w);
    pthread_mutex_unlock(&w->lock);
    tell_embedder(w);
  }
}

/* Signals are for the threads of the embedder. */
static zt_status start_thread(zt_world *w) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int error = pthread_create(&w->control->thread, NULL, thread_main, w);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (error) return zt_fail(ZT_IO, "cannot start the control thread: %s", strerror(error));
  w->control->runs = true;
  return ZT_OK;
}

zt_status zt_control_open(zt_world *w) {
  size_t n = is_first(w) ? (size_t)w->options.size : 1;
  zt_control *c = w->control = zt_calloc(1, sizeof *c);
  ZT_CHECK_ALLOC(c);
  pthread_cond_init(&c->changed, NULL);
  c->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (c->wake < 0) return zt_fail(ZT_IO, "eventfd: %s", strerror(errno));
  c->conns = zt_calloc(n, sizeof *c->conns);
  ZT_CHECK_ALLOC(c->conns);
  for (; c->n_conns < (int)n; c->n_conns++) c->conns[c->n_conns].fd = -1;
  c->polls = zt_calloc(1 + n, sizeof *c->polls);
  ZT_CHECK_ALLOC(c->polls);
  c->polls[0] = (struct pollfd){.fd = c->wake, .events = POLLIN};
  if (is_first(w)) {
    c->peers = zt_calloc(n, sizeof *c->peers);
    ZT_CHECK_ALLOC(c->peers);
  }
  ZT_TRY(zt_bootstrap(w));
  return start_thread(w);
}

static bool all_others_ended(const zt_world *w) {
  for (int r = 1; r < w->options.size; r++)
    if (!w->control->peers[r].ended) return false;
  return true;
}

/* With the lock. */
static void say_goodbye(zt_world *w) {
  zt_control *c = w->control;
  zt_report bye;
  if (is_first(w)) {
    c->peers[0].ended = true;
    while (!atomic_load(&w->failed) && !all_others_ended(w)) pthread_cond_wait(&c->changed, &w->lock);
    if (!atomic_load(&w->failed)) send_to_all(w, ZT_END, NULL, 0);
    return;
  }
  report(w, &bye);
  send_to(w, 0, ZT_BYE, &bye, sizeof bye);
  while (w->plane->ends_together && !atomic_load(&w->failed) && !c->all_ended) pthread_cond_wait(&c->changed, &w->lock);
}

/* What was said last may still be on its way. */
static void flush_all(zt_control *c) {
  double deadline = zt_now() + flush_seconds;
  for (int i = 0; i < c->n_conns; i++) {
    struct pollfd ready = {.fd = c->conns[i].fd, .events = POLLOUT};
    while (ready.fd >= 0 && zt_conn_has_output(&c->conns[i]) && zt_now() < deadline) {
      if (zt_conn_flush(&c->conns[i]) != ZT_OK) break;
      poll(&ready, 1, 10);
    }
  }
}

void zt_control_close(zt_world *w) {
  zt_control *c = w->control;
  if (!c) return;
  if (c->runs) {
    pthread_mutex_lock(&w->lock);
    if (!atomic_load(&w->failed)) say_goodbye(w);
    c->stop = true;
    zt_control_wake(w);
    pthread_mutex_unlock(&w->lock);
    pthread_join(c->thread, NULL);
  }
  flush_all(c);
  for (int i = 0; i < c->n_conns; i++) zt_conn_close(&c->conns[i]);
  if (c->wake >= 0) close(c->wake);
  pthread_cond_destroy(&c->changed);
  zt_free(c->conns);
  zt_free(c->polls);
  zt_free(c->peers);
  zt_free(c);
  w->control = NULL;
}
