/* checkpoint_read.c - reading. Everything in the manifest is a stranger's: names, counts, places are checked before use.
** Blocks are verified as they are read, one is kept. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/mem.h"
#include "core/io/json.h"
#include "core/train/checkpoint_parts.h"

typedef struct file {
  char *name; /* owned */
  int64_t nbytes;
  uint64_t *checksums; /* owned; of each block */
  int fd;              /* -1: not open */
} file;

typedef struct piece {
  size_t file;
  int64_t offset, begin, count;
} piece;

typedef struct tensor {
  zt_checkpoint_item item; /* first; its name is owned */
  piece *pieces;           /* owned; in order */
  size_t n_pieces;
} tensor;

struct zt_checkpoint {
  char *path, *json; /* owned */
  int64_t step;
  file *files;
  size_t n_files;
  tensor *tensors;
  size_t n_tensors;
  tensor **by_name; /* sorted */
  char *block;      /* the bytes of 'block_number' of 'block_file' */
  size_t block_file;
  int64_t block_number; /* -1: none */
};

enum { STATE_FILE = 0 };

static zt_status malformed(const zt_checkpoint *ck, const char *what) {
  return zt_fail(ZT_FORMAT, "'%s/manifest.json': %s", ck->path, what);
}

/* --- files and blocks */

static int64_t n_blocks(const file *f) { return (f->nbytes + ZT_CHECKPOINT_BLOCK - 1) / ZT_CHECKPOINT_BLOCK; }

static int64_t block_nbytes(const file *f, int64_t number) {
  int64_t left = f->nbytes - number * ZT_CHECKPOINT_BLOCK;
  return left < ZT_CHECKPOINT_BLOCK ? left : ZT_CHECKPOINT_BLOCK;
}

static zt_status open_file(zt_checkpoint *ck, file *f) {
  if (f->fd >= 0) return ZT_OK;
  char *path = zt_checkpoint_path(ck->path, f->name);
  ZT_CHECK_ALLOC(path);
  f->fd = open(path, O_RDONLY | O_CLOEXEC);
  zt_status st = f->fd < 0 ? zt_fail(ZT_IO, "cannot read '%s': %s", path, strerror(errno)) : ZT_OK;
  zt_free(path);
  return st;
}

