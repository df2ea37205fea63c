/* lua_ops.c - the operations of core/tensor/ops.h as functions of ztrain.core, as methods, and as operators.
** Lua's dimensions and positions count from 1; a number beside a tensor takes the tensor's dtype. */
#include <math.h>

#include "bindings/lua_state.h"
#include "bindings/lua_subjects.h"

/* --- elementwise */

typedef zt_status (*zt_unary_fn)(zt_ctx *, zt_tensor **, zt_tensor *);

static int unary(lua_State *L, zt_unary_fn fn) {
  zt_tensor *x = zt_check_tensor(L, 1);
  zt_ctx *c = zt_lua_ctx(L);
  zt_lua_try(L, fn(c, zt_new_tensor(L), x));
  return 1;
}

#define UNARY_FUNCTIONS(U) \
  U(neg, zt_neg)           \
  U(exp, zt_exp)           \
  U(log, zt_log_)          \
  U(sqrt, zt_sqrt)         \
  U(rsqrt, zt_rsqrt)       \
  U(tanh, zt_tanh)         \
  U(sigmoid, zt_sigmoid) U(relu, zt_relu) U(gelu, zt_gelu) U(gelu_tanh, zt_gelu_tanh) U(silu, zt_silu) U(copy, zt_copy)
#define UNARY_FUNCTION(name, fn) \
  static int l_##name(lua_State *L) { return unary(L, fn); }
UNARY_FUNCTIONS(UNARY_FUNCTION)

/* Where core has a form for a float tensor and a number that gives the same bits as a scalar tensor would, at less cost.
** The shift of a product is -0, which leaves the sign of a zero alone. False: there is none. */
static bool with_number(zt_ctx *c, zt_binary kind, zt_tensor **y, zt_tensor *t, double n, bool n_first, zt_status *st) {
  switch (kind) {
    case ZT_BINARY_ADD:
      *st = zt_affine(c, y, t, 1, n);
      return true;
    case ZT_BINARY_SUB:
      *st = n_first ? zt_affine(c, y, t, -1, n) : zt_affine(c, y, t, 1, -n);
      return true;
    case ZT_BINARY_MUL:
      *st = zt_affine(c, y, t, n, -0.0);
      return true;
    case ZT_BINARY_POW:
      if (n_first) return false;
      *st = zt_pow_scalar(c, y, t, n);
      return true;
    default:
      return false;
  }
}

static zt_status two_tensors(zt_ctx *c, zt_binary kind, zt_tensor **y, zt_tensor *a, zt_tensor *b) {
  switch (kind) {
    case ZT_BINARY_ADD:
      return zt_add(c, y, a, b);
    case ZT_BINARY_SUB:
      return zt_sub(c, y, a, b);
    case ZT_BINARY_MUL:
      return zt_mul(c, y, a, b);
    case ZT_BINARY_DIV:
      return zt_div(c, y, a, b);
    default:
      return zt_pow(c, y, a, b);
  }
}

/* The tensor among arguments 1 and 2 that says what dtype a number beside it has. */
static zt_tensor *first_tensor(lua_State *L, int a, int b) {
  return zt_check_tensor(L, lua_type(L, a) == LUA_TNUMBER ? b : a);
}

static int binary(lua_State *L, zt_binary kind) {
  zt_tensor *t = first_tensor(L, 1, 2);
  zt_ctx *c = zt_lua_ctx(L);
  bool n_first = lua_type(L, 1) == LUA_TNUMBER, number = n_first || lua_type(L, 2) == LUA_TNUMBER;
  if (number && zt_dtype_is_float(t->dtype)) {
    zt_status st;
    zt_tensor **y = zt_new_tensor(L);
    if (with_number(c, kind, y, t, lua_tonumber(L, n_first ? 1 : 2), n_first, &st)) {
      zt_lua_try(L, st);
      return 1;
    }
  }
  zt_tensor *a = zt_check_operand(L, 1, t->dtype), *b = zt_check_operand(L, 2, t->dtype);
  zt_lua_try(L, two_tensors(c, kind, zt_new_tensor(L), a, b));
  return 1;
}
#define BINARY_FUNCTION(id, name) \
  static int l_##name(lua_State *L) { return binary(L, ZT_BINARY_##id); }
