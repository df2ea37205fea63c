/* Attention, dropout, sampling, the global norm and optimizers as ops: gradients against differences, one form against
** another, what they count, what they refuse. */
#include "core/base/mem.h"
#include "core/train/optim.h"
#include "tests/c/grad_check.h"

static void expect_fails(zt_status got, zt_status want, const char *text) {
  assert_int_equal(got, want);
  if (!strstr(zt_message(), text)) fail_msg("'%s' does not say '%s'", zt_message(), text);
}

/* All elements of a tensor in its own dtype (freed by the caller). */
static void *bytes_of(zt_ctx *c, const zt_tensor *t) {
  void *data = malloc(zt_tensor_nbytes(t) + 1);
  assert_non_null(data);
  expect_ok(zt_tensor_read(c, t, data));
  return data;
}
static void expect_same_bytes(zt_ctx *c, const zt_tensor *a, const zt_tensor *b) {
  void *x = bytes_of(c, a), *y = bytes_of(c, b);
  assert_int_equal(zt_tensor_nbytes(a), zt_tensor_nbytes(b));
  assert_memory_equal(x, y, zt_tensor_nbytes(a));
  free(x), free(y);
}
static void expect_near(zt_ctx *c, const zt_tensor *a, const zt_tensor *b, double tolerance) {
  double *x = bytes_of(c, a), *y = bytes_of(c, b);
  assert_true(zt_tensor_same_shape(a, b));
  for (int64_t i = 0; i < zt_tensor_count(a); i++)
    if (!(fabs(x[i] - y[i]) <= tolerance * (1 + fabs(y[i])))) fail_msg("[%d]: %.17g is not %.17g", (int)i, x[i], y[i]);
  free(x), free(y);
}

/* --- attention */
typedef struct attention_case {
  int64_t B, H, Tq, Tk, D;
  zt_attention_options o;
  bool mask;
  int bias;     /* dimensions of the bias, the last ones of (B, H, Tq, Tk); 0: none */
  bool one_key; /* k and v have one row, which is expanded */
} attention_case;

static const attention_case cases[] = {
    {2, 2, 4, 4, 3, {0, false, 0}, false, 0, false}, {2, 2, 5, 5, 4, {0.7, true, 0}, false, 0, false},
    {2, 3, 3, 5, 2, {0, false, 0}, true, 0, false},  {1, 2, 3, 6, 4, {0, true, 0}, true, 4, false},
    {2, 2, 5, 3, 2, {0, true, 0}, false, 2, false},  {2, 1, 4, 4, 3, {0, false, 0.3}, false, 3, false},
    {2, 2, 5, 5, 3, {0, true, 0.5}, true, 4, false}, {2, 2, 1, 7, 3, {0, true, 0}, false, 1, false},
    {2, 2, 3, 4, 3, {0, false, 0}, true, 0, true},   {1, 1, 67, 67, 1, {0, true, 0.1}, false, 2, false},
    {0, 2, 3, 3, 2, {0, false, 0}, false, 2, false}, {2, 2, 0, 3, 2, {0, true, 0}, false, 0, false},
    {2, 2, 3, 0, 2, {0, false, 0}, false, 0, false}, {2, 2, 1, 1, 1, {0, true, 0}, false, 0, false},
};
enum { N_CASES = sizeof cases / sizeof *cases };

static zt_status expand_keys(zt_ctx *c, const attention_case *a, zt_tensor *x, zt_tensor **y) {
  if (a->one_key) return zt_expand(c, y, x, 4, (int64_t[]){a->B, a->Tk, a->H, a->D});
  *y = zt_tensor_retain(x);
  return ZT_OK;
}

static zt_status run_attention(const void *user, zt_ctx *c, zt_tensor *const in[], zt_tensor *out[]) {
  const attention_case *a = user;
  zt_tensor *k, *v;
  ZT_TRY(expand_keys(c, a, in[1], &k));
  ZT_TRY(expand_keys(c, a, in[2], &v));
  zt_status st = zt_attention_op(c, &out[0], in[0], k, v, in[3], in[4], &a->o);
  zt_tensor_release(k), zt_tensor_release(v);
  return st;
}

