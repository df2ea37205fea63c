/* state.c - what an engine holds, as others see it: one checksum, checkpoints, counts. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/base/hash.h"
#include "core/base/mem.h"
#include "core/train/parts.h"

/* --- the checksum: of blocks of ZT_ALIGN elements, by name and place; added up, so that it has no order */

static zt_status hash_block(const zt_param *param, const zt_page *p, int64_t at, int64_t n, uint64_t *sum) {
  char block[ZT_ALIGN * sizeof(double)];
  zt_engine *e = p->engine;
  zt_dtype t = zt_page_master_dtype(p), as = zt_dtype_stat(t);
  ZT_TRY(zt_k(e->c)->cast(zt_s(e->c), as, t, block, zt_page_master(p, at), (size_t)n));
  uint64_t place = zt_rng_mix(zt_hash_bytes(0, param->name, strlen(param->name)), (uint64_t)(at - param->offset));
  *sum += zt_hash_bytes(place, block, (size_t)n * zt_dtype_nbytes(as));
  return ZT_OK;
}

static zt_status hash_param(zt_engine *e, const zt_param *param, uint64_t *sum) {
  const zt_page *p = zt_page_of(e, param);
  int64_t from, to;
  if (!zt_overlap(param, zt_shard_begin(p), p->shard_count, &from, &to)) return ZT_OK;
  for (int64_t at = from; at < to; at += ZT_ALIGN)
    ZT_TRY(hash_block(param, p, at, to - at < ZT_ALIGN ? to - at : ZT_ALIGN, sum));
  return ZT_OK;
}

zt_status zt_engine_hash(zt_engine *e, uint64_t *hash) {
  uint64_t sum = 0;
  for (int i = 0; i < e->n_params; i++) ZT_TRY(hash_param(e, &e->params[i], &sum));
  zt_label label = zt_label_here(e->world, "checksum", -1, NULL);
  ZT_TRY(zt_queue_drain(e->queue));
  int64_t total;
  memcpy(&total, &sum, sizeof total);
  ZT_TRY(zt_all_reduce(e->world, &label, ZT_I64, &total, 1));
  memcpy(hash, &total, sizeof total);
  return ZT_OK;
}

zt_engine_stats zt_engine_get_stats(const zt_engine *e) {
  zt_engine_stats s = {.n_pages = (size_t)e->n_pages,
                       .n_parameters = (size_t)e->n_params,
                       .n_gathers = e->n_gathers,
                       .n_reductions = e->n_reductions};
  for (int i = 0; i < e->n_params; i++) s.n_elements += e->params[i].count;
  for (int i = 0; i < e->n_pages; i++) s.n_padded += e->pages[i].count;
  return s;
}

/* --- steps */

zt_status zt_engine_get_steps(const zt_engine *e, size_t i, const char **name, int64_t *steps, bool *begun) {
  if (i >= (size_t)e->n_params) return zt_fail(ZT_INVALID, "parameter %zu of %d", i + 1, e->n_params);
  const zt_param *p = &e->params[i];
  *name = p->name, *steps = p->steps, *begun = p->begun;
  return ZT_OK;
}

zt_status zt_engine_set_steps(zt_engine *e, const char *name, int64_t steps, bool begun) {
  for (int i = 0; i < e->n_params; i++) {
    if (strcmp(e->params[i].name, name) != 0) continue;
    e->params[i].steps = steps, e->params[i].begun = begun;
    return ZT_OK;
  }
  return zt_fail(ZT_INVALID, "there is no parameter '%s'", name);
}

/* --- the tensors of a checkpoint */

enum { N_KINDS = 3 };
static const char *const kind_names[N_KINDS] = {"model.", "optimizer.m.", "optimizer.v."};

typedef struct entry {
  const zt_param *param;
  int kind;
} entry;

typedef struct listing {
  zt_engine *e;
  zt_checkpoint_item *items; /* names owned */
  entry *entries;            /* param NULL: an extra */
  zt_tensor **extras;        /* borrowed */
  size_t n;
} listing;

static zt_storage *state_of(const zt_page *p, int kind) { return kind == 1 ? p->m : p->v; }

static void *place_of(const entry *en, const zt_page *p, int64_t at) {
  if (en->kind == 0) return zt_page_master(p, at);
  size_t nbytes = zt_dtype_nbytes(zt_page_master_dtype(p));
  return (char *)state_of(p, en->kind)->data + (size_t)(at - zt_span_begin(p)) * nbytes;
}

static void listing_free(listing *l) {
  for (size_t i = 0; i < l->n; i++) zt_free((char *)l->items[i].name);
  zt_free(l->items);
  zt_free(l->entries);
  zt_free(l->extras);
}

