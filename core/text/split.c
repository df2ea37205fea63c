#include "core/text/split.h"

#include <string.h>

#include "core/base/mem.h"
#include "core/text/utf8.h"

/* From https://github.com/openai/gpt-2, src/encoder.py. */
static const char gpt2_pattern[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

static zt_status add_rule(zti_split *s, zti_split_rule rule) {
  if (s->n_rules == ZTI_MAX_RULES) return zt_fail(ZT_FORMAT, "more than %d rules of splitting", ZTI_MAX_RULES);
  s->rules[s->n_rules++] = rule;
  return ZT_OK;
}

zt_status zti_split_add_prefix_space(zti_split *s) { return add_rule(s, (zti_split_rule){.prefix_space = true}); }

zt_status zti_split_add_regex(zti_split *s, const char *pattern, size_t nbytes, bool literal, bool invert,
                              zti_behavior behavior) {
  zti_split_rule rule = {.invert = invert, .behavior = behavior};
  ZT_TRY(zti_regex_new(pattern, nbytes, literal, &rule.regex));
  bool is_gpt2 = !literal && nbytes == strlen(gpt2_pattern) && memcmp(pattern, gpt2_pattern, nbytes) == 0;
  rule.gpt2 = is_gpt2 && (behavior == ZTI_ISOLATED || (behavior == ZTI_REMOVED && invert));
  zt_status st = add_rule(s, rule);
  if (st != ZT_OK) zti_regex_free(rule.regex);
  return st;
}

zt_status zti_split_add_gpt2(zti_split *s) {
  return zti_split_add_regex(s, gpt2_pattern, strlen(gpt2_pattern), false, false, ZTI_ISOLATED);
}

void zti_split_clear(zti_split *s) {
  for (size_t i = 0; i < s->n_rules; i++) zti_regex_free(s->rules[i].regex);
  *s = (zti_split){0};
}

/* --- GPT-2's expression by hand where ASCII alone decides */

enum { LETTER, DIGIT, SPACE, OTHER, BEYOND };
#define L_8 LETTER, LETTER, LETTER, LETTER, LETTER, LETTER, LETTER, LETTER
#define O_8 OTHER, OTHER, OTHER, OTHER, OTHER, OTHER, OTHER, OTHER
#define B_8 BEYOND, BEYOND, BEYOND, BEYOND, BEYOND, BEYOND, BEYOND, BEYOND
#define B_64 B_8, B_8, B_8, B_8, B_8, B_8, B_8, B_8
static const unsigned char classes[256] = {
    O_8,   OTHER, SPACE, SPACE, SPACE, SPACE, SPACE, OTHER, OTHER, O_8,    O_8,            /* 0 to 31 */
    SPACE, OTHER, OTHER, OTHER, OTHER, OTHER, OTHER, OTHER, O_8,                           /* space to / */
    DIGIT, DIGIT, DIGIT, DIGIT, DIGIT, DIGIT, DIGIT, DIGIT, DIGIT, DIGIT,                  /* 0 to 9 */
    OTHER, OTHER, OTHER, OTHER, OTHER, OTHER, OTHER, L_8,   L_8,   L_8,    LETTER, LETTER, /* : to @, A to Z */
    OTHER, OTHER, OTHER, OTHER, OTHER, OTHER, L_8,   L_8,   L_8,   LETTER, LETTER,         /* [ to `, a to z */
    OTHER, OTHER, OTHER, OTHER, OTHER, B_64,  B_64};                                       /* { to DEL */

static size_t contraction(const unsigned char *p, size_t nbytes) {
  if (nbytes >= 2 && (p[1] == 's' || p[1] == 't' || p[1] == 'm' || p[1] == 'd')) return 2;
  bool two = nbytes >= 3 && ((p[2] == 'e' && (p[1] == 'r' || p[1] == 'v')) || (p[1] == 'l' && p[2] == 'l'));
  return two ? 3 : 0;
}

static size_t white_space(const unsigned char *text, const unsigned char *end) {
  const unsigned char *p = text;
  while (p < end && classes[*p] == SPACE) p++;
  if (p < end && classes[*p] == BEYOND) return 0; /* is it white space too? */
  size_t nbytes = (size_t)(p - text);
  return p < end && nbytes > 1 ? nbytes - 1 : nbytes; /* the last one goes with what follows */
}

size_t zti_split_gpt2_ascii(const unsigned char *text, const unsigned char *end) {
  const unsigned char *p = text;
  size_t short_form = *p == '\'' ? contraction(p, (size_t)(end - p)) : 0;
  if (short_form) return short_form;
  if (*p == ' ') p++;
  unsigned kind = p < end ? classes[*p] : SPACE;
  if (kind == BEYOND) return 0;
  if (kind == SPACE) return white_space(text, end);
  while (p < end && classes[*p] == kind) p++;
  return p < end && classes[*p] == BEYOND ? 0 : (size_t)(p - text);
}

/* --- running the rules */

typedef struct split_run {
  const zti_split *split;
  zti_regex_match *match;
  zti_piece_fn fn;
  void *user;
} split_run;

/* The rules from number 'rule' on; as deep as there are rules. 'valid': the piece is known to be well-formed. */
static zt_status run_rules(const split_run *r, size_t rule, const unsigned char *piece, size_t nbytes, bool valid);

static zt_status prefix_space(const split_run *r, size_t rule, const unsigned char *piece, size_t nbytes, bool valid) {
  if (piece[0] == ' ') return run_rules(r, rule + 1, piece, nbytes, valid);
  unsigned char *longer = zt_malloc(nbytes + 1);
  ZT_CHECK_ALLOC(longer);
  longer[0] = ' ';
  memcpy(longer + 1, piece, nbytes);
  zt_status st = run_rules(r, rule + 1, longer, nbytes + 1, valid);
  zt_free(longer);
  return st;
}

static zt_status split_gpt2(const split_run *r, size_t rule, const unsigned char *text, size_t nbytes) {
  const zti_regex *regex = r->split->rules[rule].regex;
  bool last = rule + 1 == r->split->n_rules;
  for (size_t at = 0, end; at < nbytes; at = end) {
    end = at + zti_split_gpt2_ascii(text + at, text + nbytes);
    if (end == at) {
      bool found;
      size_t begin;
      ZT_TRY(zti_regex_find(regex, r->match, text, nbytes, at, &found, &begin, &end));
      if (!found) end = nbytes;
    }
    if (last) ZT_TRY(r->fn(r->user, text + at, end - at));
    if (!last) ZT_TRY(run_rules(r, rule + 1, text + at, end - at, true));
  }
  return ZT_OK;
}

/* Matches and what lies between them come one after the other; a segment joins the one before it or sends that on. */
typedef struct joining {
  const split_run *run;
  size_t rule;
  const unsigned char *text;
  size_t begin, end; /* not yet sent on; empty: nothing is */
  bool was_match;    /* the segment before */
} joining;

static bool joins(zti_behavior behavior, bool was_match, bool is_match) {
  if (behavior == ZTI_PREVIOUS) return is_match && !was_match;
  if (behavior == ZTI_NEXT) return was_match && !is_match;
  return behavior == ZTI_CONTIGUOUS && was_match == is_match;
}

static zt_status send_on(joining *j) {
  size_t begin = j->begin;
  j->begin = j->end;
  return begin == j->end ? ZT_OK : run_rules(j->run, j->rule + 1, j->text + begin, j->end - begin, true);
}

static zt_status add_segment(joining *j, size_t begin, size_t end, bool is_match) {
  zti_behavior behavior = j->run->split->rules[j->rule].behavior;
  if (begin == end) return ZT_OK;
  if (j->begin == j->end || !joins(behavior, j->was_match, is_match)) {
    ZT_TRY(send_on(j));
    j->begin = behavior == ZTI_REMOVED && is_match ? end : begin;
  }
  j->end = end;
  j->was_match = is_match;
  return ZT_OK;
}

static zt_status split_regex(const split_run *r, size_t rule, const unsigned char *text, size_t nbytes) {
  const zti_split_rule *rl = &r->split->rules[rule];
  joining j = {r, rule, text, 0, 0, false};
  size_t begin, end, at = 0;
  for (bool found = true; at < nbytes; at = end) {
    ZT_TRY(zti_regex_find(rl->regex, r->match, text, nbytes, at, &found, &begin, &end));
    if (!found) break;
    ZT_TRY(add_segment(&j, at, begin, rl->invert));
    ZT_TRY(add_segment(&j, begin, end, !rl->invert));
  }
  ZT_TRY(add_segment(&j, at, nbytes, rl->invert));
  return send_on(&j);
}

static zt_status split_runs(const split_run *r, size_t rule, const unsigned char *text, size_t nbytes) {
  const unsigned char *end = text + nbytes;
  bool gpt2 = r->split->rules[rule].gpt2;
  for (const unsigned char *p = text, *stop; p < end; p = stop + 1) {
    stop = zti_utf8_run(p, end);
    size_t run = (size_t)(stop - p);
    if (run > 0) ZT_TRY(gpt2 ? split_gpt2(r, rule, p, run) : split_regex(r, rule, p, run));
    if (stop < end) ZT_TRY(r->fn(r->user, stop, 1));
  }
  return ZT_OK;
}

static zt_status run_rules(const split_run *r, size_t rule, const unsigned char *piece, size_t nbytes, bool valid) {
  if (rule == r->split->n_rules) return r->fn(r->user, piece, nbytes);
  const zti_split_rule *rl = &r->split->rules[rule];
  if (rl->prefix_space) return prefix_space(r, rule, piece, nbytes, valid);
  if (!valid) return split_runs(r, rule, piece, nbytes);
  return rl->gpt2 ? split_gpt2(r, rule, piece, nbytes) : split_regex(r, rule, piece, nbytes);
}

zt_status zti_split_run(const zti_split *s, zti_regex_match *match, const unsigned char *text, size_t nbytes,
                        zti_piece_fn fn, void *user) {
  split_run r = {s, match, fn, user};
  return nbytes == 0 ? ZT_OK : run_rules(&r, 0, text, nbytes, false);
}
