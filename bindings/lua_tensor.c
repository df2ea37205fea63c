/* lua_tensor.c - tensors as Lua values: making, asking, indexing, printing, gradients as a field, writing in place.
** Elements cross here: a Lua integer is exact in int64, a Lua number is rounded once to the tensor's dtype. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "bindings/lua_state.h"
#include "bindings/lua_subjects.h"
#include "core/tensor/late.h"

/* --- elements in host memory */

static void put_integer(void *data, size_t i, zt_dtype dtype, lua_Integer value) {
  switch (dtype) {
    case ZT_I64:
      ((int64_t *)data)[i] = value;
      break;
    case ZT_I32:
      ((int32_t *)data)[i] = (int32_t)value;
      break;
    default:
      ((uint8_t *)data)[i] = (uint8_t)value;
      break;
  }
}

static void put_float(void *data, size_t i, zt_dtype dtype, double value) {
  switch (dtype) {
    case ZT_F64:
      ((double *)data)[i] = value;
      break;
    case ZT_BF16:
      ((uint16_t *)data)[i] = zt_f32_to_bf16((float)value);
      break;
    case ZT_F16:
      ((uint16_t *)data)[i] = zt_f32_to_f16((float)value);
      break;
    default:
      ((float *)data)[i] = (float)value;
      break;
  }
}

static bool fits(zt_dtype dtype, lua_Integer value) {
  if (dtype == ZT_I32) return value >= INT32_MIN && value <= INT32_MAX;
  return dtype != ZT_U8 || (value >= 0 && value <= UINT8_MAX);
}

/* Pops a number or boolean. */
static void put_top(lua_State *L, void *data, size_t i, zt_dtype dtype) {
  int type = lua_type(L, -1), whole = 0;
  if (type != LUA_TNUMBER && type != LUA_TBOOLEAN)
    zt_lua_raise(L, "tensor: element %d is a %s, not a number", (int)i + 1, lua_typename(L, type));
  if (zt_dtype_is_float(dtype)) {
    put_float(data, i, dtype, type == LUA_TBOOLEAN ? lua_toboolean(L, -1) : lua_tonumber(L, -1));
  } else {
    lua_Integer value = lua_tointegerx(L, -1, &whole);
    if (type == LUA_TBOOLEAN) value = lua_toboolean(L, -1), whole = 1;
    if (!whole || !fits(dtype, value))
      zt_lua_raise(L, "tensor: element %d, %s, is not in the range of %s", (int)i + 1, lua_tostring(L, -1),
                   zt_dtype_name(dtype));
    put_integer(data, i, dtype, value);
  }
  lua_pop(L, 1);
}

static double float_at(const void *data, size_t i, zt_dtype dtype) {
  switch (dtype) {
    case ZT_F64:
      return ((const double *)data)[i];
    case ZT_BF16:
      return zt_bf16_to_f32(((const uint16_t *)data)[i]);
    case ZT_F16:
      return zt_f16_to_f32(((const uint16_t *)data)[i]);
    default:
      return ((const float *)data)[i];
  }
}

static int64_t integer_at(const void *data, size_t i, zt_dtype dtype) {
  switch (dtype) {
    case ZT_I64:
      return ((const int64_t *)data)[i];
    case ZT_I32:
      return ((const int32_t *)data)[i];
    default:
      return ((const uint8_t *)data)[i];
  }
}

static void push_element(lua_State *L, const void *data, size_t i, zt_dtype dtype) {
  if (zt_dtype_is_float(dtype)) {
    lua_pushnumber(L, float_at(data, i, dtype));
  } else {
    lua_pushinteger(L, integer_at(data, i, dtype));
  }
}

zt_tensor *zt_check_operand(lua_State *L, int arg, zt_dtype dtype) {
  if (lua_type(L, arg) != LUA_TNUMBER) return zt_check_tensor(L, arg);
  int64_t data[1]; /* room for any dtype */
  lua_pushvalue(L, arg);
  put_top(L, data, 0, dtype);
  zt_ctx *c = zt_lua_ctx(L);
  zt_tensor **scalar = zt_new_tensor(L);
  zt_lua_try(L, zt_tensor_from(c, scalar, dtype, 0, NULL, data));
  return *scalar;
}

