/* buffer.h - bytes that grow at the end: texts that are put together piece by piece. */
#ifndef zt_buffer_h
#define zt_buffer_h

#include <stddef.h>

#include "core/base/err.h"

/* All zero is an empty buffer. What was added is followed by a zero byte that is not counted. A failed call leaves the
** buffer as it was. */
typedef struct zt_buffer {
  char *data; /* owned; NULL until something was added */
  size_t nbytes, capacity;
} zt_buffer;

ZT_API zt_status zt_buffer_add(zt_buffer *b, const void *data, size_t nbytes);
ZT_API zt_status zt_buffer_addf(zt_buffer *b, const char *fmt, ...) ZT_PRINTF(2, 3);
ZT_API void zt_buffer_clear(zt_buffer *b); /* frees; 'b' is empty then */

#endif
