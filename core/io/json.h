/* json.h - JSON in, by jansson with our memory hook and messages that name file, line and column; and JSON out.
** From the first call here on jansson allocates through zt_malloc in the whole process: a program that uses jansson
** itself makes such a call (zt_json_init) before its own first one. */
#ifndef zt_json_h
#define zt_json_h

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "core/base/buffer.h"

ZT_API void zt_json_init(void); /* any number of times, from any thread */

/* Parses a whole text, any value; 'name' stands in messages ("NAME: line 3, column 7: ..."). Errors too: duplicate keys,
** numbers out of range, bytes that are not UTF-8, the character U+0000, more than 2048 levels. '*out' is a new reference
** (json_decref). */
ZT_API zt_status zt_json_parse(const char *name, const char *text, size_t nbytes, json_t **out);
ZT_API zt_status zt_json_load(const char *path, json_t **out);

/* --- writing, piece by piece */
ZT_API bool zt_is_utf8(const char *text, size_t nbytes);
/* A quoted string; raises where it is not UTF-8. */
ZT_API zt_status zt_json_add_string(zt_buffer *b, const char *text, size_t nbytes);
/* The shortest of 15 to 17 digits that reads back as 'value', with a point or an exponent so that it stays a real number.
** Raises on infinities and NaN, which JSON does not have. */
ZT_API zt_status zt_json_add_real(zt_buffer *b, double value);

#endif
