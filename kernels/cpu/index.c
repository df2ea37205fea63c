/* index.c - rows and elements picked by int64 index, and their transposes, which add. The adding ones are deterministic:
** each place of the output belongs to one thread, which adds in order of position. */
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/loop.h"

zt_status ZT_K(check_index)(zt_stream *s, size_t *bad_at, const int64_t *index, int64_t limit, int64_t ignore,
                            size_t count) {
  (void)s;
  size_t at = 0;
  while (at < count && ((index[at] >= 0 && index[at] < limit) || index[at] == ignore)) at++;
  *bad_at = at;
  return ZT_OK;
}

zt_status ZT_K(count_not_equal)(zt_stream *s, int64_t *n, const int64_t *x, int64_t value, size_t count) {
  (void)s;
  int64_t found = 0;
  for (size_t i = 0; i < count; i++) found += x[i] != value;
  *n = found;
  return ZT_OK;
}

zt_status ZT_K(index_select)(zt_stream *s, zt_dtype t, void *y, const void *x, const int64_t *index, size_t outer,
                             size_t n, size_t n_index, size_t inner) {
  (void)s;
  size_t nbytes = inner * zt_dtype_nbytes(t), n_rows = outer * n_index;
#pragma omp parallel for schedule(static) if (zt_worth_threads(n_rows * inner))
  for (size_t row = 0; row < n_rows; row++) {
    size_t from = row / n_index * n + (size_t)index[row % n_index];
    memcpy((char *)y + row * nbytes, (const char *)x + from * nbytes, nbytes);
  }
  return ZT_OK;
}

#define PICK(T)                                                                \
  static void pick_##T(T *y, const T *x, const int64_t *index, size_t inner) { \
    for (size_t j = 0; j < inner; j++) y[j] = x[(size_t)index[j] * inner + j]; \
  }
PICK(uint8_t)
PICK(uint16_t)
PICK(uint32_t)
PICK(uint64_t)

static void pick(size_t nbytes, void *y, const void *x, const int64_t *index, size_t inner) {
  switch (nbytes) {
    case 1:
      pick_uint8_t(y, x, index, inner);
      break;
    case 2:
      pick_uint16_t(y, x, index, inner);
      break;
    case 4:
      pick_uint32_t(y, x, index, inner);
      break;
    default:
      pick_uint64_t(y, x, index, inner);
  }
}

zt_status ZT_K(gather)(zt_stream *s, zt_dtype t, void *y, const void *x, const int64_t *index, size_t outer, size_t n,
                       size_t n_index, size_t inner) {
  (void)s;
  size_t nbytes = zt_dtype_nbytes(t), n_rows = outer * n_index;
#pragma omp parallel for schedule(static) if (zt_worth_threads(n_rows * inner))
  for (size_t row = 0; row < n_rows; row++) {
    const char *from = (const char *)x + row / n_index * n * inner * nbytes;
    pick(nbytes, (char *)y + row * inner * nbytes, from, index + row * inner, inner);
  }
  return ZT_OK;
}

/* --- adding single elements */
#define ADD_AT(NAME, T, LOAD, STORE)                                                       \
  static void NAME(T *y, const T *x, const int64_t *index, size_t n_index, size_t inner) { \
    for (size_t i = 0; i < n_index; i++) {                                                 \
      T *to = y + (size_t)index[i * inner] * inner;                                        \
      *to = STORE(LOAD(*to) + LOAD(x[i * inner]));                                         \
    }                                                                                      \
  }
ADD_AT(add_at_f32, float, , )
ADD_AT(add_at_f64, double, , )
ADD_AT(add_at_bf16, uint16_t, zt_bf16_to_f32, zt_f32_to_bf16)
ADD_AT(add_at_f16, uint16_t, zt_f16_to_f32, zt_f32_to_f16)
ADD_AT(add_at_i64, uint64_t, , )
ADD_AT(add_at_i32, uint32_t, , )

static void add_at(zt_dtype t, void *y, const void *x, const int64_t *index, size_t n_index, size_t inner) {
  switch (t) {
    case ZT_F32:
      add_at_f32(y, x, index, n_index, inner);
      break;
    case ZT_F64:
      add_at_f64(y, x, index, n_index, inner);
      break;
    case ZT_BF16:
      add_at_bf16(y, x, index, n_index, inner);
      break;
    case ZT_F16:
      add_at_f16(y, x, index, n_index, inner);
      break;
    case ZT_I64:
      add_at_i64(y, x, index, n_index, inner);
      break;
    default:
      add_at_i32(y, x, index, n_index, inner);
  }
}

/* A task is a column (o, :, j). */
zt_status ZT_K(scatter_add)(zt_stream *s, zt_dtype t, void *y, const void *x, const int64_t *index, size_t outer,
                            size_t n, size_t n_index, size_t inner) {
  (void)s;
  if (t == ZT_U8) return zt_fail(ZT_DTYPE, "scatter_add does not take %s", zt_dtype_name(t));
  size_t nbytes = zt_dtype_nbytes(t);
#pragma omp parallel for schedule(static) if (zt_worth_threads(outer * n_index * inner))
  for (size_t column = 0; column < outer * inner; column++) {
    size_t o = column / inner, j = column % inner, first = o * n_index * inner + j;
    add_at(t, (char *)y + (o * n * inner + j) * nbytes, (const char *)x + first * nbytes, index + first, n_index,
           inner);
  }
  return ZT_OK;
}

