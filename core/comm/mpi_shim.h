/* mpi_shim.h - the few calls of MPI that the plane 'mpi' needs, as a table. libztrain_mpi.so alone is linked with MPI and knows
** nothing of ztrain; it is opened when the plane is asked for. For core/comm.
**
** Calls return 0, or a code of MPI that 'describe' puts into words. They come one at a time. */
#ifndef zt_mpi_shim_h
#define zt_mpi_shim_h

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/err.h"

typedef struct zt_mpi_place {
  int rank, size, local_rank, local_size;
} zt_mpi_place;

typedef struct zt_mpi {
  size_t nbytes;                    /* of this struct: both sides were built together */
  int (*init)(zt_mpi_place *place); /* joins the processes that mpirun or srun started */
  void (*describe)(int code, char *text, size_t room);
  int (*share)(void *data, int nbytes); /* rank 0's data for all; blocks */
  /* These start, and are done when test says so; one at a time. */
  int (*least)(uint64_t *values, int count); /* the least of all ranks, element by element, in place */
  int (*all_gather)(void *buffer, size_t nbytes_each);
  int (*all_to_all)(void *recv, const void *send, size_t nbytes_each);
  int (*broadcast)(void *buffer, size_t nbytes, int root);
  int (*test)(bool *done);
  void (*finalize)(void); /* all ranks call it, or none */
} zt_mpi;

#define ZT_MPI_SYMBOL "zt_mpi_table"
ZT_API extern const zt_mpi zt_mpi_table;

#endif