ZT_BINARY(BINARY_FUNCTION)

static int compare(lua_State *L, zt_compare kind) {
  zt_tensor *t = first_tensor(L, 1, 2);
  zt_ctx *c = zt_lua_ctx(L);
  zt_tensor *a = zt_check_operand(L, 1, t->dtype), *b = zt_check_operand(L, 2, t->dtype);
  zt_lua_try(L, zt_compare_op(c, zt_new_tensor(L), a, b, kind));
  return 1;
}
#define COMPARE_FUNCTION(id, name) \
  static int l_##name(lua_State *L) { return compare(L, ZT_COMPARE_##id); }
ZT_COMPARE(COMPARE_FUNCTION)

static int l_clamp(lua_State *L) {
  zt_tensor *x = zt_check_tensor(L, 1);
  zt_ctx *c = zt_lua_ctx(L);
  double low = zt_opt_number(L, 2, -INFINITY), high = zt_opt_number(L, 3, INFINITY);
  zt_lua_try(L, zt_clamp(c, zt_new_tensor(L), x, low, high));
  return 1;
}

static int l_where(lua_State *L) {
  zt_tensor *cond = zt_check_tensor(L, 1), *t = first_tensor(L, 2, 3);
  zt_ctx *c = zt_lua_ctx(L);
  zt_tensor *a = zt_check_operand(L, 2, t->dtype), *b = zt_check_operand(L, 3, t->dtype);
  zt_lua_try(L, zt_where(c, zt_new_tensor(L), cond, a, b));
  return 1;
}

static int l_masked_fill(lua_State *L) {
  zt_tensor *x = zt_check_tensor(L, 1), *mask = zt_check_tensor(L, 2);
  zt_ctx *c = zt_lua_ctx(L);
  double value = zt_arg_number(L, 3);
  zt_lua_try(L, zt_masked_fill(c, zt_new_tensor(L), x, mask, value));
  return 1;
}

/* --- reductions (x, d, keepdim); without d over all */

typedef zt_status (*zt_reduce_fn)(zt_ctx *, zt_tensor **, zt_tensor *, int, bool);
typedef zt_status (*zt_extreme_fn)(zt_ctx *, zt_tensor **, zt_tensor **, zt_tensor *, int, bool);

static int reduce_dim(lua_State *L, const zt_tensor *x) {
  return lua_isnoneornil(L, 2) ? ZT_ALL_DIMS : zt_arg_dim(L, 2, x->ndim, 0);
}

static int reduce(lua_State *L, zt_reduce_fn fn) {
  zt_tensor *x = zt_check_tensor(L, 1);
  zt_ctx *c = zt_lua_ctx(L);
  int dim = reduce_dim(L, x);
  bool keepdim = zt_opt_boolean(L, 3, false);
  zt_lua_try(L, fn(c, zt_new_tensor(L), x, dim, keepdim));
  return 1;
}

static int extreme(lua_State *L, zt_extreme_fn fn) {
  zt_tensor *x = zt_check_tensor(L, 1);
  zt_ctx *c = zt_lua_ctx(L);
  int dim = reduce_dim(L, x);
  bool keepdim = zt_opt_boolean(L, 3, false);
  zt_tensor **y = zt_new_tensor(L);
  zt_lua_try(L, fn(c, y, dim == ZT_ALL_DIMS ? NULL : zt_new_tensor(L), x, dim, keepdim));
  return dim == ZT_ALL_DIMS ? 1 : 2;
}

