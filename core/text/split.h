/* split.h - the pre-tokenizer: cuts text into the pieces that the model sees, by one rule after the other. Text
** that is not UTF-8: the longest well-formed runs are cut as if each were a text of its own, and each byte between
** them is a piece by itself, which no further rule touches. */
#ifndef zt_split_h
#define zt_split_h

#include "core/text/regex.h"

/* What becomes of a match, as Hugging Face's Split names it. */
typedef enum zti_behavior { ZTI_ISOLATED, ZTI_REMOVED, ZTI_PREVIOUS, ZTI_NEXT, ZTI_CONTIGUOUS } zti_behavior;

typedef struct zti_split_rule {
  bool prefix_space; /* puts a space before a piece that does not start with one; the rest is not used */
  bool gpt2;         /* the regex is GPT-2's, for which there is a faster way */
  zti_regex *regex;  /* owned */
  bool invert;       /* what lies between matches counts as matched */
  zti_behavior behavior;
} zti_split_rule;

enum { ZTI_MAX_RULES = 16 };
typedef struct zti_split {
  zti_split_rule rules[ZTI_MAX_RULES];
  size_t n_rules;
} zti_split;

/* The first way with GPT-2's regular expression. */
zt_status zti_split_add_gpt2(zti_split *s);
zt_status zti_split_add_prefix_space(zti_split *s);
zt_status zti_split_add_regex(zti_split *s, const char *pattern, size_t nbytes, bool literal, bool invert,
                              zti_behavior behavior);
void zti_split_clear(zti_split *s);

/* Gets one piece, never empty; valid during the call. */
typedef zt_status (*zti_piece_fn)(void *user, const unsigned char *piece, size_t nbytes);
/* Calls 'fn' with each piece in order; what fails ends it. */
zt_status zti_split_run(const zti_split *s, zti_regex_match *match, const unsigned char *text, size_t nbytes,
                        zti_piece_fn fn, void *user);
/* Bytes of the first piece of text that starts with ASCII, cut as GPT-2's regular expression does; 0: a character
** beyond ASCII decides, ask the regular expression. */
size_t zti_split_gpt2_ascii(const unsigned char *text, const unsigned char *end);

#endif
