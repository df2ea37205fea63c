#include "core/comm/comm.h"

#include <stdio.h>
#include <string.h>

#include "core/base/hash.h"
#include "core/base/mem.h"
#include "core/comm/state.h"

/* The one list of planes. */
static const zt_plane_ops *const planes[] = {&zt_self_plane, &zt_shm_plane, &zt_mpi_plane};
enum { N_PLANES = sizeof planes / sizeof *planes };

zt_status zt_plane_find(const zt_world_options *o, const zt_plane_ops **out) {
  const char *name = o->plane ? o->plane : o->size == 1 ? "self" : o->local_size == o->size ? "shm" : "mpi";
  if (strcmp(name, "self") == 0 && o->size > 1)
    return zt_fail(ZT_INVALID, "the plane 'self' is for one rank, not for %d", o->size);
  for (int i = 0; i < N_PLANES; i++) {
    *out = planes[i];
    if (strcmp(planes[i]->name, name) == 0) return ZT_OK;
  }
  char known[128] = "";
  for (int i = 0; i < N_PLANES; i++) {
    if (i) strncat(known, ", ", sizeof known - strlen(known) - 1);
    strncat(known, planes[i]->name, sizeof known - strlen(known) - 1);
  }
  return zt_fail(ZT_INVALID, "there is no plane '%s' between ranks in this build; it has: %s", name, known);
}

/* --- the log */

/* Only the thread that said how may ask: others know nothing of a script. */
static void ask_where(const zt_world *w, char where[96]) {
  bool mine = w->where && pthread_equal(w->where_thread, pthread_self());
  const char *text = mine ? w->where(w->where_user) : NULL;
  size_t length = text ? strlen(text) : 0;
  bool cut = length > 95; /* of a long path the end is what tells */
  snprintf(where, 96, "%s%s", cut ? "..." : "", !text ? "" : cut ? text + length - 92 : text);
}

zt_label zt_label_here(const zt_world *w, const char *what, int64_t id, const char *name) {
  zt_label label = {.what = what, .id = id, .name = name};
  ask_where(w, label.where);
  return label;
}

static void describe(const zt_label *label, char *text, size_t room) {
  char id[24] = "", name[96] = "";
  if (label->id >= 0) snprintf(id, sizeof id, " %lld", (long long)label->id);
  if (label->name) snprintf(name, sizeof name, " (%.90s)", label->name);
  snprintf(text, room, "%s%s%s", label->what ? label->what : "", id, name);
}

/* Takes the collective into the hash and the log. 'nbytes' and 'root' are what all ranks have to agree about. */
static zt_status begin(zt_world *w, zt_collective kind, const zt_label *label, uint64_t nbytes, int root) {
  static const zt_label none = {.id = -1};
  ZT_TRY(zt_world_check(w));
  if (!label) label = &none;
  zt_entry e = {.nbytes = nbytes, .kind = kind};
  describe(label, e.label, sizeof e.label);
  if (label->where[0])
    memcpy(e.where, label->where, sizeof e.where);
  else
    ask_where(w, e.where);
  uint64_t numbers[] = {kind, (uint64_t)label->id, nbytes, (uint64_t)root};
  pthread_mutex_lock(&w->lock);
  e.hash = zt_hash_bytes(w->stats.hash, numbers, sizeof numbers);
  if (label->what) e.hash = zt_hash_bytes(e.hash, label->what, strlen(label->what));
  w->stats.hash = e.hash;
  e.seq = ++w->seq;
  w->log[e.seq % ZT_LOG_ENTRIES] = e;
  w->since = zt_now();
  pthread_mutex_unlock(&w->lock);
  return ZT_OK;
}

/* Counts a collective that came to its end; passes 'st' on. */
static zt_status end(zt_world *w, zt_status st, uint64_t *count, uint64_t nbytes_sent) {
  pthread_mutex_lock(&w->lock);
  w->stats.waited += zt_now() - w->since;
  w->since = 0;
  if (st == ZT_OK) *count += 1, w->stats.nbytes_sent += nbytes_sent;
  pthread_mutex_unlock(&w->lock);
  return st;
}

zt_comm_stats zt_comm_get_stats(const zt_world *w) {
  pthread_mutex_t *lock = (pthread_mutex_t *)&w->lock;
  pthread_mutex_lock(lock);
  zt_comm_stats stats = w->stats;
  pthread_mutex_unlock(lock);
  return stats;
}

/* --- what the planes do */

/* What is left of a collective that moves nothing. */
static zt_status meet(zt_world *w) { return w->plane->barrier(w, w->plane_state); }

static uint64_t others(const zt_world *w) { return (uint64_t)(w->options.size - 1); }

