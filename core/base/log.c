#include "core/base/log.h"

#include <stdarg.h>
#include <stdio.h>

static zt_log_sink log_sink;
static void *log_user;

void zt_log_set_sink(zt_log_sink sink, void *user) { log_sink = sink, log_user = user; }

void zt_log(const char *fmt, ...) {
  if (!log_sink) return;
  char line[1024];
  va_list args;
  va_start(args, fmt);
  vsnprintf(line, sizeof line, fmt, args);
  va_end(args);
  log_sink(log_user, line);
}
