/* checkpoint.c - writing. Every rank writes its parts into a folder beside the target, and says in a file where they lie;
** rank 0 puts these together, checks that every element is there once, and renames. Three collectives: the folder's name,
** whether all parts are there, whether it was committed. */
#include "core/train/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/hash.h"
#include "core/base/mem.h"
#include "core/io/json.h"
#include "core/train/checkpoint_parts.h"

uint64_t zt_checkpoint_checksum(uint64_t number, const void *data, size_t nbytes) {
  return zt_hash_bytes(number + 1, data, nbytes);
}

char *zt_checkpoint_path(const char *folder, const char *name) {
  size_t nbytes = strlen(folder) + strlen(name) + 2;
  char *path = zt_malloc(nbytes);
  if (path) snprintf(path, nbytes, "%s/%s", folder, name);
  return path;
}

/* --- all ranks as one: the first that failed decides */

typedef struct verdict {
  int32_t status;
  char message[500];
} verdict;

static verdict verdict_of(zt_status st) {
  verdict v = {.status = (int32_t)st};
  if (st != ZT_OK) snprintf(v.message, sizeof v.message, "%s", zt_message());
  return v;
}

static zt_status agree(zt_world *w, const char *what, zt_status st) {
  int size = zt_world_size(w), rank = zt_world_rank(w);
  verdict *all = zt_calloc((size_t)size, sizeof *all);
  ZT_CHECK_ALLOC(all);
  all[rank] = verdict_of(st);
  zt_label label = zt_label_here(w, what, -1, NULL);
  st = zt_all_gather(w, &label, all, sizeof *all);
  for (int r = 0; r < size && st == ZT_OK; r++) {
    if (all[r].status == ZT_OK) continue;
    all[r].message[sizeof all[r].message - 1] = 0;
    st = r == rank ? zt_fail((zt_status)all[r].status, "%s", all[r].message)
                   : zt_fail((zt_status)all[r].status, "rank %d: %s", r, all[r].message);
  }
  zt_free(all);
  return st;
}

/* --- the folder beside the target */

typedef struct beginning {
  verdict v;
  uint64_t token;
} beginning;

static char *temp_name(const char *path, uint64_t token) {
  size_t nbytes = strlen(path) + 32;
  char *name = zt_malloc(nbytes);
  if (name) snprintf(name, nbytes, "%s.tmp.%016" PRIx64, path, token);
  return name;
}

static zt_status check_target(const char *path) {
  struct stat info;
  if (stat(path, &info) == 0 && !S_ISDIR(info.st_mode))
    return zt_fail(ZT_IO, "cannot write the checkpoint '%s': a file is there", path);
  return ZT_OK;
}

static zt_status make_parent(const char *path) {
  char *parent = zt_strdup(path);
  ZT_CHECK_ALLOC(parent);
  char *slash = strrchr(parent, '/');
  zt_status st = ZT_OK;
  if (slash && slash != parent) {
    *slash = 0;
    st = zt_make_dirs(parent);
  }
  zt_free(parent);
  return st;
}

static zt_status make_temp(const char *path, uint64_t *token) {
  ZT_TRY(check_target(path));
  ZT_TRY(make_parent(path));
  if (getrandom(token, sizeof *token, 0) != sizeof *token)
    return zt_fail(ZT_IO, "the system gives no random number: %s", strerror(errno));
  char *temp = temp_name(path, *token);
  ZT_CHECK_ALLOC(temp);
  zt_status st = ZT_OK;
  if (mkdir(temp, 0777) != 0) st = zt_fail(ZT_IO, "cannot make the folder '%s': %s", temp, strerror(errno));
  zt_free(temp);
  return st;
}

/* Rank 0 makes the folder; all learn its name. */
static zt_status begin(zt_world *w, const char *path, char **temp) {
  beginning b = {0};
  zt_label label = zt_label_here(w, "folder of checkpoint", -1, NULL);
  if (zt_world_rank(w) == 0) b.v = verdict_of(make_temp(path, &b.token));
  ZT_TRY(zt_broadcast(w, &label, &b, sizeof b, 0));
  b.v.message[sizeof b.v.message - 1] = 0;
  if (b.v.status != ZT_OK) return zt_fail((zt_status)b.v.status, "%s", b.v.message);
  *temp = temp_name(path, b.token);
  return *temp ? ZT_OK : ZT_NOMEM;
}

