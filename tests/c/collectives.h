/* collectives.h - what each rank does in tests of collectives, whatever the plane. */
#ifndef zt_test_collectives_h
#define zt_test_collectives_h

#include "tests/c/crew.h"

#include "core/comm/planes.h"

/* Fails in a rank, with what and where. */
#define CHECK(condition)                                                               \
  do {                                                                                 \
    if (!(condition))                                                                  \
      return zt_fail(ZT_STATE, "line %d: %s; ZT_TEST_SEED=%llu", __LINE__, #condition, \
                     (unsigned long long)scratch_seed());                              \
  } while (0)

/* Bytes that rank 'from' has for rank 'to' (or for all) in a collective, eight at a time: every rank can tell everybody's. */
static uint64_t first_bytes(uint64_t collective, int from, int to) {
  return zt_rng_mix(zt_rng_mix(scratch_seed(), collective), (uint64_t)(from * 100 + to));
}
static uint64_t next_bytes(uint64_t bytes) { return bytes * 6364136223846793005u + 1442695040888963407u; }

static void fill(unsigned char *data, size_t nbytes, uint64_t collective, int from, int to) {
  uint64_t bytes = first_bytes(collective, from, to);
  for (; nbytes >= sizeof bytes; nbytes -= sizeof bytes, data += sizeof bytes, bytes = next_bytes(bytes))
    memcpy(data, &bytes, sizeof bytes);
  memcpy(data, &bytes, nbytes);
}

static bool is_filled(const unsigned char *data, size_t nbytes, uint64_t collective, int from, int to) {
  uint64_t bytes = first_bytes(collective, from, to);
  for (; nbytes >= sizeof bytes; nbytes -= sizeof bytes, data += sizeof bytes, bytes = next_bytes(bytes))
    if (memcmp(data, &bytes, sizeof bytes) != 0) return false;
  return memcmp(data, &bytes, nbytes) == 0;
}

/* --- bytes */

static zt_status gather_once(zt_world *w, int rank, size_t nbytes, uint64_t number) {
  int size = zt_world_size(w);
  unsigned char *data = malloc((size_t)size * nbytes + 1);
  data[(size_t)size * nbytes] = 77;
  fill(data + (size_t)rank * nbytes, nbytes, number, rank, 0);
  ZT_TRY(zt_all_gather(w, NULL, data, nbytes));
  for (int r = 0; r < size; r++) CHECK(is_filled(data + (size_t)r * nbytes, nbytes, number, r, 0));
  CHECK(data[(size_t)size * nbytes] == 77);
  free(data);
  return ZT_OK;
}

static zt_status exchange_once(zt_world *w, int rank, size_t nbytes, uint64_t number) {
  int size = zt_world_size(w);
  unsigned char *send = malloc((size_t)size * nbytes + 1), *recv = malloc((size_t)size * nbytes + 1);
  recv[(size_t)size * nbytes] = 77;
  for (int r = 0; r < size; r++) fill(send + (size_t)r * nbytes, nbytes, number, rank, r);
  ZT_TRY(zt_all_to_all(w, NULL, recv, send, nbytes));
  for (int r = 0; r < size; r++) CHECK(is_filled(recv + (size_t)r * nbytes, nbytes, number, r, rank));
  for (int r = 0; r < size; r++) CHECK(is_filled(send + (size_t)r * nbytes, nbytes, number, rank, r));
  CHECK(recv[(size_t)size * nbytes] == 77);
  free(send), free(recv);
  return ZT_OK;
}

static zt_status broadcast_once(zt_world *w, int rank, size_t nbytes, uint64_t number) {
  int root = (int)(number % (uint64_t)zt_world_size(w));
  unsigned char *data = malloc(nbytes + 1);
  data[nbytes] = 77;
  if (rank == root) fill(data, nbytes, number, root, 0);
  ZT_TRY(zt_broadcast(w, NULL, data, nbytes, root));
  CHECK(is_filled(data, nbytes, number, root, 0));
  CHECK(data[nbytes] == 77);
  free(data);
  return ZT_OK;
}

