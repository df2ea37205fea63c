/* lua_base.h - what all binding files share: the context, tensor handles, arguments, options, errors.
**
** A binding owns nothing across a call that may raise: what it holds is in a userdata that was made empty, given its
** metatable, and then filled (zt_new_tensor, zt_new_object, zt_new_box), or it is freed first. A typical function:
**
**   static int l_exp(lua_State *L) {
**     zt_tensor *x = zt_check_tensor(L, 1);
**     zt_lua_try(L, zt_exp(zt_lua_ctx(L), zt_new_tensor(L), x));
**     return 1;
**   }
*/
#ifndef zt_lua_base_h
#define zt_lua_base_h

#include <lauxlib.h>
#include <lua.h>

#include "core/ztrain.h"

/* --- the context: one for each interpreter, freed after all that was made in it. Raises where ztrain.core is not open,
** and for a signal that asks to stop at once. */
zt_ctx *zt_lua_ctx(lua_State *L);

#ifdef __clang__ /* they return int so that a binding may return them; the static analyzer should know that they never do */
#define ZT_RAISES __attribute__((analyzer_noreturn))
#else
#define ZT_RAISES
#endif

/* --- errors. All raise a string at the script's line: the innermost level of the stack whose chunk is not the library's
** own ("@ztrain/..."), then the path of the innermost scope: "recipe.lua:12: gpt2.h.3.attn: matmul: ...". */
int zt_lua_fail(lua_State *L,
                zt_status st) ZT_RAISES; /* with zt_message(), or the Lua error that a callback of core met */
int zt_lua_raise(lua_State *L, const char *fmt, ...) ZT_RAISES; /* fmt as lua_pushfstring's */
/* "NAME: argument 2: <text>", with the running function's name; self is not counted. */
int zt_arg_error(lua_State *L, int arg, const char *text) ZT_RAISES;
int zt_type_error(lua_State *L, int arg, const char *wanted) ZT_RAISES; /* "... WANTED expected, got nil" */
static inline void zt_lua_try(lua_State *L, zt_status st) {
  if (st != ZT_OK) zt_lua_fail(L, st);
}
/* Raises "unknown WHAT 'given'; did you mean 'x'? Valid: x, y, z". names: NULL ends it. */
int zt_lua_unknown(lua_State *L, const char *what, const char *given, const char *const names[]) ZT_RAISES;

#define ZT_TENSOR_CLASS "Tensor"

/* --- tensors. A handle belongs to the innermost scope, which empties it when it ends. */
zt_tensor **zt_new_tensor(lua_State *L);           /* pushes an empty handle; fill it with an owned tensor */
void zt_push_tensor(lua_State *L, zt_tensor *t);   /* pushes a new handle that retains t; NULL: nil */
zt_tensor *zt_check_tensor(lua_State *L, int arg); /* borrowed from the handle */
zt_tensor *zt_opt_tensor(lua_State *L, int arg);   /* NULL for nil or none */
bool zt_is_tensor(lua_State *L, int index);
/* A tensor, or a number as a scalar tensor of that dtype, whose handle is pushed. */
zt_tensor *zt_check_operand(lua_State *L, int arg, zt_dtype dtype);
/* A list (table) of tensors; borrowed from it. The array is Lua's, pushed on the stack. */
zt_tensor **zt_check_tensors(lua_State *L, int arg, int *n);

/* --- other userdata. Classes are metatables with __gc and __close, both 'release', which takes the userdata and must bear
** an empty (zeroed) one and a second call. */
typedef void (*zt_release_fn)(void *object);
/* Makes the class once; for a subject's open. methods: NULL name ends it. */
void zt_new_class(lua_State *L, const char *name, const luaL_Reg *methods, zt_release_fn release);
void *zt_new_object(lua_State *L, const char *class_name, size_t nbytes); /* pushes it, zeroed */
void *zt_check_object(lua_State *L, int arg, const char *class_name);
void *zt_new_buffer(lua_State *L, size_t nbytes); /* scratch bytes that Lua frees; pushed */
void **zt_new_box(lua_State *L);                  /* a slot for one zt_malloc'ed block, freed with it; pushed */

/* --- arguments; a wrong type raises with what came instead */
lua_Integer zt_arg_integer(lua_State *L, int arg);
double zt_arg_number(lua_State *L, int arg);
const char *zt_arg_string(lua_State *L, int arg, size_t *nbytes); /* nbytes NULL ok; borrowed */
lua_Integer zt_opt_integer(lua_State *L, int arg, lua_Integer otherwise);
double zt_opt_number(lua_State *L, int arg, double otherwise);
bool zt_opt_boolean(lua_State *L, int arg, bool otherwise);
zt_dtype zt_arg_dtype(lua_State *L, int arg);
/* The place of a string among 'names' (NULL ends it); another one raises "unknown WHAT ...". */
int zt_arg_choice(lua_State *L, int arg, const char *what, const char *const names[]);
void zt_check_callable(lua_State *L, int arg); /* a function, or a value with __call */
/* A dimension, 1 .. ndim or -ndim .. -1, as 0 .. ndim-1; 'otherwise' (in Lua's terms) where nil; 0: must be given. */
int zt_arg_dim(lua_State *L, int arg, int ndim, int otherwise);
/* Sizes from argument 'arg' on, as integers or in one table; returns the index of the argument after them. */
int zt_arg_sizes(lua_State *L, int arg, int *ndim, int64_t shape[ZT_MAX_DIM]);

/* --- options: a table or nil at 'arg'; an unknown key raises and names the nearest. names: NULL ends it. */
void zt_check_options(lua_State *L, int arg, const char *const names[]);
lua_Integer zt_option_integer(lua_State *L, int arg, const char *name, lua_Integer otherwise);
double zt_option_number(lua_State *L, int arg, const char *name, double otherwise);
bool zt_option_boolean(lua_State *L, int arg, const char *name, bool otherwise);
zt_tensor *zt_option_tensor(lua_State *L, int arg, const char *name); /* NULL: absent; borrowed from the table */
const char *zt_option_string(lua_State *L, int arg, const char *name, const char *otherwise); /* borrowed from it */
zt_dtype zt_option_dtype(lua_State *L, int arg, const char *name, zt_dtype otherwise);
zt_act zt_option_act(lua_State *L, int arg, const char *name);

/* --- what a file contributes to ztrain.core: it defines 'const zt_lua_subject zt_lua_NAME', and lua_core.c lists it */
typedef struct zt_lua_subject {
  const luaL_Reg *functions;  /* of the module; NULL ok */
  const luaL_Reg *methods;    /* of Tensor; NULL ok */
  void (*open)(lua_State *L); /* makes classes, sets constants; the module is at the top; NULL ok */
} zt_lua_subject;

#endif