/* --- a rank's part */

typedef struct part {
  zt_writer *file;
  char *block; /* bytes not yet written */
  size_t n_block, nbytes;
  uint64_t n_blocks;
  zt_buffer checksums, pieces; /* JSON, without the brackets */
} part;

static zt_status flush(part *p) {
  if (p->n_block == 0) return ZT_OK;
  uint64_t checksum = zt_checkpoint_checksum(p->n_blocks, p->block, p->n_block);
  ZT_TRY(zt_buffer_addf(&p->checksums, "%s\"%016" PRIx64 "\"", p->n_blocks ? "," : "", checksum));
  ZT_TRY(zt_writer_write(p->file, p->block, p->n_block));
  p->n_blocks++, p->n_block = 0;
  return ZT_OK;
}

/* Room for up to 'wanted' bytes at the end; '*room' of them can be had now. */
static zt_status reserve(part *p, size_t wanted, size_t *room) {
  if (p->n_block == ZT_CHECKPOINT_BLOCK) ZT_TRY(flush(p));
  size_t left = ZT_CHECKPOINT_BLOCK - p->n_block;
  *room = wanted < left ? wanted : left;
  return ZT_OK;
}

static void added(part *p, size_t nbytes) { p->n_block += nbytes, p->nbytes += nbytes; }

static zt_status pad(part *p) {
  size_t n = (ZT_CHECKPOINT_ALIGN - p->nbytes % ZT_CHECKPOINT_ALIGN) % ZT_CHECKPOINT_ALIGN, room;
  ZT_TRY(reserve(p, n, &room)); /* blocks are a multiple of the alignment: it fits */
  memset(p->block + p->n_block, 0, n);
  added(p, n);
  return ZT_OK;
}

typedef struct saving {
  const zt_checkpoint_item *items;
  size_t count;
  zt_checkpoint_source source;
  void *user;
} saving;

static zt_status add_elements(part *p, const saving *s, size_t i) {
  const zt_checkpoint_item *item = &s->items[i];
  size_t each = zt_dtype_nbytes(item->dtype), room;
  for (int64_t done = 0; done < item->count; done += (int64_t)(room / each)) {
    ZT_TRY(reserve(p, (size_t)(item->count - done) * each, &room));
    char *out = p->block + p->n_block;
    if (item->data)
      memcpy(out, (const char *)item->data + (size_t)done * each, room);
    else
      ZT_TRY(s->source(s->user, i, item->begin + done, (int64_t)(room / each), out));
    added(p, room);
  }
  return ZT_OK;
}

static zt_status add_item(part *p, const saving *s, size_t i) {
  const zt_checkpoint_item *item = &s->items[i];
  if (item->count == 0) return ZT_OK;
  ZT_TRY(pad(p));
  ZT_TRY(zt_buffer_addf(&p->pieces, "%s[%zu,%zu,%" PRId64 ",%" PRId64 "]", p->pieces.nbytes ? "," : "", i, p->nbytes,
                        item->begin, item->count));
  return add_elements(p, s, i);
}

static zt_status write_data(part *p, const saving *s) {
  for (size_t i = 0; i < s->count; i++) ZT_TRY(zt_wrap(add_item(p, s, i), "'%s'", s->items[i].name));
  return flush(p);
}

static char *part_path(const char *temp, int rank, const char *ending) {
  char name[48];
  snprintf(name, sizeof name, "rank-%d.%s", rank, ending);
  return zt_checkpoint_path(temp, name);
}

static zt_status write_index(const part *p, const char *path) {
  zt_buffer text = {0};
  zt_status st = zt_buffer_addf(&text, "{\"nbytes\":%zu,\"checksums\":[%s],\"pieces\":[%s]}\n", p->nbytes,
                                p->checksums.data ? p->checksums.data : "", p->pieces.data ? p->pieces.data : "");
  if (st == ZT_OK) st = zt_file_write(path, text.data, text.nbytes);
  zt_buffer_clear(&text);
  return st;
}