static zt_status odd_sizes(zt_world *w, int rank) {
  const size_t piece = ZT_SHM_PIECE;
  size_t nbytes[] = {0, 1, 7, 64, 1000, 4097, piece / 7, piece - 1, piece, piece + 1, 2 * piece + 13, 3 * piece};
  for (size_t i = 0; i < sizeof nbytes / sizeof *nbytes; i++) {
    ZT_TRY(gather_once(w, rank, nbytes[i], 3 * i));
    ZT_TRY(exchange_once(w, rank, nbytes[i], 3 * i + 1));
    ZT_TRY(broadcast_once(w, rank, nbytes[i], 3 * i + 2));
  }
  return ZT_OK;
}

/* Many collectives in a row, in an order that all know, with ranks that are late now and then. */
static zt_status stress(zt_world *w, int rank) {
  for (uint64_t n = 0; n < 800; n++) {
    uint64_t draw = zt_rng_mix(scratch_seed(), n), own = zt_rng_mix(draw, (uint64_t)rank);
    size_t nbytes = draw / 4 % 97 == 0 ? draw % 3000000 : draw % 3000;
    if (own % 100 == 0) crew_sleep(1e-3);
    switch (draw % 4) {
      case 0:
        ZT_TRY(gather_once(w, rank, nbytes, n));
        break;
      case 1:
        ZT_TRY(exchange_once(w, rank, nbytes, n));
        break;
      case 2:
        ZT_TRY(broadcast_once(w, rank, nbytes, n));
        break;
      default:
        ZT_TRY(zt_barrier(w, NULL));
        break;
    }
  }
  return ZT_OK;
}

/* Nobody leaves a barrier before the last has come. */
static zt_status barrier(zt_world *w, int rank) {
  int size = zt_world_size(w), last = size - 1;
  double times[8] = {0};
  for (int n = 0; n < 3; n++) {
    if (rank == last) crew_sleep(0.05);
    times[rank] = crew_now(); /* one clock for the machine */
    ZT_TRY(zt_barrier(w, NULL));
    double left = crew_now();
    ZT_TRY(zt_all_gather(w, NULL, times, sizeof *times));
    for (int r = 0; r < size; r++) CHECK(times[r] <= left);
  }
  return ZT_OK;
}

/* --- sums */

static double value_of(int rank, size_t i) {
  uint64_t draw = zt_rng_mix(zt_rng_mix(scratch_seed(), (uint64_t)rank), i);
  if (draw % 50 == 0) return -0.0;
  return ((double)(draw >> 11) * 0x1p-53 - 0.5) * (double)(1 << draw % 12);
}

static void store(zt_dtype t, void *data, size_t i, double value) {
  switch (t) {
    case ZT_F32:
      ((float *)data)[i] = (float)value;
      break;
    case ZT_F64:
      ((double *)data)[i] = value;
      break;
    case ZT_BF16:
      ((uint16_t *)data)[i] = zt_f32_to_bf16((float)value);
      break;
    case ZT_F16:
      ((uint16_t *)data)[i] = zt_f32_to_f16((float)value);
      break;
    default:
      ((int64_t *)data)[i] = (int64_t)(value * 1e15);
      break;
  }
}

/* data[at] = the sum of element i over all ranks, as one process would add it up. */
static void store_sum(zt_dtype t, void *data, size_t at, size_t i, int size) {
  float f32 = 0;
  double f64 = 0;
  int64_t i64 = 0;
  for (int r = 0; r < size; r++) {
    char one[8];
    store(t, one, 0, value_of(r, i));
    uint16_t half;
    float f;
    double d;
    int64_t n;
    memcpy(&half, one, sizeof half), memcpy(&f, one, sizeof f), memcpy(&d, one, sizeof d), memcpy(&n, one, sizeof n);
    if (t == ZT_F32) f32 += f;
    if (t == ZT_F64) f64 += d;
    if (t == ZT_BF16) f32 += zt_bf16_to_f32(half);
    if (t == ZT_F16) f32 += zt_f16_to_f32(half);
    if (t == ZT_I64) i64 += n;
  }
  if (t == ZT_I64)
    ((int64_t *)data)[at] = i64;
  else
    store(t, data, at, t == ZT_F64 ? f64 : f32);
}

