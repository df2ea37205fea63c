/* attention_body.h - attention.c includes this once for each T: float (S(x) is x_f), which serves 16-bit floats, too,
** and double (x_d). Rows of scores are padded to a multiple of PAD with keys that are masked. */

/* What a head's blocks share: its keys and values as T. */
typedef struct S(head) {
  int64_t b, h;
  const T *k, *v;
  int64_t ldk, ldv; /* row strides in elements */
} S(head);

/* --- memory as rows of T: packed into a buffer where the plan has one, else itself */
static const T *S(load)(zt_dtype t, const void *x, size_t n, size_t cols, int64_t stride, T *buffer, int64_t *ld) {
  if (!buffer) return *ld = stride, x;
  for (size_t i = 0; i < n; i++) S(from_memory)(t, buffer + i * cols, element(t, x, (int64_t)i * stride), cols);
  return *ld = (int64_t)cols, buffer;
}
static T *S(target)(void *x, size_t cols, int64_t stride, T *buffer, int64_t *ld) {
  *ld = buffer ? (int64_t)cols : stride;
  return buffer ? buffer : x;
}
static void S(store)(zt_dtype t, void *x, const T *rows, size_t n, size_t cols, int64_t stride) {
  if (rows == x) return;
  for (size_t i = 0; i < n; i++) S(to_memory)(t, element_out(t, x, (int64_t)i * stride), rows + i * cols, cols);
}

static S(head) S(load_head)(const attention_call *c, const scratch *w, int64_t head) {
  const zt_attention *a = c->a;
  S(head) out = {.b = head / a->n_head, .h = head % a->n_head};
  size_t n = (size_t)a->n_k, cols = (size_t)a->head_dim;
  out.k = S(load)(c->t, row_of(c->t, c->k, a->k_stride, out.b, out.h, 0), n, cols, a->k_stride[1], w->k, &out.ldk);
  out.v = S(load)(c->t, row_of(c->t, c->v, a->v_stride, out.b, out.h, 0), n, cols, a->v_stride[1], w->v, &out.ldv);
  return out;
}

/* --- rows of scores: 'n' is a multiple of PAD */
static void S(add_bias)(const attention_call *c, T *x, const void *bias, T *buffer, size_t n) {
  int64_t stride = c->a->bias_stride[3];
  if (stride == 1 && buffer) S(from_memory)(c->t, buffer, bias, n), bias = buffer;
  if (stride == 1) {
    const T *row = bias;
    for (size_t j = 0; j < n; j++) x[j] += row[j];
    return;
  }
  for (size_t j = 0; j < n; j++) {
    T value;
    S(from_memory)(c->t, &value, element(c->t, bias, (int64_t)j * stride), 1);
    x[j] += value;
  }
}

/* Bias is added to query i's scores and keys that it must not see get -infinity. */
static void S(mask_row)(const attention_call *c, const scratch *w, const S(head) * head, int64_t i, T *x, size_t n) {
  const zt_attention *a = c->a;
  size_t limit = n_visible(a, i);
  if (c->bias) {
    int64_t at = head->b * a->bias_stride[0] + head->h * a->bias_stride[1] + i * a->bias_stride[2];
    S(add_bias)(c, x, element(c->t, c->bias, at), w->bias, limit);
  }
  if (c->key_mask) {
    const uint8_t *mask = c->key_mask + head->b * a->n_k;
    for (size_t j = 0; j < limit; j++) x[j] = mask[j] ? x[j] : -(T)INFINITY;
  }
  for (size_t j = limit; j < n; j++) x[j] = -(T)INFINITY;
}

/* Both keep PAD partial results, so that the order is the same for every compiler. */
static T S(row_max)(const T *x, size_t n) {
  T lane[PAD], max = -(T)INFINITY;
  for (size_t j = 0; j < PAD; j++) lane[j] = max;
  for (size_t i = 0; i < n; i += PAD) {
#pragma omp simd
    for (size_t j = 0; j < PAD; j++) lane[j] = x[i + j] > lane[j] ? x[i + j] : lane[j];
  }
  for (size_t j = 0; j < PAD; j++) max = lane[j] > max ? lane[j] : max;
  return max;
}

static T S(row_exp)(T *x, T max, size_t n) {
  T lane[PAD] = {0}, sum = 0;
  for (size_t j = 0; j < n; j++) x[j] = S(exp_or_0)(x[j] - max);
  for (size_t i = 0; i < n; i += PAD)
    for (size_t j = 0; j < PAD; j++) lane[j] += x[i + j];
  for (size_t j = 0; j < PAD; j++) sum += lane[j];
  return sum;
}