static zt_tensor *make_mask(zt_ctx *c, int64_t B, int64_t T) {
  zt_tensor *mask = random_tensor(c, ZT_U8, 0, 3, SHAPE(B, T));
  uint8_t *bytes = zt_tensor_data(mask);
  if (B > 1) memset(bytes, 0, (size_t)T); /* a sequence of nothing */
  return mask;
}

static zt_tensor *make_bias(zt_ctx *c, const attention_case *a, leaf_kind kind) {
  const int64_t shape[4] = {a->B, a->H, a->Tq, a->Tk};
  return leaf(c, kind, -1, 1, a->bias, shape + 4 - a->bias);
}

static void attention_gradient(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  for (int i = 0; i < N_CASES; i++)
    for (leaf_kind kind = PLAIN; kind < N_LEAF_KINDS; kind++) {
      const attention_case *a = &cases[i];
      int64_t n_k = a->one_key ? 1 : a->Tk;
      zt_tensor *in[5] = {leaf(c, kind, -1, 1, SHAPE(a->B, a->Tq, a->H, a->D)),
                          leaf(c, (kind + 1) % N_LEAF_KINDS, -1, 1, SHAPE(a->B, n_k, a->H, a->D)),
                          leaf(c, (kind + 2) % N_LEAF_KINDS, -1, 1, SHAPE(a->B, n_k, a->H, a->D)),
                          a->mask ? make_mask(c, a->B, a->Tk) : NULL, a->bias ? make_bias(c, a, kind) : NULL};
      grad_check(c, "attention", run_attention, a, in, 5, 1);
    }
  free_context(c);
  covers_op("attention");
}

static zt_status run_qkv(const void *user, zt_ctx *c, zt_tensor *const in[], zt_tensor *out[]) {
  const attention_case *a = user;
  return zt_attention_qkv(c, &out[0], in[0], a->H, in[1], in[2], &a->o);
}

static void attention_qkv_gradient(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  for (int i = 0; i < N_CASES; i++)
    for (leaf_kind kind = PLAIN; kind < N_LEAF_KINDS; kind++) {
      const attention_case *a = &cases[i];
      if (a->Tq != a->Tk) continue;
      zt_tensor *in[3] = {leaf(c, kind, -1, 1, SHAPE(a->B, a->Tq, 3 * a->H * a->D)),
                          a->mask ? make_mask(c, a->B, a->Tk) : NULL, a->bias ? make_bias(c, a, kind) : NULL};
      grad_check(c, "attention_qkv", run_qkv, a, in, 3, 1);
    }
  free_context(c);
}

/* The three parts as (B, T, H, D) views. */
static void unpack(zt_ctx *c, zt_tensor *qkv, const attention_case *a, zt_tensor *part[3]) {
  zt_tensor *five;
  expect_ok(zt_reshape(c, &five, qkv, SHAPE(a->B, a->Tq, 3, a->H, a->D)));
  for (int i = 0; i < 3; i++) {
    zt_tensor *one;
    expect_ok(zt_narrow(c, &one, five, 2, i, 1));
    expect_ok(zt_reshape(c, &part[i], one, SHAPE(a->B, a->Tq, a->H, a->D)));
    zt_tensor_release(one);
  }
  zt_tensor_release(five);
}

static void without_minus_zeros(zt_ctx *c, zt_tensor *t) {
  zt_tensor *zero;
  expect_ok(zt_scalar(c, &zero, t->dtype, 0));
  expect_ok(zt_add_(c, t, zero, 1));
  zt_tensor_release(zero);
}

static void packed_and_unpacked_agree(void **state) {
  (void)state;
  const attention_case a = {2, 3, 70, 70, 8, {0, true, 0.2}, true, 0, false};
  for (int t = ZT_F32; t <= ZT_F16; t++) {
    zt_ctx *c = new_context();
    const zt_random random = *zt_ctx_random(c);
    zt_tensor *qkv = random_tensor(c, (zt_dtype)t, -1, 1, SHAPE(a.B, a.Tq, 3 * a.H * a.D)),
              *mask = make_mask(c, a.B, a.Tk);
    zt_tensor *up = random_tensor(c, (zt_dtype)t, -1, 1, SHAPE(a.B, a.Tq, a.H * a.D)), *part[3], *y, *z, *flat, *first;
    qkv->requires_grad = true;
    expect_ok(zt_attention_qkv(c, &y, qkv, a.H, mask, NULL, &a.o));
    expect_ok(zt_backward(c, y, up, 1));
    first = qkv->grad, qkv->grad = NULL;
    *zt_ctx_random(c) = random; /* the same call draws the same mask */
    unpack(c, qkv, &a, part);
    expect_ok(zt_attention_op(c, &z, part[0], part[1], part[2], mask, NULL, &a.o));
    expect_ok(zt_reshape(c, &flat, z, SHAPE(a.B, a.Tq, a.H * a.D)));
    expect_ok(zt_backward(c, flat, up, 1));
    expect_same_bytes(c, y, flat);
    without_minus_zeros(c, first); /* the parts' gradients were added to zeros, which makes a -0 a 0 */
    expect_same_bytes(c, first, qkv->grad);
    release_all((zt_tensor *[]){qkv, mask, up, part[0], part[1], part[2], y, z, flat, first}, 10);
    free_context(c);
  }
  covers_op("attention_qkv");
}

