/* The optimizers of every instruction set, bit for bit against their formulas written out for one element: each
** operation rounds to the state's dtype and none is fused. That the formulas are PyTorch's, the goldens say
** (tests/lua/optim_spec.lua). */
#include <omp.h>

#include "tests/c/kernel_test.h"

/* Arithmetic in one of the two state dtypes: what is rounded after each operation is what the kernel computes, since
** double holds exact products and correctly rounded sums, quotients and roots of floats twice over. */
static zt_dtype state;
static double r(double x) { return state == ZT_F32 ? (double)(float)x : x; }
static double mul(double a, double b) { return r(a * b); }
static double add(double a, double b) { return r(a + b); }
static double over(double a, double b) { return r(a / b); }

typedef struct element {
  double p, m, v, g;
} element;

static element adam(element e, const zt_optim_step *c) {
  double g = mul(e.g, r(c->grad_scale)), p = e.p, w = r(1.0 - c->beta1);
  if (c->decoupled) p = mul(p, r(1.0 - c->lr * c->weight_decay));
  if (!c->decoupled) g = add(g, mul(p, r(c->weight_decay)));
  double d = add(g, -e.m);
  e.m = c->beta1 > 0.5 ? add(e.m, mul(w, d)) : add(g, -mul(d, r(c->beta1)));
  e.v = add(mul(e.v, r(c->beta2)), mul(mul(r(1.0 - c->beta2), g), g));
  double root = add(over(r(sqrt(e.v)), r(c->bias2_sqrt)), r(c->eps));
  e.p = add(p, over(mul(r(-c->step_size), e.m), root));
  return e;
}

static element sgd(element e, const zt_optim_step *c) {
  double g = add(mul(e.g, r(c->grad_scale)), mul(e.p, r(c->weight_decay))), update = g;
  if (c->momentum != 0.0) {
    e.m = c->first ? g : add(mul(e.m, r(c->momentum)), mul(g, r(1.0 - c->dampening)));
    update = c->nesterov ? add(g, mul(r(c->momentum), e.m)) : e.m;
  }
  e.p = add(e.p, mul(r(-c->lr), update));
  return e;
}

static element lion(element e, const zt_optim_step *c) {
  double g = mul(e.g, r(c->grad_scale)), d = add(mul(e.m, r(c->beta1)), mul(g, r(1.0 - c->beta1)));
  double sign = d > 0.0 ? 1.0 : d < 0.0 ? -1.0 : 0.0;
  e.p = add(mul(e.p, r(1.0 - c->lr * c->weight_decay)), mul(r(-c->lr), sign));
  e.m = add(mul(e.m, r(c->beta2)), mul(g, r(1.0 - c->beta2)));
  return e;
}

typedef enum kind { ADAM, SGD, LION } kind;

static element step(kind what, element e, const zt_optim_step *c) {
  return what == ADAM ? adam(e, c) : what == SGD ? sgd(e, c) : lion(e, c);
}

static zt_status run(const zt_kernels *k, kind what, zt_dtype tg, void *p, void *m, void *v, const void *g,
                     const zt_optim_step *c, size_t count) {
  if (what == ADAM) return k->optim_adam(&no_stream, state, tg, p, m, v, g, c, count);
  if (what == SGD) return k->optim_sgd(&no_stream, state, tg, p, c->momentum != 0.0 ? m : NULL, g, c, count);
  return k->optim_lion(&no_stream, state, tg, p, m, g, c, count);
}

static zt_optim_step any_step(void) {
  return (zt_optim_step){.grad_scale = random_below(2) ? 1.0 : random_in(0.01, 1),
                         .lr = random_in(1e-4, 0.1),
                         .weight_decay = random_below(2) ? 0.0 : random_in(0.01, 0.2),
                         .beta1 = random_below(4) ? random_in(0.6, 0.99) : random_in(0.0, 0.5),
                         .beta2 = random_in(0.9, 0.9999),
                         .eps = 1e-8,
                         .step_size = random_in(1e-4, 0.1),
                         .bias2_sqrt = random_in(0.03, 1),
                         .decoupled = random_below(2),
                         .momentum = random_below(3) ? random_in(0.1, 0.99) : 0.0,
                         .dampening = random_below(2) ? 0.0 : random_in(0, 0.5),
                         .nesterov = random_below(2),
                         .first = random_below(3) == 0};
}

static void expect_same(kind what, const buffer *b, size_t i, double want, const char *name) {
  if (at(b, i) != want)
    fail_msg("kind %d %s: %s[%zu of %zu] is %a, want %a", (int)what, zt_dtype_name(b->dtype), name, i, b->count,
             at(b, i), want);
}

