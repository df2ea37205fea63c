#include "core/base/mem.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static void *libc_realloc(void *user, void *block, size_t nbytes) {
  (void)user;
  if (nbytes == 0) {
    free(block);
    return NULL;
  }
  return realloc(block, nbytes);
}

static zt_mem_hook mem_hook = {libc_realloc, NULL};
static _Atomic uint64_t n_allocations, n_live_blocks;
static _Atomic uint64_t fail_number; /* the value of n_allocations that fails; 0: none */
static _Atomic bool fail_forever;

zt_status zt_mem_set_hook(const zt_mem_hook *hook) {
  if (atomic_load(&n_live_blocks) != 0)
    return zt_fail(ZT_STATE, "the memory hook can only change while no block is allocated (%llu are)",
                   (unsigned long long)atomic_load(&n_live_blocks));
  mem_hook = hook ? *hook : (zt_mem_hook){libc_realloc, NULL};
  return ZT_OK;
}

/* An empty function to set a breakpoint on: the injected failure is the caller above. */
static void injected_failure(void) {}

static bool must_fail(void) {
  uint64_t number = atomic_fetch_add(&n_allocations, 1) + 1, at = atomic_load(&fail_number);
  bool fails = at != 0 && (number == at || (number > at && atomic_load(&fail_forever)));
  if (fails) injected_failure();
  return fails;
}

static void *get(void *block, size_t nbytes) {
  if (nbytes == 0) nbytes = 1;
  void *p = must_fail() ? NULL : mem_hook.realloc(mem_hook.user, block, nbytes);
  if (!p) zt_fail(ZT_NOMEM, "host memory: %zu bytes asked, none to be had", nbytes);
  if (p && !block) atomic_fetch_add(&n_live_blocks, 1);
  return p;
}

void *zt_malloc(size_t nbytes) { return get(NULL, nbytes); }
void *zt_realloc(void *block, size_t nbytes) { return get(block, nbytes); }

void *zt_calloc(size_t count, size_t nbytes_each) {
  size_t nbytes;
  if (__builtin_mul_overflow(count, nbytes_each, &nbytes)) {
    zt_fail(ZT_NOMEM, "host memory: %zu x %zu bytes asked, more than can be addressed", count, nbytes_each);
    return NULL;
  }
  void *p = get(NULL, nbytes);
  if (p) memset(p, 0, nbytes);
  return p;
}

char *zt_strdup(const char *text) {
  size_t nbytes = strlen(text) + 1;
  char *copy = zt_malloc(nbytes);
  return copy ? memcpy(copy, text, nbytes) : NULL;
}

void zt_free(void *block) {
  if (!block) return;
  atomic_fetch_sub(&n_live_blocks, 1);
  mem_hook.realloc(mem_hook.user, block, 0);
}

zt_mem_stats zt_mem_get_stats(void) { return (zt_mem_stats){atomic_load(&n_allocations), atomic_load(&n_live_blocks)}; }

void zt_mem_fail_at(uint64_t nth, bool forever) {
  atomic_store(&fail_forever, forever);
  atomic_store(&fail_number, nth ? atomic_load(&n_allocations) + nth : 0);
}