static zt_status write_files(part *p, const saving *s, const char *data_path, const char *index_path) {
  if (!data_path || !index_path || !p->block) return ZT_NOMEM;
  ZT_TRY(zt_writer_open(data_path, &p->file));
  zt_status st = write_data(p, s);
  if (st == ZT_OK)
    st = zt_writer_commit(p->file);
  else
    zt_writer_abort(p->file);
  return st == ZT_OK ? write_index(p, index_path) : st;
}

static zt_status write_part(zt_world *w, const saving *s, const char *temp) {
  part p = {.block = zt_malloc(ZT_CHECKPOINT_BLOCK)};
  int rank = zt_world_rank(w);
  char *data_path = part_path(temp, rank, "bin"), *index_path = part_path(temp, rank, "json");
  zt_status st = write_files(&p, s, data_path, index_path);
  zt_free(data_path);
  zt_free(index_path);
  zt_free(p.block);
  zt_buffer_clear(&p.checksums);
  zt_buffer_clear(&p.pieces);
  return st;
}

/* --- the manifest */

typedef struct piece {
  size_t item;
  int file;
  json_int_t offset, begin, count;
} piece;

typedef struct manifest {
  const saving *s;
  int n_ranks;
  json_t **index; /* of each rank */
  piece *pieces;
  size_t n_pieces;
} manifest;

static int by_place(const void *a, const void *b) {
  const piece *x = a, *y = b;
  if (x->item != y->item) return x->item < y->item ? -1 : 1;
  return x->begin < y->begin ? -1 : x->begin > y->begin;
}

static zt_status read_indices(manifest *m, const char *temp) {
  m->index = zt_calloc((size_t)m->n_ranks, sizeof *m->index);
  ZT_CHECK_ALLOC(m->index);
  for (int r = 0; r < m->n_ranks; r++) {
    char *path = part_path(temp, r, "json");
    ZT_CHECK_ALLOC(path);
    zt_status st = zt_json_load(path, &m->index[r]);
    if (st == ZT_OK) unlink(path);
    zt_free(path);
    ZT_TRY(st);
    m->n_pieces += json_array_size(json_object_get(m->index[r], "pieces"));
  }
  return ZT_OK;
}

static zt_status collect_pieces(manifest *m) {
  m->pieces = zt_calloc(m->n_pieces, sizeof *m->pieces);
  ZT_CHECK_ALLOC(m->pieces);
  size_t n = 0, i;
  for (int r = 0; r < m->n_ranks; r++) {
    json_t *row;
    json_array_foreach(json_object_get(m->index[r], "pieces"), i, row) m->pieces[n++] =
        (piece){(size_t)json_integer_value(json_array_get(row, 0)), r, json_integer_value(json_array_get(row, 1)),
                json_integer_value(json_array_get(row, 2)), json_integer_value(json_array_get(row, 3))};
  }
  qsort(m->pieces, m->n_pieces, sizeof *m->pieces, by_place);
  return ZT_OK;
}

static zt_status add_files(const manifest *m, const char *json, zt_buffer *b) {
  uint64_t checksum = zt_checkpoint_checksum(0, json, strlen(json));
  ZT_TRY(zt_buffer_addf(b, "\"files\":[{\"name\":\"state.json\",\"nbytes\":%zu,\"checksums\":[", strlen(json)));
  if (*json) ZT_TRY(zt_buffer_addf(b, "\"%016" PRIx64 "\"", checksum));
  ZT_TRY(zt_buffer_addf(b, "]}"));
  for (int r = 0; r < m->n_ranks; r++) {
    ZT_TRY(zt_buffer_addf(b, ",\n{\"name\":\"rank-%d.bin\",\"nbytes\":%lld,\"checksums\":[", r,
                          (long long)json_integer_value(json_object_get(m->index[r], "nbytes"))));
    size_t i;
    json_t *text;
    json_array_foreach(json_object_get(m->index[r], "checksums"), i, text)
        ZT_TRY(zt_buffer_addf(b, "%s\"%s\"", i ? "," : "", json_string_value(text)));
    ZT_TRY(zt_buffer_addf(b, "]}"));
  }
  return zt_buffer_addf(b, "],\n");
}

