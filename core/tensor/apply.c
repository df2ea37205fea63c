/* apply.c - the one way into an op. */
#include <string.h>

#include "core/tensor/ctx.h"
#include "core/tensor/ops.h"

const zt_op *const zt_op_table[] = {
#define ZT_OP_ROW(name) &zt_op_##name,
    ZT_OPS(ZT_OP_ROW)
#undef ZT_OP_ROW
        NULL};

zt_status zt_call_out(zt_call *call, zt_dtype dtype, int ndim, const int64_t *shape) {
  ZT_TRY(zt_tensor_header(dtype, ndim, shape, &call->out[call->n_out]));
  call->n_out++;
  return ZT_OK;
}

static zt_status check_inputs(zt_ctx *c, zt_call *call) {
  for (int i = 0; i < call->n_in; i++) {
    zt_tensor *t = call->in[i];
    if (!t) continue;
    if (!t->storage) return zt_fail(ZT_STATE, "input %d %s has no bytes any more", i + 1, zt_shape_text(t));
    if (c->grad_enabled && call->op->backward && zt_wants_grad(t)) call->needs_grad |= 1u << i;
  }
  return c->watch ? zt_watch_inputs(c, call) : ZT_OK;
}

static zt_status pin(zt_tensor *t) { return t ? zt_storage_pin(t->storage) : ZT_OK; }

void zt_unpin_all(zt_tensor *const t[], int n) {
  for (int i = 0; i < n; i++)
    if (t[i]) zt_storage_unpin(t[i]->storage);
}

zt_status zt_pin_all(zt_tensor *const t[], int n) {
  for (int i = 0; i < n; i++) {
    zt_status st = pin(t[i]);
    if (st == ZT_OK) continue;
    zt_unpin_all(t, i);
    return st;
  }
  return ZT_OK;
}

/* A view of bytes that are away needs none of them. */
static bool reads_bytes(const zt_call *call) { return !call->op->view || !zt_tensor_is_contiguous(call->in[0]); }

static zt_status run_pinned(zt_ctx *c, zt_call *call) {
  ZT_TRY(call->op->shape(c, call));
  for (int i = 0; i < call->n_out && !call->op->view; i++) ZT_TRY(zt_tensor_fill_header(c, call->out[i]));
  ZT_TRY(call->op->forward(c, call));
  return call->needs_grad ? zt_tape_record(c, call) : ZT_OK;
}

static zt_status run(zt_ctx *c, zt_call *call) {
  ZT_TRY(check_inputs(c, call));
  if (!reads_bytes(call)) return run_pinned(c, call);
  ZT_TRY(zt_pin_all(call->in, call->n_in));
  zt_status st = run_pinned(c, call);
  zt_unpin_all(call->in, call->n_in);
  return st;
}

zt_status zt_apply(zt_ctx *c, zt_call *call, zt_tensor **outs) {
  const zt_op *op = call->op;
  call->save_in = op->save_in, call->save_out = op->save_out;
  call->needs_grad = 0, call->n_out = 0;
  memset(call->out, 0, sizeof call->out);
  memset(outs, 0, (size_t)op->n_out * sizeof *outs);
  zt_status st = run(c, call);
  for (int i = 0; i < ZT_MAX_OUT; i++) {
    if (st == ZT_OK && i < op->n_out)
      outs[i] = call->out[i];
    else
      zt_tensor_release(call->out[i]);
  }
  return zt_wrap(st, "%s", op->name);
}
