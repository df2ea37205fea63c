/* Text files as token blocks: the cut, the cache, any number of threads. The tokenizer is a stand-in whose ids are known:
** 256 where it is called, then the bytes. So corpus.c is compiled into this file, under names of its own, to call it. */
#define zt_tokenizer_encode fake_encode
#define zt_tokenizer_hash fake_hash
#define zt_corpus_open tested_corpus_open
#define zt_corpus_close tested_corpus_close
#define zt_corpus_block_count tested_corpus_block_count
#define zt_corpus_token_count tested_corpus_token_count
#define zt_corpus_get_block tested_corpus_get_block
#include "core/data/corpus.c" /* NOLINT(bugprone-suspicious-include) */

#include "tests/c/scratch.h"

#include <fcntl.h>
#include <math.h>
#include <omp.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/wait.h>

struct zt_tokenizer {
  uint64_t hash;
  const char *refused; /* fails on a line that is this */
};

static _Atomic int n_encoded;

zt_status zt_tokenizer_encode(const zt_tokenizer *with, const char *text, size_t nbytes, const zt_encode_options *o,
                              zt_ids *ids) {
  atomic_fetch_add(&n_encoded, 1);
  assert_false(o->add_special_tokens);
  if (with->refused && nbytes == strlen(with->refused) && memcmp(text, with->refused, nbytes) == 0)
    return zt_fail(ZT_INVALID, "refused");
  if (ids->count + nbytes + 1 > ids->capacity) {
    size_t capacity = 2 * (ids->count + nbytes + 1);
    int64_t *data = zt_realloc(ids->data, capacity * sizeof *data);
    ZT_CHECK_ALLOC(data);
    ids->data = data, ids->capacity = capacity;
  }
  ids->data[ids->count++] = 256;
  for (size_t i = 0; i < nbytes; i++) ids->data[ids->count++] = (unsigned char)text[i];
  return ZT_OK;
}
uint64_t zt_tokenizer_hash(const zt_tokenizer *with) { return with->hash; }

static const zt_tokenizer tok = {.hash = 7};

/* --- a text, and the blocks that it must give */

static char text[1 << 20];
static size_t text_nbytes;
static int text_lines; /* a last line without its end counts, but where it is empty */
static int64_t expected[1 << 20];

static void make_text(int n_lines) {
  static const char *const ends[] = {"\n", "\n", "\n", "\r\n", " \n"};
  text_nbytes = 0;
  for (int i = 0; i < n_lines; i++) {
    for (uint64_t n = scratch_below(40) * scratch_below(3); n; n--) {
      char c = (char)scratch_below(256);
      text[text_nbytes++] = c == '\n' ? '\r' : c;
    }
    const char *end = ends[scratch_below(5)];
    if (i + 1 < n_lines || scratch_below(2)) text_nbytes += (size_t)sprintf(text + text_nbytes, "%s", end);
  }
  text_lines = text_nbytes && text[text_nbytes - 1] != '\n';
  for (size_t i = 0; i < text_nbytes; i++) text_lines += text[i] == '\n';
  scratch_write("text", text, text_nbytes);
}

/* Written plainly from the rule: returns the number of ids, all blocks one after another. */
static size_t cut_plainly(size_t block_size) {
  size_t n_kept = 0, n_group = 0, n_lines = 0;
  for (size_t i = 0; i < text_nbytes; i++) {
    if (i == 0 || text[i - 1] == '\n') expected[n_kept + n_group++] = 256;
    expected[n_kept + n_group++] = (unsigned char)text[i];
    if (text[i] != '\n' && i + 1 < text_nbytes) continue;
    if (++n_lines % 1000 == 0 || i + 1 == text_nbytes) {
      n_kept += n_group / block_size * block_size;
      n_group = 0;
    }
  }
  return n_kept;
}

static void assert_blocks(const zt_corpus *corpus, size_t block_size) {
  size_t n = cut_plainly(block_size);
  int64_t *block = malloc(block_size * sizeof *block);
  assert_int_equal(zt_corpus_token_count(corpus), n);
  assert_int_equal(zt_corpus_block_count(corpus), n / block_size);
  for (size_t i = 0; i < n / block_size; i++) {
    assert_ok(zt_corpus_get_block(corpus, i, block));
    assert_memory_equal(block, expected + i * block_size, block_size * sizeof *block);
  }
  free(block);
}

