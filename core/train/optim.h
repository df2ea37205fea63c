/* optim.h - optimizers: the state of each parameter and one step over all of a group.
** State is float32 (float64 for float64 parameters), made when a parameter first gets a gradient, counted as
** "optimizer". Formulas: zt_optim_step in kernels.h. */
#ifndef zt_optim_h
#define zt_optim_h

#include "core/tensor/tensor.h"

/* X(constant, name) */
#define ZT_OPTIMS(X) X(ADAMW, adamw) X(ADAM, adam) X(SGD, sgd) X(LION, lion)
typedef enum zt_optim_kind {
#define ZT_OPTIM_ENUM(id, name) ZT_OPTIM_##id,
  ZT_OPTIMS(ZT_OPTIM_ENUM)
#undef ZT_OPTIM_ENUM
      ZT_N_OPTIMS
} zt_optim_kind;

/* Hyperparameters of one step of one group; each kind reads its own. */
typedef struct zt_hyper {
  double lr, beta1, beta2, eps, weight_decay, momentum, dampening;
  bool nesterov;
  double grad_scale; /* gradients are multiplied by it: 1, or what clipping asks for */
} zt_hyper;

/* --- the arithmetic, for whoever keeps state in a way of his own */
/* Which moments a step needs. */
ZT_API bool zt_optim_needs_m(zt_optim_kind kind, const zt_hyper *h);
ZT_API bool zt_optim_needs_v(zt_optim_kind kind);
/* A step's constants, in double: 't' is its number from 1, 'first': m has not been written yet. */
ZT_API zt_optim_step zt_optim_constants(zt_optim_kind kind, const zt_hyper *h, int64_t t, bool first);
/* Steps 'count' elements; state: dtype of p, m and v (NULL where not needed); tg that of the gradient. */
ZT_API zt_status zt_optim_span(zt_ctx *c, zt_optim_kind kind, const zt_optim_step *step, zt_dtype state, zt_dtype tg,
                               void *p, void *m, void *v, const void *grad, size_t count);

typedef struct zt_optim zt_optim;

ZT_API zt_status zt_optim_new(zt_ctx *c, zt_optim_kind kind, zt_optim **out);
ZT_API void zt_optim_free(zt_optim *o); /* NULL ok */
/* Adds a float tensor to a group (0, 1, ...); retains it. A tensor added twice raises. '*index' is its number. */
ZT_API zt_status zt_optim_add(zt_optim *o, zt_tensor *param, int group, int *index);
/* Steps every parameter of groups 0 to n_groups - 1 that has a gradient, with its group's numbers; all or none: memory is
** got before anything is written. */
ZT_API zt_status zt_optim_step_groups(zt_optim *o, const zt_hyper h[], int n_groups);
/* Drops the gradients of all parameters. */
ZT_API void zt_optim_zero_grad(zt_optim *o);
/* State of parameter 'index' (borrowed, NULL where there is none yet): its steps so far and its moments. For
** checkpoints; set retains copies. */
ZT_API void zt_optim_get_state(const zt_optim *o, int index, int64_t *steps, zt_tensor **m, zt_tensor **v);
ZT_API zt_status zt_optim_set_state(zt_optim *o, int index, int64_t steps, zt_tensor *m, zt_tensor *v);

#endif