static zt_status add_item(listing *l, const char *prefix, const char *name, const zt_tensor *t, zt_dtype dtype) {
  size_t nbytes = strlen(prefix) + strlen(name) + 1;
  char *full = zt_malloc(nbytes);
  ZT_CHECK_ALLOC(full);
  snprintf(full, nbytes, "%s%s", prefix, name);
  zt_checkpoint_item *item = &l->items[l->n];
  *item = (zt_checkpoint_item){.name = full, .dtype = dtype, .ndim = t->ndim};
  memcpy(item->shape, t->shape, sizeof t->shape);
  l->entries[l->n] = (entry){0};
  l->extras[l->n++] = NULL;
  return ZT_OK;
}

static zt_status add_state(listing *l, const zt_param *param, int kind) {
  const zt_page *p = zt_page_of(l->e, param);
  ZT_TRY(add_item(l, kind_names[kind], param->name, param->tensor, zt_page_master_dtype(p)));
  zt_checkpoint_item *item = &l->items[l->n - 1];
  l->entries[l->n - 1] = (entry){param, kind};
  int64_t from, to;
  if (zt_overlap(param, zt_shard_begin(p), p->shard_count, &from, &to))
    item->begin = from - param->offset, item->count = to - from;
  return ZT_OK;
}

static zt_status add_extra(listing *l, const zt_engine_extra *extra) {
  ZT_TRY(add_item(l, "", extra->name, extra->tensor, extra->tensor->dtype));
  l->extras[l->n - 1] = extra->tensor;
  l->items[l->n - 1].count = l->e->rank == 0 ? zt_tensor_count(extra->tensor) : 0;
  return ZT_OK;
}

static zt_status list_all(listing *l, const zt_engine_extra extra[], int n_extra) {
  zt_engine *e = l->e;
  size_t most = (size_t)e->n_params * N_KINDS + (size_t)n_extra;
  l->items = zt_calloc(most, sizeof *l->items);
  l->entries = zt_calloc(most, sizeof *l->entries);
  l->extras = zt_calloc(most, sizeof *l->extras);
  if (!l->items || !l->entries || !l->extras) return ZT_NOMEM;
  for (int i = 0; i < e->n_params; i++) {
    const zt_page *p = zt_page_of(e, &e->params[i]);
    ZT_TRY(add_state(l, &e->params[i], 0));
    for (int kind = 1; kind < N_KINDS; kind++)
      if (state_of(p, kind)) ZT_TRY(add_state(l, &e->params[i], kind));
  }
  for (int i = 0; i < n_extra; i++) ZT_TRY(add_extra(l, &extra[i]));
  return ZT_OK;
}

/* --- saving */

/* Elements of a contiguous tensor to the host. */
static zt_status read_part(zt_ctx *c, const zt_tensor *t, int64_t begin, int64_t count, void *out) {
  zt_tensor *part;
  int64_t shape[1] = {count}, stride[1] = {1};
  ZT_TRY(zt_tensor_view(t->storage, t->dtype, 1, shape, stride, t->offset + begin, &part));
  zt_status st = zt_tensor_read(c, part, out);
  zt_tensor_release(part);
  return st;
}

static zt_status give(void *user, size_t i, int64_t begin, int64_t count, void *out) {
  const listing *l = user;
  const entry *en = &l->entries[i];
  if (l->extras[i]) return read_part(l->e->c, l->extras[i], begin, count, out);
  const zt_page *p = zt_page_of(l->e, en->param);
  size_t nbytes = (size_t)count * zt_dtype_nbytes(l->items[i].dtype);
  ZT_TRY(zt_copy_range(l->e, out, place_of(en, p, en->param->offset + begin), nbytes));
  return zt_ctx_device(l->e->c)->ops->sync(zt_s(l->e->c));
}

zt_status zt_engine_save(zt_engine *e, const char *path, const char *json, const zt_engine_extra extra[], int n_extra) {
  listing l = {.e = e};
  zt_status st = zt_queue_drain(e->queue);
  if (st == ZT_OK) st = list_all(&l, extra, n_extra);
  if (st == ZT_OK) st = zt_checkpoint_save(e->world, path, l.items, l.n, json, give, &l);
  listing_free(&l);
  return st;
}

/* --- loading */

static zt_status find_same(const zt_checkpoint *ck, const char *name, const zt_tensor *t, zt_dtype dtype,
                           const zt_checkpoint_item **out) {
  const zt_checkpoint_item *item = *out = zt_checkpoint_find(ck, name);
  if (!item) return zt_fail(ZT_FORMAT, "the checkpoint has no tensor '%s'", name);
  if (item->ndim != t->ndim || memcmp(item->shape, t->shape, (size_t)t->ndim * sizeof *t->shape) != 0)
    return zt_fail(ZT_SHAPE, "the checkpoint's '%s' is %s, the model's %s", name, zt_dims_text(item->ndim, item->shape),
                   zt_shape_text(t));
  if (!zt_dtype_is_float(dtype) && item->dtype != dtype)
    return zt_fail(ZT_DTYPE, "the checkpoint's '%s' is %s, not %s", name, zt_dtype_name(item->dtype),
                   zt_dtype_name(dtype));
  return ZT_OK;
}