/* softmax(scale q k^T + bias, mask) v by other ops: all as (B, H, T, D). */
static zt_tensor *composed(zt_ctx *c, zt_tensor *q, zt_tensor *k, zt_tensor *v, zt_tensor *mask, zt_tensor *bias,
                           double scale) {
  zt_tensor *qh, *kh, *kt, *vh, *s, *scaled, *biased, *wide, *p, *o, *y;
  expect_ok(zt_transpose(c, &qh, q, 1, 2));
  expect_ok(zt_transpose(c, &kh, k, 1, 2));
  expect_ok(zt_transpose(c, &kt, kh, 2, 3));
  expect_ok(zt_transpose(c, &vh, v, 1, 2));
  expect_ok(zt_matmul(c, &s, qh, kt));
  expect_ok(zt_affine(c, &scaled, s, scale, 0));
  expect_ok(zt_add(c, &biased, scaled, bias));
  expect_ok(zt_reshape(c, &wide, mask, SHAPE(mask->shape[0], 1, 1, mask->shape[1])));
  expect_ok(zt_softmax(c, &p, biased, wide, -1));
  expect_ok(zt_matmul(c, &o, p, vh));
  expect_ok(zt_transpose(c, &y, o, 1, 2));
  release_all((zt_tensor *[]){qh, kh, kt, vh, s, scaled, biased, wide, p, o}, 10);
  return y;
}

static void attention_is_what_other_ops_compose(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  zt_tensor *q = random_tensor(c, ZT_F64, -1, 1, SHAPE(2, 5, 3, 4)),
            *k = random_tensor(c, ZT_F64, -1, 1, SHAPE(2, 9, 3, 4));
  zt_tensor *v = random_tensor(c, ZT_F64, -1, 1, SHAPE(2, 9, 3, 4)),
            *bias = random_tensor(c, ZT_F64, -1, 1, SHAPE(3, 5, 9));
  zt_tensor *mask = make_mask(c, 2, 9), *y, *z;
  expect_ok(zt_attention_op(c, &y, q, k, v, mask, bias, &(zt_attention_options){.scale = 0.3}));
  z = composed(c, q, k, v, mask, bias, 0.3);
  expect_near(c, y, z, 1e-13);
  release_all((zt_tensor *[]){q, k, v, bias, mask, y, z}, 7);
  free_context(c);
}

static void attention_says_what_is_wrong(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  zt_tensor *q = random_tensor(c, ZT_F32, 0, 1, SHAPE(2, 5, 3, 4)),
            *k = random_tensor(c, ZT_F32, 0, 1, SHAPE(2, 9, 2, 4));
  zt_tensor *half = random_tensor(c, ZT_F16, 0, 1, SHAPE(2, 5, 3, 4)), *mask = make_mask(c, 2, 4);
  zt_tensor *packed = random_tensor(c, ZT_F32, 0, 1, SHAPE(2, 5, 10)), *y;
  zt_attention_options o = {0, false, 0}, all = {0, false, 1.5};
  expect_fails(zt_attention_op(c, &y, q, k, k, NULL, NULL, &o), ZT_SHAPE, "q (2, 5, 3, 4), k (2, 9, 2, 4)");
  expect_fails(zt_attention_op(c, &y, q, half, half, NULL, NULL, &o), ZT_DTYPE, "float16");
  expect_fails(zt_attention_op(c, &y, q, q, q, mask, NULL, &o), ZT_SHAPE, "mask (2, 4)");
  expect_fails(zt_attention_op(c, &y, q, q, q, NULL, half, &o), ZT_DTYPE, "the bias");
  expect_fails(zt_attention_op(c, &y, q, q, q, NULL, k, &o), ZT_SHAPE, "(2, 9, 2, 4)");
  expect_fails(zt_attention_op(c, &y, q, q, q, NULL, NULL, &all), ZT_INVALID, "1.5");
  expect_fails(zt_attention_qkv(c, &y, packed, 2, NULL, NULL, &o), ZT_SHAPE, "(2, 5, 10)");
  assert_null(y);
  release_all((zt_tensor *[]){q, k, half, mask, packed}, 5);
  free_context(c);
}

