#include "core/text/regex.h"

#include <ctype.h>
#include <stdint.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "core/base/buffer.h"
#include "core/base/mem.h"

enum { MAX_PATTERN = 1 << 16, JIT_STACK_START = 1 << 15, JIT_STACK_MAX = 1 << 22 };

/* Whether an allocation failed: PCRE2's codes do not tell that from a system that forbids executable memory, where
** matching goes on without the JIT. */
typedef struct memory {
  bool failed;
} memory;

struct zti_regex {
  memory memory;
  pcre2_code *code;
  bool jitted;
};

struct zti_regex_match {
  memory memory;
  pcre2_match_data *data;
  pcre2_match_context *context;
  pcre2_jit_stack *stack;
};

static void *regex_malloc(size_t nbytes, void *user) {
  void *block = zt_malloc(nbytes);
  if (!block) ((memory *)user)->failed = true;
  return block;
}
static void regex_free(void *block, void *user) { (void)user, zt_free(block); }

static zt_status no_memory(void) { return zt_fail(ZT_NOMEM, "host memory: none to be had for a regular expression"); }

static zt_status pcre2_failure(zt_status st, int code, const char *what, size_t at) {
  char text[256];
  if (code == PCRE2_ERROR_NOMEMORY || code == PCRE2_ERROR_HEAPLIMIT) return no_memory();
  if (pcre2_get_error_message(code, (PCRE2_UCHAR *)text, sizeof text) < 0) text[0] = 0;
  return zt_fail(st, "%s at byte %zu: %s", what, at, text);
}

/* --- Oniguruma's patterns for PCRE2. What both read alike passes; \s, \S and names of scripts are translated
** (PCRE2 counts U+180E as white, and \p{Han} as the script's extensions too); anything else is refused rather than
** read differently. */

static zt_status refuse(const char *pattern, size_t at, size_t nbytes) {
  return zt_fail(ZT_FORMAT, "'%.*s' at byte %zu of the regular expression is not supported", (int)nbytes, pattern + at,
                 at);
}

