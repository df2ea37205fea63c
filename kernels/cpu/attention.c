/* attention.c - scaled dot-product attention and its gradients, by blocks of queries against all the keys that they see.
** A block's scores stay in the second-level cache between the products and the softmax; blocks above the diagonal are
** not computed. Backward recomputes the weights from lse and replays the dropout. Threads share out heads (forward also
** blocks), each of which is computed in one order, so their number changes no bit. */
#include <dnnl.h>
#include <math.h>
#include <omp.h>
#include <string.h>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/philox.h"
#include "kernels/cpu/vmath.h"

/* Queries of a block; keys of a padded row. */
enum { QUERIES = 64, PAD = 16 };

typedef struct attention_call {
  const zt_attention *a;
  zt_dtype t;
  const void *q, *k, *v, *bias, *gout, *saved_out, *saved_lse;
  const uint8_t *key_mask;
  void *out, *lse, *gq, *gk, *gv, *gbias;
  bool drops;
  uint32_t last_kept; /* the highest word that keeps a weight */
  double drop_scale;
} attention_call;

static void set_dropout(attention_call *c) {
  uint64_t threshold = zt_rng_keep_threshold(c->a->dropout);
  c->drops = c->a->dropout > 0.0;
  c->last_kept = (uint32_t)(threshold - (threshold > 0));
  c->drop_scale = threshold > 0 ? 1.0 / (1.0 - c->a->dropout) : 0.0; /* all dropped: times 0 */
}

/* --- a thread's share of the workspace */
typedef struct scratch {
  void *scores, *gscores;    /* (QUERIES, padded n_k) */
  uint32_t *words;           /* a row's random words, from a group's first to a group's last */
  void *bias;                /* a row; this and all below only where memory is not of the type that is computed in */
  void *q, *out, *gout, *gq; /* (QUERIES, head_dim) */
  void *k, *v, *gk, *gv;     /* (n_k, head_dim) */
} scratch;

static size_t padded(int64_t count) { return ((size_t)count + PAD - 1) / PAD * PAD; }

/* A row stride that is not a power of 2, so that rows do not meet in the same cache sets. */
static size_t row_length(int64_t count) { return padded(count) + PAD; }

static void *take(char *base, size_t *used, size_t nbytes) {
  size_t at = *used;
  *used += (nbytes + 63) / 64 * 64;
  return base && nbytes ? base + at : NULL;
}

/* Lays 's' out from 'base' (NULL: only counts); returns the bytes. 16-bit floats are converted; a head's keys and values,
** whose rows may lie pages apart, are also packed where enough blocks read them. */
static size_t plan_scratch(scratch *s, char *base, zt_dtype t, const zt_attention *a, bool backward) {
  size_t used = 0, each = zt_dtype_nbytes(zt_dtype_stat(t)), n_k = row_length(a->n_k);
  bool converts = t != zt_dtype_stat(t), packs = converts || a->n_q >= 8 * QUERIES;
  size_t block = converts ? QUERIES * (size_t)a->head_dim * each : 0,
         head = packs ? n_k * (size_t)a->head_dim * each : 0;
  s->scores = take(base, &used, QUERIES * n_k * each);
  s->words = take(base, &used, (n_k + 2 * PHILOX_WORDS) * sizeof(uint32_t));
  s->bias = take(base, &used, converts ? n_k * each : 0);
  s->q = take(base, &used, block), s->out = take(base, &used, block);
  s->k = take(base, &used, head), s->v = take(base, &used, head);
  s->gscores = s->gout = s->gq = s->gk = s->gv = NULL;
  if (!backward) return used;
  s->gscores = take(base, &used, QUERIES * n_k * each);
  s->gout = take(base, &used, block), s->gq = take(base, &used, block);
  s->gk = take(base, &used, head), s->gv = take(base, &used, head);
  return used;
}

/* Of small products, eight multiplications take what an element of cheap work does. */
static size_t n_threads(const zt_attention *a) {
  size_t items = (size_t)(a->n_batch * a->n_head) * zt_n_parts((size_t)a->n_q, QUERIES);
  size_t products = (size_t)(a->n_batch * a->n_head * a->n_q * a->n_k * a->head_dim);
  return zt_worth_threads(products / 8) ? zt_smaller(items, (size_t)omp_get_max_threads()) : 1;
}

static size_t workspace_nbytes(zt_dtype t, const zt_attention *a, bool backward) {
  scratch s;
  return n_threads(a) * plan_scratch(&s, NULL, t, a, backward);
}

static char *mine(char *workspace, zt_dtype t, const zt_attention *a, bool backward) {
  scratch s;
  return workspace + (size_t)omp_get_thread_num() * plan_scratch(&s, NULL, t, a, backward);
}

/* --- where things lie */
static const void *element(zt_dtype t, const void *x, int64_t at) {
  return (const char *)x + at * (int64_t)zt_dtype_nbytes(t);
}
static void *element_out(zt_dtype t, void *x, int64_t at) { return (char *)x + at * (int64_t)zt_dtype_nbytes(t); }
static const void *row_of(zt_dtype t, const void *x, const int64_t stride[3], int64_t b, int64_t h, int64_t i) {
  return element(t, x, b * stride[0] + i * stride[1] + h * stride[2]);
}
static void *row_of_out(zt_dtype t, void *x, const int64_t stride[3], int64_t b, int64_t h, int64_t i) {
  return element_out(t, x, b * stride[0] + i * stride[1] + h * stride[2]);
}

static size_t n_queries(const zt_attention *a, int64_t first) { return zt_smaller(QUERIES, (size_t)(a->n_q - first)); }

/* How many keys query i may see, masks aside: they are the first ones. */
static size_t n_visible(const zt_attention *a, int64_t i) {
  if (!a->causal) return (size_t)a->n_k;
  int64_t last = i + a->n_k - a->n_q;
  return last < 0 ? 0 : (size_t)last + 1;
}

