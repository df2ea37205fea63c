#include "core/train/optim.h"

#include <math.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/tensor/op.h"

typedef struct entry {
  zt_tensor *param;
  int group;
  int64_t steps;
  zt_tensor *m, *v;
  bool m_begun; /* a step has written m: it starts as the first gradient where momentum is turned on, as torch's does */
} entry;

struct zt_optim {
  zt_ctx *c;
  zt_optim_kind kind;
  entry *entries;
  int count, capacity;
};

zt_status zt_optim_new(zt_ctx *c, zt_optim_kind kind, zt_optim **out) {
  *out = zt_calloc(1, sizeof **out);
  ZT_CHECK_ALLOC(*out);
  (*out)->c = c, (*out)->kind = kind;
  return ZT_OK;
}

void zt_optim_free(zt_optim *o) {
  if (!o) return;
  for (int i = 0; i < o->count; i++) {
    zt_tensor_release(o->entries[i].param);
    zt_tensor_release(o->entries[i].m);
    zt_tensor_release(o->entries[i].v);
  }
  zt_free(o->entries);
  zt_free(o);
}

static zt_status check_param(const zt_optim *o, const zt_tensor *param) {
  if (!zt_dtype_is_float(param->dtype))
    return zt_fail(ZT_DTYPE, "a parameter is a float tensor, this is %s %s", zt_dtype_name(param->dtype),
                   zt_shape_text(param));
  if (param->node || !zt_tensor_is_contiguous(param))
    return zt_fail(ZT_INVALID, "a parameter is a contiguous leaf, the tensor %s was computed", zt_shape_text(param));
  for (int i = 0; i < o->count; i++)
    if (o->entries[i].param == param)
      return zt_fail(ZT_INVALID, "the parameter %s is in the optimizer already, as number %d", zt_shape_text(param),
                     i + 1);
  return ZT_OK;
}

zt_status zt_optim_add(zt_optim *o, zt_tensor *param, int group, int *index) {
  ZT_TRY(check_param(o, param));
  if (o->count == o->capacity) {
    int capacity = o->capacity ? 2 * o->capacity : 64;
    entry *entries = zt_realloc(o->entries, (size_t)capacity * sizeof *entries);
    ZT_CHECK_ALLOC(entries);
    o->entries = entries, o->capacity = capacity;
  }
  *index = o->count;
  o->entries[o->count++] = (entry){.param = zt_tensor_retain(param), .group = group};
  return ZT_OK;
}

bool zt_optim_needs_m(zt_optim_kind kind, const zt_hyper *h) { return kind != ZT_OPTIM_SGD || h->momentum != 0; }
bool zt_optim_needs_v(zt_optim_kind kind) { return kind == ZT_OPTIM_ADAM || kind == ZT_OPTIM_ADAMW; }

static zt_status state_new(zt_ctx *c, const zt_tensor *param, zt_tensor **state) {
  if (*state) return ZT_OK;
  zt_mem_kind was = zt_ctx_set_mem_kind(c, ZT_MEM_OPTIMIZER);
  zt_status st = zt_tensor_zeros(c, state, param->dtype, param->ndim, param->shape);
  zt_ctx_set_mem_kind(c, was);
  return st;
}

/* Everything that may fail comes before the first write. */
static zt_status prepare(zt_optim *o, entry *e, const zt_hyper *h) {
  if (zt_dtype_nbytes(e->param->dtype) == 2)
    return zt_fail(ZT_DTYPE,
                   "optimizers step float32 and float64 parameters, this one is %s %s; an engine keeps a master",
                   zt_dtype_name(e->param->dtype), zt_shape_text(e->param));
  if (!zt_tensor_same_shape(e->param->grad, e->param))
    return zt_fail(ZT_SHAPE, "the gradient is %s, its parameter %s", zt_shape_text(e->param->grad),
                   zt_shape_text(e->param));
  if (zt_optim_needs_m(o->kind, h)) ZT_TRY(state_new(o->c, e->param, &e->m));
  return zt_optim_needs_v(o->kind) ? state_new(o->c, e->param, &e->v) : ZT_OK;
}

/* beta^t by pow, as torch.optim has it. */
zt_optim_step zt_optim_constants(zt_optim_kind kind, const zt_hyper *h, int64_t t, bool first) {
  zt_optim_step s = {.grad_scale = h->grad_scale,
                     .lr = h->lr,
                     .weight_decay = h->weight_decay,
                     .beta1 = h->beta1,
                     .beta2 = h->beta2,
                     .eps = h->eps,
                     .decoupled = kind == ZT_OPTIM_ADAMW,
                     .momentum = h->momentum,
                     .dampening = h->dampening,
                     .nesterov = h->nesterov,
                     .first = first};
  s.step_size = h->lr / (1 - pow(h->beta1, (double)t));
  s.bias2_sqrt = sqrt(1 - pow(h->beta2, (double)t));
  return s;
}

