/* column_sums.h - sums over the rows of a matrix (gradients of biases and norm weights), the same for any number of
** threads: rows are cut into parts by their count alone, each part adds its rows up in a slice of the workspace, and the
** slices are added in order. */
#ifndef zt_column_sums_h
#define zt_column_sums_h

#include "kernels/cpu/parallel.h"

enum { ZT_ROWS_OF_A_PART = 16, ZT_MAX_PARTS = 64 };

static inline size_t zt_part_rows(size_t rows) {
  size_t n = zt_n_parts(rows, ZT_MAX_PARTS);
  return n > ZT_ROWS_OF_A_PART ? n : ZT_ROWS_OF_A_PART;
}
static inline size_t zt_n_row_parts(size_t rows) { return zt_n_parts(rows, zt_part_rows(rows)); }

#endif