/* Opens, compares with the rule, and returns how many lines were encoded for it. */
static int open_and_compare(const zt_tokenizer *with, size_t block_size, const char *cache) {
  zt_corpus *corpus;
  n_encoded = 0;
  assert_ok(zt_corpus_open(scratch_path("text"), with, block_size, cache, &corpus));
  assert_blocks(corpus, block_size);
  zt_corpus_close(corpus);
  return n_encoded;
}

static void remove_cache(void) { assert_int_equal(nftw(scratch_path("cache"), scratch_remove_one, 8, FTW_DEPTH), 0); }

static void test_cut(void **state) {
  (void)state;
  static const int n_lines[] = {1, 2, 999, 1000, 1001, 2000, 3500};
  for (size_t k = 0; k < sizeof n_lines / sizeof *n_lines; k++) {
    make_text(n_lines[k]);
    if (cut_plainly(1) == 0) continue;
    open_and_compare(&tok, 1, scratch_path("cache"));
    size_t size = 1 + scratch_below(cut_plainly(1) / 2 + 1);
    if (cut_plainly(size)) assert_int_equal(open_and_compare(&tok, size, scratch_path("cache")), 0);
  }
  assert_int_equal(scratch_count("cache"), 1);
  remove_cache();
}

static size_t get_cache(char **bytes) {
  char found[600] = "";
  size_t nbytes;
  DIR *dir = opendir(scratch_path("cache"));
  assert_non_null(dir);
  for (struct dirent *e = readdir(dir); e; e = readdir(dir))
    if (e->d_name[0] != '.') snprintf(found, sizeof found, "%s/%s", scratch_path("cache"), e->d_name);
  closedir(dir);
  assert_ok(zt_file_read(found, bytes, &nbytes));
  return nbytes;
}

static void put_cache(const char *bytes, size_t nbytes) {
  char name[128];
  DIR *dir = opendir(scratch_path("cache"));
  assert_non_null(dir);
  for (struct dirent *e = readdir(dir); e; e = readdir(dir))
    if (e->d_name[0] != '.') snprintf(name, sizeof name, "cache/%.100s", e->d_name);
  closedir(dir);
  scratch_write(name, bytes, nbytes);
}

static void test_threads(void **state) {
  (void)state;
  static const int n_threads[] = {1, 2, 5};
  char *first = NULL, *bytes;
  size_t nbytes = 0;
  int before = omp_get_max_threads();
  make_text(12345); /* more groups than threads */
  for (size_t k = 0; k < 3; k++) {
    omp_set_num_threads(n_threads[k]);
    assert_int_equal(open_and_compare(&tok, 100, scratch_path("cache")), text_lines);
    size_t n = get_cache(&bytes);
    if (k) assert_int_equal(n, nbytes);
    if (k) assert_memory_equal(bytes, first, n);
    if (k) zt_free(bytes);
    if (!k) first = bytes, nbytes = n;
    remove_cache();
  }
  omp_set_num_threads(before);
  zt_free(first);
}

static void test_many_groups(void **state) { /* more than one wave */
  (void)state;
  text_nbytes = 0;
  for (int i = 0; i < 140500; i++) text_nbytes += (size_t)sprintf(text + text_nbytes, i % 3 ? "%x\n" : "\n", i % 4096);
  scratch_write("text", text, text_nbytes);
  assert_int_equal(open_and_compare(&tok, 33, scratch_path("cache")), 140500);
  assert_int_equal(open_and_compare(&tok, 4000, scratch_path("cache")), 0);
  remove_cache();
}