static void check(const zt_kernels *k, kind what, zt_dtype tg, size_t count) {
  zt_optim_step c = any_step();
  buffer p = input(state, count, -1, 1), m = input(state, count, -1, 1), v = input(state, count, 0, 1);
  buffer g = input(tg, count, -1, 1), p0 = copy_of(&p), m0 = copy_of(&m), v0 = copy_of(&v);
  if (count > 2) put(tg, g.data, 1, 0.0), put(state, m.data, 1, 0.0), put(state, m0.data, 1, 0.0);
  expect_ok(run(k, what, tg, p.data, m.data, v.data, g.data, &c, count));
  for (size_t i = 0; i < count; i++) {
    element e = step(what, (element){at(&p0, i), at(&m0, i), at(&v0, i), rounded(state, at(&g, i))}, &c);
    expect_same(what, &p, i, e.p, "p");
    expect_same(what, &m, i, e.m, "m");
    expect_same(what, &v, i, e.v, "v");
  }
  buffer *all[] = {&p, &m, &v, &g, &p0, &m0, &v0};
  for (int i = 0; i < 7; i++) buffer_free(all[i]);
}

static void check_all(kind what) {
  static const size_t counts[] = {0, 1, 2, 15, 64, 511, 512, 513, 1031, 16384, 33001};
  FOR_KERNELS(k) FOR_FLOATS(tg) for (int i = 0; i < 2; i++) {
    state = i ? ZT_F64 : ZT_F32;
    for (int round = 0; round < 3; round++)
      for (size_t n = 0; n < sizeof counts / sizeof *counts; n++) check(k->table, what, tg, counts[n]);
  }
}

static void adam_and_adamw(void **unused) {
  (void)unused;
  check_all(ADAM);
  covers_kernel("optim_adam");
}
static void sgd_with_and_without_momentum(void **unused) {
  (void)unused;
  check_all(SGD);
  covers_kernel("optim_sgd");
}
static void lion_by_signs(void **unused) {
  (void)unused;
  check_all(LION);
  covers_kernel("optim_lion");
}

/* A step in two spans, cut anywhere, is the step of both at once. */
static void spans_change_no_bit(void **unused) {
  (void)unused;
  state = ZT_F32;
  FOR_KERNELS(k) FOR_FLOATS(tg) for (int what = ADAM; what <= LION; what++) {
    size_t count = 1 + random_below(3000), cut = random_below(count + 1);
    zt_optim_step c = any_step();
    buffer p = input(state, count, -1, 1), m = input(state, count, -1, 1), v = input(state, count, 0, 1);
    buffer g = input(tg, count, -1, 1), p2 = copy_of(&p), m2 = copy_of(&m), v2 = copy_of(&v);
    expect_ok(run(k->table, what, tg, p.data, m.data, v.data, g.data, &c, count));
    expect_ok(run(k->table, what, tg, p2.data, m2.data, v2.data, g.data, &c, cut));
    expect_ok(run(k->table, what, tg, (float *)p2.data + cut, (float *)m2.data + cut, (float *)v2.data + cut,
                  (char *)g.data + cut * zt_dtype_nbytes(tg), &c, count - cut));
    assert_memory_equal(p.data, p2.data, p.nbytes);
    assert_memory_equal(m.data, m2.data, m.nbytes);
    assert_memory_equal(v.data, v2.data, v.nbytes);
    buffer *all[] = {&p, &m, &v, &g, &p2, &m2, &v2};
    for (int i = 0; i < 7; i++) buffer_free(all[i]);
  }
}

/* A first momentum buffer is not read: its bytes may be anything. */
static void first_momentum_is_not_read(void **unused) {
  (void)unused;
  state = ZT_F32;
  FOR_KERNELS(k) {
    zt_optim_step c = {.grad_scale = 1.0, .lr = 0.5, .momentum = 0.9, .first = true};
    buffer p = input(ZT_F32, 77, 1, 1), m = input(ZT_F32, 77, 0, 0), g = input(ZT_F32, 77, 2, 2);
    for (size_t i = 0; i < 77; i++) put(ZT_F32, m.data, i, NAN);
    expect_ok(run(k->table, SGD, ZT_F32, p.data, m.data, NULL, g.data, &c, 77));
    for (size_t i = 0; i < 77; i++) assert_true(at(&p, i) == 0.0 && at(&m, i) == 2.0);
    buffer_free(&p), buffer_free(&m), buffer_free(&g);
  }
}

/* Moments may be denormal, and are kept so. */
static void denormals_are_kept(void **unused) {
  (void)unused;
  state = ZT_F32;
  FOR_KERNELS(k) {
    zt_optim_step c = {.grad_scale = 1.0, .beta1 = 0.9, .beta2 = 0.5, .eps = 1e-8, .step_size = 0.0, .bias2_sqrt = 1.0};
    buffer p = input(ZT_F32, 33, 1, 1), m = input(ZT_F32, 33, 0, 0), v = input(ZT_F32, 33, 0x1p-140, 0x1p-140);
    buffer g = input(ZT_F32, 33, 0x1p-140, 0x1p-140);
    expect_ok(run(k->table, ADAM, ZT_F32, p.data, m.data, v.data, g.data, &c, 33));
    for (size_t i = 0; i < 33; i++) assert_true(at(&v, i) == 0x1p-141 && at(&m, i) > 0x1p-144);
    buffer_free(&p), buffer_free(&m), buffer_free(&v), buffer_free(&g);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(adam_and_adamw),     cmocka_unit_test(sgd_with_and_without_momentum),
      cmocka_unit_test(lion_by_signs),      cmocka_unit_test(first_momentum_is_not_read),
      cmocka_unit_test(denormals_are_kept), cmocka_unit_test(spans_change_no_bit),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
