/* checkpoint.c - writing. Three collectives: ranks agree on what they are about to write, and where; then on what they have
** written, which rank 0 makes the manifest of; then on whether it stands.
**
** The unfinished folder is rank 0's alone to remove: another rank that knows of a failure earlier could else take files
** out of a folder that is just being renamed to its place. */
#include "core/train/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/hash.h"
#include "core/base/mem.h"
#include "core/io/json.h"
#include "core/train/checkpoint_parts.h"

typedef zt_checkpoint_piece piece;

/* A rank's status and message, as others get them. */
typedef struct verdict {
  int64_t status;
  char message[1016];
} verdict;

/* What a rank is about to write. */
typedef struct opening {
  verdict v;
  uint64_t number;         /* rank 0's: in the names of this save */
  uint64_t paths, tensors; /* hashes of the arguments that all ranks have to agree about */
  uint64_t n_pieces;
  int64_t nbytes;
} opening;

typedef struct saving {
  zt_world *world;
  const zt_checkpoint_item *items;
  size_t count;
  const char *json;
  zt_checkpoint_source source;
  void *user;
  int rank, size;
  char *path, *temp; /* owned; the unfinished folder */
  bool is_made;      /* by this rank, who removes it */
  int lock;          /* on it; -1: none */
  uint64_t number;   /* in the names of this save */
  int64_t step;
  opening *openings; /* owned; of all ranks */
  /* this rank's file */
  piece *pieces; /* owned */
  size_t n_pieces;
  int64_t nbytes;
  char *reports; /* owned; of all ranks, 'stride' bytes for each */
  size_t stride;
} saving;

/* --- agreeing: the first rank that failed decides */

static verdict verdict_of(zt_status st) {
  verdict v = {.status = st};
  if (st != ZT_OK) snprintf(v.message, sizeof v.message, "%s", zt_message());
  return v;
}

static zt_status fail_as(const saving *s, int rank, const verdict *v) {
  if (v->status == ZT_OK) return ZT_OK;
  if (s->size == 1) return zt_fail((zt_status)v->status, "%s", v->message);
  return zt_fail((zt_status)v->status, "rank %d/%d: %s", rank, s->size, v->message);
}

static zt_label label_of(const saving *s) { return zt_label_here(s->world, "saving a checkpoint", -1, s->path); }

/* --- this rank's part: checks, and where its pieces will lie */

bool zt_checkpoint_elements(const zt_checkpoint_item *item, int64_t *count) {
  int64_t nbytes = (int64_t)zt_dtype_nbytes(item->dtype);
  bool fits = true, is_empty = false;
  for (int d = 0; d < item->ndim; d++) {
    if (item->shape[d] < 0) return false;
    is_empty |= item->shape[d] == 0;
    fits = fits && (item->shape[d] == 0 || !__builtin_mul_overflow(nbytes, item->shape[d], &nbytes));
  }
  *count = is_empty ? 0 : nbytes / (int64_t)zt_dtype_nbytes(item->dtype);
  return fits && nbytes < INT64_MAX / 2;
}

static zt_status check_item(const zt_checkpoint_item *item) {
  int64_t total;
  if (item->ndim < 0 || item->ndim > ZT_SAFETENSORS_MAX_DIM)
    return zt_fail(ZT_INVALID, "%d dimensions; there can be 0 to %d", item->ndim, ZT_SAFETENSORS_MAX_DIM);
  if (!zt_checkpoint_elements(item, &total)) return zt_fail(ZT_SHAPE, "its shape cannot be counted");
  if (item->begin < 0 || item->count < 0 || item->count > total || item->begin > total - item->count)
    return zt_fail(ZT_INVALID, "a part of %" PRId64 " elements from %" PRId64 " on; the tensor has %" PRId64,
                   item->count, item->begin, total);
  if (!zt_is_utf8(item->name, strlen(item->name))) return zt_fail(ZT_INVALID, "its name is not UTF-8");
  return ZT_OK;
}

