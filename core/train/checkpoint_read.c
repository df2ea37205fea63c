/* checkpoint_read.c - reading. The manifest is a stranger's: names, numbers and places are checked before they are used.
** What is read of a file is read by blocks, and a block is verified before a byte of it is given. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/hash.h"
#include "core/base/mem.h"
#include "core/io/json.h"
#include "core/train/checkpoint_parts.h"

typedef zt_checkpoint_piece piece;

enum { N_DIGITS = 16, N_CACHED = 2 /* a tensor's range may go on in another file */ };
static const size_t max_manifest_nbytes = (size_t)1 << 30;

typedef struct file {
  char *path; /* owned */
  int64_t nbytes;
  uint64_t *checksums; /* owned; of each block */
} file;

typedef struct block {
  char *data; /* owned; NULL: not yet used */
  size_t file, number;
  bool is_valid;
} block;

struct zt_checkpoint {
  char *path, *manifest, *json; /* owned; 'manifest' is its path */
  int64_t step;
  file *files;
  size_t n_files;
  zt_checkpoint_item *items; /* their names are owned */
  size_t n_items;
  piece *pieces; /* of all items, in order */
  size_t *first; /* of item i: first[i] .. first[i + 1] */
  size_t *by_name;
  block cached[N_CACHED];
  unsigned turn; /* the one to be used next */
};

/* --- blocks */

static size_t block_nbytes(const file *f, size_t number) {
  int64_t left = f->nbytes - (int64_t)number * ZT_CHECKPOINT_BLOCK;
  return left < ZT_CHECKPOINT_BLOCK ? (size_t)left : ZT_CHECKPOINT_BLOCK;
}

static zt_status read_block(const file *f, size_t number, void *out) {
  size_t at = number * ZT_CHECKPOINT_BLOCK, nbytes = block_nbytes(f, number);
  ZT_TRY(zt_file_read_at(f->path, at, out, nbytes));
  if (zt_hash_bytes(0, out, nbytes) == f->checksums[number]) return ZT_OK;
  return zt_fail(ZT_FORMAT, "'%s' is damaged: bytes %zu to %zu do not have their checksum", f->path, at,
                 at + nbytes - 1);
}

static zt_status find_block(zt_checkpoint *ck, size_t number_of_file, size_t number, const char **data) {
  for (int i = 0; i < N_CACHED; i++) {
    const block *b = &ck->cached[i];
    *data = b->data;
    if (b->is_valid && b->file == number_of_file && b->number == number) return ZT_OK;
  }
  block *b = &ck->cached[ck->turn++ % N_CACHED];
  if (!b->data) b->data = zt_malloc(ZT_CHECKPOINT_BLOCK);
  ZT_CHECK_ALLOC(b->data);
  b->file = number_of_file, b->number = number;
  b->is_valid = false;
  ZT_TRY(read_block(&ck->files[number_of_file], number, b->data));
  b->is_valid = true;
  *data = b->data;
  return ZT_OK;
}

static zt_status read_bytes(zt_checkpoint *ck, size_t number_of_file, int64_t at, int64_t nbytes, char *out) {
  const file *f = &ck->files[number_of_file];
  while (nbytes > 0) {
    const char *data;
    size_t number = (size_t)(at / ZT_CHECKPOINT_BLOCK), within = (size_t)(at % ZT_CHECKPOINT_BLOCK);
    size_t n = block_nbytes(f, number) - within;
    if ((int64_t)n > nbytes) n = (size_t)nbytes;
    if (n == block_nbytes(f, number)) {
      ZT_TRY(read_block(f, number, out));
    } else {
      ZT_TRY(find_block(ck, number_of_file, number, &data));
      memcpy(out, data + within, n);
    }
    out += n, at += (int64_t)n, nbytes -= (int64_t)n;
  }
  return ZT_OK;
}

zt_status zt_checkpoint_read(zt_checkpoint *ck, const zt_checkpoint_item *item, int64_t begin, int64_t count,
                             void *out) {
  int64_t each = (int64_t)zt_dtype_nbytes(item->dtype);
  if (begin < 0 || count < 0 || begin > item->count || count > item->count - begin)
    return zt_fail(ZT_INVALID, "'%s': there are no %" PRId64 " elements from %" PRId64 " on in tensor '%s' of %" PRId64,
                   ck->path, count, begin, item->name, item->count);
  const size_t *first = ck->first + (item - ck->items);
  for (const piece *p = ck->pieces + first[0]; p < ck->pieces + first[1]; p++) {
    int64_t from = begin > p->begin ? begin : p->begin, to = p->begin + p->count;
    if (to > begin + count) to = begin + count;
    if (from >= to) continue;
    char *place = (char *)out + (from - begin) * each;
    zt_status st = read_bytes(ck, p->where, p->offset + (from - p->begin) * each, (to - from) * each, place);
    ZT_TRY(zt_wrap(st, "tensor '%s', elements %" PRId64 " to %" PRId64, item->name, from, to - 1));
  }
  return ZT_OK;
}