/* --- dropout */
static zt_status run_dropout(const void *user, zt_ctx *c, zt_tensor *const in[], zt_tensor *out[]) {
  return zt_dropout(c, &out[0], in[0], *(const double *)user);
}

static void dropout_gradient(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  for (leaf_kind kind = PLAIN; kind < N_LEAF_KINDS; kind++)
    for (int i = 0; i < 4; i++) {
      double p = random_in(0.1, 0.8);
      zt_tensor *in[1] = {i == 0   ? leaf(c, kind, -1, 1, SHAPE(3, 7))
                          : i == 1 ? leaf(c, kind, -1, 1, SHAPE(11))
                          : i == 2 ? leaf(c, kind, -1, 1, NO_DIMS)
                                   : leaf(c, kind, -1, 1, SHAPE(2, 0, 3))};
      grad_check(c, "dropout", run_dropout, &p, in, 1, 1);
    }
  free_context(c);
}

/* Rows are samples: half of a batch draws what the whole one drew there. Calls differ, the same call does not. */
static void dropout_follows_samples_and_calls(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  zt_random *random = zt_ctx_random(c);
  const zt_random was = *random;
  zt_tensor *x = random_tensor(c, ZT_F32, 1, 2, SHAPE(6, 50)), *lower, *whole, *again, *part, *want, *self;
  expect_ok(zt_dropout(c, &whole, x, 0.4));
  assert_int_equal(random->call, was.call + 1);
  expect_ok(zt_dropout(c, &again, x, 0.4));
  assert_memory_not_equal(zt_tensor_data(whole), zt_tensor_data(again), zt_tensor_nbytes(x));
  *random = was;
  random->first_sample += 2;
  expect_ok(zt_narrow(c, &lower, x, 0, 2, 4));
  expect_ok(zt_dropout(c, &part, lower, 0.4));
  expect_ok(zt_narrow(c, &want, whole, 0, 2, 4));
  expect_same_bytes(c, part, want);
  expect_ok(zt_dropout(c, &self, x, 0));
  assert_true(self == x && random->call == was.call + 1);
  release_all((zt_tensor *[]){x, lower, whole, again, part, want, self}, 7);
  free_context(c);
  covers_op("dropout");
}

static void dropout_says_what_is_wrong(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  zt_tensor *x = random_tensor(c, ZT_F32, 1, 2, SHAPE(3)), *ids = random_index(c, 5, SHAPE(3)), *y;
  expect_fails(zt_dropout(c, &y, x, -0.1), ZT_INVALID, "-0.1");
  expect_fails(zt_dropout(c, &y, x, NAN), ZT_INVALID, "nan");
  expect_fails(zt_dropout(c, &y, ids, 0.5), ZT_DTYPE, "int64");
  release_all((zt_tensor *[]){x, ids}, 2);
  free_context(c);
}

/* --- sampling and the global norm */
static void sample_draws_a_row_each(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  zt_random *random = zt_ctx_random(c);
  zt_tensor *x = strided_tensor(c, ZT_F32, TRANSPOSED, -1, 1, SHAPE(5, 30)), *ids, *best, *again;
  uint32_t call = random->call;
  expect_ok(zt_sample(c, &ids, x, 0, 0, 1));
  expect_ok(zt_argmax(c, &best, x, 1, false));
  assert_int_equal(random->call, call);
  expect_same_bytes(c, ids, best);
  zt_tensor_release(ids);
  expect_ok(zt_sample(c, &ids, x, 0.8, 10, 0.9));
  assert_int_equal(random->call, call + 1);
  random->call = call;
  expect_ok(zt_sample(c, &again, x, 0.8, 10, 0.9));
  expect_same_bytes(c, ids, again);
  assert_true(ids->ndim == 1 && ids->shape[0] == 5 && ids->dtype == ZT_I64);
  release_all((zt_tensor *[]){ids, again}, 2);
  expect_fails(zt_sample(c, &ids, best, 1, 0, 1), ZT_DTYPE, "int64");
  expect_fails(zt_sample(c, &ids, x, -1, 0, 1), ZT_INVALID, "temperature -1");
  expect_fails(zt_sample(c, &ids, x, 1, 0, 0), ZT_INVALID, "top_p 0");
  assert_null(ids);
  release_all((zt_tensor *[]){x, best}, 2);
  free_context(c);
}

