#include "core/tensor/ctx.h"

#include "core/base/mem.h"

zt_status zt_ctx_new(const zt_context_options *options, zt_ctx **out) {
  zt_status st;
  zt_ctx *c = *out = zt_calloc(1, sizeof *c);
  ZT_CHECK_ALLOC(c);
  c->grad_enabled = true;
  c->mem_kind = ZT_MEM_ACTIVATION;
  ZT_TRY_GOTO(zt_device_open(options && options->device ? options->device : "cpu", &c->device), fail);
  ZT_TRY_GOTO(zt_pool_new(c->device, options ? options->device_memory : 0, &c->pool), fail);
  c->world = options ? options->world : NULL;
  c->owns_world = !c->world;
  if (c->owns_world) ZT_TRY_GOTO(zt_world_open(&(zt_world_options){0}, &c->world), fail);
  return ZT_OK;
fail:
  zt_ctx_free(c);
  *out = NULL;
  return st;
}

void zt_ctx_free(zt_ctx *c) {
  if (!c) return;
  zt_queue_free(c->queue);
  if (c->owns_world) zt_world_close(c->world);
  zt_pool_free(c->pool);
  zt_device_close(c->device);
  zt_free(c);
}

zt_status zt_ctx_queue(zt_ctx *c, zt_queue **out) {
  if (!c->queue) ZT_TRY(zt_queue_new(zt_world_size(c->world) > 1, &c->queue));
  *out = c->queue;
  return ZT_OK;
}

zt_pool *zt_ctx_pool(zt_ctx *c) { return c->pool; }
zt_device *zt_ctx_device(zt_ctx *c) { return c->device; }
zt_world *zt_ctx_world(zt_ctx *c) { return c->world; }
zt_random *zt_ctx_random(zt_ctx *c) { return &c->random; }
bool zt_ctx_grad_enabled(const zt_ctx *c) { return c->grad_enabled; }

bool zt_ctx_set_grad_enabled(zt_ctx *c, bool on) {
  bool was = c->grad_enabled;
  c->grad_enabled = on;
  return was;
}

zt_mem_kind zt_ctx_set_mem_kind(zt_ctx *c, zt_mem_kind kind) {
  zt_mem_kind was = c->mem_kind;
  c->mem_kind = kind;
  return was;
}

void zt_ctx_add_observer(zt_ctx *c, zt_observer *observer) {
  observer->next = c->observers;
  c->observers = observer;
}

void zt_ctx_remove_observer(zt_ctx *c, zt_observer *observer) {
  for (zt_observer **at = &c->observers; *at; at = &(*at)->next) {
    if (*at != observer) continue;
    *at = observer->next;
    return;
  }
}

size_t zt_tape_length(const zt_ctx *c) { return c->tape.length; }
const zt_kernels *zt_k(zt_ctx *c) { return c->device->kernels; }
zt_stream *zt_s(zt_ctx *c) { return c->device->stream; }

zt_rng_key zt_next_rng_key(zt_ctx *c) {
  zt_random *r = &c->random;
  return (zt_rng_key){zt_rng_mix(r->seed, r->step), r->call++, r->first_sample};
}
