/* engine.c - the engine's life, and a step: agreeing on its gradients, then the optimizer where its state lives. */
#include "core/train/engine.h"

#include <math.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/tensor/late.h"
#include "core/train/parts.h"

/* --- life */

static zt_status check_options(const zt_engine_options *o) {
  if (o->stage < 0 || o->stage > 3) return zt_fail(ZT_INVALID, "ZeRO stage %d; there are 0, 1, 2 and 3", o->stage);
  if (o->micro_steps < 1)
    return zt_fail(ZT_INVALID, "gradients of %lld micro-steps make a step; 1 is the least", (long long)o->micro_steps);
  return ZT_OK;
}

zt_status zt_engine_new(zt_ctx *c, const zt_engine_options *options, zt_engine **out) {
  *out = NULL;
  ZT_TRY(check_options(options));
  zt_engine *e = zt_calloc(1, sizeof *e);
  ZT_CHECK_ALLOC(e);
  zt_status st;
  e->c = c, e->options = *options;
  e->world = zt_ctx_world(c);
  e->rank = zt_world_rank(e->world), e->size = zt_world_size(e->world);
  e->scale = 1;
  ZT_TRY_GOTO(zt_ctx_queue(c, &e->queue), fail);
  e->counts = zt_calloc((size_t)e->size, sizeof *e->counts);
  e->weights = zt_calloc((size_t)e->size, sizeof *e->weights);
  st = e->counts && e->weights ? ZT_OK : ZT_NOMEM;
  if (st != ZT_OK) goto fail;
  *out = e;
  return ZT_OK;
fail:
  zt_engine_free(e);
  return st;
}

void zt_engine_free(zt_engine *e) {
  if (!e) return;
  zt_ctx_remove_observer(e->c, &e->observer);
  if (e->queue) zt_queue_drain(e->queue);
  zt_reduce_free(e);
  for (int i = 0; i < e->n_pages; i++) zt_wait_transfer(&e->pages[i].gather);
  zt_pages_free(e);
  zt_pager_free(e);
  for (int i = 0; i < e->n_params; i++) {
    zt_tensor_release(e->params[i].tensor);
    zt_free(e->params[i].name);
  }
  zt_free(e->params);
  zt_free(e->counts);
  zt_free(e->weights);
  zt_free(e);
}

static zt_status check_param(const zt_engine *e, const char *name, const zt_tensor *t, zt_dtype dtype) {
  if (e->built) return zt_fail(ZT_STATE, "%s: the engine is built already", name);
  if (t->node || !zt_tensor_is_contiguous(t) || !zt_dtype_is_float(t->dtype) || !zt_dtype_is_float(dtype))
    return zt_fail(ZT_INVALID, "%s: a parameter is a contiguous float leaf, this is %s %s", name,
                   zt_dtype_name(t->dtype), zt_shape_text(t));
  if (zt_engine_of(t)) return zt_fail(ZT_STATE, "%s: the parameter is in an engine already", name);
  for (int i = 0; i < e->n_params; i++) {
    if (e->params[i].tensor == t) return zt_fail(ZT_INVALID, "%s and %s are one parameter", e->params[i].name, name);
    if (strcmp(e->params[i].name, name) == 0) return zt_fail(ZT_INVALID, "there are two parameters '%s'", name);
  }
  return ZT_OK;
}

static zt_status make_place(zt_engine *e) {
  if (e->n_params < e->params_capacity) return ZT_OK;
  int capacity = e->params_capacity ? 2 * e->params_capacity : 64;
  zt_param *params = zt_realloc(e->params, (size_t)capacity * sizeof *params);
  ZT_CHECK_ALLOC(params);
  e->params = params, e->params_capacity = capacity;
  return ZT_OK;
}

zt_status zt_engine_add(zt_engine *e, const char *name, zt_tensor *tensor, zt_dtype dtype, int optimizer, int group) {
  ZT_TRY(check_param(e, name, tensor, dtype));
  if (!zt_tensor_is_late(tensor)) { /* a view of a late one has to come into being */
    ZT_TRY(zt_storage_pin(tensor->storage));
    zt_storage_unpin(tensor->storage);
  }
  ZT_TRY(make_place(e));
  char *copy = zt_strdup(name);
  ZT_CHECK_ALLOC(copy);
  e->params[e->n_params++] = (zt_param){.tensor = zt_tensor_retain(tensor),
                                        .name = copy,
                                        .dtype = dtype,
                                        .optimizer = optimizer,
                                        .group = group,
                                        .count = zt_tensor_count(tensor)};
  return ZT_OK;
}

