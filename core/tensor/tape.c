#include "core/tensor/tape.h"

#include <string.h>

#include "core/base/mem.h"
#include "core/tensor/ctx.h"

/* A node holds what it reads in two ways: 'from' are the edges along which gradients flow (leaves and computed tensors
** as headers with a node), 'call' holds the bytes that backward needs. A mark (segment.run set) has no call: its inputs
** are whole tensors, to be read again, and 'watch' are its edges. */
struct zt_node {
  uint32_t refs;
  uint64_t number; /* in order of execution, from 1 */
  zt_ctx *c;
  zt_node *prev, *next;
  bool reached, spent;
  zt_call call;
  uint32_t version[ZT_MAX_IN]; /* of in[i]'s storage when it was saved */
  zt_node *from_node[ZT_MAX_IN];
  int from_out[ZT_MAX_IN];
  zt_tensor *from_leaf[ZT_MAX_IN];
  zt_tensor *gout[ZT_MAX_OUT];
  zt_segment segment;
  zt_watch watch;
  zt_random random; /* a mark's random state before its run */
};

/* ---- the list */

static void tape_link(zt_ctx *c, zt_node *n) {
  n->c = c;
  n->number = ++c->tape.n_made;
  n->prev = c->tape.last;
  *(n->prev ? &n->prev->next : &c->tape.first) = n;
  c->tape.last = n;
  c->tape.length++;
}

static void tape_unlink(zt_node *n) {
  zt_tape *tape = &n->c->tape;
  *(n->prev ? &n->prev->next : &tape->first) = n->next;
  *(n->next ? &n->next->prev : &tape->last) = n->prev;
  tape->length--;
}

static void watch_clear(zt_watch *w) {
  for (size_t i = 0; i < w->count; i++) zt_tensor_release(w->read[i]);
  zt_free(w->read);
  *w = (zt_watch){0};
}

/* Gives up everything that backward would need; the edges stay until the node goes. */
static void drop_saved(zt_node *n) {
  for (int i = 0; i < ZT_MAX_IN; i++) zt_tensor_release(n->call.in[i]), n->call.in[i] = NULL;
  for (int i = 0; i < ZT_MAX_OUT; i++) {
    zt_tensor_release(n->call.out[i]), n->call.out[i] = NULL;
    zt_tensor_release(n->gout[i]), n->gout[i] = NULL;
  }
  if (n->segment.release) n->segment.release(n->segment.user);
  n->segment.release = NULL;
}

static void drop_edges(zt_node *n) {
  for (int i = 0; i < ZT_MAX_IN; i++) {
    zt_tensor_release(n->from_leaf[i]), n->from_leaf[i] = NULL;
    if (n->from_node[i]) zt_node_release(n->from_node[i]), n->from_node[i] = NULL;
  }
  watch_clear(&n->watch);
}

/* A long chain must not become a deep recursion: a node that dies while another one is being freed waits its turn.
** 'next' links the waiting ones, for they have left the tape. */
void zt_node_release(zt_node *node) {
  if (--node->refs) return;
  zt_tape *tape = &node->c->tape;
  tape_unlink(node);
  node->next = tape->waiting;
  tape->waiting = node;
  if (tape->freeing) return;
  tape->freeing = true;
  while (tape->waiting) {
    zt_node *n = tape->waiting;
    tape->waiting = n->next;
    drop_saved(n);
    drop_edges(n);
    zt_free(n);
  }
  tape->freeing = false;
}

/* ---- recording */

static zt_status save(const zt_tensor *t, bool bytes, zt_tensor **out) {
  return bytes ? zt_tensor_alias(t, out) : zt_tensor_shape_only(t, out);
}

static zt_status save_call(zt_node *n, const zt_call *call) {
  n->call = *call;
  memset(n->call.in, 0, sizeof n->call.in);
  memset(n->call.out, 0, sizeof n->call.out);
  for (int i = 0; i < call->n_in; i++) {
    if (!call->in[i]) continue;
    ZT_TRY(save(call->in[i], call->save_in >> i & 1, &n->call.in[i]));
    n->version[i] = call->in[i]->storage->version;
  }
  for (int i = 0; i < call->n_out; i++) ZT_TRY(save(call->out[i], call->save_out >> i & 1, &n->call.out[i]));
  return ZT_OK;
}