/* Pushes a box with the tensor's bytes, contiguous. */
static void **read_bytes(lua_State *L, const zt_tensor *t) {
  zt_ctx *c = zt_lua_ctx(L);
  void **box = zt_new_box(L);
  *box = zt_malloc(zt_tensor_nbytes(t));
  zt_lua_try(L, *box ? zt_tensor_read(c, t, *box) : ZT_NOMEM);
  return box;
}

/* Frees it ahead of the collector, which sees only its slot. */
static void free_bytes(void **box) {
  zt_free(*box);
  *box = NULL;
}

/* --- making */

static const char *const making_options[] = {"dtype", "device", NULL};

static void check_device(lua_State *L, const char *name) {
  const char *ours = zt_ctx_device(zt_lua_ctx(L))->name;
  if (strcmp(name, ours) != 0) zt_lua_raise(L, "device '%s' is not open; tensors are on '%s'", name, ours);
}

static zt_dtype read_options(lua_State *L, int arg, zt_dtype otherwise) {
  zt_check_options(L, arg, making_options);
  const char *device = zt_option_string(L, arg, "device", NULL);
  if (device) check_device(L, device);
  return zt_option_dtype(L, arg, "dtype", otherwise);
}

typedef struct zt_nest {
  zt_dtype dtype;
  int ndim;
  int64_t shape[ZT_MAX_DIM];
  void *data;
  size_t n; /* elements read */
} zt_nest;

/* The shape that the first elements have; the others are held to it. */
static void nest_shape(lua_State *L, int arg, zt_nest *nest) {
  int top = lua_gettop(L);
  lua_pushvalue(L, arg);
  while (lua_istable(L, -1)) {
    if (nest->ndim == ZT_MAX_DIM) zt_lua_raise(L, "tensor: tables nested deeper than %d", ZT_MAX_DIM);
    nest->shape[nest->ndim++] = (int64_t)lua_rawlen(L, -1);
    lua_rawgeti(L, -1, 1);
    lua_remove(L, -2);
    if (nest->shape[nest->ndim - 1] == 0) break;
  }
  lua_settop(L, top);
}

/* Pops a table (or, at the bottom, an element) of the nest; the depth is at most ZT_MAX_DIM. */
static void nest_read(lua_State *L, zt_nest *nest, int depth) {
  if (depth == nest->ndim) {
    put_top(L, nest->data, nest->n++, nest->dtype);
    return;
  }
  lua_Integer n = lua_istable(L, -1) ? (lua_Integer)lua_rawlen(L, -1) : -1;
  if (n < 0) zt_lua_raise(L, "tensor: a %s stands beside tables", luaL_typename(L, -1));
  if (n != nest->shape[depth])
    zt_lua_raise(L, "tensor: tables of %I and of %I elements side by side", (lua_Integer)nest->shape[depth], n);
  for (lua_Integer i = 1; i <= n; i++) {
    lua_rawgeti(L, -1, i);
    nest_read(L, nest, depth + 1);
  }
  lua_pop(L, 1);
}

static int l_tensor(lua_State *L) {
  zt_nest nest = {.dtype = read_options(L, 2, ZT_F32)};
  if (!lua_istable(L, 1) && lua_type(L, 1) != LUA_TNUMBER) zt_type_error(L, 1, "table or number");
  luaL_checkstack(L, 2 * ZT_MAX_DIM + 8, NULL);
  nest_shape(L, 1, &nest);
  size_t count = 1;
  for (int i = 0; i < nest.ndim; i++) count *= (size_t)nest.shape[i];
  nest.data = zt_new_buffer(L, count * zt_dtype_nbytes(nest.dtype));
  lua_pushvalue(L, 1);
  nest_read(L, &nest, 0);
  zt_ctx *c = zt_lua_ctx(L);
  zt_lua_try(L, zt_tensor_from(c, zt_new_tensor(L), nest.dtype, nest.ndim, nest.shape, nest.data));
  return 1;
}

