/* Checkpoints of one process: what is read, what is found to be damaged, what a stranger's manifest may say, the checkpoints
** of a folder, export. Ranks and failures: test_checkpoint_faults.c. */
#include "tests/c/checkpoints.h"

#include <sys/file.h>

#include "core/base/hash.h"
#include "core/io/safetensors.h"

static char path[512]; /* of the checkpoint of a test */

static int setup(void **state) {
  int failed = scratch_setup(state);
  snprintf(path, sizeof path, "%s", scratch_path("ck"));
  return failed;
}

static int clear(void **state) {
  (void)state;
  remove_tree(scratch);
  return mkdir(scratch, 0700);
}

static char *manifest_path(void) {
  static char text[600];
  snprintf(text, sizeof text, "%s/manifest.json", path);
  return text;
}

/* --- what is read */

/* As it is, without a sync: these tests write thousands of times. */
static void write_plain(const char *file, const void *data, size_t nbytes) {
  FILE *f = fopen(file, "wb");
  assert_non_null(f);
  assert_int_equal(fwrite(data, 1, nbytes, f), nbytes);
  assert_int_equal(fclose(f), 0);
}

static void test_round_trip(void **state) {
  (void)state;
  const char *json = "{\"step\": -3, \"text\": \"\\\"\\u00e9\\n\", \"real\": 0.1}";
  zt_checkpoint *ck;
  assert_ok(save_alone(&(save){.t = &odd_tensors, .path = path, .version = 5, .json = json}));
  assert_ok(zt_checkpoint_open(path, &ck));
  assert_string_equal(zt_checkpoint_json(ck), json);
  assert_int_equal(zt_checkpoint_step(ck), -3);
  assert_ok(compare_all(ck, &odd_tensors, 5));
  assert_ok(zt_checkpoint_verify(ck));
  assert_null(zt_checkpoint_find(ck, "other"));
  zt_checkpoint_close(ck);
  zt_checkpoint_close(NULL);
  assert_int_equal(scratch_count(""), 1);
  assert_int_equal(scratch_count("ck"), 2);
}

static void test_no_tensors(void **state) {
  (void)state;
  tensors none = {odd_list, 0};
  assert_ok(save_version(&none, path, 1));
  assert_version(&none, path, 1);
}

static void test_ranges(void **state) {
  (void)state;
  zt_checkpoint *ck;
  assert_ok(save_version(&odd_tensors, path, 2));
  assert_ok(zt_checkpoint_open(path, &ck));
  for (int n = 0; n < 600; n++) {
    size_t i = scratch_below(odd_tensors.count);
    int64_t total = elements_of(&odd_list[i]), begin = (int64_t)scratch_below((uint64_t)total + 1);
    uint64_t most = (uint64_t)(total - begin) + 1;
    int64_t count = (int64_t)scratch_below(n % 8 && most > 1000 ? 1000 : most);
    assert_ok(compare_range(ck, &odd_tensors, 2, i, begin, count));
  }
  const zt_checkpoint_item *t = zt_checkpoint_find(ck, "three");
  char out[64];
  int64_t wrong[][2] = {{-1, 1}, {0, -1},        {0, 4},         {3, 1},
                        {4, 0},  {INT64_MAX, 1}, {1, INT64_MAX}, {INT64_MAX, INT64_MAX}};
  for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++)
    assert_fails(zt_checkpoint_read(ck, t, wrong[k][0], wrong[k][1], out), ZT_INVALID,
                 "'%s': there are no %lld elements from %lld on in tensor 'three' of 3", path, (long long)wrong[k][1],
                 (long long)wrong[k][0]);
  assert_ok(zt_checkpoint_read(ck, t, 3, 0, out));
  zt_checkpoint_close(ck);
}

/* --- replacing, and what may not be replaced */

static void test_replaces(void **state) {
  (void)state;
  char slashes[600];
  assert_ok(save_version(&odd_tensors, path, 1));
  assert_ok(save_version(&small_tensors, path, 2));
  assert_version(&small_tensors, path, 2);
  snprintf(slashes, sizeof slashes, "%s///", path);
  assert_ok(save_version(&small_tensors, slashes, 3));
  assert_version(&small_tensors, slashes, 3);
  assert_int_equal(scratch_count(""), 1);
  assert_int_equal(scratch_count("ck"), 2);
}

static void test_damaged_is_replaced(void **state) {
  (void)state;
  assert_ok(save_version(&small_tensors, path, 1));
  assert_int_equal(remove(manifest_path()), 0);
  assert_ok(save_version(&small_tensors, path, 2));
  assert_version(&small_tensors, path, 2);
  assert_int_equal(scratch_count(""), 1);
}

static void test_empty_folder_and_missing_parents(void **state) {
  (void)state;
  assert_int_equal(mkdir(path, 0700), 0);
  assert_ok(save_version(&small_tensors, path, 1));
  assert_version(&small_tensors, path, 1);
  assert_ok(save_version(&small_tensors, scratch_path("a/b/c"), 1));
  assert_version(&small_tensors, scratch_path("a/b/c"), 1);
}

static void test_relative_path(void **state) {
  (void)state;
  char before[512];
  assert_non_null(getcwd(before, sizeof before));
  assert_int_equal(chdir(scratch), 0);
  zt_status st = save_version(&small_tensors, "ck", 1);
  if (st == ZT_OK) st = save_version(&small_tensors, "ck", 2);
  assert_int_equal(chdir(before), 0);
  assert_ok(st);
  assert_version(&small_tensors, path, 2);
  assert_int_equal(scratch_count(""), 1);
}

