/* The tape: values of gradients, lifetimes, final gradients, checkpoints that change no bit, failures that lose nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/tensor/ops.h"
#include "core/tensor/tape.h"

#define OK(expr)                                               \
  do {                                                         \
    zt_status st_ = (expr);                                    \
    if (st_ != ZT_OK) fail_msg("%s: %s", #expr, zt_message()); \
  } while (0)

static zt_ctx *new_ctx(void) {
  zt_ctx *c;
  OK(zt_ctx_new(NULL, &c));
  zt_ctx_random(c)->seed = 11;
  return c;
}

static zt_tensor *scalar(zt_ctx *c, double value, bool grad) {
  zt_tensor *t;
  OK(zt_tensor_from(c, &t, ZT_F64, 0, NULL, &value));
  t->requires_grad = grad;
  return t;
}

static double item(zt_ctx *c, const zt_tensor *t) {
  double v;
  OK(zt_tensor_item(c, t, &v));
  return v;
}

static void free_all(zt_tensor **list, int n) {
  for (int i = 0; i < n; i++) zt_tensor_release(list[i]);
}

static void a_leaf_used_twice_gets_the_sum(void **state) {
  (void)state;
  zt_ctx *c = new_ctx();
  zt_tensor *x = scalar(c, 3, true), *y, *z;
  OK(zt_mul(c, &y, x, x));
  OK(zt_add(c, &z, y, x)); /* x^2 + x */
  OK(zt_backward(c, z, NULL, 1));
  assert_true(item(c, x->grad) == 7);
  zt_tensor *again;
  OK(zt_mul(c, &again, x, x));
  OK(zt_backward(c, again, NULL, 10)); /* gradients add up; the seed scales */
  assert_true(item(c, x->grad) == 7 + 60);
  free_all((zt_tensor *[]){x, y, z, again}, 4);
  assert_int_equal(zt_tape_length(c), 0);
  assert_int_equal(zt_pool_get_stats(zt_ctx_pool(c)).used_nbytes, 0);
  zt_ctx_free(c);
}

static void what_nobody_can_reach_leaves_the_tape(void **state) {
  (void)state;
  zt_ctx *c = new_ctx();
  zt_tensor *x = scalar(c, 1.0000001, true), *y = zt_tensor_retain(x), *next;
  for (int i = 0; i < 100000; i++) { /* freeing the chain must not recurse */
    OK(zt_mul(c, &next, y, x));
    zt_tensor_release(y);
    y = next;
  }
  assert_int_equal(zt_tape_length(c), 100000);
  zt_tensor_release(y);
  assert_int_equal(zt_tape_length(c), 0);
  zt_tensor_release(x);
  zt_ctx_free(c);
}

static void backward_frees_as_it_goes_and_runs_once(void **state) {
  (void)state;
  zt_ctx *c = new_ctx();
  zt_tensor *x = scalar(c, 2, true), *y, *z;
  OK(zt_mul(c, &y, x, x));
  OK(zt_mul(c, &z, y, y));
  OK(zt_backward(c, z, NULL, 1));
  assert_true(item(c, x->grad) == 32);
  assert_int_equal(zt_backward(c, z, NULL, 1), ZT_STATE);
  assert_non_null(strstr(zt_message(), "freed by an earlier backward"));
  zt_tensor *w;
  OK(zt_add(c, &w, y, x)); /* a part of it is spent */
  assert_int_equal(zt_backward(c, w, NULL, 1), ZT_STATE);
  assert_true(item(c, x->grad) == 32);
  assert_int_equal(x->n_uses, 0);
  free_all((zt_tensor *[]){x, y, z, w}, 4);
  zt_ctx_free(c);
}

static void changes_after_saving_are_found(void **state) {
  (void)state;
  zt_ctx *c = new_ctx();
  zt_tensor *x = scalar(c, 2, true), *w = scalar(c, 5, true), *y;
  OK(zt_mul(c, &y, x, w));
  OK(zt_fill_(c, w, 6));
  assert_int_equal(zt_backward(c, y, NULL, 1), ZT_STATE);
  assert_non_null(strstr(zt_message(), "changed in place"));
  assert_int_equal(zt_fill_(c, y, 1), ZT_STATE); /* a computed tensor */
  free_all((zt_tensor *[]){x, w, y}, 3);
  zt_ctx_free(c);
}