/* Query i's words: [j] is that of key j. */
static const uint32_t *row_words(const attention_call *c, const scratch *w, int64_t b, int64_t h, int64_t i) {
  const zt_attention *a = c->a;
  uint64_t first = (uint64_t)((h * a->n_q + i) * a->n_k), skipped = first % 4;
  for (size_t at = 0; at < skipped + n_visible(a, i); at += PHILOX_WORDS)
    philox_group(w->words + at, &a->key, a->key.first_sample + (uint64_t)b, first / 4 + at / 4);
  return w->words + skipped;
}

/* --- products of rows: c (m, n) = alpha op(a) op(b) + beta c, k what is summed over; NT transposes b, TN a */
typedef enum op { NN, NT, TN } op;

static bool product_f(op o, size_t m, size_t n, size_t k, float alpha, const float *a, int64_t lda, const float *b,
                      int64_t ldb, float beta, float *c, int64_t ldc) {
  if (m == 0 || n == 0) return true;
  if (k == 0) {
    for (size_t i = 0; i < m && beta == 0.0f; i++) memset(c + (int64_t)i * ldc, 0, n * sizeof *c);
    return true;
  }
  return dnnl_sgemm(o == TN ? 'T' : 'N', o == NT ? 'T' : 'N', (dnnl_dim_t)m, (dnnl_dim_t)n, (dnnl_dim_t)k, alpha, a,
                    lda, b, ldb, beta, c, ldc) == dnnl_success;
}

/* float64 is for checks, so this only keeps to the caches. */
static bool product_d(op o, size_t m, size_t n, size_t k, double alpha, const double *a, int64_t lda, const double *b,
                      int64_t ldb, double beta, double *c, int64_t ldc) {
  int64_t a_row = o == TN ? 1 : lda, a_col = o == TN ? lda : 1, b_row = o == NT ? 1 : ldb, b_col = o == NT ? ldb : 1;
  for (int64_t i = 0; i < (int64_t)m; i++) {
    for (int64_t j = 0; j < (int64_t)n; j++) c[i * ldc + j] = beta == 0.0 ? 0.0 : beta * c[i * ldc + j];
    for (int64_t p = 0; p < (int64_t)k; p++) {
      double left = alpha * a[i * a_row + p * a_col];
      for (int64_t j = 0; j < (int64_t)n; j++) c[i * ldc + j] += left * b[p * b_row + j * b_col];
    }
  }
  return true;
}

/* --- exponentials for weights, x at most a little above 0. What float would hold as a denormal is 0: it is nothing
** beside the row's largest weight, 1, and denormals are slow. */
static inline float exp_or_0_f(float x) {
  int32_t n;
  float p = zt_expm1_reduced(x < -87.0f ? -87.0f : x, &n) + 1.0f;
  return x < -87.0f ? 0.0f : p * zt_exp2if(n);
}
static inline double exp_or_0_d(double x) { return exp(x); }
static inline float log_f(float x) { return logf(x); }
static inline double log_d(double x) { return log(x); }

static void from_memory_f(zt_dtype t, float *y, const void *x, size_t n) { zt_to_floats(t, y, x, n); }
static void to_memory_f(zt_dtype t, void *y, const float *x, size_t n) { zt_from_floats(t, y, x, n); }
static void from_memory_d(zt_dtype t, double *y, const void *x, size_t n) { memcpy(y, x, n * zt_dtype_nbytes(t)); }
static void to_memory_d(zt_dtype t, void *y, const double *x, size_t n) { memcpy(y, x, n * zt_dtype_nbytes(t)); }

#define T float
#define S(name) name##_f
#include "kernels/cpu/attention_body.h"
#undef T
#undef S
#define T double
#define S(name) name##_d
#include "kernels/cpu/attention_body.h"
#undef T
#undef S

/* --- the rows of the table */
size_t ZT_K(attention_workspace)(zt_dtype t, const zt_attention *a) { return workspace_nbytes(t, a, false); }
size_t ZT_K(attention_bwd_workspace)(zt_dtype t, const zt_attention *a) { return workspace_nbytes(t, a, true); }

static zt_status check(bool ok) { return ok ? ZT_OK : zt_fail(ZT_NOMEM, "dnnl_sgemm failed"); }

zt_status ZT_K(attention)(zt_stream *s, zt_dtype t, void *out, void *lse, const void *q, const void *k, const void *v,
                          const uint8_t *key_mask, const void *bias, const zt_attention *a, void *workspace) {
  (void)s;
  attention_call c = {
      .a = a, .t = t, .q = q, .k = k, .v = v, .bias = bias, .key_mask = key_mask, .out = out, .lse = lse};
  set_dropout(&c);
  return check(t == ZT_F64 ? forward_d(&c, workspace) : forward_f(&c, workspace));
}

zt_status ZT_K(attention_bwd)(zt_stream *s, zt_dtype t, void *gq, void *gk, void *gv, void *gbias, const void *gout,
                              const void *q, const void *k, const void *v, const void *out, const void *lse,
                              const uint8_t *key_mask, const void *bias, const zt_attention *a, void *workspace) {
  (void)s;
  attention_call c = {.a = a,
                      .t = t,
                      .q = q,
                      .k = k,
                      .v = v,
                      .bias = bias,
                      .key_mask = key_mask,
                      .gout = gout,
                      .saved_out = out,
                      .saved_lse = lse,
                      .gq = gq,
                      .gk = gk,
                      .gv = gv,
                      .gbias = gbias};
  set_dropout(&c);
  return check(t == ZT_F64 ? backward_d(&c, workspace) : backward_f(&c, workspace));
}