/* The name of a tensor of which a part lies in a block; NULL: none does. */
static const char *name_in_block(const zt_checkpoint *ck, size_t number_of_file, size_t number) {
  int64_t begin = (int64_t)number * ZT_CHECKPOINT_BLOCK, end = begin + ZT_CHECKPOINT_BLOCK;
  for (size_t i = 0; i < ck->n_items; i++) {
    int64_t each = (int64_t)zt_dtype_nbytes(ck->items[i].dtype);
    for (const piece *p = ck->pieces + ck->first[i]; p < ck->pieces + ck->first[i + 1]; p++)
      if (p->where == number_of_file && p->offset < end && p->offset + p->count * each > begin)
        return ck->items[i].name;
  }
  return NULL;
}

static zt_status verify_file(zt_checkpoint *ck, size_t i, void *room) {
  for (size_t number = 0; number < zt_checkpoint_blocks(ck->files[i].nbytes); number++) {
    zt_status st = read_block(&ck->files[i], number, room);
    if (st == ZT_OK) continue;
    const char *name = name_in_block(ck, i, number);
    return name ? zt_wrap(st, "tensor '%s'", name) : st;
  }
  return ZT_OK;
}

zt_status zt_checkpoint_verify(zt_checkpoint *ck) {
  void *room = zt_malloc(ZT_CHECKPOINT_BLOCK);
  ZT_CHECK_ALLOC(room);
  zt_status st = ZT_OK;
  for (size_t i = 0; i < ck->n_files && st == ZT_OK; i++) st = verify_file(ck, i, room);
  zt_free(room);
  return st;
}

/* --- the manifest's files */

static zt_status get_count(const json_t *value, const char *what, int64_t *out) {
  *out = json_integer_value(value);
  if (json_is_integer(value) && *out >= 0) return ZT_OK;
  return zt_fail(ZT_FORMAT, "%s is not a whole number from 0 on", what);
}

static zt_status parse_checksum(const char *digits, uint64_t *out) {
  *out = 0;
  for (int i = 0; i < N_DIGITS; i++) {
    static const char hex[] = "0123456789abcdef";
    const char *found = memchr(hex, digits[i], N_DIGITS);
    if (!found) return zt_fail(ZT_FORMAT, "its checksums are not hexadecimal");
    *out = *out << 4 | (uint64_t)(found - hex);
  }
  return ZT_OK;
}

static zt_status take_checksums(file *f, const json_t *value) {
  const char *text = json_string_value(value);
  size_t n = zt_checkpoint_blocks(f->nbytes);
  if (!text || json_string_length(value) % N_DIGITS || json_string_length(value) / N_DIGITS != n)
    return zt_fail(ZT_FORMAT, "its %" PRId64 " bytes do not have %zu checksums", f->nbytes, n);
  f->checksums = zt_malloc(n * sizeof *f->checksums);
  ZT_CHECK_ALLOC(f->checksums);
  for (size_t i = 0; i < n; i++) ZT_TRY(parse_checksum(text + i * N_DIGITS, &f->checksums[i]));
  return ZT_OK;
}

static zt_status check_size(const file *f) {
  size_t nbytes;
  ZT_TRY(zt_file_nbytes(f->path, &nbytes));
  if (nbytes == (size_t)f->nbytes) return ZT_OK;
  return zt_fail(ZT_FORMAT, "'%s' is damaged: it has %zu bytes, not %" PRId64, f->path, nbytes, f->nbytes);
}

static zt_status take_file(const zt_checkpoint *ck, const json_t *row, file *f) {
  const char *name = json_string_value(json_object_get(row, "name"));
  if (!name || !*name || *name == '.' || strchr(name, '/'))
    return zt_fail(ZT_FORMAT, "'%.64s' is not the plain name of a file", name ? name : "");
  f->path = zt_checkpoint_path(ck->path, name);
  ZT_CHECK_ALLOC(f->path);
  ZT_TRY(get_count(json_object_get(row, "nbytes"), "'nbytes'", &f->nbytes));
  return take_checksums(f, json_object_get(row, "checksums"));
}

