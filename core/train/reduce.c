/* reduce.c - gradients leave as they become final. Those of a page are packed, sent to the ranks that keep its shards, and
** summed up there, in the order of ranks. Where there is one rank and one micro-step there is nothing to sum: they stay. */
#include <string.h>

#include "core/train/parts.h"

static bool is_local(const zt_engine *e) { return e->options.accumulate == ZT_ACCUMULATE_LOCAL; }
static bool is_single(const zt_engine *e) { return e->size == 1 && e->options.micro_steps == 1; }

/* --- counts of a micro-step: each rank's weight in its sums */

static zt_status exchange_counts(void *user) {
  zt_engine *e = user;
  e->counts[e->rank] = e->own_count;
  ZT_TRY(zt_all_gather(e->world, &e->counts_label, e->counts, sizeof *e->counts));
  for (int r = 0; r < e->size; r++) e->weights[r] = (double)e->counts[r];
  return ZT_OK;
}

/* The exchange before is long done where a new one begins: whatever came behind it was waited for. */
static zt_status agree_on_counts(zt_engine *e) {
  if (is_local(e) || e->size == 1) {
    e->weights[0] = (double)e->micro_count;
    return ZT_OK;
  }
  ZT_TRY(zt_queue_wait(e->queue, e->counts_ticket));
  e->own_count = e->micro_count;
  e->counts_label = zt_label_here(e->world, "counts of micro-step", e->micro, NULL);
  return zt_queue_submit(e->queue, exchange_counts, e, &e->counts_ticket);
}

zt_status zt_engine_micro_step(zt_engine *e, int64_t count, double scale) {
  if (count < 0) return zt_fail(ZT_INVALID, "a micro-step's loss is a mean over %lld", (long long)count);
  if (e->micro_open) {
    if (count == e->micro_count && scale == e->scale) return ZT_OK;
    return zt_fail(
        ZT_STATE,
        "two losses of one micro-step are means over %lld and %lld; add them up, or use accumulate() for each",
        (long long)e->micro_count, (long long)count);
  }
  if (e->micro && scale != e->scale)
    return zt_fail(ZT_STATE, "the loss scale changed from %g to %g within a step", e->scale, scale);
  e->micro_open = true, e->finished = false;
  e->micro++;
  e->micro_count = count, e->count += count, e->scale = scale;
  e->n_finals = 0;
  return agree_on_counts(e);
}

void zt_engine_micro_end(zt_engine *e) {
  e->micro_open = false;
  zt_pager_forward(e);
}

/* --- packing */

static zt_status zero_gap(const zt_page *p, zt_storage *packing, int64_t from, int64_t to) {
  char *data = packing->data;
  return zt_zero_range(p->engine, p->dtype, data + (size_t)from * zt_dtype_nbytes(p->dtype), to - from);
}

/* All but the parameters is zero. */
static zt_status open_packing(zt_page *p, zt_mem_kind kind) {
  zt_storage *packing;
  ZT_TRY(zt_page_buffer(p, p->dtype, p->count, kind, &packing));
  p->packing = packing;
  const zt_engine *e = p->engine;
  int64_t end = 0;
  for (int i = p->first; i < p->first + p->n_params; i++) {
    ZT_TRY(zero_gap(p, packing, end, e->params[i].offset));
    end = e->params[i].offset + e->params[i].count;
  }
  return zero_gap(p, packing, end, p->count);
}

/* The only rank's only gradient stays in the page's grad; a second backward of the step makes sums of both. */
static bool keeps_own(const zt_page *p) { return is_single(p->engine) && p->grad_state == ZT_GRAD_NONE; }

static void note_bad(zt_engine *e, const zt_param *p, size_t first_bad) {
  if ((int64_t)first_bad == p->count || e->bad.micro || e->micro_count == 0) return;
  e->bad = (zt_bad){e->micro, e->n_finals, p - e->params, (int64_t)first_bad};
}

static void *packed(const zt_page *p, const zt_param *param) {
  return (char *)p->packing->data + (size_t)param->offset * zt_dtype_nbytes(p->dtype);
}

static zt_status pack(zt_page *p, zt_param *param) {
  zt_engine *e = p->engine;
  zt_tensor *t = param->tensor, *whole;
  if (!p->packing) ZT_TRY(open_packing(p, keeps_own(p) ? ZT_MEM_GRADIENT : ZT_MEM_COMMUNICATION));
  e->n_finals++;
  if (!t->grad) return zt_zero_range(e, p->dtype, packed(p, param), param->count);
  size_t first_bad = (size_t)param->count;
  ZT_TRY(zt_contiguous(e->c, t->grad, &whole));
  zt_status st = zt_k(e->c)->copy_checked(zt_s(e->c), p->dtype, packed(p, param), &first_bad, zt_tensor_data(whole),
                                          (size_t)param->count);
  zt_tensor_release(whole);
  zt_tensor_release(t->grad);
  t->grad = NULL;
  if (st == ZT_OK) note_bad(e, param, first_bad);
  return st;
}

