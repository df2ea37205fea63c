#include "core/io/json.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/base/utf8.h"
#include "core/io/file.h"

/* --- reading */

/* jansson 2.14's lexer goes on after a failed allocation, with a token that lacks characters: whether one failed is known
** only here. */
static _Thread_local bool out_of_memory;

static void *json_alloc(size_t nbytes) {
  void *block = zt_malloc(nbytes);
  if (!block) out_of_memory = true;
  return block;
}

static void set_alloc_funcs(void) { json_set_alloc_funcs(json_alloc, zt_free); }

void zt_json_init(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, set_alloc_funcs);
}

zt_status zt_json_parse(const char *name, const char *text, size_t nbytes, json_t **out) {
  json_error_t error;
  zt_json_init();
  out_of_memory = false;
  *out = json_loadb(text, nbytes, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
  if (*out && !out_of_memory) return ZT_OK;
  json_decref(*out);
  *out = NULL;
  if (out_of_memory) return zt_wrap(ZT_NOMEM, "%s", name);
  return zt_fail(ZT_FORMAT, "%s: line %d, column %d: %s", name, error.line, error.column, error.text);
}

zt_status zt_json_load(const char *path, json_t **out) {
  char *text;
  size_t nbytes;
  *out = NULL;
  ZT_TRY(zt_file_read(path, &text, &nbytes));
  zt_status st = zt_json_parse(path, text, nbytes, out);
  zt_free(text);
  return st;
}

/* --- writing */

bool zt_is_utf8(const char *text, size_t nbytes) {
  const unsigned char *end = (const unsigned char *)text + nbytes;
  return zti_utf8_run((const unsigned char *)text, end) == end;
}

static zt_status add_escaped(zt_buffer *b, char c) {
  static const char plain[] = "\"\\\b\f\n\r\t", letter[] = "\"\\bfnrt";
  const char *found = strchr(plain, c);
  if (found && c) return zt_buffer_addf(b, "\\%c", letter[found - plain]);
  return zt_buffer_addf(b, "\\u%04x", (unsigned char)c);
}

static bool needs_escape(char c) { return (unsigned char)c < 0x20 || c == '"' || c == '\\'; }

zt_status zt_json_add_string(zt_buffer *b, const char *text, size_t nbytes) {
  if (!zt_is_utf8(text, nbytes))
    return zt_fail(ZT_FORMAT, "a JSON string must be UTF-8, these %zu bytes are not", nbytes);
  ZT_TRY(zt_buffer_add(b, "\"", 1));
  for (size_t i = 0, start; i < nbytes;) {
    for (start = i; i < nbytes && !needs_escape(text[i]);) i++;
    ZT_TRY(zt_buffer_add(b, text + start, i - start));
    if (i < nbytes) ZT_TRY(add_escaped(b, text[i++]));
  }
  return zt_buffer_add(b, "\"", 1);
}

zt_status zt_json_add_real(zt_buffer *b, double value) {
  char text[40];
  if (!isfinite(value))
    return zt_fail(ZT_INVALID, "JSON has no number for %s",
                   isnan(value) ? "NaN"
                   : value > 0  ? "infinity"
                                : "-infinity");
  for (int digits = 15; digits <= 17; digits++) {
    snprintf(text, sizeof text, "%.*g", digits, value);
    if (strtod(text, NULL) == value) break;
  }
  char *point = text + strspn(text, "+-0123456789eE."), *after = point + strcspn(point, "+-0123456789eE.");
  if (after > point) { /* the locale's decimal point */
    *point = '.';
    memmove(point + 1, after, strlen(after) + 1);
  }
  size_t length = strlen(text);
  if (strcspn(text, ".eE") == length) memcpy(text + length, ".0", sizeof ".0"), length += 2;
  return zt_buffer_add(b, text, length);
}