static zt_status take_files(zt_checkpoint *ck, const json_t *list) {
  if (!json_is_array(list)) return zt_fail(ZT_FORMAT, "there is no list 'files'");
  ck->files = zt_calloc(json_array_size(list), sizeof *ck->files);
  ZT_CHECK_ALLOC(ck->files);
  ck->n_files = json_array_size(list);
  for (size_t i = 0; i < ck->n_files; i++)
    ZT_TRY(zt_wrap(take_file(ck, json_array_get(list, i), &ck->files[i]), "file %zu", i));
  return ZT_OK;
}

/* --- the manifest's tensors */

static zt_status take_shape(const json_t *shape, zt_checkpoint_item *item) {
  if (!json_is_array(shape) || json_array_size(shape) > ZT_SAFETENSORS_MAX_DIM)
    return zt_fail(ZT_FORMAT, "its 'shape' is not a list of up to %d sizes", ZT_SAFETENSORS_MAX_DIM);
  item->ndim = (int)json_array_size(shape);
  for (int d = 0; d < item->ndim; d++) ZT_TRY(get_count(json_array_get(shape, (size_t)d), "a size", &item->shape[d]));
  if (zt_checkpoint_elements(item, &item->count)) return ZT_OK;
  return zt_fail(ZT_FORMAT, "its shape has more elements than can be addressed");
}

static zt_status take_piece(const zt_checkpoint *ck, const json_t *row, const zt_checkpoint_item *item, piece *p) {
  int64_t number, nbytes, end, each = (int64_t)zt_dtype_nbytes(item->dtype);
  ZT_TRY(get_count(json_array_get(row, 0), "a piece's file", &number));
  ZT_TRY(get_count(json_array_get(row, 1), "a piece's offset", &p->offset));
  ZT_TRY(get_count(json_array_get(row, 2), "a piece's begin", &p->begin));
  ZT_TRY(get_count(json_array_get(row, 3), "a piece's count", &p->count));
  p->where = (uint64_t)number;
  if (p->where >= ck->n_files) return zt_fail(ZT_FORMAT, "a piece is in file %" PRId64 " of %zu", number, ck->n_files);
  if (__builtin_mul_overflow(p->count, each, &nbytes) || __builtin_add_overflow(p->offset, nbytes, &end) ||
      end > ck->files[number].nbytes)
    return zt_fail(ZT_FORMAT, "a piece reaches past the end of file %" PRId64, number);
  return ZT_OK;
}

static zt_status take_pieces(zt_checkpoint *ck, const json_t *list, const zt_checkpoint_item *item, size_t *n) {
  int64_t covered = 0;
  size_t i;
  json_t *row;
  json_array_foreach(list, i, row) {
    piece *p = &ck->pieces[*n];
    ZT_TRY(take_piece(ck, row, item, p));
    if (p->begin != covered || p->count == 0 || p->count > item->count - covered)
      return zt_fail(ZT_FORMAT, "a piece has %" PRId64 " elements from %" PRId64 " on, after %" PRId64 " of %" PRId64,
                     p->count, p->begin, covered, item->count);
    covered += p->count;
    ++*n;
  }
  if (covered == item->count) return ZT_OK;
  return zt_fail(ZT_FORMAT, "its pieces have %" PRId64 " elements of %" PRId64, covered, item->count);
}

static zt_status take_tensor(zt_checkpoint *ck, const json_t *row, zt_checkpoint_item *item, size_t *n_pieces) {
  const char *dtype = json_string_value(json_object_get(row, "dtype"));
  if (!dtype || !zt_dtype_from_name(dtype, &item->dtype))
    return zt_fail(ZT_FORMAT, "its dtype is '%.32s'", dtype ? dtype : "");
  ZT_TRY(take_shape(json_object_get(row, "shape"), item));
  return take_pieces(ck, json_object_get(row, "pieces"), item, n_pieces);
}

static zt_status take_named_tensor(zt_checkpoint *ck, const json_t *row, size_t i, size_t *n_pieces) {
  const char *name = json_string_value(json_object_get(row, "name"));
  if (!name) return zt_fail(ZT_FORMAT, "tensor %zu has no name", i);
  ck->items[i].name = zt_strdup(name);
  ZT_CHECK_ALLOC(ck->items[i].name);
  return zt_wrap(take_tensor(ck, row, &ck->items[i], n_pieces), "tensor '%s'", name);
}

