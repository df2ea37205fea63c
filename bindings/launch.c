#include "bindings/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bindings/say.h"
#include "core/base/mem.h"

enum { EXIT_FAILED = 1, EXIT_SIGNAL = 128, EXIT_NO_PROGRAM = 127 };

/* Seconds after the first failure: the control plane tells the others, which end by themselves; those that do not are asked,
** then killed. */
static const double ask_after = 8, kill_after = 9;

typedef struct launch {
  int n, n_living;
  pid_t *pids; /* of the living; 0: has ended */
  int listen_fd, port;
  uint64_t session;
  sigset_t signals, signals_before;
  int status;
  double ending; /* when the first rank failed, or it was ended by a second signal; 0: not yet */
  int n_signals; /* passed on */
  int sent;      /* the last signal that all ranks got from us; 0: none */
  bool asked, killed;
} launch;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static zt_status system_error(const char *what) { return zt_fail(ZT_IO, "%s: %s", what, strerror(errno)); }

/* --- cores */

static int cores(cpu_set_t *set) {
  if (sched_getaffinity(0, sizeof *set, set) == 0) return CPU_COUNT(set);
  CPU_ZERO(set); /* a machine of more than CPU_SETSIZE cores */
  long n = sysconf(_SC_NPROCESSORS_ONLN);
  return n < 1 ? 1 : (int)n;
}

int zt_threads_each(int n) {
  cpu_set_t set;
  int each = cores(&set) / n;
  return each > 1 ? each : 1;
}

/* Keeps this process, one of n, to cores of its own, where there are enough. That is for speed: it may fail. */
static void take_share(int rank, int n) {
  cpu_set_t all, mine;
  int count = cores(&all), index = 0;
  if (count < n || CPU_COUNT(&all) == 0) return;
  int first = (int)((long)count * rank / n), end = (int)((long)count * (rank + 1) / n);
  CPU_ZERO(&mine);
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
    if (!CPU_ISSET(cpu, &all)) continue;
    if (index >= first && index < end) CPU_SET(cpu, &mine);
    index++;
  }
  sched_setaffinity(0, sizeof mine, &mine);
}

/* --- what a rank is told */

static void set_integer(const char *name, int value) {
  char text[16];
  snprintf(text, sizeof text, "%d", value);
  setenv(name, text, 1);
}

static void set_environment(const launch *l, int rank, int threads) {
  char session[32];
  snprintf(session, sizeof session, "%llx", (unsigned long long)l->session);
  setenv("ZTRAIN_SESSION", session, 1);
  if (rank == 0) set_integer("ZTRAIN_LISTEN_FD", l->listen_fd);
  set_integer("RANK", rank);
  set_integer("WORLD_SIZE", l->n);
  set_integer("LOCAL_RANK", rank);
  set_integer("LOCAL_WORLD_SIZE", l->n);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  set_integer("MASTER_PORT", l->port);
  unsetenv("TORCHELASTIC_USE_AGENT_STORE"); /* it would say that somebody else has the port */
  if (!getenv("OMP_NUM_THREADS")) set_integer("OMP_NUM_THREADS", threads);
  if (!getenv("OMP_WAIT_POLICY")) setenv("OMP_WAIT_POLICY", "passive", 1);
}

/* The process that started this rank is gone: the rank ends with all that it has started. */
static void on_orphaned(int number) {
  (void)number;
  kill(0, SIGKILL);
}

bool zt_launched(zt_world_options *options) {
  const char *session = getenv("ZTRAIN_SESSION"), *fd = getenv("ZTRAIN_LISTEN_FD");
  if (!session) return false;
  options->session = strtoull(session, NULL, 16);
  if (fd) {
    options->listen_fd = atoi(fd);
    fcntl(options->listen_fd, F_SETFD, FD_CLOEXEC);
  }
  sigaction(SIGHUP, &(struct sigaction){.sa_handler = on_orphaned, .sa_flags = SA_ONSTACK}, NULL);
  unsetenv("ZTRAIN_SESSION");
  unsetenv("ZTRAIN_LISTEN_FD");
  return true;
}

