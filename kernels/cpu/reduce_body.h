/* reduce_body.h - included by reduce.c for each type of arithmetic: T the type of elements, SUM that of sums over
** blocks, NAME(x) pastes the type's suffix, IN gives n elements as T, OUT stores one, IS_NAN asks. */

/* Sum of n elements from 'at'. A block is summed in T (vector lanes), blocks in SUM. */
static SUM NAME(sum)(zt_dtype t, const void *x, size_t at, size_t count) {
  SUM total = 0;
  T buffer[ZT_BLOCK];
  for (size_t i = 0; i < count; i += ZT_BLOCK) {
    size_t n = zt_smaller(count - i, ZT_BLOCK);
    const T *p = IN(t, x, at + i, n, buffer);
    T part = 0;
#pragma omp simd reduction(+ : part)
    for (size_t j = 0; j < n; j++) part += p[j];
    total += (SUM)part;
  }
  return total;
}

/* The greatest (least) of a block; false where a NaN is among them. */
static bool NAME(block_top)(const T *p, size_t n, bool least, T *out) {
  T top = p[0];
  int n_nan = 0;
  if (least) {
#pragma omp simd reduction(min : top)
    for (size_t j = 0; j < n; j++) top = p[j] < top ? p[j] : top;
  } else {
#pragma omp simd reduction(max : top)
    for (size_t j = 0; j < n; j++) top = p[j] > top ? p[j] : top;
  }
#pragma omp simd reduction(+ : n_nan)
  for (size_t j = 0; j < n; j++) n_nan += IS_NAN(p[j]);
  *out = top;
  return n_nan == 0;
}

/* The greatest (least) of n > 0 elements from 'at', and its first place counted from there. NaN is beyond all. */
static T NAME(top)(zt_dtype t, const void *x, size_t at, size_t count, bool least, size_t *place) {
  T best = 0, buffer[ZT_BLOCK];
  for (size_t i = 0; i < count; i += ZT_BLOCK) {
    size_t n = zt_smaller(count - i, ZT_BLOCK), j = 0;
    const T *p = IN(t, x, at + i, n, buffer);
    T top;
    bool good = NAME(block_top)(p, n, least, &top);
    if (good && i > 0 && (least ? top >= best : top <= best)) continue;
    while (good ? p[j] != top : !IS_NAN(p[j])) j++;
    best = p[j];
    *place = i + j;
    if (!good) break;
  }
  return best;
}

/* Sums of n_columns columns over n rows that are 'inner' apart: rows in T by groups, groups in SUM. */
static void NAME(column_sums)(zt_dtype t, SUM *total, const void *x, size_t at, size_t n, size_t inner,
                              size_t n_columns) {
  T buffer[ZT_BLOCK];
  for (size_t j = 0; j < n_columns; j++) total[j] = 0;
  for (size_t first = 0; first < n; first += GROUP) {
    T part[STRIP] = {0};
    size_t end = zt_smaller(n, first + GROUP);
    for (size_t i = first; i < end; i++) {
      const T *p = IN(t, x, at + i * inner, n_columns, buffer);
      for (size_t j = 0; j < n_columns; j++) part[j] += p[j];
    }
    for (size_t j = 0; j < n_columns; j++) total[j] += (SUM)part[j];
  }
}

static void NAME(column_tops)(zt_dtype t, T *top, int64_t *place, const void *x, size_t at, size_t n, size_t inner,
                              size_t n_columns, bool least) {
  T buffer[ZT_BLOCK];
  for (size_t i = 0; i < n; i++) {
    const T *p = IN(t, x, at + i * inner, n_columns, buffer);
    for (size_t j = 0; j < n_columns; j++) {
      bool better = i == 0 || (least ? p[j] < top[j] : p[j] > top[j]) || (IS_NAN(p[j]) && !IS_NAN(top[j]));
      top[j] = better ? p[j] : top[j];
      place[j] = better ? (int64_t)i : place[j];
    }
  }
}

/* --- sum, mean, max, min */
typedef struct NAME(part) {
  SUM sum;
  T top;
  size_t place;
} NAME(part);