static void test_wrong_targets(void **state) {
  (void)state;
  const char *file = scratch_path("file"), *link = scratch_path("link"), *home = scratch_path("home");
  scratch_write("file", "x", 1);
  assert_int_equal(symlink("/tmp", link), 0);
  assert_int_equal(mkdir(home, 0700), 0);
  scratch_write("home/thesis", "years of work", 13);
  assert_fails(save_version(&small_tensors, file, 1), ZT_IO, "cannot save the checkpoint '%s': '%s' is a file", file,
               file);
  assert_fails(save_version(&small_tensors, link, 1), ZT_IO, "cannot save the checkpoint '%s': '%s' is a symbolic link",
               link, link);
  assert_fails(
      save_version(&small_tensors, home, 1), ZT_IO,
      "cannot save the checkpoint '%s': '%s' is a folder of something else: it has 'thesis' and no manifest.json", home,
      home);
  assert_fails(save_version(&small_tensors, scratch_path("file/x"), 1), ZT_IO,
               "cannot save the checkpoint '%s': cannot look at '%s': Not a directory", scratch_path("file/x"),
               scratch_path("file/x"));
  assert_fails(save_version(&small_tensors, "", 1), ZT_INVALID, "cannot save the checkpoint '': the path is empty");
  assert_int_equal(scratch_count(""), 3);
  assert_int_equal(scratch_count("home"), 1);
}

/* What somebody put into a checkpoint's folder is not removed with it. */
static void test_foreign_files_stay(void **state) {
  (void)state;
  assert_ok(save_version(&small_tensors, path, 1));
  scratch_write("ck/notes.txt", "the good one", 12);
  assert_version(&small_tensors, path, 1);
  assert_ok(save_version(&small_tensors, path, 2));
  assert_version(&small_tensors, path, 2);
  assert_int_equal(scratch_count(""), 2);
  DIR *dir = opendir(scratch);
  for (struct dirent *e = readdir(dir); e; e = readdir(dir))
    if (strncmp(e->d_name, "ck.tmp.", 7) == 0) {
      assert_int_equal(scratch_count(e->d_name), 1);
      char name[160];
      snprintf(name, sizeof name, "%.100s/notes.txt", e->d_name);
      assert_true(zt_file_exists(scratch_path(name)));
    }
  closedir(dir);
}

static void rename_to_a(zt_checkpoint_item *items, int rank) { (void)rank, items[1].name = "a"; }
static void take_too_many(zt_checkpoint_item *items, int rank) { (void)rank, items[1].begin = 1; }
static void take_huge(zt_checkpoint_item *items, int rank) { (void)rank, items[1].count = INT64_MAX; }
static void leave_one_out(zt_checkpoint_item *items, int rank) { (void)rank, items[1].count = 2; }
static void leave_all_out(zt_checkpoint_item *items, int rank) { (void)rank, items[1].count = 0; }
static void grow(zt_checkpoint_item *items, int rank) {
  (void)rank, items[1].ndim = 3, items[1].shape[1] = items[1].shape[2] = 1 << 30;
}
static void shrink(zt_checkpoint_item *items, int rank) { (void)rank, items[1].shape[0] = -1; }
static void deepen(zt_checkpoint_item *items, int rank) { (void)rank, items[1].ndim = 7; }
static void garble(zt_checkpoint_item *items, int rank) { (void)rank, items[1].name = "\xff"; }

static void test_wrong_arguments(void **state) {
  (void)state;
  const struct {
    void (*change)(zt_checkpoint_item *items, int rank);
    const char *json, *message;
    zt_status status;
  } cases[] = {
      {rename_to_a, NULL, "tensor 'a' is given twice", ZT_INVALID},
      {take_too_many, NULL, "tensor 'b': a part of 3 elements from 1 on; the tensor has 3", ZT_INVALID},
      {take_huge, NULL, "tensor 'b': a part of 9223372036854775807 elements from 0 on; the tensor has 3", ZT_INVALID},
      {leave_one_out, NULL, "tensor 'b': element 2 is on no rank", ZT_INVALID},
      {leave_all_out, NULL, "tensor 'b': element 0 is on no rank", ZT_INVALID},
      {grow, NULL, "tensor 'b': its shape cannot be counted", ZT_SHAPE},
      {shrink, NULL, "tensor 'b': its shape cannot be counted", ZT_SHAPE},
      {deepen, NULL, "tensor 'b': 7 dimensions; there can be 0 to 6", ZT_INVALID},
      {garble, NULL, "tensor '\xff': its name is not UTF-8", ZT_INVALID},
      {NULL, "{}", "the checkpoint's JSON is not an object with an integer 'step'", ZT_INVALID},
      {NULL, "[1]", "the checkpoint's JSON is not an object with an integer 'step'", ZT_INVALID},
      {NULL, "{\"step\": 1.5}", "the checkpoint's JSON is not an object with an integer 'step'", ZT_INVALID},
      {NULL, "{", "the checkpoint's JSON: line 1, column 1: string or '}' expected near end of file", ZT_FORMAT},
  };
  assert_ok(save_version(&small_tensors, path, 1));
  for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
    save s = {.t = &small_tensors, .path = path, .version = 2, .change = cases[k].change, .json = cases[k].json};
    assert_fails(save_alone(&s), cases[k].status, "cannot save the checkpoint '%s': %s", path, cases[k].message);
    assert_int_equal(scratch_count(""), 1);
  }
  assert_version(&small_tensors, path, 1);
}