#define REDUCE_FUNCTIONS(R) R(sum) R(mean) R(norm) R(argmax) R(logsumexp)
#define REDUCE_FUNCTION(name) \
  static int l_##name(lua_State *L) { return reduce(L, zt_##name); }
REDUCE_FUNCTIONS(REDUCE_FUNCTION)

static int l_max(lua_State *L) { return extreme(L, zt_max); }
static int l_min(lua_State *L) { return extreme(L, zt_min); }

static int l_var(lua_State *L) {
  zt_tensor *x = zt_check_tensor(L, 1);
  zt_ctx *c = zt_lua_ctx(L);
  int dim = reduce_dim(L, x), correction = (int)zt_opt_integer(L, 4, 1);
  bool keepdim = zt_opt_boolean(L, 3, false);
  zt_lua_try(L, zt_var(c, zt_new_tensor(L), x, dim, keepdim, correction));
  return 1;
}

static int l_topk(lua_State *L) {
  zt_tensor *x = zt_check_tensor(L, 1);
  zt_ctx *c = zt_lua_ctx(L);
  int64_t k = zt_arg_integer(L, 2);
  int dim = zt_arg_dim(L, 3, x->ndim, -1);
  bool largest = zt_opt_boolean(L, 4, true);
  zt_tensor **values = zt_new_tensor(L), **index = zt_new_tensor(L);
  zt_lua_try(L, zt_topk(c, values, index, x, k, dim, largest));
  return 2;
}

/* --- products, layers */

static int l_matmul(lua_State *L) {
  zt_tensor *a = zt_check_tensor(L, 1), *b = zt_check_tensor(L, 2);
  zt_ctx *c = zt_lua_ctx(L);
  zt_lua_try(L, zt_matmul(c, zt_new_tensor(L), a, b));
  return 1;
}

static int l_linear(lua_State *L) {
  static const char *const names[] = {"act", "in_out", NULL};
  zt_tensor *x = zt_check_tensor(L, 1), *w = zt_check_tensor(L, 2), *b = zt_opt_tensor(L, 3);
  zt_ctx *c = zt_lua_ctx(L);
  zt_check_options(L, 4, names);
  zt_act act = zt_option_act(L, 4, "act");
  bool in_out = zt_option_boolean(L, 4, "in_out", false);
  zt_lua_try(L, zt_linear(c, zt_new_tensor(L), x, w, b, act, in_out));
  return 1;
}

static int l_layer_norm(lua_State *L) {
  zt_tensor *x = zt_check_tensor(L, 1), *w = zt_opt_tensor(L, 2), *b = zt_opt_tensor(L, 3);
  zt_ctx *c = zt_lua_ctx(L);
  double eps = zt_opt_number(L, 4, 1e-5);
  zt_lua_try(L, zt_layer_norm(c, zt_new_tensor(L), x, w, b, eps));
  return 1;
}

static int l_residual_layer_norm(lua_State *L) {
  zt_tensor *x = zt_check_tensor(L, 1), *residual = zt_check_tensor(L, 2);
  zt_tensor *w = zt_opt_tensor(L, 3), *b = zt_opt_tensor(L, 4);
  zt_ctx *c = zt_lua_ctx(L);
  double eps = zt_opt_number(L, 5, 1e-5);
  zt_tensor **y = zt_new_tensor(L), **sum = zt_new_tensor(L);
  zt_lua_try(L, zt_residual_layer_norm(c, y, sum, x, residual, w, b, eps));
  return 2;
}

typedef zt_status (*zt_softmax_fn)(zt_ctx *, zt_tensor **, zt_tensor *, zt_tensor *, int);

static int softmax(lua_State *L, zt_softmax_fn fn) {
  zt_tensor *x = zt_check_tensor(L, 1), *mask = zt_opt_tensor(L, 3);
  zt_ctx *c = zt_lua_ctx(L);
  int dim = zt_arg_dim(L, 2, x->ndim, -1);
  zt_lua_try(L, fn(c, zt_new_tensor(L), x, mask, dim));
  return 1;
}

