/* lua_comm.c - ranks from Lua: which one this is, and what all do together with tensors, numbers and strings. The latter
** are collectives: all ranks call them in the same order. Their last argument says in messages what one is for. Results
** are new tensors without history. */
#include <stdio.h>
#include <string.h>

#include "bindings/lua_subjects.h"

/* One thread at a time talks to the other ranks: what the engine has under way is waited for. */
static zt_world *world_of(lua_State *L) {
  zt_ctx *c = zt_lua_ctx(L);
  zt_queue *queue;
  zt_lua_try(L, zt_ctx_queue(c, &queue));
  zt_lua_try(L, zt_queue_drain(queue));
  return zt_ctx_world(c);
}

/* --- who */

static int l_rank(lua_State *L) {
  lua_pushinteger(L, zt_world_rank(world_of(L)));
  return 1;
}

static int l_world_size(lua_State *L) {
  lua_pushinteger(L, zt_world_size(world_of(L)));
  return 1;
}

static int l_local_rank(lua_State *L) {
  lua_pushinteger(L, zt_world_local_rank(world_of(L)));
  return 1;
}

static int l_plane(lua_State *L) {
  lua_pushstring(L, zt_world_plane(world_of(L)));
  return 1;
}

static int l_comm_stats(lua_State *L) {
  zt_comm_stats stats = zt_comm_get_stats(world_of(L));
  const struct {
    const char *name;
    uint64_t value;
  } counts[] = {{"n_all_gather", stats.n_all_gather},
                {"n_all_to_all", stats.n_all_to_all},
                {"n_broadcast", stats.n_broadcast},
                {"n_barrier", stats.n_barrier},
                {"nbytes_sent", stats.nbytes_sent}};
  lua_newtable(L);
  for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
    lua_pushinteger(L, (lua_Integer)counts[i].value);
    lua_setfield(L, -2, counts[i].name);
  }
  char hash[17];
  snprintf(hash, sizeof hash, "%016llx", (unsigned long long)stats.hash);
  lua_pushstring(L, hash);
  lua_setfield(L, -2, "hash");
  lua_pushnumber(L, stats.waited);
  lua_setfield(L, -2, "waited");
  return 1;
}

/* --- what collectives share */

/* The collective's label; argument 'arg' says what it is for. */
static zt_label label_at(lua_State *L, int arg, const char *otherwise) {
  const char *what = lua_isnoneornil(L, arg) ? otherwise : zt_arg_string(L, arg, NULL);
  return zt_label_here(world_of(L), what, -1, NULL);
}

static int arg_root(lua_State *L, int arg) {
  lua_Integer root = zt_arg_integer(L, arg);
  int size = zt_world_size(world_of(L));
  if (root < 0 || root >= size) {
    lua_pushfstring(L, "rank %I is not in 0 .. %d", root, size - 1);
    zt_arg_error(L, arg, lua_tostring(L, -1));
  }
  return (int)root;
}

/* Host bytes, in a box that is pushed; free_box frees them ahead of the collector, which sees only the box. */
static void **new_bytes(lua_State *L, size_t nbytes) {
  void **box = zt_new_box(L);
  *box = zt_malloc(nbytes);
  if (!*box) zt_lua_fail(L, ZT_NOMEM);
  return box;
}

static void free_box(void **box) {
  zt_free(*box);
  *box = NULL;
}

/* Pushes a box with the bytes of all ranks, one after the other; sizes[r] of rank r. Sent padded to the longest. */
static void **gather_bytes(lua_State *L, const zt_label *label, const void *mine, const size_t *sizes) {
  zt_world *w = world_of(L);
  int size = zt_world_size(w), rank = zt_world_rank(w);
  size_t longest = 0, end = 0;
  for (int r = 0; r < size; r++) longest = sizes[r] > longest ? sizes[r] : longest;
  void **box = new_bytes(L, (size_t)size * longest);
  char *bytes = *box;
  memcpy(bytes + (size_t)rank * longest, mine, sizes[rank]);
  memset(bytes + (size_t)rank * longest + sizes[rank], 0, longest - sizes[rank]);
  zt_lua_try(L, zt_all_gather(w, label, bytes, longest));
  for (int r = 0; r < size; r++) {
    memmove(bytes + end, bytes + (size_t)r * longest, sizes[r]);
    end += sizes[r];
  }
  return box;
}

