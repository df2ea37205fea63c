/* queue.h - work that is done in order by a thread of its own: collectives that go on while the caller computes. All ranks
** submit the same work in the same order. One thread submits and waits. */
#ifndef zt_queue_h
#define zt_queue_h

#include <stdbool.h>
#include <stdint.h>

#include "core/base/err.h"

typedef struct zt_queue zt_queue;
typedef zt_status (*zt_job)(void *user);
typedef uint64_t zt_ticket; /* in order of submission, from 1; 0: nothing to wait for */

/* Without a thread submit does the job at once. */
ZT_API zt_status zt_queue_new(bool threaded, zt_queue **out);
/* Waits for the job that runs; those that have not begun are dropped. NULL ok. */
ZT_API void zt_queue_free(zt_queue *q);
/* 'user' must live until the job was waited for. Waits where many jobs are waiting. Fails with the first failure of an
** earlier job, after which none is run. */
ZT_API zt_status zt_queue_submit(zt_queue *q, zt_job run, void *user, zt_ticket *ticket);
/* Until this job and all before it are done; their first failure. */
ZT_API zt_status zt_queue_wait(zt_queue *q, zt_ticket ticket);
/* Until all are done. */
ZT_API zt_status zt_queue_drain(zt_queue *q);

#endif
