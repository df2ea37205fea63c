/* control.h - the control plane: the connections to rank 0, and the thread that serves them. For core/comm alone. */
#ifndef zt_control_h
#define zt_control_h

#include "core/comm/judge.h"
#include "core/comm/wire.h"

/* Types of frames, and who sends them. */
enum {
  ZT_HELLO = 1, /* rank r: zt_hello, first of all */
  ZT_HEARD,     /* rank 0: it is one of us; wait */
  ZT_WELCOME,   /* rank 0: all are there; the plane's handle */
  ZT_FAIL,      /* both: zt_fail_frame */
  ZT_BYE,       /* rank r: ended in good order; zt_report */
  ZT_LOOK,      /* rank r: waits long, or met another collective: byte 1 */
  ZT_ASK,       /* rank 0: where are you? uint32_t round */
  ZT_ANSWER,    /* rank r: zt_answer */
  ZT_NOTIFY,    /* rank 0: a notice for the log */
  ZT_END,       /* rank 0: all ended in good order */
};

/* The fields up to 'size' stay at their places in all versions, so that each understands another's. */
typedef struct zt_hello {
  char version[24];
  uint64_t session;
  int32_t rank, size;
  char plane[16];
} zt_hello;

typedef struct zt_fail_frame {
  int32_t exit_status;
  char message[1024];
} zt_fail_frame;

typedef struct zt_answer {
  uint32_t round;
  zt_report report;
} zt_answer;

typedef struct zt_control {
  pthread_t thread;
  pthread_cond_t changed; /* with the world's lock: failed, or a rank ended */
  bool runs, stop;        /* the thread */
  int wake;               /* an eventfd that ends its poll */
  double looked;          /* when this rank last asked to be looked at */
  char notice[1024];      /* for the log, of the thread that waits */
  atomic_bool has_notice;
  bool all_ended;
  bool by_others; /* the failure came from outside and */
  bool told;      /* on_failure was called */
  zt_conn *conns; /* rank 0: [r] goes to rank r, [0] is closed; others: [0] goes to rank 0 */
  int n_conns;
  struct pollfd *polls; /* [0] is wake, [1 + i] connection i */
  zt_peer *peers;       /* rank 0's: [r] is rank r; the round's answers */
  bool look, suspect;   /* a round is due; at once */
  bool asking;          /* a round is on its way */
  uint32_t round;
  double asked;     /* when it began */
  uint64_t noticed; /* the collective of the last notice */
} zt_control;

/* Brings all ranks together: they connect to rank 0, which hands out w->handle. Blocks up to the limit. Opens w->control's
** connections; there is no thread yet. */
zt_status zt_bootstrap(zt_world *w);

/* The whole: bootstrap, then the thread. */
zt_status zt_control_open(zt_world *w);
/* Says goodbye where the world has not failed; rank 0 waits for everybody's, and all do where the plane ends together. */
void zt_control_close(zt_world *w);

/* Fails with what a frame FAIL says. */
zt_status zt_control_read_fail(const char *payload, size_t nbytes);
/* With the lock: the first failure stays, all ranks hear of it; 'by_others' also the embedder. */
void zt_control_fail(zt_world *w, const char *message, int exit_status, bool by_others);
/* With the lock: rank 0 is to look where all are; at once, where this rank has met one that is elsewhere. */
void zt_control_look(zt_world *w, bool suspect);
/* Ends the thread's poll. */
void zt_control_wake(zt_world *w);

#endif