/* Turns query i's scores into weights, dropped ones 0; returns what the weights are still to be multiplied by. A row
** with no key left sums to 0; one with a NaN does not. */
static T S(softmax_row)(const attention_call *c, const scratch *w, const S(head) * head, int64_t i, T *x, size_t n) {
  const zt_attention *a = c->a;
  S(mask_row)(c, w, head, i, x, n);
  T max = S(row_max)(x, n);
  if (max == -(T)INFINITY) max = 0;
  T sum = S(row_exp)(x, max, n);
  ((T *)c->lse)[(head->b * a->n_head + head->h) * a->n_q + i] = sum == 0 ? -(T)INFINITY : max + S(log)(sum);
  if (sum == 0) return 0;
  if (!c->drops) return 1 / sum;
  const uint32_t *word = row_words(c, w, head->b, head->h, i), last_kept = c->last_kept;
  for (size_t j = 0; j < n; j++) x[j] = word[j] <= last_kept ? x[j] : 0;
  return (T)c->drop_scale / sum;
}

static bool S(forward_block)(const attention_call *c, const scratch *w, const S(head) * head, int64_t first) {
  const zt_attention *a = c->a;
  size_t n = n_queries(a, first), width = n_visible(a, first + (int64_t)n - 1), cols = (size_t)a->head_dim;
  int64_t ldq, ldo, ld = (int64_t)row_length(a->n_k);
  T *x = w->scores, factor[QUERIES];
  const T *q =
      S(load)(c->t, row_of(c->t, c->q, a->q_stride, head->b, head->h, first), n, cols, a->q_stride[1], w->q, &ldq);
  void *memory = row_of_out(c->t, c->out, a->out_stride, head->b, head->h, first);
  T *out = S(target)(memory, cols, a->out_stride[1], w->out, &ldo);
  bool ok = S(product)(NT, n, width, cols, (T)a->scale, q, ldq, head->k, head->ldk, 0, x, ld);
  for (size_t i = 0; i < n; i++)
    factor[i] = S(softmax_row)(c, w, head, first + (int64_t)i, x + (int64_t)i * ld, padded((int64_t)width));
  ok = S(product)(NN, n, cols, width, 1, x, ld, head->v, head->ldv, 0, out, ldo) && ok;
  for (size_t i = 0; i < n; i++)
    for (size_t j = 0; j < cols; j++) out[(int64_t)i * ldo + (int64_t)j] *= factor[i];
  S(store)(c->t, memory, out, n, cols, a->out_stride[1]);
  return ok;
}

/* Items are blocks of queries, by head; threads take a whole head where there are enough of them. */
static bool S(forward)(const attention_call *c, char *workspace) {
  const zt_attention *a = c->a;
  int64_t n_blocks = (a->n_q + QUERIES - 1) / QUERIES, n_heads = a->n_batch * a->n_head;
  /* NOLINTNEXTLINE(clang-analyzer-deadcode.DeadStores): the pragma below reads it */
  int64_t at_once = n_heads >= 2 * (int64_t)n_threads(a) ? n_blocks : 1;
  bool ok = true;
#pragma omp parallel num_threads((int)n_threads(a)) reduction(&& : ok)
  {
    scratch w;
    plan_scratch(&w, mine(workspace, c->t, a, false), c->t, a, false);
    S(head) head = {.b = -1};
#pragma omp for schedule(dynamic, at_once)
    for (int64_t i = 0; i < n_heads * n_blocks; i++) {
      if (head.b * a->n_head + head.h != i / n_blocks) head = S(load_head)(c, &w, i / n_blocks);
      ok = S(forward_block)(c, &w, &head, i % n_blocks * QUERIES) && ok;
    }
  }
  return ok;
}

/* --- backward. With p the softmax, d what dropout multiplies it by, g the gradient of (d p) and D the sum of
** out * gout over a row: gradient of v = (d p)^T gout; of the scores s = p (d g - D); of q = scale s k; of
** k = scale s^T q. */
static T S(dot)(const T *a, const T *b, size_t n) {
  T lane[PAD] = {0}, sum = 0;
  size_t i = 0;
  for (; i + PAD <= n; i += PAD)
    for (size_t j = 0; j < PAD; j++) lane[j] += a[i + j] * b[i + j];
  for (size_t j = 0; i + j < n; j++) lane[j] += a[i + j] * b[i + j];
  for (size_t j = 0; j < PAD; j++) sum += lane[j];
  return sum;
}

/* x: query i's scores, becomes d p; g: becomes s. */
static void S(backward_row)(const attention_call *c, const scratch *w, const S(head) * head, int64_t i, T *restrict x,
                            T *restrict g, T sum, size_t n) {
  const zt_attention *a = c->a;
  T lse = ((const T *)c->saved_lse)[(head->b * a->n_head + head->h) * a->n_q + i];
  if (lse == -(T)INFINITY) {
    memset(x, 0, n * sizeof *x);
    memset(g, 0, n * sizeof *g);
    return;
  }
  S(mask_row)(c, w, head, i, x, n);
  if (!c->drops) {
    for (size_t j = 0; j < n; j++) {
      x[j] = S(exp_or_0)(x[j] - lse);
      g[j] = x[j] * (g[j] - sum);
    }
    return;
  }
  const uint32_t *word = row_words(c, w, head->b, head->h, i), last_kept = c->last_kept;
  const T scale = (T)c->drop_scale;
  for (size_t j = 0; j < n; j++) {
    T p = S(exp_or_0)(x[j] - lse), d = word[j] <= last_kept ? scale : 0;
    x[j] = p * d;
    g[j] = p * (g[j] * d - sum);
  }
}

