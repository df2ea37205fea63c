/* log.h - where core's notices go. core never prints: an embedder's sink does. */
#ifndef zt_log_h
#define zt_log_h

#include "core/base/err.h"

/* A sink gets one complete line without a newline. NULL (the start value) drops notices. Not thread-safe. */
typedef void (*zt_log_sink)(void *user, const char *line);
ZT_API void zt_log_set_sink(zt_log_sink sink, void *user);
ZT_API void zt_log(const char *fmt, ...) ZT_PRINTF(1, 2);

#endif