static void global_norm_has_no_order(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  zt_tensor *x = random_tensor(c, ZT_F32, -3, 3, SHAPE(1000)), *parts[3];
  double whole, split, turned, sum = 0;
  int64_t bad, bad_at;
  expect_ok(zt_global_norm(c, &whole, &bad, &bad_at, &x, 1));
  for (int64_t i = 0; i < 1000; i++) sum += pow(((float *)zt_tensor_data(x))[i], 2);
  assert_true(fabs(whole - sqrt(sum)) < 1e-12 * whole && bad == -1 && bad_at == -1);
  expect_ok(zt_narrow(c, &parts[0], x, 0, 0, 128)); /* cut where blocks of squares end */
  expect_ok(zt_narrow(c, &parts[1], x, 0, 128, 512));
  expect_ok(zt_narrow(c, &parts[2], x, 0, 640, 360));
  expect_ok(zt_global_norm(c, &split, NULL, NULL, parts, 3));
  expect_ok(zt_global_norm(c, &turned, NULL, NULL, (zt_tensor *[]){parts[2], parts[0], parts[1]}, 3));
  assert_true(whole == split && whole == turned);
  ((float *)zt_tensor_data(x))[700] = INFINITY;
  ((float *)zt_tensor_data(x))[130] = NAN;
  expect_ok(zt_global_norm(c, &split, &bad, &bad_at, (zt_tensor *[]){parts[0], parts[2], parts[1]}, 3));
  assert_true(isnan(split) && bad == 1 && bad_at == 60);
  expect_ok(zt_global_norm(c, &split, &bad, &bad_at, NULL, 0));
  assert_true(split == 0 && bad == -1);
  release_all((zt_tensor *[]){x, parts[0], parts[1], parts[2]}, 4);
  free_context(c);
}

/* --- optimizers */
static zt_tensor *param(zt_ctx *c, zt_dtype t, int64_t count) {
  zt_tensor *p = random_tensor(c, t, -1, 1, SHAPE(count));
  p->requires_grad = true;
  p->grad = random_tensor(c, t, -1, 1, SHAPE(count));
  return p;
}

static const zt_hyper hyper = {
    .lr = 0.01, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1, .momentum = 0.9, .grad_scale = 1};

/* Every request for memory fails in turn: until all are granted nothing may have been written. */
static void a_step_is_done_whole_or_not_at_all(void **state) {
  (void)state;
  for (zt_optim_kind kind = ZT_OPTIM_ADAMW; kind < ZT_N_OPTIMS; kind++) {
    zt_ctx *c = new_context();
    zt_optim *o;
    zt_tensor *p[3] = {param(c, ZT_F32, 7), param(c, ZT_F64, 5), param(c, ZT_F32, 0)}, *m, *v;
    double before[2][8];
    int64_t steps;
    int index, failures = 0;
    expect_ok(zt_optim_new(c, kind, &o));
    for (int i = 0; i < 3; i++) expect_ok(zt_optim_add(o, p[i], 0, &index));
    for (int i = 0; i < 2; i++) memcpy(before[i], zt_tensor_data(p[i]), zt_tensor_nbytes(p[i]));
    for (uint64_t nth = 1;; nth++, failures++) {
      zt_mem_fail_at(nth, false);
      zt_status st = zt_optim_step_groups(o, &hyper, 1);
      zt_mem_fail_at(0, false);
      if (st == ZT_OK) break;
      assert_int_equal(st, ZT_NOMEM);
      for (int i = 0; i < 2; i++) assert_memory_equal(before[i], zt_tensor_data(p[i]), zt_tensor_nbytes(p[i]));
      zt_optim_get_state(o, 0, &steps, &m, &v);
      assert_int_equal(steps, 0);
    }
    assert_true(failures > 2);
    for (int i = 0; i < 2; i++) assert_memory_not_equal(before[i], zt_tensor_data(p[i]), zt_tensor_nbytes(p[i]));
    zt_optim_get_state(o, 0, &steps, &m, &v);
    assert_true(steps == 1 && m && (v != NULL) == (kind <= ZT_OPTIM_ADAM));
    zt_optim_zero_grad(o);
    assert_null(p[0]->grad);
    zt_optim_free(o);
    release_all(p, 3);
    free_context(c);
  }
}