/* --- damage */

/* What stands at 'path' must not be taken for whole; the message names the file. */
static void assert_damaged(const char *name) {
  zt_checkpoint *ck;
  zt_status st = zt_checkpoint_open(path, &ck);
  if (st == ZT_OK) {
    st = zt_checkpoint_verify(ck);
    zt_checkpoint_close(ck);
  }
  if (st != ZT_FORMAT && st != ZT_IO)
    fail_msg("damage of '%s' was not found; ZT_TEST_SEED=%llu", name, (unsigned long long)scratch_seed());
  if (!strstr(zt_message(), name)) fail_msg("'%s' does not name '%s'", zt_message(), name);
}

static void flip_bit(const char *file, size_t bit) {
  unsigned char byte;
  FILE *f = fopen(file, "r+b");
  assert_non_null(f);
  assert_int_equal(fseek(f, (long)(bit / 8), SEEK_SET), 0);
  assert_int_equal(fread(&byte, 1, 1, f), 1);
  byte ^= (unsigned char)(1u << bit % 8);
  assert_int_equal(fseek(f, (long)(bit / 8), SEEK_SET), 0);
  assert_int_equal(fwrite(&byte, 1, 1, f), 1);
  assert_int_equal(fclose(f), 0);
}

static size_t nbytes_of(const char *file) {
  struct stat info;
  assert_int_equal(stat(file, &info), 0);
  return (size_t)info.st_size;
}

static void test_every_bit(void **state) {
  (void)state;
  assert_ok(save_version(&small_tensors, path, 1));
  char files[2][1024];
  snprintf(files[0], sizeof files[0], "%s", manifest_path());
  snprintf(files[1], sizeof files[1], "%s", data_file(path, 0));
  for (int k = 0; k < 2; k++)
    for (size_t bit = 0; bit < 8 * nbytes_of(files[k]); bit++) {
      flip_bit(files[k], bit);
      assert_damaged(files[k]);
      flip_bit(files[k], bit);
    }
  assert_version(&small_tensors, path, 1);
}

static void test_flips_of_a_large_one(void **state) {
  (void)state;
  char file[1024];
  assert_ok(save_version(&odd_tensors, path, 1));
  snprintf(file, sizeof file, "%s", data_file(path, 0));
  for (int n = 0; n < 60; n++) {
    size_t bits[3], count = n % 3 + 1;
    for (size_t k = 0; k < count; k++) flip_bit(file, bits[k] = scratch_below(8 * nbytes_of(file)));
    if (count == 1 || bits[0] != bits[1]) assert_damaged(file);
    for (size_t k = 0; k < count; k++) flip_bit(file, bits[k]);
  }
  assert_version(&odd_tensors, path, 1);
}

/* Reading finds what it touches, and says where; what it does not touch can be read. */
static void test_reading_damage(void **state) {
  (void)state;
  char file[1024];
  float out[4];
  zt_checkpoint *ck;
  assert_ok(save_version(&odd_tensors, path, 1));
  snprintf(file, sizeof file, "%s", data_file(path, 0));
  flip_bit(file, 8 * (2 * (size_t)BLOCK + 17)); /* the third block: within 'large' */
  assert_ok(zt_checkpoint_open(path, &ck));
  const zt_checkpoint_item *large = zt_checkpoint_find(ck, "large");
  for (int n = 0; n < 2; n++) {
    assert_ok(compare_range(ck, &odd_tensors, 1, 6, 0, 1000));
    assert_fails(zt_checkpoint_read(ck, large, large->count - 4, 4, out), ZT_FORMAT,
                 "tensor 'large', elements %lld to %lld: '%s' is damaged: bytes %d to %zu do not have their checksum",
                 (long long)(large->count - 4), (long long)(large->count - 1), file, 2 * BLOCK, nbytes_of(file) - 1);
  }
  assert_fails(zt_checkpoint_verify(ck), ZT_FORMAT,
               "tensor 'large': '%s' is damaged: bytes %d to %zu do not have their checksum", file, 2 * BLOCK,
               nbytes_of(file) - 1);
  zt_checkpoint_close(ck);
}

static void test_lengths(void **state) {
  (void)state;
  char data[1024], *text;
  size_t nbytes;
  assert_ok(save_version(&small_tensors, path, 1));
  snprintf(data, sizeof data, "%s", data_file(path, 0));
  assert_ok(zt_file_read(manifest_path(), &text, &nbytes));
  for (size_t n = 0; n < nbytes; n++) {
    assert_int_equal(truncate(manifest_path(), (off_t)n), 0);
    assert_damaged(manifest_path());
    write_plain(manifest_path(), text, nbytes);
  }
  assert_ok(zt_file_append(manifest_path(), "\n", 1));
  assert_damaged(manifest_path());
  write_plain(manifest_path(), text, nbytes);
  zt_free(text);
  zt_checkpoint *ck;
  size_t whole = nbytes_of(data);
  for (size_t n = 0; n <= whole + 1; n++) {
    assert_int_equal(truncate(data, (off_t)n), 0);
    if (n != whole)
      assert_fails(zt_checkpoint_open(path, &ck), ZT_FORMAT, "'%s' is damaged: it has %zu bytes, not %zu", data, n,
                   whole);
  }
}

