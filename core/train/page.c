/* page.c - the layout: parameters of one kind, one behind the other, in pages that all ranks share out evenly. */
#include <string.h>

#include "core/base/mem.h"
#include "core/tensor/late.h"
#include "core/train/parts.h"

enum { MIN_PAGE = 64 << 10, MAX_PAGE = 32 << 20, PAGES = 16 };

/* --- which parameter goes where */

static bool is_trainable(const zt_param *p) { return p->tensor->requires_grad; }

static size_t target_nbytes(const zt_engine *e) {
  if (e->options.page_nbytes) return e->options.page_nbytes;
  size_t total = 0;
  for (int i = 0; i < e->n_params; i++) total += (size_t)e->params[i].count * zt_dtype_nbytes(e->params[i].dtype);
  size_t target = total / PAGES;
  return target < MIN_PAGE ? MIN_PAGE : target > MAX_PAGE ? MAX_PAGE : target;
}

static bool is_of_page(const zt_page *page, const zt_param *p) {
  return page->dtype == p->dtype && page->trainable == is_trainable(p) && page->optimizer == p->optimizer;
}

/* The last page of the parameter's kind, where it still fits in. */
static zt_page *open_page(zt_engine *e, const zt_param *p, size_t target) {
  for (int i = e->n_pages - 1; i >= 0; i--) {
    zt_page *page = &e->pages[i];
    if (!is_of_page(page, p)) continue;
    size_t nbytes = (size_t)(page->count + p->count) * zt_dtype_nbytes(p->dtype);
    return nbytes <= target ? page : NULL;
  }
  return NULL;
}

static zt_page *new_page(zt_engine *e, const zt_param *p) {
  zt_page *page = &e->pages[e->n_pages];
  *page = (zt_page){.keeper = zt_page_keeper,
                    .engine = e,
                    .number = e->n_pages++,
                    .dtype = p->dtype,
                    .trainable = is_trainable(p),
                    .optimizer = p->optimizer};
  return page;
}

static void place(zt_engine *e) {
  size_t target = target_nbytes(e);
  for (int i = 0; i < e->n_params; i++) {
    zt_param *p = &e->params[i];
    zt_page *page = open_page(e, p, target);
    if (!page) page = new_page(e, p);
    p->page = page->number, p->offset = page->count;
    page->count += zt_round_up(p->count, ZT_ALIGN);
    page->n_params++;
  }
}

/* Brings the parameters of each page together, in order: a stable sort by page. */
static zt_status sort_params(zt_engine *e) {
  zt_param *sorted = zt_malloc((size_t)e->n_params * sizeof *sorted);
  ZT_CHECK_ALLOC(sorted);
  int n = 0;
  for (int page = 0; page < e->n_pages; page++) {
    e->pages[page].first = n;
    for (int i = 0; i < e->n_params; i++)
      if (e->params[i].page == page) sorted[n++] = e->params[i];
  }
  memcpy(e->params, sorted, (size_t)n * sizeof *sorted);
  zt_free(sorted);
  return ZT_OK;
}

/* --- bytes */

zt_status zt_page_buffer(const zt_page *p, zt_dtype t, int64_t count, zt_mem_kind kind, zt_storage **out) {
  return zt_storage_new(zt_ctx_pool(p->engine->c), (size_t)count * zt_dtype_nbytes(t), kind, out);
}

zt_status zt_zero_range(zt_engine *e, zt_dtype t, void *data, int64_t count) {
  return count > 0 ? zt_k(e->c)->fill(zt_s(e->c), t, data, 0, (size_t)count) : ZT_OK;
}

zt_status zt_copy_range(zt_engine *e, void *dst, const void *src, size_t nbytes) {
  return zt_ctx_device(e->c)->ops->copy(zt_s(e->c), dst, src, nbytes);
}

static void *element(const zt_storage *s, zt_dtype t, int64_t at) {
  return (char *)s->data + (size_t)at * zt_dtype_nbytes(t);
}

void *zt_page_values(const zt_page *p, int64_t at) {
  return p->shard ? element(p->shard, p->dtype, at - zt_shard_begin(p)) : element(p->bytes, p->dtype, at);
}