static void a_step_leaves_other_groups_and_ungraded_parameters(void **state) {
  (void)state;
  zt_ctx *c = new_context();
  zt_optim *o;
  zt_tensor *p[3] = {param(c, ZT_F32, 4), param(c, ZT_F32, 4), param(c, ZT_F32, 4)}, *copy[3];
  int index;
  expect_ok(zt_optim_new(c, ZT_OPTIM_ADAMW, &o));
  for (int i = 0; i < 3; i++) {
    expect_ok(zt_optim_add(o, p[i], i == 2, &index));
    assert_int_equal(index, i);
    expect_ok(zt_tensor_from(c, &copy[i], ZT_F32, 1, p[i]->shape, zt_tensor_data(p[i])));
  }
  release_all(&p[1]->grad, 1);
  expect_ok(zt_optim_step_groups(o, &hyper, 1));
  assert_memory_not_equal(zt_tensor_data(p[0]), zt_tensor_data(copy[0]), 16);
  expect_same_bytes(c, p[1], copy[1]);
  expect_same_bytes(c, p[2], copy[2]);
  expect_fails(zt_optim_add(o, p[1], 0, &index), ZT_INVALID, "already");
  zt_optim_free(o);
  release_all(p, 3), release_all(copy, 3);
  free_context(c);
}

/* A state that was taken out and set again goes on with the same bits. */
static void state_moves_to_another_optimizer(void **state) {
  (void)state;
  for (zt_optim_kind kind = ZT_OPTIM_ADAMW; kind < ZT_N_OPTIMS; kind++) {
    zt_ctx *c = new_context();
    zt_optim *a, *b;
    zt_tensor *p = param(c, ZT_F32, 33), *q, *m, *v;
    int64_t steps;
    int index;
    expect_ok(zt_optim_new(c, kind, &a));
    expect_ok(zt_optim_new(c, kind, &b));
    expect_ok(zt_optim_add(a, p, 0, &index));
    for (int i = 0; i < 3; i++) expect_ok(zt_optim_step_groups(a, &hyper, 1));
    expect_ok(zt_tensor_from(c, &q, ZT_F32, 1, p->shape, zt_tensor_data(p)));
    q->grad = zt_tensor_retain(p->grad);
    expect_ok(zt_optim_add(b, q, 0, &index));
    zt_optim_get_state(a, 0, &steps, &m, &v);
    expect_ok(zt_optim_set_state(b, 0, steps, m, v));
    expect_ok(zt_optim_step_groups(a, &hyper, 1));
    expect_ok(zt_optim_step_groups(b, &hyper, 1));
    expect_same_bytes(c, p, q);
    expect_fails(zt_optim_set_state(b, 5, steps, m, v), ZT_INVALID, "parameter 6");
    zt_optim_free(a), zt_optim_free(b);
    release_all((zt_tensor *[]){p, q}, 2);
    free_context(c);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(attention_gradient),
      cmocka_unit_test(attention_qkv_gradient),
      cmocka_unit_test(packed_and_unpacked_agree),
      cmocka_unit_test(attention_is_what_other_ops_compose),
      cmocka_unit_test(attention_says_what_is_wrong),
      cmocka_unit_test(dropout_gradient),
      cmocka_unit_test(dropout_follows_samples_and_calls),
      cmocka_unit_test(dropout_says_what_is_wrong),
      cmocka_unit_test(sample_draws_a_row_each),
      cmocka_unit_test(global_norm_has_no_order),
      cmocka_unit_test(a_step_is_done_whole_or_not_at_all),
      cmocka_unit_test(a_step_leaves_other_groups_and_ungraded_parameters),
      cmocka_unit_test(state_moves_to_another_optimizer),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