static void S(store_gbias)(const attention_call *c, const S(head) * head, int64_t i, const T *g, size_t width) {
  const zt_attention *a = c->a;
  size_t nbytes = zt_dtype_nbytes(c->t);
  char *row = element_out(c->t, c->gbias, ((head->b * a->n_head + head->h) * a->n_q + i) * a->n_k);
  S(to_memory)(c->t, row, g, width);
  memset(row + width * nbytes, 0, ((size_t)a->n_k - width) * nbytes);
}

/* gk, gv: what later blocks gave is in there, but for the first one that is computed. */
static bool S(backward_block)(const attention_call *c, const scratch *w, const S(head) * head, T *gk, int64_t ldgk,
                              T *gv, int64_t ldgv, int64_t first) {
  const zt_attention *a = c->a;
  const zt_dtype t = c->t;
  const int64_t b = head->b, h = head->h, ld = (int64_t)row_length(a->n_k);
  size_t n = n_queries(a, first), width = n_visible(a, first + (int64_t)n - 1), cols = (size_t)a->head_dim;
  int64_t ldq, ldgout, ldout, ldgq;
  T *x = w->scores, *g = w->gscores;
  const T *q = S(load)(t, row_of(t, c->q, a->q_stride, b, h, first), n, cols, a->q_stride[1], w->q, &ldq);
  const T *gout =
      S(load)(t, row_of(t, c->gout, a->out_stride, b, h, first), n, cols, a->out_stride[1], w->gout, &ldgout);
  const T *out =
      S(load)(t, row_of(t, c->saved_out, a->out_stride, b, h, first), n, cols, a->out_stride[1], w->out, &ldout);
  void *memory = row_of_out(t, c->gq, a->q_stride, b, h, first);
  T *gq = S(target)(memory, cols, a->q_stride[1], w->gq, &ldgq);
  T beta = first + QUERIES < a->n_q ? 1 : 0;
  bool ok = S(product)(NT, n, width, cols, (T)a->scale, q, ldq, head->k, head->ldk, 0, x, ld) &&
            S(product)(NT, n, width, cols, 1, gout, ldgout, head->v, head->ldv, 0, g, ld);
  for (int64_t i = 0; i < (int64_t)n; i++) {
    T sum = S(dot)(gout + i * ldgout, out + i * ldout, cols);
    S(backward_row)(c, w, head, first + i, x + i * ld, g + i * ld, sum, padded((int64_t)width));
    if (c->gbias) S(store_gbias)(c, head, first + i, g + i * ld, width);
  }
  ok = ok && S(product)(TN, width, cols, n, 1, x, ld, gout, ldgout, beta, gv, ldgv) &&
       S(product)(TN, width, cols, n, (T)a->scale, g, ld, q, ldq, beta, gk, ldgk) &&
       S(product)(NN, n, cols, width, (T)a->scale, g, ld, head->k, head->ldk, 0, gq, ldgq);
  S(store)(t, memory, gq, n, cols, a->q_stride[1]);
  return ok;
}

/* Blocks from the last: causal or not, it sees every key, so that it writes all of gk and gv and the others add. */
static bool S(backward_head)(const attention_call *c, const scratch *w, int64_t number) {
  const zt_attention *a = c->a;
  S(head) head = S(load_head)(c, w, number);
  size_t n = (size_t)a->n_k, cols = (size_t)a->head_dim;
  int64_t ldgk, ldgv;
  void *gk_memory = row_of_out(c->t, c->gk, a->k_stride, head.b, head.h, 0);
  void *gv_memory = row_of_out(c->t, c->gv, a->v_stride, head.b, head.h, 0);
  T *gk = S(target)(gk_memory, cols, a->k_stride[1], w->gk, &ldgk);
  T *gv = S(target)(gv_memory, cols, a->v_stride[1], w->gv, &ldgv);
  bool ok = true;
  if (a->n_q == 0) /* products of nothing write zeros */
    ok = S(product)(TN, n, cols, 0, 1, NULL, 1, NULL, 1, 0, gk, ldgk) &&
         S(product)(TN, n, cols, 0, 1, NULL, 1, NULL, 1, 0, gv, ldgv);
  for (int64_t i = (a->n_q + QUERIES - 1) / QUERIES - 1; i >= 0 && ok; i--)
    ok = S(backward_block)(c, w, &head, gk, ldgk, gv, ldgv, i * QUERIES);
  S(store)(c->t, gk_memory, gk, n, cols, a->k_stride[1]);
  S(store)(c->t, gv_memory, gv, n, cols, a->v_stride[1]);
  return ok;
}

static bool S(backward)(const attention_call *c, char *workspace) {
  const zt_attention *a = c->a;
  bool ok = true;
#pragma omp parallel num_threads((int)n_threads(a)) reduction(&& : ok)
  {
    scratch w;
    plan_scratch(&w, mine(workspace, c->t, a, true), c->t, a, true);
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < a->n_batch * a->n_head; i++) ok = S(backward_head)(c, &w, i) && ok;
  }
  return ok;
}
