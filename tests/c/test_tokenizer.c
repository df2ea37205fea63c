/* Tokenizers: splitting, merging, added tokens, files good and bad, training, saving, threads, failing allocations.
** Vocabularies are made here. */
#include "tests/c/scratch.h"

#include <omp.h>
#include <pthread.h>

#include "core/base/buffer.h"
#include "core/io/file.h"
#include "core/io/json.h"
#include "core/text/pipeline.h"
#include "core/text/utf8.h"

/* --- helpers */

static void add(zt_buffer *b, const char *text) { assert_ok(zt_buffer_add(b, text, strlen(text))); }

/* The 256 bytes (ids in the order of their characters), what the merges make, and <|eot|>: a vocabulary as JSON. */
static const char *const usual_merges[] = {"h e",     "l l", "he ll", "hell o", "a a", "aa aa",
                                           "Ġ hello", "Ġ a", "o l",   "Ã ©",    NULL};
static void add_vocab(zt_buffer *b, const char *const *merges) {
  int id = 0;
  add(b, "{");
  for (uint32_t c = 0; c < 324; c++) {
    unsigned char text[2];
    int byte = zti_alphabet_byte(c);
    if (byte < 0) continue;
    size_t n = zti_alphabet_spell((unsigned char)byte, text);
    if (id > 0) add(b, ", ");
    assert_ok(zt_json_add_string(b, (const char *)text, n));
    assert_ok(zt_buffer_addf(b, ": %d", id++));
  }
  for (; *merges; merges++, id++) {
    const char *space = strchr(*merges, ' ');
    assert_ok(zt_buffer_addf(b, ", \"%.*s%s\": %d", (int)(space - *merges), *merges, space + 1, id));
  }
  assert_ok(zt_buffer_addf(b, ", \"<|eot|>\": %d}", id));
}

static const char byte_level[] = "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": true}";

/* tokenizer.json with any of its parts replaced (NULL: the usual one). */
typedef struct parts {
  const char *added, *pre, *post, *decoder, *model_more;
  const char *const *merges;
} parts;

static void make_json(zt_buffer *b, const parts *p) {
  const char *const *merges = p->merges ? p->merges : usual_merges;
  add(b, "{\"version\": \"1.0\", \"added_tokens\": ");
  add(b, p->added ? p->added : "[]");
  assert_ok(zt_buffer_addf(b, ", \"normalizer\": null, \"pre_tokenizer\": %s", p->pre ? p->pre : byte_level));
  assert_ok(zt_buffer_addf(b, ", \"post_processor\": %s", p->post ? p->post : "null"));
  assert_ok(
      zt_buffer_addf(b, ", \"decoder\": %s, \"model\": {\"type\": \"BPE\"", p->decoder ? p->decoder : byte_level));
  assert_ok(zt_buffer_addf(b, "%s, \"vocab\": ", p->model_more ? p->model_more : ""));
  add_vocab(b, merges);
  add(b, ", \"merges\": [");
  for (int i = 0; merges[i]; i++) assert_ok(zt_buffer_addf(b, "%s\"%s\"", i ? ", " : "", merges[i]));
  add(b, "]}}");
}

static zt_status load_parts(const parts *p, zt_tokenizer **tok) {
  zt_buffer b = {0};
  make_json(&b, p);
  scratch_write("t.json", b.data, b.nbytes);
  zt_buffer_clear(&b);
  return zt_tokenizer_load(scratch_path("t.json"), tok);
}

static zt_tokenizer *usual(void) {
  zt_tokenizer *tok;
  assert_ok(load_parts(&(parts){0}, &tok));
  return tok;
}

/* The ids as texts with bars between them: "hello|Ġa". */
static const char *encoded(const zt_tokenizer *tok, const char *text, const zt_encode_options *o) {
  static char out[4096];
  zt_ids ids = {0};
  size_t n = 0;
  assert_ok(zt_tokenizer_encode(tok, text, strlen(text), o, &ids));
  out[0] = 0;
  for (size_t i = 0; i < ids.count; i++)
    n += (size_t)snprintf(out + n, sizeof out - n, "%s%s", i ? "|" : "",
                          (const char *)tok->vocab.tokens[ids.data[i]].text);
  zt_ids_clear(&ids);
  return out;
}

static void assert_decodes(const zt_tokenizer *tok, const zt_ids *ids, const void *bytes, size_t nbytes) {
  char *text;
  size_t n;
  assert_ok(zt_tokenizer_decode(tok, ids->data, ids->count, false, &text, &n));
  assert_int_equal(n, nbytes);
  if (memcmp(text, bytes, nbytes) != 0)
    fail_msg("decoded differently, ZT_TEST_SEED=%llu", (unsigned long long)scratch_seed());
  zt_free(text);
}

/* --- splitting */

typedef struct pieces {
  size_t ends[4096], count, at;
} pieces;

static zt_status note_piece(void *user, const unsigned char *piece, size_t nbytes) {
  pieces *p = user;
  (void)piece;
  assert_true(nbytes > 0 && p->count < 4096);
  p->at += nbytes;
  p->ends[p->count++] = p->at;
  return ZT_OK;
}

static size_t put_utf8(uint32_t c, unsigned char *out) {
  if (c < 0x80) return out[0] = (unsigned char)c, 1;
  size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
  for (size_t i = n - 1; i > 0; i--, c >>= 6) out[i] = (unsigned char)(0x80 | (c & 0x3f));
  out[0] = (unsigned char)((0xf00 >> n) | c);
  return n;
}

static size_t random_character(unsigned char *out) {
  static const char *const hard[] = {"'s",
                                     "'ll",
                                     "'re",
                                     "'ve",
                                     "'t",
                                     " ",
                                     "  ",
                                     "\n",
                                     "\r\n",
                                     "\t",
                                     "\v",
                                     "\x1c",
                                     "\xc2\x85",
                                     "\xc2\xa0",
                                     "\xe1\xa0\x8e",
                                     "\xe2\x80\x8b",
                                     "\xef\xbb\xbf",
                                     "\xe2\x80\xa8",
                                     "é",
                                     "9",
                                     "²",
                                     "!",
                                     "'"};
  uint64_t kind = scratch_below(10);
  if (kind < 4) {
    const char *text = hard[scratch_below(sizeof hard / sizeof *hard)];
    memcpy(out, text, strlen(text));
    return strlen(text);
  }
  if (kind < 9) return out[0] = (unsigned char)scratch_below(128), 1;
  uint32_t c = (uint32_t)scratch_below(0x20000);
  return put_utf8(c >= 0xd800 && c < 0xe000 ? 0x4e00 : c, out);
}

/* GPT-2's expression by the hand-written way and by the regular expression alone. */
static void test_split_gpt2(void **state) {
  (void)state;
  zti_split split = {0};
  zti_regex_match *match;
  assert_ok(zti_split_add_gpt2(&split));
  assert_ok(zti_regex_match_new(&match));
  for (int round = 0; round < 3000; round++) {
    unsigned char text[400];
    size_t n = 0, at = 0, begin, end;
    for (uint64_t k = scratch_below(60); k > 0; k--) n += random_character(text + n);
    pieces p = {.count = 0};
    assert_ok(zti_split_run(&split, match, text, n, note_piece, &p));
    for (size_t i = 0; at < n; i++, at = end) {
      bool found;
      assert_ok(zti_regex_find(split.rules[0].regex, match, text, n, at, &found, &begin, &end));
      assert_true(found && begin == at);
      if (i >= p.count || p.ends[i] != end)
        fail_msg("piece %d of '%.*s' differs, ZT_TEST_SEED=%llu", (int)i, (int)n, text,
                 (unsigned long long)scratch_seed());
    }
    assert_int_equal(at, p.at);
  }
  zti_regex_match_free(match);
  zti_split_clear(&split);
}

