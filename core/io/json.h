/* json.h - jansson with our memory hook and messages that name file, line and column. */
#ifndef zt_json_h
#define zt_json_h

#include <jansson.h>
#include <stddef.h>

#include "core/base/err.h"

/* Parses a whole text; 'name' stands in messages ("NAME: line 3, column 7: ..."). Duplicate keys are an error; numbers
** out of range too. '*out' is a new reference (json_decref). */
ZT_API zt_status zt_json_parse(const char *name, const char *text, size_t nbytes, json_t **out);
ZT_API zt_status zt_json_load(const char *path, json_t **out);

#endif
