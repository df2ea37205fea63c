/* checkpoints.h - what the tests of checkpoints share: tensors whose bytes everybody can tell, saving them by any number of
** ranks in parts of any size, and checking what stands. */
#ifndef zt_test_checkpoints_h
#define zt_test_checkpoints_h

#include "tests/c/crew.h"

#include <sys/stat.h>

#include "core/train/checkpoint.h"

enum { MAX_TENSORS = 16, BLOCK = 4 << 20 };

/* Names, dtypes, shapes; no data. */
typedef struct tensors {
  const zt_checkpoint_item *list;
  size_t count;
} tensors;

static const zt_checkpoint_item odd_list[] = {
    {.name = "model.w", .dtype = ZT_F32, .ndim = 2, .shape = {257, 131}},
    {.name = "three", .dtype = ZT_BF16, .ndim = 1, .shape = {3}},
    {.name = "scalar", .dtype = ZT_F64},
    {.name = "empty", .dtype = ZT_I64, .ndim = 3, .shape = {4, 0, 5}},
    {.name = "odd \"name\"\n\t\\ \xc3\xa9/../\x7f", .dtype = ZT_U8, .ndim = 1, .shape = {1000003}},
    {.name = "", .dtype = ZT_I32, .ndim = 6, .shape = {1, 7, 1, 1, 1, 1}},
    {.name = "large", .dtype = ZT_F32, .ndim = 1, .shape = {2 * BLOCK / 4 + 12345}},
    {.name = "half", .dtype = ZT_F16, .ndim = 1, .shape = {13}},
};
static const tensors odd_tensors = {odd_list, sizeof odd_list / sizeof *odd_list};

static const zt_checkpoint_item small_list[] = {
    {.name = "a", .dtype = ZT_F32, .ndim = 2, .shape = {3, 5}},
    {.name = "b", .dtype = ZT_I64, .ndim = 1, .shape = {3}},
    {.name = "c", .dtype = ZT_U8, .ndim = 1, .shape = {33}},
};
static const tensors small_tensors = {small_list, 3};

static inline int64_t elements_of(const zt_checkpoint_item *t) {
  int64_t count = 1;
  for (int d = 0; d < t->ndim; d++) count *= t->shape[d];
  return count;
}

/* Elements [begin, begin + count) of tensor i in version 'version' of the training. */
static inline void expected_bytes(const tensors *t, uint64_t version, size_t i, int64_t begin, int64_t count,
                                  void *out) {
  size_t each = zt_dtype_nbytes(t->list[i].dtype);
  unsigned char *bytes = out;
  for (int64_t k = 0; k < count; k++) {
    uint64_t value = zt_rng_mix(version * 100 + i, (uint64_t)(begin + k));
    for (size_t b = 0; b < each; b++) *bytes++ = (unsigned char)(value >> (8 * b));
  }
}

/* Where tensor i is cut for 'size' ranks: equally, or anywhere (ranks may get nothing). */
static inline int64_t cut_at(const tensors *t, size_t i, int rank, int size, uint64_t cuts) {
  int64_t total = elements_of(&t->list[i]), at[CREW_MAX + 1] = {0};
  if (cuts == 0) return total * rank / size;
  for (int r = 1; r < size; r++)
    at[r] = (int64_t)(zt_rng_mix(zt_rng_mix(cuts, i), (uint64_t)r) % (uint64_t)(total + 1));
  at[size] = total;
  for (int a = 1; a < size; a++)
    for (int b = a + 1; b < size; b++)
      if (at[b] < at[a]) {
        int64_t swap = at[a];
        at[a] = at[b], at[b] = swap;
      }
  return at[rank];
}

/* One rank's save. Tensors with an odd number come from the source. */
typedef struct save {
  const tensors *t;
  const char *path, *json; /* json NULL: {"step": version} */
  uint64_t version, cuts;
  void (*change)(zt_checkpoint_item *items, int rank); /* of what is given; NULL ok */
  zt_checkpoint_source source;                         /* instead of the right one */
} save;

static inline zt_status give_expected(void *user, size_t i, int64_t begin, int64_t count, void *out) {
  const save *s = user;
  size_t each = zt_dtype_nbytes(s->t->list[i].dtype);
  if ((size_t)count * each > BLOCK || count <= 0) return zt_fail(ZT_STATE, "asked for %lld elements", (long long)count);
  expected_bytes(s->t, s->version, i, begin, count, out);
  return ZT_OK;
}