/* --- adding rows. The workspace holds the positions sorted by index (stable, so that equal ones stay in order), and as
** much again for the merge. Each run of equal indices is one row of y: it is summed and then added, by pieces of columns. */
enum { PIECE = ZT_BLOCK };

size_t ZT_K(index_add_workspace)(zt_dtype t, size_t outer, size_t n, size_t n_index, size_t inner) {
  (void)t, (void)outer, (void)n, (void)inner;
  return 2 * n_index * sizeof(int64_t);
}

static void merge(int64_t *to, const int64_t *from, const int64_t *index, size_t start, size_t middle, size_t end) {
  for (size_t i = start, a = start, b = middle; i < end; i++) {
    bool first = b == end || (a < middle && index[from[a]] <= index[from[b]]);
    to[i] = from[first ? a++ : b++];
  }
}

/* Returns the half of the workspace with the sorted positions. */
static const int64_t *sorted_positions(int64_t *workspace, const int64_t *index, size_t count) {
  int64_t *from = workspace, *to = workspace + count;
  for (size_t i = 0; i < count; i++) from[i] = (int64_t)i;
  for (size_t width = 1; width < count; width *= 2) {
    for (size_t start = 0; start < count; start += 2 * width)
      merge(to, from, index, start, zt_smaller(start + width, count), zt_smaller(start + 2 * width, count));
    int64_t *other = from;
    from = to, to = other;
  }
  return from;
}

/* A run: 'y' at its row, 'x' at row 0; both at the piece's first column. */
typedef struct run {
  zt_dtype t;
  void *y;
  const char *x;
  const int64_t *position;
  size_t n_positions, inner, n; /* n columns */
} run;

static void add_run_f64(const run *r) {
  double sum[PIECE] = {0}, *y = r->y;
  for (size_t i = 0; i < r->n_positions; i++) {
    const double *x = (const double *)r->x + (size_t)r->position[i] * r->inner;
    for (size_t j = 0; j < r->n; j++) sum[j] += x[j];
  }
  for (size_t j = 0; j < r->n; j++) y[j] += sum[j];
}

static void add_run(const run *r) {
  float sum[PIECE] = {0}, in[ZT_BLOCK];
  for (size_t i = 0; i < r->n_positions; i++) {
    const float *x = zt_block_in(r->t, r->x, (size_t)r->position[i] * r->inner, r->n, in);
    for (size_t j = 0; j < r->n; j++) sum[j] += x[j];
  }
  const float *y = zt_block_in(r->t, r->y, 0, r->n, in);
  for (size_t j = 0; j < r->n; j++) sum[j] = y[j] + sum[j];
  zt_from_floats(r->t, r->y, sum, r->n);
}

static size_t run_length(const int64_t *sorted, const int64_t *index, size_t at, size_t count) {
  size_t end = at + 1;
  while (end < count && index[sorted[end]] == index[sorted[at]]) end++;
  return end - at;
}

/* A task is a piece of the columns of an (o, position); it is the run's where the position is its first. */
static void add_task(run r, const int64_t *sorted, const int64_t *index, size_t n_index, size_t n, size_t o, size_t at,
                     size_t piece) {
  if (at > 0 && index[sorted[at]] == index[sorted[at - 1]]) return;
  size_t size = zt_dtype_nbytes(r.t), column = piece * PIECE;
  r.position = sorted + at;
  r.n_positions = run_length(sorted, index, at, n_index);
  r.n = zt_smaller(r.inner - column, PIECE);
  r.y = (char *)r.y + ((o * n + (size_t)index[sorted[at]]) * r.inner + column) * size;
  r.x += (o * n_index * r.inner + column) * size;
  if (r.t == ZT_F64)
    add_run_f64(&r);
  else
    add_run(&r);
}

zt_status ZT_K(index_add)(zt_stream *s, zt_dtype t, void *y, const void *x, const int64_t *index, size_t outer,
                          size_t n, size_t n_index, size_t inner, void *workspace) {
  (void)s;
  if (!zt_dtype_is_float(t)) return zt_fail(ZT_DTYPE, "index_add does not take %s", zt_dtype_name(t));
  if (outer * n_index * inner == 0) return ZT_OK;
  const int64_t *sorted = sorted_positions(workspace, index, n_index);
  size_t n_pieces = zt_n_parts(inner, PIECE), n_tasks = outer * n_index * n_pieces;
  const run r = {.t = t, .y = y, .x = x, .inner = inner};
#pragma omp parallel for schedule(static, 1) if (zt_worth_threads(outer * n_index * inner))
  for (size_t task = 0; task < n_tasks; task++) {
    size_t row = task / n_pieces;
    add_task(r, sorted, index, n_index, n, row / n_index, row % n_index, task % n_pieces);
  }
  return ZT_OK;
}