static void tie_edge(zt_node *n, int i, zt_tensor *in) {
  if (in->node) {
    n->from_node[i] = in->node;
    n->from_out[i] = in->node_out;
    in->node->refs++;
  } else {
    n->from_leaf[i] = zt_tensor_retain(in);
  }
}

static void tie_output(zt_node *n, zt_tensor *out, int number) {
  if (!zt_dtype_is_float(out->dtype)) return;
  n->refs++;
  out->node = n;
  out->node_out = number;
}

static zt_status node_new(zt_ctx *c, zt_node **out) {
  *out = zt_calloc(1, sizeof **out);
  ZT_CHECK_ALLOC(*out);
  (*out)->refs = 1;
  tape_link(c, *out);
  return ZT_OK;
}

zt_status zt_tape_record(zt_ctx *c, const zt_call *call) {
  zt_node *n;
  ZT_TRY(node_new(c, &n));
  zt_status st = save_call(n, call);
  if (st == ZT_OK) {
    for (int i = 0; i < call->n_in; i++)
      if (call->needs_grad >> i & 1) tie_edge(n, i, call->in[i]);
    for (int i = 0; i < call->op->n_out; i++) tie_output(n, call->out[i], i);
  }
  zt_node_release(n); /* the outputs hold it now */
  return st;
}

static zt_status watch_add(zt_watch *w, zt_tensor *t) {
  for (size_t i = 0; i < w->count; i++)
    if (w->read[i] == t) return ZT_OK;
  if (w->count == w->capacity) {
    size_t capacity = w->capacity ? 2 * w->capacity : 16;
    zt_tensor **read = zt_realloc(w->read, capacity * sizeof *read);
    ZT_CHECK_ALLOC(read);
    w->read = read, w->capacity = capacity;
  }
  w->read[w->count++] = zt_tensor_retain(t);
  return ZT_OK;
}

zt_status zt_watch_inputs(zt_ctx *c, const zt_call *call) {
  if (!call->op->backward) return ZT_OK;
  for (zt_watch *w = c->watch; w; w = w->outer)
    for (int i = 0; i < call->n_in; i++)
      if (call->in[i] && zt_wants_grad(call->in[i])) ZT_TRY(watch_add(w, call->in[i]));
  return ZT_OK;
}

/* ---- delivering gradients */

static bool is_own(const zt_tensor *t) { return t->refs == 1 && t->storage->refs == 1 && zt_tensor_is_contiguous(t); }

static zt_status add_tensors(zt_ctx *c, zt_tensor *y, zt_tensor *a, zt_tensor *b) {
  zt_loop loop;
  zt_tensor *in[2] = {a, b};
  ZT_TRY(zt_loop_make(&loop, y, in, 2));
  return zt_k(c)->binary(zt_s(c), ZT_BINARY_ADD, y->dtype, zt_tensor_data(y), zt_tensor_data(a), zt_tensor_data(b),
                         &loop);
}

/* *slot += g, in place where one of the two belongs to nobody else. Takes over g, also on failure. */
static zt_status accumulate(zt_ctx *c, zt_tensor **slot, zt_tensor *g) {
  if (!*slot) {
    *slot = g;
    return ZT_OK;
  }
  zt_tensor *y = NULL;
  zt_status st = ZT_OK;
  if (is_own(*slot))
    y = zt_tensor_retain(*slot);
  else if (is_own(g))
    y = zt_tensor_retain(g);
  else
    st = zt_tensor_like(c, g, &y);
  if (st == ZT_OK) st = add_tensors(c, y, *slot, g);
  zt_tensor_release(g);
  if (st == ZT_OK) {
    zt_tensor_release(*slot);
    *slot = y;
  } else {
    zt_tensor_release(y);
  }
  return st;
}

/* A leaf keeps its gradient, so it must be its own: contiguous bytes that nobody else holds, counted as gradients. */
static zt_status adopt(zt_ctx *c, zt_tensor **g) {
  if (is_own(*g) && (*g)->storage->block) {
    zt_block_set_kind(c->pool, (*g)->storage->block, ZT_MEM_GRADIENT);
    return ZT_OK;
  }
  zt_tensor *own;
  zt_mem_kind was = zt_ctx_set_mem_kind(c, ZT_MEM_GRADIENT);
  zt_status st = zt_tensor_like(c, *g, &own);
  zt_ctx_set_mem_kind(c, was);
  if (st == ZT_OK) {
    st = zt_copy_(c, own, *g);
    if (st != ZT_OK) zt_tensor_release(own);
  }
  zt_tensor_release(*g);
  *g = st == ZT_OK ? own : NULL;
  return st;
}