static size_t default_limit(const zt_engine *e) {
  size_t largest = 0, second = 0;
  for (int i = 0; i < e->n_pages; i++) {
    size_t nbytes = e->pages[i].bytes->nbytes;
    if (nbytes > largest)
      second = largest, largest = nbytes;
    else if (nbytes > second)
      second = nbytes;
  }
  return largest + 2 * second;
}

zt_status zt_engine_build(zt_engine *e) {
  if (e->built) return zt_fail(ZT_STATE, "the engine is built already");
  ZT_TRY(zt_pages_build(e));
  e->resident_limit = e->options.resident_nbytes ? e->options.resident_nbytes : default_limit(e);
  zt_pager_forward(e);
  e->observer = (zt_observer){zt_reduce_begin, zt_reduce_final, zt_reduce_end, e, NULL};
  zt_ctx_add_observer(e->c, &e->observer);
  e->built = true;
  return ZT_OK;
}

/* --- agreeing on the gradients */

/* What each rank says at the end of a step. */
typedef struct control_word {
  zt_exact squares; /* of its shard's sums */
  int64_t count;
  uint64_t hash; /* of the collectives so far */
  uint32_t flags;
  zt_bad bad;
} control_word;

/* Where only a sum is not finite. */
enum { NO_ORDER = 0 };
static const int64_t only_the_sum = INT64_MAX;

static zt_dtype grad_dtype(const zt_page *p) { return p->grad_state == ZT_GRAD_OWN ? p->dtype : zt_acc_dtype(p); }

/* The page's element that the first one in 'grad' is. */
static int64_t grad_begin(const zt_page *p) {
  return (int64_t)(p->grad->nbytes / zt_dtype_nbytes(grad_dtype(p))) == p->count ? 0 : zt_shard_begin(p);
}

static const void *grad_at(const zt_page *p, int64_t at) {
  return (const char *)p->grad->data + (size_t)(at - grad_begin(p)) * zt_dtype_nbytes(grad_dtype(p));
}

static zt_status add_squares(zt_engine *e, int i, control_word *word) {
  const zt_param *param = &e->params[i];
  const zt_page *p = zt_page_of(e, param);
  int64_t from, to;
  if (!zt_overlap(param, zt_shard_begin(p), p->shard_count, &from, &to)) return ZT_OK;
  size_t first_bad, count = (size_t)(to - from);
  ZT_TRY(zt_k(e->c)->sum_squares(zt_s(e->c), grad_dtype(p), &word->squares, &first_bad, grad_at(p, from), count));
  if (first_bad < count && !word->bad.micro)
    word->bad = (zt_bad){only_the_sum, NO_ORDER, i, from - param->offset + (int64_t)first_bad};
  return ZT_OK;
}

static zt_status own_word(zt_engine *e, control_word *word) {
  memset(word, 0, sizeof *word); /* all of it travels */
  word->count = e->count, word->bad = e->bad;
  word->flags = e->options.flags ? e->options.flags(e->options.flags_user) : 0;
  word->hash = zt_comm_get_stats(e->world).hash;
  for (int i = 0; i < e->n_params; i++) {
    const zt_page *p = zt_page_of(e, &e->params[i]);
    if (p->trainable && p->grad_state != ZT_GRAD_NONE) ZT_TRY(add_squares(e, i, word));
  }
  return ZT_OK;
}

static bool is_before(const zt_bad *a, const zt_bad *b) {
  if (!a->micro || !b->micro) return a->micro != 0;
  return a->micro != b->micro ? a->micro < b->micro : a->order < b->order;
}

static void take_bad(const zt_engine *e, zt_bad bad, int rank, zt_engine_result *out) {
  bool sum = bad.micro == only_the_sum;
  out->bad = e->params[bad.param].name;
  out->bad_element = bad.element;
  out->bad_micro = sum ? 0 : bad.micro;
  out->bad_rank = sum ? -1 : rank;
}