static int l_softmax(lua_State *L) { return softmax(L, zt_softmax); }
static int l_log_softmax(lua_State *L) { return softmax(L, zt_log_softmax); }

static int l_dropout(lua_State *L) {
  zt_tensor *x = zt_check_tensor(L, 1);
  zt_ctx *c = zt_lua_ctx(L);
  double p = zt_arg_number(L, 2);
  zt_lua_try(L, zt_dropout(c, zt_new_tensor(L), x, p));
  return 1;
}

static zt_attention_options attention_options(lua_State *L, int arg, zt_tensor **mask, zt_tensor **bias) {
  static const char *const names[] = {"mask", "bias", "scale", "causal", "dropout", NULL};
  zt_check_options(L, arg, names);
  *mask = zt_option_tensor(L, arg, "mask");
  *bias = zt_option_tensor(L, arg, "bias");
  return (zt_attention_options){.scale = zt_option_number(L, arg, "scale", 0),
                                .causal = zt_option_boolean(L, arg, "causal", false),
                                .dropout = zt_option_number(L, arg, "dropout", 0)};
}

static int l_attention(lua_State *L) {
  zt_tensor *q = zt_check_tensor(L, 1), *k = zt_check_tensor(L, 2), *v = zt_check_tensor(L, 3), *mask, *bias;
  zt_ctx *c = zt_lua_ctx(L);
  zt_attention_options options = attention_options(L, 4, &mask, &bias);
  zt_lua_try(L, zt_attention_op(c, zt_new_tensor(L), q, k, v, mask, bias, &options));
  return 1;
}

static int l_attention_qkv(lua_State *L) {
  zt_tensor *qkv = zt_check_tensor(L, 1), *mask, *bias;
  zt_ctx *c = zt_lua_ctx(L);
  int64_t n_head = zt_arg_integer(L, 2);
  zt_attention_options options = attention_options(L, 3, &mask, &bias);
  zt_lua_try(L, zt_attention_qkv(c, zt_new_tensor(L), qkv, n_head, mask, bias, &options));
  return 1;
}

static int l_conv1d(lua_State *L) {
  static const char *const names[] = {"stride", "padding", "dilation", NULL};
  zt_tensor *x = zt_check_tensor(L, 1), *w = zt_check_tensor(L, 2), *b = zt_opt_tensor(L, 3);
  zt_ctx *c = zt_lua_ctx(L);
  zt_check_options(L, 4, names);
  int64_t stride = zt_option_integer(L, 4, "stride", 1), padding = zt_option_integer(L, 4, "padding", 0);
  int64_t dilation = zt_option_integer(L, 4, "dilation", 1);
  zt_lua_try(L, zt_conv1d(c, zt_new_tensor(L), x, w, b, stride, padding, dilation));
  return 1;
}

/* --- losses */

typedef struct zt_loss_options {
  int64_t ignore_index;
  double smoothing;
} zt_loss_options;

static zt_loss_options loss_options(lua_State *L, int arg) {
  static const char *const names[] = {"ignore_index", "label_smoothing", NULL};
  zt_check_options(L, arg, names);
  return (zt_loss_options){zt_option_integer(L, arg, "ignore_index", -100),
                           zt_option_number(L, arg, "label_smoothing", 0)};
}

static int l_cross_entropy(lua_State *L) {
  zt_tensor *logits = zt_check_tensor(L, 1), *labels = zt_check_tensor(L, 2);
  zt_ctx *c = zt_lua_ctx(L);
  zt_loss_options o = loss_options(L, 3);
  zt_tensor **loss = zt_new_tensor(L), **count = zt_new_tensor(L);
  zt_lua_try(L, zt_cross_entropy(c, loss, count, logits, labels, o.ignore_index, o.smoothing));
  return 2;
}

