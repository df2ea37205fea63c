/* The safetensors format: what a stranger's file can do wrong, each with its message; round trips; sharded files. */
#include "tests/c/scratch.h"

#include <signal.h>
#include <sys/resource.h>

#include "core/io/json.h"
#include "core/io/safetensors.h"

/* A file's bytes: length, header, data of 'data_nbytes' counted bytes 0, 1, 2, ... */
static size_t make_file(char *out, const char *header, size_t data_nbytes) {
  uint64_t length = strlen(header);
  memcpy(out, &length, 8);
  memcpy(out + 8, header, length); /* NOLINT(bugprone-not-null-terminated-result): the data follows */
  for (size_t i = 0; i < data_nbytes; i++) out[8 + length + i] = (char)i;
  return 8 + length + data_nbytes;
}

/* Opened from a block of exactly its size, so that a sanitizer sees what reads past its end. */
static zt_status open_copy(const char *bytes, size_t nbytes, zt_safetensors **out, char **copy) {
  *copy = zt_malloc(nbytes);
  assert_non_null(*copy);
  memcpy(*copy, bytes, nbytes);
  return zt_safetensors_open_bytes("f", *copy, nbytes, out);
}

static void assert_refused(zt_status expected, const char *message, const char *header, size_t data_nbytes) {
  char bytes[4096], *copy;
  zt_safetensors *st;
  zt_status got = open_copy(bytes, make_file(bytes, header, data_nbytes), &st, &copy);
  zt_free(copy);
  assert_fails(got, expected, "%s", message);
  assert_null(st);
}