static bool keeps_own(const zt_engine *e) {
  for (int i = 0; i < e->n_pages; i++)
    if (e->pages[i].grad_state == ZT_GRAD_OWN) return true;
  return false;
}

/* What the gradients as they are held have to be multiplied by. */
static double unscale(const zt_engine *e) {
  if (!e->result.count) return 0;
  return 1 / (e->scale * (keeps_own(e) ? 1 : (double)e->result.count));
}

static zt_status merge(zt_engine *e, const control_word words[]) {
  zt_exact sum = words[0].squares;
  zt_bad bad = words[0].bad;
  int bad_rank = 0;
  e->result = (zt_engine_result){.count = words[0].count, .flags = words[0].flags};
  for (int r = 1; r < e->size; r++) {
    if (words[r].hash != words[0].hash)
      return zt_fail(ZT_PEER, "ranks 0 and %d have not done the same collectives since the last step", r);
    zt_exact_merge(&sum, &words[r].squares);
    e->result.count += words[r].count, e->result.flags |= words[r].flags;
    if (is_before(&words[r].bad, &bad)) bad = words[r].bad, bad_rank = r;
  }
  e->result.norm = sqrt(zt_exact_value(&sum)) * unscale(e);
  if (bad.micro) take_bad(e, bad, bad_rank, &e->result);
  return ZT_OK;
}

static zt_status exchange(zt_engine *e, control_word words[]) {
  zt_label label = zt_label_here(e->world, "control word", -1, NULL);
  ZT_TRY(own_word(e, &words[e->rank]));
  ZT_TRY(zt_all_gather(e->world, &label, words, sizeof *words));
  return merge(e, words);
}

void zt_engine_set_closing(zt_engine *e, bool closing) { e->closing = closing; }

zt_status zt_engine_finish(zt_engine *e, zt_engine_result *out) {
  if (!e->finished) {
    ZT_TRY(e->failed);
    ZT_TRY(zt_reduce_finish(e));
    ZT_TRY(zt_queue_drain(e->queue));
    control_word *words = zt_calloc((size_t)e->size, sizeof *words);
    ZT_CHECK_ALLOC(words);
    zt_status st = exchange(e, words);
    zt_free(words);
    ZT_TRY(st);
    e->finished = true;
  }
  zt_engine_micro_end(e);
  *out = e->result;
  return ZT_OK;
}

/* --- whole gradients, for those who need all of a page */

static zt_status gather_gradients(void *user) {
  zt_transfer *t = user;
  const zt_page *p = t->page;
  const zt_engine *e = p->engine;
  size_t nbytes = (size_t)p->shard_count * zt_dtype_nbytes(zt_acc_dtype(p));
  zt_storage *whole = t->recv ? t->recv : p->grad;
  if (t->recv)
    ZT_TRY(zt_copy_range(p->engine, (char *)whole->data + (size_t)e->rank * nbytes, grad_at(p, zt_shard_begin(p)),
                         nbytes));
  return zt_all_gather(e->world, &t->label, whole->data, nbytes);
}

/* Sums that are whole on this rank are gathered where they are, for only their own shard is the sum over ranks; others in
** 'buffer'. */
static bool needs_buffer(const zt_engine *e) { return e->options.accumulate == ZT_ACCUMULATE_SHARDED; }

static zt_status begin_whole(zt_page *p, zt_transfer *t, zt_storage *buffer) {
  zt_engine *e = p->engine;
  *t = (zt_transfer){.page = p, .label = zt_page_label(p, "whole gradients of page")};
  if (buffer) t->recv = zt_storage_retain(buffer);
  e->n_gathers++;
  return zt_queue_submit(e->queue, gather_gradients, t, &t->ticket);
}

static const void *whole_at(const zt_page *p, const zt_storage *whole, int64_t at) {
  if (!whole) return grad_at(p, at);
  return (const char *)whole->data + (size_t)at * zt_dtype_nbytes(zt_acc_dtype(p));
}

