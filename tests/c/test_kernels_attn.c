/* attention and attention_bwd of every instruction set against sums written out in double. */
#include <omp.h>

#include "tests/c/kernel_test.h"

typedef struct problem {
  zt_attention a;
  zt_dtype t;
  bool masked, biased;
  buffer q, k, v, gout, mask, bias; /* q, k, v may be one packed buffer: then only q is owned */
  bool packed;
  void *k_data, *v_data;
  double *out, *lse, *gq, *gk, *gv, *gbias;                    /* (B, T, H, D), (B, H, Tq), (B, H, Tq, Tk) */
  double *out_size, *gq_size, *gk_size, *gv_size, *gbias_size; /* what was added up, for tolerances */
} problem;

static double *zeros(int64_t count) {
  double *x = calloc((size_t)count + 1, sizeof *x);
  assert_non_null(x);
  return x;
}

static int64_t place(const int64_t stride[3], int64_t b, int64_t i, int64_t h) {
  return b * stride[0] + i * stride[1] + h * stride[2];
}
static int64_t flat(const zt_attention *a, int64_t n, int64_t b, int64_t i, int64_t h) {
  return ((b * n + i) * a->n_head + h) * a->head_dim;
}

static void set_strides(int64_t stride[3], const zt_attention *a, int64_t n, int layout) {
  int64_t width = a->n_head * a->head_dim;
  if (layout == 0) stride[0] = n * width, stride[1] = width, stride[2] = a->head_dim;           /* (B, T, H, D) */
  if (layout == 1) stride[0] = n * width, stride[1] = a->head_dim, stride[2] = n * a->head_dim; /* (B, H, T, D) */
  if (layout == 2) stride[0] = 3 * n * width, stride[1] = 3 * width, stride[2] = a->head_dim;   /* packed */
}

static problem make(zt_dtype t, int64_t n_batch, int64_t n_head, int64_t n_q, int64_t n_k, int64_t head_dim,
                    bool causal, double dropout, int layout) {
  problem p = {.t = t, .packed = layout == 2};
  zt_attention *a = &p.a;
  *a = (zt_attention){.n_batch = n_batch,
                      .n_head = n_head,
                      .n_q = n_q,
                      .n_k = n_k,
                      .head_dim = head_dim,
                      .scale = random_in(0.2, 1.0),
                      .causal = causal,
                      .dropout = dropout,
                      .key = {random_bits(), (uint32_t)random_bits(), random_below(1000)}};
  set_strides(a->q_stride, a, n_q, layout);
  set_strides(a->k_stride, a, n_k, layout);
  set_strides(a->v_stride, a, n_k, layout);
  set_strides(a->out_stride, a, n_q, layout == 1 ? 1 : 0);
  size_t width = (size_t)(n_head * head_dim), q_count = (size_t)(n_batch * n_q) * width;
  size_t k_count = (size_t)(n_batch * n_k) * width, each = zt_dtype_nbytes(t);
  p.q = input(t, p.packed ? 3 * q_count : q_count, -1, 1);
  p.k = input(t, p.packed ? 0 : k_count, -1, 1);
  p.v = input(t, p.packed ? 0 : k_count, -1, 1);
  p.k_data = p.packed ? (char *)p.q.data + width * each : p.k.data;
  p.v_data = p.packed ? (char *)p.q.data + 2 * width * each : p.v.data;
  p.gout = input(t, q_count, -1, 1);
  return p;
}

static void add_mask(problem *p) {
  p->masked = true;
  p->mask = input(ZT_U8, (size_t)(p->a.n_batch * p->a.n_k), 0, 3);
}

/* 'shape' has bit d where the bias varies along dimension d of (B, H, Tq, Tk). */
static void add_bias(problem *p, int shape) {
  const int64_t dim[4] = {p->a.n_batch, p->a.n_head, p->a.n_q, p->a.n_k};
  int64_t count = 1;
  for (int d = 3; d >= 0; d--) {
    p->a.bias_stride[d] = shape >> d & 1 ? count : 0;
    if (shape >> d & 1) count *= dim[d];
  }
  p->biased = true;
  p->bias = input(p->t, (size_t)count, -2, 2);
}

