#include "core/base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MESSAGE_BYTES = 4096 };
static _Thread_local char message[MESSAGE_BYTES];

zt_status(zt_fail)(zt_status st, const char *fmt, ...) { /* in parentheses: a macro of that name must not expand */
  char text[MESSAGE_BYTES];                              /* the arguments may point into the old message */
  va_list args;
  va_start(args, fmt);
  vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  memcpy(message, text, sizeof message);
  return st;
}

zt_status zt_wrap(zt_status st, const char *fmt, ...) {
  if (st == ZT_OK) return st;
  char text[MESSAGE_BYTES];
  va_list args;
  va_start(args, fmt);
  int used = vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  if (used < 0 || (size_t)used >= sizeof text) return st;
  size_t room = sizeof text - (size_t)used;
  if (snprintf(text + used, room, ": %s", message) >= (int)room) text[MESSAGE_BYTES - 1] = 0; /* cut: no more room */
  memcpy(message, text, sizeof message);
  return st;
}

const char *zt_message(void) { return message; }

const char *zt_status_text(zt_status st) {
  static const char *const texts[] = {
#define ZT_STATUS_TEXT(name, text) text,
      ZT_STATUSES(ZT_STATUS_TEXT)
#undef ZT_STATUS_TEXT
  };
  return (unsigned)st < sizeof texts / sizeof *texts ? texts[st] : "unknown status";
}