static zt_status deliver_to_leaf(zt_ctx *c, zt_tensor *leaf, zt_tensor *g) {
  if (!leaf->grad) ZT_TRY(adopt(c, &g));
  return accumulate(c, &leaf->grad, g);
}

/* One use of a leaf has delivered. */
static zt_status use_done(zt_ctx *c, zt_tensor *leaf) {
  if (--leaf->n_uses) return ZT_OK;
  for (const zt_observer *o = c->observers; o; o = o->next) ZT_TRY(o->final(o->user, c, leaf));
  return ZT_OK;
}

/* ---- backward */

static bool is_mark(const zt_node *n) { return n->segment.run != NULL; }

static zt_status reach(zt_node *n, uint64_t base) {
  if (n->reached) return ZT_OK;
  if (n->number <= base) return zt_fail(ZT_STATE, "checkpoint: the segment read another tensor when it ran again");
  if (n->spent)
    return zt_fail(ZT_STATE, "backward: what '%s' saved was freed by an earlier backward through it",
                   is_mark(n) ? "checkpoint" : n->call.op->name);
  n->reached = true;
  n->refs++;
  return ZT_OK;
}

static zt_status reach_tensor(zt_tensor *t, uint64_t base) {
  if (t->node) return reach(t->node, base);
  t->n_uses++;
  return ZT_OK;
}

/* From the reached nodes at 'from' and before, down to 'base': reaches what they read and counts the uses of leaves. */
static zt_status reach_all(zt_node *from, uint64_t base) {
  for (zt_node *n = from; n && n->number > base; n = n->prev) {
    if (!n->reached) continue;
    for (int i = 0; i < ZT_MAX_IN; i++) {
      if (n->from_node[i]) ZT_TRY(reach(n->from_node[i], base));
      if (n->from_leaf[i]) n->from_leaf[i]->n_uses++;
    }
    for (size_t i = 0; i < n->watch.count; i++) ZT_TRY(reach_tensor(n->watch.read[i], base));
  }
  return ZT_OK;
}

/* Gives up what a reached node still holds. Returns the node before it, which is read last: giving up what n saved may
** free nodes that n did not reach. */
static zt_node *spend(zt_node *n) {
  n->reached = false, n->spent = true;
  drop_saved(n);
  drop_edges(n);
  zt_node *prev = n->prev;
  zt_node_release(n);
  return prev;
}

/* After a failure: forgets what reach_all noted and what has been delivered so far. */
static void abandon(zt_node *from, uint64_t base) {
  for (zt_node *n = from, *prev; n && n->number > base; n = prev) {
    prev = n->prev;
    if (!n->reached) continue;
    for (int i = 0; i < ZT_MAX_IN; i++)
      if (n->from_leaf[i]) n->from_leaf[i]->n_uses = 0;
    for (size_t i = 0; i < n->watch.count; i++) n->watch.read[i]->n_uses = 0;
    prev = spend(n);
  }
}

static zt_status check_versions(const zt_node *n) {
  for (int i = 0; i < n->call.n_in; i++) {
    const zt_tensor *t = n->call.in[i];
    if (t && t->storage && t->storage->version != n->version[i])
      return zt_fail(ZT_STATE, "backward: input %d %s of '%s' was changed in place after it was saved", i + 1,
                     zt_shape_text(t), n->call.op->name);
  }
  return ZT_OK;
}

static zt_status deliver(zt_node *n, int i, zt_tensor *g) {
  if (n->from_node[i]) return g ? accumulate(n->c, &n->from_node[i]->gout[n->from_out[i]], g) : ZT_OK;
  if (g) ZT_TRY(deliver_to_leaf(n->c, n->from_leaf[i], g));
  return use_done(n->c, n->from_leaf[i]);
}

static bool has_gradient(const zt_node *n) {
  for (int i = 0; i < ZT_MAX_OUT; i++)
    if (n->gout[i]) return true;
  return false;
}

/* Gradients that wait where n's are going and belong to nobody else: backward may add to them. */
static void find_accumulators(zt_node *n) {
  for (int i = 0; i < ZT_MAX_IN; i++) {
    zt_tensor *g = n->from_node[i]   ? n->from_node[i]->gout[n->from_out[i]]
                   : n->from_leaf[i] ? n->from_leaf[i]->grad
                                     : NULL;
    n->call.accum[i] = g && is_own(g) ? g : NULL;
    for (int k = 0; k < i; k++) /* one tensor read twice: the second delivery is an ordinary one */
      if (n->call.accum[k] == g) n->call.accum[i] = NULL;
  }
}