zt_dtype zt_page_master_dtype(const zt_page *p) { return p->master ? ZT_F32 : p->dtype; }

void *zt_page_master(const zt_page *p, int64_t at) {
  return p->master ? element(p->master, ZT_F32, at - zt_span_begin(p)) : zt_page_values(p, at);
}

bool zt_overlap(const zt_param *p, int64_t begin, int64_t count, int64_t *from, int64_t *to) {
  *from = p->offset > begin ? p->offset : begin;
  *to = p->offset + p->count < begin + count ? p->offset + p->count : begin + count;
  return *from < *to;
}

zt_param *zt_find_param(const zt_engine *e, const zt_tensor *t) {
  zt_keeper *keeper = t->storage ? t->storage->keeper : NULL;
  if (!keeper || keeper->pin != zt_page_keeper.pin) return NULL;
  const zt_page *page = (const zt_page *)keeper;
  if (e && page->engine != e) return NULL;
  e = page->engine;
  for (int low = page->first, high = page->first + page->n_params; low < high;) {
    int i = low + (high - low) / 2;
    if (e->params[i].tensor == t) return &e->params[i];
    if (e->params[i].offset == t->offset) break; /* of no elements, or another view of its bytes */
    if (e->params[i].offset < t->offset)
      low = i + 1;
    else
      high = i;
  }
  for (int i = page->first; i < page->first + page->n_params; i++)
    if (e->params[i].tensor == t) return &e->params[i];
  return NULL;
}

zt_engine *zt_engine_of(const zt_tensor *tensor) {
  if (!zt_find_param(NULL, tensor)) return NULL;
  return ((zt_page *)tensor->storage->keeper)->engine;
}

zt_label zt_page_label(const zt_page *p, const char *what) {
  return zt_label_here(p->engine->world, what, p->number, p->engine->params[p->first].name);
}

/* --- filling a new page from the tensors as they are */

/* Elements [first, first + count) of the tensor, as it was when it was added, in dtype t to 'out'. */
static zt_status values(zt_engine *e, const zt_tensor *x, int64_t first, int64_t count, zt_dtype t, void *out) {
  const zt_kernels *k = zt_k(e->c);
  if (!zt_tensor_is_late(x)) {
    const char *data = (const char *)zt_tensor_data(x) + (size_t)first * zt_dtype_nbytes(x->dtype);
    return k->cast(zt_s(e->c), t, x->dtype, out, data, (size_t)count);
  }
  if (x->dtype == t) return zt_late_values(e->c, x, first, count, out);
  zt_tensor *piece;
  ZT_TRY(zt_tensor_new(e->c, &piece, x->dtype, 1, &count));
  zt_status st = zt_late_values(e->c, x, first, count, zt_tensor_data(piece));
  if (st == ZT_OK) st = k->cast(zt_s(e->c), t, x->dtype, out, zt_tensor_data(piece), (size_t)count);
  zt_tensor_release(piece);
  return st;
}

/* The part [begin, begin + count) of the page, in dtype t, to 'out'; what is no parameter's is zero. */
static zt_status fill(zt_page *page, int64_t begin, int64_t count, zt_dtype t, void *out) {
  zt_engine *e = page->engine;
  size_t nbytes = zt_dtype_nbytes(t);
  int64_t end = begin, from, to;
  for (int i = page->first; i < page->first + page->n_params; i++) {
    const zt_param *p = &e->params[i];
    if (!zt_overlap(p, begin, count, &from, &to)) continue;
    ZT_TRY(zt_zero_range(e, t, (char *)out + (size_t)(end - begin) * nbytes, from - end));
    ZT_TRY(values(e, p->tensor, from - p->offset, to - from, t, (char *)out + (size_t)(from - begin) * nbytes));
    end = to;
  }
  return zt_zero_range(e, t, (char *)out + (size_t)(end - begin) * nbytes, begin + count - end);
}