/* --- sums */

static zt_status grad_buffer(zt_page *p, int64_t count) {
  return p->grad ? ZT_OK : zt_page_buffer(p, zt_acc_dtype(p), count, ZT_MEM_GRADIENT, &p->grad);
}

static zt_status add_up(const zt_page *p, zt_dtype t, void *sum, bool adds, const void *x, const double *weights, int n,
                        int64_t stride, int64_t count) {
  const zt_engine *e = p->engine;
  return zt_k(e->c)->weighted_sum(zt_s(e->c), zt_acc_dtype(p), t, sum, adds, x, weights, (size_t)n, (size_t)stride,
                                  (size_t)count);
}

/* What was kept as one gradient becomes a sum, for another one comes. */
static zt_status make_sum_of_own(zt_page *p) {
  if (p->grad_state != ZT_GRAD_OWN) return ZT_OK;
  zt_storage *own = p->grad;
  p->grad = NULL;
  zt_status st = grad_buffer(p, p->count);
  double weight = (double)p->engine->first_count;
  if (st == ZT_OK) st = add_up(p, p->dtype, p->grad->data, false, own->data, &weight, 1, 0, p->count);
  if (st == ZT_OK) p->grad_state = ZT_GRAD_SUM;
  zt_storage_release(own);
  return st;
}

/* This rank's gradients are added to its own sums of the whole page. */
static zt_status sum_here(zt_page *p) {
  zt_engine *e = p->engine;
  ZT_TRY(make_sum_of_own(p));
  ZT_TRY(grad_buffer(p, p->count));
  double weight = (double)e->micro_count;
  ZT_TRY(add_up(p, p->dtype, p->grad->data, p->grad_state == ZT_GRAD_SUM, p->packing->data, &weight, 1, 0, p->count));
  p->grad_state = ZT_GRAD_SUM;
  zt_storage_release(p->packing);
  p->packing = NULL;
  return ZT_OK;
}

static zt_status send_and_sum(void *user) {
  zt_transfer *t = user;
  const zt_page *p = t->page;
  const zt_engine *e = p->engine;
  ZT_TRY(zt_all_to_all(e->world, &t->label, t->recv->data, t->send->data,
                       (size_t)p->shard_count * zt_dtype_nbytes(p->dtype)));
  return add_up(p, p->dtype, p->grad->data, t->adds, t->recv->data, e->weights, e->size, p->shard_count,
                p->shard_count);
}

/* A place for a transfer; waits for the one that had it. */
static zt_status next_transfer(zt_engine *e, zt_page *p, zt_transfer **out) {
  zt_transfer *t = *out = &e->reducing[e->n_reducing++ % ZT_IN_FLIGHT];
  ZT_TRY(zt_wait_transfer(t));
  *t = (zt_transfer){.page = p, .label = zt_page_label(p, "gradients of page")};
  e->n_reductions++;
  return ZT_OK;
}

static zt_status submit(zt_engine *e, zt_transfer *t, zt_job job) {
  ZT_TRY(zt_queue_submit(e->queue, job, t, &t->ticket));
  return e->options.no_overlap ? zt_wait_transfer(t) : ZT_OK;
}

/* The page's gradients go to the ranks that keep its shards. */
static zt_status reduce(zt_page *p) {
  zt_engine *e = p->engine;
  zt_transfer *t;
  ZT_TRY(next_transfer(e, p, &t));
  ZT_TRY(grad_buffer(p, p->shard_count));
  ZT_TRY(zt_page_buffer(p, p->dtype, p->count, ZT_MEM_COMMUNICATION, &t->recv));
  t->send = p->packing, p->packing = NULL;
  t->adds = p->grad_state == ZT_GRAD_SUM;
  p->grad_state = ZT_GRAD_SUM;
  return submit(e, t, send_and_sum);
}

static zt_status keep_own(zt_page *p) {
  p->grad = p->packing, p->packing = NULL;
  p->grad_state = ZT_GRAD_OWN;
  p->engine->first_count = p->engine->micro_count;
  return ZT_OK;
}

/* All gradients of the page are in 'packing'. */
static zt_status page_is_final(zt_page *p) {
  p->n_final = 0;
  if (keeps_own(p)) return keep_own(p);
  return p->engine->size == 1 || is_local(p->engine) ? sum_here(p) : reduce(p);
}