/* Unicode's White_Space, not U+180E, U+200B, U+FEFF, nor the separators U+001C to U+001F. */
static void test_white_space(void **state) {
  static const uint32_t white[] = {9,      10,     11,     12,     13,     0x20,   0x85,   0xa0,   0x1680,
                                   0x2000, 0x2001, 0x2002, 0x2003, 0x2004, 0x2005, 0x2006, 0x2007, 0x2008,
                                   0x2009, 0x200a, 0x2028, 0x2029, 0x202f, 0x205f, 0x3000};
  (void)state;
  zti_regex *re;
  zti_regex_match *match;
  size_t next = 0;
  assert_ok(zti_regex_new("[\\s]", 4, false, &re));
  assert_ok(zti_regex_match_new(&match));
  for (uint32_t c = 0; c < 0x110000; c++) {
    unsigned char text[4];
    bool found, expected = next < sizeof white / sizeof *white && white[next] == c;
    size_t begin, end;
    if (c >= 0xd800 && c < 0xe000) continue;
    assert_ok(zti_regex_find(re, match, text, put_utf8(c, text), 0, &found, &begin, &end));
    if (found != expected) fail_msg("U+%04X: %d", c, found);
    next += expected;
  }
  zti_regex_match_free(match);
  zti_regex_free(re);
}

static const char *split_by(const char *pattern, bool literal, bool invert, zti_behavior behavior, const char *text) {
  static char out[256];
  zti_split split = {0};
  zti_regex_match *match;
  pieces p = {.count = 0};
  size_t n = 0, begin = 0;
  assert_ok(zti_split_add_regex(&split, pattern, strlen(pattern), literal, invert, behavior));
  assert_ok(zti_regex_match_new(&match));
  assert_ok(zti_split_run(&split, match, (const unsigned char *)text, strlen(text), note_piece, &p));
  for (size_t i = 0; i < p.count; i++, begin = p.ends[i - 1])
    n += (size_t)snprintf(out + n, sizeof out - n, "%s%.*s", i ? "|" : "", (int)(p.ends[i] - begin), text + begin);
  zti_regex_match_free(match);
  zti_split_clear(&split);
  return out;
}

static void test_split_behaviors(void **state) {
  static const char text[] = "the-final--countdown";
  (void)state;
  assert_string_equal(split_by("-", true, false, ZTI_ISOLATED, text), "the|-|final|-|-|countdown");
  assert_string_equal(split_by("-", true, false, ZTI_PREVIOUS, text), "the-|final-|-|countdown");
  assert_string_equal(split_by("-", true, false, ZTI_NEXT, text), "the|-final|-|-countdown");
  assert_string_equal(split_by("-", true, false, ZTI_CONTIGUOUS, text), "the|-|final|--|countdown");
  assert_string_equal(split_by("\\w", true, false, ZTI_ISOLATED, "a\\w"), "a|\\w");
  assert_string_equal(split_by("[a-z]+", false, true, ZTI_CONTIGUOUS, text), "the|-|final|--|countdown");
  assert_string_equal(split_by("\\p{N}{1,3}", false, false, ZTI_ISOLATED, "12345é6"), "123|45|é|6");
  assert_string_equal(split_by("^b|a$", false, false, ZTI_ISOLATED, "aa\nbb"), "a|a|\n|b|b");
  assert_string_equal(split_by("x*", false, false, ZTI_ISOLATED, "axxb"), "a|xx|b");
}

static zt_status note_removed(void *user, const unsigned char *piece, size_t nbytes) {
  return zt_buffer_addf(user, "%.*s|", (int)nbytes, piece);
}

static void test_split_removed(void **state) {
  (void)state;
  zti_split split = {0};
  zti_regex_match *match;
  zt_buffer out = {0};
  assert_ok(zti_regex_match_new(&match));
  assert_ok(zti_split_add_regex(&split, "-", 1, true, false, ZTI_REMOVED));
  assert_ok(zti_split_add_prefix_space(&split));
  assert_ok(zti_split_run(&split, match, (const unsigned char *)"--a- b--c\xff-d", 13, note_removed, &out));
  assert_string_equal(out.data, " a| b| c|\xff| d|");
  zt_buffer_clear(&out);
  zti_split_clear(&split);
  zti_regex_match_free(match);
}

/* Patterns that PCRE2 and Oniguruma read differently are refused; those of models that people use are not. */
static void test_patterns(void **state) {
  static const char *const good[] = {("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
                                      "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"),
                                     "[\\p{Han}]+", "\\p{^Lu}|\\x{41}", "[]a]", "(?<=a)b"};
  static const struct {
    const char *pattern, *message;
  } bad[] = {{"a\\w", "'\\w' at byte 1 of the regular expression is not supported"},
             {"\\h", "'\\h' at byte 0 of the regular expression is not supported"},
             {"[a[b]]", "'[b]' at byte 2 of the regular expression is not supported"},
             {"[a&&b]", "'&&b' at byte 2 of the regular expression is not supported"},
             {"(?s:.)", "'(?s' at byte 0 of the regular expression is not supported"},
             {"(*UCP)a", "'(*U' at byte 0 of the regular expression is not supported"},
             {"a{,3}", "'{,3' at byte 1 of the regular expression is not supported"},
             {"(a", "the regular expression is wrong at byte 2: missing closing parenthesis"},
             {"\\", "the regular expression is wrong at byte 1: \\ at end of pattern"},
             {"\\p{Klingon}", "the regular expression is wrong at byte 14: unknown property after \\P or \\p"},
             {"", "a pattern has 1 to 65536 bytes, this one 0"}};
  (void)state;
  zti_regex *re;
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
    assert_ok(zti_regex_new(good[i], strlen(good[i]), false, &re));
    zti_regex_free(re);
  }
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    assert_fails(zti_regex_new(bad[i].pattern, strlen(bad[i].pattern), false, &re), ZT_FORMAT, "%s", bad[i].message);
}

/* A pattern that takes forever raises. */
static void test_slow_pattern(void **state) {
  (void)state;
  zti_regex *re;
  zti_regex_match *match;
  bool found;
  size_t begin, end;
  assert_ok(zti_regex_new("(a+)+$", 6, false, &re));
  assert_ok(zti_regex_match_new(&match));
  assert_fails(zti_regex_find(re, match, (const unsigned char *)"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!", 45, 0,
                              &found, &begin, &end),
               ZT_INVALID, "matching a regular expression on the text at byte 0: match limit exceeded");
  zti_regex_match_free(match);
  zti_regex_free(re);
}

/* --- the model */