static void test_missing_and_extra_files(void **state) {
  (void)state;
  zt_checkpoint *ck;
  char data[1024];
  assert_ok(save_version(&small_tensors, path, 1));
  snprintf(data, sizeof data, "%s", data_file(path, 0));
  scratch_write("ck/rank-9.bin", "extra", 5);
  assert_version(&small_tensors, path, 1);
  assert_int_equal(rename(data, scratch_path("aside")), 0);
  assert_fails(zt_checkpoint_open(path, &ck), ZT_IO, "cannot read '%s': No such file or directory", data);
  assert_null(ck);
  assert_int_equal(mkdir(data, 0700), 0);
  assert_fails(zt_checkpoint_open(path, &ck), ZT_IO, "cannot read '%s': it is a folder", data);
  assert_int_equal(rmdir(data), 0);
  assert_int_equal(rename(scratch_path("aside"), data), 0);
  assert_int_equal(remove(manifest_path()), 0);
  assert_fails(zt_checkpoint_open(path, &ck), ZT_IO, "cannot read '%s': No such file or directory", manifest_path());
  assert_fails(zt_checkpoint_open(scratch_path("no"), &ck), ZT_IO,
               "cannot read '%s/manifest.json': No such file or directory", scratch_path("no"));
}

/* --- manifests of strangers, with a true checksum */

/* 'from' in the manifest becomes 'to', and the first line what it has to be. */
static void edit_manifest(const char *from, const char *to) {
  static char edited[1 << 14];
  char *text, head[40];
  size_t nbytes;
  assert_ok(zt_file_read(manifest_path(), &text, &nbytes));
  char *found = strstr(text, from);
  if (!found) fail_msg("'%s' is not in the manifest: %s", from, text);
  snprintf(edited, sizeof edited, "%.*s%s%s", (int)(found - text), text, to, found + strlen(from));
  snprintf(head, sizeof head, "{\"checksum\":\"%016llx\",\n",
           (unsigned long long)zt_hash_bytes(0, edited + 32, strlen(edited) - 32));
  memcpy(edited, head, 32);
  write_plain(manifest_path(), edited, strlen(edited));
  zt_free(text);
}

