/* mem.h - the one way to get host memory: counted, replaceable, and able to fail on purpose.
** Libraries that allocate (jansson, PCRE2, the host's lua_State) are pointed here too. Thread-safe. */
#ifndef zt_mem_h
#define zt_mem_h

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/err.h"

/* An allocator with the contract of realloc: nbytes 0 frees and returns NULL; on failure the block stays. */
typedef struct zt_mem_hook {
  void *(*realloc)(void *user, void *block, size_t nbytes);
  void *user;
} zt_mem_hook;

/* Replaces the allocator; NULL restores libc's. Only before the first allocation or after the last free. */
ZT_API zt_status zt_mem_set_hook(const zt_mem_hook *hook);

/* All return NULL on failure and set the thread's message. A count of 0 gives a block that can be freed. */
ZT_API void *zt_malloc(size_t nbytes);
ZT_API void *zt_calloc(size_t count, size_t nbytes_each); /* zeroed; overflow is a failure */
ZT_API void *zt_realloc(void *block, size_t nbytes);      /* on failure 'block' stays valid */
ZT_API char *zt_strdup(const char *text);
ZT_API void zt_free(void *block); /* NULL ok */

/* What a failed zt_malloc & co. returns as a status: keeps the message they set. */
#define ZT_CHECK_ALLOC(ptr)      \
  do {                           \
    if (!(ptr)) return ZT_NOMEM; \
  } while (0)

typedef struct zt_mem_stats {
  uint64_t n_allocations; /* successful and failed calls that asked for memory since the start */
  uint64_t n_live_blocks; /* not yet freed */
} zt_mem_stats;
ZT_API zt_mem_stats zt_mem_get_stats(void);

/* Fault injection for tests: the 'nth' request from now on fails (1 = the next one); with 'forever' all after it
** fail too. 0 turns it off. */
ZT_API void zt_mem_fail_at(uint64_t nth, bool forever);

#endif