static NAME(part) NAME(reduce_piece)(zt_reduce fn, zt_dtype t, const void *x, size_t at, size_t n) {
  NAME(part) p = {0};
  if (fn == ZT_REDUCE_MAX || fn == ZT_REDUCE_MIN)
    p.top = NAME(top)(t, x, at, n, fn == ZT_REDUCE_MIN, &p.place);
  else
    p.sum = NAME(sum)(t, x, at, n);
  return p;
}

/* Adds what was found in the piece that starts at b_start, behind a. */
static void NAME(join)(zt_reduce fn, NAME(part) * a, const NAME(part) * b, size_t b_start) {
  a->sum += b->sum;
  bool better = fn == ZT_REDUCE_MIN ? b->top < a->top : b->top > a->top;
  if (better || (IS_NAN(b->top) && !IS_NAN(a->top))) a->top = b->top, a->place = b_start + b->place;
}

/* A long row is cut into pieces, whose number depends on its length alone. */
static NAME(part) NAME(reduce_long)(zt_reduce fn, zt_dtype t, const void *x, size_t at, size_t n) {
  NAME(part) parts[MAX_PIECES];
  size_t length = piece_length(n), n_pieces = zt_n_parts(n, length);
#pragma omp parallel for schedule(static)
  for (size_t i = 0; i < n_pieces; i++)
    parts[i] = NAME(reduce_piece)(fn, t, x, at + i * length, zt_smaller(n - i * length, length));
  for (size_t i = 1; i < n_pieces; i++) NAME(join)(fn, &parts[0], &parts[i], i * length);
  return parts[0];
}

static void NAME(reduce_rows)(zt_reduce fn, zt_dtype t, void *y, int64_t *index, const void *x, size_t outer,
                              size_t n) {
  bool tops = fn == ZT_REDUCE_MAX || fn == ZT_REDUCE_MIN, is_long = n >= LONG_ROW;
#pragma omp parallel for schedule(static) if (!is_long && zt_worth_threads(outer * n))
  for (size_t o = 0; o < outer; o++) {
    NAME(part) p = is_long ? NAME(reduce_long)(fn, t, x, o * n, n) : NAME(reduce_piece)(fn, t, x, o * n, n);
    OUT(t, y, o, tops ? p.top : fn == ZT_REDUCE_MEAN ? (T)(p.sum / (SUM)n) : (T)p.sum);
    if (index && tops) index[o] = (int64_t)p.place;
  }
}

static void NAME(reduce_strip)(zt_reduce fn, zt_dtype t, void *y, int64_t *index, const void *x, size_t at, size_t to,
                               size_t n, size_t inner, size_t n_columns) {
  T top[STRIP];
  SUM total[STRIP];
  int64_t place[STRIP];
  bool tops = fn == ZT_REDUCE_MAX || fn == ZT_REDUCE_MIN;
  if (tops)
    NAME(column_tops)(t, top, place, x, at, n, inner, n_columns, fn == ZT_REDUCE_MIN);
  else
    NAME(column_sums)(t, total, x, at, n, inner, n_columns);
  for (size_t j = 0; j < n_columns; j++) {
    OUT(t, y, to + j, tops ? top[j] : fn == ZT_REDUCE_MEAN ? (T)(total[j] / (SUM)n) : (T)total[j]);
    if (index && tops) index[to + j] = place[j];
  }
}

static void NAME(reduce_columns)(zt_reduce fn, zt_dtype t, void *y, int64_t *index, const void *x, size_t outer,
                                 size_t n, size_t inner) {
  size_t n_strips = zt_n_parts(inner, STRIP);
#pragma omp parallel for schedule(static) if (zt_worth_threads(outer * n * inner))
  for (size_t task = 0; task < outer * n_strips; task++) {
    size_t o = task / n_strips, column = task % n_strips * STRIP;
    NAME(reduce_strip)
    (fn, t, y, index, x, o * n * inner + column, o * inner + column, n, inner, zt_smaller(inner - column, STRIP));
  }
}

#undef T
#undef SUM
#undef NAME
#undef IN
#undef IS_NAN
#undef OUT
