/* zt_host.h - runs recipes inside another program, as the program 'ztrain' does.
** A host is an interpreter with ztrain in it, in which globals must be declared and only source text is loaded. Its Lua
** memory is core's counted host memory. Nothing is printed; a failed run leaves the host ready for the next one.
**
**   zt_host *host;
**   zt_status st = zt_host_new(NULL, &host);
**   if (st == ZT_OK) st = zt_host_run_file(host, "recipe.lua", 0, NULL);
**   if (st != ZT_OK) fprintf(stderr, "%s\n", zt_message());
**   zt_host_free(host);
*/
#ifndef zt_host_h
#define zt_host_h

#include <lua.h>

#include "bindings/zt_options.h"
#include "core/base/log.h"
#include "core/base/mem.h"
#include "core/tensor/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct zt_host zt_host;

/* All zero is the default.
** Where context.world is one of several ranks (closed after the host), a failed run fails it, so that the others end with the
** cause; and another rank's failure raises in the script: between two lines where 'signals' is on (by SIGURG), else where it
** next calls ztrain.
** An embedder's own signal handlers need SA_ONSTACK, and an alternate stack in the script's thread: oneDNN uses the stack pointer
** for other things while it multiplies. */
typedef struct zt_host_options {
  zt_context_options context;  /* the device, its memory budget, the ranks */
  const zt_settings *settings; /* what scripts find in core.settings(); copied; NULL: nothing is given */
  size_t lua_memory;           /* limit of the interpreter's memory in bytes; 0: none */
  zt_log_sink log;             /* where notices go; NULL leaves the sink as it is */
  void *log_user;
  const zt_mem_hook *memory; /* the allocator; only while core has no block of host memory. NULL leaves it as it is */
  bool signals;              /* SIGINT and SIGTERM ask the script to stop; the second ends the process */
  bool traceback;            /* keep the traceback of errors */
  zt_world_on_failure on_failure; /* called after the script was told; see zt_world_set_on_failure */
  void *on_failure_user;
} zt_host_options;

/* 'options' NULL: the default. '*out' is owned by the caller. */
ZT_API zt_status zt_host_new(const zt_host_options *options, zt_host **out);
/* Frees everything that scripts made; takes its log sink and allocator away, and puts back the signal
** handlers from before. NULL ok. */
ZT_API void zt_host_free(zt_host *host);

/* Runs a script: 'arg' and '...' are set from args[n_args], arg[0] is the path or name. A Lua error is ZT_INVALID (ZT_NOMEM
** where memory ran out, ZT_IO where the file cannot be read) with its message as zt_message(); a stop by a signal is
** ZT_INTERRUPTED, also where the script ended in good order. */
ZT_API zt_status zt_host_run_file(zt_host *host, const char *path, int n_args, char *const args[]);
ZT_API zt_status zt_host_run_text(zt_host *host, const char *name, const char *text, size_t nbytes, int n_args,
                                  char *const args[]);
/* The same for a module that require finds: calls its function main with the table 'arg'. */
ZT_API zt_status zt_host_run_module(zt_host *host, const char *name, int n_args, char *const args[]);

/* The traceback of the last run's error, or NULL; borrowed until the next run. */
ZT_API const char *zt_host_traceback(const zt_host *host);
/* The signal that asked to stop, or 0. */
ZT_API int zt_host_signal(const zt_host *host);
/* The interpreter, to add what your recipes need; borrowed. */
ZT_API lua_State *zt_host_lua(zt_host *host);

#ifdef __cplusplus
}
#endif

#endif
