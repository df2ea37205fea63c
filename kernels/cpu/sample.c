/* sample.c - draws one token a row. Weights are exp((x - max) / temperature), in double. Filters come in the order of
** transformers' logits processors: the top_k largest (ties: lower index first), of those the fewest that together have
** top_p of the mass. A heap gives candidates in order of weight, and only as many as are asked for. */
#include <math.h>
#include <omp.h>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/parallel.h"

static double logit(zt_dtype t, const void *x, size_t i) {
  float value;
  if (t == ZT_F64) return ((const double *)x)[i];
  zt_to_floats(t, &value, (const char *)x + i * zt_dtype_nbytes(t), 1);
  return (double)value;
}

/* The first place of the largest; NaN takes no part. */
static size_t largest(zt_dtype t, const void *x, size_t cols) {
  size_t best = 0;
  double max = -INFINITY;
  for (size_t i = 0; i < cols; i++) {
    double value = logit(t, x, i);
    if (value > max) max = value, best = i;
  }
  return best;
}

/* Writes the weights, returns their sum. What equals the maximum weighs 1, infinite or not; NaN weighs 0. */
static double weigh(zt_dtype t, double *weight, const void *x, double temperature, size_t cols) {
  double max = logit(t, x, largest(t, x, cols)), sum = 0.0;
  for (size_t i = 0; i < cols; i++) {
    double value = logit(t, x, i), w = value == max ? 1.0 : exp((value - max) / temperature);
    weight[i] = w > 0.0 ? w : 0.0;
    sum += weight[i];
  }
  return sum;
}

/* Candidates by falling weight: a heap in place[0 .. n_left), those taken off it behind, the first one last. */
typedef struct ranking {
  const double *weight;
  size_t *place;
  size_t count, n_left;
} ranking;

static bool before(const ranking *r, size_t a, size_t b) {
  return r->weight[a] > r->weight[b] || (r->weight[a] == r->weight[b] && a < b);
}

static void sift_down(ranking *r, size_t root) {
  size_t moved = r->place[root], child;
  for (; (child = 2 * root + 1) < r->n_left; root = child) {
    if (child + 1 < r->n_left && before(r, r->place[child + 1], r->place[child])) child++;
    if (!before(r, r->place[child], moved)) break;
    r->place[root] = r->place[child];
  }
  r->place[root] = moved;
}

static void rank(ranking *r) {
  for (size_t i = 0; i < r->count; i++) r->place[i] = i;
  for (size_t i = r->count / 2; i-- > 0;) sift_down(r, i);
}

static size_t nth(ranking *r, size_t n) {
  while (r->count - r->n_left <= n) {
    size_t top = r->place[0];
    r->place[0] = r->place[--r->n_left];
    sift_down(r, 0);
    r->place[r->n_left] = top;
  }
  return r->place[r->count - 1 - n];
}

/* Of the first 'limit' candidates, the one at which the running sum passes the share u in [0, 1) of what top_p keeps. */
static size_t draw_ranked(ranking *r, double sum, size_t limit, double top_p, double u) {
  double kept = 0.0, passed = 0.0;
  size_t n = 0;
  rank(r);
  if (limit < r->count) {
    sum = 0.0;
    for (size_t i = 0; i < limit; i++) sum += r->weight[nth(r, i)];
  }
  while (n < limit && (n == 0 || kept < top_p * sum)) kept += r->weight[nth(r, n++)];
  for (size_t i = 0; i < n; i++) {
    passed += r->weight[nth(r, i)];
    if (passed > u * kept) return nth(r, i);
  }
  return nth(r, 0);
}

static size_t draw_any(const double *weight, double sum, double u, size_t cols) {
  double passed = 0.0;
  for (size_t i = 0; i < cols; i++) {
    passed += weight[i];
    if (passed > u * sum) return i;
  }
  return 0;
}

static size_t row_nbytes(size_t cols) { return cols * (sizeof(double) + sizeof(size_t)); }
static size_t n_threads(size_t rows) { return zt_smaller(rows, (size_t)omp_get_max_threads()); }

/* A row's weights and places for each thread. */
size_t ZT_K(sample_workspace)(zt_dtype t, size_t rows, size_t cols) {
  (void)t;
  return n_threads(rows) * row_nbytes(cols);
}

zt_status ZT_K(sample)(zt_stream *s, zt_dtype t, int64_t *ids, const void *logits, double temperature, size_t top_k,
                       double top_p, const zt_rng_key *key, size_t rows, size_t cols, void *workspace) {
  (void)s;
  if (rows == 0 || cols == 0) return ZT_OK;
  size_t limit = top_k ? zt_smaller(top_k, cols) : cols;
#pragma omp parallel for schedule(static) num_threads((int)n_threads(rows)) if (zt_worth_threads(rows * cols))
  for (size_t row = 0; row < rows; row++) {
    const void *x = (const char *)logits + row * cols * zt_dtype_nbytes(t);
    double *weight = (double *)((char *)workspace + (size_t)omp_get_thread_num() * row_nbytes(cols));
    ranking r = {weight, (size_t *)(weight + cols), cols, cols};
    if (temperature == 0.0) {
      ids[row] = (int64_t)largest(t, x, cols);
      continue;
    }
    uint32_t word[4];
    zt_rng_block(key, key->first_sample + row, 0, word);
    double u = (double)word[0] * 0x1p-32, sum = weigh(t, weight, x, temperature, cols);
    bool all = limit == cols && top_p >= 1.0;
    ids[row] = (int64_t)(all ? draw_any(weight, sum, u, cols) : draw_ranked(&r, sum, limit, top_p, u));
  }
  return ZT_OK;
}
