#include "core/io/safetensors.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/buffer.h"
#include "core/base/mem.h"
#include "core/io/json.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "tensors are used as they lie in the file, which is little-endian"
#endif

enum { LENGTH_NBYTES = 8, MAX_HEADER_NBYTES = 100000000 /* the format's limit */ };
static const char metadata_key[] = "__metadata__";

/* One file. Names and metadata are borrowed from its header. */
typedef struct shard {
  char *path;
  zt_map map;
  bool is_mapped; /* the map is ours to close */
  json_t *header;
  const unsigned char *data; /* what follows the header */
  size_t data_nbytes;
  size_t first, end; /* its entries */
} shard;

struct zt_safetensors {
  shard *shards;
  size_t n_shards;
  zt_safetensors_entry *entries;
  size_t count, capacity;
  size_t *by_name; /* numbers of entries, sorted by name */
};

static const char *const dtype_names[ZT_N_DTYPES] = {
#define ST_NAME(id, name, st_name, nbytes, is_float) st_name,
    ZT_DTYPES(ST_NAME)
#undef ST_NAME
};
#define ST_LIST(id, name, st_name, nbytes, is_float) st_name ", "
static const char known_dtypes[] = ZT_DTYPES(ST_LIST) "BOOL";
#undef ST_LIST

/* Bytes of (shape) of 'dtype'; false where they cannot be counted in 63 bits. */
static bool count_nbytes(zt_dtype dtype, int ndim, const int64_t *shape, size_t *nbytes) {
  int64_t total = (int64_t)zt_dtype_nbytes(dtype);
  bool fits = true, is_empty = false;
  for (int d = 0; d < ndim; d++) {
    if (shape[d] == 0)
      is_empty = true;
    else
      fits = fits && !__builtin_mul_overflow(total, shape[d], &total);
  }
  *nbytes = is_empty ? 0 : (size_t)total;
  return fits;
}

/* --- the header of one file */

static zt_status find_dtype(const shard *s, const char *name, json_t *value, zt_dtype *out) {
  const char *text = json_string_value(value);
  if (!text) return zt_fail(ZT_FORMAT, "%s: tensor '%s': no string 'dtype'", s->path, name);
  if (strcmp(text, "BOOL") == 0) {
    *out = ZT_U8;
    return ZT_OK;
  }
  for (int i = 0; i < ZT_N_DTYPES; i++) {
    if (strcmp(text, dtype_names[i]) != 0) continue;
    *out = (zt_dtype)i;
    return ZT_OK;
  }
  return zt_fail(ZT_DTYPE, "%s: tensor '%s': dtype '%.32s' is not one of %s", s->path, name, text, known_dtypes);
}

/* A whole number >= 0 out of an array of the header. */
static zt_status get_number(const shard *s, const char *name, const char *key, json_t *array, size_t i, int64_t *out) {
  json_t *value = json_array_get(array, i);
  if (json_is_real(value))
    return zt_fail(ZT_FORMAT, "%s: tensor '%s': %s[%zu] is %g, not a whole number", s->path, name, key, i,
                   json_real_value(value));
  if (!json_is_integer(value))
    return zt_fail(ZT_FORMAT, "%s: tensor '%s': %s[%zu] is not a number", s->path, name, key, i);
  *out = json_integer_value(value);
  if (*out < 0)
    return zt_fail(ZT_FORMAT, "%s: tensor '%s': %s[%zu] is %lld, less than 0", s->path, name, key, i, (long long)*out);
  return ZT_OK;
}

static zt_status get_shape(const shard *s, json_t *value, zt_safetensors_entry *e) {
  if (!json_is_array(value)) return zt_fail(ZT_FORMAT, "%s: tensor '%s': no array 'shape'", s->path, e->name);
  if (json_array_size(value) > ZT_SAFETENSORS_MAX_DIM)
    return zt_fail(ZT_SHAPE, "%s: tensor '%s': %zu dimensions, more than %d", s->path, e->name, json_array_size(value),
                   ZT_SAFETENSORS_MAX_DIM);
  e->ndim = (int)json_array_size(value);
  for (int d = 0; d < e->ndim; d++) ZT_TRY(get_number(s, e->name, "shape", value, (size_t)d, &e->shape[d]));
  if (count_nbytes(e->dtype, e->ndim, e->shape, &e->nbytes)) return ZT_OK;
  return zt_fail(ZT_SHAPE, "%s: tensor '%s': its shape has more elements than can be addressed", s->path, e->name);
}

