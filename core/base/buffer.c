#include "core/base/buffer.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "core/base/mem.h"

/* Room for 'nbytes' more and a zero byte. Doubles, so that adding n bytes one by one copies O(n). */
static zt_status reserve(zt_buffer *b, size_t nbytes) {
  if (nbytes >= SIZE_MAX / 4 - b->nbytes) return zt_fail(ZT_NOMEM, "host memory: a text of %zu bytes asked", nbytes);
  size_t need = b->nbytes + nbytes + 1;
  if (need <= b->capacity) return ZT_OK;
  size_t capacity = need < 2 * b->capacity ? 2 * b->capacity : need < 64 ? 64 : need;
  char *data = zt_realloc(b->data, capacity);
  ZT_CHECK_ALLOC(data);
  b->data = data, b->capacity = capacity;
  return ZT_OK;
}

zt_status zt_buffer_add(zt_buffer *b, const void *data, size_t nbytes) {
  ZT_TRY(reserve(b, nbytes));
  if (nbytes) memcpy(b->data + b->nbytes, data, nbytes);
  b->nbytes += nbytes;
  b->data[b->nbytes] = 0;
  return ZT_OK;
}

zt_status zt_buffer_addf(zt_buffer *b, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  int length = vsnprintf(NULL, 0, fmt, args);
  va_end(args);
  if (length < 0) return zt_fail(ZT_INVALID, "cannot format '%s'", fmt);
  ZT_TRY(reserve(b, (size_t)length));
  va_start(args, fmt);
  vsnprintf(b->data + b->nbytes, (size_t)length + 1, fmt, args);
  va_end(args);
  b->nbytes += (size_t)length;
  return ZT_OK;
}

void zt_buffer_clear(zt_buffer *b) {
  zt_free(b->data);
  *b = (zt_buffer){0};
}