static void after_a_failure_the_tape_is_spent(void **state) {
  (void)state;
  zt_ctx *c = new_ctx();
  zt_tensor *x = scalar(c, 5, true), *target = scalar(c, 2, false);
  int n_failed = 0;
  for (uint64_t at = 1;; at++) {
    zt_tensor *loss;
    OK(zt_mse(c, &loss, x, target));
    zt_mem_fail_at(at, true);
    zt_status st = zt_backward(c, loss, NULL, 1);
    zt_mem_fail_at(0, false);
    if (st != ZT_OK) {
      bool began = strstr(zt_message(), "backward of") != NULL; /* else the first gradient could not be made */
      assert_null(x->grad);
      n_failed += began;
      assert_int_equal(zt_backward(c, loss, NULL, 1), began ? ZT_STATE : ZT_OK);
      zt_tensor_release(x->grad);
      x->grad = NULL;
    }
    zt_tensor_release(loss);
    assert_int_equal(zt_tape_length(c), 0);
    if (st == ZT_OK) break;
  }
  assert_true(n_failed > 0);
  assert_true(item(c, x->grad) == 6);
  free_all((zt_tensor *[]){x, target}, 2);
  zt_ctx_free(c);
}

static void without_gradients_nothing_is_recorded(void **state) {
  (void)state;
  zt_ctx *c = new_ctx();
  zt_tensor *x = scalar(c, 2, true), *y;
  zt_ctx_set_grad_enabled(c, false);
  OK(zt_mul(c, &y, x, x));
  assert_null(y->node);
  assert_int_equal(zt_tape_length(c), 0);
  zt_ctx_set_grad_enabled(c, true);
  assert_int_equal(zt_backward(c, y, NULL, 1), ZT_STATE);
  free_all((zt_tensor *[]){x, y}, 2);
  zt_ctx_free(c);
}

typedef struct finals {
  zt_tensor *leaf[16];
  double grad[16];
  int count;
} finals;

static zt_status note_final(void *user, zt_ctx *c, zt_tensor *leaf) {
  finals *f = user;
  f->leaf[f->count] = leaf;
  f->grad[f->count] = 0;
  if (leaf->grad) ZT_TRY(zt_tensor_item(c, leaf->grad, &f->grad[f->count]));
  f->count++;
  return ZT_OK;
}

static void a_gradient_is_final_after_its_last_use(void **state) {
  (void)state;
  zt_ctx *c = new_ctx();
  finals f = {0};
  zt_observer observer = {.final = note_final, .user = &f};
  zt_ctx_add_observer(c, &observer);
  zt_tensor *tied = scalar(c, 3, true), *x = scalar(c, 2, true), *y, *z;
  OK(zt_mul(c, &y, tied, x));
  OK(zt_mul(c, &z, y, tied)); /* tied^2 x */
  OK(zt_backward(c, z, NULL, 1));
  assert_int_equal(f.count, 2); /* once each */
  for (int i = 0; i < 2; i++) assert_true(f.grad[i] == (f.leaf[i] == tied ? 12 : 9));
  free_all((zt_tensor *[]){tied, x, y, z}, 4);
  zt_ctx_free(c);
}

/* ---- four blocks with a tied weight and dropout, under every pattern of checkpoints */

enum { N_BLOCKS = 4, WIDTH = 24, ROWS = 10 };
typedef struct net {
  zt_tensor *tied, *w[N_BLOCKS], *x;
  finals finals;
} net;

static zt_tensor *random_tensor(zt_ctx *c, int ndim, const int64_t *shape) {
  zt_tensor *t;
  OK(zt_tensor_new(c, &t, ZT_F32, ndim, shape));
  OK(zt_normal_(c, t, 0, 0.3));
  t->requires_grad = true;
  return t;
}

typedef struct block {
  net *n;
  int number;
} block;