static void test_strange_manifests(void **state) {
  (void)state;
  static const struct {
    const char *from, *to, *message;
  } cases[] = {
      {"ztrain checkpoint", "tar", "its format is 'tar', not 'ztrain checkpoint'"},
      {"\"version\":1", "\"version\":2", "its version is 2; this program reads version 1"},
      {"\"version\":1", "\"version\":null", "its version is 0; this program reads version 1"},
      {"\"step\":1", "\"step\":1.0", "it has no integer 'step' or no string 'json'"},
      {"\"json\":\"", "\"jso\":\"", "it has no integer 'step' or no string 'json'"},
      {"\"files\"", "\"file\"", "there is no list 'files'"},
      {"\"name\":\"rank", "\"name\":\"/rank", "file 0: '/rank-0.NUMBER.bin' is not the plain name of a file"},
      {"\"name\":\"rank", "\"name\":\"../rank", "file 0: '../rank-0.NUMBER.bin' is not the plain name of a file"},
      {"\"name\":\"rank", "\"name\":\"sub/rank", "file 0: 'sub/rank-0.NUMBER.bin' is not the plain name of a file"},
      {"\"name\":\"rank", "\"name\":7, \"x\":\"rank", "file 0: '' is not the plain name of a file"},
      {"\"nbytes\":161", "\"nbytes\":-1", "file 0: 'nbytes' is not a whole number from 0 on"},
      {"\"nbytes\":161", "\"nbytes\":161.5", "file 0: 'nbytes' is not a whole number from 0 on"},
      {"\"nbytes\":161", "\"nbytes\":9223372036854775807",
       "file 0: its 9223372036854775807 bytes do not have 2199023255552 checksums"},
      {"\"nbytes\":161", "\"nbytes\":0", "file 0: its 0 bytes do not have 0 checksums"},
      {"\"checksums\":\"", "\"checksums\":\"0", "file 0: its 161 bytes do not have 1 checksums"},
      {"\"checksums\":\"", "\"checksums\":\"0000000000000000", "file 0: its 161 bytes do not have 1 checksums"},
      {"\"checksums\":\"", "\"checksums\":[], \"x\":\"", "file 0: its 161 bytes do not have 1 checksums"},
      {"\"checksums\":\"", "\"checksums\":\"xxxxxxxxxxxxxxxx\",\"x\":\"", "file 0: its checksums are not hexadecimal"},
      {"\"tensors\"", "\"tensor\"", "there is no list 'tensors'"},
      {"\"name\":\"a\"", "\"nam\":\"a\"", "tensor 0 has no name"},
      {"\"name\":\"a\"", "\"name\":\"b\"", "tensor 'b' is there twice"},
      {"\"float32\"", "\"F32\"", "tensor 'a': its dtype is 'F32'"},
      {"\"shape\":[3,5]", "\"shape\":15", "tensor 'a': its 'shape' is not a list of up to 6 sizes"},
      {"\"shape\":[3,5]", "\"shape\":[3,5,1,1,1,1,1]", "tensor 'a': its 'shape' is not a list of up to 6 sizes"},
      {"\"shape\":[3,5]", "\"shape\":[3,-5]", "tensor 'a': a size is not a whole number from 0 on"},
      {"\"shape\":[3,5]", "\"shape\":[4294967296,4294967296]",
       "tensor 'a': its shape has more elements than can be addressed"},
      {"\"shape\":[3,5]", "\"shape\":[3,6]", "tensor 'a': its pieces have 15 elements of 18"},
      {"\"shape\":[3,5]", "\"shape\":[3,4]", "tensor 'a': a piece has 15 elements from 0 on, after 0 of 12"},
      {"\"shape\":[3,5]", "\"shape\":[0,5]", "tensor 'a': a piece has 15 elements from 0 on, after 0 of 0"},
      {"[[0,0,0,15]]", "[]", "tensor 'a': its pieces have 0 elements of 15"},
      {"[[0,0,0,15]]", "[0,0,0,15]", "tensor 'a': a piece's file is not a whole number from 0 on"},
      {"[[0,0,0,15]]", "[[1,0,0,15]]", "tensor 'a': a piece is in file 1 of 1"},
      {"[[0,0,0,15]]", "[[0,-64,0,15]]", "tensor 'a': a piece's offset is not a whole number from 0 on"},
      {"[[0,0,0,15]]", "[[0,102,0,15]]", "tensor 'a': a piece reaches past the end of file 0"},
      {"[[0,0,0,15]]", "[[0,9223372036854775807,0,15]]", "tensor 'a': a piece reaches past the end of file 0"},
      {"[[0,0,0,15]]", "[[0,0,0,9223372036854775807]]", "tensor 'a': a piece reaches past the end of file 0"},
      {"[[0,0,0,15]]", "[[0,0,1,14]]", "tensor 'a': a piece has 14 elements from 1 on, after 0 of 15"},
      {"[[0,0,0,15]]", "[[0,0,0,8],[0,32,7,8]]", "tensor 'a': a piece has 8 elements from 7 on, after 8 of 15"},
      {"[[0,0,0,15]]", "[[0,0,0,0],[0,0,0,15]]", "tensor 'a': a piece has 0 elements from 0 on, after 0 of 15"},
      {"[[0,0,0,15]]", "[[0,8,0,15]]", "two pieces overlap at byte 64 of file 0"},
      {"[[0,0,0,15]]", "[[0,0,0,8],[0,28,8,7]]", "two pieces overlap at byte 28 of file 0"},
  };
  char *text, name[1024], data[512];
  size_t nbytes;
  zt_checkpoint *ck;
  assert_ok(save_version(&small_tensors, path, 1));
  assert_ok(zt_file_read(manifest_path(), &text, &nbytes));
  snprintf(data, sizeof data, "%.500s", strrchr(data_file(path, 0), '/') + 1);
  for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
    edit_manifest(cases[k].from, cases[k].to);
    const char *hole = strstr(cases[k].message, "rank-0.NUMBER.bin");
    if (hole)
      snprintf(name, sizeof name, "%.*s%.200s%.200s", (int)(hole - cases[k].message), cases[k].message, data,
               hole + 17);
    else
      snprintf(name, sizeof name, "%s", cases[k].message);
    assert_fails(zt_checkpoint_open(path, &ck), ZT_FORMAT, "'%s': %s", manifest_path(), name);
    assert_null(ck);
    write_plain(manifest_path(), text, nbytes);
  }
  edit_manifest("\"step\":1", "\"new key\":[{}],\"step\":7");
  assert_ok(zt_checkpoint_open(path, &ck));
  assert_int_equal(zt_checkpoint_step(ck), 7);
  zt_checkpoint_close(ck);
  edit_manifest("]}", "]}]");
  assert_int_equal(zt_checkpoint_open(path, &ck), ZT_FORMAT);
  zt_free(text);
}

/* A tensor's pieces in another order in the file, and cut anywhere: read all the same. */
static void test_other_layouts(void **state) {
  (void)state;
  zt_checkpoint *ck;
  float a[15], expected[15];
  assert_ok(save_version(&small_tensors, path, 1));
  edit_manifest("[[0,0,0,15]]", "[[0,20,0,10],[0,0,10,5]]");
  assert_ok(zt_checkpoint_open(path, &ck));
  assert_ok(zt_checkpoint_read(ck, zt_checkpoint_get(ck, 0), 0, 15, a));
  expected_bytes(&small_tensors, 1, 0, 5, 10, expected);
  expected_bytes(&small_tensors, 1, 0, 0, 5, expected + 10);
  assert_memory_equal(a, expected, sizeof a);
  zt_checkpoint_close(ck);
}

/* --- the checkpoints of a folder */

static char notices[4096];
static void keep_notice(void *user, const char *line) {
  (void)user;
  snprintf(notices + strlen(notices), sizeof notices - strlen(notices), "%s\n", line);
}

static void save_at(const char *name, uint64_t step) {
  assert_ok(save_version(&small_tensors, scratch_path(name), step));
}

static void assert_latest(const char *name) {
  char *found;
  assert_ok(zt_checkpoint_latest(scratch, &found));
  assert_string_equal(found, scratch_path(name));
  zt_free(found);
}