static zt_status run_rule(zt_node *n, zt_tensor *gin[]) {
  ZT_TRY(zt_pin_all(n->call.in, ZT_MAX_IN));
  zt_status st = zt_pin_all(n->call.out, ZT_MAX_OUT);
  if (st == ZT_OK) {
    st = zt_wrap(n->call.op->backward(n->c, &n->call, n->gout, gin), "backward of %s", n->call.op->name);
    zt_unpin_all(n->call.out, ZT_MAX_OUT);
  }
  zt_unpin_all(n->call.in, ZT_MAX_IN);
  return st;
}

/* Gives up the gradients that arrived before it hands on its own, so that these can be added in place. */
static zt_status run_op(zt_node *n) {
  zt_tensor *gin[ZT_MAX_IN] = {NULL};
  zt_status st = ZT_OK;
  if (has_gradient(n)) {
    ZT_TRY(check_versions(n));
    find_accumulators(n);
    st = run_rule(n, gin);
  }
  drop_saved(n);
  for (int i = 0; i < ZT_MAX_IN; i++) {
    bool wanted = n->from_node[i] || n->from_leaf[i];
    if (st == ZT_OK && wanted)
      st = deliver(n, i, gin[i]);
    else
      zt_tensor_release(gin[i]);
  }
  return st;
}

static zt_status sweep(zt_ctx *c, zt_node *from, uint64_t base);

/* Hands the gradients that arrived at the mark to the outputs of the second run. */
static zt_status seed_outputs(zt_node *n, zt_tensor *const out[]) {
  for (int i = 0; i < n->call.n_out; i++) {
    zt_tensor *g = n->gout[i];
    n->gout[i] = NULL;
    if (!g) continue;
    zt_status st = ZT_OK;
    if (out[i]->node)
      st = accumulate(n->c, &out[i]->node->gout[out[i]->node_out], g);
    else if (out[i]->requires_grad)
      st = deliver_to_leaf(n->c, out[i], g);
    else
      zt_tensor_release(g);
    ZT_TRY(st);
  }
  return ZT_OK;
}

static zt_status rerun(zt_node *n, zt_tensor *out[]) {
  zt_ctx *c = n->c;
  zt_random random = c->random;
  c->random = n->random;
  bool grad = zt_ctx_set_grad_enabled(c, true);
  zt_status st = n->segment.run(n->segment.user, c, n->call.in, n->call.n_in, out, n->call.n_out);
  zt_ctx_set_grad_enabled(c, grad);
  c->random = random;
  return st;
}

/* The gradients that arrived are those of the first run's outputs. */
static zt_status check_same_outputs(const zt_node *n, zt_tensor *const out[]) {
  for (int i = 0; i < n->call.n_out; i++) {
    const zt_tensor *g = n->gout[i], *y = out[i];
    if (g && !y)
      return zt_fail(ZT_STATE, "checkpoint: output %d %s is missing in the second run", i + 1, zt_shape_text(g));
    if (g && (!zt_tensor_same_shape(g, y) || g->dtype != y->dtype))
      return zt_fail(ZT_STATE, "checkpoint: output %d was %s %s, in the second run it is %s %s", i + 1,
                     zt_dtype_name(g->dtype), zt_shape_text(g), zt_dtype_name(y->dtype), zt_shape_text(y));
  }
  return ZT_OK;
}

static zt_status back_through(zt_node *n, zt_tensor *const out[], uint64_t base) {
  zt_ctx *c = n->c;
  zt_status st = check_same_outputs(n, out);
  for (int i = 0; i < n->call.n_out && st == ZT_OK; i++)
    if (n->gout[i] && out[i]->node && out[i]->node->number > base) st = reach(out[i]->node, base);
  zt_node *last = c->tape.last;
  if (st == ZT_OK) st = reach_all(last, base);
  if (st == ZT_OK) st = seed_outputs(n, out);
  if (st == ZT_OK) return sweep(c, last, base);
  abandon(last, base);
  return st;
}