static zt_status get_range(const shard *s, json_t *value, zt_safetensors_entry *e) {
  int64_t begin, end;
  if (json_array_size(value) != 2)
    return zt_fail(ZT_FORMAT, "%s: tensor '%s': no array 'data_offsets' of two numbers", s->path, e->name);
  ZT_TRY(get_number(s, e->name, "data_offsets", value, 0, &begin));
  ZT_TRY(get_number(s, e->name, "data_offsets", value, 1, &end));
  if (begin > end)
    return zt_fail(ZT_FORMAT, "%s: tensor '%s': data_offsets [%lld, %lld] end before they begin", s->path, e->name,
                   (long long)begin, (long long)end);
  if ((uint64_t)end > s->data_nbytes)
    return zt_fail(ZT_FORMAT,
                   "%s: tensor '%s': data_offsets [%lld, %lld] reach past the %zu bytes of data; is the file cut off?",
                   s->path, e->name, (long long)begin, (long long)end, s->data_nbytes);
  if ((size_t)(end - begin) != e->nbytes)
    return zt_fail(ZT_FORMAT,
                   "%s: tensor '%s': data_offsets [%lld, %lld] hold %lld bytes, its shape and dtype need %zu", s->path,
                   e->name, (long long)begin, (long long)end, (long long)(end - begin), e->nbytes);
  e->data = s->data + begin;
  return ZT_OK;
}

static zt_status read_entry(const shard *s, const char *name, json_t *value, zt_safetensors_entry *e) {
  *e = (zt_safetensors_entry){.name = name};
  if (!json_is_object(value)) return zt_fail(ZT_FORMAT, "%s: tensor '%s': not an object", s->path, name);
  ZT_TRY(find_dtype(s, name, json_object_get(value, "dtype"), &e->dtype));
  ZT_TRY(get_shape(s, json_object_get(value, "shape"), e));
  return get_range(s, json_object_get(value, "data_offsets"), e);
}

static zt_status check_metadata(const shard *s) {
  json_t *metadata = json_object_get(s->header, metadata_key), *value;
  const char *key;
  if (!metadata) return ZT_OK;
  if (!json_is_object(metadata)) return zt_fail(ZT_FORMAT, "%s: %s is not an object", s->path, metadata_key);
  json_object_foreach(metadata, key, value) if (!json_is_string(value)) return zt_fail(
      ZT_FORMAT, "%s: %s: '%s' is not a string", s->path, metadata_key, key);
  return ZT_OK;
}

/* By place in the file; empty tensors, which share a place, before what follows them, by header position. */
static int compare_places(const void *a, const void *b) {
  const zt_safetensors_entry *x = a, *y = b;
  const unsigned char *x_data = x->data, *y_data = y->data;
  if (x_data != y_data) return x_data < y_data ? -1 : 1;
  if ((x->nbytes > 0) != (y->nbytes > 0)) return x->nbytes > 0 ? 1 : -1;
  return (x->position > y->position) - (x->position < y->position);
}

/* Whether the entries fill the data without holes or overlaps. */
static zt_status check_places(const zt_safetensors *st, const shard *s) {
  size_t at = 0;
  for (size_t i = s->first; i < s->end; i++) {
    const zt_safetensors_entry *e = &st->entries[i];
    size_t begin = (size_t)((const unsigned char *)e->data - s->data);
    if (begin < at)
      return zt_fail(ZT_FORMAT, "%s: tensors '%s' and '%s' overlap: one ends at byte %zu, the other begins at %zu",
                     s->path, st->entries[i - 1].name, e->name, at, begin);
    if (begin > at)
      return zt_fail(ZT_FORMAT, "%s: bytes %zu to %zu of the data, before tensor '%s', belong to no tensor", s->path,
                     at, begin, e->name);
    at = begin + e->nbytes;
  }
  if (at < s->data_nbytes)
    return zt_fail(ZT_FORMAT, "%s: the last %zu of %zu bytes of data belong to no tensor", s->path, s->data_nbytes - at,
                   s->data_nbytes);
  return ZT_OK;
}