static void test_latest(void **state) {
  (void)state;
  char *found;
  *notices = 0;
  zt_log_set_sink(keep_notice, NULL);
  assert_fails(zt_checkpoint_latest(scratch_path("no"), &found), ZT_IO,
               "cannot read the folder '%s': No such file or directory", scratch_path("no"));
  assert_fails(zt_checkpoint_latest(scratch, &found), ZT_IO,
               "'%s' has no checkpoint (a folder step_N or epoch_N); it has: nothing", scratch);
  save_at("ck", 1000); /* of no name that counts */
  assert_fails(zt_checkpoint_latest(scratch, &found), ZT_IO,
               "'%s' has no checkpoint (a folder step_N or epoch_N); it has: ck", scratch);
  assert_null(found);
  save_at("step_9", 9);
  assert_latest("step_9");
  save_at("step_10", 10);
  assert_latest("step_10"); /* not by the order of letters */
  save_at("epoch_3", 10);
  assert_latest("epoch_3"); /* which ends after step 10 */
  save_at("step_5", 12);
  assert_latest("step_5"); /* nor by the number in the name */
  save_at("epoch_2", 3);
  save_at("step_99x", 99);
  save_at("step_", 99);
  save_at("xstep_99", 99);
  assert_int_equal(mkdir(scratch_path("step_77.tmp.0123456789abcdef"), 0700), 0);
  scratch_write("step_98.txt", "", 0);
  assert_latest("step_5");
  assert_string_equal(notices, "");
  assert_int_equal(mkdir(scratch_path("step_100"), 0700), 0);
  scratch_write("step_101", "", 0);
  assert_latest("step_5");
  assert_non_null(strstr(notices, "a checkpoint is passed over: cannot read '"));
  *notices = 0;
  flip_bit(scratch_path("step_5/manifest.json"), 8 * 100);
  assert_latest("epoch_3");
  char line[1024];
  snprintf(line, sizeof line, "a checkpoint is passed over: '%s' is damaged: it does not have its checksum\n",
           scratch_path("step_5/manifest.json"));
  assert_non_null(strstr(notices, line));
  zt_log_set_sink(NULL, NULL);
}

static void test_latest_of_damaged_ones(void **state) {
  (void)state;
  char *found;
  save_at("step_1", 1);
  flip_bit(scratch_path("step_1/manifest.json"), 8 * 100);
  assert_fails(zt_checkpoint_latest(scratch, &found), ZT_IO,
               "'%s' has no complete checkpoint: '%s' is damaged: it does not have its checksum", scratch,
               scratch_path("step_1/manifest.json"));
}

static void test_prune(void **state) {
  (void)state;
  for (int n = 1; n <= 5; n++) {
    char name[32];
    snprintf(name, sizeof name, n == 3 ? "epoch_%d" : "step_%d", 20 - n);
    save_at(name, (uint64_t)n);
  }
  save_at("ck", 0);
  save_at("step_1", 100);
  flip_bit(scratch_path("step_1/manifest.json"), 8 * 100);
  assert_fails(zt_checkpoint_prune(scratch, 0), ZT_INVALID, "0 checkpoints are to stay; 1 is the least");
  assert_fails(zt_checkpoint_prune(scratch_path("no"), 1), ZT_IO,
               "cannot read the folder '%s': No such file or directory", scratch_path("no"));
  assert_ok(zt_checkpoint_prune(scratch, 5));
  assert_int_equal(scratch_count(""), 7);
  assert_ok(zt_checkpoint_prune(scratch, 2));
  assert_int_equal(scratch_count(""), 4); /* also those that are no checkpoints, and the damaged one */
  assert_version(&small_tensors, scratch_path("step_15"), 5);
  assert_version(&small_tensors, scratch_path("step_16"), 4);
  assert_version(&small_tensors, scratch_path("ck"), 0);
  scratch_write("step_16/notes.txt", "", 0);
  assert_ok(zt_checkpoint_prune(scratch, 1));
  assert_false(zt_file_exists(scratch_path("step_16")));
  assert_int_equal(scratch_count(""), 4); /* what is not ours stays, aside */
}

static void test_prune_of_unfinished(void **state) {
  (void)state;
  const char *name = "step_7.tmp.0123456789abcdef";
  const char *const others[] = {"step_7.tmp.0123456789abcde", "step_7.tmp.0123456789abcdeX", "ck.tmp.0123456789abcdef",
                                NULL};
  for (int i = 0; others[i]; i++) assert_int_equal(mkdir(scratch_path(others[i]), 0700), 0);
  assert_int_equal(mkdir(scratch_path(name), 0700), 0);
  scratch_write("step_7.tmp.0123456789abcdef/rank-0.0123456789abcdef.bin.tmp.123", "", 0);
  int fd = open(scratch_path(name), O_RDONLY | O_CLOEXEC);
  assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0); /* as its writer does */
  assert_ok(zt_checkpoint_prune(scratch, 1));
  assert_int_equal(scratch_count(name), 1);
  close(fd);
  assert_ok(zt_checkpoint_prune(scratch, 1));
  assert_false(zt_file_exists(scratch_path(name)));
  assert_int_equal(scratch_count(""), 3);
  assert_ok(save_version(&small_tensors, path, 1)); /* which removes what was left of it */
  assert_int_equal(scratch_count(""), 3);
}

/* --- export */

static const zt_checkpoint_item float_list[] = {
    {.name = "f32", .dtype = ZT_F32, .ndim = 1, .shape = {200001}},
    {.name = "f64", .dtype = ZT_F64, .ndim = 2, .shape = {31, 17}},
    {.name = "bf16", .dtype = ZT_BF16, .ndim = 1, .shape = {65536}},
    {.name = "f16", .dtype = ZT_F16, .ndim = 1, .shape = {65536}},
    {.name = "ids", .dtype = ZT_I64, .ndim = 1, .shape = {5}},
};
static const tensors float_tensors = {float_list, 5};

