/* lua_state.h - what the bindings keep for an interpreter: private to lua_base.c, lua_scope.c, lua_autograd.c,
** lua_signal.c, lua_host.c, lua_core.c and host.c. */
#ifndef zt_lua_state_h
#define zt_lua_state_h

#include "bindings/lua_base.h"
#include "bindings/zt_options.h"

/* A place in a circular list; an empty list points to itself. */
typedef struct zt_link {
  struct zt_link *prev, *next;
} zt_link;

static inline void zt_link_init(zt_link *list) { list->prev = list->next = list; }
static inline void zt_link_remove(zt_link *link) {
  link->prev->next = link->next;
  link->next->prev = link->prev;
  zt_link_init(link);
}
static inline bool zt_link_is_empty(const zt_link *list) { return list->next == list; }
static inline void zt_link_append(zt_link *list, zt_link *link) {
  link->prev = list->prev;
  link->next = list;
  list->prev->next = link;
  list->prev = link;
}
static inline void zt_link_move(zt_link *list, zt_link *link) {
  zt_link_remove(link);
  zt_link_append(list, link);
}

/* What a tensor's userdata (a zt_handle **) points to. Handles and scopes stand in lists, so they are slots of core's
** memory: where a finalizer fails because no memory is left, Lua drops the userdata without it, and a slot is still there
** for its list to find. */
typedef struct zt_handle {
  zt_link link;         /* in its scope's list */
  zt_tensor *tensor;    /* owned; NULL: being made, closed, or freed by its scope */
  const char *freed_by; /* name of the scope that freed it; kept by the names table */
  uint64_t reached;     /* number of the last scope's end that found it reachable from what the scope returned */
} zt_handle;

/* A running core.scope; a userdata (a zt_scope **) on its coroutine's stack points to it, but for the root. Scopes of
** several coroutines may interleave: a coroutine sees only its own, and the root. */
typedef struct zt_scope {
  zt_link link;     /* in the list of open scopes, innermost last */
  zt_link handles;  /* what was made in it */
  const char *name; /* kept by the names table; "" for the root */
  lua_State *thread;
} zt_scope;

typedef union zt_slot {
  zt_link link; /* first in all; in the list of free slots */
  zt_handle handle;
  zt_scope scope;
} zt_slot;

typedef struct zt_slots {
  struct zt_slots *next;
  zt_slot slot[64];
} zt_slots;

typedef struct zt_lua {
  zt_ctx *ctx;
  lua_State *L;                /* the coroutine that called last: where callbacks of core run */
  zt_link scopes;              /* open scopes, innermost last */
  zt_scope root;               /* tensors outside all scopes; not in the list */
  zt_link emptied;             /* handles whose scope freed their tensor, and those of closed variables */
  zt_link free;                /* slots */
  zt_slots *slots;             /* owned */
  uint64_t n_ends;             /* scopes that have ended */
  size_t gc_at;                /* bytes in use at which the next step of Lua's collector is due */
  bool has_error;              /* a callback met a Lua error, kept under zt_lua_error_key, and told core to fail */
  bool traceback;              /* keep the traceback of errors (--debug) */
  bool knows;                  /* that another rank failed: it was raised */
  const zt_settings *settings; /* for core.settings(); borrowed; NULL: nothing is given */
} zt_lua;

/* The interpreter's state, made with 'options' (NULL: the defaults) where there is none yet; raises. */
zt_lua *zt_lua_make(lua_State *L, const zt_context_options *options);
zt_lua *zt_lua_get(lua_State *L);  /* raises where ztrain.core is not open */
zt_lua *zt_lua_peek(lua_State *L); /* NULL there: for finalizers, which must not raise */
/* Raises where a signal asks to stop at once, or another rank has failed; each once. */
void zt_lua_check_stop(lua_State *L);
/* Where the script is, "recipe.lua:12", in the innermost level outside of the library; "": nowhere. Raises nothing. */
void zt_lua_where(lua_State *L, char *text, size_t room);

/* Keys of values in the registry. */
extern const char zt_lua_error_key;     /* the Lua error that a callback met */
extern const char zt_lua_noted_key;     /* the last error message that got its path */
extern const char zt_lua_traceback_key; /* the traceback of that message, where 'traceback' is on */

/* lua_pcall of the function and nargs below the top, with a message handler that puts the path in front of the message,
** once. Returns Lua's status; all results, or the message, stand from the function's place on. Does not yield. */
int zt_lua_pcall(lua_State *L, int nargs);
int zt_lua_on_error(lua_State *L); /* that message handler */

zt_handle *zt_handle_at(lua_State *L, int index); /* NULL where it is not a tensor */
/* Pushes the userdata of an empty handle in the innermost scope; raises. */
zt_handle *zt_handle_new(lua_State *L, zt_lua *state);
void zt_handle_clear(zt_lua *state, zt_handle *handle); /* releases its tensor */

/* The innermost scope of L; the root if it has none. */
zt_scope *zt_scope_current(zt_lua *state, lua_State *L);
const char *zt_scope_path(lua_State *L); /* its name; "" outside of all, and where nothing is open */
int zt_scope_run(lua_State *L);          /* core.scope(name, fn, ...) */
void zt_scopes_init(zt_lua *state);
void zt_scopes_clear(zt_lua *state); /* releases the tensors of all handles, and frees all slots */
/* Tables that a scope's end does not walk into: libraries and the globals. Takes the table at the top, does not pop it. */
void zt_scope_skip(lua_State *L);

/* --- lua_host.c */
void zt_lua_run_at_end(lua_State *L);    /* calls what core.at_end has, in order; raises */
void zt_lua_forget_at_end(lua_State *L); /* what a script before has left */

/* --- lua_signal.c: SIGINT and SIGTERM ask to stop; the second one ends the process at once */
zt_status zt_signals_install(void);
void zt_signals_restore(void);               /* the handlers from before; forgets what was asked */
void zt_signals_watch(lua_State *L);         /* the interpreter to interrupt; NULL: none */
int zt_signals_stop(void);                   /* the signal that asked, or 0 */
void zt_signals_note(int number);            /* as if it had asked: another rank got it, and all know */
bool zt_signals_agreed(void);                /* whether it was noted */
void zt_signals_interrupt(void);             /* from any thread: the script looks at zt_lua_check_stop, soon */
int zt_signals_defer(lua_State *L, bool on); /* on: it only asks. Off: raises where one has asked already */
void zt_signals_check(lua_State *L);         /* raises, once, where one has asked and is not deferred */

#endif