/* The tensor becomes a view of the page. */
static void move_in(zt_page *page, zt_param *p) {
  zt_tensor *t = p->tensor;
  zt_storage_release(t->storage);
  t->storage = zt_storage_retain(page->bytes);
  t->dtype = page->dtype, t->offset = p->offset;
  zt_tensor_release(t->grad);
  t->grad = NULL;
}

static bool needs_master(const zt_page *page) {
  return page->trainable && page->optimizer >= 0 && zt_dtype_nbytes(page->dtype) == 2;
}

/* Padding is zero, and stays so: its gradient is. Where parameters are sharded nobody makes more than his share. */
static zt_status fill_page(zt_page *page) {
  bool paged = zt_is_paged(page->engine);
  zt_storage **values = paged ? &page->shard : &page->bytes;
  int64_t begin = paged ? zt_shard_begin(page) : 0, count = paged ? page->shard_count : page->count;
  ZT_TRY(zt_page_buffer(page, page->dtype, count, ZT_MEM_PARAMETER, values));
  ZT_TRY(fill(page, begin, count, page->dtype, (*values)->data));
  if (!needs_master(page)) return ZT_OK;
  ZT_TRY(zt_page_buffer(page, ZT_F32, zt_span_count(page), ZT_MEM_OPTIMIZER, &page->master));
  return fill(page, zt_span_begin(page), zt_span_count(page), ZT_F32, page->master->data);
}

static zt_status build_page(zt_page *page) {
  zt_engine *e = page->engine;
  page->count = zt_round_up(page->count, (int64_t)ZT_ALIGN * e->size);
  page->shard_count = page->count / e->size;
  ZT_TRY(fill_page(page));
  if (!page->bytes)
    ZT_TRY(zt_storage_new_empty(zt_ctx_pool(e->c), (size_t)page->count * zt_dtype_nbytes(page->dtype), &page->bytes));
  for (int i = page->first; i < page->first + page->n_params; i++) move_in(page, &e->params[i]);
  page->bytes->keeper = &page->keeper;
  page->gather.page = page;
  return ZT_OK;
}

zt_status zt_pages_build(zt_engine *e) {
  e->pages = zt_calloc((size_t)e->n_params, sizeof *e->pages); /* as many at most; keepers must not move */
  ZT_CHECK_ALLOC(e->pages);
  place(e);
  ZT_TRY(sort_params(e));
  for (int i = 0; i < e->n_pages; i++) ZT_TRY(build_page(&e->pages[i]));
  return ZT_OK;
}

/* --- after the engine */

static zt_status pin_orphan(zt_keeper *keeper) {
  (void)keeper;
  return zt_fail(ZT_STATE, "the parameter's shards went with the engine that kept them; save and load it");
}
static void unpin_orphan(zt_keeper *keeper) { (void)keeper; }

void zt_pages_free(zt_engine *e) {
  static zt_keeper orphan = {pin_orphan, unpin_orphan, NULL};
  for (int i = 0; i < e->n_pages; i++) {
    zt_page *p = &e->pages[i];
    if (p->bytes) p->bytes->keeper = p->bytes->data ? NULL : &orphan;
    zt_storage *const all[] = {p->bytes, p->shard, p->master, p->m, p->v, p->grad, p->packing};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) zt_storage_release(all[k]);
  }
  zt_free(e->pages);
}

/* --- values and masters */

zt_status zt_page_written(zt_page *p) {
  zt_engine *e = p->engine;
  if (p->shard)
    ZT_TRY(zt_copy_range(e, p->shard->data, element(p->bytes, p->dtype, zt_shard_begin(p)), p->shard->nbytes));
  if (!p->master) return ZT_OK;
  return zt_k(e->c)->update_master(zt_s(e->c), p->dtype, p->master->data, element(p->bytes, p->dtype, zt_span_begin(p)),
                                   (size_t)zt_span_count(p));
}

zt_status zt_page_publish(zt_page *p) {
  zt_engine *e = p->engine;
  if (p->master)
    ZT_TRY(zt_k(e->c)->cast(zt_s(e->c), p->dtype, ZT_F32, zt_page_values(p, zt_span_begin(p)), p->master->data,
                            (size_t)zt_span_count(p)));
  p->bytes->version++;
  return ZT_OK;
}