/* A terminal stops a process that reads from it and is not in the foreground, as no rank is. */
static void choose_input(int rank) {
  if (rank == 0 && !isatty(STDIN_FILENO)) return;
  int fd = open("/dev/null", O_RDONLY);
  if (fd > STDERR_FILENO) dup2(fd, STDIN_FILENO), close(fd);
}

/* The child becomes the rank; returns where it cannot. */
static void become_rank(const launch *l, int rank, pid_t parent, char *argv[]) {
  int threads = zt_threads_each(l->n);
  setpgid(0, 0);
  signal(SIGHUP, SIG_DFL); /* where nohup ignores it */
  prctl(PR_SET_PDEATHSIG, SIGHUP);
  if (getppid() != parent) return;
  take_share(rank, l->n);
  set_environment(l, rank, threads);
  choose_input(rank);
  if (rank == 0) fcntl(l->listen_fd, F_SETFD, 0);
  sigprocmask(SIG_SETMASK, &l->signals_before, NULL);
  execv("/proc/self/exe", argv);
  char text[120];
  snprintf(text, sizeof text, "cannot start rank %d/%d: /proc/self/exe: %s", rank, l->n, strerror(errno));
  zt_say(text, NULL);
}

/* --- starting */

/* A socket that listens on this machine, at a port that is free. */
static zt_status listen_here(launch *l) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  struct sockaddr *at = (struct sockaddr *)&address;
  socklen_t length = sizeof address;
  l->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (l->listen_fd < 0) return system_error("socket");
  if (bind(l->listen_fd, at, length) != 0) return system_error("bind to 127.0.0.1");
  if (listen(l->listen_fd, SOMAXCONN) != 0) return system_error("listen");
  if (getsockname(l->listen_fd, at, &length) != 0) return system_error("getsockname");
  l->port = ntohs(address.sin_port);
  return ZT_OK;
}

/* A signal that is ignored, as SIGINT under nohup, stays so. */
static void add_unless_ignored(sigset_t *set, int signal) {
  struct sigaction action;
  if (sigaction(signal, NULL, &action) == 0 && action.sa_handler != SIG_IGN) sigaddset(set, signal);
}

/* From here on this process takes its signals one by one. */
static zt_status hold_signals(launch *l) {
  signal(SIGCHLD, SIG_DFL); /* ignored, it would take away how ranks end */
  sigemptyset(&l->signals);
  sigaddset(&l->signals, SIGCHLD);
  add_unless_ignored(&l->signals, SIGINT);
  add_unless_ignored(&l->signals, SIGTERM);
  return sigprocmask(SIG_BLOCK, &l->signals, &l->signals_before) == 0 ? ZT_OK : system_error("sigprocmask");
}

static zt_status prepare(launch *l) {
  l->pids = zt_calloc((size_t)l->n, sizeof *l->pids);
  if (!l->pids) return ZT_NOMEM;
  if (getrandom(&l->session, sizeof l->session, 0) != sizeof l->session) return system_error("getrandom");
  ZT_TRY(listen_here(l));
  return hold_signals(l);
}

static zt_status start(launch *l, char *argv[]) {
  pid_t parent = getpid();
  for (int rank = 0; rank < l->n; rank++) {
    pid_t pid = fork();
    if (pid < 0) return zt_fail(ZT_IO, "cannot start rank %d/%d: %s", rank, l->n, strerror(errno));
    if (pid == 0) {
      become_rank(l, rank, parent, argv);
      _exit(EXIT_NO_PROGRAM);
    }
    setpgid(pid, pid); /* both do so: whoever comes first; it fails where the rank has its program already */
    l->pids[rank] = pid;
    l->n_living++;
  }
  return ZT_OK;
}