/* The pieces of one item, which have to cover it: every element once. Moves *at behind them. */
static zt_status add_pieces(const manifest *m, size_t i, size_t *at, zt_buffer *b) {
  const zt_checkpoint_item *item = &m->s->items[i];
  int64_t covered = 0, total = zt_checkpoint_items_count(item);
  for (bool first = true; *at < m->n_pieces && m->pieces[*at].item == i; ++*at, first = false) {
    const piece *p = &m->pieces[*at];
    if (p->begin != covered)
      return zt_fail(ZT_INVALID, "'%s': element %lld is %s", item->name,
                     (long long)(p->begin < covered ? p->begin : covered),
                     p->begin < covered ? "of two ranks" : "of none");
    ZT_TRY(zt_buffer_addf(b, "%s[%d,%lld,%lld,%lld]", first ? "" : ",", p->file + 1, (long long)p->offset,
                          (long long)p->begin, (long long)p->count));
    covered += p->count;
  }
  if (covered == total) return ZT_OK;
  return zt_fail(ZT_INVALID, "'%s': %lld elements, not %lld", item->name, (long long)covered, (long long)total);
}

static zt_status add_tensors(const manifest *m, zt_buffer *b) {
  size_t at = 0;
  ZT_TRY(zt_buffer_addf(b, "\"tensors\":["));
  for (size_t i = 0; i < m->s->count; i++) {
    const zt_checkpoint_item *item = &m->s->items[i];
    ZT_TRY(zt_buffer_addf(b, "%s\n{\"name\":", i ? "," : ""));
    ZT_TRY(zt_json_add_string(b, item->name, strlen(item->name)));
    ZT_TRY(zt_buffer_addf(b, ",\"dtype\":\"%s\",\"shape\":[", zt_dtype_name(item->dtype)));
    for (int d = 0; d < item->ndim; d++) ZT_TRY(zt_buffer_addf(b, "%s%lld", d ? "," : "", (long long)item->shape[d]));
    ZT_TRY(zt_buffer_addf(b, "],\"pieces\":["));
    ZT_TRY(add_pieces(m, i, &at, b));
    ZT_TRY(zt_buffer_addf(b, "]}"));
  }
  return zt_buffer_addf(b, "]}\n");
}

/* The caller's "step", by which the newest is found. */
static zt_status read_step(const char *json, json_int_t *step) {
  json_t *state;
  ZT_TRY(zt_json_parse("the checkpoint's state", json, strlen(json), &state));
  *step = json_integer_value(json_object_get(state, "step"));
  json_decref(state);
  return ZT_OK;
}

static zt_status compose(const manifest *m, const char *json, zt_buffer *b) {
  json_int_t step;
  ZT_TRY(read_step(json, &step));
  ZT_TRY(zt_buffer_addf(b, "{\"format\":\"%s\",\"version\":%d,\"step\":%lld,\n", ZT_CHECKPOINT_FORMAT,
                        ZT_CHECKPOINT_VERSION, (long long)step));
  ZT_TRY(add_files(m, json, b));
  return add_tensors(m, b);
}

static zt_status write_in(const char *temp, const char *name, const void *data, size_t nbytes) {
  char *path = zt_checkpoint_path(temp, name);
  ZT_CHECK_ALLOC(path);
  zt_status st = zt_file_write(path, data, nbytes);
  zt_free(path);
  return st;
}

static zt_status write_manifest(const char *temp, const zt_buffer *body) {
  zt_buffer text = {0};
  uint64_t checksum = zt_checkpoint_checksum(0, body->data, body->nbytes);
  zt_status st = zt_buffer_addf(&text, "%016" PRIx64 "\n", checksum);
  if (st == ZT_OK) st = zt_buffer_add(&text, body->data, body->nbytes);
  if (st == ZT_OK) st = write_in(temp, "manifest.json", text.data, text.nbytes);
  zt_buffer_clear(&text);
  return st;
}