static int l_linear_cross_entropy(lua_State *L) {
  zt_tensor *x = zt_check_tensor(L, 1), *w = zt_check_tensor(L, 2), *labels = zt_check_tensor(L, 3);
  zt_ctx *c = zt_lua_ctx(L);
  zt_loss_options o = loss_options(L, 4);
  zt_tensor **loss = zt_new_tensor(L), **count = zt_new_tensor(L);
  zt_lua_try(L, zt_linear_cross_entropy(c, loss, count, x, w, labels, o.ignore_index, o.smoothing));
  return 2;
}

static int l_mse(lua_State *L) {
  zt_tensor *x = zt_check_tensor(L, 1), *target = zt_check_tensor(L, 2);
  zt_ctx *c = zt_lua_ctx(L);
  zt_lua_try(L, zt_mse(c, zt_new_tensor(L), x, target));
  return 1;
}

/* --- rows picked by number */

static int l_embedding(lua_State *L) {
  zt_tensor *w = zt_check_tensor(L, 1), *ids = zt_check_tensor(L, 2);
  zt_ctx *c = zt_lua_ctx(L);
  zt_lua_try(L, zt_embedding(c, zt_new_tensor(L), w, ids));
  return 1;
}

typedef zt_status (*zt_pick_fn)(zt_ctx *, zt_tensor **, zt_tensor *, int, zt_tensor *);

static int pick(lua_State *L, zt_pick_fn fn) {
  zt_tensor *x = zt_check_tensor(L, 1), *index = zt_check_tensor(L, 3);
  zt_ctx *c = zt_lua_ctx(L);
  int dim = zt_arg_dim(L, 2, x->ndim, 0);
  zt_lua_try(L, fn(c, zt_new_tensor(L), x, dim, index));
  return 1;
}

static int l_gather(lua_State *L) { return pick(L, zt_gather); }
static int l_index_select(lua_State *L) { return pick(L, zt_index_select); }

static int l_scatter_add(lua_State *L) {
  zt_tensor *x = zt_check_tensor(L, 1), *index = zt_check_tensor(L, 3), *src = zt_check_tensor(L, 4);
  zt_ctx *c = zt_lua_ctx(L);
  int dim = zt_arg_dim(L, 2, x->ndim, 0);
  zt_lua_try(L, zt_scatter_add(c, zt_new_tensor(L), x, dim, index, src));
  return 1;
}

/* --- shapes */

typedef zt_status (*zt_join_fn)(zt_ctx *, zt_tensor **, zt_tensor *const[], int, int);

/* 'extra': dimensions that the result has over those of the parts. */
static int join(lua_State *L, zt_join_fn fn, int extra) {
  int n;
  lua_settop(L, 2);
  zt_tensor **list = zt_check_tensors(L, 1, &n);
  zt_ctx *c = zt_lua_ctx(L);
  int dim = n ? zt_arg_dim(L, 2, list[0]->ndim + extra, 1) : 0;
  zt_lua_try(L, fn(c, zt_new_tensor(L), list, n, dim));
  return 1;
}

static int l_cat(lua_State *L) { return join(L, zt_cat, 0); }
static int l_stack(lua_State *L) { return join(L, zt_stack, 1); }

/* Lengths of the parts of argument 2, a table of them or the length of all but the last. Pushes the array. */
static int64_t *split_sizes(lua_State *L, int64_t length, int *n) {
  bool table = lua_istable(L, 2);
  int64_t size = table ? 0 : zt_arg_integer(L, 2);
  if (!table && size < 1) zt_arg_error(L, 2, "parts must have at least one element");
  int64_t count = table ? (int64_t)lua_rawlen(L, 2) : length == 0 ? 1 : (length - 1) / size + 1;
  luaL_checkstack(L, (int)(count < INT32_MAX / 2 ? count : INT32_MAX / 2) + 8, "too many parts");
  int64_t *sizes = zt_new_buffer(L, (size_t)count * sizeof *sizes);
  for (int i = 0; i < (int)count; i++) {
    int64_t left = length - i * size;
    if (table) lua_rawgeti(L, 2, i + 1);
    sizes[i] = table ? zt_arg_integer(L, -1) : left < size ? left : size;
    if (table) lua_pop(L, 1);
  }
  *n = (int)count;
  return sizes;
}