static void test_merges(void **state) {
  (void)state;
  zt_tokenizer *tok = usual();
  assert_string_equal(encoded(tok, "hello", NULL), "hello");
  assert_string_equal(encoded(tok, " hello hell", NULL), "Ġhello|Ġ|hell");
  assert_string_equal(encoded(tok, "aaaaaaa", NULL), "aaaa|aa|a");
  assert_string_equal(encoded(tok, "é\n", NULL), "Ã©|Ċ");
  assert_string_equal(encoded(tok, "helol", NULL), "he|l|ol");
  assert_string_equal(encoded(tok, "", NULL), "");
  assert_int_equal(zt_tokenizer_token_to_id(tok, "hello"), 259);
  assert_int_equal(zt_tokenizer_token_to_id(tok, "hellx"), -1);
  assert_int_equal(zt_tokenizer_vocab_size(tok), 267);
  zt_tokenizer_free(tok);
}

static void test_ignore_merges(void **state) {
  static const char *const merges[] = {"a b", "b c", "a bc", NULL}; /* abc is a token that merging does not reach */
  zt_tokenizer *tok;
  (void)state;
  assert_ok(load_parts(&(parts){.merges = merges}, &tok));
  assert_string_equal(encoded(tok, "abc", NULL), "ab|c");
  zt_tokenizer_free(tok);
  assert_ok(load_parts(&(parts){.merges = merges, .model_more = ", \"ignore_merges\": true"}, &tok));
  assert_string_equal(encoded(tok, "abc", NULL), "abc");
  assert_string_equal(encoded(tok, "abcc", NULL), "ab|c|c");
  zt_tokenizer_free(tok);
}

/* The definition, without tables: the first merge of the list that any neighbours have, the leftmost. */
static size_t merge_naively(const zt_tokenizer *tok, int64_t *id, size_t count) {
  for (size_t r = 0; r < tok->bpe.n_merges;) {
    const zti_merge *m = &tok->bpe.merges[r];
    size_t i = 0;
    while (i + 1 < count && !(id[i] == m->left && id[i + 1] == m->right)) i++;
    if (i + 1 >= count) {
      r++;
      continue;
    }
    id[i] = m->id;
    memmove(id + i + 1, id + i + 2, (count - i - 2) * sizeof *id);
    count--;
    r = 0;
  }
  return count;
}

/* Random merges on letters a to d, words of up to 300 letters: both ways of merging, with and without the cache. */
static void test_merging_random(void **state) {
  (void)state;
  scratch_write("letters.txt", "", 0);
  zt_buffer text = {0};
  for (int i = 0; i < 4000; i++)
    assert_ok(zt_buffer_addf(&text, "%c%s", (int)('a' + scratch_below(4)), scratch_below(9) ? "" : " "));
  scratch_write("letters.txt", text.data, text.nbytes);
  zt_buffer_clear(&text);
  zt_tokenizer *tok;
  const char *path = scratch_path("letters.txt");
  assert_ok(zt_tokenizer_train_bpe(&path, 1, &(zt_bpe_options){.vocab_size = 400, .min_frequency = 2}, &tok));
  assert_true(tok->bpe.n_merges > 100);
  for (int round = 0; round < 1000; round++) {
    char word[300];
    int64_t id[300];
    size_t n = 1 + scratch_below(round % 2 ? 20 : 300);
    for (size_t i = 0; i < n; i++) word[i] = (char)('a' + scratch_below(4));
    for (size_t i = 0; i < n; i++) id[i] = tok->bpe.byte_ids[(unsigned char)word[i]];
    zt_ids ids = {0};
    for (int again = 0; again < 2; again++) assert_ok(zt_tokenizer_encode(tok, word, n, NULL, &ids));
    size_t count = merge_naively(tok, id, n);
    if (ids.count != 2 * count || memcmp(ids.data, id, count * sizeof *id) ||
        memcmp(ids.data + count, id, count * sizeof *id))
      fail_msg("'%.*s' differs, ZT_TEST_SEED=%llu", (int)n, word, (unsigned long long)scratch_seed());
    zt_ids_clear(&ids);
  }
  zt_tokenizer_free(tok);
}

/* More different words than the cache holds. */
static void test_many_words(void **state) {
  (void)state;
  zt_tokenizer *tok = usual();
  zt_buffer text = {0};
  zt_ids ids = {0};
  for (int i = 0; i < 60000; i++) assert_ok(zt_buffer_addf(&text, " %cx%xhello", 'a' + i % 26, i * 7919));
  assert_ok(zt_tokenizer_encode(tok, text.data, text.nbytes, NULL, &ids));
  assert_decodes(tok, &ids, text.data, text.nbytes);
  zt_ids_clear(&ids);
  zt_buffer_clear(&text);
  zt_tokenizer_free(tok);
}

/* A megabyte without a split takes n log n steps: the quadratic way would take minutes. */
static void test_long_word(void **state) {
  (void)state;
  zt_tokenizer *tok = usual();
  size_t n = 1 << 20;
  char *word = malloc(n);
  zt_ids ids = {0};
  assert_non_null(word);
  memset(word, 'a', n);
  assert_ok(zt_tokenizer_encode(tok, word, n, NULL, &ids));
  assert_int_equal(ids.count, n / 4);
  assert_decodes(tok, &ids, word, n);
  zt_ids_clear(&ids);
  free(word);
  zt_tokenizer_free(tok);
}

static void test_random_bytes(void **state) {
  (void)state;
  zt_tokenizer *tok = usual();
  for (int round = 0; round < 300; round++) {
    unsigned char bytes[500];
    size_t n = scratch_below(sizeof bytes);
    for (size_t i = 0; i < n; i++)
      bytes[i] = (unsigned char)(scratch_below(2) ? scratch_below(256) : 'a' + scratch_below(16));
    zt_ids ids = {0};
    assert_ok(zt_tokenizer_encode(tok, (const char *)bytes, n, NULL, &ids));
    assert_decodes(tok, &ids, bytes, n);
    zt_ids_clear(&ids);
  }
  /* bytes that are not UTF-8 are pieces of their own: "Ã" and "©" merge only where they are a character */
  assert_string_equal(encoded(tok, "hello\xc3hello\xc3\xa9 \xe2\x82", NULL), "hello|Ã|hello|Ã©|Ġ|â|Ĥ");
  assert_string_equal(encoded(tok, "\xed\xa0\x80\xc0\xa9\xc3\xc3\xa9", NULL), "í|ł|Ģ|À|©|Ã|Ã©");
  zt_tokenizer_free(tok);
}

static void test_unknown_bytes(void **state) {
  static const char head[] =
      "{\"decoder\": {\"type\": \"ByteLevel\"}, \"pre_tokenizer\": {\"type\": \"ByteLevel\", "
      "\"add_prefix_space\": false}, \"model\": {\"vocab\": {\"a\": 0, \"?\": 1}, \"merges\": []";
  (void)state;
  char text[512];
  zt_tokenizer *tok;
  zt_ids ids = {0};
  for (int fuse = 0; fuse < 2; fuse++) {
    snprintf(text, sizeof text, "%s, \"unk_token\": \"?\", \"fuse_unk\": %s}}", head, fuse ? "true" : "false");
    scratch_write("u.json", text, strlen(text));
    assert_ok(zt_tokenizer_load(scratch_path("u.json"), &tok));
    assert_string_equal(encoded(tok, "axya", NULL), fuse ? "a|?|a" : "a|?|?|a");
    zt_tokenizer_free(tok);
  }
  snprintf(text, sizeof text, "%s}}", head);
  scratch_write("u.json", text, strlen(text));
  assert_ok(zt_tokenizer_load(scratch_path("u.json"), &tok));
  assert_ok(zt_tokenizer_encode(tok, "a", 1, NULL, &ids));
  assert_fails(zt_tokenizer_encode(tok, "aa!x", 4, NULL, &ids), ZT_INVALID,
               "byte 0x21 has no token in the vocabulary, and there is no unk token");
  assert_int_equal(ids.count, 1);
  zt_ids_clear(&ids);
  zt_tokenizer_free(tok);
}