static inline zt_status save_part(zt_world *w, const save *s) {
  zt_checkpoint_item items[MAX_TENSORS];
  void *data[MAX_TENSORS] = {NULL};
  char json[64];
  int rank = zt_world_rank(w), size = zt_world_size(w);
  for (size_t i = 0; i < s->t->count; i++) {
    items[i] = s->t->list[i];
    items[i].begin = cut_at(s->t, i, rank, size, s->cuts);
    items[i].count = cut_at(s->t, i, rank + 1, size, s->cuts) - items[i].begin;
    if (i % 2 || s->source) continue;
    items[i].data = data[i] =
        calloc((size_t)items[i].count + 64, zt_dtype_nbytes(items[i].dtype)); /* 'change' may take more */
    expected_bytes(s->t, s->version, i, items[i].begin, items[i].count, data[i]);
  }
  if (s->change) s->change(items, rank);
  snprintf(json, sizeof json, "{\"step\": %llu}", (unsigned long long)s->version);
  zt_status st = zt_checkpoint_save(w, s->path, items, s->t->count,
                                    rank > 0  ? NULL
                                    : s->json ? s->json
                                              : json,
                                    s->source ? s->source : give_expected, (void *)s);
  for (size_t i = 0; i < s->t->count; i++) free(data[i]);
  return st;
}

/* In a world of this process alone. */
static inline zt_status save_alone(const save *s) {
  zt_world *w;
  ZT_TRY(zt_world_open(&(zt_world_options){0}, &w));
  zt_status st = save_part(w, s);
  zt_world_close(w);
  return st;
}

static inline zt_status save_version(const tensors *t, const char *path, uint64_t version) {
  return save_alone(&(save){.t = t, .path = path, .version = version});
}

/* Tensor i is what was saved: elements [begin, begin + count). */
static inline zt_status compare_range(zt_checkpoint *ck, const tensors *t, uint64_t version, size_t i, int64_t begin,
                                      int64_t count) {
  size_t nbytes = (size_t)count * zt_dtype_nbytes(t->list[i].dtype);
  unsigned char *got = malloc(nbytes + 1), *expected = malloc(nbytes + 1);
  got[nbytes] = 77;
  expected_bytes(t, version, i, begin, count, expected);
  zt_status st = zt_checkpoint_read(ck, zt_checkpoint_find(ck, t->list[i].name), begin, count, got);
  if (st == ZT_OK && (memcmp(got, expected, nbytes) != 0 || got[nbytes] != 77))
    st = zt_fail(ZT_STATE, "elements %lld to %lld of tensor %zu are not those of version %llu", (long long)begin,
                 (long long)(begin + count), i, (unsigned long long)version);
  free(got), free(expected);
  return st;
}

static inline zt_status compare_all(zt_checkpoint *ck, const tensors *t, uint64_t version) {
  if (zt_checkpoint_count(ck) != t->count) return zt_fail(ZT_STATE, "%zu tensors", zt_checkpoint_count(ck));
  for (size_t i = 0; i < t->count; i++) {
    const zt_checkpoint_item *a = &t->list[i], *b = zt_checkpoint_get(ck, i);
    if (strcmp(a->name, b->name) != 0 || zt_checkpoint_find(ck, a->name) != b || a->dtype != b->dtype ||
        a->ndim != b->ndim || memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape) != 0 || b->begin != 0 ||
        b->count != elements_of(a) || b->data)
      return zt_fail(ZT_STATE, "tensor %zu is another", i);
    ZT_TRY(compare_range(ck, t, version, i, 0, b->count));
  }
  return ZT_OK;
}

/* What stands at 'path' is whole, and of the version that its step says, which comes into '*version'. */
static inline zt_status check_whole(const tensors *t, const char *path, uint64_t *version) {
  zt_checkpoint *ck;
  ZT_TRY(zt_checkpoint_open(path, &ck));
  *version = (uint64_t)zt_checkpoint_step(ck);
  zt_status st = zt_checkpoint_verify(ck);
  if (st == ZT_OK) st = compare_all(ck, t, *version);
  zt_checkpoint_close(ck);
  return st;
}

static inline void assert_version(const tensors *t, const char *path, uint64_t version) {
  uint64_t got;
  assert_ok(check_whole(t, path, &got));
  assert_int_equal(got, version);
}

/* The name of the data file of a rank, in the folder 'path' (static, one at a time). */
static inline const char *data_file(const char *path, int rank) {
  static char found[1024];
  char begin[16];
  DIR *dir = opendir(path);
  assert_non_null(dir);
  snprintf(begin, sizeof begin, "rank-%d.", rank);
  *found = 0;
  for (struct dirent *e = readdir(dir); e; e = readdir(dir))
    if (strncmp(e->d_name, begin, strlen(begin)) == 0) snprintf(found, sizeof found, "%s/%s", path, e->d_name);
  closedir(dir);
  assert_true(*found);
  return found;
}

static inline void remove_tree(const char *path) { nftw(path, scratch_remove_one, 16, FTW_DEPTH | FTW_PHYS); }

#endif