static void test_hostile_headers(void **state) {
  static const struct {
    zt_status st;
    const char *message, *header;
    size_t data_nbytes;
  } cases[] = {
      {ZT_FORMAT, "f: the header is not a JSON object", "[]", 0},
      {ZT_FORMAT, "f: header: line 1, column 2: string or '}' expected near end of file", "{ ", 0},
      {ZT_FORMAT, "f: header: line 1, column 10: duplicate object key near '\"a\"'", "{\"a\":1,\"a\":2}", 0},
      {ZT_FORMAT, "f: header: line 1, column 3: end of file expected near '{'", "{}{}", 0},
      {ZT_FORMAT, "f: __metadata__ is not an object", "{\"__metadata__\":3}", 0},
      {ZT_FORMAT, "f: __metadata__: 'step' is not a string", "{\"__metadata__\":{\"format\":\"pt\",\"step\":3}}", 0},
      {ZT_FORMAT, "f: tensor 'w': not an object", "{\"w\":[1]}", 0},
      {ZT_FORMAT, "f: tensor 'w': no string 'dtype'", "{\"w\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4},
      {ZT_DTYPE, "f: tensor 'w': dtype 'F8_E4M3' is not one of F32, F64, BF16, F16, I64, I32, U8, BOOL",
       "{\"w\":{\"dtype\":\"F8_E4M3\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1},
      {ZT_FORMAT, "f: tensor 'w': no array 'shape'", "{\"w\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4},
      {ZT_FORMAT, "f: tensor 'w': no array 'shape'", "{\"w\":{\"dtype\":\"F32\",\"shape\":1,\"data_offsets\":[0,4]}}",
       4},
      {ZT_FORMAT, "f: tensor 'w': shape[1] is 2.5, not a whole number",
       "{\"w\":{\"dtype\":\"F32\",\"shape\":[1,2.5],\"data_offsets\":[0,4]}}", 4},
      {ZT_FORMAT, "f: tensor 'w': shape[0] is 1, not a whole number",
       "{\"w\":{\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]}}", 4},
      {ZT_FORMAT, "f: tensor 'w': shape[0] is -1, less than 0",
       "{\"w\":{\"dtype\":\"F32\",\"shape\":[-1,-1],\"data_offsets\":[0,4]}}", 4},
      {ZT_FORMAT, "f: tensor 'w': shape[0] is not a number",
       "{\"w\":{\"dtype\":\"F32\",\"shape\":[\"1\"],\"data_offsets\":[0,4]}}", 4},
      {ZT_SHAPE, "f: tensor 'w': 7 dimensions, more than 6",
       "{\"w\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4},
      {ZT_SHAPE, "f: tensor 'w': its shape has more elements than can be addressed",
       "{\"w\":{\"dtype\":\"F32\",\"shape\":[4294967296,2147483648],\"data_offsets\":[0,0]}}", 0},
      {ZT_SHAPE, "f: tensor 'w': its shape has more elements than can be addressed",
       "{\"w\":{\"dtype\":\"U8\",\"shape\":[0,4611686018427387904,4],\"data_offsets\":[0,0]}}", 0},
      {ZT_FORMAT, "f: header: line 1, column 48: too big integer near '9223372036854775808'",
       "{\"w\":{\"dtype\":\"F32\",\"shape\":[9223372036854775808],\"data_offsets\":[0,0]}}", 0},
      {ZT_FORMAT, "f: tensor 'w': no array 'data_offsets' of two numbers", "{\"w\":{\"dtype\":\"F32\",\"shape\":[1]}}",
       4},
      {ZT_FORMAT, "f: tensor 'w': no array 'data_offsets' of two numbers",
       "{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 4},
      {ZT_FORMAT, "f: tensor 'w': data_offsets[1] is not a number",
       "{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,null]}}", 4},
      {ZT_FORMAT, "f: tensor 'w': data_offsets[0] is -4, less than 0",
       "{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-4,4]}}", 4},
      {ZT_FORMAT, "f: tensor 'w': data_offsets [4, 0] end before they begin",
       "{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4},
      {ZT_FORMAT, "f: tensor 'w': data_offsets [0, 400] reach past the 4 bytes of data; is the file cut off?",
       "{\"w\":{\"dtype\":\"F32\",\"shape\":[100],\"data_offsets\":[0,400]}}", 4},
      {ZT_FORMAT, "f: tensor 'w': data_offsets [0, 20] hold 20 bytes, its shape and dtype need 24",
       "{\"w\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,20]}}", 20},
      {ZT_FORMAT, "f: tensor 'w': data_offsets [0, 8] hold 8 bytes, its shape and dtype need 4",
       "{\"w\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,8]}}", 8},
      {ZT_FORMAT, "f: tensors 'a' and 'b' overlap: one ends at byte 8, the other begins at 4",
       "{\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]},"
       "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
       12},
      {ZT_FORMAT, "f: bytes 4 to 8 of the data, before tensor 'b', belong to no tensor",
       "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
       "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[8,12]}}",
       12},
      {ZT_FORMAT, "f: bytes 0 to 1 of the data, before tensor 'a', belong to no tensor",
       "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}", 2},
      {ZT_FORMAT, "f: the last 3 of 7 bytes of data belong to no tensor",
       "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 7},
      {ZT_FORMAT, "f: the last 1 of 1 bytes of data belong to no tensor", "{}", 1},
  };
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    assert_refused(cases[i].st, cases[i].message, cases[i].header, cases[i].data_nbytes);
}

static void test_lengths(void **state) {
  (void)state;
  char bytes[64], *copy;
  zt_safetensors *st;
  zt_status got;
  for (size_t n = 0; n < 8; n++) {
    memset(bytes, 0, sizeof bytes);
    got = open_copy(bytes, n, &st, &copy);
    zt_free(copy);
    assert_fails(got, ZT_FORMAT, "f: %zu bytes are too few for a safetensors file", n);
  }
  memcpy(bytes, "PK\3\4\0\0\0\0 a zip file of torch", 29);
  got = open_copy(bytes, 29, &st, &copy);
  zt_free(copy);
  assert_fails(got, ZT_FORMAT, "f: the header's 67324752 bytes reach past the file's 29; is the file cut off?");
  memset(bytes, 0xff, 8);
  got = open_copy(bytes, 29, &st, &copy);
  zt_free(copy);
  assert_fails(got, ZT_FORMAT,
               "f: not a safetensors file: a header of 18446744073709551615 bytes, more than 100000000");
  size_t n = make_file(bytes, "{}", 0);
  got = open_copy(bytes, n - 1, &st, &copy);
  zt_free(copy);
  assert_fails(got, ZT_FORMAT, "f: the header's 2 bytes reach past the file's 9; is the file cut off?");
}

static void test_unusual_but_valid(void **state) {
  (void)state;
  static const char header[] =
      "{\"late\":{\"dtype\":\"I32\",\"shape\":[],\"data_offsets\":[3,7],\"more\":1},\n "
      "\"none2\":{\"dtype\":\"F64\",\"shape\":[4,0],"
      "\"data_offsets\":[3,3]}, \"__metadata__\":{\"format\":\"pt\",\"é\":\"\"}, "
      "\"none1\":{\"dtype\":\"F16\",\"shape\":[0],"
      "\"data_offsets\":[3,3]}, \"\":{\"dtype\":\"BOOL\",\"shape\":[3,1],\"data_offsets\":[0,3]}}   ";
  static const char *const order[] = {"", "none2", "none1", "late"};
  char bytes[512], *copy;
  const char *value;
  zt_safetensors *st;
  assert_ok(open_copy(bytes, make_file(bytes, header, 7), &st, &copy));
  assert_int_equal(zt_safetensors_count(st), 4);
  for (size_t i = 0; i < 4; i++) {
    assert_string_equal(zt_safetensors_get(st, i)->name, order[i]);
    assert_ptr_equal(zt_safetensors_find(st, order[i]), zt_safetensors_get(st, i));
  }
  const zt_safetensors_entry *first = zt_safetensors_get(st, 0), *late = zt_safetensors_find(st, "late");
  assert_int_equal(first->dtype, ZT_U8);
  assert_int_equal(first->ndim, 2);
  assert_int_equal(first->shape[0], 3);
  assert_memory_equal(first->data, "\0\1\2", 3);
  assert_int_equal(late->ndim, 0);
  assert_memory_equal(late->data, "\3\4\5\6", 4);
  assert_null(zt_safetensors_find(st, "absent"));
  assert_null(zt_safetensors_find(st, "__metadata__"));
  assert_string_equal(zt_safetensors_metadata(st, "format"), "pt");
  assert_null(zt_safetensors_metadata(st, "absent"));
  assert_string_equal(zt_safetensors_metadata_at(st, 1, &value), "é");
  assert_string_equal(value, "");
  assert_null(zt_safetensors_metadata_at(st, 2, &value));
  zt_safetensors_close(st);
  zt_free(copy);
  assert_ok(open_copy(bytes, make_file(bytes, "{}", 0), &st, &copy));
  assert_int_equal(zt_safetensors_count(st), 0);
  assert_null(zt_safetensors_find(st, ""));
  assert_null(zt_safetensors_metadata_at(st, 0, &value));
  zt_safetensors_close(st);
  zt_free(copy);
  zt_safetensors_close(NULL);
}

/* --- saving */

enum { MAX_ITEMS = 20 };
typedef struct content {
  zt_safetensors_item items[MAX_ITEMS];
  char names[MAX_ITEMS][40];
  char *data[MAX_ITEMS];
  size_t nbytes[MAX_ITEMS];
  size_t count;
} content;

static void make_content(content *c, size_t count) {
  c->count = count;
  for (size_t i = 0; i < count; i++) {
    zt_safetensors_item *item = &c->items[i];
    snprintf(c->names[i], sizeof *c->names, "%c.%zu.\"\\\n%s", (char)('a' + scratch_below(26)), i, i % 2 ? "é" : "");
    *item = (zt_safetensors_item){.name = c->names[i]};
    item->dtype = (zt_dtype)scratch_below(ZT_N_DTYPES);
    item->ndim = (int)scratch_below(ZT_SAFETENSORS_MAX_DIM + 1);
    c->nbytes[i] = zt_dtype_nbytes(item->dtype);
    for (int d = 0; d < item->ndim; d++) c->nbytes[i] *= (size_t)(item->shape[d] = (int64_t)scratch_below(5));
    c->data[i] = malloc(c->nbytes[i] + 1);
    for (size_t k = 0; k < c->nbytes[i]; k++) c->data[i][k] = (char)scratch_random();
  }
}

static void free_content(content *c) {
  for (size_t i = 0; i < c->count; i++) free(c->data[i]);
}

static zt_status write_content(void *user, size_t i, zt_writer *w) {
  const content *c = user;
  size_t half = c->nbytes[i] / 2;
  ZT_TRY(zt_writer_write(w, c->data[i], half));
  return zt_writer_write(w, c->data[i] + half, c->nbytes[i] - half);
}

static zt_status write_entry(void *user, size_t i, zt_writer *w) {
  const zt_safetensors_entry *e = zt_safetensors_get(user, i);
  return zt_writer_write(w, e->data, e->nbytes);
}

/* Saves what was opened, under another name. */
static zt_status save_again(zt_safetensors *st, const char *path, const char *const *metadata) {
  zt_safetensors_item items[256] = {0};
  size_t count = zt_safetensors_count(st);
  assert_true(count <= 256);
  for (size_t i = 0; i < count; i++) {
    const zt_safetensors_entry *e = zt_safetensors_get(st, i);
    items[i] = (zt_safetensors_item){.name = e->name, .dtype = e->dtype, .ndim = e->ndim};
    memcpy(items[i].shape, e->shape, sizeof e->shape);
  }
  return zt_safetensors_save(path, items, count, metadata, write_entry, st);
}

static void assert_same_files(const char *a, const char *b) {
  zt_map x, y;
  assert_ok(zt_map_open(a, &x));
  assert_ok(zt_map_open(b, &y));
  assert_int_equal(x.nbytes, y.nbytes);
  assert_memory_equal(x.data, y.data, x.nbytes);
  zt_map_close(&x);
  zt_map_close(&y);
}

static void test_round_trips(void **state) {
  static const char *const metadata[] = {"format", "pt", "a \"key\"", "é\n", NULL};
  (void)state;
  for (int round = 0; round < 40; round++) {
    content c;
    zt_safetensors *st;
    uint64_t length;
    const char *path = scratch_path("one.safetensors"), *again = scratch_path("two.safetensors");
    make_content(&c, scratch_below(MAX_ITEMS + 1));
    const char *const *given = round % 2 ? metadata : NULL;
    assert_ok(zt_safetensors_save(path, c.items, c.count, given, write_content, &c));
    assert_ok(zt_safetensors_open(path, &st));
    assert_int_equal(zt_safetensors_count(st), c.count);
    for (size_t i = 0; i < c.count; i++) {
      const zt_safetensors_entry *e = zt_safetensors_get(st, i);
      assert_string_equal(e->name, c.names[i]);
      assert_int_equal(e->dtype, c.items[i].dtype);
      assert_int_equal(e->ndim, c.items[i].ndim);
      assert_memory_equal(e->shape, c.items[i].shape, (size_t)e->ndim * sizeof *e->shape);
      assert_int_equal(e->nbytes, c.nbytes[i]);
      if (e->nbytes) assert_memory_equal(e->data, c.data[i], e->nbytes);
    }
    const char *found = zt_safetensors_metadata(st, "a \"key\"");
    assert_true(given ? found && strcmp(found, "é\n") == 0 : !found);
    assert_ok(save_again(st, again, given));
    zt_safetensors_close(st);
    assert_same_files(path, again);
    zt_map map;
    assert_ok(zt_map_open(path, &map));
    memcpy(&length, map.data, 8);
    assert_int_equal(length % 8, 0);
    zt_map_close(&map);
    free_content(&c);
  }
  assert_int_equal(scratch_count(""), 2);
  remove(scratch_path("one.safetensors"));
  remove(scratch_path("two.safetensors"));
}

static void test_golden_files(void **state) {
  static const char *const files[] = {"gpt2/model", "gpt2/case", "gpt2-padded/model", "gpt2-padded/case"};
  (void)state;
  for (size_t i = 0; i < 4; i++) {
    char path[512];
    zt_safetensors *st;
    snprintf(path, sizeof path, "%s/goldens/%s.safetensors", ZT_TEST_ROOT, files[i]);
    assert_ok(zt_safetensors_open(path, &st));
    assert_true(zt_safetensors_count(st) > 10);
    zt_safetensors_close(st);
  }
}

static zt_status write_one(void *user, size_t i, zt_writer *w) {
  (void)i;
  return zt_writer_write(w, "12345678", *(size_t *)user);
}

static void test_save_errors(void **state) {
  (void)state;
  const char *path = scratch_path("bad.safetensors");
  size_t n = 4;
  zt_safetensors_item item = {.name = "w", .dtype = ZT_F32, .ndim = 1, .shape = {1}}, items[2] = {item, item};
  assert_fails(zt_safetensors_save(path, items, 2, NULL, write_one, &n), ZT_INVALID,
               "cannot write '%s': tensor 'w' is given twice", path);
  item.name = "__metadata__";
  assert_fails(zt_safetensors_save(path, &item, 1, NULL, write_one, &n), ZT_INVALID,
               "cannot write '%s': no tensor can be named '__metadata__'", path);
  item.name = "\xff";
  assert_fails(zt_safetensors_save(path, &item, 1, NULL, write_one, &n), ZT_FORMAT,
               "cannot write '%s': tensor '\xff': a JSON string must be UTF-8, these 1 bytes are not", path);
  item.name = "w";
  n = 3;
  assert_fails(zt_safetensors_save(path, &item, 1, NULL, write_one, &n), ZT_INVALID,
               "tensor 'w': its source wrote 3 bytes, not 4");
  n = 5;
  assert_fails(zt_safetensors_save(path, &item, 1, NULL, write_one, &n), ZT_INVALID,
               "tensor 'w': its source wrote 5 bytes, not 4");
  item.ndim = 2, item.shape[0] = item.shape[1] = (int64_t)1 << 32;
  assert_fails(zt_safetensors_save(path, &item, 1, NULL, write_one, &n), ZT_SHAPE,
               "cannot write '%s': tensor 'w': its shape has more elements than can be addressed", path);
  const char *nowhere = scratch_path("no/where");
  assert_fails(zt_safetensors_save(nowhere, NULL, 0, NULL, write_one, &n), ZT_IO,
               "cannot write '%s': No such file or directory", nowhere);
  assert_int_equal(scratch_count(""), 0);
}

static zt_status write_large(void *user, size_t i, zt_writer *w) {
  static const char zeros[1 << 16];
  (void)user, (void)i;
  for (int k = 0; k < 4; k++) ZT_TRY(zt_writer_write(w, zeros, sizeof zeros));
  return ZT_OK;
}

static void test_save_meets_a_limit(void **state) {
  (void)state;
  struct rlimit before, small;
  const char *path = scratch_path("big.safetensors");
  zt_safetensors_item item = {.name = "w", .dtype = ZT_F32, .ndim = 1, .shape = {1 << 16}};
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
  small = before, small.rlim_cur = 1 << 17;
  signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  zt_status st = zt_safetensors_save(path, &item, 1, NULL, write_large, NULL);
  setrlimit(RLIMIT_FSIZE, &before);
  assert_fails(st, ZT_IO, "cannot write '%s': File too large (after 131072 bytes)", path);
  assert_int_equal(scratch_count(""), 0);
}

/* --- sharded files */

static void save_shard(const char *name, const char *first, const char *second) {
  size_t n = 4;
  zt_safetensors_item items[2] = {{.name = first, .dtype = ZT_F32}, {.name = second, .dtype = ZT_F32}};
  assert_ok(zt_safetensors_save(scratch_path(name), items, second ? 2 : 1, NULL, write_one, &n));
}

static zt_status open_map(const char *weight_map, zt_safetensors **out) {
  char text[1024];
  snprintf(text, sizeof text, "{\"metadata\": {\"total_size\": 16}, \"weight_map\": %s}", weight_map);
  scratch_write("m.safetensors.index.json", text, strlen(text));
  return zt_safetensors_open(scratch_path("m.safetensors.index.json"), out);
}

static void test_sharded(void **state) {
  (void)state;
  zt_safetensors *st;
  save_shard("m-1.safetensors", "z", "b");
  save_shard("m-2.safetensors", "a", "unlisted");
  assert_ok(open_map("{\"a\":\"m-2.safetensors\",\"b\":\"m-1.safetensors\",\"z\":\"m-1.safetensors\"}", &st));
  static const char *const order[] = {"z", "b", "a", "unlisted"};
  assert_int_equal(zt_safetensors_count(st), 4);
  for (size_t i = 0; i < 4; i++) {
    assert_string_equal(zt_safetensors_get(st, i)->name, order[i]);
    assert_ptr_equal(zt_safetensors_find(st, order[i]), zt_safetensors_get(st, i));
    assert_memory_equal(zt_safetensors_get(st, i)->data, "1234", 4);
  }
  assert_null(zt_safetensors_metadata(st, "format"));
  zt_safetensors_close(st);
  assert_ok(open_map("{}", &st));
  assert_int_equal(zt_safetensors_count(st), 0);
  zt_safetensors_close(st);
}

static void test_sharded_errors(void **state) {
  static const char *const not_plain[] = {"../m-1.safetensors", "/etc/passwd", "a\\b", "..", ".", ""};
  (void)state;
  zt_safetensors *st;
  char map[256];
  const char *index = scratch_path("m.safetensors.index.json");
  for (size_t i = 0; i < sizeof not_plain / sizeof *not_plain; i++) {
    json_t *name = json_string(not_plain[i]);
    char *quoted = json_dumps(name, JSON_ENCODE_ANY);
    snprintf(map, sizeof map, "{\"a\":%s}", quoted);
    assert_fails(open_map(map, &st), ZT_FORMAT, "%s: weight_map: tensor 'a': '%s' is not the plain name of a file",
                 index, not_plain[i]);
    zt_free(quoted);
    json_decref(name);
  }
  assert_fails(open_map("{\"a\":3}", &st), ZT_FORMAT, "%s: weight_map: tensor 'a': '' is not the plain name of a file",
               index);
  assert_fails(open_map("[]", &st), ZT_FORMAT, "%s: no object 'weight_map'", index);
  assert_fails(
      open_map("{\"q\":\"m-1.safetensors\",\"b\":\"m-1.safetensors\",\"z\":\"m-2.safetensors\"}", &st), ZT_FORMAT,
      "%s: 2 tensors are not in the files that weight_map gives: 'q' (m-1.safetensors), 'z' (m-2.safetensors)", index);
  assert_fails(open_map("{\"a\":\"m-3.safetensors\"}", &st), ZT_IO, "cannot read '%s': No such file or directory",
               scratch_path("m-3.safetensors"));
  save_shard("m-3.safetensors", "b", NULL);
  assert_fails(open_map("{\"b\":\"m-1.safetensors\",\"c\":\"m-3.safetensors\"}", &st), ZT_FORMAT,
               "%s: tensor 'b' is both in %s and in %s", index, scratch_path("m-1.safetensors"),
               scratch_path("m-3.safetensors"));
  assert_null(st);
  const char *absent = scratch_path("absent.safetensors");
  assert_fails(zt_safetensors_open(absent, &st), ZT_IO, "cannot read '%s': No such file or directory", absent);
}

/* --- memory that fails */

static zt_status open_and_save(void *user) {
  static const char *const metadata[] = {"format", "pt", NULL};
  zt_safetensors *st;
  ZT_TRY(zt_safetensors_open(user, &st));
  zt_status status = save_again(st, scratch_path("out.safetensors"), metadata);
  zt_safetensors_close(st);
  return status;
}

static zt_status open_sharded(void *user) {
  zt_safetensors *st;
  zt_status status = zt_safetensors_open(user, &st);
  zt_safetensors_close(st);
  return status;
}

static void test_out_of_memory(void **state) {
  (void)state;
  zt_safetensors *st;
  char golden[512], index[512];
  snprintf(golden, sizeof golden, "%s/goldens/gpt2/model.safetensors", ZT_TEST_ROOT);
  snprintf(index, sizeof index, "%s", scratch_path("m.safetensors.index.json"));
  assert_true(fail_each_allocation(open_and_save, golden) > 100);
  assert_ok(open_map("{\"a\":\"m-2.safetensors\",\"b\":\"m-1.safetensors\",\"z\":\"m-1.safetensors\"}", &st));
  zt_safetensors_close(st);
  assert_true(fail_each_allocation(open_sharded, index) > 30);
  assert_int_equal(zt_mem_get_stats().n_live_blocks, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_hostile_headers),    cmocka_unit_test(test_lengths),
      cmocka_unit_test(test_unusual_but_valid),  cmocka_unit_test(test_round_trips),
      cmocka_unit_test(test_golden_files),       cmocka_unit_test(test_save_errors),
      cmocka_unit_test(test_save_meets_a_limit), cmocka_unit_test(test_sharded),
      cmocka_unit_test(test_sharded_errors),     cmocka_unit_test(test_out_of_memory),
  };
  printf("seed %llu\n", (unsigned long long)scratch_seed());
  return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
