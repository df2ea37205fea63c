/* world.h - the processes (ranks) that work together: who they are, who is alive, and how one's failure ends all.
**
** The control plane is one TCP connection from each rank to rank 0, served by a thread of each: it carries what every
** rank says when it begins and ends, the ends of the collective logs where one has waited long, and failures. Data moves
** over a plane (comm.h). A world of one rank has no connection, no thread, and the plane 'self'.
**
** Once a world has failed (a rank died, ended, raised, or stands in another collective) every further call on it fails
** with ZT_PEER and the same message. */
#ifndef zt_world_h
#define zt_world_h

#include <stdbool.h>
#include <stdint.h>

#include "core/base/err.h"

typedef struct zt_world zt_world;

typedef struct zt_world_options {
  int rank, size;             /* 0 .. size-1; size 0 is read as 1 */
  int local_rank, local_size; /* among the ranks of this machine; size 0: all are here */
  char address[256];          /* of rank 0; "": 127.0.0.1 */
  int port;                   /* where rank 0 listens; 0: the plane mpi finds one */
  int listen_fd;              /* rank 0, in a launcher's child: a listening socket at that port, taken over; else -1 */
  uint64_t session;  /* the same number on all ranks, drawn by who starts them; connections of others are ignored */
  const char *plane; /* "self", "shm", "mpi"; NULL: self for one rank, shm where all are on this machine, else mpi */
  double open_limit; /* seconds within which all ranks have to come; 0: 60 */
  double timeout;    /* seconds after which a collective that waits for a slow rank fails; 0: 1800 */
} zt_world_options;

/* What a launcher has put into the environment: torchrun and its like (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE), mpirun
** of Open MPI or MPICH, srun; looked for in this order. MASTER_ADDR and MASTER_PORT say where rank 0 is. '*found' is false where
** there is none, or only one rank; '*out' is then what zt_world_open takes for one rank. Reads only. */
ZT_API zt_status zt_world_options_from_environment(zt_world_options *out, bool *found);

/* Collective: all ranks open it, in any order, within the limit; then each knows that all are there, run the same version, and
** agree on size and plane. '*out' is owned. */
ZT_API zt_status zt_world_open(const zt_world_options *options, zt_world **out);

/* Says that this rank ended in good order, unless it failed; rank 0 (with the plane mpi, every rank) waits until all have. A
** failure meanwhile comes to on_failure. NULL ok. */
ZT_API void zt_world_close(zt_world *world);

ZT_API int zt_world_rank(const zt_world *world);
ZT_API int zt_world_size(const zt_world *world);
ZT_API int zt_world_local_rank(const zt_world *world);
ZT_API int zt_world_local_size(const zt_world *world);
ZT_API const char *zt_world_plane(const zt_world *world); /* its name */

/* Tells all ranks that this one failed, and why; they fail with "rank 2/4: <message>". The first failure stays. Returns at
** once; zt_world_close then does not wait. 'exit_status' is what the processes should end with. */
ZT_API void zt_world_fail(zt_world *world, const char *message, int exit_status);

/* Whether the world has failed; then the message (borrowed until close) and the exit status, NULL ok. */
ZT_API bool zt_world_failed(const zt_world *world, const char **message, int *exit_status);

/* Called once, from the control thread, when another rank's failure (or a mismatch) becomes known here, or as soon as it is
** set: the embedder can interrupt its script, and see to it that the process ends where the script does not come back. It
** returns soon, and calls nothing of the world but zt_world_failed. None runs any more when this returns. */
typedef void (*zt_world_on_failure)(void *user, const char *message, int exit_status);
ZT_API void zt_world_set_on_failure(zt_world *world, zt_world_on_failure fn, void *user);

/* Where the program stands ("recipe.lua:12"), for the log of collectives; called in the thread that set it alone: labels of
** others' collectives bring it along. The text is copied. NULL: unknown. */
typedef const char *(*zt_world_where)(void *user);
ZT_API void zt_world_set_where(zt_world *world, zt_world_where fn, void *user);

#endif