/* --- added tokens */

static void test_added_tokens(void **state) {
  static const char added[] =
      "[{\"id\": 266, \"content\": \"<|eot|>\", \"special\": true, \"normalized\": false},"
      "{\"id\": 267, \"content\": \"<|eot|>>\", \"special\": true, \"normalized\": false},"
      "{\"id\": 268, \"content\": \"<m>\", \"special\": false, \"lstrip\": true, \"rstrip\": true},"
      "{\"id\": 269, \"content\": \"word\", \"single_word\": true},"
      "{\"id\": 270, \"content\": \"ell\", \"normalized\": true},"
      "{\"id\": 271, \"content\": \"a b é\"}]";
  (void)state;
  zt_tokenizer *tok;
  zt_encode_options plain = {.plain = true};
  assert_ok(load_parts(&(parts){.added = added}, &tok));
  assert_string_equal(encoded(tok, "aa<|eot|>aa<|eot|", NULL), "aa|<|eot|>|aa|<|||e|o|t||");
  assert_string_equal(encoded(tok, "<|eot|>><|eot|>", NULL), "<|eot|>>|<|eot|>");
  assert_string_equal(encoded(tok, "aa \n<m>\xe2\x80\x83 aa", NULL), "aa|<m>|aa");
  assert_string_equal(encoded(tok, "<m>  <m>", NULL), "<m>|<m>");
  assert_string_equal(encoded(tok, "word words éword -word_", NULL), "word|Ġ|w|o|r|d|s|Ġ|Ã©|w|o|r|d|Ġ|-|w|o|r|d|_");
  assert_string_equal(encoded(tok, "hello<|eot|>", NULL), "h|ell|o|<|eot|>");
  assert_string_equal(encoded(tok, "a b éa b", NULL), "a b é|a|Ġ|b");
  assert_string_equal(encoded(tok, "<|eot|><m>", &plain), "<|||e|o|t|||>|<m>");
  int64_t ids[] = {266, 271, 259};
  char *text;
  size_t n;
  assert_ok(zt_tokenizer_decode(tok, ids, 3, false, &text, &n));
  assert_string_equal(text, "<|eot|>a b éhello");
  zt_free(text);
  assert_ok(zt_tokenizer_decode(tok, ids, 3, true, &text, &n));
  assert_string_equal(text, "a b éhello");
  zt_free(text);
  zt_tokenizer_free(tok);
}

static void test_bad_ids(void **state) {
  (void)state;
  zt_tokenizer *tok = usual();
  char *text;
  size_t n;
  int64_t high[] = {1, 267}, negative[] = {-1};
  assert_fails(zt_tokenizer_decode(tok, high, 2, false, &text, &n), ZT_INVALID,
               "id 267 at position 1 is not in the vocabulary (of 267 ids)");
  assert_fails(zt_tokenizer_decode(tok, negative, 1, false, &text, &n), ZT_INVALID,
               "id -1 at position 0 is not in the vocabulary (of 267 ids)");
  assert_null(zt_tokenizer_id_to_bytes(tok, 267, &n));
  assert_non_null(zt_tokenizer_id_to_bytes(tok, 188 + 10, &n)); /* newline */
  assert_int_equal(n, 1);
  zt_tokenizer_free(tok);
}

/* --- post-processors */

static const char *template_text(const zt_tokenizer *tok, bool pair) {
  static char out[256];
  size_t n = 0, count;
  const zt_template_item *items = zt_tokenizer_template(tok, pair, &count);
  for (size_t i = 0; i < count; i++) {
    if (items[i].id < 0)
      n += (size_t)snprintf(out + n, sizeof out - n, "%c:%d ", 'A' + items[i].text, items[i].type_id);
    else
      n += (size_t)snprintf(out + n, sizeof out - n, "%d:%d ", (int)items[i].id, items[i].type_id);
  }
  return out;
}

static void test_templates(void **state) {
  static const struct {
    const char *post, *single, *pair;
    bool type_ids;
  } cases[] = {
      {"null", "A:0 ", "A:0 B:1 ", false},
      {byte_level, "A:0 ", "A:0 B:1 ", false},
      {"{\"type\": \"BertProcessing\", \"sep\": [\"a\", 3], \"cls\": [\"b\", 4]}", "4:0 A:0 3:0 ",
       "4:0 A:0 3:0 B:1 3:1 ", true},
      {"{\"type\": \"RobertaProcessing\", \"sep\": [\"a\", 3], \"cls\": [\"b\", 4], \"trim_offsets\": true}",
       "4:0 A:0 3:0 ", "4:0 A:0 3:0 3:0 B:0 3:0 ", false},
      {"{\"type\": \"Sequence\", \"processors\": [{\"type\": \"ByteLevel\"}, {\"type\": \"TemplateProcessing\", "
       "\"single\": "
       "[{\"SpecialToken\": {\"id\": \"x\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}], "
       "\"pair\": "
       "[{\"Sequence\": {\"id\": \"B\", \"type_id\": 0}}, {\"SpecialToken\": {\"id\": \"x\", \"type_id\": 1}}], "
       "\"special_tokens\": {\"x\": {\"id\": \"x\", \"ids\": [5, 6], \"tokens\": [\"p\", \"q\"]}}}]}",
       "5:0 6:0 A:0 ", "B:0 5:1 6:1 ", true},
  };
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    zt_tokenizer *tok;
    assert_ok(load_parts(&(parts){.post = cases[i].post}, &tok));
    assert_string_equal(template_text(tok, false), cases[i].single);
    assert_string_equal(template_text(tok, true), cases[i].pair);
    assert_int_equal(zt_tokenizer_get_settings(tok).type_ids, cases[i].type_ids);
    zt_encode_options o = {.add_special_tokens = true};
    if (i == 4) assert_string_equal(encoded(tok, "hello", &o), "&|'|hello");
    zt_tokenizer_free(tok);
  }
}

/* --- folders */

static void write_text(const char *name, const char *text) { scratch_write(name, text, strlen(text)); }

static void make_folder(const char *name) { assert_ok(zt_make_dirs(scratch_path(name))); }