/* Sizes from argument 1 on, then options; pushes a tensor that is not filled. */
static zt_tensor *new_from_sizes(lua_State *L, zt_dtype otherwise) {
  int ndim;
  int64_t shape[ZT_MAX_DIM];
  int next = zt_arg_sizes(L, 1, &ndim, shape);
  zt_dtype dtype = read_options(L, next, otherwise);
  zt_tensor **t = zt_new_tensor(L);
  zt_lua_try(L, zt_tensor_new(zt_lua_ctx(L), t, dtype, ndim, shape));
  return *t;
}

static int new_filled(lua_State *L, double value) {
  zt_tensor *t = new_from_sizes(L, ZT_F32);
  zt_lua_try(L, zt_fill_(zt_lua_ctx(L), t, value));
  return 1;
}

static int l_zeros(lua_State *L) { return new_filled(L, 0); }
static int l_ones(lua_State *L) { return new_filled(L, 1); }

/* (sizes...[, opts]): zeros that come into being when they are read; wants a gradient */
static int l_parameter(lua_State *L) {
  int ndim;
  int64_t shape[ZT_MAX_DIM];
  int next = zt_arg_sizes(L, 1, &ndim, shape);
  zt_dtype dtype = read_options(L, next, ZT_F32);
  zt_ctx *c = zt_lua_ctx(L);
  if (!zt_dtype_is_float(dtype)) return zt_lua_raise(L, "parameter: a %s tensor has no gradient", zt_dtype_name(dtype));
  zt_tensor **t = zt_new_tensor(L);
  zt_mem_kind was = zt_ctx_set_mem_kind(c, ZT_MEM_PARAMETER);
  zt_status st = zt_tensor_new_late(c, t, dtype, ndim, shape);
  zt_ctx_set_mem_kind(c, was);
  zt_lua_try(L, st);
  (*t)->requires_grad = true;
  return 1;
}

static int l_full(lua_State *L) {
  double value = zt_arg_number(L, 2);
  lua_remove(L, 2);
  return new_filled(L, value);
}

static int l_randn(lua_State *L) {
  zt_tensor *t = new_from_sizes(L, ZT_F32);
  zt_lua_try(L, zt_normal_(zt_lua_ctx(L), t, 0, 1));
  return 1;
}

/* Number of arguments 1, 2, ... that are numbers. */
static int leading_numbers(lua_State *L) {
  int n = 0;
  while (lua_type(L, n + 1) == LUA_TNUMBER) n++;
  return n;
}

static int l_arange(lua_State *L) {
  int n = leading_numbers(L);
  if (n < 1 || n > 3) return zt_lua_raise(L, "arange: takes (stop) or (start, stop[, step]), then options");
  zt_dtype dtype = read_options(L, n + 1, ZT_I64);
  double start = n > 1 ? lua_tonumber(L, 1) : 0, stop = lua_tonumber(L, n > 1 ? 2 : 1);
  double step = n > 2 ? lua_tonumber(L, 3) : 1, length = ceil((stop - start) / step);
  if (!(step != 0 && length < 0x1p53)) return zt_lua_raise(L, "arange: never ends");
  if (!zt_dtype_is_float(dtype) && (start != floor(start) || step != floor(step)))
    return zt_lua_raise(L, "arange: start and step must be whole for %s; or give a dtype", zt_dtype_name(dtype));
  int64_t count = length > 0 ? (int64_t)length : 0;
  void *data = zt_new_buffer(L, (size_t)count * zt_dtype_nbytes(dtype));
  for (int64_t i = 0; i < count; i++) {
    double value = start + (double)i * step;
    if (zt_dtype_is_float(dtype)) {
      put_float(data, (size_t)i, dtype, value);
    } else {
      put_integer(data, (size_t)i, dtype, (lua_Integer)value);
    }
  }
  zt_ctx *c = zt_lua_ctx(L);
  zt_lua_try(L, zt_tensor_from(c, zt_new_tensor(L), dtype, 1, &count, data));
  return 1;
}