static zt_status reserve_entries(zt_safetensors *st, size_t n_more) {
  if (st->count + n_more <= st->capacity) return ZT_OK;
  size_t capacity = st->count + n_more;
  zt_safetensors_entry *entries = zt_realloc(st->entries, capacity * sizeof *entries);
  ZT_CHECK_ALLOC(entries);
  st->entries = entries, st->capacity = capacity;
  return ZT_OK;
}

/* Sets where the data begins, and the header. */
static zt_status parse_header(shard *s) {
  uint64_t length;
  if (s->map.nbytes < LENGTH_NBYTES)
    return zt_fail(ZT_FORMAT, "%s: %zu bytes are too few for a safetensors file", s->path, s->map.nbytes);
  memcpy(&length, s->map.data, sizeof length);
  if (length > MAX_HEADER_NBYTES)
    return zt_fail(ZT_FORMAT, "%s: not a safetensors file: a header of %llu bytes, more than %d", s->path,
                   (unsigned long long)length, MAX_HEADER_NBYTES);
  if (length > s->map.nbytes - LENGTH_NBYTES)
    return zt_fail(ZT_FORMAT, "%s: the header's %llu bytes reach past the file's %zu; is the file cut off?", s->path,
                   (unsigned long long)length, s->map.nbytes);
  const char *text = (const char *)s->map.data + LENGTH_NBYTES;
  s->data = s->map.data + LENGTH_NBYTES + length;
  s->data_nbytes = s->map.nbytes - LENGTH_NBYTES - (size_t)length;
  ZT_TRY(zt_wrap(zt_json_parse("header", text, (size_t)length, &s->header), "%s", s->path));
  return json_is_object(s->header) ? ZT_OK : zt_fail(ZT_FORMAT, "%s: the header is not a JSON object", s->path);
}

static zt_status read_shard(zt_safetensors *st, shard *s) {
  const char *name;
  json_t *value;
  s->first = s->end = st->count;
  ZT_TRY(parse_header(s));
  ZT_TRY(check_metadata(s));
  ZT_TRY(reserve_entries(st, json_object_size(s->header)));
  json_object_foreach(s->header, name, value) {
    if (strcmp(name, metadata_key) == 0) continue;
    ZT_TRY(read_entry(s, name, value, &st->entries[st->count]));
    st->entries[st->count].position = st->count - s->first;
    s->end = ++st->count;
  }
  if (s->end > s->first) qsort(st->entries + s->first, s->end - s->first, sizeof *st->entries, compare_places);
  return check_places(st, s);
}

/* --- opening */

static int compare_names(const void *a, const void *b, void *user) {
  const zt_safetensors *st = user;
  return strcmp(st->entries[*(const size_t *)a].name, st->entries[*(const size_t *)b].name);
}

static const shard *shard_of(const zt_safetensors *st, size_t i) {
  const shard *s = st->shards;
  while (i >= s->end) s++;
  return s;
}

/* A name twice in one file is an error of its JSON already. */
static zt_status sort_names(zt_safetensors *st) {
  st->by_name = zt_malloc(st->count * sizeof *st->by_name);
  ZT_CHECK_ALLOC(st->by_name);
  for (size_t i = 0; i < st->count; i++) st->by_name[i] = i;
  qsort_r(st->by_name, st->count, sizeof *st->by_name, compare_names, st);
  for (size_t i = 1; i < st->count; i++) {
    size_t a = st->by_name[i - 1], b = st->by_name[i];
    if (strcmp(st->entries[a].name, st->entries[b].name) == 0)
      return zt_fail(ZT_FORMAT, "tensor '%s' is both in %s and in %s", st->entries[a].name, shard_of(st, a)->path,
                     shard_of(st, b)->path);
  }
  return ZT_OK;
}

static zt_status alloc_shards(zt_safetensors *st, size_t count) {
  st->shards = zt_calloc(count, sizeof *st->shards);
  ZT_CHECK_ALLOC(st->shards);
  st->n_shards = count;
  return ZT_OK;
}

