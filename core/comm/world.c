#include "core/comm/world.h"

#include <stdio.h>
#include <time.h>

#include "core/base/mem.h"
#include "core/comm/state.h"

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
  if (o->timeout < 0) return zt_fail(ZT_INVALID, "a timeout of %g s: it has to be positive", o->timeout);
  return ZT_OK;
}

/* What was left out. */
static zt_world_options filled(const zt_world_options *options) {
  zt_world_options o = *options;
  if (o.size == 0) o.size = 1;
  if (o.local_size == 0) o.local_rank = o.rank, o.local_size = o.size;
  if (o.timeout == 0) o.timeout = 1800;
  return o;
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
  zt_status st = plane->open(w, &w->plane_state);
  if (st != ZT_OK) {
    zt_world_close(w);
    return st;
  }
  *out = w;
  return ZT_OK;
}

void zt_world_close(zt_world *w) {
  if (!w) return;
  if (w->plane_state) w->plane->close(w, w->plane_state);
  pthread_mutex_destroy(&w->lock);
  zt_free(w);
}

int zt_world_rank(const zt_world *w) { return w->options.rank; }
int zt_world_size(const zt_world *w) { return w->options.size; }
int zt_world_local_rank(const zt_world *w) { return w->options.local_rank; }
int zt_world_local_size(const zt_world *w) { return w->options.local_size; }
const char *zt_world_plane(const zt_world *w) { return w->plane->name; }

/* The first failure stays. */
static void set_failed(zt_world *w, const char *message, int exit_status) {
  pthread_mutex_lock(&w->lock);
  if (!atomic_load(&w->failed)) {
    snprintf(w->message, sizeof w->message, "%s", message);
    w->exit_status = exit_status;
    atomic_store(&w->failed, true);
  }
  pthread_mutex_unlock(&w->lock);
}

void zt_world_fail(zt_world *w, const char *message, int exit_status) {
  char text[sizeof w->message];
  snprintf(text, sizeof text, "rank %d/%d: %.900s", w->options.rank, w->options.size, message);
  set_failed(w, text, exit_status);
}

bool zt_world_failed(const zt_world *w, const char **message, int *exit_status) {
  if (!atomic_load(&w->failed)) return false;
  if (message) *message = w->message;
  if (exit_status) *exit_status = w->exit_status;
  return true;
}

zt_status zt_world_check(zt_world *w) { return atomic_load(&w->failed) ? zt_fail(ZT_PEER, "%s", w->message) : ZT_OK; }

void zt_world_set_on_failure(zt_world *w, zt_world_on_failure fn, void *user) {
  pthread_mutex_lock(&w->lock);
  w->on_failure = fn, w->on_failure_user = user;
  pthread_mutex_unlock(&w->lock);
}

void zt_world_set_where(zt_world *w, zt_world_where fn, void *user) { w->where = fn, w->where_user = user; }