static int l_from_bytes(lua_State *L) {
  size_t nbytes, wanted;
  const char *bytes = zt_arg_string(L, 1, &nbytes);
  zt_dtype dtype = zt_arg_dtype(L, 2);
  int ndim;
  int64_t shape[ZT_MAX_DIM];
  zt_arg_sizes(L, 3, &ndim, shape);
  wanted = zt_dtype_nbytes(dtype);
  bool overflow = false;
  for (int i = 0; i < ndim; i++) overflow |= shape[i] < 0 || __builtin_mul_overflow(wanted, shape[i], &wanted);
  if (overflow || wanted != nbytes)
    return zt_lua_raise(L, "from_bytes: %s %s is not %I bytes long", zt_dtype_name(dtype), zt_dims_text(ndim, shape),
                        (lua_Integer)nbytes);
  zt_ctx *c = zt_lua_ctx(L);
  zt_lua_try(L, zt_tensor_from(c, zt_new_tensor(L), dtype, ndim, shape, bytes));
  return 1;
}

/* --- asking */

static int t_size(lua_State *L) {
  const zt_tensor *t = zt_check_tensor(L, 1);
  if (!lua_isnoneornil(L, 2)) {
    if (t->ndim == 0) return zt_lua_raise(L, "size: a scalar has no dimensions");
    lua_pushinteger(L, t->shape[zt_arg_dim(L, 2, t->ndim, 0)]);
    return 1;
  }
  luaL_checkstack(L, ZT_MAX_DIM, NULL);
  for (int i = 0; i < t->ndim; i++) lua_pushinteger(L, t->shape[i]);
  return t->ndim;
}

static int t_dim(lua_State *L) {
  lua_pushinteger(L, zt_check_tensor(L, 1)->ndim);
  return 1;
}

static int t_dtype(lua_State *L) {
  lua_pushstring(L, zt_dtype_name(zt_check_tensor(L, 1)->dtype));
  return 1;
}

static int t_device(lua_State *L) {
  zt_check_tensor(L, 1);
  lua_pushstring(L, zt_ctx_device(zt_lua_ctx(L))->name);
  return 1;
}

static int t_version(lua_State *L) {
  lua_pushinteger(L, zt_check_tensor(L, 1)->storage->version);
  return 1;
}

static int t_numel(lua_State *L) {
  lua_pushinteger(L, zt_tensor_count(zt_check_tensor(L, 1)));
  return 1;
}

static int t_is_contiguous(lua_State *L) {
  lua_pushboolean(L, zt_tensor_is_contiguous(zt_check_tensor(L, 1)));
  return 1;
}

/* Pushes dimension 'depth' and what is in it, reading on from element *at. */
static void push_nest(lua_State *L, const zt_tensor *t, const void *data, int depth, size_t *at) {
  if (depth == t->ndim) {
    push_element(L, data, (*at)++, t->dtype);
    return;
  }
  lua_createtable(L, (int)t->shape[depth], 0);
  for (int64_t i = 1; i <= t->shape[depth]; i++) {
    push_nest(L, t, data, depth + 1, at);
    lua_rawseti(L, -2, i);
  }
}

static int t_totable(lua_State *L) {
  const zt_tensor *t = zt_check_tensor(L, 1);
  luaL_checkstack(L, ZT_MAX_DIM + 4, NULL);
  void **bytes = read_bytes(L, t);
  size_t at = 0;
  push_nest(L, t, *bytes, 0, &at);
  free_bytes(bytes);
  return 1;
}

static int t_item(lua_State *L) {
  const zt_tensor *t = zt_check_tensor(L, 1);
  if (zt_tensor_count(t) != 1) return zt_lua_raise(L, "item: one element expected, the shape is %s", zt_shape_text(t));
  int64_t value[1]; /* room for any dtype */
  zt_lua_try(L, zt_tensor_read(zt_lua_ctx(L), t, value));
  push_element(L, value, 0, t->dtype);
  return 1;
}

