/* checkpoint_export.c - tensors of a checkpoint to a safetensors file, a piece at a time. */
#include <string.h>

#include "core/base/mem.h"
#include "core/train/checkpoint_parts.h"

enum { PIECE = 1 << 16 /* elements */ };

typedef struct export {
  zt_checkpoint *ck;
  const zt_checkpoint_item **from; /* owned; as is 'items' */
  zt_safetensors_item *items;
  size_t count;
}
export;

/* --- from one float dtype to another, as the casts of kernels do: those of 16 bits by way of float32 */

static void to_float32(zt_dtype t, float *y, const void *x, size_t n) {
  const uint16_t *half = x;
  for (size_t i = 0; i < n && t == ZT_F64; i++) y[i] = (float)((const double *)x)[i];
  for (size_t i = 0; i < n && t == ZT_BF16; i++) y[i] = zt_bf16_to_f32(half[i]);
  for (size_t i = 0; i < n && t == ZT_F16; i++) y[i] = zt_f16_to_f32(half[i]);
  if (t == ZT_F32) memcpy(y, x, n * sizeof *y);
}

static void from_float32(zt_dtype t, void *y, const float *x, size_t n) {
  uint16_t *half = y;
  for (size_t i = 0; i < n && t == ZT_F64; i++) ((double *)y)[i] = x[i];
  for (size_t i = 0; i < n && t == ZT_BF16; i++) half[i] = zt_f32_to_bf16(x[i]);
  for (size_t i = 0; i < n && t == ZT_F16; i++) half[i] = zt_f32_to_f16(x[i]);
  if (t == ZT_F32) memcpy(y, x, n * sizeof *x);
}

typedef struct room {
  double read[PIECE], written[PIECE];
  float between[PIECE];
} room;

static zt_status write_elements(const export *x, size_t i, zt_writer *w, room *r) {
  const zt_checkpoint_item *item = x->from[i];
  zt_dtype to = x->items[i].dtype;
  for (int64_t done = 0; done < item->count; done += PIECE) {
    size_t n = item->count - done < PIECE ? (size_t)(item->count - done) : PIECE;
    const void *bytes = r->read;
    ZT_TRY(zt_checkpoint_read(x->ck, item, done, (int64_t)n, r->read));
    if (to != item->dtype) {
      to_float32(item->dtype, r->between, r->read, n);
      from_float32(to, r->written, r->between, n);
      bytes = r->written;
    }
    ZT_TRY(zt_writer_write(w, bytes, n * zt_dtype_nbytes(to)));
  }
  return ZT_OK;
}

static zt_status write_tensor(void *user, size_t i, zt_writer *w) {
  room *r = zt_malloc(sizeof *r);
  ZT_CHECK_ALLOC(r);
  zt_status st = write_elements(user, i, w, r);
  zt_free(r);
  return st;
}

static zt_status find(export *x, size_t i, const char *name, const char *as, zt_dtype dtype) {
  const zt_checkpoint_item *item = x->from[i] = zt_checkpoint_find(x->ck, name);
  if (!item) return zt_fail(ZT_INVALID, "the checkpoint has no tensor '%s'", name);
  if (item->dtype != dtype && !(zt_dtype_is_float(item->dtype) && zt_dtype_is_float(dtype)))
    return zt_fail(ZT_DTYPE, "tensor '%s' is %s, and cannot be written as %s", name, zt_dtype_name(item->dtype),
                   zt_dtype_name(dtype));
  x->items[i] = (zt_safetensors_item){.name = as, .dtype = dtype, .ndim = item->ndim};
  memcpy(x->items[i].shape, item->shape, sizeof item->shape);
  return ZT_OK;
}

static zt_status find_all(export *x, const char *const names[], const char *const as[], const zt_dtype dtypes[]) {
  x->from = zt_malloc(x->count * sizeof *x->from);
  x->items = zt_malloc(x->count * sizeof *x->items);
  if (!x->from || !x->items) return ZT_NOMEM;
  for (size_t i = 0; i < x->count; i++) ZT_TRY(find(x, i, names[i], as[i], dtypes[i]));
  return ZT_OK;
}

zt_status zt_checkpoint_export(zt_checkpoint *ck, const char *path, const char *const names[], const char *const as[],
                               const zt_dtype dtypes[], size_t count) {
  static const char *const metadata[] = {"format", "pt", NULL};
  export x = {.ck = ck, .count = count};
  zt_status st = find_all(&x, names, as, dtypes);
  if (st == ZT_OK) st = zt_safetensors_save(path, x.items, count, metadata, write_tensor, &x);
  zt_free(x.from);
  zt_free(x.items);
  return st;
}