static int l_split(lua_State *L) {
  zt_tensor *x = zt_check_tensor(L, 1);
  zt_ctx *c = zt_lua_ctx(L);
  int n, dim = zt_arg_dim(L, 3, x->ndim, 1);
  int64_t *sizes = split_sizes(L, x->ndim ? x->shape[dim] : 0, &n);
  zt_tensor **parts = zt_new_buffer(L, (size_t)n * sizeof *parts);
  zt_tensor ***slots = zt_new_buffer(L, (size_t)n * sizeof *slots);
  for (int i = 0; i < n; i++) slots[i] = zt_new_tensor(L);
  zt_lua_try(L, zt_split(c, parts, x, sizes, n, dim));
  for (int i = 0; i < n; i++) *slots[i] = parts[i];
  return n;
}

static int l_reshape(lua_State *L) {
  int ndim;
  int64_t shape[ZT_MAX_DIM];
  zt_tensor *x = zt_check_tensor(L, 1);
  zt_ctx *c = zt_lua_ctx(L);
  zt_arg_sizes(L, 2, &ndim, shape);
  zt_lua_try(L, zt_reshape(c, zt_new_tensor(L), x, ndim, shape));
  return 1;
}

static int l_view(lua_State *L) {
  l_reshape(L);
  zt_tensor *x = zt_check_tensor(L, 1), *y = zt_check_tensor(L, -1);
  if (x->storage == y->storage) return 1;
  return zt_lua_raise(L, "view: %s of %s needs a copy, for it is not contiguous; use reshape", zt_shape_text(y),
                      zt_shape_text(x));
}

static int l_expand(lua_State *L) {
  int ndim;
  int64_t shape[ZT_MAX_DIM];
  zt_tensor *x = zt_check_tensor(L, 1);
  zt_ctx *c = zt_lua_ctx(L);
  zt_arg_sizes(L, 2, &ndim, shape);
  zt_lua_try(L, zt_expand(c, zt_new_tensor(L), x, ndim, shape));
  return 1;
}

static int l_transpose(lua_State *L) {
  zt_tensor *x = zt_check_tensor(L, 1);
  zt_ctx *c = zt_lua_ctx(L);
  int dim1 = zt_arg_dim(L, 2, x->ndim, 0), dim2 = zt_arg_dim(L, 3, x->ndim, 0);
  zt_lua_try(L, zt_transpose(c, zt_new_tensor(L), x, dim1, dim2));
  return 1;
}

static int l_permute(lua_State *L) {
  zt_tensor *x = zt_check_tensor(L, 1);
  zt_ctx *c = zt_lua_ctx(L);
  int n, order[ZT_MAX_DIM];
  int64_t given[ZT_MAX_DIM];
  zt_arg_sizes(L, 2, &n, given);
  if (n != x->ndim) return zt_lua_raise(L, "permute: %d dimensions given, the shape is %s", n, zt_shape_text(x));
  for (int i = 0; i < n; i++) {
    if (given[i] == 0 || given[i] > n || given[i] < -n)
      return zt_lua_raise(L, "permute: there is no dimension %I, the shape is %s", (lua_Integer)given[i],
                          zt_shape_text(x));
    order[i] = (int)(given[i] > 0 ? given[i] - 1 : given[i] + n);
  }
  zt_lua_try(L, zt_permute(c, zt_new_tensor(L), x, order));
  return 1;
}