static void test_legacy_folder(void **state) {
  (void)state;
  zt_tokenizer *tok;
  zt_encode_options o = {.add_special_tokens = true};
  make_folder("gpt");
  write_text("gpt/encoder.json", "{\"a\": 0, \"b\": 1, \"ab\": 2, \"<|endoftext|>\": 3, \"Ġ\": 4}");
  write_text("gpt/vocab.bpe", "#version: 0.2\r\na b\r\n");
  assert_ok(zt_tokenizer_load(scratch_path("gpt"), &tok));
  assert_string_equal(encoded(tok, "ab<|endoftext|>a?", &o), "ab|<|endoftext|>|a|<|endoftext|>");
  assert_int_equal(zt_tokenizer_special(tok, "bos"), 3);
  assert_int_equal(zt_tokenizer_special(tok, "eos"), 3);
  assert_int_equal(zt_tokenizer_special(tok, "unk"), 3);
  assert_int_equal(zt_tokenizer_special(tok, "pad"), -1);
  assert_int_equal(zt_tokenizer_special(tok, "none"), -1);
  zt_tokenizer_free(tok);
  write_text(
      "gpt/tokenizer_config.json",
      "{\"model_max_length\": 1000000000000000019884624838656, \"add_prefix_space\": true,"
      "\"add_bos_token\": true, \"pad_token\": {\"content\": \"<p>\", \"lstrip\": true}, \"padding_side\": \"left\","
      "\"added_tokens_decoder\": {\"5\": {\"content\": \"+\", \"special\": false}}}");
  write_text("gpt/special_tokens_map.json", "{\"sep_token\": \"a\", \"additional_special_tokens\": [\"<x>\"]}");
  write_text("gpt/added_tokens.json", "{\"+\": 5, \"<y>\": 6}");
  assert_ok(zt_tokenizer_load(scratch_path("gpt"), &tok));
  assert_string_equal(encoded(tok, "b+ <p><x><y>", &o), "<|endoftext|>|Ġ|b|+|<p>|<x>|<y>");
  assert_int_equal(zt_tokenizer_special(tok, "sep"), 0);
  assert_int_equal(zt_tokenizer_special(tok, "pad"), 7);
  assert_true(zt_tokenizer_get_settings(tok).pad_left);
  assert_int_equal(zt_tokenizer_get_settings(tok).max_length, -1);
  zt_tokenizer_free(tok);
}

static void test_blenderbot_folder(void **state) {
  (void)state;
  zt_tokenizer *tok;
  zt_encode_options o = {.add_special_tokens = true};
  make_folder("bot");
  write_text("bot/vocab.json", "{\"<pad>\": 0, \"<s>\": 1, \"</s>\": 2, \"<unk>\": 3, \"a\": 4, \"Ġ\": 5, \"Ġa\": 6}");
  write_text("bot/merges.txt", "Ġ a");
  write_text("bot/config.json", "{\"model_type\": \"blenderbot\"}");
  assert_ok(zt_tokenizer_load(scratch_path("bot"), &tok));
  assert_string_equal(encoded(tok, "a", &o), "Ġa|</s>");
  assert_string_equal(encoded(tok, " a", NULL), "Ġa");
  assert_int_equal(zt_tokenizer_special(tok, "pad"), 0);
  zt_tokenizer_free(tok);
  write_text("bot/tokenizer_config.json", "{\"tokenizer_class\": \"RobertaTokenizerFast\", \"model_max_length\": 128}");
  assert_ok(zt_tokenizer_load(scratch_path("bot"), &tok));
  assert_string_equal(encoded(tok, "a", &o), "<s>|a|</s>");
  assert_int_equal(zt_tokenizer_get_settings(tok).max_length, 128);
  zt_tokenizer_free(tok);
  write_text("bot/tokenizer_config.json", "{\"tokenizer_class\": \"LlamaTokenizer\"}");
  assert_fails(
      zt_tokenizer_load(scratch_path("bot"), &tok), ZT_FORMAT,
      "%s: without a tokenizer.json, tokenizer_class is one of GPT2Tokenizer, RobertaTokenizer and BlenderbotTokenizer",
      scratch_path("bot"));
}

/* --- files from strangers */

static void test_hostile_json(void **state) {
  static const struct {
    parts p;
    const char *message;
  } cases[] = {
      {{.pre = "{\"type\": \"Whitespace\"}"}, "pre_tokenizer.type: \"Whitespace\" is not supported"},
      {{.pre = "null"}, "pre_tokenizer: a BPE model without ByteLevel is not supported"},
      {{.pre = "[]"}, "pre_tokenizer: [] is not supported"},
      {{.pre = "{\"type\": \"Sequence\", \"pretokenizers\": []}"},
       "pre_tokenizer: a BPE model without ByteLevel is not supported"},
      {{.pre = "{\"type\": \"ByteLevel\", \"add_prefix_space\": 1}"},
       "pre_tokenizer.add_prefix_space: 1 is not supported"},
      {{.pre = "{\"type\": \"ByteLevel\", \"magic\": 1}"}, "pre_tokenizer.magic: 1 is not supported"},
      {{.pre = "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"\\\\w\"}, \"behavior\": \"Isolated\", \"invert\": "
               "false}"},
       "pre_tokenizer.pattern: '\\w' at byte 0 of the regular expression is not supported"},
      {{.pre = "{\"type\": \"Split\", \"pattern\": {\"Glob\": \"*\"}}"},
       "pre_tokenizer.pattern: {\"Glob\":\"*\"} is not supported"},
      {{.pre = "{\"type\": \"Split\", \"pattern\": {\"String\": \"x\"}, \"behavior\": \"Torn\"}"},
       "pre_tokenizer.behavior: \"Torn\" is not supported"},
      {{.decoder = "null"}, "decoder: null is not supported"},
      {{.decoder = "{\"type\": \"Metaspace\"}"}, "decoder.type: \"Metaspace\" is not supported"},
      {{.post = "{\"type\": \"Strip\"}"}, "post_processor.type: \"Strip\" is not supported"},
      {{.post = "{\"type\": \"BertProcessing\", \"sep\": [\"a\", 3], \"cls\": [\"b\", 999]}"},
       "post_processor: 'b' has the id 999, which no token has"},
      {{.post = "{\"type\": \"BertProcessing\", \"sep\": 3}"}, "post_processor.cls is missing"},
      {{.post = "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"x\"}}], \"pair\": []}"},
       "post_processor.special_tokens: 'x' is missing"},
      {{.post = "{\"type\": \"TemplateProcessing\", \"single\": [{\"Sequence\": {\"id\": \"B\"}}], \"pair\": []}"},
       "post_processor.single: {\"Sequence\":{\"id\":\"B\"}} is not supported"},
      {{.model_more = ", \"dropout\": 0.1"}, "model.dropout: 0.1"},
      {{.model_more = ", \"byte_fallback\": true"}, "model.byte_fallback: true is not supported"},
      {{.model_more = ", \"continuing_subword_prefix\": \"##\""},
       "model.continuing_subword_prefix: \"##\" is not supported"},
      {{.model_more = ", \"unk_token\": \"<unk>\""}, "model.unk_token: '<unk>' is not in the vocabulary"},
      {{.added = "[{\"id\": 1, \"content\": \"new\"}]"}, "added_tokens: id 1 is that of '\"' and of 'new'"},
      {{.added = "[{\"id\": 300, \"content\": \"hello\"}]"}, "added_tokens: token 'hello' has the ids 259 and 300"},
      {{.added = "[{\"id\": -4, \"content\": \"new\"}]"}, "added_tokens: token 'new' has the id -4"},
      {{.added = "[{\"id\": 9000000000, \"content\": \"new\"}]"},
       "added_tokens: token 'new' has the id 9000000000, too high for a vocabulary of this size (the limit is 67680)"},
      {{.added = "[{\"id\": 300, \"content\": \"\"}]"}, "added_tokens: an added token is empty"},
      {{.added = "[{\"id\": 300}]"}, "added_tokens.content is missing"},
      {{.added = "[7]"}, "added_tokens: 7 is not supported"},
  };
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    zt_tokenizer *tok;
    char expected[512];
    snprintf(expected, sizeof expected, "%s: %s", scratch_path("t.json"), cases[i].message);
    assert_int_equal(load_parts(&cases[i].p, &tok), ZT_FORMAT);
    assert_null(tok);
    if (strncmp(zt_message(), expected, strlen(expected)) != 0)
      fail_msg("'%s' instead of '%s'", zt_message(), expected);
  }
}

