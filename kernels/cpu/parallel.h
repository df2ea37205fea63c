/* parallel.h - when and how kernels share work between threads. Work is cut into parts whose size depends on the counts
** alone, never on the number of threads, so results do not either:
**
**   #pragma omp parallel for schedule(static) if (zt_worth_threads(count))
**   for (size_t part = 0; part < zt_n_parts(count, ZT_PART); part++) { ... zt_part_end(part, ZT_PART, count) ... }
*/
#ifndef zt_parallel_h
#define zt_parallel_h

#include <stdbool.h>
#include <stddef.h>

/* Elements of a part of elementwise work. */
enum { ZT_PART = 16384 };

/* Whether waking threads costs less than it brings, for 'count' elements of cheap work. */
static inline bool zt_worth_threads(size_t count) { return count >= 32768; }
static inline size_t zt_n_parts(size_t count, size_t part) { return (count + part - 1) / part; }
static inline size_t zt_part_end(size_t number, size_t part, size_t count) {
  return count - number * part < part ? count : (number + 1) * part;
}
static inline size_t zt_smaller(size_t a, size_t b) { return a < b ? a : b; }

#endif