/* y = x + dropout(tanh((x w_i) tied)): reads the tied weight, uses x twice. */
static zt_status block_run(void *user, zt_ctx *c, zt_tensor *const in[], int n_in, zt_tensor *out[], int n_out) {
  (void)n_in, (void)n_out;
  block *b = user;
  zt_tensor *t[4] = {NULL};
  zt_status st;
  ZT_TRY_GOTO(zt_matmul(c, &t[0], in[0], b->n->w[b->number]), done);
  ZT_TRY_GOTO(zt_matmul(c, &t[1], t[0], b->n->tied), done);
  ZT_TRY_GOTO(zt_tanh(c, &t[2], t[1]), done);
  ZT_TRY_GOTO(zt_dropout(c, &t[3], t[2], 0.2), done);
  st = zt_add(c, &out[0], in[0], t[3]);
done:
  for (int i = 0; i < 4; i++) zt_tensor_release(t[i]);
  return st;
}

static zt_status all_blocks(void *user, zt_ctx *c, zt_tensor *const in[], int n_in, zt_tensor *out[], int n_out) {
  (void)n_in, (void)n_out;
  net *n = user;
  zt_tensor *h = zt_tensor_retain(in[0]), *y;
  for (int i = 0; i < N_BLOCKS; i++) {
    block b = {n, i};
    zt_status st = block_run(&b, c, &h, 1, &y, 1);
    zt_tensor_release(h);
    if (st != ZT_OK) return st;
    h = y;
  }
  out[0] = h;
  return ZT_OK;
}

static net net_new(zt_ctx *c) {
  net n = {0};
  int64_t square[2] = {WIDTH, WIDTH}, rows[2] = {ROWS, WIDTH};
  n.tied = random_tensor(c, 2, square);
  for (int i = 0; i < N_BLOCKS; i++) n.w[i] = random_tensor(c, 2, square);
  n.x = random_tensor(c, 2, rows);
  return n;
}

static void net_free(net *n) {
  zt_tensor_release(n->tied);
  zt_tensor_release(n->x);
  free_all(n->w, N_BLOCKS);
}

static void read_grads(zt_ctx *c, net *n, float *out) {
  zt_tensor *leaves[N_BLOCKS + 2] = {n->tied, n->x};
  memcpy(leaves + 2, n->w, sizeof n->w);
  for (int i = 0; i < N_BLOCKS + 2; i++) {
    assert_non_null(leaves[i]->grad);
    OK(zt_tensor_read(c, leaves[i]->grad, out));
    out += zt_tensor_count(leaves[i]);
    zt_tensor_release(leaves[i]->grad);
    leaves[i]->grad = NULL;
  }
}

enum { N_GRADS = (N_BLOCKS + 1) * WIDTH * WIDTH + ROWS * WIDTH, WHOLE = 16 };

/* Bit i of 'pattern': block i is checkpointed; WHOLE: one checkpoint around four inner ones. The head reads the tied
** weight once more, as a language model's does. */
static zt_status run_net(zt_ctx *c, net *n, int pattern) {
  zt_ctx_random(c)->call = 100;
  zt_tensor *h = zt_tensor_retain(n->x), *y, *z, *loss;
  zt_status st = ZT_OK;
  block blocks[N_BLOCKS];
  if (pattern == WHOLE) {
    st = zt_checkpoint_segment(c, (zt_segment){all_blocks, NULL, n}, &h, 1, &y, 1);
    zt_tensor_release(h);
    if (st != ZT_OK) return st;
    h = y;
  }
  for (int i = 0; i < N_BLOCKS && pattern != WHOLE; i++) {
    blocks[i] = (block){n, i};
    st = pattern >> i & 1 ? zt_checkpoint_segment(c, (zt_segment){block_run, NULL, &blocks[i]}, &h, 1, &y, 1)
                          : block_run(&blocks[i], c, &h, 1, &y, 1);
    zt_tensor_release(h);
    if (st != ZT_OK) return st;
    h = y;
  }
  st = zt_matmul(c, &z, h, n->tied);
  zt_tensor_release(h);
  if (st != ZT_OK) return st;
  st = zt_mean(c, &loss, z, ZT_ALL_DIMS, false);
  zt_tensor_release(z);
  if (st != ZT_OK) return st;
  st = zt_backward(c, loss, NULL, 1);
  zt_tensor_release(loss);
  return st;
}