/* --- what a tensor is, as ranks tell each other; a scalar counts as one row */

typedef struct header {
  int32_t dtype, ndim;
  int64_t shape[ZT_MAX_DIM];
} header;

static header header_of(const zt_tensor *t) {
  header h = {(int32_t)t->dtype, t->ndim ? t->ndim : 1, {1}};
  memcpy(h.shape, t->shape, (size_t)t->ndim * sizeof *t->shape);
  return h;
}

static size_t header_nbytes(const header *h) {
  size_t nbytes = zt_dtype_nbytes((zt_dtype)h->dtype);
  for (int d = 0; d < h->ndim; d++) nbytes *= (size_t)h->shape[d];
  return nbytes;
}

/* Whether two tensors have the same dtype, and the same size in each dimension from 'first_dim' (from 0) on. */
static bool headers_fit(const header *a, const header *b, int first_dim) {
  bool fit = a->dtype == b->dtype && a->ndim == b->ndim;
  for (int d = first_dim; d < a->ndim && fit; d++) fit = a->shape[d] == b->shape[d];
  return fit;
}

enum { MOST_NAMED = 8 }; /* ranks in a message */

static int raise_unfit(lua_State *L, const char *what, const header *all, int size) {
  luaL_checkstack(L, 2 * MOST_NAMED + 8, NULL);
  int top = lua_gettop(L), named = size < MOST_NAMED ? size : MOST_NAMED;
  for (int r = 0; r < named; r++)
    lua_pushfstring(L, "%srank %d has %s %s", r ? ", " : "", r, zt_dtype_name((zt_dtype)all[r].dtype),
                    zt_dims_text(all[r].ndim, all[r].shape));
  if (named < size) lua_pushliteral(L, ", ...");
  lua_concat(L, lua_gettop(L) - top);
  return zt_lua_raise(L, "%s: the ranks' tensors do not fit together: %s", what, lua_tostring(L, -1));
}

/* The headers of all ranks' tensors (Lua's, pushed). Raises on all ranks, and says who has what, unless they fit. */
static const header *agree(lua_State *L, const zt_label *label, const zt_tensor *t, int first_dim) {
  zt_world *w = world_of(L);
  int size = zt_world_size(w);
  header *all = zt_new_buffer(L, (size_t)size * sizeof *all);
  all[zt_world_rank(w)] = header_of(t);
  zt_lua_try(L, zt_all_gather(w, label, all, sizeof *all));
  for (int r = 1; r < size; r++)
    if (!headers_fit(&all[0], &all[r], first_dim)) raise_unfit(L, label->what, all, size);
  return all;
}

/* Pushes a box with the tensor's bytes, contiguous. */
static void **read_tensor(lua_State *L, const zt_tensor *t) {
  void **box = new_bytes(L, zt_tensor_nbytes(t));
  zt_lua_try(L, zt_tensor_read(zt_lua_ctx(L), t, *box));
  return box;
}

/* --- tensors */

static int l_all_gather_tensor(lua_State *L) {
  const zt_tensor *t = zt_check_tensor(L, 1);
  zt_label label = label_at(L, 2, "all_gather_tensor");
  int size = zt_world_size(world_of(L));
  const header *all = agree(L, &label, t, 1);
  size_t *sizes = zt_new_buffer(L, (size_t)size * sizeof *sizes);
  header joined = all[0];
  for (int r = 0; r < size; r++) sizes[r] = header_nbytes(&all[r]);
  for (int r = 1; r < size; r++) joined.shape[0] += all[r].shape[0];
  void **mine = read_tensor(L, t);
  void **box = gather_bytes(L, &label, *mine, sizes);
  free_box(mine);
  zt_lua_try(L, zt_tensor_from(zt_lua_ctx(L), zt_new_tensor(L), t->dtype, joined.ndim, joined.shape, *box));
  free_box(box);
  return 1;
}