static void test_hostile_models(void **state) {
  static const struct {
    const char *text, *message;
  } cases[] = {
      {"{\n\"model\": {,", ": line 2, column 11: string or '}' expected near ','"},
      {"[]", ": model is missing"},
      {"{\"model\": {\"type\": \"Unigram\"}}", ": model.type: \"Unigram\" is not supported"},
      {"{\"model\": {\"vocab\": []}}", ": model.vocab: the vocabulary is not a JSON object"},
      {"{\"model\": {\"vocab\": {\"a\": \"b\"}}}", ": model.vocab: the id of token 'a' is not an integer"},
      {"{\"model\": {\"vocab\": {\"a\": -1}}}", ": model.vocab: token 'a' has the id -1"},
      {"{\"model\": {\"vocab\": {\"a\": 1, \"b\": 1}}}", ": model.vocab: id 1 is that of 'a' and of 'b'"},
      {"{\"model\": {\"vocab\": {\"a\": 4294967295}}}",
       ": model.vocab: token 'a' has the id 4294967295, too high for a vocabulary of this size (the limit is 65544)"},
      {"{\"model\": {\"vocab\": {\"a\": 0}}}", ": model.merges: not a list"},
      {"{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": [\"a a\"]}}",
       ": model.merges: merge 1: 'aa' is not in the vocabulary"},
      {"{\"model\": {\"vocab\": {\"a\": 0, \"aa\": 1}, \"merges\": [[\"a\", \"a\"], [\"a\", \"x\"]]}}",
       ": model.merges: merge 2: 'x' is not in the vocabulary"},
      {"{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": [\"a\"]}}", ": model.merges: merge 1: 'a' is not two tokens"},
      {"{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": [7]}}",
       ": model.merges: merge 1: neither \"left right\" nor [\"left\", \"right\"]"},
      {"{\"normalizer\": {\"type\": \"NFC\"}, \"model\": {\"vocab\": {}, \"merges\": []}}",
       ": normalizer.type: \"NFC\" is not supported"},
  };
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    zt_tokenizer *tok;
    write_text("h.json", cases[i].text);
    assert_fails(zt_tokenizer_load(scratch_path("h.json"), &tok), ZT_FORMAT, "%s%s", scratch_path("h.json"),
                 cases[i].message);
  }
}

static void test_hostile_folders(void **state) {
  (void)state;
  zt_tokenizer *tok;
  make_folder("bad");
  assert_fails(zt_tokenizer_load(scratch_path("bad"), &tok), ZT_IO,
               "%s: no tokenizer there (tokenizer.json, vocab.json and merges.txt, or encoder.json and vocab.bpe)",
               scratch_path("bad"));
  assert_int_equal(zt_tokenizer_load(scratch_path("none"), &tok), ZT_IO);
  write_text("bad/vocab.json", "{\"a\": 0,\n\"b\" 1}");
  write_text("bad/merges.txt", "#version: 0.2\na b\n\nx\n");
  assert_fails(zt_tokenizer_load(scratch_path("bad"), &tok), ZT_FORMAT, "%s: line 2, column 5: ':' expected near '1'",
               scratch_path("bad/vocab.json"));
  write_text("bad/vocab.json", "{\"a\": 0, \"b\": 1}");
  assert_fails(zt_tokenizer_load(scratch_path("bad"), &tok), ZT_FORMAT, "%s: line 2: 'ab' is not in the vocabulary",
               scratch_path("bad/merges.txt"));
  write_text("bad/vocab.json", "{\"a\": 0, \"b\": 1, \"ab\": 2}");
  assert_fails(zt_tokenizer_load(scratch_path("bad"), &tok), ZT_FORMAT, "%s: line 4: 'x' is not two tokens",
               scratch_path("bad/merges.txt"));
  write_text("bad/merges.txt", "a b");
  write_text("bad/added_tokens.json", "{\"ab\": 7}");
  assert_fails(zt_tokenizer_load(scratch_path("bad"), &tok), ZT_FORMAT,
               "%s: added_tokens.json: token 'ab' has the ids 2 and 7", scratch_path("bad"));
  write_text("bad/added_tokens.json", "{}");
  write_text("bad/tokenizer_config.json", "{\"added_tokens_decoder\": {\"x\": {}}}");
  assert_fails(zt_tokenizer_load(scratch_path("bad"), &tok), ZT_FORMAT,
               "%s: tokenizer_config.json: added_tokens_decoder: 'x' is not an id", scratch_path("bad"));
  write_text("bad/tokenizer_config.json", "{\"padding_side\": \"up\"}");
  assert_fails(zt_tokenizer_load(scratch_path("bad"), &tok), ZT_FORMAT,
               "%s: tokenizer_config.json.padding_side: \"up\" is not supported", scratch_path("bad"));
}

/* --- training and saving */

static zt_tokenizer *trained(const char *text, size_t vocab_size, size_t min_frequency, const char *const *special) {
  zt_tokenizer *tok;
  write_text("corpus.txt", text);
  const char *path = scratch_path("corpus.txt");
  zt_bpe_options o = {vocab_size, min_frequency, special};
  assert_ok(zt_tokenizer_train_bpe(&path, 1, &o, &tok));
  return tok;
}

static const char *merge_texts(const zt_tokenizer *tok) {
  static char out[1024];
  size_t n = 0;
  out[0] = 0;
  for (size_t i = 0; i < tok->bpe.n_merges; i++)
    n += (size_t)snprintf(out + n, sizeof out - n, "%s%s+%s", i ? " " : "",
                          (const char *)tok->vocab.tokens[tok->bpe.merges[i].left].text,
                          (const char *)tok->vocab.tokens[tok->bpe.merges[i].right].text);
  return out;
}