static zt_status allocate_tensors(zt_checkpoint *ck, const json_t *list) {
  size_t n = json_array_size(list), n_pieces = 0, i;
  json_t *row;
  json_array_foreach(list, i, row) n_pieces += json_array_size(json_object_get(row, "pieces"));
  ck->items = zt_calloc(n, sizeof *ck->items);
  ck->first = zt_calloc(n + 1, sizeof *ck->first);
  ck->by_name = zt_calloc(n, sizeof *ck->by_name);
  ck->pieces = zt_calloc(n_pieces, sizeof *ck->pieces);
  if (!ck->items || !ck->first || !ck->by_name || !ck->pieces) return ZT_NOMEM;
  ck->n_items = n;
  return ZT_OK;
}

static zt_status take_tensors(zt_checkpoint *ck, const json_t *list) {
  size_t n_pieces = 0;
  if (!json_is_array(list)) return zt_fail(ZT_FORMAT, "there is no list 'tensors'");
  ZT_TRY(allocate_tensors(ck, list));
  for (size_t i = 0; i < ck->n_items; i++) {
    ZT_TRY(take_named_tensor(ck, json_array_get(list, i), i, &n_pieces));
    ck->first[i + 1] = n_pieces;
  }
  return ZT_OK;
}

/* --- what all of them have to be like */

static int compare_names(const void *a, const void *b, void *user) {
  const zt_checkpoint *ck = user;
  return strcmp(ck->items[*(const size_t *)a].name, ck->items[*(const size_t *)b].name);
}

static zt_status sort_names(zt_checkpoint *ck) {
  for (size_t i = 0; i < ck->n_items; i++) ck->by_name[i] = i;
  qsort_r(ck->by_name, ck->n_items, sizeof *ck->by_name, compare_names, ck);
  for (size_t i = 1; i < ck->n_items; i++)
    if (compare_names(&ck->by_name[i - 1], &ck->by_name[i], ck) == 0)
      return zt_fail(ZT_FORMAT, "tensor '%s' is there twice", ck->items[ck->by_name[i]].name);
  return ZT_OK;
}

/* Bytes of a file that a piece has. */
typedef struct extent {
  uint64_t file;
  int64_t begin, end;
} extent;

static int compare_extents(const void *a, const void *b) {
  const extent *x = a, *y = b;
  if (x->file != y->file) return x->file < y->file ? -1 : 1;
  return (x->begin > y->begin) - (x->begin < y->begin);
}

static zt_status check_extents(extent *list, size_t n) {
  qsort(list, n, sizeof *list, compare_extents);
  for (size_t k = 1; k < n; k++)
    if (list[k].file == list[k - 1].file && list[k].begin < list[k - 1].end)
      return zt_fail(ZT_FORMAT, "two pieces overlap at byte %" PRId64 " of file %" PRIu64, list[k].begin, list[k].file);
  return ZT_OK;
}

static zt_status check_overlaps(const zt_checkpoint *ck) {
  size_t n = ck->first[ck->n_items];
  extent *list = zt_malloc(n * sizeof *list);
  ZT_CHECK_ALLOC(list);
  for (size_t i = 0; i < ck->n_items; i++) {
    int64_t each = (int64_t)zt_dtype_nbytes(ck->items[i].dtype);
    for (size_t k = ck->first[i]; k < ck->first[i + 1]; k++) {
      const piece *p = &ck->pieces[k];
      list[k] = (extent){p->where, p->offset, p->offset + p->count * each};
    }
  }
  zt_status st = check_extents(list, n);
  zt_free(list);
  return st;
}

/* --- opening */

static zt_status check_version(const json_t *manifest) {
  const char *format = json_string_value(json_object_get(manifest, "format"));
  if (!format || strcmp(format, ZT_CHECKPOINT_FORMAT) != 0)
    return zt_fail(ZT_FORMAT, "its format is '%.32s', not '%s'", format ? format : "", ZT_CHECKPOINT_FORMAT);
  const json_t *version = json_object_get(manifest, "version");
  if (json_is_integer(version) && json_integer_value(version) == ZT_CHECKPOINT_VERSION) return ZT_OK;
  return zt_fail(ZT_FORMAT, "its version is %lld; this program reads version %d",
                 (long long)json_integer_value(version), ZT_CHECKPOINT_VERSION);
}