/* Elements of float64, or else float32. */
static void divide(zt_dtype dtype, void *data, size_t count, int by) {
  for (size_t i = 0; i < count; i++) {
    if (dtype == ZT_F64) {
      ((double *)data)[i] /= by;
    } else {
      ((float *)data)[i] /= (float)by;
    }
  }
}

/* Pushes a copy in another dtype, without history. */
static zt_tensor *push_copy(lua_State *L, const zt_tensor *t, zt_dtype dtype) {
  zt_ctx *c = zt_lua_ctx(L);
  zt_tensor **copy = zt_new_tensor(L);
  zt_lua_try(L, zt_tensor_new(c, copy, dtype, t->ndim, t->shape));
  zt_lua_try(L, zt_copy_(c, *copy, t));
  return *copy;
}

/* The mean of 16-bit floats is rounded once: it is taken in float32. */
static int l_all_reduce_tensor(lua_State *L) {
  static const char *const reductions[] = {"sum", "mean", NULL};
  const zt_tensor *t = zt_check_tensor(L, 1);
  bool mean = zt_arg_choice(L, 2, "reduction", reductions) == 1;
  zt_label label = label_at(L, 3, "all_reduce_tensor");
  zt_world *w = world_of(L);
  agree(L, &label, t, 0);
  if (mean && !zt_dtype_is_float(t->dtype))
    zt_lua_raise(L, "%s: the mean of %s tensors is none of that dtype; reduce the sum", label.what,
                 zt_dtype_name(t->dtype));
  zt_tensor *sum = push_copy(L, t, mean ? zt_dtype_stat(t->dtype) : t->dtype);
  void **box = read_tensor(L, sum);
  size_t count = (size_t)zt_tensor_count(sum);
  zt_lua_try(L, zt_all_reduce(w, &label, sum->dtype, *box, count));
  if (mean) divide(sum->dtype, *box, count, zt_world_size(w));
  zt_lua_try(L, zt_tensor_write(zt_lua_ctx(L), sum, *box));
  free_box(box);
  lua_pop(L, 1);
  if (sum->dtype != t->dtype) push_copy(L, sum, t->dtype);
  return 1;
}

static int l_broadcast_tensor(lua_State *L) {
  int root = arg_root(L, 2);
  zt_world *w = world_of(L);
  const zt_tensor *t = zt_world_rank(w) == root ? zt_check_tensor(L, 1) : NULL;
  zt_label label = label_at(L, 3, "broadcast_tensor");
  header h = t ? header_of(t) : (header){0};
  if (t) h.ndim = t->ndim; /* a scalar stays one */
  zt_lua_try(L, zt_broadcast(w, &label, &h, sizeof h, root));
  void **box = t ? read_tensor(L, t) : new_bytes(L, header_nbytes(&h));
  zt_lua_try(L, zt_broadcast(w, &label, *box, header_nbytes(&h), root));
  zt_lua_try(L, zt_tensor_from(zt_lua_ctx(L), zt_new_tensor(L), (zt_dtype)h.dtype, h.ndim, h.shape, *box));
  free_box(box);
  return 1;
}

/* --- numbers: integers and floats, exact */

typedef struct number {
  int64_t is_integer;
  union {
    int64_t integer;
    double real;
  } as;
} number;

static number number_at(lua_State *L, int list, lua_Integer i) {
  if (lua_rawgeti(L, list, i) != LUA_TNUMBER)
    zt_lua_raise(L, "gather_numbers: element %I is a %s, not a number", i, luaL_typename(L, -1));
  number n = {.is_integer = lua_isinteger(L, -1)};
  if (n.is_integer) {
    n.as.integer = lua_tointeger(L, -1);
  } else {
    n.as.real = lua_tonumber(L, -1);
  }
  lua_pop(L, 1);
  return n;
}

