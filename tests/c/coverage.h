/* coverage.h - what a test program has tested, by name. A test calls these when it got through; the names go to
** coverage/PROGRAM.txt in the build folder, and test_coverage, which runs after all others, prints the whole list and
** fails where a row of the kernel list or the op table is missing. An op row needs covers_op (values) and, where it has
** a backward function, covers_grad (grad_check calls it). */
#ifndef zt_coverage_h
#define zt_coverage_h

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

static inline void covers(const char *what, const char *name) {
  static FILE *file;
  if (!file) {
    char path[4096];
    snprintf(path, sizeof path, ZT_TEST_BUILD "/coverage/%s.txt", program_invocation_short_name);
    file = fopen(path, "w");
    if (!file) perror(path), abort();
    setvbuf(file, NULL, _IOLBF, 0);
  }
  fprintf(file, "%s %s\n", what, name);
}
static inline void covers_kernel(const char *name) { covers("kernel", name); }
static inline void covers_op(const char *name) { covers("op", name); }
static inline void covers_grad(const char *name) { covers("grad", name); }

#endif