static int t_bytes(lua_State *L) {
  const zt_tensor *t = zt_check_tensor(L, 1);
  void **bytes = read_bytes(L, t);
  lua_pushlstring(L, *bytes, zt_tensor_nbytes(t));
  free_bytes(bytes);
  return 1;
}

static int t_equal(lua_State *L) {
  const zt_tensor *a = zt_check_tensor(L, 1), *b = zt_check_tensor(L, 2);
  bool equal = a->dtype == b->dtype && zt_tensor_same_shape(a, b);
  if (equal) {
    void **bytes_a = read_bytes(L, a), **bytes_b = read_bytes(L, b);
    equal = memcmp(*bytes_a, *bytes_b, zt_tensor_nbytes(a)) == 0;
    free_bytes(bytes_a);
    free_bytes(bytes_b);
  }
  lua_pushboolean(L, equal);
  return 1;
}

/* Eight bytes at a time, each mixed with what came before; the last word is padded with zeros. */
static uint64_t checksum(const unsigned char *data, size_t nbytes) {
  uint64_t sum = 0;
  for (size_t at = 0; at < nbytes; at += 8) {
    uint64_t word = 0;
    memcpy(&word, data + at, nbytes - at < 8 ? nbytes - at : 8);
    sum = zt_rng_mix(sum ^ word, at);
  }
  return zt_rng_mix(sum, nbytes);
}

static int t_hash(lua_State *L) {
  const zt_tensor *t = zt_check_tensor(L, 1);
  void **bytes = read_bytes(L, t);
  char text[17];
  snprintf(text, sizeof text, "%016" PRIx64, checksum(*bytes, zt_tensor_nbytes(t)));
  free_bytes(bytes);
  lua_pushstring(L, text);
  return 1;
}

/* --- printing */

/* A dimension longer than twice this and 2 shows so many at either end: three in the last two, one before them. */
static int64_t shown_edge(const zt_tensor *t, int depth) { return depth + 2 < t->ndim ? 1 : 3; }

typedef struct zt_print {
  luaL_Buffer out;
  const zt_tensor *t;
  const void *data; /* contiguous */
} zt_print;

static void print_element(zt_print *p, size_t i) {
  char text[32];
  if (zt_dtype_is_float(p->t->dtype)) {
    snprintf(text, sizeof text, "%.5g", float_at(p->data, i, p->t->dtype));
  } else {
    snprintf(text, sizeof text, "%" PRId64, integer_at(p->data, i, p->t->dtype));
  }
  luaL_addstring(&p->out, text);
}

static void print_gap(zt_print *p, int depth) {
  luaL_addstring(&p->out, depth + 1 == p->t->ndim ? ", " : ",\n");
  for (int i = 0; i <= depth && depth + 1 < p->t->ndim; i++) luaL_addchar(&p->out, ' ');
}

/* Prints dimension 'depth' of the block of 'block' elements that starts at element 'at'. */
static void print_nest(zt_print *p, int depth, size_t at, size_t block) {
  if (depth == p->t->ndim) {
    print_element(p, at);
    return;
  }
  int64_t n = p->t->shape[depth], edge = shown_edge(p->t, depth);
  luaL_addchar(&p->out, '{');
  for (int64_t i = 0; i < n; i++) {
    if (i) print_gap(p, depth);
    if (n > 2 * edge + 2 && i == edge) {
      luaL_addstring(&p->out, "...");
      i = n - edge - 1;
    } else {
      print_nest(p, depth + 1, at + (size_t)i * (block / (size_t)n), block / (size_t)n);
    }
  }
  luaL_addchar(&p->out, '}');
}