static zt_status gradient_from(zt_engine *e, const zt_param *param, const zt_storage *whole, zt_tensor **out) {
  const zt_page *p = zt_page_of(e, param);
  zt_tensor *t = param->tensor;
  zt_dtype acc = zt_acc_dtype(p), from = whole ? acc : grad_dtype(p);
  size_t count = (size_t)param->count;
  ZT_TRY(zt_tensor_new(e->c, out, acc, t->ndim, t->shape));
  zt_status st =
      zt_k(e->c)->cast(zt_s(e->c), acc, from, zt_tensor_data(*out), whole_at(p, whole, param->offset), count);
  if (st == ZT_OK) st = zt_mul_(e->c, *out, unscale(e));
  if (st != ZT_OK) zt_tensor_release(*out), *out = NULL;
  return st;
}

zt_status zt_engine_gradient(zt_engine *e, const zt_tensor *tensor, zt_tensor **out) {
  *out = NULL;
  const zt_param *param = zt_find_param(e, tensor);
  if (!param || !(e->finished || e->closing)) return ZT_OK;
  zt_engine_result result;
  ZT_TRY(zt_engine_finish(e, &result));
  zt_page *p = zt_page_of(e, param);
  if (!p->trainable || p->grad_state == ZT_GRAD_NONE) return ZT_OK;
  if (e->size == 1) return gradient_from(e, param, NULL, out);
  zt_transfer t;
  zt_storage *whole = NULL;
  if (needs_buffer(e)) ZT_TRY(zt_page_buffer(p, zt_acc_dtype(p), p->count, ZT_MEM_COMMUNICATION, &whole));
  zt_status st = begin_whole(p, &t, whole), waited = zt_wait_transfer(&t);
  if (st == ZT_OK) st = waited;
  if (st == ZT_OK) st = gradient_from(e, param, whole, out);
  zt_storage_release(whole);
  return st;
}

/* --- the optimizer */

typedef struct stepping {
  zt_engine *e;
  int optimizer;
  zt_optim_kind kind;
  const zt_hyper *h;
  int n_groups;
  double grad_scale;
} stepping;

static bool is_stepped(const stepping *s, const zt_param *p) {
  return p->optimizer == s->optimizer && p->group < s->n_groups && p->tensor->requires_grad;
}

static bool page_is_stepped(const stepping *s, const zt_page *p) {
  return p->optimizer == s->optimizer && p->trainable && p->grad_state != ZT_GRAD_NONE;
}

zt_status zt_state_new(zt_page *p, zt_storage **state) {
  if (*state) return ZT_OK;
  zt_storage *made;
  zt_dtype t = zt_page_master_dtype(p);
  ZT_TRY(zt_page_buffer(p, t, zt_span_count(p), ZT_MEM_OPTIMIZER, &made));
  *state = made;
  return zt_zero_range(p->engine, t, made->data, zt_span_count(p));
}

/* Everything that may fail for want of memory comes before the first write. */
static zt_status make_states(const stepping *s) {
  zt_engine *e = s->e;
  for (int i = 0; i < e->n_params; i++) {
    const zt_param *param = &e->params[i];
    zt_page *p = zt_page_of(e, param);
    if (!page_is_stepped(s, p) || !is_stepped(s, param)) continue;
    if (zt_optim_needs_m(s->kind, &s->h[param->group])) ZT_TRY(zt_state_new(p, &p->m));
    if (zt_optim_needs_v(s->kind)) ZT_TRY(zt_state_new(p, &p->v));
  }
  return ZT_OK;
}

static void *state_at(const zt_page *p, const zt_storage *state, int64_t at) {
  if (!state) return NULL;
  return (char *)state->data + (size_t)(at - zt_span_begin(p)) * zt_dtype_nbytes(zt_page_master_dtype(p));
}