/* Names of properties that are longer than a general category's and no script's. */
static bool is_property(const char *name, size_t nbytes) {
  static const char *const names[] = {"Alphabetic", "Any", "Join_Control", "Lowercase", "Uppercase", "White_Space"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (strlen(names[i]) == nbytes && memcmp(names[i], name, nbytes) == 0) return true;
  return false;
}

/* One escape of at least two bytes; '*used' is what was read. */
static zt_status translate_escape(const char *p, size_t nbytes, size_t *used, zt_buffer *out) {
  char c = p[1];
  *used = 2;
  if (c == 's' || c == 'S') return zt_buffer_addf(out, "\\%c{White_Space}", c == 's' ? 'p' : 'P');
  if ((c == 'p' || c == 'P') && nbytes > 2 && p[2] == '{') {
    size_t name = nbytes > 3 && p[3] == '^' ? 4 : 3, end = name;
    while (end < nbytes && (isalnum((unsigned char)p[end]) || p[end] == '_')) end++;
    ZT_TRY(zt_buffer_add(out, p, name));
    *used = name;
    return end - name > 2 && !is_property(p + name, end - name) ? zt_buffer_addf(out, "sc:") : ZT_OK;
  }
  bool known = !isalnum((unsigned char)c) || strchr("dDrntfaeAzZ", c) || (c == 'x' && nbytes > 2 && p[2] == '{');
  return known ? zt_buffer_add(out, p, 2) : zt_fail(ZT_FORMAT, "refused");
}

/* Whether a construct outside of character classes is one of those that both read alike. */
static bool is_common(const char *p, size_t nbytes) {
  char next = nbytes > 1 ? p[1] : 0, third = nbytes > 2 ? p[2] : 0, fourth = nbytes > 3 ? p[3] : 0;
  if (*p == '{') return next != ',';
  if (*p != '(') return true;
  if (next != '?') return next != '*';
  return (third && strchr(":=!<>", third)) || (third == 'i' && (fourth == ':' || fourth == ')'));
}

static zt_status translate(const char *pattern, size_t nbytes, zt_buffer *out) {
  size_t first = 0; /* of the character class that 'i' is in: where its members start; 0: in none */
  for (size_t i = 0, used = 1; i < nbytes; i += used, used = 1) {
    char c = pattern[i], next = i + 1 < nbytes ? pattern[i + 1] : 0;
    if (c == '\\' && i + 1 < nbytes) {
      zt_status st = translate_escape(pattern + i, nbytes - i, &used, out);
      if (st != ZT_OK) return st == ZT_FORMAT ? refuse(pattern, i, 2) : st;
      continue;
    }
    bool nested = first && (c == '[' || (c == '&' && next == '&'));
    if (nested || (!first && !is_common(pattern + i, nbytes - i)))
      return refuse(pattern, i, nbytes - i > 3 ? 3 : nbytes - i);
    if (c == '[') first = i + 1 + (next == '^');
    if (c == ']' && i > first) first = 0;
    ZT_TRY(zt_buffer_add(out, &c, 1));
  }
  return ZT_OK;
}

/* --- compiling */

static zt_status compile(zti_regex *re, pcre2_compile_context *context, const char *pattern, size_t nbytes,
                         bool literal) {
  int code;
  size_t at;
  uint32_t options = PCRE2_UTF | (literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_MULTILINE);
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  re->code = pcre2_compile((PCRE2_SPTR)pattern, nbytes, options, &code, &at, context);
  if (!re->code && re->memory.failed) return no_memory();
  if (!re->code) return pcre2_failure(ZT_FORMAT, code, "the regular expression is wrong", at);
  re->jitted = pcre2_jit_compile(re->code, PCRE2_JIT_COMPLETE) == 0;
  return re->memory.failed ? no_memory() : ZT_OK;
}

static zt_status compile_with_hook(zti_regex *re, const char *pattern, size_t nbytes, bool literal) {
  pcre2_general_context *general = pcre2_general_context_create(regex_malloc, regex_free, &re->memory);
  if (!general) return no_memory();
  pcre2_compile_context *context = pcre2_compile_context_create(general);
  zt_status st = context ? compile(re, context, pattern, nbytes, literal) : no_memory();
  pcre2_compile_context_free(context);
  pcre2_general_context_free(general);
  return st;
}

zt_status zti_regex_new(const char *pattern, size_t nbytes, bool literal, zti_regex **out) {
  zt_buffer text = {0};
  zti_regex *re = NULL;
  zt_status st;
  *out = NULL;
  if (nbytes == 0 || nbytes > MAX_PATTERN)
    return zt_fail(ZT_FORMAT, "a pattern has 1 to %d bytes, this one %zu", MAX_PATTERN, nbytes);
  if (literal) ZT_TRY_GOTO(zt_buffer_add(&text, pattern, nbytes), fail);
  if (!literal) ZT_TRY_GOTO(translate(pattern, nbytes, &text), fail);
  re = zt_calloc(1, sizeof *re);
  ZT_TRY_GOTO(re ? ZT_OK : ZT_NOMEM, fail);
  ZT_TRY_GOTO(compile_with_hook(re, text.data, text.nbytes, literal), fail);
  zt_buffer_clear(&text);
  *out = re;
  return ZT_OK;
fail:
  zt_buffer_clear(&text);
  zti_regex_free(re);
  return st;
}

void zti_regex_free(zti_regex *re) {
  if (!re) return;
  pcre2_code_free(re->code);
  zt_free(re);
}

/* --- matching */

zt_status zti_regex_match_new(zti_regex_match **out) {
  zti_regex_match *m = *out = zt_calloc(1, sizeof *m);
  ZT_CHECK_ALLOC(m);
  pcre2_general_context *general = pcre2_general_context_create(regex_malloc, regex_free, &m->memory);
  if (general) {
    m->data = pcre2_match_data_create(1, general);
    m->context = pcre2_match_context_create(general);
    m->stack = pcre2_jit_stack_create(JIT_STACK_START, JIT_STACK_MAX, general);
    pcre2_general_context_free(general);
  }
  if (!m->memory.failed) {
    if (m->stack) pcre2_jit_stack_assign(m->context, NULL, m->stack);
    return ZT_OK;
  }
  zti_regex_match_free(m);
  *out = NULL;
  return no_memory();
}

void zti_regex_match_free(zti_regex_match *m) {
  if (!m) return;
  pcre2_jit_stack_free(m->stack);
  pcre2_match_context_free(m->context);
  pcre2_match_data_free(m->data);
  zt_free(m);
}

zt_status zti_regex_find(const zti_regex *re, zti_regex_match *m, const unsigned char *text, size_t nbytes, size_t from,
                         bool *found, size_t *begin, size_t *end) {
  int code = re->jitted
                 ? pcre2_jit_match(re->code, text, nbytes, from, PCRE2_NOTEMPTY, m->data, m->context)
                 : pcre2_match(re->code, text, nbytes, from, PCRE2_NOTEMPTY | PCRE2_NO_UTF_CHECK, m->data, m->context);
  *found = code >= 0; /* 0: more groups than there is room for, which nobody asks for */
  if (code == PCRE2_ERROR_NOMATCH) return ZT_OK;
  if (code < 0) return pcre2_failure(ZT_INVALID, code, "matching a regular expression on the text", from);
  const size_t *range = pcre2_get_ovector_pointer(m->data);
  *begin = range[0], *end = range[1];
  /* \K can turn a match around; patterns with it are refused, so this guards against what is not known yet */
  if (*begin < from || *end <= *begin) *found = false;
  return ZT_OK;
}

void zti_regex_unicode_version(char out[32]) {
  char text[64] = "";
  pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, text);
  memcpy(out, text, 31);
  out[31] = 0;
}