static void test_cache_key(void **state) {
  (void)state;
  static const zt_tokenizer other = {.hash = 8};
  const char *cache = scratch_path("cache");
  make_text(1500);
  assert_true(open_and_compare(&tok, 50, cache) > 0);
  assert_int_equal(open_and_compare(&tok, 50, cache), 0);
  assert_true(open_and_compare(&other, 50, cache) > 0);
  assert_int_equal(scratch_count("cache"), 2);
  assert_int_equal(open_and_compare(&tok, 50, cache), 0);
  text[text_nbytes / 2] ^= 1; /* of the same size: its time tells */
  scratch_write("text", text, text_nbytes);
  struct timespec times[2] = {{.tv_sec = 1000, .tv_nsec = 5}, {.tv_sec = 1000, .tv_nsec = 5}};
  utimensat(AT_FDCWD, scratch_path("text"), times, 0);
  assert_true(open_and_compare(&tok, 50, cache) > 0);
  times[1].tv_nsec = 6;
  utimensat(AT_FDCWD, scratch_path("text"), times, 0);
  assert_true(open_and_compare(&tok, 50, cache) > 0);
  assert_int_equal(open_and_compare(&tok, 50, cache), 0);
  assert_int_equal(scratch_count("cache"), 2);
  remove_cache();
}

static void test_spoilt_cache(void **state) {
  (void)state;
  char *bytes, *spoilt;
  make_text(1200);
  assert_true(open_and_compare(&tok, 20, scratch_path("cache")) > 0);
  size_t n = get_cache(&bytes);
  spoilt = malloc(n + 100);
  for (int round = 0; round < 60; round++) {
    size_t size = n;
    memcpy(spoilt, bytes, n);
    memset(spoilt + n, 0, 100);
    /* a bit anywhere, a bit in the key, the rows or the end, a cut, something behind it, nothing at all */
    if (round % 5 == 0) spoilt[scratch_below(n)] ^= (char)(1 << scratch_below(8));
    if (round % 5 == 1) spoilt[scratch_below(48)] ^= (char)(1 << scratch_below(8));
    if (round % 5 == 2) spoilt[n - 1 - scratch_below(56)] ^= (char)(1 << scratch_below(8));
    if (round % 5 == 3) size = scratch_below(n);
    if (round % 5 == 4) size = round == 4 ? 0 : n + 1 + scratch_below(100);
    put_cache(spoilt, size);
    int n_again = open_and_compare(&tok, 20, scratch_path("cache"));
    if (n_again != text_lines) fail_msg("seed %llu: round %d was trusted", (unsigned long long)scratch_seed(), round);
    assert_int_equal(open_and_compare(&tok, 20, scratch_path("cache")), 0);
  }
  free(spoilt);
  zt_free(bytes);
  remove_cache();
}

static char notice[1024];
static void keep_notice(void *user, const char *line) {
  (void)user;
  snprintf(notice, sizeof notice, "%s", line);
}

static void test_no_place_for_a_cache(void **state) {
  (void)state;
  char wanted[1200];
  make_text(1100);
  scratch_write("plain", "", 0);
  zt_log_set_sink(keep_notice, NULL);
  assert_int_equal(open_and_compare(&tok, 20, scratch_path("plain/folder")), text_lines);
  zt_log_set_sink(NULL, NULL);
  snprintf(wanted, sizeof wanted, "the ids of '%s' are not kept: cannot write '%s/corpus-", scratch_path("text"),
           scratch_path("plain/folder"));
  notice[strlen(wanted)] = 0;
  assert_string_equal(notice, wanted);
  remove(scratch_path("plain"));
}

static void test_default_place(void **state) {
  (void)state;
  make_text(1100);
  setenv("XDG_CACHE_HOME", scratch_path("xdg"), 1);
  assert_int_equal(open_and_compare(&tok, 20, NULL), text_lines);
  assert_int_equal(scratch_count("xdg/ztrain"), 1);
  unsetenv("XDG_CACHE_HOME");
  const char *given = getenv("HOME");
  char *home = given ? strdup(given) : NULL;
  setenv("HOME", scratch_path("home"), 1);
  assert_int_equal(open_and_compare(&tok, 20, NULL), text_lines);
  assert_int_equal(scratch_count("home/.cache/ztrain"), 1);
  unsetenv("HOME");
  assert_int_equal(open_and_compare(&tok, 20, NULL), text_lines);
  if (home) setenv("HOME", home, 1);
  free(home);
}