/* --- the end of ranks */

static void signal_all(launch *l, int signal, bool groups) {
  for (int rank = 0; rank < l->n; rank++)
    if (l->pids[rank]) kill(groups ? -l->pids[rank] : l->pids[rank], signal);
  l->sent = signal;
}

/* One that ends by a signal of ours says nothing about why all end. */
static void note_failure(launch *l, int rank, int signal, int status) {
  char text[80];
  if (signal && signal != l->sent) {
    snprintf(text, sizeof text, "rank %d/%d was killed by signal %d", rank, l->n, signal);
    zt_say(text, NULL);
  }
  if (!l->status) l->status = signal ? EXIT_SIGNAL + signal : status;
  if (l->ending == 0) l->ending = now();
}

/* Takes note of ranks that have ended; of those that were killed, or of the others: where several have ended since we looked
** last, the former are the reason. What a rank has started and left behind ends with it; while the rank itself is still to be
** waited for, nobody else can have its number. */
static void reap(launch *l, bool those_killed) {
  for (int rank = 0; rank < l->n; rank++) {
    siginfo_t info = {0};
    pid_t pid = l->pids[rank];
    if (!pid || waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) continue;
    bool was_killed = info.si_code != CLD_EXITED;
    if (was_killed != those_killed) continue;
    kill(-pid, SIGKILL);
    waitpid(pid, NULL, 0);
    l->pids[rank] = 0;
    l->n_living--;
    if (info.si_status != 0) note_failure(l, rank, was_killed ? info.si_status : 0, info.si_status);
  }
}

/* Those that are still there long after a failure. */
static void press(launch *l) {
  double since = l->ending > 0 ? now() - l->ending : 0;
  if (since >= ask_after && !l->asked) {
    l->asked = true;
    signal_all(l, SIGTERM, false);
  }
  if (since < kill_after || l->killed) return;
  l->killed = true;
  for (int rank = 0; rank < l->n; rank++) {
    char text[80];
    snprintf(text, sizeof text, "rank %d/%d did not end in time: killed", rank, l->n);
    if (l->pids[rank]) zt_say(text, NULL);
  }
  signal_all(l, SIGKILL, true);
}

/* A second one ends all at once, as it does where one process runs. */
static void pass_on(launch *l, int signal) {
  signal_all(l, signal, false);
  if (++l->n_signals > 1 && l->ending == 0) l->ending = now();
}

/* A signal, or 0 when it is time to press. */
static int wait_for_signal(const launch *l) {
  struct timespec limit = {.tv_sec = 3600};
  if (l->ending > 0 && !l->killed) {
    double left = l->ending + (l->asked ? kill_after : ask_after) - now();
    if (left < 0) left = 0;
    limit.tv_sec = (time_t)left;
    limit.tv_nsec = (long)((left - (double)limit.tv_sec) * 1e9);
  }
  int signal = sigtimedwait(&l->signals, NULL, &limit);
  return signal < 0 ? 0 : signal;
}

static void wait_for_ranks(launch *l) {
  while (l->n_living > 0) {
    int signal = wait_for_signal(l);
    if (signal == SIGINT || signal == SIGTERM) pass_on(l, signal);
    reap(l, true);
    reap(l, false);
    press(l);
  }
}

static void give_up(launch *l) {
  zt_say(zt_message(), NULL);
  l->status = EXIT_FAILED;
  l->killed = true;
  signal_all(l, SIGKILL, true);
}

int zt_launch(int n, char *argv[]) {
  launch l = {.n = n, .listen_fd = -1};
  zt_status st = prepare(&l);
  if (st == ZT_OK) st = start(&l, argv);
  if (l.listen_fd >= 0) close(l.listen_fd); /* it is rank 0's */
  if (st != ZT_OK) give_up(&l);
  wait_for_ranks(&l);
  zt_free(l.pids);
  return l.status;
}