static void test_train(void **state) {
  static const char *const special[] = {"<|endoftext|>", "<pad>", NULL};
  (void)state;
  /* aab 3 times, ab 2: a+b 5, then a+ab 3; the words with a space: Ġ+b 2, Ġ+c 2 tie, the lower ids first */
  zt_tokenizer *tok = trained("aab\naab\naab\nab\nab\n c\n b\n c\n b\n", 300, 2, special);
  assert_string_equal(merge_texts(tok), "a+b a+ab Ġ+b Ġ+c");
  assert_int_equal(zt_tokenizer_special(tok, "bos"), 0);
  assert_int_equal(zt_tokenizer_special(tok, "eos"), 0);
  assert_int_equal(zt_tokenizer_token_to_id(tok, "<pad>"), 1);
  assert_int_equal(zt_tokenizer_token_to_id(tok, "!"), 2);
  assert_int_equal(zt_tokenizer_token_to_id(tok, "ab"), 258);
  assert_int_equal(zt_tokenizer_vocab_size(tok), 262);
  assert_string_equal(encoded(tok, "aab<pad> cab", NULL), "aab|<pad>|Ġc|ab");
  zt_tokenizer_free(tok);
  tok = trained("aab\naab\naab\nab\nab\n c\n b\n c\n b\n", 258, 2, NULL);
  assert_string_equal(merge_texts(tok), "a+b a+ab");
  zt_tokenizer_free(tok);
  tok = trained("aab\naab\naab\nab\nab\n c\n b\n c\n b\n", 300, 3, NULL);
  assert_string_equal(merge_texts(tok), "a+b a+ab");
  zt_tokenizer_free(tok);
  tok = trained("", 300, 2, NULL);
  assert_int_equal(zt_tokenizer_vocab_size(tok), 256);
  zt_tokenizer_free(tok);
}

static void test_train_errors(void **state) {
  static const char *const twice[] = {"<a>", "<a>", NULL}, *const empty[] = {"", NULL};
  (void)state;
  zt_tokenizer *tok;
  write_text("corpus.txt", "abc");
  const char *paths[] = {scratch_path("corpus.txt"), scratch_path("none.txt")};
  assert_fails(zt_tokenizer_train_bpe(paths, 1, &(zt_bpe_options){100, 2, NULL}, &tok), ZT_INVALID,
               "training a tokenizer: vocab_size 100: 256 (the bytes and the special tokens) to 16777216 are possible");
  assert_fails(zt_tokenizer_train_bpe(paths, 1, &(zt_bpe_options){300, 2, twice}, &tok), ZT_FORMAT,
               "training a tokenizer: token '<a>' has the ids 0 and 1");
  assert_fails(zt_tokenizer_train_bpe(paths, 1, &(zt_bpe_options){300, 2, empty}, &tok), ZT_INVALID,
               "training a tokenizer: special token 1 is empty");
  assert_int_equal(zt_tokenizer_train_bpe(paths, 2, &(zt_bpe_options){300, 2, NULL}, &tok), ZT_IO);
}

/* Words in random order over several megabytes of two files: any number of threads learns the same. */
static void test_train_threads(void **state) {
  (void)state;
  const char *paths[2] = {scratch_path("one.txt"), scratch_path("two.txt")};
  uint64_t hashes[3];
  for (int k = 0; k < 2; k++) {
    zt_buffer b = {0};
    while (b.nbytes < 1500000)
      assert_ok(zt_buffer_addf(&b, "%s%llx", scratch_below(12) ? " " : "\n", (unsigned long long)scratch_below(4000)));
    scratch_write(k ? "two.txt" : "one.txt", b.data, b.nbytes);
    zt_buffer_clear(&b);
  }
  int before = omp_get_max_threads();
  for (int i = 0; i < 3; i++) {
    zt_tokenizer *tok;
    omp_set_num_threads(1 + 2 * i);
    assert_ok(zt_tokenizer_train_bpe(paths, 2, &(zt_bpe_options){600, 2, NULL}, &tok));
    assert_int_equal(zt_tokenizer_vocab_size(tok), 600);
    hashes[i] = zt_tokenizer_hash(tok);
    zt_tokenizer_free(tok);
  }
  omp_set_num_threads(before);
  assert_true(hashes[0] == hashes[1] && hashes[1] == hashes[2]);
}

static void test_save(void **state) {
  static const char *const special[] = {"<|endoftext|>", NULL};
  (void)state;
  zt_tokenizer *tok = trained("hello hello \"quoted\" \\ hello\n", 300, 2, special), *again;
  const char *folder = scratch_path("saved/deep");
  assert_ok(zt_tokenizer_save(tok, folder));
  assert_int_equal(scratch_count("saved/deep"), 5);
  assert_ok(zt_tokenizer_load(folder, &again));
  assert_true(zt_tokenizer_hash(tok) == zt_tokenizer_hash(again));
  assert_int_equal(zt_tokenizer_special(again, "eos"), 0);
  zt_tokenizer_free(again);
  remove(scratch_path("saved/deep/tokenizer.json")); /* the older files say the same */
  assert_ok(zt_tokenizer_load(folder, &again));
  assert_string_equal(encoded(again, "hello<|endoftext|>", NULL), "hello|<|endoftext|>");
  assert_int_equal(zt_tokenizer_vocab_size(again), zt_tokenizer_vocab_size(tok));
  zt_tokenizer_free(again);
  zt_tokenizer_free(tok);
  assert_ok(load_parts(&(parts){.merges = (const char *const[]){"a b", NULL},
                                .added = "[{\"id\": 257, \"content\": \"<|eot|>\", \"special\": true}, "
                                         "{\"id\": 300, \"content\": \"\\\"é b\", \"lstrip\": true}]"},
                       &tok));
  assert_ok(zt_tokenizer_save(tok, folder));
  assert_ok(zt_tokenizer_load(folder, &again));
  assert_true(zt_tokenizer_hash(tok) == zt_tokenizer_hash(again));
  assert_string_equal(encoded(again, "ab \"é b", NULL), "ab|\"é b");
  zt_tokenizer_free(again);
  zt_tokenizer_free(tok);
}

/* What tokenizer_config.json says besides stays as it was. */
static void test_save_config(void **state) {
  (void)state;
  zt_tokenizer *tok;
  json_t *config;
  make_folder("cfg");
  write_text("cfg/vocab.json", "{\"a\": 0, \"<|endoftext|>\": 1}");
  write_text("cfg/merges.txt", "");
  write_text("cfg/tokenizer_config.json",
             "{\"chat_template\": \"{{ x }}\", \"model_max_length\": 77, \"errors\": \"replace\"}");
  assert_ok(zt_tokenizer_load(scratch_path("cfg"), &tok));
  assert_ok(zt_tokenizer_save(tok, scratch_path("cfg2")));
  zt_tokenizer_free(tok);
  assert_ok(zt_json_load(scratch_path("cfg2/tokenizer_config.json"), &config));
  assert_string_equal(json_string_value(json_object_get(config, "chat_template")), "{{ x }}");
  assert_int_equal(json_integer_value(json_object_get(config, "model_max_length")), 77);
  assert_string_equal(json_string_value(json_object_get(config, "eos_token")), "<|endoftext|>");
  assert_non_null(json_object_get(json_object_get(config, "added_tokens_decoder"), "1"));
  json_decref(config);
}

static uint64_t hash_of(const parts *p) {
  zt_tokenizer *tok;
  assert_ok(load_parts(p, &tok));
  uint64_t hash = zt_tokenizer_hash(tok);
  zt_tokenizer_free(tok);
  return hash;
}