/* --- following backward */

/* Whether backward is about this engine's parameters. */
static bool is_reached(const zt_engine *e) {
  bool reached = e->micro_open;
  for (int i = 0; i < e->n_params && !reached; i++) reached = e->params[i].tensor->n_uses > 0;
  return reached;
}

zt_status zt_reduce_begin(void *user, zt_ctx *c) {
  (void)c;
  zt_engine *e = user;
  e->is_reached = is_reached(e);
  if (!e->is_reached) return ZT_OK;
  for (int i = 0; i < e->n_pages; i++) { /* what a failed backward left */
    e->pages[i].n_final = 0;
    zt_storage_release(e->pages[i].packing);
    e->pages[i].packing = NULL;
  }
  for (int i = 0; i < e->n_params; i++) e->params[i].is_packed = false;
  ZT_TRY(zt_engine_micro_step(e, e->micro_open ? e->micro_count : 1, e->micro_open ? e->scale : 1));
  return zt_pager_backward(e);
}

zt_status zt_reduce_final(void *user, zt_ctx *c, zt_tensor *leaf) {
  (void)c;
  zt_engine *e = user;
  zt_param *param = zt_find_param(e, leaf);
  if (!param) return ZT_OK;
  zt_page *p = zt_page_of(e, param);
  ZT_TRY(pack(p, param));
  param->is_packed = true;
  return ++p->n_final == p->n_params ? page_is_final(p) : ZT_OK;
}

/* Parameters that backward did not reach have a gradient of zero. */
static zt_status complete(zt_page *p) {
  zt_engine *e = p->engine;
  for (int i = p->first; i < p->first + p->n_params; i++)
    if (!e->params[i].is_packed) ZT_TRY(pack(p, &e->params[i]));
  return page_is_final(p);
}

zt_status zt_reduce_end(void *user, zt_ctx *c) {
  (void)c;
  zt_engine *e = user;
  if (!e->is_reached) return ZT_OK;
  for (int i = e->n_pages - 1; i >= 0; i--) {
    zt_page *p = &e->pages[i];
    bool all = p->n_params > 0;
    for (int k = p->first; k < p->first + p->n_params; k++) all = all && e->params[k].is_packed;
    if (p->trainable && !all) ZT_TRY(complete(p));
  }
  zt_pager_forward(e);
  return zt_pager_release_all(e);
}

/* --- the end of a step */

static zt_status send_sums(void *user) {
  zt_transfer *t = user;
  const zt_page *p = t->page;
  const zt_engine *e = p->engine;
  zt_dtype acc = zt_acc_dtype(p);
  size_t nbytes = (size_t)p->shard_count * zt_dtype_nbytes(acc);
  char *own = (char *)p->grad->data + (size_t)e->rank * nbytes;
  ZT_TRY(zt_all_to_all(e->world, &t->label, t->recv->data, p->grad->data, nbytes));
  return add_up(p, acc, own, false, t->recv->data, e->weights, e->size, p->shard_count, p->shard_count);
}

static zt_status reduce_sums(zt_page *p) {
  zt_engine *e = p->engine;
  zt_transfer *t;
  if (!p->trainable || p->grad_state == ZT_GRAD_NONE) return ZT_OK;
  ZT_TRY(next_transfer(e, p, &t));
  ZT_TRY(zt_page_buffer(p, zt_acc_dtype(p), p->count, ZT_MEM_COMMUNICATION, &t->recv));
  return submit(e, t, send_sums);
}

zt_status zt_reduce_finish(zt_engine *e) {
  if (is_local(e) && e->size > 1) {
    for (int r = 0; r < e->size; r++) e->weights[r] = 1; /* the sums carry their counts */
    for (int i = e->n_pages - 1; i >= 0; i--) ZT_TRY(reduce_sums(&e->pages[i]));
  }
  for (int i = 0; i < ZT_IN_FLIGHT; i++) ZT_TRY(zt_wait_transfer(&e->reducing[i]));
  return ZT_OK;
}

/* A failure shows at the next collective. */
void zt_reduce_free(zt_engine *e) {
  for (int i = 0; i < ZT_IN_FLIGHT; i++) zt_wait_transfer(&e->reducing[i]);
}

void zt_engine_zero(zt_engine *e) {
  zt_reduce_free(e);
  for (int i = 0; i < e->n_pages; i++) {
    zt_page *p = &e->pages[i];
    zt_storage_release(p->grad);
    p->grad = NULL, p->grad_state = ZT_GRAD_NONE;
  }
  e->micro = e->count = 0;
  e->bad = (zt_bad){0};
  e->micro_open = e->finished = false;
}