zt_status zt_all_gather(zt_world *w, const zt_label *label, void *buffer, size_t nbytes_each) {
  ZT_TRY(begin(w, ZT_ALL_GATHER, label, nbytes_each, 0));
  zt_status st = nbytes_each ? w->plane->all_gather(w, w->plane_state, buffer, nbytes_each) : meet(w);
  return end(w, st, &w->stats.n_all_gather, nbytes_each * others(w));
}

zt_status zt_all_to_all(zt_world *w, const zt_label *label, void *recv, const void *send, size_t nbytes_each) {
  ZT_TRY(begin(w, ZT_ALL_TO_ALL, label, nbytes_each, 0));
  zt_status st = nbytes_each ? w->plane->all_to_all(w, w->plane_state, recv, send, nbytes_each) : meet(w);
  return end(w, st, &w->stats.n_all_to_all, nbytes_each * others(w));
}

zt_status zt_broadcast(zt_world *w, const zt_label *label, void *buffer, size_t nbytes, int root) {
  if (root < 0 || root >= w->options.size)
    return zt_fail(ZT_INVALID, "broadcast from rank %d: there are %d ranks", root, w->options.size);
  ZT_TRY(begin(w, ZT_BROADCAST, label, nbytes, root));
  zt_status st = nbytes ? w->plane->broadcast(w, w->plane_state, buffer, nbytes, root) : meet(w);
  return end(w, st, &w->stats.n_broadcast, root == w->options.rank ? nbytes * others(w) : 0);
}

zt_status zt_barrier(zt_world *w, const zt_label *label) {
  ZT_TRY(begin(w, ZT_BARRIER, label, 0, 0));
  return end(w, meet(w), &w->stats.n_barrier, 0);
}

/* --- sums: chunks go to the rank that adds them up, in rank order */

#define DEFINE_SUM(suffix, T, ACC, LOAD, STORE)                        \
  static void sum_##suffix(T *y, const T *x, size_t n, size_t count) { \
    for (size_t i = 0; i < count; i++) {                               \
      ACC sum = 0;                                                     \
      for (size_t r = 0; r < n; r++) sum += LOAD(x[r * count + i]);    \
      y[i] = STORE(sum);                                               \
    }                                                                  \
  }
DEFINE_SUM(f32, float, float, , )
DEFINE_SUM(f64, double, double, , )
DEFINE_SUM(bf16, uint16_t, float, zt_bf16_to_f32, zt_f32_to_bf16)
DEFINE_SUM(f16, uint16_t, float, zt_f16_to_f32, zt_f32_to_f16)
DEFINE_SUM(i64, uint64_t, uint64_t, , ) /* wraps */

/* y = the sum of the n rows of x. */
static void sum(zt_dtype t, void *y, const void *x, size_t n, size_t count) {
  switch (t) {
    case ZT_F32:
      sum_f32(y, x, n, count);
      break;
    case ZT_F64:
      sum_f64(y, x, n, count);
      break;
    case ZT_BF16:
      sum_bf16(y, x, n, count);
      break;
    case ZT_F16:
      sum_f16(y, x, n, count);
      break;
    default:
      sum_i64(y, x, n, count);
      break;
  }
}

static zt_status check_sum(zt_dtype t) {
  if (t == ZT_F32 || t == ZT_F64 || t == ZT_BF16 || t == ZT_F16 || t == ZT_I64) return ZT_OK;
  return zt_fail(ZT_DTYPE, "sums over ranks are of float32, float64, bfloat16, float16 or int64, not of %s",
                 zt_dtype_name(t));
}

zt_status zt_reduce_scatter(zt_world *w, const zt_label *label, zt_dtype t, void *recv, const void *send,
                            size_t count) {
  ZT_TRY(check_sum(t));
  size_t n = (size_t)w->options.size, nbytes = count * zt_dtype_nbytes(t);
  void *parts = zt_malloc(n * nbytes);
  ZT_CHECK_ALLOC(parts);
  zt_status st = zt_all_to_all(w, label, parts, send, nbytes);
  if (st == ZT_OK) sum(t, recv, parts, n, count);
  zt_free(parts);
  return st;
}

zt_status zt_all_reduce(zt_world *w, const zt_label *label, zt_dtype t, void *buffer, size_t count) {
  zt_status st;
  ZT_TRY(check_sum(t));
  size_t n = (size_t)w->options.size, each = (count + n - 1) / n, width = zt_dtype_nbytes(t);
  char *padded = zt_calloc(n * each, width); /* to equal chunks */
  ZT_CHECK_ALLOC(padded);
  char *mine = padded + (size_t)w->options.rank * each * width;
  if (count) memcpy(padded, buffer, count * width);
  ZT_TRY_GOTO(zt_reduce_scatter(w, label, t, mine, padded, each), done);
  ZT_TRY_GOTO(zt_all_gather(w, label, padded, each * width), done);
  if (count) memcpy(buffer, padded, count * width);
done:
  zt_free(padded);
  return st;
}