static void push_numbers(lua_State *L, const number *numbers, lua_Integer count) {
  lua_createtable(L, (int)count, 0);
  for (lua_Integer i = 0; i < count; i++) {
    if (numbers[i].is_integer) {
      lua_pushinteger(L, numbers[i].as.integer);
    } else {
      lua_pushnumber(L, numbers[i].as.real);
    }
    lua_rawseti(L, -2, i + 1);
  }
}

static int l_gather_numbers(lua_State *L) {
  if (!lua_istable(L, 1)) return zt_type_error(L, 1, "list of numbers");
  zt_label label = label_at(L, 2, "gather_numbers");
  zt_world *w = world_of(L);
  int size = zt_world_size(w);
  lua_Integer count = (lua_Integer)lua_rawlen(L, 1);
  number *all = zt_new_buffer(L, (size_t)size * (size_t)count * sizeof *all);
  number *mine = all + zt_world_rank(w) * count;
  for (lua_Integer i = 0; i < count; i++) mine[i] = number_at(L, 1, i + 1);
  zt_lua_try(L, zt_all_gather(w, &label, all, (size_t)count * sizeof *all));
  lua_createtable(L, size, 0);
  for (int r = 0; r < size; r++) {
    push_numbers(L, all + r * count, count);
    lua_rawseti(L, -2, r + 1);
  }
  return 1;
}

/* --- strings */

static int l_broadcast_string(lua_State *L) {
  int root = arg_root(L, 2);
  zt_world *w = world_of(L);
  size_t nbytes = 0;
  const char *text = zt_world_rank(w) == root ? zt_arg_string(L, 1, &nbytes) : NULL;
  zt_label label = label_at(L, 3, "broadcast_string");
  uint64_t length = nbytes;
  zt_lua_try(L, zt_broadcast(w, &label, &length, sizeof length, root));
  void **box = new_bytes(L, length);
  if (text) memcpy(*box, text, nbytes);
  zt_lua_try(L, zt_broadcast(w, &label, *box, length, root));
  lua_pushlstring(L, *box, length);
  free_box(box);
  return 1;
}

static int l_gather_strings(lua_State *L) {
  size_t nbytes, begin = 0;
  const char *text = zt_arg_string(L, 1, &nbytes);
  zt_label label = label_at(L, 2, "gather_strings");
  zt_world *w = world_of(L);
  int size = zt_world_size(w);
  size_t *sizes = zt_new_buffer(L, (size_t)size * sizeof *sizes);
  sizes[zt_world_rank(w)] = nbytes;
  zt_lua_try(L, zt_all_gather(w, &label, sizes, sizeof *sizes));
  void **box = gather_bytes(L, &label, text, sizes);
  lua_createtable(L, size, 0);
  for (int r = 0; r < size; r++) {
    lua_pushlstring(L, (const char *)*box + begin, sizes[r]);
    lua_rawseti(L, -2, r + 1);
    begin += sizes[r];
  }
  free_box(box);
  return 1;
}

static int l_barrier(lua_State *L) {
  zt_label label = label_at(L, 1, "barrier");
  zt_lua_try(L, zt_barrier(world_of(L), &label));
  return 0;
}

static const luaL_Reg functions[] = {
    {"rank", l_rank},
    {"world_size", l_world_size},
    {"local_rank", l_local_rank},
    {"plane", l_plane},
    {"comm_stats", l_comm_stats},
    {"barrier", l_barrier},
    {"all_gather_tensor", l_all_gather_tensor},
    {"all_reduce_tensor", l_all_reduce_tensor},
    {"broadcast_tensor", l_broadcast_tensor},
    {"gather_numbers", l_gather_numbers},
    {"broadcast_string", l_broadcast_string},
    {"gather_strings", l_gather_strings},
    {NULL, NULL},
};
const zt_lua_subject zt_lua_comm = {functions, NULL, NULL};