static zt_status open_shard(zt_safetensors *st, shard *s, char *path) {
  s->path = path;
  ZT_CHECK_ALLOC(s->path);
  ZT_TRY(zt_map_open(path, &s->map));
  s->is_mapped = true;
  return read_shard(st, s);
}

static zt_status open_single(zt_safetensors *st, const char *path) {
  ZT_TRY(alloc_shards(st, 1));
  return open_shard(st, st->shards, zt_strdup(path));
}

static int compare_texts(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* The index is a stranger's: a name with a separator could reach any file of the machine. */
static bool is_plain_name(const char *name) {
  return *name && !strpbrk(name, "/\\") && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

/* The different files of a weight_map, sorted; borrowed from it. '*names' holds one place per tensor. */
static zt_status list_files(const char *path, json_t *map, const char **names, size_t *count) {
  const char *key;
  json_t *value;
  size_t n = 0, n_unique = 0;
  json_object_foreach(map, key, value) {
    const char *file = json_string_value(value);
    if (!file || !is_plain_name(file))
      return zt_fail(ZT_FORMAT, "%s: weight_map: tensor '%s': '%.64s' is not the plain name of a file", path, key,
                     file ? file : "");
    names[n++] = file;
  }
  qsort(names, n, sizeof *names, compare_texts);
  for (size_t i = 0; i < n; i++)
    if (n_unique == 0 || strcmp(names[n_unique - 1], names[i]) != 0) names[n_unique++] = names[i];
  *count = n_unique;
  return ZT_OK;
}

static char *path_beside(const char *path, const char *name) {
  const char *slash = strrchr(path, '/');
  size_t folder = slash ? (size_t)(slash - path) + 1 : 0, name_nbytes = strlen(name) + 1;
  char *out = zt_malloc(folder + name_nbytes);
  if (!out) return NULL;
  memcpy(out, path, folder);
  memcpy(out + folder, name, name_nbytes);
  return out;
}

static zt_status open_files(zt_safetensors *st, const char *path, json_t *map) {
  size_t count = 0;
  const char **names = zt_malloc(json_object_size(map) * sizeof *names);
  ZT_CHECK_ALLOC(names);
  zt_status status = list_files(path, map, names, &count);
  if (status == ZT_OK) status = alloc_shards(st, count);
  for (size_t i = 0; i < count && status == ZT_OK; i++)
    status = open_shard(st, &st->shards[i], path_beside(path, names[i]));
  zt_free(names);
  return status;
}

static bool is_in_file(const zt_safetensors *st, const char *name, const char *file) {
  const zt_safetensors_entry *e = zt_safetensors_find(st, name);
  if (!e) return false;
  const char *path = shard_of(st, (size_t)(e - st->entries))->path, *slash = strrchr(path, '/');
  return strcmp(slash ? slash + 1 : path, file) == 0;
}

static zt_status check_weight_map(const zt_safetensors *st, const char *path, json_t *map) {
  const char *name;
  json_t *file;
  size_t n_missing = 0;
  zt_buffer list = {0};
  zt_status status = ZT_OK;
  json_object_foreach(map, name, file) {
    if (status != ZT_OK || is_in_file(st, name, json_string_value(file))) continue;
    status = zt_buffer_addf(&list, "%s'%s' (%s)", n_missing ? ", " : "", name, json_string_value(file));
    n_missing++;
  }
  if (status == ZT_OK && n_missing)
    status = zt_fail(ZT_FORMAT, "%s: %zu tensors are not in the files that weight_map gives: %s", path, n_missing,
                     list.data);
  zt_buffer_clear(&list);
  return status;
}

static zt_status open_index(zt_safetensors *st, const char *path) {
  json_t *index;
  ZT_TRY(zt_json_load(path, &index));
  json_t *map = json_object_get(index, "weight_map");
  zt_status status =
      json_is_object(map) ? open_files(st, path, map) : zt_fail(ZT_FORMAT, "%s: no object 'weight_map'", path);
  if (status == ZT_OK) status = zt_wrap(sort_names(st), "%s", path);
  if (status == ZT_OK) status = check_weight_map(st, path, map);
  json_decref(index);
  return status;
}

static bool ends_with(const char *text, const char *end) {
  size_t a = strlen(text), b = strlen(end);
  return a >= b && strcmp(text + a - b, end) == 0;
}

static zt_status finish_open(zt_safetensors *st, zt_status status, zt_safetensors **out) {
  if (status == ZT_OK)
    *out = st;
  else
    zt_safetensors_close(st);
  return status;
}

zt_status zt_safetensors_open(const char *path, zt_safetensors **out) {
  *out = NULL;
  zt_safetensors *st = zt_calloc(1, sizeof *st);
  ZT_CHECK_ALLOC(st);
  if (ends_with(path, ".index.json")) return finish_open(st, open_index(st, path), out);
  zt_status status = open_single(st, path);
  if (status == ZT_OK) status = sort_names(st);
  return finish_open(st, status, out);
}

zt_status zt_safetensors_open_bytes(const char *name, const void *data, size_t nbytes, zt_safetensors **out) {
  *out = NULL;
  zt_safetensors *st = zt_calloc(1, sizeof *st);
  ZT_CHECK_ALLOC(st);
  zt_status status = alloc_shards(st, 1);
  if (status == ZT_OK) {
    st->shards->map = (zt_map){data, nbytes};
    st->shards->path = zt_strdup(name);
    status = st->shards->path ? read_shard(st, st->shards) : ZT_NOMEM;
  }
  if (status == ZT_OK) status = sort_names(st);
  return finish_open(st, status, out);
}

void zt_safetensors_close(zt_safetensors *st) {
  if (!st) return;
  for (size_t i = 0; i < st->n_shards; i++) {
    shard *s = &st->shards[i];
    json_decref(s->header);
    if (s->is_mapped) zt_map_close(&s->map);
    zt_free(s->path);
  }
  zt_free(st->shards);
  zt_free(st->entries);
  zt_free(st->by_name);
  zt_free(st);
}

/* --- asking */

size_t zt_safetensors_count(const zt_safetensors *st) { return st->count; }
const zt_safetensors_entry *zt_safetensors_get(const zt_safetensors *st, size_t i) { return &st->entries[i]; }

const zt_safetensors_entry *zt_safetensors_find(const zt_safetensors *st, const char *name) {
  size_t low = 0, high = st->count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    const zt_safetensors_entry *e = &st->entries[st->by_name[middle]];
    int order = strcmp(name, e->name);
    if (order == 0) return e;
    if (order < 0)
      high = middle;
    else
      low = middle + 1;
  }
  return NULL;
}

static json_t *get_metadata(const zt_safetensors *st) {
  return st->n_shards == 1 ? json_object_get(st->shards->header, metadata_key) : NULL;
}

const char *zt_safetensors_metadata(const zt_safetensors *st, const char *key) {
  return json_string_value(json_object_get(get_metadata(st), key));
}

const char *zt_safetensors_metadata_at(const zt_safetensors *st, size_t i, const char **value) {
  json_t *metadata = get_metadata(st);
  void *at = json_object_iter(metadata);
  while (at && i--) at = json_object_iter_next(metadata, at);
  *value = at ? json_string_value(json_object_iter_value(at)) : NULL;
  return at ? json_object_iter_key(at) : NULL;
}

/* --- saving */

static zt_status add_text(zt_buffer *b, const char *text) { return zt_json_add_string(b, text, strlen(text)); }

static zt_status add_metadata(zt_buffer *b, const char *const *metadata) {
  ZT_TRY(zt_buffer_addf(b, "\"%s\":{", metadata_key));
  for (size_t i = 0; metadata[i]; i++) {
    if (i) ZT_TRY(zt_buffer_addf(b, i % 2 ? ":" : ","));
    ZT_TRY(add_text(b, metadata[i]));
  }
  return zt_buffer_addf(b, "}");
}

static zt_status add_item(zt_buffer *b, const zt_safetensors_item *item, size_t *offset) {
  size_t nbytes, end;
  if (!count_nbytes(item->dtype, item->ndim, item->shape, &nbytes) || __builtin_add_overflow(*offset, nbytes, &end))
    return zt_fail(ZT_SHAPE, "its shape has more elements than can be addressed");
  ZT_TRY(add_text(b, item->name));
  ZT_TRY(zt_buffer_addf(b, ":{\"dtype\":\"%s\",\"shape\":[", dtype_names[item->dtype]));
  for (int d = 0; d < item->ndim; d++) ZT_TRY(zt_buffer_addf(b, "%s%lld", d ? "," : "", (long long)item->shape[d]));
  ZT_TRY(zt_buffer_addf(b, "],\"data_offsets\":[%zu,%zu]}", *offset, end));
  *offset = end;
  return ZT_OK;
}

/* The length and the header, padded with spaces so that the data begins at a multiple of 8. */
static zt_status make_header(zt_buffer *b, const zt_safetensors_item *items, size_t count,
                             const char *const *metadata) {
  uint64_t length = 0;
  size_t offset = 0;
  ZT_TRY(zt_buffer_add(b, &length, sizeof length));
  ZT_TRY(zt_buffer_addf(b, "{"));
  if (metadata) ZT_TRY(add_metadata(b, metadata));
  for (size_t i = 0; i < count; i++) {
    if (i || metadata) ZT_TRY(zt_buffer_addf(b, ","));
    ZT_TRY(zt_wrap(add_item(b, &items[i], &offset), "tensor '%s'", items[i].name));
  }
  ZT_TRY(zt_buffer_addf(b, "}"));
  ZT_TRY(zt_buffer_add(b, "       ", -b->nbytes % 8));
  length = b->nbytes - sizeof length;
  memcpy(b->data, &length, sizeof length);
  if (length <= MAX_HEADER_NBYTES) return ZT_OK;
  return zt_fail(ZT_INVALID, "a header of %llu bytes, more than the format's %d", (unsigned long long)length,
                 MAX_HEADER_NBYTES);
}

static zt_status check_names(const zt_safetensors_item *items, size_t count) {
  zt_status st = ZT_OK;
  const char **names = zt_malloc(count * sizeof *names);
  ZT_CHECK_ALLOC(names);
  for (size_t i = 0; i < count; i++) names[i] = items[i].name;
  qsort(names, count, sizeof *names, compare_texts);
  for (size_t i = 0; i < count && st == ZT_OK; i++) {
    if (i && strcmp(names[i - 1], names[i]) == 0) st = zt_fail(ZT_INVALID, "tensor '%s' is given twice", names[i]);
    if (strcmp(names[i], metadata_key) == 0) st = zt_fail(ZT_INVALID, "no tensor can be named '%s'", metadata_key);
  }
  zt_free(names);
  return st;
}

static zt_status write_item(zt_writer *w, const zt_safetensors_item *item, size_t i, zt_safetensors_source source,
                            void *user) {
  size_t before = zt_writer_nbytes(w), nbytes;
  count_nbytes(item->dtype, item->ndim, item->shape, &nbytes);
  ZT_TRY(source(user, i, w));
  if (zt_writer_nbytes(w) - before == nbytes) return ZT_OK;
  return zt_fail(ZT_INVALID, "tensor '%s': its source wrote %zu bytes, not %zu", item->name,
                 zt_writer_nbytes(w) - before, nbytes);
}

static zt_status write_file(const char *path, const zt_buffer *header, const zt_safetensors_item *items, size_t count,
                            zt_safetensors_source source, void *user) {
  zt_writer *w;
  ZT_TRY(zt_writer_open(path, &w));
  zt_status st = zt_writer_write(w, header->data, header->nbytes);
  for (size_t i = 0; i < count && st == ZT_OK; i++) st = write_item(w, &items[i], i, source, user);
  if (st == ZT_OK) return zt_writer_commit(w);
  zt_writer_abort(w);
  return st;
}

zt_status zt_safetensors_save(const char *path, const zt_safetensors_item *items, size_t count,
                              const char *const *metadata, zt_safetensors_source source, void *user) {
  zt_buffer header = {0};
  zt_status st = zt_wrap(check_names(items, count), "cannot write '%s'", path);
  if (st == ZT_OK) st = zt_wrap(make_header(&header, items, count, metadata), "cannot write '%s'", path);
  if (st == ZT_OK) st = write_file(path, &header, items, count, source, user);
  zt_buffer_clear(&header);
  return st;
}
