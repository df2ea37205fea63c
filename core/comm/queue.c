#include "core/comm/queue.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "core/base/mem.h"

enum { CAPACITY = 64 };

typedef struct entry {
  zt_job run;
  void *user;
} entry;

struct zt_queue {
  bool threaded, stop;
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  entry jobs[CAPACITY]; /* job n stands at n % CAPACITY */
  zt_ticket submitted, done;
  zt_status failure;
  char message[1024];
};

/* Runs a job, unless an earlier one failed. */
static zt_status run_next(const zt_queue *q, entry job) { return q->failure == ZT_OK ? job.run(job.user) : q->failure; }

static void note(zt_queue *q, zt_status st) {
  q->done++;
  if (st == ZT_OK || q->failure != ZT_OK) return;
  q->failure = st;
  snprintf(q->message, sizeof q->message, "%s", zt_message());
}

static void *work(void *user) {
  zt_queue *q = user;
  pthread_mutex_lock(&q->lock);
  for (;;) {
    while (q->done == q->submitted && !q->stop) pthread_cond_wait(&q->changed, &q->lock);
    if (q->stop) break;
    entry job = q->jobs[(q->done + 1) % CAPACITY];
    pthread_mutex_unlock(&q->lock);
    zt_status st = run_next(q, job);
    pthread_mutex_lock(&q->lock);
    note(q, st);
    pthread_cond_broadcast(&q->changed);
  }
  pthread_mutex_unlock(&q->lock);
  return NULL;
}

zt_status zt_queue_new(bool threaded, zt_queue **out) {
  zt_queue *q = *out = zt_calloc(1, sizeof *q);
  ZT_CHECK_ALLOC(q);
  q->threaded = threaded;
  if (!threaded) return ZT_OK;
  pthread_mutex_init(&q->lock, NULL);
  pthread_cond_init(&q->changed, NULL);
  int error = pthread_create(&q->thread, NULL, work, q);
  if (!error) return ZT_OK;
  pthread_mutex_destroy(&q->lock);
  pthread_cond_destroy(&q->changed);
  zt_free(q);
  *out = NULL;
  return zt_fail(ZT_NOMEM, "a thread for communication: %s", strerror(error));
}

void zt_queue_free(zt_queue *q) {
  if (!q) return;
  if (q->threaded) {
    pthread_mutex_lock(&q->lock);
    q->stop = true;
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->lock);
    pthread_join(q->thread, NULL);
    pthread_mutex_destroy(&q->lock);
    pthread_cond_destroy(&q->changed);
  }
  zt_free(q);
}

/* The failure so far, with its message in this thread. */
static zt_status failure(const zt_queue *q) { return q->failure ? zt_fail(q->failure, "%s", q->message) : ZT_OK; }

zt_status zt_queue_submit(zt_queue *q, zt_job run, void *user, zt_ticket *ticket) {
  if (!q->threaded) {
    note(q, run_next(q, (entry){run, user}));
    *ticket = ++q->submitted;
    return failure(q);
  }
  pthread_mutex_lock(&q->lock);
  while (q->submitted - q->done == CAPACITY) pthread_cond_wait(&q->changed, &q->lock);
  *ticket = ++q->submitted;
  q->jobs[*ticket % CAPACITY] = (entry){run, user};
  zt_status st = failure(q);
  pthread_cond_broadcast(&q->changed);
  pthread_mutex_unlock(&q->lock);
  return st;
}

zt_status zt_queue_wait(zt_queue *q, zt_ticket ticket) {
  if (!q->threaded) return failure(q);
  pthread_mutex_lock(&q->lock);
  while (q->done < ticket) pthread_cond_wait(&q->changed, &q->lock);
  zt_status st = failure(q);
  pthread_mutex_unlock(&q->lock);
  return st;
}

zt_status zt_queue_drain(zt_queue *q) { return zt_queue_wait(q, q->submitted); }