zt_status zt_optim_span(zt_ctx *c, zt_optim_kind kind, const zt_optim_step *step, zt_dtype state, zt_dtype tg, void *p,
                        void *m, void *v, const void *grad, size_t count) {
  const zt_kernels *k = zt_k(c);
  switch (kind) {
    case ZT_OPTIM_SGD:
      return k->optim_sgd(zt_s(c), state, tg, p, m, grad, step, count);
    case ZT_OPTIM_LION:
      return k->optim_lion(zt_s(c), state, tg, p, m, grad, step, count);
    default:
      return k->optim_adam(zt_s(c), state, tg, p, m, v, grad, step, count);
  }
}

static zt_status step_one(zt_optim *o, entry *e, const zt_tensor *grad, const zt_hyper *h) {
  bool needs_m = zt_optim_needs_m(o->kind, h);
  zt_optim_step step = zt_optim_constants(o->kind, h, ++e->steps, !e->m_begun);
  e->param->storage->version++;
  e->m_begun |= needs_m;
  return zt_optim_span(o->c, o->kind, &step, e->param->dtype, grad->dtype, zt_tensor_data(e->param),
                       needs_m ? zt_tensor_data(e->m) : NULL, zt_data_or_null(e->v), zt_tensor_data(grad),
                       (size_t)zt_tensor_count(e->param));
}

zt_status zt_optim_step_groups(zt_optim *o, const zt_hyper h[], int n_groups) {
  zt_status st = ZT_OK;
  zt_tensor **grads = zt_calloc((size_t)o->count, sizeof *grads);
  ZT_CHECK_ALLOC(grads);
  for (int i = 0; i < o->count && st == ZT_OK; i++) {
    entry *e = &o->entries[i];
    if (e->group >= n_groups || !e->param->grad) continue;
    st = prepare(o, e, &h[e->group]);
    if (st == ZT_OK) st = zt_contiguous(o->c, e->param->grad, &grads[i]);
  }
  for (int i = 0; i < o->count && st == ZT_OK; i++)
    if (grads[i]) st = step_one(o, &o->entries[i], grads[i], &h[o->entries[i].group]);
  for (int i = 0; i < o->count; i++) zt_tensor_release(grads[i]);
  zt_free(grads);
  return zt_wrap(st, "optimizer step");
}

void zt_optim_zero_grad(zt_optim *o) {
  for (int i = 0; i < o->count; i++) {
    zt_tensor_release(o->entries[i].param->grad);
    o->entries[i].param->grad = NULL;
  }
}

void zt_optim_get_state(const zt_optim *o, int index, int64_t *steps, zt_tensor **m, zt_tensor **v) {
  const entry *e = &o->entries[index];
  *steps = e->steps, *m = e->m, *v = e->v;
}

/* A copy of 'source' in the parameter's dtype and the optimizer's memory, into *state. */
static zt_status state_copy(zt_ctx *c, const zt_tensor *param, const zt_tensor *source, zt_tensor **state) {
  *state = NULL;
  if (!source) return ZT_OK;
  if (!zt_tensor_same_shape(source, param))
    return zt_fail(ZT_SHAPE, "optimizer state %s, parameter %s", zt_shape_text(source), zt_shape_text(param));
  ZT_TRY(state_new(c, param, state));
  zt_status st = zt_copy_(c, *state, source);
  if (st != ZT_OK) zt_tensor_release(*state), *state = NULL;
  return st;
}

zt_status zt_optim_set_state(zt_optim *o, int index, int64_t steps, zt_tensor *m, zt_tensor *v) {
  if (index < 0 || index >= o->count)
    return zt_fail(ZT_INVALID, "parameter %d of an optimizer of %d", index + 1, o->count);
  entry *e = &o->entries[index];
  zt_tensor *new_m, *new_v;
  ZT_TRY(state_copy(o->c, e->param, m, &new_m));
  zt_status st = state_copy(o->c, e->param, v, &new_v);
  if (st != ZT_OK) {
    zt_tensor_release(new_m);
    return st;
  }
  zt_tensor_release(e->m);
  zt_tensor_release(e->v);
  e->steps = steps, e->m = new_m, e->v = new_v, e->m_begun = new_m != NULL;
  return ZT_OK;
}