static zt_status step_param(const stepping *s, zt_param *param, const zt_storage *whole) {
  zt_engine *e = s->e;
  zt_page *p = zt_page_of(e, param);
  zt_hyper h = s->h[param->group];
  h.grad_scale = s->grad_scale;
  zt_optim_step step = zt_optim_constants(s->kind, &h, ++param->steps, !param->begun);
  bool needs_m = zt_optim_needs_m(s->kind, &h);
  param->begun |= needs_m;
  int64_t from, to;
  if (!zt_overlap(param, zt_span_begin(p), zt_span_count(p), &from, &to)) return ZT_OK;
  return zt_optim_span(e->c, s->kind, &step, zt_page_master_dtype(p), whole ? zt_acc_dtype(p) : grad_dtype(p),
                       zt_page_master(p, from), needs_m ? state_at(p, p->m, from) : NULL, state_at(p, p->v, from),
                       whole_at(p, whole, from), (size_t)(to - from));
}

/* Steps this rank's span, and lets the others have the new parameters. */
static zt_status step_page(const stepping *s, zt_page *p, const zt_storage *whole) {
  zt_engine *e = s->e;
  for (int i = p->first; i < p->first + p->n_params; i++)
    if (is_stepped(s, &e->params[i])) ZT_TRY(step_param(s, &e->params[i], whole));
  ZT_TRY(zt_page_publish(p));
  return e->options.stage == 1 || e->options.stage == 2 ? zt_pager_refresh(p) : ZT_OK;
}

static zt_status step_shards(const stepping *s) {
  zt_engine *e = s->e;
  for (int i = 0; i < e->n_pages; i++)
    if (page_is_stepped(s, &e->pages[i])) ZT_TRY(step_page(s, &e->pages[i], NULL));
  return ZT_OK;
}

static zt_page *next_stepped(const stepping *s, int from) {
  for (int i = from; i < s->e->n_pages; i++)
    if (page_is_stepped(s, &s->e->pages[i])) return &s->e->pages[i];
  return NULL;
}

/* Room for two pages' whole gradients, before anything is stepped. */
static zt_status make_buffers(const stepping *s, zt_storage *buffer[2]) {
  const zt_page *largest = NULL;
  for (zt_page *p = next_stepped(s, 0); p; p = next_stepped(s, p->number + 1))
    if (!largest || p->count * (int64_t)zt_dtype_nbytes(zt_acc_dtype(p)) >
                        largest->count * (int64_t)zt_dtype_nbytes(zt_acc_dtype(largest)))
      largest = p;
  for (int i = 0; i < 2 && largest && needs_buffer(s->e); i++)
    ZT_TRY(zt_page_buffer(largest, zt_acc_dtype(largest), largest->count, ZT_MEM_COMMUNICATION, &buffer[i]));
  return ZT_OK;
}

/* The next page's gradients come while one is stepped. */
static zt_status step_in_turns(const stepping *s, zt_storage *const buffer[2], zt_transfer transfers[2]) {
  zt_page *p = next_stepped(s, 0);
  if (p) ZT_TRY(begin_whole(p, &transfers[0], buffer[0]));
  for (int turn = 0; p; turn = !turn) {
    zt_page *next = next_stepped(s, p->number + 1);
    if (next) ZT_TRY(begin_whole(next, &transfers[!turn], buffer[!turn]));
    ZT_TRY(zt_wait_transfer(&transfers[turn]));
    ZT_TRY(step_page(s, p, buffer[turn]));
    p = next;
  }
  return ZT_OK;
}

/* Stage 0: every rank steps everything, so it needs whole gradients. */
static zt_status step_whole(const stepping *s) {
  zt_transfer transfers[2] = {{0}};
  zt_storage *buffer[2] = {NULL};
  zt_status st = make_buffers(s, buffer);
  if (st == ZT_OK) st = step_in_turns(s, buffer, transfers);
  for (int i = 0; i < 2; i++) {
    zt_wait_transfer(&transfers[i]);
    zt_storage_release(buffer[i]);
  }
  return st;
}

zt_status zt_engine_step(zt_engine *e, int optimizer, zt_optim_kind kind, const zt_hyper h[], int n_groups,
                         double factor) {
  if (!e->finished) return zt_fail(ZT_STATE, "a step needs finished gradients");
  stepping s = {e, optimizer, kind, h, n_groups, factor * unscale(e)};
  ZT_TRY(zt_pager_release_all(e));
  ZT_TRY(make_states(&s));
  return e->options.stage == 0 && e->size > 1 ? step_whole(&s) : step_shards(&s);
}