static int l_narrow(lua_State *L) {
  zt_tensor *x = zt_check_tensor(L, 1);
  zt_ctx *c = zt_lua_ctx(L);
  if (x->ndim == 0) return zt_lua_raise(L, "narrow: a scalar has no dimensions");
  int dim = zt_arg_dim(L, 2, x->ndim, 0);
  int64_t start = zt_arg_integer(L, 3), length = zt_arg_integer(L, 4), size = x->shape[dim];
  int64_t from = start > 0 ? start - 1 : start + size;
  if (start == 0 || from < 0 || length < 0 || from > size || length > size - from)
    return zt_lua_raise(L, "narrow: %I elements from position %I (they count from 1) of dimension %d of %s",
                        (lua_Integer)length, (lua_Integer)start, dim + 1, zt_shape_text(x));
  zt_lua_try(L, zt_narrow(c, zt_new_tensor(L), x, dim, from, length));
  return 1;
}

static int l_contiguous(lua_State *L) {
  if (!zt_tensor_is_contiguous(zt_check_tensor(L, 1))) return l_copy(L);
  lua_settop(L, 1);
  return 1;
}

/* --- without gradient */

static int l_sample(lua_State *L) {
  static const char *const names[] = {"temperature", "top_k", "top_p", NULL};
  zt_tensor *logits = zt_check_tensor(L, 1);
  zt_ctx *c = zt_lua_ctx(L);
  zt_check_options(L, 2, names);
  double temperature = zt_option_number(L, 2, "temperature", 1), top_p = zt_option_number(L, 2, "top_p", 1);
  int64_t top_k = zt_option_integer(L, 2, "top_k", 0);
  zt_lua_try(L, zt_sample(c, zt_new_tensor(L), logits, temperature, top_k, top_p));
  return 1;
}

static int l_global_norm(lua_State *L) {
  int n;
  zt_tensor **list = zt_check_tensors(L, 1, &n);
  double norm;
  int64_t bad, bad_at;
  zt_lua_try(L, zt_global_norm(zt_lua_ctx(L), &norm, &bad, &bad_at, list, n));
  lua_pushnumber(L, norm);
  if (bad < 0) return 1;
  lua_pushinteger(L, bad + 1);
  lua_pushinteger(L, bad_at);
  return 3;
}

/* --- tables */

#define ROW(name, ...) {#name, l_##name},
#define ROW_OF_ID(id, name) {#name, l_##name},
static const luaL_Reg lone[] = {
    {"cat", l_cat}, {"stack", l_stack}, {"sample", l_sample}, {"global_norm", l_global_norm}, {NULL, NULL},
};
/* Functions of the module that are methods too. */
static const luaL_Reg both[] = {
    UNARY_FUNCTIONS(ROW) ZT_BINARY(ROW_OF_ID) ZT_COMPARE(ROW_OF_ID) REDUCE_FUNCTIONS(ROW) ROW(clamp) ROW(where)
        ROW(masked_fill) ROW(max) ROW(min) ROW(var) ROW(topk) ROW(matmul) ROW(linear) ROW(layer_norm)
            ROW(residual_layer_norm) ROW(softmax) ROW(log_softmax) ROW(dropout) ROW(attention) ROW(attention_qkv)
                ROW(conv1d) ROW(cross_entropy) ROW(linear_cross_entropy) ROW(mse) ROW(embedding) ROW(gather)
                    ROW(index_select) ROW(scatter_add) ROW(split) ROW(reshape) ROW(view) ROW(expand) ROW(transpose)
                        ROW(permute) ROW(narrow) ROW(contiguous){NULL, NULL},
};
static const luaL_Reg operators[] = {
    {"__add", l_add}, {"__sub", l_sub}, {"__mul", l_mul}, {"__div", l_div},
    {"__pow", l_pow}, {"__unm", l_neg}, {NULL, NULL},
};

static void open(lua_State *L) {
  luaL_setfuncs(L, both, 0);
  luaL_getmetatable(L, ZT_TENSOR_CLASS);
  luaL_setfuncs(L, operators, 0);
  lua_pop(L, 1);
}

const zt_lua_subject zt_lua_ops = {lone, both, open};