static zt_status sums_of(zt_world *w, int rank, zt_dtype t, size_t count) {
  size_t width = zt_dtype_nbytes(t), n = (size_t)zt_world_size(w);
  char *data = malloc(n * count * width + 1), *expected = malloc(n * count * width + 1),
       *part = malloc(count * width + 1);
  for (size_t i = 0; i < n * count; i++) store(t, data, i, value_of(rank, i));
  for (size_t i = 0; i < n * count; i++) store_sum(t, expected, i, i, (int)n);
  ZT_TRY(zt_reduce_scatter(w, NULL, t, part, data, count));
  CHECK(memcmp(part, expected + (size_t)rank * count * width, count * width) == 0);
  ZT_TRY(zt_all_reduce(w, NULL, t, data, count));
  CHECK(memcmp(data, expected, count * width) == 0);
  free(data), free(expected), free(part);
  return ZT_OK;
}

static zt_status sums(zt_world *w, int rank) {
  zt_dtype dtypes[] = {ZT_F32, ZT_F64, ZT_BF16, ZT_F16, ZT_I64};
  size_t counts[] = {0, 1, 3, 8, 1001, 40003};
  for (int d = 0; d < 5; d++)
    for (int k = 0; k < 6; k++) ZT_TRY(zt_wrap(sums_of(w, rank, dtypes[d], counts[k]), "%s", zt_dtype_name(dtypes[d])));
  return ZT_OK;
}

/* --- counts and the hash */

static const char *here(void *user) { return user; }

static zt_status stats(zt_world *w, int rank) {
  int size = zt_world_size(w), others = size - 1;
  char *data = calloc(2, 8 * 100);
  zt_comm_stats s = zt_comm_get_stats(w);
  CHECK(s.n_all_gather + s.n_all_to_all + s.n_broadcast + s.n_barrier == 0 && s.nbytes_sent == 0 && s.waited == 0);
  zt_world_set_where(w, here, "recipe.lua:1");
  zt_label label = zt_label_here(w, "parameters of page", 3, "h.1");
  CHECK(strcmp(label.where, "recipe.lua:1") == 0 && label.id == 3);
  char path[128] = "";
  memset(path, 'a', 110);
  strcat(path, ".lua:7");
  zt_world_set_where(w, here, path);
  CHECK(strcmp(zt_label_here(w, NULL, -1, NULL).where + 83, "aaaaaa.lua:7") == 0);
  zt_world_set_where(w, NULL, NULL);
  ZT_TRY(zt_all_gather(w, &label, data, 100));
  CHECK(zt_comm_get_stats(w).nbytes_sent == (uint64_t)(100 * others));
  ZT_TRY(zt_all_to_all(w, &label, data, data + 800, 50));
  ZT_TRY(zt_broadcast(w, &label, data, 10, 0));
  ZT_TRY(zt_barrier(w, NULL));
  ZT_TRY(zt_all_reduce(w, NULL, ZT_F32, data, 1)); /* an all_to_all of an element for each, an all_gather */
  s = zt_comm_get_stats(w);
  CHECK(s.n_all_gather == 2 && s.n_all_to_all == 2 && s.n_broadcast == 1 && s.n_barrier == 1);
  CHECK(s.nbytes_sent == (uint64_t)((100 + 50 + 4 + 4 + (rank == 0 ? 10 : 0)) * others));
  CHECK(s.waited > 0 && s.waited < 60);
  uint64_t hashes[8];
  hashes[rank] = s.hash;
  ZT_TRY(zt_all_gather(w, NULL, hashes, sizeof *hashes));
  for (int r = 0; r < size; r++) CHECK(hashes[r] == s.hash);
  free(data);
  return ZT_OK;
}

#endif