static zt_status take_manifest(zt_checkpoint *ck, const json_t *manifest) {
  ZT_TRY(check_version(manifest));
  const json_t *step = json_object_get(manifest, "step");
  const char *json = json_string_value(json_object_get(manifest, "json"));
  if (!json_is_integer(step) || !json) return zt_fail(ZT_FORMAT, "it has no integer 'step' or no string 'json'");
  ck->step = json_integer_value(step);
  ck->json = zt_strdup(json);
  ZT_CHECK_ALLOC(ck->json);
  ZT_TRY(take_files(ck, json_object_get(manifest, "files")));
  ZT_TRY(take_tensors(ck, json_object_get(manifest, "tensors")));
  ZT_TRY(sort_names(ck));
  return check_overlaps(ck);
}

/* The first line is compared byte by byte: a changed bit in it is found as well. */
static zt_status parse_manifest(zt_checkpoint *ck, const char *text, size_t nbytes) {
  char head[ZT_CHECKPOINT_HEAD_NBYTES + 1];
  size_t n = ZT_CHECKPOINT_HEAD_NBYTES;
  json_t *manifest;
  if (nbytes >= n) snprintf(head, sizeof head, ZT_CHECKPOINT_HEAD, zt_hash_bytes(0, text + n, nbytes - n));
  if (nbytes < n || memcmp(head, text, n) != 0)
    return zt_fail(ZT_FORMAT, "'%s' is damaged: it does not have its checksum", ck->manifest);
  ZT_TRY(zt_json_parse(ck->manifest, text, nbytes, &manifest));
  zt_status st = zt_wrap(take_manifest(ck, manifest), "'%s'", ck->manifest);
  json_decref(manifest);
  return st;
}

static zt_status read_manifest(zt_checkpoint *ck) {
  char *text;
  size_t nbytes;
  ZT_TRY(zt_file_nbytes(ck->manifest, &nbytes));
  if (nbytes > max_manifest_nbytes) return zt_fail(ZT_FORMAT, "'%s' has %zu bytes", ck->manifest, nbytes);
  ZT_TRY(zt_file_read(ck->manifest, &text, &nbytes));
  zt_status st = parse_manifest(ck, text, nbytes);
  zt_free(text);
  for (size_t i = 0; i < ck->n_files && st == ZT_OK; i++) st = check_size(&ck->files[i]);
  return st;
}

zt_status zt_checkpoint_open(const char *path, zt_checkpoint **out) {
  *out = NULL;
  zt_checkpoint *ck = zt_calloc(1, sizeof *ck);
  ZT_CHECK_ALLOC(ck);
  zt_status st = ZT_NOMEM;
  ck->path = zt_strdup(path);
  if (ck->path) ck->manifest = zt_checkpoint_path(path, ZT_CHECKPOINT_MANIFEST);
  if (ck->manifest) st = read_manifest(ck);
  if (st == ZT_OK)
    *out = ck;
  else
    zt_checkpoint_close(ck);
  return st;
}

void zt_checkpoint_close(zt_checkpoint *ck) {
  if (!ck) return;
  for (size_t i = 0; i < ck->n_files; i++) {
    zt_free(ck->files[i].path);
    zt_free(ck->files[i].checksums);
  }
  for (size_t i = 0; i < ck->n_items; i++) zt_free((char *)ck->items[i].name);
  for (int i = 0; i < N_CACHED; i++) zt_free(ck->cached[i].data);
  zt_free(ck->files);
  zt_free(ck->items);
  zt_free(ck->first);
  zt_free(ck->pieces);
  zt_free(ck->by_name);
  zt_free(ck->json);
  zt_free(ck->manifest);
  zt_free(ck->path);
  zt_free(ck);
}

/* --- asking */

const char *zt_checkpoint_json(const zt_checkpoint *ck) { return ck->json; }
int64_t zt_checkpoint_step(const zt_checkpoint *ck) { return ck->step; }
size_t zt_checkpoint_count(const zt_checkpoint *ck) { return ck->n_items; }
const zt_checkpoint_item *zt_checkpoint_get(const zt_checkpoint *ck, size_t i) { return &ck->items[i]; }

const zt_checkpoint_item *zt_checkpoint_find(const zt_checkpoint *ck, const char *name) {
  size_t low = 0, high = ck->n_items;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    const zt_checkpoint_item *item = &ck->items[ck->by_name[middle]];
    int order = strcmp(name, item->name);
    if (order == 0) return item;
    if (order < 0)
      high = middle;
    else
      low = middle + 1;
  }
  return NULL;
}
