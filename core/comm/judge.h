/* judge.h - what rank 0 makes of the ends of all ranks' logs. For core/comm alone. */
#ifndef zt_judge_h
#define zt_judge_h

#include "core/comm/state.h"

/* The end of a rank's log. */
typedef struct zt_report {
  uint64_t seq;                     /* of the last collective that began; 0: none did */
  double waited;                    /* seconds so far in that one; negative: it is done */
  zt_entry entries[ZT_LOG_ENTRIES]; /* of collective s at s % ZT_LOG_ENTRIES, as in a world's log */
} zt_report;

typedef struct zt_peer {
  bool known; /* it answered, or ended: 'report' is true */
  bool ended; /* in good order */
  zt_report report;
} zt_peer;

typedef enum zt_verdict_kind { ZT_NOTHING, ZT_NOTICE, ZT_FAILURE } zt_verdict_kind;

typedef struct zt_verdict {
  zt_verdict_kind kind;
  int to; /* a notice: the rank that waits, and in which collective */
  uint64_t seq;
  char text[1024];
} zt_verdict;

enum { ZT_LOOK_SECONDS = 2, ZT_NOTICE_SECONDS = 10 };

/* A failure where ranks are in different collectives, where one ended that others wait for, where one has been waited for
** longer than the timeout; a notice where one is waited for 10 s, or for half of a shorter timeout. */
zt_verdict zt_judge(const zt_peer *peers, int size, double timeout);

#endif