static void test_errors(void **state) {
  (void)state;
  zt_corpus *corpus;
  static const zt_tokenizer picky = {.hash = 9, .refused = "bad\n"};
  const char *path = scratch_path("text"), *cache = scratch_path("cache"), *absent = scratch_path("absent");
  int64_t block[8];
  assert_fails(zt_corpus_open(absent, &tok, 8, cache, &corpus), ZT_IO, "cannot read '%s': No such file or directory",
               absent);
  assert_fails(zt_corpus_open(scratch, &tok, 8, cache, &corpus), ZT_IO, "cannot read '%s': it is a folder", scratch);
  scratch_write("text", "", 0);
  assert_fails(zt_corpus_open(path, &tok, 8, cache, &corpus), ZT_FORMAT, "%s: the file is empty", path);
  assert_null(corpus);
  scratch_write("text", "short\n", 6);
  assert_fails(zt_corpus_open(path, &tok, 8, cache, &corpus), ZT_FORMAT,
               "%s: too short: its 7 tokens, in groups of 1000 lines, fill no block of 8", path);
  assert_fails(zt_corpus_open(path, &tok, 0, cache, &corpus), ZT_INVALID, "%s: blocks of 0 tokens", path);
  assert_ok(zt_corpus_open(path, &tok, 7, cache, &corpus));
  assert_fails(zt_corpus_get_block(corpus, 1, block), ZT_INVALID, "%s: block 1 of 1", path);
  zt_corpus_close(corpus);
  text_nbytes = 0;
  for (int i = 0; i < 3000; i++) text_nbytes += (size_t)sprintf(text + text_nbytes, "%s\n", i < 1700 ? "good" : "bad");
  scratch_write("text", text, text_nbytes);
  assert_fails(zt_corpus_open(path, &picky, 8, cache, &corpus), ZT_INVALID, "%s: lines from 1001 on: refused", path);
  assert_int_equal(scratch_count("cache"), 1); /* that of the tokenizer 'tok' alone */
  remove_cache();
  zt_corpus_close(NULL);
}

static void test_race(void **state) {
  (void)state;
  make_text(3000);
  for (int round = 0; round < 5; round++) {
    pid_t children[4];
    for (int i = 0; i < 4; i++) {
      children[i] = fork();
      if (children[i] != 0) continue;
      zt_corpus *corpus = NULL;
      omp_set_num_threads(1);
      bool ok = zt_corpus_open(scratch_path("text"), &tok, 10, scratch_path("cache"), &corpus) == ZT_OK &&
                zt_corpus_token_count(corpus) == cut_plainly(10);
      _exit(!ok ? 2 : n_encoded > 0);
    }
    int n_encoders = 0;
    for (int i = 0; i < 4; i++) {
      int status;
      assert_int_equal(waitpid(children[i], &status, 0), children[i]);
      assert_true(WIFEXITED(status) && WEXITSTATUS(status) < 2);
      n_encoders += WEXITSTATUS(status);
    }
    assert_int_equal(n_encoders, 1);
    assert_int_equal(scratch_count("cache"), 1);
    remove_cache();
  }
}

static zt_status open_anew(void *user) {
  zt_corpus *corpus;
  nftw(scratch_path("cache"), scratch_remove_one, 8, FTW_DEPTH);
  ZT_TRY(zt_corpus_open(scratch_path("text"), &tok, 10, user, &corpus));
  zt_corpus_close(corpus);
  return ZT_OK;
}

static void test_out_of_memory(void **state) {
  (void)state;
  int before = omp_get_max_threads();
  omp_set_num_threads(1);
  make_text(2500);
  assert_true(fail_each_allocation(open_anew, (void *)scratch_path("cache")) > 20);
  scratch_write("plain", "", 0);
  assert_true(fail_each_allocation(open_anew, (void *)scratch_path("plain/x")) > 20);
  omp_set_num_threads(before);
  assert_int_equal(zt_mem_get_stats().n_live_blocks, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_race), /* first: before OpenMP has threads, which a fork would lose */
      cmocka_unit_test(test_cut),           cmocka_unit_test(test_threads),
      cmocka_unit_test(test_many_groups),   cmocka_unit_test(test_cache_key),
      cmocka_unit_test(test_spoilt_cache),  cmocka_unit_test(test_no_place_for_a_cache),
      cmocka_unit_test(test_default_place), cmocka_unit_test(test_errors),
      cmocka_unit_test(test_out_of_memory),
  };
  printf("seed %llu\n", (unsigned long long)scratch_seed());
  return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
