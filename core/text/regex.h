/* regex.h - PCRE2 with our memory hook, and regular expressions written for Oniguruma, as tokenizer.json holds them. */
#ifndef zt_regex_h
#define zt_regex_h

#include <stdbool.h>
#include <stddef.h>

#include "core/base/err.h"

typedef struct zti_regex zti_regex;             /* does not change after it was compiled */
typedef struct zti_regex_match zti_regex_match; /* one thread's room for matching any regex */

/* Compiles 'pattern'. With 'literal' it is plain text. Else what PCRE2 and Oniguruma read alike is accepted, \s
** and \S mean Unicode's White_Space, and what they read differently raises with its position. */
zt_status zti_regex_new(const char *pattern, size_t nbytes, bool literal, zti_regex **out);
void zti_regex_free(zti_regex *re); /* NULL ok */
zt_status zti_regex_match_new(zti_regex_match **out);
void zti_regex_match_free(zti_regex_match *m); /* NULL ok */

/* The first match that is not empty at or after 'from' in well-formed UTF-8; '*found' says whether there is one. Raises
** where a pattern takes more steps than are reasonable. */
zt_status zti_regex_find(const zti_regex *re, zti_regex_match *m, const unsigned char *text, size_t nbytes, size_t from,
                         bool *found, size_t *begin, size_t *end);
/* "14.0.0": the version of Unicode that decides what a letter is. */
void zti_regex_unicode_version(char out[32]);

#endif
