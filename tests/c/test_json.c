/* JSON in (what is refused, and where) and out. */
#include "tests/c/scratch.h"

#include <locale.h>
#include <math.h>

#include "core/io/json.h"

static zt_status parse(const char *text, json_t **out) { return zt_json_parse("x.json", text, strlen(text), out); }

static void test_values(void **state) {
  (void)state;
  json_t *v;
  assert_ok(parse(" {\"a\": [1, 2.5, null, true, \"\\u00e9\"], \"b\": 9223372036854775807}\n", &v));
  assert_int_equal(json_array_size(json_object_get(v, "a")), 5);
  assert_true(json_integer_value(json_object_get(v, "b")) == INT64_MAX);
  assert_string_equal(json_string_value(json_array_get(json_object_get(v, "a"), 4)), "é");
  json_decref(v);
  assert_ok(parse("3", &v));
  assert_int_equal(json_integer_value(v), 3);
  json_decref(v);
}

static void test_errors(void **state) {
  static const struct {
    const char *text, *message;
  } cases[] = {
      {"", "x.json: line 1, column 0: unexpected token near end of file"},
      {"{\n  \"a\": 1,\n  \"b\": }", "x.json: line 3, column 8: unexpected token near '}'"},
      {"{\"a\": 1, \"a\": 2}", "x.json: line 1, column 12: duplicate object key near '\"a\"'"},
      {"[1, 2", "x.json: line 1, column 5: ']' expected near end of file"},
      {"[1] 2", "x.json: line 1, column 5: end of file expected near '2'"},
      {"[01]", "x.json: line 1, column 2: invalid token near '0'"},
      {"[9223372036854775808]", "x.json: line 1, column 20: too big integer near '9223372036854775808'"},
      {"[1e999]", "x.json: line 1, column 6: real number overflow near '1e999'"},
      {"[NaN]", "x.json: line 1, column 4: invalid token near 'NaN'"},
      {"[\"\xff\"]", "x.json: line 1, column 2: unable to decode byte 0xff near '\"'"},
      {"[\"\\u0000\"]", "x.json: line 1, column 9: \\u0000 is not allowed without JSON_ALLOW_NUL near '\"\\u0000\"'"},
  };
  json_t *v;
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    assert_fails(parse(cases[i].text, &v), ZT_FORMAT, "%s", cases[i].message);
    assert_null(v);
  }
}

static void test_nesting(void **state) {
  (void)state;
  json_t *v;
  static char text[100001];
  memset(text, '[', 100000);
  assert_fails(parse(text, &v), ZT_FORMAT, "x.json: line 1, column 2049: maximum parsing depth reached near '['");
}

static void test_load(void **state) {
  (void)state;
  json_t *v;
  const char *path = scratch_path("config.json");
  scratch_write("config.json", "{\n\"n_embd\": 64,\n}", 17);
  assert_fails(zt_json_load(path, &v), ZT_FORMAT, "%s: line 3, column 1: string or '}' expected near '}'", path);
  scratch_write("config.json", "{\"n_embd\": 64}", 14);
  assert_ok(zt_json_load(path, &v));
  assert_int_equal(json_integer_value(json_object_get(v, "n_embd")), 64);
  json_decref(v);
  assert_fails(zt_json_load(scratch_path("none.json"), &v), ZT_IO, "cannot read '%s': No such file or directory",
               scratch_path("none.json"));
}

static zt_status parse_deep(void *user) {
  static const char text[] =
      "{\"long enough a name to need memory of its own\": [\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\", "
      "123456789012, "
      "1.2345678901234567890123456789, {\"b\": {\"c\": [[[1], 2, 3, 4, 5, 6, 7, 8, 9, 10], null, true]}}], \"k0\": 0, "
      "\"k1\": 1, \"k2\": 2, \"k3\": 3, \"k4\": 4, \"k5\": 5, \"k6\": 6, \"k7\": 7, \"k8\": 8}";
  json_t **out = user, *expected = *out, *got;
  ZT_TRY(zt_json_parse("text", text, sizeof text - 1, &got));
  if (expected) assert_true(json_equal(got, expected)); /* nothing is lost without an error */
  if (expected)
    json_decref(got);
  else
    *out = got;
  return ZT_OK;
}

static void test_out_of_memory(void **state) {
  (void)state;
  json_t *expected = NULL;
  assert_ok(parse_deep(&expected));
  assert_true(fail_each_allocation(parse_deep, &expected) > 40);
  json_decref(expected);
  assert_int_equal(zt_mem_get_stats().n_live_blocks, 0);
}

/* --- out */

static void assert_string(const char *text, size_t nbytes, const char *expected) {
  zt_buffer b = {0};
  assert_ok(zt_json_add_string(&b, text, nbytes));
  assert_string_equal(b.data, expected);
  zt_buffer_clear(&b);
}

