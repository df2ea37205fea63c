#include "core/comm/world.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core/base/log.h"
#include "core/base/mem.h"
#include "core/comm/control.h"

double zt_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static zt_status check_options(const zt_world_options *o) {
  if (o->size < 1 || o->rank < 0 || o->rank >= o->size)
    return zt_fail(ZT_INVALID, "rank %d of %d: ranks count from 0 to size - 1", o->rank, o->size);
  if (o->local_size < 1 || o->local_size > o->size || o->local_rank < 0 || o->local_rank >= o->local_size)
    return zt_fail(ZT_INVALID, "rank %d is number %d of %d on its machine: out of range", o->rank, o->local_rank,
                   o->local_size);
  if (o->timeout < 0 || o->open_limit < 0)
    return zt_fail(ZT_INVALID, "limits of %g and %g s: they have to be positive", o->timeout, o->open_limit);
  if (o->port < 0 || o->port > 65535) return zt_fail(ZT_INVALID, "port %d: there are ports up to 65535", o->port);
  return ZT_OK;
}

/* What was left out. */
static zt_world_options filled(const zt_world_options *options) {
  zt_world_options o = *options;
  if (o.size == 0) o.size = 1;
  if (o.local_size == 0) o.local_rank = o.rank, o.local_size = o.size;
  if (o.timeout == 0) o.timeout = 1800;
  if (o.open_limit == 0) o.open_limit = 60;
  return o;
}

/* The plane's first half, the connections, its second half, and a barrier that all pass or none. */
static zt_status join(zt_world *w) {
  ZT_TRY(w->plane->prepare(w, &w->plane_state));
  w->opened = w->options.size == 1;
  if (w->opened) return ZT_OK;
  ZT_TRY(zt_control_open(w));
  zt_status st = w->plane->open(w, w->plane_state);
  if (st != ZT_OK) {
    zt_world_fail(w, zt_message(), 1);
    return zt_world_check(w);
  }
  ZT_TRY(zt_barrier(w, NULL));
  pthread_mutex_lock(&w->lock);
  w->stats = (zt_comm_stats){.hash = w->stats.hash};
  pthread_mutex_unlock(&w->lock);
  w->opened = true;
  return ZT_OK;
}

zt_status zt_world_open(const zt_world_options *options, zt_world **out) {
  *out = NULL;
  zt_world_options o = filled(options);
  const zt_plane_ops *plane;
  ZT_TRY(check_options(&o));
  ZT_TRY(zt_plane_find(&o, &plane));
  zt_world *w = zt_calloc(1, sizeof *w);
  ZT_CHECK_ALLOC(w);
  w->options = o, w->plane = plane;
  pthread_mutex_init(&w->lock, NULL);
  pthread_mutex_init(&w->calling, NULL);
  zt_status st = join(w);
  if (st != ZT_OK) {
    char why[sizeof w->message];
    snprintf(why, sizeof why, "%s", zt_message());
    zt_world_close(w);
    return zt_fail(st, "%s", why);
  }
  *out = w;
  return ZT_OK;
}

void zt_world_close(zt_world *w) {
  if (!w) return;
  zt_control_close(w);
  if (w->plane_state) w->plane->close(w, w->plane_state);
  pthread_mutex_destroy(&w->calling);
  pthread_mutex_destroy(&w->lock);
  zt_free(w);
}

int zt_world_rank(const zt_world *w) { return w->options.rank; }
int zt_world_size(const zt_world *w) { return w->options.size; }
int zt_world_local_rank(const zt_world *w) { return w->options.local_rank; }
int zt_world_local_size(const zt_world *w) { return w->options.local_size; }
const char *zt_world_plane(const zt_world *w) { return w->plane->name; }

void zt_world_fail(zt_world *w, const char *message, int exit_status) {
  char text[sizeof w->message];
  snprintf(text, sizeof text, "rank %d/%d: %.960s", w->options.rank, w->options.size, message);
  pthread_mutex_lock(&w->lock);
  zt_control_fail(w, text, exit_status, false);
  pthread_mutex_unlock(&w->lock);
}

bool zt_world_failed(const zt_world *w, const char **message, int *exit_status) {
  if (!atomic_load(&w->failed)) return false;
  if (message) *message = w->message;
  if (exit_status) *exit_status = w->exit_status;
  return true;
}

/* Gives the log what the control thread has for it. */
static void log_notice(zt_world *w) {
  char notice[sizeof w->control->notice];
  pthread_mutex_lock(&w->lock);
  memcpy(notice, w->control->notice, sizeof notice);
  atomic_store(&w->control->has_notice, false);
  pthread_mutex_unlock(&w->lock);
  zt_log("%s", notice);
}

zt_status zt_world_check(zt_world *w) {
  if (atomic_load(&w->failed)) return zt_fail(ZT_PEER, "%s", w->message);
  if (w->control && atomic_load(&w->control->has_notice)) log_notice(w);
  return ZT_OK;
}

zt_status zt_world_differs(zt_world *w) {
  const struct timespec slice = {.tv_nsec = 20 * 1000 * 1000};
  pthread_mutex_lock(&w->lock);
  zt_control_look(w, true);
  pthread_mutex_unlock(&w->lock);
  for (;;) {
    ZT_TRY(zt_world_check(w));
    nanosleep(&slice, NULL);
  }
}

void zt_world_set_on_failure(zt_world *w, zt_world_on_failure fn, void *user) {
  pthread_mutex_lock(&w->calling);
  pthread_mutex_lock(&w->lock);
  w->on_failure = fn, w->on_failure_user = user;
  if (w->control) zt_control_wake(w);
  pthread_mutex_unlock(&w->lock);
  pthread_mutex_unlock(&w->calling);
}

void zt_world_set_where(zt_world *w, zt_world_where fn, void *user) {
  w->where = fn, w->where_user = user, w->where_thread = pthread_self();
}