static double value_at(zt_dtype t, const void *data, size_t i) {
  float f;
  double d;
  uint16_t h;
  const char *p = (const char *)data + i * zt_dtype_nbytes(t);
  memcpy(&f, p, t == ZT_F32 ? sizeof f : 0), memcpy(&d, p, t == ZT_F64 ? sizeof d : 0), memcpy(&h, p, sizeof h);
  return t == ZT_F32 ? (double)f : t == ZT_F64 ? d : (double)(t == ZT_BF16 ? zt_bf16_to_f32(h) : zt_f16_to_f32(h));
}

/* Bits of 'value' in dtype t, by way of float32 for those of 16 bits. */
static uint64_t bits_of(zt_dtype t, double value) {
  uint64_t bits = 0;
  float f = (float)value;
  uint16_t h = t == ZT_BF16 ? zt_f32_to_bf16(f) : zt_f32_to_f16(f);
  memcpy(&bits, t == ZT_F64 ? (void *)&value : t == ZT_F32 ? (void *)&f : (void *)&h, zt_dtype_nbytes(t));
  return bits;
}

static void check_exported(const zt_safetensors_entry *e, size_t i, zt_dtype to) {
  zt_dtype from = float_list[i].dtype;
  size_t count = (size_t)elements_of(&float_list[i]), each = zt_dtype_nbytes(to);
  void *data = malloc(count * 8);
  assert_non_null(e);
  assert_int_equal(e->dtype, to);
  assert_int_equal(e->nbytes, count * each);
  expected_bytes(&float_tensors, 1, i, 0, (int64_t)count, data);
  if (from == to) assert_memory_equal(e->data, data, count * each);
  for (size_t k = 0; k < count && from != to; k++) {
    double value = value_at(from, data, k);
    uint64_t got = 0, expected = bits_of(to, value);
    memcpy(&got, (const char *)e->data + k * each, each);
    if (got != expected && value == value) /* a NaN may become another */
      fail_msg("%s element %zu: %llx, not %llx", e->name, k, (unsigned long long)got, (unsigned long long)expected);
  }
  free(data);
}

static void test_export(void **state) {
  (void)state;
  zt_checkpoint *ck;
  zt_safetensors *st;
  const zt_dtype dtypes[] = {ZT_F32, ZT_F64, ZT_BF16, ZT_F16};
  const char *const names[] = {"ids", "f16", "f32", "f64", "bf16"};
  const char *const as[] = {"x.ids", "x.f16", "x.f32", "x.f64", "x.bf16"};
  const char *file = scratch_path("model.safetensors");
  assert_ok(save_version(&float_tensors, path, 1));
  assert_ok(zt_checkpoint_open(path, &ck));
  for (int k = 0; k < 4; k++) {
    zt_dtype to[] = {ZT_I64, dtypes[k], dtypes[k], dtypes[k], dtypes[k]};
    assert_ok(zt_checkpoint_export(ck, file, names, as, to, 5));
    assert_ok(zt_safetensors_open(file, &st));
    assert_int_equal(zt_safetensors_count(st), 5);
    assert_string_equal(zt_safetensors_metadata(st, "format"), "pt");
    assert_string_equal(zt_safetensors_get(st, 0)->name, "x.ids");
    check_exported(zt_safetensors_find(st, "x.ids"), 4, ZT_I64);
    check_exported(zt_safetensors_find(st, "x.f32"), 0, dtypes[k]);
    check_exported(zt_safetensors_find(st, "x.f64"), 1, dtypes[k]);
    check_exported(zt_safetensors_find(st, "x.bf16"), 2, dtypes[k]);
    check_exported(zt_safetensors_find(st, "x.f16"), 3, dtypes[k]);
    zt_safetensors_close(st);
  }
  const char *const absent[] = {"no"};
  assert_fails(zt_checkpoint_export(ck, file, absent, as, dtypes, 1), ZT_INVALID, "the checkpoint has no tensor 'no'");
  assert_fails(zt_checkpoint_export(ck, file, names, as, dtypes, 1), ZT_DTYPE,
               "tensor 'ids' is int64, and cannot be written as float32");
  assert_ok(zt_checkpoint_export(ck, file, names, as, dtypes, 0));
  zt_checkpoint_close(ck);
  flip_bit(data_file(path, 0), 8 * 1000);
  write_plain(file, "old", 3);
  assert_ok(zt_checkpoint_open(path, &ck));
  assert_int_equal(zt_checkpoint_export(ck, file, names + 2, as + 2, dtypes, 1), ZT_FORMAT);
  assert_int_equal(nbytes_of(file), 3);
  zt_checkpoint_close(ck);
}

/* --- memory: an allocator that counts bytes, in a process of its own */

static size_t live, peak;

static void *counting(void *user, void *block, size_t nbytes) {
  (void)user;
  size_t *old = block ? (size_t *)block - 2 : NULL;
  live -= old ? *old : 0;
  if (nbytes == 0) return free(old), NULL;
  size_t *now = realloc(old, nbytes + 16);
  if (!now) abort();
  *now = nbytes;
  live += nbytes;
  if (live > peak) peak = live;
  return now + 2;
}

static const zt_checkpoint_item huge_list[] = {
    {.name = "first", .dtype = ZT_F32, .ndim = 1, .shape = {9 << 20}},
    {.name = "second", .dtype = ZT_BF16, .ndim = 1, .shape = {12345678}},
};
static const tensors huge_tensors = {huge_list, 2};