static int t_tostring(lua_State *L) {
  const zt_handle *handle = zt_handle_at(L, 1);
  if (!handle) return zt_type_error(L, 1, "tensor");
  zt_lua_get(L);
  if (!handle->tensor) {
    const char *by = handle->freed_by;
    lua_pushfstring(L, "tensor (freed%s%s)", by ? " at the end of scope " : "", by ? by : "");
    return 1;
  }
  const zt_tensor *t = handle->tensor;
  void **bytes = read_bytes(L, t);
  zt_print print = {.t = t, .data = *bytes};
  luaL_buffinit(L, &print.out);
  luaL_addstring(&print.out, zt_dtype_name(t->dtype));
  luaL_addstring(&print.out, zt_shape_text(t));
  luaL_addstring(&print.out, t->ndim > 1 ? "\n" : " ");
  print_nest(&print, 0, 0, (size_t)zt_tensor_count(t));
  luaL_pushresult(&print.out);
  free_bytes(bytes);
  return 1;
}

/* --- t[i], t.grad, t:method() */

static int push_subtensor(lua_State *L, lua_Integer i) {
  zt_tensor *t = zt_check_tensor(L, 1);
  if (t->ndim == 0) return zt_lua_raise(L, "a scalar tensor cannot be indexed; :item() is its value");
  lua_Integer n = t->shape[0];
  if (i == 0 || i > n || i < -n)
    return zt_lua_raise(L, "index %I of a tensor of shape %s (positions count from 1)", i, zt_shape_text(t));
  zt_ctx *c = zt_lua_ctx(L);
  zt_tensor **row = zt_new_tensor(L);
  zt_lua_try(L, zt_narrow(c, row, t, 0, i > 0 ? i - 1 : i + n, 1));
  zt_lua_try(L, zt_reshape(c, zt_new_tensor(L), *row, t->ndim - 1, t->shape + 1));
  return 1;
}

/* A parameter in an engine has its gradient there, of which this is a copy. */
static void push_grad(lua_State *L, zt_tensor *t) {
  zt_engine *engine = zt_engine_of(t);
  if (!engine) {
    zt_push_tensor(L, t->grad);
    return;
  }
  zt_tensor **grad = zt_new_tensor(L);
  zt_lua_try(L, zt_engine_gradient(engine, t, grad));
  if (!*grad) lua_pushnil(L);
}

/* Upvalue 1: the methods. */
static int t_index(lua_State *L) {
  if (lua_isinteger(L, 2)) return push_subtensor(L, lua_tointeger(L, 2));
  const char *key = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : "";
  if (strcmp(key, "grad") == 0) {
    push_grad(L, zt_check_tensor(L, 1));
  } else {
    lua_settop(L, 2);
    lua_rawget(L, lua_upvalueindex(1));
  }
  return 1;
}

static void set_grad(lua_State *L, zt_tensor *t, zt_tensor *grad) {
  if (t->node) zt_lua_raise(L, "grad: only a leaf keeps a gradient, this tensor was computed");
  if (grad && (grad->dtype != t->dtype || !zt_tensor_same_shape(grad, t)))
    zt_lua_raise(L, "grad: %s %s for a tensor %s %s", zt_dtype_name(grad->dtype), zt_shape_text(grad),
                 zt_dtype_name(t->dtype), zt_shape_text(t));
  zt_engine *engine = zt_engine_of(t);
  if (engine && grad) zt_lua_raise(L, "grad: the gradient of a prepared parameter cannot be set");
  if (engine) zt_engine_zero(engine);
  zt_tensor *old = t->grad;
  t->grad = grad ? zt_tensor_retain(grad) : NULL;
  zt_tensor_release(old);
}

static int t_newindex(lua_State *L) {
  zt_tensor *t = zt_check_tensor(L, 1);
  if (lua_type(L, 2) != LUA_TSTRING || strcmp(lua_tostring(L, 2), "grad") != 0)
    return zt_lua_raise(L, "only the field 'grad' of a tensor can be set, not '%s'; see copy_ and fill_",
                        luaL_tolstring(L, 2, NULL));
  set_grad(L, t, zt_opt_tensor(L, 3));
  return 0;
}

/* --- in place; all return self */