static zt_status put_together(zt_world *w, const saving *s, const char *temp, const char *json) {
  manifest m = {.s = s, .n_ranks = zt_world_size(w)};
  zt_buffer body = {0};
  zt_status st = read_indices(&m, temp);
  if (st == ZT_OK) st = collect_pieces(&m);
  if (st == ZT_OK) st = compose(&m, json, &body);
  if (st == ZT_OK) st = write_in(temp, "state.json", json, strlen(json));
  if (st == ZT_OK) st = write_manifest(temp, &body);
  for (int r = 0; r < m.n_ranks && m.index; r++) json_decref(m.index[r]);
  zt_free(m.index);
  zt_free(m.pieces);
  zt_buffer_clear(&body);
  return st;
}

/* --- the commit */

static zt_status sync_parent(const char *path) {
  char *parent = zt_strdup(path);
  ZT_CHECK_ALLOC(parent);
  char *slash = strrchr(parent, '/');
  if (slash) slash[slash == parent] = 0;
  int fd = open(slash ? parent : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  zt_status st = ZT_OK;
  if (fd < 0 || (fsync(fd) != 0 && errno != EINVAL))
    st = zt_fail(ZT_IO, "cannot sync the folder of '%s': %s", path, strerror(errno));
  if (fd >= 0) close(fd);
  zt_free(parent);
  return st;
}

/* Where the file system cannot exchange: the old one steps aside, complete under another name, which 'latest' knows. */
static zt_status step_aside(const char *path, const char *temp) {
  size_t nbytes = strlen(path) + 8;
  char *old = zt_malloc(nbytes);
  ZT_CHECK_ALLOC(old);
  snprintf(old, nbytes, "%s.old", path);
  zt_checkpoint_remove(old);
  zt_status st = ZT_OK;
  if (rename(path, old) != 0 || rename(temp, path) != 0)
    st = zt_fail(ZT_IO, "cannot rename '%s': %s", temp, strerror(errno));
  else
    zt_checkpoint_remove(old);
  zt_free(old);
  return st;
}

static zt_status commit(const char *path, const char *temp) {
  if (rename(temp, path) == 0) return sync_parent(path); /* nothing was there, or an empty folder */
  if (errno != ENOTEMPTY && errno != EEXIST)
    return zt_fail(ZT_IO, "cannot rename '%s' to '%s': %s", temp, path, strerror(errno));
  if (renameat2(AT_FDCWD, temp, AT_FDCWD, path, RENAME_EXCHANGE) != 0) {
    if (errno != EINVAL && errno != ENOSYS)
      return zt_fail(ZT_IO, "cannot exchange '%s' and '%s': %s", temp, path, strerror(errno));
    ZT_TRY(step_aside(path, temp));
  }
  ZT_TRY(sync_parent(path));
  zt_checkpoint_remove(temp);
  return ZT_OK;
}

static zt_status save_in(zt_world *w, const saving *s, const char *path, const char *temp, const char *json) {
  ZT_TRY(agree(w, "parts of checkpoint", write_part(w, s, temp)));
  zt_status st = ZT_OK;
  if (zt_world_rank(w) == 0) {
    st = put_together(w, s, temp, json);
    if (st == ZT_OK) st = commit(path, temp);
  }
  return agree(w, "commit of checkpoint", st);
}

zt_status zt_checkpoint_save(zt_world *world, const char *path, const zt_checkpoint_item *items, size_t count,
                             const char *json, zt_checkpoint_source source, void *user) {
  saving s = {items, count, source, user};
  char *temp = NULL;
  zt_status st = begin(world, path, &temp);
  if (st == ZT_OK) st = save_in(world, &s, path, temp, json);
  if (st != ZT_OK && temp) zt_checkpoint_remove(temp);
  zt_free(temp);
  return zt_wrap(st, "saving '%s'", path);
}