static int compare_names(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static zt_status check_names(const saving *s) {
  const char **names = zt_malloc(s->count * sizeof *names);
  ZT_CHECK_ALLOC(names);
  zt_status st = ZT_OK;
  for (size_t i = 0; i < s->count; i++) names[i] = s->items[i].name;
  qsort(names, s->count, sizeof *names, compare_names);
  for (size_t i = 1; i < s->count && st == ZT_OK; i++)
    if (strcmp(names[i - 1], names[i]) == 0) st = zt_fail(ZT_INVALID, "tensor '%s' is given twice", names[i]);
  zt_free(names);
  return st;
}

static zt_status lay_out(saving *s) {
  s->pieces = zt_malloc(s->count * sizeof *s->pieces);
  ZT_CHECK_ALLOC(s->pieces);
  for (size_t i = 0; i < s->count; i++) {
    const zt_checkpoint_item *item = &s->items[i];
    ZT_TRY(zt_wrap(check_item(item), "tensor '%s'", item->name));
    if (item->count == 0) continue;
    int64_t offset = s->nbytes + (ZT_CHECKPOINT_ALIGN - s->nbytes % ZT_CHECKPOINT_ALIGN) % ZT_CHECKPOINT_ALIGN;
    s->pieces[s->n_pieces++] = (piece){i, offset, item->begin, item->count};
    if (__builtin_add_overflow(offset, item->count * (int64_t)zt_dtype_nbytes(item->dtype), &s->nbytes) ||
        s->nbytes > INT64_MAX / 2)
      return zt_fail(ZT_INVALID, "there are more bytes than a file can have");
  }
  return ZT_OK;
}

static uint64_t hash_of_tensors(const saving *s) {
  uint64_t hash = s->count;
  for (size_t i = 0; i < s->count; i++) {
    const zt_checkpoint_item *item = &s->items[i];
    hash = zt_hash_bytes(zt_rng_mix(hash, item->dtype), item->name, strlen(item->name));
    hash = zt_hash_bytes(hash, item->shape, (size_t)item->ndim * sizeof *item->shape);
  }
  return hash;
}

/* --- rank 0 makes the unfinished folder */

static void set_temp(saving *s) { snprintf(s->temp, strlen(s->temp) + 1, "%s.tmp.%016" PRIx64, s->path, s->number); }

static zt_status find_step(saving *s) {
  json_t *json;
  ZT_TRY(zt_json_parse("the checkpoint's JSON", s->json, strlen(s->json), &json));
  const json_t *step = json_object_get(json, "step");
  zt_status st = ZT_OK;
  if (json_is_integer(step))
    s->step = json_integer_value(step);
  else
    st = zt_fail(ZT_INVALID, "the checkpoint's JSON is not an object with an integer 'step'");
  json_decref(json);
  return st;
}

/* What stands at the path may be a checkpoint, whole or not, or an empty folder. */
static zt_status check_target(const saving *s) {
  struct stat info;
  if (!*s->path) return zt_fail(ZT_INVALID, "the path is empty");
  if (lstat(s->path, &info) != 0) {
    if (errno == ENOENT) return ZT_OK;
    return zt_fail(ZT_IO, "cannot look at '%s': %s", s->path, strerror(errno));
  }
  if (S_ISDIR(info.st_mode)) return zt_checkpoint_check_folder(s->path);
  return zt_fail(ZT_IO, "'%s' is %s", s->path, S_ISLNK(info.st_mode) ? "a symbolic link" : "a file");
}

/* Makes missing folders above, and removes what earlier saves to this path that were killed have left. */
static zt_status prepare_parent(const saving *s) {
  char *parent = zt_checkpoint_parent(s->path);
  ZT_CHECK_ALLOC(parent);
  const char *slash = strrchr(s->path, '/');
  zt_status st = zt_make_dirs(parent);
  if (st == ZT_OK) zt_checkpoint_clean(parent, slash ? slash + 1 : s->path);
  zt_free(parent);
  return st;
}

static zt_status make_folder(saving *s) {
  ZT_TRY(find_step(s));
  ZT_TRY(check_target(s));
  ZT_TRY(prepare_parent(s));
  ZT_TRY(zt_checkpoint_draw(&s->number));
  set_temp(s);
  if (mkdir(s->temp, 0777) != 0) return zt_fail(ZT_IO, "cannot make the folder '%s': %s", s->temp, strerror(errno));
  s->is_made = true;
  s->lock = zt_checkpoint_lock(s->temp);
  return ZT_OK;
}

/* --- the first collective */

static zt_status prepare(saving *s) {
  ZT_TRY(check_names(s));
  ZT_TRY(lay_out(s));
  return s->rank == 0 ? make_folder(s) : ZT_OK;
}

static zt_status compare_openings(const saving *s) {
  for (int r = 0; r < s->size; r++) ZT_TRY(fail_as(s, r, &s->openings[r].v));
  for (int r = 1; r < s->size; r++) {
    const opening *a = &s->openings[0], *b = &s->openings[r];
    if (a->paths != b->paths) return zt_fail(ZT_INVALID, "rank %d/%d saves to another path than rank 0", r, s->size);
    if (a->tensors != b->tensors) return zt_fail(ZT_INVALID, "rank %d/%d lists other tensors than rank 0", r, s->size);
  }
  return ZT_OK;
}

static zt_status open_together(saving *s) {
  zt_label label = label_of(s);
  zt_status st = prepare(s);
  s->openings[s->rank] = (opening){.v = verdict_of(st),
                                   .number = s->number,
                                   .n_pieces = s->n_pieces,
                                   .nbytes = s->nbytes,
                                   .paths = zt_hash_bytes(0, s->path, strlen(s->path))};
  if (st == ZT_OK) s->openings[s->rank].tensors = hash_of_tensors(s);
  ZT_TRY(zt_all_gather(s->world, &label, s->openings, sizeof *s->openings));
  ZT_TRY(compare_openings(s));
  s->number = s->openings[0].number;
  set_temp(s);
  return ZT_OK;
}

/* --- writing: bytes go through a block, which gets its checksum as it is written */

typedef struct stream {
  zt_writer *file;
  char *block;
  size_t used, n_blocks;
  uint64_t *checksums;
} stream;

static zt_status flush(stream *f) {
  if (f->used == 0) return ZT_OK;
  f->checksums[f->n_blocks++] = zt_hash_bytes(0, f->block, f->used);
  ZT_TRY(zt_writer_write(f->file, f->block, f->used));
  f->used = 0;
  return ZT_OK;
}

/* Where the next bytes go: '*n' of the 'wanted' ones. */
static zt_status make_room(stream *f, size_t wanted, char **out, size_t *n) {
  if (f->used == ZT_CHECKPOINT_BLOCK) ZT_TRY(flush(f));
  size_t left = ZT_CHECKPOINT_BLOCK - f->used;
  *n = wanted < left ? wanted : left;
  *out = f->block + f->used;
  f->used += *n;
  return ZT_OK;
}

static zt_status align(stream *f) {
  char *out;
  size_t n;
  ZT_TRY(make_room(f, -f->used % ZT_CHECKPOINT_ALIGN, &out, &n)); /* blocks end aligned: one has room for all */
  memset(out, 0, n);
  return ZT_OK;
}

static zt_status write_item(const saving *s, stream *f, size_t i) {
  const zt_checkpoint_item *item = &s->items[i];
  size_t each = zt_dtype_nbytes(item->dtype), n;
  char *out;
  ZT_TRY(align(f));
  for (int64_t done = 0; done < item->count; done += (int64_t)(n / each)) {
    ZT_TRY(make_room(f, (size_t)(item->count - done) * each, &out, &n));
    if (item->data)
      memcpy(out, (const char *)item->data + (size_t)done * each, n);
    else
      ZT_TRY(s->source(s->user, i, item->begin + done, (int64_t)(n / each), out));
  }
  return ZT_OK;
}

static zt_status write_items(const saving *s, stream *f) {
  f->block = zt_malloc(ZT_CHECKPOINT_BLOCK);
  ZT_CHECK_ALLOC(f->block);
  zt_status st = ZT_OK;
  for (size_t k = 0; k < s->n_pieces && st == ZT_OK; k++) {
    const char *name = s->items[s->pieces[k].where].name;
    st = zt_wrap(write_item(s, f, s->pieces[k].where), "tensor '%s'", name);
  }
  if (st == ZT_OK) st = flush(f);
  zt_free(f->block);
  return st;
}

/* --- what each rank reports: a verdict, its pieces, its blocks' checksums */

static verdict *verdict_at(const saving *s, int rank) { return (verdict *)(s->reports + (size_t)rank * s->stride); }
static piece *pieces_of(const saving *s, int rank) { return (piece *)(verdict_at(s, rank) + 1); }
static uint64_t *checksums_of(const saving *s, int rank) {
  return (uint64_t *)(pieces_of(s, rank) + s->openings[rank].n_pieces);
}

/* --- this rank's file */

static void data_name(const saving *s, int rank, char name[64]) {
  snprintf(name, 64, "rank-%d.%016" PRIx64 ".bin", rank, s->number);
}

static zt_status write_data(const saving *s) {
  char name[64];
  stream f = {.checksums = checksums_of(s, s->rank)};
  data_name(s, s->rank, name);
  char *path = zt_checkpoint_path(s->temp, name);
  ZT_CHECK_ALLOC(path);
  zt_status st = zt_writer_open(path, &f.file);
  zt_free(path);
  ZT_TRY(st);
  st = write_items(s, &f);
  if (st == ZT_OK) return zt_writer_commit(f.file);
  zt_writer_abort(f.file);
  return st;
}

/* --- the second collective */

static zt_status report_together(saving *s) {
  for (int r = 0; r < s->size; r++) {
    size_t n = sizeof(verdict) + s->openings[r].n_pieces * sizeof(piece) +
               zt_checkpoint_blocks(s->openings[r].nbytes) * sizeof(uint64_t);
    if (n > s->stride) s->stride = n;
  }
  s->reports = zt_calloc((size_t)s->size, s->stride);
  ZT_CHECK_ALLOC(s->reports);
  for (size_t k = 0; k < s->n_pieces; k++) pieces_of(s, s->rank)[k] = s->pieces[k];
  *verdict_at(s, s->rank) = verdict_of(write_data(s));
  zt_label label = label_of(s);
  ZT_TRY(zt_all_gather(s->world, &label, s->reports, s->stride));
  for (int r = 0; r < s->size; r++) ZT_TRY(fail_as(s, r, verdict_at(s, r)));
  return ZT_OK;
}

/* --- the manifest */

static zt_status add_text(zt_buffer *b, const char *text) { return zt_json_add_string(b, text, strlen(text)); }

static zt_status add_file(const saving *s, int rank, zt_buffer *b) {
  char name[64];
  data_name(s, rank, name);
  ZT_TRY(zt_buffer_addf(b, "%s\n{\"name\":\"%s\",\"nbytes\":%" PRId64 ",\"checksums\":\"", rank ? "," : "", name,
                        s->openings[rank].nbytes));
  for (size_t i = 0; i < zt_checkpoint_blocks(s->openings[rank].nbytes); i++)
    ZT_TRY(zt_buffer_addf(b, "%016" PRIx64, checksums_of(s, rank)[i]));
  return zt_buffer_addf(b, "\"}");
}

/* Ranks list their pieces in the order of the tensors: each has a place from which its next ones follow. */
typedef struct merge {
  const saving *s;
  size_t *next; /* of each rank */
} merge;

/* The rank whose next piece is of this tensor, and begins at 'begin' (or anywhere, where that is -1); -1: none. */
static int rank_with(const merge *m, size_t i, int64_t begin) {
  for (int r = 0; r < m->s->size; r++) {
    const piece *p = pieces_of(m->s, r) + m->next[r];
    if (m->next[r] < m->s->openings[r].n_pieces && p->where == i && (begin < 0 || p->begin == begin)) return r;
  }
  return -1;
}

static zt_status fail_cover(const merge *m, size_t i, int64_t covered) {
  int r = rank_with(m, i, -1);
  int64_t begin = r < 0 ? covered : pieces_of(m->s, r)[m->next[r]].begin;
  return zt_fail(ZT_INVALID, "tensor '%s': element %" PRId64 " is %s", m->s->items[i].name,
                 begin < covered ? begin : covered, begin < covered ? "on two ranks" : "on no rank");
}

static zt_status add_pieces(merge *m, size_t i, zt_buffer *b) {
  int64_t covered = 0, total = 0;
  zt_checkpoint_elements(&m->s->items[i], &total);
  while (covered < total) {
    int r = rank_with(m, i, covered);
    if (r < 0) return fail_cover(m, i, covered);
    const piece *p = pieces_of(m->s, r) + m->next[r]++;
    ZT_TRY(zt_buffer_addf(b, "%s[%d,%" PRId64 ",%" PRId64 ",%" PRId64 "]", covered ? "," : "", r, p->offset, p->begin,
                          p->count));
    covered += p->count;
  }
  return rank_with(m, i, -1) < 0 ? ZT_OK : fail_cover(m, i, covered);
}

static zt_status add_tensor(merge *m, size_t i, zt_buffer *b) {
  const zt_checkpoint_item *item = &m->s->items[i];
  ZT_TRY(zt_buffer_addf(b, "%s\n{\"name\":", i ? "," : ""));
  ZT_TRY(add_text(b, item->name));
  ZT_TRY(zt_buffer_addf(b, ",\"dtype\":\"%s\",\"shape\":[", zt_dtype_name(item->dtype)));
  for (int d = 0; d < item->ndim; d++) ZT_TRY(zt_buffer_addf(b, "%s%" PRId64, d ? "," : "", item->shape[d]));
  ZT_TRY(zt_buffer_addf(b, "],\"pieces\":["));
  ZT_TRY(add_pieces(m, i, b));
  return zt_buffer_addf(b, "]}");
}

static zt_status compose(merge *m, zt_buffer *b) {
  const saving *s = m->s;
  ZT_TRY(zt_buffer_addf(b, ZT_CHECKPOINT_HEAD, (uint64_t)0));
  ZT_TRY(zt_buffer_addf(b, "\"format\":\"%s\",\"version\":%d,\"step\":%" PRId64 ",\n\"json\":", ZT_CHECKPOINT_FORMAT,
                        ZT_CHECKPOINT_VERSION, s->step));
  ZT_TRY(add_text(b, s->json));
  ZT_TRY(zt_buffer_addf(b, ",\n\"files\":["));
  for (int r = 0; r < s->size; r++) ZT_TRY(add_file(s, r, b));
  ZT_TRY(zt_buffer_addf(b, "],\n\"tensors\":["));
  for (size_t i = 0; i < s->count; i++) ZT_TRY(add_tensor(m, i, b));
  return zt_buffer_addf(b, "]}\n");
}

static zt_status write_text(const saving *s, zt_buffer *b) {
  char head[ZT_CHECKPOINT_HEAD_NBYTES + 1];
  size_t n = ZT_CHECKPOINT_HEAD_NBYTES;
  snprintf(head, sizeof head, ZT_CHECKPOINT_HEAD, zt_hash_bytes(0, b->data + n, b->nbytes - n));
  memcpy(b->data, head, n);
  char *path = zt_checkpoint_path(s->temp, ZT_CHECKPOINT_MANIFEST);
  ZT_CHECK_ALLOC(path);
  zt_status st = zt_file_write(path, b->data, b->nbytes);
  zt_free(path);
  return st;
}

static zt_status write_manifest(const saving *s) {
  zt_buffer b = {0};
  merge m = {s, zt_calloc((size_t)s->size, sizeof *m.next)};
  zt_status st = m.next ? compose(&m, &b) : ZT_NOMEM;
  if (st == ZT_OK) st = write_text(s, &b);
  zt_buffer_clear(&b);
  zt_free(m.next);
  return st;
}

/* --- the commit */

static zt_status fail_install(const saving *s) {
  return zt_fail(ZT_IO, "cannot rename '%s' to '%s': %s", s->temp, s->path, strerror(errno));
}

static zt_status move_file(const saving *s, const char *name) {
  char *from = zt_checkpoint_path(s->temp, name), *to = zt_checkpoint_path(s->path, name);
  zt_status st = !from || !to ? ZT_NOMEM : rename(from, to) != 0 ? fail_install(s) : ZT_OK;
  zt_free(from);
  zt_free(to);
  return st;
}

static zt_status move_data(const saving *s) {
  char name[64];
  for (int r = 0; r < s->size; r++) {
    data_name(s, r, name);
    ZT_TRY(move_file(s, name));
  }
  return ZT_OK;
}

/* Where the file system cannot exchange folders (NFS): the data moves into the old one, under names that only this save has;
** the manifest's rename is the commit. */
static zt_status install_within(const saving *s) {
  char *manifest = zt_checkpoint_path(s->path, ZT_CHECKPOINT_MANIFEST);
  ZT_CHECK_ALLOC(manifest);
  zt_status st = move_data(s);
  if (st == ZT_OK) st = zt_folder_sync(manifest);
  if (st == ZT_OK) st = move_file(s, ZT_CHECKPOINT_MANIFEST);
  if (st != ZT_OK)
    zt_checkpoint_sweep(s->path, s->number, false);
  else if ((st = zt_folder_sync(manifest)) == ZT_OK)
    zt_checkpoint_sweep(s->path, s->number, true);
  zt_free(manifest);
  return st;
}

static zt_status install(const saving *s) {
  if (rename(s->temp, s->path) == 0) return zt_folder_sync(s->path); /* nothing stood there, or an empty folder */
  if (errno != ENOTEMPTY && errno != EEXIST) return fail_install(s);
  if (renameat2(AT_FDCWD, s->temp, AT_FDCWD, s->path, RENAME_EXCHANGE) == 0) return zt_folder_sync(s->path);
  if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP) return fail_install(s);
  return install_within(s);
}