static int self(lua_State *L, zt_status st) {
  zt_lua_try(L, st);
  lua_settop(L, 1);
  return 1;
}

static int t_fill_(lua_State *L) {
  zt_tensor *t = zt_check_tensor(L, 1);
  return self(L, zt_fill_(zt_lua_ctx(L), t, zt_arg_number(L, 2)));
}

static int t_zero_(lua_State *L) {
  zt_tensor *t = zt_check_tensor(L, 1);
  return self(L, zt_fill_(zt_lua_ctx(L), t, 0));
}

static int t_copy_(lua_State *L) {
  zt_tensor *t = zt_check_tensor(L, 1);
  return self(L, zt_copy_(zt_lua_ctx(L), t, zt_check_tensor(L, 2)));
}

static int t_add_(lua_State *L) {
  zt_ctx *c = zt_lua_ctx(L);
  zt_tensor *t = zt_check_tensor(L, 1);
  double alpha = zt_opt_number(L, 3, 1);
  return self(L, zt_add_(c, t, zt_check_operand(L, 2, t->dtype), alpha));
}

static int t_mul_(lua_State *L) {
  zt_tensor *t = zt_check_tensor(L, 1);
  return self(L, zt_mul_(zt_lua_ctx(L), t, zt_arg_number(L, 2)));
}

static int t_normal_(lua_State *L) {
  zt_tensor *t = zt_check_tensor(L, 1);
  return self(L, zt_normal_(zt_lua_ctx(L), t, zt_opt_number(L, 2, 0), zt_opt_number(L, 3, 1)));
}

static int t_uniform_(lua_State *L) {
  zt_tensor *t = zt_check_tensor(L, 1);
  return self(L, zt_uniform_(zt_lua_ctx(L), t, zt_opt_number(L, 2, 0), zt_opt_number(L, 3, 1)));
}

/* --- the class */

static int t_to(lua_State *L) {
  zt_tensor *t = zt_check_tensor(L, 1);
  const char *what = zt_arg_string(L, 2, NULL);
  zt_dtype dtype = t->dtype;
  if (strcmp(what, zt_ctx_device(zt_lua_ctx(L))->name) != 0) dtype = zt_arg_dtype(L, 2);
  if (dtype == t->dtype) return self(L, ZT_OK);
  zt_lua_try(L, zt_cast(zt_lua_ctx(L), zt_new_tensor(L), t, dtype));
  return 1;
}

static void open(lua_State *L) {
  static const luaL_Reg meta[] = {{"__tostring", t_tostring}, {"__newindex", t_newindex}, {NULL, NULL}};
  luaL_newmetatable(L, ZT_TENSOR_CLASS);
  luaL_setfuncs(L, meta, 0);
  luaL_getsubtable(L, -1, "methods");
  lua_pushcclosure(L, t_index, 1);
  lua_setfield(L, -2, "__index");
  lua_pop(L, 1);
}

static const luaL_Reg functions[] = {
    {"tensor", l_tensor}, {"zeros", l_zeros},           {"ones", l_ones},
    {"full", l_full},     {"randn", l_randn},           {"parameter", l_parameter},
    {"arange", l_arange}, {"from_bytes", l_from_bytes}, {NULL, NULL},
};
static const luaL_Reg methods[] = {
    {"size", t_size},       {"dim", t_dim},           {"dtype", t_dtype},
    {"device", t_device},   {"numel", t_numel},       {"is_contiguous", t_is_contiguous},
    {"totable", t_totable}, {"item", t_item},         {"bytes", t_bytes},
    {"equal", t_equal},     {"hash", t_hash},         {"to", t_to},
    {"version", t_version}, {"fill_", t_fill_},       {"zero_", t_zero_},
    {"copy_", t_copy_},     {"add_", t_add_},         {"mul_", t_mul_},
    {"normal_", t_normal_}, {"uniform_", t_uniform_}, {NULL, NULL},
};
const zt_lua_subject zt_lua_tensor = {functions, methods, open};
