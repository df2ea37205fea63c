#include "core/tensor/late.h"

#include "core/base/mem.h"
#include "core/tensor/op.h"

typedef struct late {
  zt_keeper keeper; /* first: found by it */
  zt_ctx *c;
  zt_storage *storage;
  zt_dtype dtype;
  int64_t count;
  zt_mem_kind kind;
  zt_start start;
} late;

static void drop_start(late *l) {
  if (l->start.release) l->start.release(l->start.user);
  l->start = (zt_start){0};
}

static void release(zt_keeper *keeper) {
  late *l = (late *)keeper;
  drop_start(l);
  zt_free(l);
}

/* Elements of the rule's bytes, cast a piece at a time. */
static zt_status cast_bytes(const late *l, int64_t first, int64_t count, char *out) {
  enum { PIECE = 1 << 18 };
  const zt_start *s = &l->start;
  const char *bytes = (const char *)s->bytes + (size_t)first * zt_dtype_nbytes(s->dtype);
  for (int64_t done = 0; done < count; done += PIECE) {
    int64_t n = count - done < PIECE ? count - done : PIECE;
    zt_tensor *piece;
    ZT_TRY(zt_tensor_from(l->c, &piece, s->dtype, 1, &n, bytes + (size_t)done * zt_dtype_nbytes(s->dtype)));
    zt_status st = zt_k(l->c)->cast(zt_s(l->c), l->dtype, s->dtype, out + (size_t)done * zt_dtype_nbytes(l->dtype),
                                    zt_tensor_data(piece), (size_t)n);
    zt_tensor_release(piece);
    ZT_TRY(st);
  }
  return ZT_OK;
}

static zt_status copy_bytes(const late *l, int64_t first, int64_t count, void *out) {
  if (l->start.dtype != l->dtype) return cast_bytes(l, first, count, out);
  size_t nbytes = zt_dtype_nbytes(l->dtype);
  const zt_device_ops *ops = zt_ctx_device(l->c)->ops;
  ZT_TRY(ops->copy(zt_s(l->c), out, (const char *)l->start.bytes + (size_t)first * nbytes, (size_t)count * nbytes));
  return ops->sync(zt_s(l->c));
}

static zt_status values(const late *l, int64_t first, int64_t count, void *out) {
  const zt_kernels *k = zt_k(l->c);
  const zt_start *s = &l->start;
  zt_stream *stream = zt_s(l->c);
  size_t at = (size_t)first, n = (size_t)count;
  switch (s->kind) {
    case ZT_START_VALUE:
      return k->fill(stream, l->dtype, out, s->a, n);
    case ZT_START_NORMAL:
      return k->random_normal(stream, l->dtype, out, s->a, s->b, &s->key, at, n);
    case ZT_START_UNIFORM:
      return k->random_uniform(stream, l->dtype, out, s->a, s->b, &s->key, at, n);
    default:
      return copy_bytes(l, first, count, out);
  }
}

/* The bytes come, and the storage is one like any other. */
static zt_status pin(zt_keeper *keeper) {
  late *l = (late *)keeper;
  zt_storage *storage = l->storage;
  ZT_TRY(zt_storage_return(storage, l->kind));
  zt_status st = values(l, 0, l->count, storage->data);
  if (st != ZT_OK) {
    zt_storage_leave(storage);
    return st;
  }
  storage->keeper = NULL;
  release(keeper);
  return ZT_OK;
}

static void unpin(zt_keeper *keeper) { (void)keeper; }

static late *late_of(const zt_tensor *t) {
  zt_keeper *keeper = t->storage ? t->storage->keeper : NULL;
  return keeper && keeper->pin == pin ? (late *)keeper : NULL;
}

zt_status zt_tensor_new_late(zt_ctx *c, zt_tensor **out, zt_dtype dtype, int ndim, const int64_t *shape) {
  ZT_TRY(zt_tensor_empty(c, out, dtype, ndim, shape));
  late *l = zt_malloc(sizeof *l);
  if (!l) {
    zt_tensor_release(*out);
    *out = NULL;
    return ZT_NOMEM;
  }
  zt_mem_kind kind = zt_ctx_set_mem_kind(c, ZT_MEM_PARAMETER);
  zt_ctx_set_mem_kind(c, kind);
  *l = (late){.keeper = {pin, unpin, release},
              .c = c,
              .storage = (*out)->storage,
              .dtype = dtype,
              .count = zt_tensor_count(*out),
              .kind = kind};
  (*out)->storage->keeper = &l->keeper;
  return ZT_OK;
}

bool zt_tensor_is_late(const zt_tensor *t) {
  const late *l = late_of(t);
  return l && t->offset == 0 && zt_tensor_is_contiguous(t) && zt_tensor_count(t) == l->count && t->dtype == l->dtype;
}

void zt_late_set(zt_tensor *t, const zt_start *start) {
  late *l = late_of(t);
  drop_start(l);
  l->start = *start;
  t->storage->version++;
}

zt_status zt_late_values(zt_ctx *c, const zt_tensor *t, int64_t first, int64_t count, void *out) {
  (void)c;
  return values(late_of(t), first, count, out);
}