static void checkpoints_change_no_bit(void **state) {
  (void)state;
  zt_ctx *c = new_ctx();
  net n = net_new(c);
  static float plain[N_GRADS], grads[N_GRADS];
  OK(run_net(c, &n, 0));
  read_grads(c, &n, plain);
  for (int pattern = 0; pattern <= WHOLE; pattern++) {
    memset(&n.finals, 0, sizeof n.finals);
    OK(run_net(c, &n, pattern));
    read_grads(c, &n, grads);
    if (memcmp(plain, grads, sizeof plain) != 0) fail_msg("pattern %d differs", pattern);
    assert_int_equal(zt_tape_length(c), 0);
  }
  net_free(&n);
  assert_int_equal(zt_pool_get_stats(zt_ctx_pool(c)).used_nbytes, 0);
  zt_ctx_free(c);
}

/* The tied weight's gradient, as it was when it was called final, is the whole one. */
static zt_status check_final(void *user, zt_ctx *c, zt_tensor *leaf) {
  finals *f = user;
  float first;
  f->leaf[f->count] = leaf;
  zt_tensor *corner;
  int64_t one[1] = {1};
  ZT_TRY(zt_tensor_view(leaf->grad->storage, ZT_F32, 1, one, one, 0, &corner));
  zt_status st = zt_tensor_read(c, corner, &first);
  zt_tensor_release(corner);
  f->grad[f->count++] = first;
  return st;
}

static void checkpoints_hold_their_leaves(void **state) {
  (void)state;
  zt_ctx *c = new_ctx();
  net n = net_new(c);
  static float grads[N_GRADS];
  zt_observer observer = {.final = check_final, .user = &n.finals};
  zt_ctx_add_observer(c, &observer);
  for (int pattern = 0; pattern <= WHOLE; pattern++) {
    memset(&n.finals, 0, sizeof n.finals);
    OK(run_net(c, &n, pattern));
    read_grads(c, &n, grads);
    int tied_at = -1, n_tied = 0;
    for (int i = 0; i < n.finals.count; i++)
      if (n.finals.leaf[i] == n.tied) tied_at = i, n_tied++;
    if (n_tied != 1 || n.finals.count != N_BLOCKS + 2)
      fail_msg("pattern %d: %d final, the tied weight %d times", pattern, n.finals.count, n_tied);
    assert_true((float)n.finals.grad[tied_at] == grads[0]);
  }
  net_free(&n);
  zt_ctx_free(c);
}

static void failing_allocations_end_cleanly(void **state) {
  (void)state;
  zt_ctx *c = new_ctx();
  net n = net_new(c);
  static float plain[N_GRADS], grads[N_GRADS];
  OK(run_net(c, &n, 5));
  read_grads(c, &n, plain);
  uint64_t live = zt_mem_get_stats().n_live_blocks;
  for (uint64_t at = 1;; at++) {
    zt_mem_fail_at(at, true);
    zt_status st = run_net(c, &n, 5);
    zt_mem_fail_at(0, false);
    if (st == ZT_OK) break;
    assert_int_equal(st, ZT_NOMEM);
    assert_int_equal(zt_tape_length(c), 0);
    zt_tensor *leaves[N_BLOCKS + 2] = {n.tied, n.x, n.w[0], n.w[1], n.w[2], n.w[3]};
    for (int i = 0; i < N_BLOCKS + 2; i++) {
      assert_int_equal(leaves[i]->n_uses, 0);
      zt_tensor_release(leaves[i]->grad);
      leaves[i]->grad = NULL;
    }
    if (zt_mem_get_stats().n_live_blocks > live + 4) /* pool blocks may be cut differently */
      fail_msg("failure %d: %d blocks more", (int)at, (int)(zt_mem_get_stats().n_live_blocks - live));
    assert_true(at < 10000);
  }
  read_grads(c, &n, grads);
  assert_memory_equal(plain, grads, sizeof plain); /* the next step works */
  net_free(&n);
  zt_ctx_free(c);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_leaf_used_twice_gets_the_sum),
      cmocka_unit_test(what_nobody_can_reach_leaves_the_tape),
      cmocka_unit_test(backward_frees_as_it_goes_and_runs_once),
      cmocka_unit_test(changes_after_saving_are_found),
      cmocka_unit_test(after_a_failure_the_tape_is_spent),
      cmocka_unit_test(without_gradients_nothing_is_recorded),
      cmocka_unit_test(a_gradient_is_final_after_its_last_use),
      cmocka_unit_test(checkpoints_change_no_bit),
      cmocka_unit_test(checkpoints_hold_their_leaves),
      cmocka_unit_test(failing_allocations_end_cleanly),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
