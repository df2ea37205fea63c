/* lua_signal.c - SIGINT and SIGTERM ask a script to stop. A training loop that looks (stop_signal(true)) ends at its next
** step; else the script is interrupted by an error. The second signal ends the process at once. Another rank's failure
** interrupts it, too: by SIGURG, sent to the script's thread, since a hook may be set there alone.
** Signals belong to the process, and so does the state below. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "bindings/lua_state.h"

static void ask_to_stop(int number);
static void interrupt(int number);

static const struct {
  int number;
  void (*handler)(int number);
} signals[] = {{SIGINT, ask_to_stop}, {SIGTERM, ask_to_stop}, {SIGURG, interrupt}};
enum { N_SIGNALS = sizeof signals / sizeof *signals };

static volatile sig_atomic_t asked;    /* the signal's number; 0: none yet */
static volatile sig_atomic_t deferred; /* somebody looks */
static volatile sig_atomic_t raised;   /* the script got its error */
static bool agreed;                    /* all ranks know */
static _Atomic(lua_State *) running;   /* the interpreter to interrupt */
static _Atomic(pthread_t) thread;      /* where it runs */
static bool installed;
static struct sigaction before[N_SIGNALS];
static char handlers_stack[1 << 16];
static atomic_bool lent; /* that stack, to a thread */

static int raise_stop(lua_State *L) {
  raised = 1;
  return zt_lua_raise(L, "stopped by %s", asked == SIGINT ? "SIGINT" : "SIGTERM");
}

static void stop_hook(lua_State *L, lua_Debug *ar) {
  (void)ar;
  lua_sethook(L, NULL, 0, 0);
  zt_lua_check_stop(L);
}

/* lua_sethook may be called from a signal handler. */
static void interrupt(int number) {
  (void)number;
  lua_State *L = atomic_load(&running);
  if (L) lua_sethook(L, stop_hook, LUA_MASKCALL | LUA_MASKRET | LUA_MASKLINE | LUA_MASKCOUNT, 1);
}

static void ask_to_stop(int number) {
  if (asked) _exit(128 + number);
  asked = number;
  if (!deferred) interrupt(number);
}

/* oneDNN's products use the stack pointer for other things: a handler on the thread's stack would write anywhere. A thread
** that has a stack for handlers already keeps it. */
static void lend_stack(void) {
  stack_t stack;
  if (sigaltstack(NULL, &stack) != 0 || !(stack.ss_flags & SS_DISABLE) || atomic_exchange(&lent, true)) return;
  stack = (stack_t){.ss_sp = handlers_stack, .ss_size = sizeof handlers_stack};
  sigaltstack(&stack, NULL);
}

static void take_stack_back(void) {
  stack_t stack;
  if (sigaltstack(NULL, &stack) != 0 || stack.ss_sp != handlers_stack) return;
  stack = (stack_t){.ss_flags = SS_DISABLE};
  if (sigaltstack(&stack, NULL) == 0) atomic_store(&lent, false);
}

zt_status zt_signals_install(void) {
  struct sigaction action = {.sa_flags = SA_RESTART | SA_ONSTACK};
  sigemptyset(&action.sa_mask);
  for (int i = 0; i < N_SIGNALS && !installed; i++) {
    int number = signals[i].number;
    action.sa_handler = signals[i].handler;
    if (sigaction(number, NULL, &before[i]) != 0) return zt_fail(ZT_STATE, "sigaction: %s", strerror(errno));
    if (before[i].sa_handler != SIG_IGN || number == SIGURG)
      sigaction(number, &action, NULL); /* ignored, as under nohup, a wish to stop stays so */
  }
  installed = true;
  return ZT_OK;
}

void zt_signals_restore(void) {
  for (int i = 0; i < N_SIGNALS && installed; i++) sigaction(signals[i].number, &before[i], NULL);
  installed = false;
  asked = deferred = raised = 0;
  agreed = false;
  atomic_store(&running, NULL);
  take_stack_back();
}

int zt_signals_stop(void) { return asked; }

void zt_signals_note(int number) {
  if (!asked) asked = number;
  raised = 1; /* whoever notes it ends the script himself */
  agreed = true;
}

bool zt_signals_agreed(void) { return agreed; }

void zt_signals_watch(lua_State *L) {
  lend_stack();
  atomic_store(&thread, pthread_self());
  atomic_store(&running, L);
}

void zt_signals_interrupt(void) {
  if (atomic_load(&running)) pthread_kill(atomic_load(&thread), SIGURG);
}

void zt_signals_check(lua_State *L) {
  if (asked && !deferred && !raised) raise_stop(L);
}

int zt_signals_defer(lua_State *L, bool on) {
  deferred = on;
  zt_signals_check(L);
  return asked;
}