/* Runs the segment again, recording behind the end of the tape, and goes back through what it recorded. The inputs are
** the original tensors, so gradients arrive where they would have without the checkpoint, in the same order. */
static zt_status run_mark(zt_node *n) {
  zt_status st = ZT_OK;
  if (has_gradient(n)) {
    zt_tensor *out[ZT_MAX_OUT] = {NULL};
    uint64_t base = n->c->tape.n_made;
    st = rerun(n, out);
    if (st == ZT_OK) st = back_through(n, out, base);
    for (int i = 0; i < n->call.n_out; i++) zt_tensor_release(out[i]);
  }
  drop_saved(n);
  for (size_t i = 0; i < n->watch.count && st == ZT_OK; i++)
    if (!n->watch.read[i]->node) st = use_done(n->c, n->watch.read[i]);
  return st;
}

/* Runs the reached nodes from 'from' down to 'base'; each is spent after it. */
static zt_status sweep(zt_ctx *c, zt_node *from, uint64_t base) {
  bool grad = zt_ctx_set_grad_enabled(c, false);
  zt_status st = ZT_OK;
  for (zt_node *n = from, *prev; n && n->number > base; n = prev) {
    if (n->reached) {
      st = is_mark(n) ? run_mark(n) : run_op(n);
      if (st != ZT_OK) {
        abandon(n, base);
        break;
      }
      prev = spend(n);
    } else {
      prev = n->prev;
    }
  }
  zt_ctx_set_grad_enabled(c, grad);
  return st;
}

/* The gradient that backward starts from, owned. */
static zt_status seed_gradient(zt_ctx *c, zt_tensor *loss, zt_tensor *grad, double seed, zt_tensor **out) {
  *out = NULL;
  if (grad) {
    if (!zt_tensor_same_shape(grad, loss) || grad->dtype != loss->dtype)
      return zt_fail(ZT_SHAPE, "backward: the gradient is %s %s, the tensor %s %s", zt_dtype_name(grad->dtype),
                     zt_shape_text(grad), zt_dtype_name(loss->dtype), zt_shape_text(loss));
    *out = zt_tensor_retain(grad);
    return ZT_OK;
  }
  if (zt_tensor_count(loss) != 1)
    return zt_fail(ZT_SHAPE, "backward: a tensor of one element is needed, or a gradient for %s", zt_shape_text(loss));
  ZT_TRY(zt_tensor_like(c, loss, out));
  return zt_fill_(c, *out, seed);
}

static zt_status tell_begin(zt_ctx *c, zt_node *from) {
  c->tape.backward_from = from;
  for (const zt_observer *o = c->observers; o; o = o->next)
    if (o->begin) ZT_TRY(o->begin(o->user, c));
  return ZT_OK;
}

static zt_status tell_end(zt_ctx *c) {
  for (const zt_observer *o = c->observers; o; o = o->next)
    if (o->end) ZT_TRY(o->end(o->user, c));
  return ZT_OK;
}

static zt_status backward(zt_ctx *c, zt_tensor *loss, zt_tensor *grad, double seed) {
  zt_tensor *g;
  zt_status st = seed_gradient(c, loss, grad, seed, &g);
  if (st != ZT_OK) {
    zt_tensor_release(g);
    return st;
  }
  if (!loss->node) {
    loss->n_uses++;
    st = tell_begin(c, NULL);
    if (st != ZT_OK)
      zt_tensor_release(g);
    else
      st = deliver_to_leaf(c, loss, g);
    if (st == ZT_OK) return use_done(c, loss);
    loss->n_uses = 0;
    return st;
  }
  zt_node *from = loss->node;
  st = reach(from, 0);
  if (st == ZT_OK) st = reach_all(from, 0);
  if (st == ZT_OK)
    st = accumulate(c, &from->gout[loss->node_out], g);
  else
    zt_tensor_release(g);
  if (st == ZT_OK) st = tell_begin(c, from);
  if (st == ZT_OK) return sweep(c, from, 0);
  abandon(from, 0);
  return st;
}

static void visit_all(zt_tensor *const t[], int n, zt_tape_visit visit, void *user) {
  for (int i = 0; i < n; i++)
    if (t[i] && t[i]->storage) visit(user, t[i]);
}