static void test_strings_out(void **state) {
  (void)state;
  zt_buffer b = {0};
  assert_string("", 0, "\"\"");
  assert_string("a\"b\\c/\b\f\n\r\t\x01\x1f\x7f", 14, "\"a\\\"b\\\\c/\\b\\f\\n\\r\\t\\u0001\\u001f\x7f\"");
  assert_string("\0x", 2, "\"\\u0000x\"");
  assert_string("é€😀", 9, "\"é€😀\"");
  assert_fails(zt_json_add_string(&b, "ab\xff", 3), ZT_FORMAT, "a JSON string must be UTF-8, these 3 bytes are not");
  zt_buffer_clear(&b);
}

static void test_utf8(void **state) {
  static const char *const bad[] = {"\x80",         "\xc0\x80",         "\xc1\xbf",         "\xe0\x9f\xbf",
                                    "\xed\xa0\x80", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80",
                                    "\xc3",         "\xe2\x82",         "\xf0\x9f\x98",     "a\xc3(",
                                    "\xff"};
  static const char *const good[] = {"",
                                     "a",
                                     "\xc2\x80",
                                     "\xdf\xbf",
                                     "\xe0\xa0\x80",
                                     "\xed\x9f\xbf",
                                     "\xee\x80\x80",
                                     "\xef\xbf\xbf",
                                     "\xf0\x90\x80\x80",
                                     "\xf4\x8f\xbf\xbf"};
  (void)state;
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_false(zt_is_utf8(bad[i], strlen(bad[i])));
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) assert_true(zt_is_utf8(good[i], strlen(good[i])));
}

static const char *real_text(double value) {
  static char text[64];
  zt_buffer b = {0};
  assert_ok(zt_json_add_real(&b, value));
  snprintf(text, sizeof text, "%s", b.data);
  zt_buffer_clear(&b);
  return text;
}

static void test_reals_out(void **state) {
  zt_buffer b = {0};
  (void)state;
  assert_string_equal(real_text(0.1), "0.1");
  assert_string_equal(real_text(1), "1.0");
  assert_string_equal(real_text(-0.0), "-0.0");
  assert_string_equal(real_text(1e-5), "1e-05");
  assert_string_equal(real_text(1e300), "1e+300");
  assert_string_equal(real_text(1.0 / 3), "0.3333333333333333");
  assert_fails(zt_json_add_real(&b, NAN), ZT_INVALID, "JSON has no number for NaN");
  assert_fails(zt_json_add_real(&b, -INFINITY), ZT_INVALID, "JSON has no number for -infinity");
  for (int i = 0; i < 20000; i++) {
    union {
      uint64_t bits;
      double value;
    } v = {scratch_random()};
    if (!isfinite(v.value)) continue;
    if (strtod(real_text(v.value), NULL) != v.value)
      fail_msg("%a reads back otherwise: %s", v.value, real_text(v.value));
  }
}

static void test_reals_in_other_locale(void **state) {
  (void)state;
  static const char *const names[] = {"de_DE.UTF-8", "fr_FR.UTF-8", "ps_AF.UTF-8"};
  int n_found = 0;
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    if (!setlocale(LC_NUMERIC, names[i])) continue;
    n_found++;
    assert_string_equal(real_text(-1.5e-7), "-1.5e-07");
  }
  setlocale(LC_NUMERIC, "C");
  if (!n_found) skip();
}

static zt_status put_together(void *user) {
  zt_buffer b = {0};
  (void)user;
  zt_status st = zt_buffer_add(&b, "[", 1);
  for (int i = 0; i < 50 && st == ZT_OK; i++) st = zt_json_add_string(&b, "x\n\"y", 4);
  if (st == ZT_OK) st = zt_json_add_real(&b, 0.5);
  if (st == ZT_OK) st = zt_buffer_addf(&b, "%0200d]", 7);
  if (st == ZT_OK) assert_int_equal(b.nbytes, strlen(b.data));
  zt_buffer_clear(&b);
  return st;
}

static void test_writing_out_of_memory(void **state) {
  (void)state;
  assert_true(fail_each_allocation(put_together, NULL) >= 3);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_values),
      cmocka_unit_test(test_errors),
      cmocka_unit_test(test_nesting),
      cmocka_unit_test(test_load),
      cmocka_unit_test(test_out_of_memory),
      cmocka_unit_test(test_strings_out),
      cmocka_unit_test(test_utf8),
      cmocka_unit_test(test_reals_out),
      cmocka_unit_test(test_reals_in_other_locale),
      cmocka_unit_test(test_writing_out_of_memory),
  };
  printf("seed %llu\n", (unsigned long long)scratch_seed());
  return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
