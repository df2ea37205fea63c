/* planes.h - how bytes move between ranks: the planes that a build may have; comm.c lists those it has. For core/comm. */
#ifndef zt_planes_h
#define zt_planes_h

#include <stddef.h>

#include "core/comm/world.h"

/* Calls have the contracts of their namesakes in comm.h, which logs and counts them; there is one at a time, and never one
** of 0 bytes, which is a barrier. Whoever waits
** calls zt_world_check every 50 ms at the least, and returns what it says. */
typedef struct zt_plane_ops {
  const char *name;
  bool ends_together; /* close is for all ranks at once: nobody's is called before all have ended */
  /* Before ranks know each other: what rank 0 has to hand out (w->handle), or what finds rank 0. '*out' is the plane's own,
  ** given to its calls; where it is not NULL, close is called, also after a failure. */
  zt_status (*prepare)(zt_world *w, void **out);
  /* With the control plane running and w->handle known. Not called for one rank. */
  zt_status (*open)(zt_world *w, void *plane);
  void (*close)(zt_world *w, void *plane);
  zt_status (*all_gather)(zt_world *w, void *plane, void *buffer, size_t nbytes_each);
  zt_status (*all_to_all)(zt_world *w, void *plane, void *recv, const void *send, size_t nbytes_each);
  zt_status (*broadcast)(zt_world *w, void *plane, void *buffer, size_t nbytes, int root);
  zt_status (*barrier)(zt_world *w, void *plane);
} zt_plane_ops;

enum { ZT_SHM_PIECE = 1 << 20 }; /* bytes of a rank that are on their way at a time */

extern const zt_plane_ops zt_self_plane, zt_shm_plane, zt_mpi_plane;

/* By name; NULL is the name of the one that fits the world. */
zt_status zt_plane_find(const zt_world_options *options, const zt_plane_ops **out);

#endif
