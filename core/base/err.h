/* err.h - statuses and the thread's message.
** Every fallible call returns a zt_status; the text of the last failure on this thread, with its cause and
** numbers, is zt_message(). core never prints, exits or aborts. */
#ifndef zt_err_h
#define zt_err_h

#if defined(_WIN32)
#error "ztrain needs a POSIX system"
#endif
#define ZT_API __attribute__((visibility("default")))
#define ZT_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

/* X(constant, text of the kind) */
#define ZT_STATUSES(X)                   \
  X(OK, "ok")                            \
  X(INVALID, "invalid argument")         \
  X(SHAPE, "shapes do not fit")          \
  X(DTYPE, "dtype not supported")        \
  X(NOMEM, "out of memory")              \
  X(IO, "input or output failed")        \
  X(FORMAT, "malformed data")            \
  X(STATE, "not possible in this state") \
  X(INTERRUPTED, "stopped by a signal")  \
  X(PEER, "another process failed")

typedef enum zt_status {
#define ZT_STATUS_ENUM(name, text) ZT_##name,
  ZT_STATUSES(ZT_STATUS_ENUM)
#undef ZT_STATUS_ENUM
} zt_status;

/* Sets the thread's message and returns 'st', so that a failure is one line: return zt_fail(ZT_SHAPE, "...", ...). */
ZT_API zt_status zt_fail(zt_status st, const char *fmt, ...) ZT_PRINTF(2, 3);
#ifdef __clang_analyzer__ /* which does not look into other files: tells it that the status is st */
#define zt_fail(st, ...) ((void)zt_fail(st, __VA_ARGS__), (st))
#endif

/* Puts "<formatted>: " before the thread's message (callers add where); returns 'st'. ZT_OK passes untouched. */
ZT_API zt_status zt_wrap(zt_status st, const char *fmt, ...) ZT_PRINTF(2, 3);

/* The message of the last failure on this thread; borrowed, valid until the next failure. */
ZT_API const char *zt_message(void);

/* The kind of failure in words; static. */
ZT_API const char *zt_status_text(zt_status st);

#define ZT_TRY(expr)                      \
  do {                                    \
    zt_status zt_try_ = (expr);           \
    if (zt_try_ != ZT_OK) return zt_try_; \
  } while (0)

/* For functions with something to free: sets the local 'st' and jumps. */
#define ZT_TRY_GOTO(expr, label) \
  do {                           \
    st = (expr);                 \
    if (st != ZT_OK) goto label; \
  } while (0)

#endif