static zt_status read_bytes(const zt_checkpoint *ck, const file *f, int64_t at, char *out, int64_t nbytes) {
  while (nbytes > 0) {
    ssize_t n = pread(f->fd, out, (size_t)nbytes, at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return zt_fail(ZT_IO, "cannot read '%s/%s': %s", ck->path, f->name, strerror(errno));
    if (n == 0)
      return zt_fail(ZT_FORMAT, "'%s/%s' ends at byte %" PRId64 " of %" PRId64, ck->path, f->name, at, f->nbytes);
    out += n, at += n, nbytes -= n;
  }
  return ZT_OK;
}

/* Brings a block into ck->block, verified. */
static zt_status load_block(zt_checkpoint *ck, size_t number_of_file, int64_t number) {
  file *f = &ck->files[number_of_file];
  if (ck->block_number == number && ck->block_file == number_of_file) return ZT_OK;
  ck->block_number = -1;
  int64_t at = number * ZT_CHECKPOINT_BLOCK, nbytes = block_nbytes(f, number);
  ZT_TRY(open_file(ck, f));
  ZT_TRY(read_bytes(ck, f, at, ck->block, nbytes));
  if (zt_checkpoint_checksum((uint64_t)number, ck->block, (size_t)nbytes) != f->checksums[number])
    return zt_fail(ZT_FORMAT, "'%s/%s' is damaged: the checksum of bytes %" PRId64 " to %" PRId64 " is wrong", ck->path,
                   f->name, at, at + nbytes - 1);
  ck->block_file = number_of_file, ck->block_number = number;
  return ZT_OK;
}

static zt_status read_range(zt_checkpoint *ck, size_t number_of_file, int64_t at, int64_t nbytes, char *out) {
  while (nbytes > 0) {
    int64_t number = at / ZT_CHECKPOINT_BLOCK, within = at % ZT_CHECKPOINT_BLOCK;
    ZT_TRY(load_block(ck, number_of_file, number));
    int64_t n = block_nbytes(&ck->files[number_of_file], number) - within;
    if (n > nbytes) n = nbytes;
    memcpy(out, ck->block + within, (size_t)n);
    out += n, at += n, nbytes -= n;
  }
  return ZT_OK;
}

zt_status zt_checkpoint_read(zt_checkpoint *ck, const zt_checkpoint_item *item, int64_t begin, int64_t count,
                             void *out) {
  const tensor *t = (const tensor *)item;
  int64_t each = (int64_t)zt_dtype_nbytes(item->dtype), end = begin + count;
  if (begin < 0 || count < 0 || end > item->count)
    return zt_fail(ZT_INVALID, "'%s': elements %" PRId64 " to %" PRId64 " of %" PRId64, item->name, begin, end,
                   item->count);
  for (size_t i = 0; i < t->n_pieces; i++) {
    const piece *p = &t->pieces[i];
    int64_t from = begin > p->begin ? begin : p->begin, to = end < p->begin + p->count ? end : p->begin + p->count;
    if (from >= to) continue;
    char *place = (char *)out + (from - begin) * each;
    ZT_TRY(zt_wrap(read_range(ck, p->file, p->offset + (from - p->begin) * each, (to - from) * each, place), "'%s'",
                   item->name));
  }
  return ZT_OK;
}

zt_status zt_checkpoint_verify(zt_checkpoint *ck) {
  for (size_t i = 0; i < ck->n_files; i++)
    for (int64_t number = 0; number < n_blocks(&ck->files[i]); number++) ZT_TRY(load_block(ck, i, number));
  return ZT_OK;
}

/* --- the manifest */

const char *zt_checkpoint_body(const char *text, size_t nbytes, size_t *body_nbytes) {
  if (nbytes <= ZT_CHECKSUM_DIGITS || text[ZT_CHECKSUM_DIGITS] != '\n') return NULL;
  const char *body = text + ZT_CHECKSUM_DIGITS + 1;
  *body_nbytes = nbytes - ZT_CHECKSUM_DIGITS - 1;
  char digits[ZT_CHECKSUM_DIGITS + 1];
  snprintf(digits, sizeof digits, "%016" PRIx64, zt_checkpoint_checksum(0, body, *body_nbytes));
  return memcmp(digits, text, ZT_CHECKSUM_DIGITS) == 0 ? body : NULL;
}

static bool get_integer(const json_t *value, int64_t low, int64_t *out) {
  *out = json_integer_value(value);
  return json_is_integer(value) && *out >= low;
}

static zt_status take_checksums(const zt_checkpoint *ck, const json_t *list, file *f) {
  if (json_array_size(list) != (size_t)n_blocks(f))
    return malformed(ck, "a file has checksums for more or fewer blocks");
  f->checksums = zt_calloc(json_array_size(list), sizeof *f->checksums);
  ZT_CHECK_ALLOC(f->checksums);
  size_t i;
  json_t *text;
  json_array_foreach(list, i, text) {
    char *end;
    const char *digits = json_string_value(text);
    if (!digits || strlen(digits) != ZT_CHECKSUM_DIGITS) return malformed(ck, "a checksum is none");
    f->checksums[i] = strtoull(digits, &end, 16);
    if (*end) return malformed(ck, "a checksum is none");
  }
  return ZT_OK;
}

/* The file is there, with its size. */
static zt_status check_file(const zt_checkpoint *ck, const file *f) {
  struct stat info;
  char *path = zt_checkpoint_path(ck->path, f->name);
  ZT_CHECK_ALLOC(path);
  zt_status st = ZT_OK;
  if (stat(path, &info) != 0)
    st = zt_fail(ZT_IO, "cannot read '%s': %s", path, strerror(errno));
  else if (!S_ISREG(info.st_mode) || info.st_size != f->nbytes)
    st = zt_fail(ZT_FORMAT, "'%s' has %lld bytes, not %" PRId64, path, (long long)info.st_size, f->nbytes);
  zt_free(path);
  return st;
}

static zt_status take_file(zt_checkpoint *ck, const json_t *row, file *f) {
  const char *name = json_string_value(json_object_get(row, "name"));
  if (!name || !*name || strchr(name, '/') || *name == '.') return malformed(ck, "a file's name is none");
  if (!get_integer(json_object_get(row, "nbytes"), 0, &f->nbytes)) return malformed(ck, "a file's size is none");
  f->name = zt_strdup(name);
  ZT_CHECK_ALLOC(f->name);
  ZT_TRY(take_checksums(ck, json_object_get(row, "checksums"), f));
  return check_file(ck, f);
}

static zt_status take_files(zt_checkpoint *ck, const json_t *list) {
  size_t n = json_array_size(list);
  if (n == 0) return malformed(ck, "there are no files");
  ck->files = zt_calloc(n, sizeof *ck->files);
  ZT_CHECK_ALLOC(ck->files);
  ck->n_files = n;
  for (size_t i = 0; i < n; i++) ck->files[i].fd = -1;
  for (size_t i = 0; i < n; i++) ZT_TRY(take_file(ck, json_array_get(list, i), &ck->files[i]));
  return ZT_OK;
}

static zt_status take_shape(const zt_checkpoint *ck, const json_t *shape, zt_checkpoint_item *item) {
  if (!json_is_array(shape) || json_array_size(shape) > ZT_SAFETENSORS_MAX_DIM)
    return malformed(ck, "a tensor's shape is none");
  item->ndim = (int)json_array_size(shape);
  item->count = 1;
  for (int d = 0; d < item->ndim; d++) {
    if (!get_integer(json_array_get(shape, (size_t)d), 0, &item->shape[d]) ||
        __builtin_mul_overflow(item->count, item->shape[d], &item->count))
      return malformed(ck, "a tensor's shape is none");
  }
  return item->count <= INT64_MAX / 8 ? ZT_OK : malformed(ck, "a tensor is too large");
}

static bool take_piece(const zt_checkpoint *ck, const json_t *row, int64_t each, piece *p) {
  int64_t number, nbytes, end;
  if (!json_is_array(row) || json_array_size(row) != 4) return false;
  if (!get_integer(json_array_get(row, 0), 0, &number) || (size_t)number >= ck->n_files) return false;
  p->file = (size_t)number;
  return get_integer(json_array_get(row, 1), 0, &p->offset) && get_integer(json_array_get(row, 2), 0, &p->begin) &&
         get_integer(json_array_get(row, 3), 0, &p->count) && !__builtin_mul_overflow(p->count, each, &nbytes) &&
         !__builtin_add_overflow(p->offset, nbytes, &end) && end <= ck->files[number].nbytes;
}

static zt_status take_pieces(const zt_checkpoint *ck, const json_t *list, tensor *t) {
  size_t n = json_array_size(list);
  t->pieces = zt_calloc(n, sizeof *t->pieces);
  ZT_CHECK_ALLOC(t->pieces);
  int64_t covered = 0;
  for (; t->n_pieces < n; t->n_pieces++) {
    piece *p = &t->pieces[t->n_pieces];
    if (!take_piece(ck, json_array_get(list, t->n_pieces), (int64_t)zt_dtype_nbytes(t->item.dtype), p) ||
        p->begin != covered || p->count > t->item.count - covered)
      return malformed(ck, "a piece of a tensor lies nowhere");
    covered += p->count;
  }
  return covered == t->item.count ? ZT_OK : malformed(ck, "a tensor is not whole");
}

static zt_status take_tensor(zt_checkpoint *ck, const json_t *row, tensor *t) {
  const char *name = json_string_value(json_object_get(row, "name"));
  const char *dtype = json_string_value(json_object_get(row, "dtype"));
  if (!name || !dtype || !zt_dtype_from_name(dtype, &t->item.dtype))
    return malformed(ck, "a tensor has no name or dtype");
  t->item.name = zt_strdup(name);
  if (!t->item.name) return ZT_NOMEM;
  ZT_TRY(take_shape(ck, json_object_get(row, "shape"), &t->item));
  return take_pieces(ck, json_object_get(row, "pieces"), t);
}

static int compare_names(const void *a, const void *b) {
  return strcmp((*(tensor *const *)a)->item.name, (*(tensor *const *)b)->item.name);
}

static zt_status take_tensors(zt_checkpoint *ck, const json_t *list) {
  size_t n = json_array_size(list);
  if (!json_is_array(list)) return malformed(ck, "there are no tensors");
  ck->tensors = zt_calloc(n, sizeof *ck->tensors);
  ck->by_name = zt_calloc(n, sizeof *ck->by_name);
  if (!ck->tensors || !ck->by_name) return ZT_NOMEM;
  ck->n_tensors = n;
  for (size_t i = 0; i < n; i++) {
    ZT_TRY(take_tensor(ck, json_array_get(list, i), &ck->tensors[i]));
    ck->by_name[i] = &ck->tensors[i];
  }
  if (n) qsort(ck->by_name, n, sizeof *ck->by_name, compare_names);
  for (size_t i = 1; i < n; i++)
    if (compare_names(&ck->by_name[i - 1], &ck->by_name[i]) == 0) return malformed(ck, "two tensors have one name");
  return ZT_OK;
}

static zt_status take_manifest(zt_checkpoint *ck, const json_t *m) {
  int64_t version;
  const char *format = json_string_value(json_object_get(m, "format"));
  if (!format || strcmp(format, ZT_CHECKPOINT_FORMAT) != 0) return malformed(ck, "it is no checkpoint's");
  if (!get_integer(json_object_get(m, "version"), 1, &version) || version > ZT_CHECKPOINT_VERSION)
    return malformed(ck, "it is of a newer version");
  if (!get_integer(json_object_get(m, "step"), INT64_MIN, &ck->step)) return malformed(ck, "it has no step");
  ZT_TRY(take_files(ck, json_object_get(m, "files")));
  return take_tensors(ck, json_object_get(m, "tensors"));
}

static zt_status parse_manifest(zt_checkpoint *ck, const char *text, size_t nbytes) {
  size_t body_nbytes;
  const char *body = zt_checkpoint_body(text, nbytes, &body_nbytes);
  if (!body) return malformed(ck, "it is damaged: its checksum is wrong");
  json_t *m;
  ZT_TRY(zt_json_parse(ck->path, body, body_nbytes, &m));
  zt_status st = take_manifest(ck, m);
  json_decref(m);
  return st;
}

static zt_status read_manifest(zt_checkpoint *ck) {
  char *path = zt_checkpoint_path(ck->path, "manifest.json"), *text;
  size_t nbytes;
  ZT_CHECK_ALLOC(path);
  zt_status st = zt_file_read(path, &text, &nbytes);
  zt_free(path);
  ZT_TRY(st);
  st = parse_manifest(ck, text, nbytes);
  zt_free(text);
  return st;
}

static zt_status read_state(zt_checkpoint *ck) {
  int64_t nbytes = ck->files[STATE_FILE].nbytes;
  ck->block = zt_malloc(ZT_CHECKPOINT_BLOCK);
  ck->json = zt_malloc((size_t)nbytes + 1);
  if (!ck->block || !ck->json) return ZT_NOMEM;
  ck->json[nbytes] = 0;
  return read_range(ck, STATE_FILE, 0, nbytes, ck->json);
}

zt_status zt_checkpoint_open(const char *path, zt_checkpoint **out) {
  zt_checkpoint *ck = *out = zt_calloc(1, sizeof *ck);
  ZT_CHECK_ALLOC(ck);
  ck->block_number = -1;
  ck->path = zt_strdup(path);
  zt_status st = ck->path ? read_manifest(ck) : ZT_NOMEM;
  if (st == ZT_OK) st = read_state(ck);
  if (st == ZT_OK) return ZT_OK;
  zt_checkpoint_close(ck);
  *out = NULL;
  return st;
}

void zt_checkpoint_close(zt_checkpoint *ck) {
  if (!ck) return;
  for (size_t i = 0; i < ck->n_files; i++) {
    zt_free(ck->files[i].name);
    zt_free(ck->files[i].checksums);
    if (ck->files[i].fd >= 0) close(ck->files[i].fd);
  }
  for (size_t i = 0; i < ck->n_tensors; i++) {
    zt_free((char *)ck->tensors[i].item.name);
    zt_free(ck->tensors[i].pieces);
  }
  zt_free(ck->files);
  zt_free(ck->tensors);
  zt_free(ck->by_name);
  zt_free(ck->block);
  zt_free(ck->json);
  zt_free(ck->path);
  zt_free(ck);
}

const char *zt_checkpoint_json(const zt_checkpoint *ck) { return ck->json; }
int64_t zt_checkpoint_step(const zt_checkpoint *ck) { return ck->step; }
size_t zt_checkpoint_count(const zt_checkpoint *ck) { return ck->n_tensors; }
const zt_checkpoint_item *zt_checkpoint_get(const zt_checkpoint *ck, size_t i) { return &ck->tensors[i].item; }

const zt_checkpoint_item *zt_checkpoint_find(const zt_checkpoint *ck, const char *name) {
  tensor key = {.item = {.name = name}}, *k = &key;
  tensor **found = ck->n_tensors ? bsearch(&k, ck->by_name, ck->n_tensors, sizeof *ck->by_name, compare_names) : NULL;
  return found ? &(*found)->item : NULL;
}

/* --- export */

typedef struct exporting {
  zt_checkpoint *ck;
  const zt_checkpoint_item **from;
  const zt_dtype *dtypes;
} exporting;

static double get_value(zt_dtype t, const char *p) {
  union {
    float f;
    double d;
    uint16_t h;
  } v;
  memcpy(&v, p, zt_dtype_nbytes(t));
  return t == ZT_F32   ? (double)v.f
         : t == ZT_F64 ? v.d
                       : (double)(t == ZT_BF16 ? zt_bf16_to_f32(v.h) : zt_f16_to_f32(v.h));
}

static void put_value(zt_dtype t, char *p, double value) {
  union {
    float f;
    double d;
    uint16_t h;
  } v = {.d = value};
  if (t == ZT_F32) v.f = (float)value;
  if (t == ZT_BF16) v.h = zt_f32_to_bf16((float)value);
  if (t == ZT_F16) v.h = zt_f32_to_f16((float)value);
  memcpy(p, &v, zt_dtype_nbytes(t));
}

enum { EXPORT_ELEMENTS = 1 << 16 };

static zt_status write_elements(const exporting *x, size_t i, zt_writer *w, char *in, char *out) {
  const zt_checkpoint_item *item = x->from[i];
  zt_dtype t = item->dtype, as = x->dtypes[i];
  size_t from = zt_dtype_nbytes(t), to = zt_dtype_nbytes(as);
  for (int64_t done = 0; done < item->count; done += EXPORT_ELEMENTS) {
    int64_t n = item->count - done < EXPORT_ELEMENTS ? item->count - done : EXPORT_ELEMENTS;
    ZT_TRY(zt_checkpoint_read(x->ck, item, done, n, in));
    for (size_t k = 0; t != as && k < (size_t)n; k++) put_value(as, out + k * to, get_value(t, in + k * from));
    ZT_TRY(zt_writer_write(w, t == as ? in : out, (size_t)n * to));
  }
  return ZT_OK;
}

static zt_status write_tensor(void *user, size_t i, zt_writer *w) {
  char *in = zt_malloc(EXPORT_ELEMENTS * 8), *out = zt_malloc(EXPORT_ELEMENTS * 8);
  zt_status st = in && out ? write_elements(user, i, w, in, out) : ZT_NOMEM;
  zt_free(in);
  zt_free(out);
  return st;
}

static zt_status find_all(const exporting *x, const char *const names[], const char *const as[], size_t count,
                          zt_safetensors_item items[]) {
  for (size_t i = 0; i < count; i++) {
    const zt_checkpoint_item *item = x->from[i] = zt_checkpoint_find(x->ck, names[i]);
    if (!item) return zt_fail(ZT_INVALID, "the checkpoint has no tensor '%s'", names[i]);
    if (item->dtype != x->dtypes[i] && !(zt_dtype_is_float(item->dtype) && zt_dtype_is_float(x->dtypes[i])))
      return zt_fail(ZT_DTYPE, "'%s' is %s and cannot be written as %s", names[i], zt_dtype_name(item->dtype),
                     zt_dtype_name(x->dtypes[i]));
    items[i] = (zt_safetensors_item){.name = as[i], .dtype = x->dtypes[i], .ndim = item->ndim};
    memcpy(items[i].shape, item->shape, sizeof items[i].shape);
  }
  return ZT_OK;
}

zt_status zt_checkpoint_export(zt_checkpoint *ck, const char *path, const char *const names[], const char *const as[],
                               const zt_dtype dtypes[], size_t count) {
  static const char *const metadata[] = {"format", "pt", NULL};
  exporting x = {ck, zt_calloc(count, sizeof *x.from), dtypes};
  zt_safetensors_item *items = zt_calloc(count, sizeof *items);
  zt_status st = x.from && items ? find_all(&x, names, as, count, items) : ZT_NOMEM;
  if (st == ZT_OK) st = zt_safetensors_save(path, items, count, metadata, write_tensor, &x);
  zt_free(x.from);
  zt_free(items);
  return st;
}