static void problem_free(problem *p) {
  buffer_free(&p->q), buffer_free(&p->k), buffer_free(&p->v), buffer_free(&p->gout);
  if (p->masked) buffer_free(&p->mask);
  if (p->biased) buffer_free(&p->bias);
  double *all[] = {p->out,      p->lse,     p->gq,      p->gk,      p->gv,        p->gbias,
                   p->out_size, p->gq_size, p->gk_size, p->gv_size, p->gbias_size};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

/* --- the reference */
static double q_at(const problem *p, int64_t b, int64_t i, int64_t h, int64_t d) {
  return get(p->t, p->q.data, (size_t)(place(p->a.q_stride, b, i, h) + d));
}
static double k_at(const problem *p, int64_t b, int64_t j, int64_t h, int64_t d) {
  return get(p->t, p->k_data, (size_t)(place(p->a.k_stride, b, j, h) + d));
}
static double v_at(const problem *p, int64_t b, int64_t j, int64_t h, int64_t d) {
  return get(p->t, p->v_data, (size_t)(place(p->a.v_stride, b, j, h) + d));
}
static double gout_at(const problem *p, int64_t b, int64_t i, int64_t h, int64_t d) {
  return get(p->t, p->gout.data, (size_t)(place(p->a.out_stride, b, i, h) + d));
}

static bool sees(const problem *p, int64_t b, int64_t i, int64_t j) {
  const zt_attention *a = &p->a;
  if (p->masked && !((uint8_t *)p->mask.data)[b * a->n_k + j]) return false;
  return !a->causal || j <= i + (a->n_k - a->n_q);
}

static double dropout_factor(const zt_attention *a, int64_t b, int64_t h, int64_t i, int64_t j) {
  if (a->dropout == 0.0) return 1.0;
  uint64_t index = (uint64_t)((h * a->n_q + i) * a->n_k + j);
  uint32_t word[4];
  zt_rng_block(&a->key, a->key.first_sample + (uint64_t)b, index / 4, word);
  return word[index % 4] < zt_rng_keep_threshold(a->dropout) ? 1.0 / (1.0 - a->dropout) : 0.0;
}

/* Weights of query i before dropout into w[n_k]; returns the size of what made up a score. */
static double weigh(const problem *p, int64_t b, int64_t h, int64_t i, double *w, double *lse) {
  const zt_attention *a = &p->a;
  double max = -INFINITY, sum = 0.0, size = 0.0;
  for (int64_t j = 0; j < a->n_k; j++) {
    double s = 0.0, terms = 0.0;
    for (int64_t d = 0; d < a->head_dim; d++) {
      double term = a->scale * q_at(p, b, i, h, d) * k_at(p, b, j, h, d);
      s += term, terms += fabs(term);
    }
    const int64_t *stride = a->bias_stride;
    size_t at_bias = (size_t)(b * stride[0] + h * stride[1] + i * stride[2] + j * stride[3]);
    if (p->biased) s += at(&p->bias, at_bias), terms += fabs(at(&p->bias, at_bias));
    w[j] = sees(p, b, i, j) ? s : -INFINITY;
    max = fmax(max, w[j]), size = fmax(size, terms);
  }
  for (int64_t j = 0; j < a->n_k; j++) sum += w[j] = max == -INFINITY ? 0.0 : exp(w[j] - max);
  for (int64_t j = 0; j < a->n_k && sum > 0.0; j++) w[j] /= sum;
  *lse = sum > 0.0 ? max + log(sum) : -INFINITY;
  return 2.0 + size;
}

static void reference_query(problem *p, int64_t b, int64_t h, int64_t i, double *w, double *g) {
  const zt_attention *a = &p->a;
  const int64_t n_d = a->head_dim, at_q = flat(a, a->n_q, b, i, h), row = (b * a->n_head + h) * a->n_q + i;
  double size = weigh(p, b, h, i, w, &p->lse[row]), sum = 0.0, sum_size = 0.0;
  for (int64_t j = 0; j < a->n_k; j++)
    for (int64_t d = 0; d < n_d; d++) {
      double term = w[j] * dropout_factor(a, b, h, i, j) * v_at(p, b, j, h, d);
      p->out[at_q + d] += term, p->out_size[at_q + d] += size * fabs(term);
    }
  for (int64_t d = 0; d < n_d; d++) {
    sum += p->out[at_q + d] * gout_at(p, b, i, h, d);
    sum_size += fabs(p->out[at_q + d] * gout_at(p, b, i, h, d)) + dtype_error(p->t) * p->out_size[at_q + d];
  }
  for (int64_t j = 0; j < a->n_k; j++) {
    int64_t at_k = flat(a, a->n_k, b, j, h);
    double factor = dropout_factor(a, b, h, i, j), g_size = 0.0;
    g[j] = 0.0;
    for (int64_t d = 0; d < n_d; d++) {
      double term = factor * gout_at(p, b, i, h, d) * v_at(p, b, j, h, d);
      g[j] += term, g_size += fabs(term);
      p->gv[at_k + d] += w[j] * factor * gout_at(p, b, i, h, d);
      p->gv_size[at_k + d] += size * fabs(w[j] * factor * gout_at(p, b, i, h, d));
    }
    double gs = w[j] * (g[j] - sum), gs_size = size * w[j] * (g_size + sum_size);
    p->gbias[row * a->n_k + j] = gs, p->gbias_size[row * a->n_k + j] = gs_size;
    for (int64_t d = 0; d < n_d; d++) {
      p->gq[at_q + d] += a->scale * gs * k_at(p, b, j, h, d);
      p->gq_size[at_q + d] += a->scale * gs_size * fabs(k_at(p, b, j, h, d));
      p->gk[at_k + d] += a->scale * gs * q_at(p, b, i, h, d);
      p->gk_size[at_k + d] += a->scale * gs_size * fabs(q_at(p, b, i, h, d));
    }
  }
}

static void reference(problem *p) {
  const zt_attention *a = &p->a;
  int64_t q_count = a->n_batch * a->n_q * a->n_head * a->head_dim,
          k_count = a->n_batch * a->n_k * a->n_head * a->head_dim;
  int64_t rows = a->n_batch * a->n_head * a->n_q;
  p->out = zeros(q_count), p->lse = zeros(rows), p->gq = zeros(q_count), p->gk = zeros(k_count), p->gv = zeros(k_count);
  p->out_size = zeros(q_count), p->gq_size = zeros(q_count), p->gk_size = zeros(k_count), p->gv_size = zeros(k_count);
  p->gbias = zeros(rows * a->n_k), p->gbias_size = zeros(rows * a->n_k);
  double *w = zeros(a->n_k), *g = zeros(a->n_k);
  for (int64_t b = 0; b < a->n_batch; b++)
    for (int64_t h = 0; h < a->n_head; h++)
      for (int64_t i = 0; i < a->n_q; i++) reference_query(p, b, h, i, w, g);
  free(w), free(g);
}

/* --- the kernels' results */
typedef struct result {
  buffer out, lse, gq, gk, gv, gbias;
  void *gk_data, *gv_data;
} result;

static result run(const zt_kernels *table, const problem *p) {
  const zt_attention *a = &p->a;
  const zt_dtype t = p->t;
  size_t rows = (size_t)(a->n_batch * a->n_head * a->n_q), width = (size_t)(a->n_head * a->head_dim);
  result r = {.out = output(t, p->gout.count),
              .lse = output(zt_dtype_stat(t), rows),
              .gq = output(t, p->q.count),
              .gk = output(t, p->k.count),
              .gv = output(t, p->v.count),
              .gbias = output(t, rows * (size_t)a->n_k)};
  r.gk_data = p->packed ? (char *)r.gq.data + width * zt_dtype_nbytes(t) : r.gk.data;
  r.gv_data = p->packed ? (char *)r.gq.data + 2 * width * zt_dtype_nbytes(t) : r.gv.data;
  const uint8_t *mask = p->masked ? p->mask.data : NULL;
  const void *bias = p->biased ? p->bias.data : NULL;
  buffer work = output(ZT_F64, (table->attention_workspace(t, a) + 7) / 8);
  expect_ok(table->attention(&no_stream, t, r.out.data, r.lse.data, p->q.data, p->k_data, p->v_data, mask, bias, a,
                             work.data));
  buffer_free(&work);
  work = output(ZT_F64, (table->attention_bwd_workspace(t, a) + 7) / 8);
  expect_ok(table->attention_bwd(&no_stream, t, r.gq.data, r.gk_data, r.gv_data, p->biased ? r.gbias.data : NULL,
                                 p->gout.data, p->q.data, p->k_data, p->v_data, r.out.data, r.lse.data, mask, bias, a,
                                 work.data));
  buffer_free(&work);
  return r;
}

static void result_free(result *r) {
  buffer_free(&r->out), buffer_free(&r->lse), buffer_free(&r->gq);
  buffer_free(&r->gk), buffer_free(&r->gv), buffer_free(&r->gbias);
}

static void compare_rows(const char *what, const problem *p, const void *got, const int64_t stride[3], int64_t n,
                         const double *want, const double *size) {
  const zt_attention *a = &p->a;
  for (int64_t b = 0; b < a->n_batch; b++)
    for (int64_t i = 0; i < n; i++)
      for (int64_t h = 0; h < a->n_head; h++)
        for (int64_t d = 0; d < a->head_dim; d++) {
          int64_t at = flat(a, n, b, i, h) + d;
          double x = get(p->t, got, (size_t)(place(stride, b, i, h) + d));
          if (!is_close(p->t, x, want[at], size[at]))
            fail_msg("%s of %s [%d, %d, %d, %d]: got %.9g, want %.9g, size %.3g", zt_dtype_name(p->t), what, (int)b,
                     (int)i, (int)h, (int)d, x, want[at], size[at]);
        }
}

static void compare(const problem *p, const result *r) {
  const zt_attention *a = &p->a;
  compare_rows("out", p, r->out.data, a->out_stride, a->n_q, p->out, p->out_size);
  for (size_t i = 0; i < r->lse.count; i++) expect_close(&r->lse, i, p->lse[i], 20.0);
  compare_rows("gq", p, r->gq.data, a->q_stride, a->n_q, p->gq, p->gq_size);
  compare_rows("gk", p, r->gk_data, a->k_stride, a->n_k, p->gk, p->gk_size);
  compare_rows("gv", p, r->gv_data, a->v_stride, a->n_k, p->gv, p->gv_size);
  for (size_t i = 0; p->biased && i < r->gbias.count; i++) expect_close(&r->gbias, i, p->gbias[i], p->gbias_size[i]);
}

static void check(problem *p) {
  reference(p);
  FOR_KERNELS(k) {
    result r = run(k->table, p);
    compare(p, &r);
    result_free(&r);
  }
  problem_free(p);
}

/* --- tests */
static const int64_t shapes[][5] = {
    /* B, H, Tq, Tk, D */
    {1, 1, 1, 1, 1},     {2, 3, 5, 5, 4},   {2, 2, 64, 64, 16},  {1, 2, 65, 65, 33},
    {1, 1, 130, 130, 8}, {1, 2, 3, 17, 5},  {1, 1, 70, 131, 12}, {2, 1, 131, 70, 7},
    {2, 2, 1, 150, 24},  {1, 1, 200, 3, 2},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static problem make_shape(zt_dtype t, const int64_t *s, bool causal, double dropout, int layout) {
  return make(t, s[0], s[1], s[2], s[3], s[4], causal, dropout, s[2] == s[3] ? layout : layout % 2);
}

static void plain(void **state) {
  (void)state;
  FOR_FLOATS(t)
  for (int i = 0; i < 2 * N_SHAPES; i++) {
    problem p = make_shape(t, shapes[i / 2], i % 2, 0.0, i % 3);
    check(&p);
  }
  covers_kernel("attention");
  covers_kernel("attention_bwd");
}

/* A key mask hides about a third of the keys, and all of batch 0's where there is another; dropout is replayed. */
static void masks_biases_and_dropout(void **state) {
  (void)state;
  FOR_FLOATS(t)
  for (int i = 0; i < 2 * N_SHAPES; i++) {
    problem p = make_shape(t, shapes[i / 2], i % 2, i % 4 > 1 ? random_in(0.1, 0.7) : 0.0, (i + 1) % 3);
    if (i % 3 != 1) add_mask(&p);
    if (p.masked && p.a.n_batch > 1) memset(p.mask.data, 0, (size_t)p.a.n_k);
    if (i % 3 != 2) add_bias(&p, (int)random_below(16));
    check(&p);
  }
}

/* Heads long enough to be packed. */
static void long_heads(void **state) {
  (void)state;
  for (int layout = 0; layout < 3; layout++) {
    problem p = make(layout == 1 ? ZT_BF16 : ZT_F32, 1, 2, 520, 520, 2, layout != 1, 0.0, layout);
    check(&p);
  }
}

static void every_bias_shape(void **state) {
  (void)state;
  FOR_FLOATS(t)
  for (int shape = 0; shape < 16; shape++) {
    problem p = make(t, 2, 3, 5, 9, 4, shape % 2, 0.0, 0);
    add_bias(&p, shape);
    check(&p);
  }
}

static void nothing_to_do(void **state) {
  (void)state;
  const int64_t empty[][5] = {{0, 2, 3, 3, 4}, {2, 0, 3, 3, 4}, {2, 2, 0, 5, 4},
                              {2, 2, 5, 0, 4}, {2, 2, 0, 0, 4}, {2, 2, 3, 5, 0}};
  FOR_FLOATS(t)
  for (size_t i = 0; i < sizeof empty / sizeof *empty; i++) {
    problem p = make_shape(t, empty[i], i % 2, 0.2, 0);
    if (i % 3) add_bias(&p, 15);
    check(&p);
  }
}

static void all_dropped_gives_zeros(void **state) {
  (void)state;
  FOR_FLOATS(t) FOR_KERNELS(k) {
    problem p = make(t, 1, 2, 9, 9, 4, true, 1.0, 0);
    result r = run(k->table, &p);
    for (size_t i = 0; i < r.out.count; i++) assert_true(at(&r.out, i) == 0.0);
    for (size_t i = 0; i < r.gq.count; i++)
      assert_true(at(&r.gq, i) == 0.0 && at(&r.gk, i) == 0.0 && at(&r.gv, i) == 0.0);
    result_free(&r);
    problem_free(&p);
  }
}

/* A NaN is seen by its own queries, and by them alone. */
static void nan_is_not_hidden(void **state) {
  (void)state;
  FOR_KERNELS(k) {
    problem p = make(ZT_F32, 1, 1, 80, 80, 8, false, 0.0, 0);
    for (int d = 0; d < 8; d++) put(ZT_F32, p.q.data, (size_t)(70 * 8 + d), NAN);
    result r = run(k->table, &p);
    for (size_t i = 0; i < 80; i++)
      for (size_t d = 0; d < 8; d++) assert_true(isnan(at(&r.out, i * 8 + d)) == (i == 70));
    result_free(&r);
    problem_free(&p);
  }
}

/* Scores of some thousands, as untrained models make them: no overflow, and the largest takes all. */
static void large_scores(void **state) {
  (void)state;
  FOR_FLOATS(t) {
    problem p = make(t, 1, 2, 33, 33, 64, true, 0.0, 0);
    p.a.scale = 300.0;
    FOR_KERNELS(k) {
      result r = run(k->table, &p);
      for (size_t i = 0; i < r.out.count; i++) assert_true(fabs(at(&r.out, i)) <= 1.01);
      for (size_t i = 0; i < r.gq.count; i++) assert_true(isfinite(at(&r.gq, i)) && isfinite(at(&r.gk, i)));
      result_free(&r);
    }
    problem_free(&p);
  }
}

static void assert_same(const buffer *a, const buffer *b) { assert_memory_equal(a->data, b->data, a->nbytes); }

static void thread_count_changes_no_bit(void **state) {
  (void)state;
  const int threads = omp_get_max_threads();
  FOR_FLOATS(t) FOR_KERNELS(k) {
    problem p = make(t, 2, 3, 150, 150, 16, true, 0.1, 2); /* large enough for threads */
    add_bias(&p, 12);
    omp_set_num_threads(1);
    result one = run(k->table, &p);
    for (int n = 2; n <= 3; n++) {
      omp_set_num_threads(n);
      result r = run(k->table, &p);
      assert_same(&r.out, &one.out), assert_same(&r.lse, &one.lse);
      assert_same(&r.gq, &one.gq), assert_same(&r.gbias, &one.gbias);
      result_free(&r);
    }
    omp_set_num_threads(threads);
    result_free(&one);
    problem_free(&p);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(plain),
      cmocka_unit_test(masks_biases_and_dropout),
      cmocka_unit_test(long_heads),
      cmocka_unit_test(every_bias_shape),
      cmocka_unit_test(nothing_to_do),
      cmocka_unit_test(all_dropped_gives_zeros),
      cmocka_unit_test(nan_is_not_hidden),
      cmocka_unit_test(large_scores),
      cmocka_unit_test(thread_count_changes_no_bit),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
