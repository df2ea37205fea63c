#include "bindings/nearest.h"

#include <limits.h>
#include <string.h>

enum { MAX_LENGTH = 64 };

static char plain(char ch) { return ch == '-' ? '_' : ch; }
static size_t greater(size_t a, size_t b) { return a > b ? a : b; }
static int least(int a, int b) { return a < b ? a : b; }

/* Three rows of the table are kept. */
int zt_edit_distance(const char *a, const char *b) {
  int rows[3][MAX_LENGTH + 1], na = (int)strlen(a), nb = (int)strlen(b);
  if (na > MAX_LENGTH || nb > MAX_LENGTH) return INT_MAX;
  for (int j = 0; j <= nb; j++) rows[0][j] = j;
  for (int i = 1; i <= na; i++) {
    int *row = rows[i % 3], *above = rows[(i + 2) % 3], *two_above = rows[(i + 1) % 3];
    row[0] = i;
    for (int j = 1; j <= nb; j++) {
      int differ = plain(a[i - 1]) != plain(b[j - 1]);
      row[j] = least(least(above[j], row[j - 1]) + 1, above[j - 1] + differ);
      if (i > 1 && j > 1 && plain(a[i - 1]) == plain(b[j - 2]) && plain(a[i - 2]) == plain(b[j - 1]))
        row[j] = least(row[j], two_above[j - 2] + 1);
    }
  }
  return rows[na % 3][nb];
}

const char *zt_nearest(const char *word, const char *const names[]) {
  const char *best = NULL;
  int fewest = INT_MAX;
  for (int i = 0; names[i]; i++) {
    int edits = zt_edit_distance(word, names[i]), limit = (int)greater(strlen(word), strlen(names[i])) / 2;
    if (edits <= limit && edits < fewest) fewest = edits, best = names[i];
  }
  return best;
}
