/* Runs after all other programs and reads what they have written down (coverage.h): every row of the kernel list and of
** the op table must be there. Prints the list. */
#include <dirent.h>

#include "core/tensor/ops.h"
#include "tests/c/kernel_test.h"

enum { MAX_LINES = 4096, LINE = 96 };
static struct { char what[LINE], by[LINE]; /* "kernel fill", "test_kernels_elem" */ } lines[MAX_LINES];
static size_t n_lines;

static void read_file(const char *dir, const char *name) {
  char path[4096], line[LINE];
  snprintf(path, sizeof path, "%s/%s", dir, name);
  FILE *f = fopen(path, "r");
  assert_non_null(f);
  while (fgets(line, sizeof line, f) && n_lines < MAX_LINES) {
    snprintf(lines[n_lines].what, LINE, "%.*s", (int)strcspn(line, "\n"), line);
    snprintf(lines[n_lines++].by, LINE, "%.*s", (int)strcspn(name, "."), name);
  }
  fclose(f);
}

static int read_all(void **state) {
  (void)state;
  const char *dir = ZT_TEST_BUILD "/coverage";
  DIR *d = opendir(dir);
  assert_non_null(d);
  for (struct dirent *e; (e = readdir(d));)
    if (strstr(e->d_name, ".txt")) read_file(dir, e->d_name);
  closedir(d);
  assert_true(n_lines < MAX_LINES);
  return 0;
}

/* Which program has it, or NULL. */
static const char *tested_by(const char *kind, const char *name) {
  char what[LINE];
  snprintf(what, sizeof what, "%s %s", kind, name);
  for (size_t i = 0; i < n_lines; i++)
    if (strcmp(lines[i].what, what) == 0) return lines[i].by;
  return NULL;
}
static size_t report(const char *kind, const char *name) {
  const char *by = tested_by(kind, name);
  print_message("%-6s %-22s %s\n", kind, name, by ? by : "NOT TESTED");
  return by == NULL;
}

static void every_kernel_has_a_test(void **state) {
  (void)state;
  size_t n_missing = 0;
#define NAME(name, params) n_missing += report("kernel", #name);
  ZT_KERNELS(NAME)
#undef NAME
  assert_int_equal(n_missing, 0);
}

static void every_op_has_a_test_and_a_gradient_check(void **state) {
  (void)state;
  size_t n_missing = 0;
  for (const zt_op *const *op = zt_op_table; *op; op++) {
    n_missing += report("op", (*op)->name);
    if ((*op)->backward)
      n_missing += report("grad", (*op)->name);
    else
      print_message("%-6s %-22s has none\n", "grad", (*op)->name);
  }
  assert_int_equal(n_missing, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_kernel_has_a_test),
      cmocka_unit_test(every_op_has_a_test_and_a_gradient_check),
  };
  return cmocka_run_group_tests(tests, read_all, NULL);
}