void zt_tape_reads(const zt_ctx *c, zt_tape_visit visit, void *user) {
  for (const zt_node *n = c->tape.backward_from; n; n = n->prev) {
    if (!n->reached) continue;
    if (is_mark(n)) {
      for (size_t i = 0; i < n->watch.count; i++) visit_all(&n->watch.read[i], 1, visit, user);
      for (size_t i = n->watch.count; i-- > 0;) visit_all(&n->watch.read[i], 1, visit, user);
    } else {
      visit_all(n->call.in, ZT_MAX_IN, visit, user);
      visit_all(n->call.out, ZT_MAX_OUT, visit, user);
    }
  }
}

zt_status zt_backward(zt_ctx *c, zt_tensor *loss, zt_tensor *grad, double seed) {
  if (c->tape.in_backward)
    return zt_fail(ZT_STATE, "backward of %s: another one is going on; a checkpointed segment cannot start one",
                   zt_shape_text(loss));
  if (!zt_wants_grad(loss))
    return zt_fail(ZT_STATE, "backward: nothing that %s was computed from requires a gradient", zt_shape_text(loss));
  c->tape.in_backward = true;
  zt_status st = backward(c, loss, grad, seed);
  if (st == ZT_OK) st = tell_end(c);
  c->tape.in_backward = false;
  return st;
}

/* ---- checkpointed segments */

/* The first run: gradients off, every tensor from outside noted in 'watch'. */
static zt_status first_run(zt_ctx *c, const zt_segment *s, zt_watch *watch, zt_tensor *const in[], int n_in,
                           zt_tensor *out[], int n_out) {
  watch->outer = c->watch;
  c->watch = watch;
  bool grad = zt_ctx_set_grad_enabled(c, false);
  zt_status st = s->run(s->user, c, in, n_in, out, n_out);
  zt_ctx_set_grad_enabled(c, grad);
  c->watch = watch->outer;
  watch->outer = NULL;
  return st;
}

/* An output may be an input, or used elsewhere: the node's outputs are headers of their own. */
static zt_status own_outputs(zt_node *n, zt_tensor *out[], int n_out) {
  for (int i = 0; i < n_out; i++) {
    zt_tensor *own;
    if (!out[i]) continue;
    ZT_TRY(zt_tensor_alias(out[i], &own));
    zt_tensor_release(out[i]);
    out[i] = own;
  }
  for (int i = 0; i < n_out; i++)
    if (out[i]) tie_output(n, out[i], i);
  return ZT_OK;
}

static zt_status mark_new(zt_ctx *c, zt_node **out, zt_tensor *const in[], int n_in, int n_out) {
  ZT_TRY(node_new(c, out));
  zt_node *n = *out;
  n->random = c->random;
  n->call.n_in = n_in, n->call.n_out = n_out;
  for (int i = 0; i < n_in; i++) n->call.in[i] = in[i] ? zt_tensor_retain(in[i]) : NULL;
  return ZT_OK;
}

static zt_status record_segment(zt_ctx *c, zt_segment *s, zt_tensor *const in[], int n_in, zt_tensor *out[],
                                int n_out) {
  zt_node *n;
  ZT_TRY(mark_new(c, &n, in, n_in, n_out));
  zt_status st = first_run(c, s, &n->watch, in, n_in, out, n_out);
  for (int i = 0; i < n_out && st == ZT_OK; i++) /* an output that was passed through is read, too */
    if (out[i] && zt_wants_grad(out[i])) st = watch_add(&n->watch, out[i]);
  if (st == ZT_OK && n->watch.count) {
    n->segment = *s;
    s->release = NULL;
    st = own_outputs(n, out, n_out);
  }
  zt_node_release(n);
  return st;
}

zt_status zt_checkpoint_segment(zt_ctx *c, zt_segment segment, zt_tensor *const in[], int n_in, zt_tensor *out[],
                                int n_out) {
  zt_status st = ZT_OK;
  memset(out, 0, (size_t)n_out * sizeof *out);
  if (n_in > ZT_MAX_IN || n_out > ZT_MAX_OUT)
    st = zt_fail(ZT_INVALID, "checkpoint: %d tensors in and %d out, at most %d and %d are possible", n_in, n_out,
                 ZT_MAX_IN, ZT_MAX_OUT);
  else if (!c->grad_enabled)
    st = segment.run(segment.user, c, in, n_in, out, n_out);
  else
    st = record_segment(c, &segment, in, n_in, out, n_out);
  if (segment.release) segment.release(segment.user);
  for (int i = 0; i < n_out && st != ZT_OK; i++) zt_tensor_release(out[i]), out[i] = NULL;
  return zt_wrap(st, "checkpoint");
}
