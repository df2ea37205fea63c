/* shim.c - libztrain_mpi.so. */
#include "core/comm/mpi_shim.h"

#include <limits.h>
#include <mpi.h>
#include <stdio.h>

/* MPI is one in a process, and so is this. */
static MPI_Comm world;
static MPI_Request request;
static bool owns; /* init was ours, so is finalize */

#define TRY(call)                           \
  do {                                      \
    int code_ = (call);                     \
    if (code_ != MPI_SUCCESS) return code_; \
  } while (0)

static int start(zt_mpi_place *place) {
  int flag, level;
  MPI_Comm local;
  TRY(MPI_Initialized(&flag));
  owns = !flag;
  if (owns) TRY(MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level));
  TRY(MPI_Comm_dup(MPI_COMM_WORLD, &world));
  TRY(MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN));
  TRY(MPI_Query_thread(&level));
  if (level < MPI_THREAD_SERIALIZED) return MPI_ERR_UNSUPPORTED_OPERATION;
  TRY(MPI_Comm_rank(world, &place->rank));
  TRY(MPI_Comm_size(world, &place->size));
  TRY(MPI_Comm_split_type(world, MPI_COMM_TYPE_SHARED, place->rank, MPI_INFO_NULL, &local));
  TRY(MPI_Comm_rank(local, &place->local_rank));
  TRY(MPI_Comm_size(local, &place->local_size));
  return MPI_Comm_free(&local);
}

static void describe(int code, char *text, size_t room) {
  char buffer[MPI_MAX_ERROR_STRING];
  int length;
  if (MPI_Error_string(code, buffer, &length) == MPI_SUCCESS)
    snprintf(text, room, "%s", buffer);
  else
    snprintf(text, room, "error %d", code);
}

static int share(void *data, int nbytes) { return MPI_Bcast(data, nbytes, MPI_BYTE, 0, world); }

static int least(uint64_t *values, int count) {
  return MPI_Iallreduce(MPI_IN_PLACE, values, count, MPI_UINT64_T, MPI_MIN, world, &request);
}

/* MPI counts with int: more bytes than that are one element of a type that is as large. '*type' is to be freed where it is not
** MPI_BYTE, which may happen as soon as the operation has started. */
static int units_of(size_t nbytes, MPI_Datatype *type, int *count) {
  const size_t block = (size_t)1 << 30;
  *type = MPI_BYTE, *count = (int)nbytes;
  if (nbytes <= INT_MAX) return MPI_SUCCESS;
  MPI_Datatype blocks;
  TRY(MPI_Type_contiguous((int)block, MPI_BYTE, &blocks));
  int lengths[] = {(int)(nbytes / block), (int)(nbytes % block)};
  MPI_Aint places[] = {0, (MPI_Aint)(nbytes / block * block)};
  MPI_Datatype types[] = {blocks, MPI_BYTE};
  TRY(MPI_Type_create_struct(2, lengths, places, types, type));
  TRY(MPI_Type_commit(type));
  *count = 1;
  return MPI_Type_free(&blocks);
}

static int done_with(MPI_Datatype type) { return type == MPI_BYTE ? MPI_SUCCESS : MPI_Type_free(&type); }

static int all_gather(void *buffer, size_t nbytes_each) {
  MPI_Datatype type;
  int count;
  TRY(units_of(nbytes_each, &type, &count));
  TRY(MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, buffer, count, type, world, &request));
  return done_with(type);
}

static int all_to_all(void *recv, const void *send, size_t nbytes_each) {
  MPI_Datatype type;
  int count;
  TRY(units_of(nbytes_each, &type, &count));
  TRY(MPI_Ialltoall(send, count, type, recv, count, type, world, &request));
  return done_with(type);
}

static int broadcast(void *buffer, size_t nbytes, int root) {
  MPI_Datatype type;
  int count;
  TRY(units_of(nbytes, &type, &count));
  TRY(MPI_Ibcast(buffer, count, type, root, world, &request));
  return done_with(type);
}

static int test(bool *done) {
  int flag = 0;
  TRY(MPI_Test(&request, &flag, MPI_STATUS_IGNORE));
  *done = flag;
  return MPI_SUCCESS;
}

static void finalize(void) {
  MPI_Comm_free(&world);
  if (owns) MPI_Finalize();
}

const zt_mpi zt_mpi_table = {
    .nbytes = sizeof(zt_mpi),
    .init = start,
    .describe = describe,
    .share = share,
    .least = least,
    .all_gather = all_gather,
    .all_to_all = all_to_all,
    .broadcast = broadcast,
    .test = test,
    .finalize = finalize,
};