/* Everything that encoding depends on changes the hash. */
static void test_hash(void **state) {
  static const char *const two[] = {"h e", "l l", NULL}, *const turned[] = {"l l", "h e", NULL};
  static const char special[] = "[{\"id\": 266, \"content\": \"<|eot|>\", \"special\": true}]";
  static const char strips[] = "[{\"id\": 266, \"content\": \"<|eot|>\", \"special\": true, \"lstrip\": true}]";
  (void)state;
  const uint64_t hashes[] = {
      hash_of(&(parts){0}),
      hash_of(&(parts){.merges = two}),
      hash_of(&(parts){.merges = turned}),
      hash_of(&(parts){.added = special}),
      hash_of(&(parts){.added = strips}),
      hash_of(&(parts){.pre = "{\"type\": \"ByteLevel\", \"add_prefix_space\": true}"}),
      hash_of(&(parts){.model_more = ", \"ignore_merges\": true"}),
      hash_of(&(parts){.post = "{\"type\": \"BertProcessing\", \"sep\": [\"a\", 3], \"cls\": [\"b\", 4]}"}),
  };
  for (size_t i = 0; i < sizeof hashes / sizeof *hashes; i++)
    for (size_t k = 0; k < i; k++) assert_true(hashes[i] != hashes[k]);
  assert_true(hashes[0] == hash_of(&(parts){0}));
}

/* --- failing allocations */

static zt_status load_and_encode(void *user) {
  static const char text[] =
      "hello <|eot|> aaaa é \xff  hello aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
  zt_tokenizer *tok;
  zt_ids ids = {0};
  zt_encode_options o = {.add_special_tokens = true};
  char *decoded = NULL;
  size_t n;
  ZT_TRY(zt_tokenizer_load(user, &tok));
  zt_status st = zt_tokenizer_encode(tok, text, sizeof text - 1, &o, &ids);
  if (st == ZT_OK) st = zt_tokenizer_decode(tok, ids.data, ids.count, false, &decoded, &n);
  if (st == ZT_OK) assert_int_equal(n, sizeof text - 1 + 2);
  zt_free(decoded);
  zt_ids_clear(&ids);
  zt_tokenizer_free(tok);
  return st;
}

static zt_status train_and_save(void *user) {
  static const char *const special[] = {"<|endoftext|>", NULL};
  zt_tokenizer *tok;
  const char *path = user;
  ZT_TRY(zt_tokenizer_train_bpe(&path, 1, &(zt_bpe_options){270, 2, special}, &tok));
  zt_status st = zt_tokenizer_save(tok, scratch_path("faults"));
  zt_tokenizer_free(tok);
  return st;
}

static void test_failing_allocations(void **state) {
  (void)state;
  zt_buffer b = {0};
  parts p = {.added = "[{\"id\": 266, \"content\": \"<|eot|>\", \"special\": true}]",
             .pre = "{\"type\": \"ByteLevel\", \"add_prefix_space\": false}",
             .post = "{\"type\": \"BertProcessing\", \"sep\": [\"a\", 3], \"cls\": [\"b\", 4]}"};
  make_json(&b, &p);
  scratch_write("t.json", b.data, b.nbytes);
  zt_buffer_clear(&b);
  assert_true(fail_each_allocation(load_and_encode, (void *)scratch_path("t.json")) > 100);
  write_text("small.txt", "hello hello yellow yellow\nhello\n");
  int before = omp_get_max_threads();
  omp_set_num_threads(1); /* else the numbers of allocations are not the same each time */
  assert_true(fail_each_allocation(train_and_save, (void *)scratch_path("small.txt")) > 50);
  omp_set_num_threads(before);
}

static zt_status load_folder_and_save(void *user) {
  zt_tokenizer *tok;
  ZT_TRY(zt_tokenizer_load(user, &tok));
  zt_status st = zt_tokenizer_save(tok, scratch_path("faults"));
  zt_tokenizer_free(tok);
  return st;
}

static void test_failing_folder(void **state) {
  (void)state;
  make_folder("legacy");
  write_text("legacy/vocab.json", "{\"a\": 0, \"b\": 1, \"ab\": 2, \"<s>\": 3, \"</s>\": 4, \"Ġ\": 5, \"<unk>\": 6}");
  write_text("legacy/merges.txt", "a b\n");
  write_text("legacy/tokenizer_config.json", "{\"tokenizer_class\": \"RobertaTokenizer\", \"pad_token\": \"<pad>\"}");
  assert_true(fail_each_allocation(load_folder_and_save, (void *)scratch_path("legacy")) > 100);
}

/* --- threads */

typedef struct job {
  pthread_t thread;
  const zt_tokenizer *tok;
  const zt_buffer *text;
  zt_ids ids;
  zt_status st;
} job;

static void *encode_lines(void *user) {
  job *j = user;
  for (const char *line = j->text->data, *end = line + j->text->nbytes; line < end && j->st == ZT_OK;) {
    const char *stop = (const char *)memchr(line, '\n', (size_t)(end - line)) + 1;
    j->st = zt_tokenizer_encode(j->tok, line, (size_t)(stop - line), NULL, &j->ids);
    line = stop;
  }
  return NULL;
}

static void test_threads(void **state) {
  (void)state;
  zt_tokenizer *tok = usual();
  zt_buffer text = {0};
  job jobs[4] = {0};
  for (int i = 0; i < 5000; i++)
    assert_ok(zt_buffer_addf(&text, "hello %llu ab\n", (unsigned long long)scratch_below(1000)));
  for (int i = 0; i < 4; i++) {
    jobs[i].tok = tok, jobs[i].text = &text;
    assert_int_equal(pthread_create(&jobs[i].thread, NULL, encode_lines, &jobs[i]), 0);
  }
  for (int i = 0; i < 4; i++) {
    pthread_join(jobs[i].thread, NULL);
    assert_int_equal(jobs[i].st, ZT_OK);
    assert_int_equal(jobs[i].ids.count, jobs[0].ids.count);
    assert_memory_equal(jobs[i].ids.data, jobs[0].ids.data, jobs[0].ids.count * sizeof(int64_t));
  }
  assert_decodes(tok, &jobs[0].ids, text.data, text.nbytes);
  for (int i = 0; i < 4; i++) zt_ids_clear(&jobs[i].ids);
  zt_buffer_clear(&text);
  zt_tokenizer_free(tok);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_split_gpt2),
      cmocka_unit_test(test_white_space),
      cmocka_unit_test(test_split_behaviors),
      cmocka_unit_test(test_split_removed),
      cmocka_unit_test(test_patterns),
      cmocka_unit_test(test_slow_pattern),
      cmocka_unit_test(test_merges),
      cmocka_unit_test(test_ignore_merges),
      cmocka_unit_test(test_merging_random),
      cmocka_unit_test(test_many_words),
      cmocka_unit_test(test_long_word),
      cmocka_unit_test(test_random_bytes),
      cmocka_unit_test(test_unknown_bytes),
      cmocka_unit_test(test_added_tokens),
      cmocka_unit_test(test_bad_ids),
      cmocka_unit_test(test_templates),
      cmocka_unit_test(test_legacy_folder),
      cmocka_unit_test(test_blenderbot_folder),
      cmocka_unit_test(test_hostile_json),
      cmocka_unit_test(test_hostile_models),
      cmocka_unit_test(test_hostile_folders),
      cmocka_unit_test(test_train),
      cmocka_unit_test(test_train_errors),
      cmocka_unit_test(test_train_threads),
      cmocka_unit_test(test_save),
      cmocka_unit_test(test_save_config),
      cmocka_unit_test(test_hash),
      cmocka_unit_test(test_failing_allocations),
      cmocka_unit_test(test_failing_folder),
      cmocka_unit_test(test_threads),
  };
  return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