static zt_status find_state(const zt_checkpoint *ck, const zt_param *param, int kind, const zt_checkpoint_item **out) {
  char name[1024];
  snprintf(name, sizeof name, "%s%s", kind_names[kind], param->name);
  if (kind > 0 && !zt_checkpoint_find(ck, name)) {
    *out = NULL;
    return ZT_OK;
  }
  return find_same(ck, name, param->tensor, ZT_F32, out);
}

/* Elements [begin, begin + count) of the checkpoint's tensor to 'place' in dtype t, a piece at a time. */
static zt_status load_range(zt_engine *e, zt_checkpoint *ck, const zt_checkpoint_item *item, int64_t begin,
                            int64_t count, zt_dtype t, void *place) {
  enum { PIECE = 1 << 18 };
  zt_tensor *piece;
  int64_t most = count < PIECE ? count : PIECE;
  ZT_TRY(zt_tensor_new(e->c, &piece, item->dtype, 1, &most));
  void *host = zt_malloc((size_t)most * zt_dtype_nbytes(item->dtype));
  zt_status st = host ? ZT_OK : ZT_NOMEM;
  for (int64_t done = 0; done < count && st == ZT_OK; done += most) {
    int64_t n = count - done < most ? count - done : most;
    void *to = (char *)place + (size_t)done * zt_dtype_nbytes(t);
    st = zt_checkpoint_read(ck, item, begin + done, n, host);
    if (st == ZT_OK) st = zt_copy_range(e, zt_tensor_data(piece), host, (size_t)n * zt_dtype_nbytes(item->dtype));
    if (st == ZT_OK) st = zt_k(e->c)->cast(zt_s(e->c), t, item->dtype, to, zt_tensor_data(piece), (size_t)n);
    if (st == ZT_OK) st = zt_ctx_device(e->c)->ops->sync(zt_s(e->c));
  }
  zt_free(host);
  zt_tensor_release(piece);
  return st;
}

static zt_status load_state(zt_engine *e, zt_checkpoint *ck, const zt_param *param, int kind) {
  zt_page *p = zt_page_of(e, param);
  const zt_checkpoint_item *item;
  int64_t from, to;
  ZT_TRY(find_state(ck, param, kind, &item));
  if (!item) return ZT_OK;
  if (kind > 0) ZT_TRY(zt_state_new(p, kind == 1 ? &p->m : &p->v));
  if (!zt_overlap(param, zt_span_begin(p), zt_span_count(p), &from, &to)) return ZT_OK;
  entry en = {param, kind};
  return load_range(e, ck, item, from - param->offset, to - from, zt_page_master_dtype(p), place_of(&en, p, from));
}

static zt_status load_extra(zt_engine *e, zt_checkpoint *ck, const zt_engine_extra *extra) {
  const zt_checkpoint_item *item;
  ZT_TRY(find_same(ck, extra->name, extra->tensor, extra->tensor->dtype, &item));
  if (zt_tensor_count(extra->tensor) == 0) return ZT_OK;
  extra->tensor->storage->version++;
  return load_range(e, ck, item, 0, zt_tensor_count(extra->tensor), extra->tensor->dtype,
                    zt_tensor_data(extra->tensor));
}

static zt_status check_all(zt_engine *e, const zt_checkpoint *ck, const zt_engine_extra extra[], int n_extra) {
  const zt_checkpoint_item *item;
  for (int i = 0; i < e->n_params; i++)
    for (int kind = 0; kind < N_KINDS; kind++) ZT_TRY(find_state(ck, &e->params[i], kind, &item));
  for (int i = 0; i < n_extra; i++)
    ZT_TRY(find_same(ck, extra[i].name, extra[i].tensor, extra[i].tensor->dtype, &item));
  return ZT_OK;
}

/* States that the checkpoint does not have begin anew. */
static void forget_states(zt_engine *e) {
  for (int i = 0; i < e->n_pages; i++) {
    zt_storage_release(e->pages[i].m);
    zt_storage_release(e->pages[i].v);
    e->pages[i].m = e->pages[i].v = NULL;
  }
}

zt_status zt_engine_load(zt_engine *e, zt_checkpoint *ck, const zt_engine_extra extra[], int n_extra) {
  ZT_TRY(zt_queue_drain(e->queue));
  ZT_TRY(check_all(e, ck, extra, n_extra));
  ZT_TRY(zt_pager_release_all(e));
  forget_states(e);
  for (int i = 0; i < e->n_params; i++)
    for (int kind = 0; kind < N_KINDS; kind++) ZT_TRY(load_state(e, ck, &e->params[i], kind));
  for (int i = 0; i < e->n_pages; i++) {
    ZT_TRY(zt_page_publish(&e->pages[i]));
    if (!zt_is_paged(e) && e->options.stage > 0) ZT_TRY(zt_pager_refresh(&e->pages[i]));
  }
  for (int i = 0; i < n_extra; i++) ZT_TRY(load_extra(e, ck, &extra[i]));
  zt_engine_zero(e);
  return zt_queue_drain(e->queue);
}