static zt_status commit(saving *s) {
  ZT_TRY(write_manifest(s));
  ZT_TRY(install(s));
  zt_checkpoint_remove(s->temp); /* the old one, where one stood */
  return ZT_OK;
}

/* --- the third collective */

static zt_status commit_together(saving *s) {
  zt_label label = label_of(s);
  verdict v = {0};
  if (s->rank == 0) v = verdict_of(commit(s));
  ZT_TRY(zt_broadcast(s->world, &label, &v, sizeof v, 0));
  return fail_as(s, 0, &v);
}

static zt_status save_together(saving *s) {
  ZT_TRY(open_together(s));
  ZT_TRY(report_together(s));
  return commit_together(s);
}

static char *without_slashes(const char *path) {
  char *copy = zt_strdup(path);
  for (size_t n = copy ? strlen(copy) : 0; n > 1 && copy[n - 1] == '/'; n--) copy[n - 1] = 0;
  return copy;
}

static void end_saving(saving *s, zt_status st) {
  if (st != ZT_OK && s->is_made) zt_checkpoint_remove(s->temp);
  if (s->lock >= 0) close(s->lock);
  zt_free(s->path);
  zt_free(s->temp);
  zt_free(s->openings);
  zt_free(s->pieces);
  zt_free(s->reports);
}

zt_status zt_checkpoint_save(zt_world *world, const char *path, const zt_checkpoint_item *items, size_t count,
                             const char *json, zt_checkpoint_source source, void *user) {
  saving s = {.world = world, .items = items, .count = count, .json = json, .source = source, .user = user, .lock = -1};
  s.rank = zt_world_rank(world), s.size = zt_world_size(world);
  s.path = without_slashes(path);
  if (s.path) s.temp = zt_checkpoint_temp(s.path, 0);
  if (s.temp) s.openings = zt_calloc((size_t)s.size, sizeof *s.openings);
  zt_status st = s.openings ? save_together(&s) : ZT_NOMEM;
  if (st != ZT_PEER) zt_wrap(st, "cannot save the checkpoint '%s'", path);
  end_saving(&s, st);
  return st;
}