static zt_status quick(void *user, size_t i, int64_t begin, int64_t count, void *out) {
  const save *s = user;
  (void)begin;
  memset(out, 1, (size_t)count * zt_dtype_nbytes(s->t->list[i].dtype));
  return ZT_OK;
}

static zt_status read_parts(const char *file) {
  zt_checkpoint *ck;
  static char out[3000000];
  ZT_TRY(zt_checkpoint_open(path, &ck));
  zt_status st = ZT_OK;
  for (size_t i = 0; i < 2; i++) {
    const zt_checkpoint_item *t = zt_checkpoint_get(ck, i);
    for (int64_t at = 0, n; at < t->count && st == ZT_OK; at += n) {
      n = t->count - at < 700001 ? t->count - at : 700001;
      st = zt_checkpoint_read(ck, t, at, n, out);
    }
  }
  const char *const names[] = {"second", "first"};
  const zt_dtype dtypes[] = {ZT_F32, ZT_F16};
  if (st == ZT_OK) st = zt_checkpoint_export(ck, file, names, names, dtypes, 2);
  if (st == ZT_OK) st = zt_checkpoint_verify(ck);
  zt_checkpoint_close(ck);
  return st;
}

static int measure(void) {
  zt_mem_hook hook = {counting, NULL};
  if (zt_mem_set_hook(&hook) != ZT_OK) return 1;
  if (save_alone(&(save){.t = &huge_tensors, .path = path, .version = 1, .source = quick}) != ZT_OK) return 2;
  if (live != 0 || peak > (4 << 20) + (64 << 10)) return 3;
  peak = 0;
  if (read_parts(scratch_path("export")) != ZT_OK) return 4;
  if (live != 0 || peak > (12 << 20) + (64 << 10)) return 5;
  return 0;
}

static void test_memory_is_constant(void **state) {
  (void)state;
  int status;
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) _exit(measure());
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, 0);
}

/* --- failing allocations */

static zt_status save_again(void *user) {
  (void)user;
  zt_status st = save_version(&small_tensors, path, 2);
  if (st != ZT_OK) {
    uint64_t n_live = zt_mem_get_stats().n_live_blocks;
    char message[2048];
    snprintf(message, sizeof message, "%s", zt_message());
    zt_mem_fail_at(0, false);
    assert_int_equal(scratch_count(""), 1);
    assert_version(&small_tensors, path, 1);
    assert_int_equal(zt_mem_get_stats().n_live_blocks, n_live);
    zt_fail(st, "%s", message);
  }
  return st;
}

static zt_status load_and_more(void *user) {
  zt_checkpoint *ck;
  char *found, out[128];
  (void)user;
  ZT_TRY(zt_checkpoint_latest(scratch, &found));
  zt_status st = zt_checkpoint_open(found, &ck);
  zt_free(found);
  ZT_TRY(st);
  const char *const names[] = {"a", "b"};
  const zt_dtype dtypes[] = {ZT_BF16, ZT_I64};
  for (size_t i = 0; i < 3 && st == ZT_OK; i++) st = zt_checkpoint_read(ck, zt_checkpoint_get(ck, i), 1, 2, out);
  if (st == ZT_OK) st = zt_checkpoint_verify(ck);
  if (st == ZT_OK) st = zt_checkpoint_export(ck, scratch_path("export"), names, names, dtypes, 2);
  zt_checkpoint_close(ck);
  if (st == ZT_OK) st = zt_checkpoint_prune(scratch, 1);
  return st;
}

static void test_out_of_memory(void **state) {
  (void)state;
  assert_ok(save_version(&small_tensors, path, 1));
  assert_true(fail_each_allocation(save_again, NULL) > 15);
  assert_version(&small_tensors, path, 2);
  save_at("step_1", 1);
  save_at("step_2", 2);
  assert_true(fail_each_allocation(load_and_more, NULL) > 30);
  assert_latest("step_2");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(test_round_trip, clear),
      cmocka_unit_test_setup(test_no_tensors, clear),
      cmocka_unit_test_setup(test_ranges, clear),
      cmocka_unit_test_setup(test_replaces, clear),
      cmocka_unit_test_setup(test_damaged_is_replaced, clear),
      cmocka_unit_test_setup(test_empty_folder_and_missing_parents, clear),
      cmocka_unit_test_setup(test_relative_path, clear),
      cmocka_unit_test_setup(test_wrong_targets, clear),
      cmocka_unit_test_setup(test_foreign_files_stay, clear),
      cmocka_unit_test_setup(test_wrong_arguments, clear),
      cmocka_unit_test_setup(test_every_bit, clear),
      cmocka_unit_test_setup(test_flips_of_a_large_one, clear),
      cmocka_unit_test_setup(test_reading_damage, clear),
      cmocka_unit_test_setup(test_lengths, clear),
      cmocka_unit_test_setup(test_missing_and_extra_files, clear),
      cmocka_unit_test_setup(test_strange_manifests, clear),
      cmocka_unit_test_setup(test_other_layouts, clear),
      cmocka_unit_test_setup(test_latest, clear),
      cmocka_unit_test_setup(test_latest_of_damaged_ones, clear),
      cmocka_unit_test_setup(test_prune, clear),
      cmocka_unit_test_setup(test_prune_of_unfinished, clear),
      cmocka_unit_test_setup(test_export, clear),
      cmocka_unit_test_setup(test_memory_is_constant, clear),
      cmocka_unit_test_setup(test_out_of_memory, clear),
  };
  return cmocka_run_group_tests(tests, setup, scratch_teardown);
}
