/* state.h - what is inside a world. For core/comm alone. */
#ifndef zt_world_state_h
#define zt_world_state_h

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "core/comm/comm.h"
#include "core/comm/planes.h"

/* X(constant, name in messages) */
#define ZT_COLLECTIVES(X)     \
  X(ALL_GATHER, "all_gather") \
  X(ALL_TO_ALL, "all_to_all") \
  X(BROADCAST, "broadcast")   \
  X(BARRIER, "barrier")

typedef enum zt_collective {
#define ZT_COLLECTIVE_ENUM(id, name) ZT_##id,
  ZT_COLLECTIVES(ZT_COLLECTIVE_ENUM)
#undef ZT_COLLECTIVE_ENUM
      ZT_N_COLLECTIVES
} zt_collective;

/* A collective as logs keep it. */
typedef struct zt_entry {
  uint64_t seq;  /* 1 is the first */
  uint64_t hash; /* of all up to this one */
  uint64_t nbytes;
  uint32_t kind;
  char label[132]; /* "gradients of page 3 (h.1.mlp ...)" */
  char where[96];
} zt_entry;

enum { ZT_LOG_ENTRIES = 16 }; /* that are kept: the last ones */

struct zt_world {
  zt_world_options options; /* its strings are not kept */
  const zt_plane_ops *plane;
  void *plane_state;
  bool opened;                /* all ranks are there */
  char handle[64];            /* what rank 0's plane hands to the others' */
  struct zt_control *control; /* NULL: one rank */
  zt_world_where where;
  void *where_user;
  pthread_t where_thread; /* that set them */

  pthread_mutex_t lock;         /* of what follows */
  zt_comm_stats stats;          /* the thread of the collective may read it without */
  zt_entry log[ZT_LOG_ENTRIES]; /* collective 'seq' stands in log[seq % ZT_LOG_ENTRIES] */
  uint64_t seq;                 /* of the last collective that began */
  double since;                 /* when it began (zt_now); 0: it is done */
  pthread_mutex_t calling;      /* held during on_failure, taken before the lock */
  zt_world_on_failure on_failure;
  void *on_failure_user;
  atomic_bool failed; /* may be read without the lock; once it is set, the next two stay as they are */
  char message[1024];
  int exit_status;
};

/* Seconds of a clock that only goes forward. */
double zt_now(void);

/* ZT_PEER with the message where the world has failed. Whoever waits calls it: it also gives the log its notices. */
zt_status zt_world_check(zt_world *w);

/* This rank met another in another collective: lets rank 0 look, and returns when the world has failed. */
zt_status zt_world_differs(zt_world *w);

#endif
