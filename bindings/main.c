/* main.c - the program ztrain: reads the engine's options, starts ranks or is one, and runs a recipe in a host. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bindings/launch.h"
#include "bindings/say.h"
#include "bindings/zt_host.h"

enum { EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_SIGNAL = 128 };

/* After another rank's failure a script that has not come back is given up. */
enum { END_SECONDS = 6 };

static int usage_error(const char *text) {
  char line[1000];
  snprintf(line, sizeof line, "%s; see ztrain --help", text);
  zt_say(line, NULL);
  return EXIT_USAGE;
}

/* --- the command line */

typedef struct zt_program {
  char **all;  /* its own arguments, the program's name first */
  char **rest; /* from the recipe or command on */
  zt_settings settings;
} zt_program;

typedef int (*zt_command)(zt_program *program); /* returns the exit status */

static int run_recipe(zt_program *program);
static int run_library(zt_program *program);
static int print_help(zt_program *program);
static int print_version(zt_program *program);

/* Words that may stand in the place of the recipe. */
static const struct {
  const char *name;
  const char *arguments; /* for the help; NULL: it does not show */
  zt_command run;
} commands[] = {
    {"export", "CHECKPOINT FOLDER", run_library},
    {"help", NULL, print_help},
    {"version", NULL, print_version},
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static int print_help(zt_program *program) {
  (void)program;
  const zt_option *o;
  printf("usage: ztrain [options] recipe.lua [the recipe's options]\n");
  for (int i = 0; i < N_COMMANDS; i++)
    if (commands[i].arguments) printf("       ztrain %s %s\n", commands[i].name, commands[i].arguments);
  printf("\n");
  for (int i = 0; (o = zt_option_at(i)); i++) {
    int used = (int)(strlen(o->name) + (o->value ? 1 + strlen(o->value) : 0));
    printf("  --%s%s%s%*s  %s\n", o->name, o->value ? " " : "", o->value ? o->value : "", used < 32 ? 32 - used : 0, "",
           o->help);
  }
  printf("\nThe recipe's own options: ztrain recipe.lua --help\n");
  return 0;
}

static int print_version(zt_program *program) {
  (void)program;
  printf("ztrain %s\n", ZT_VERSION);
  return 0;
}

/* Reads argv[*at], NAME or NAME=VALUE, and its value; moves *at behind them. */
static zt_status read_option(zt_settings *settings, char *argv[], int *at) {
  char name[80];
  const char *arg = argv[(*at)++], *value = NULL;
  size_t length = strcspn(arg, "=");
  snprintf(name, sizeof name, "%.*s", (int)length, arg);
  const zt_option *option = zt_option_find(arg, length);
  if (arg[length])
    value = arg + length + 1;
  else if (option && option->value && argv[*at])
    value = argv[(*at)++];
  return zt_settings_set(settings, name, value);
}

static zt_status read_options(zt_program *p) {
  int at = 1;
  zt_settings *s = &p->settings;
  while (p->all[at] && p->all[at][0] == '-') ZT_TRY(read_option(s, p->all, &at));
  p->rest = p->all + at;
  if (s->cpu.given && s->device.given && strcmp(s->device.text, "cpu") != 0)
    return zt_fail(ZT_INVALID, "option '--cpu' and option '--device %s' exclude each other", s->device.text);
  if (s->cpu.given) return zt_settings_set(s, "device", "cpu");
  return ZT_OK;
}

static zt_command find_command(const zt_program *p) {
  if (p->settings.help.given) return print_help;
  if (p->settings.version.given) return print_version;
  for (int i = 0; i < N_COMMANDS && p->rest[0]; i++)
    if (strcmp(p->rest[0], commands[i].name) == 0) return commands[i].run;
  return p->rest[0] ? run_recipe : NULL;
}

/* --- ending */

static zt_world *world; /* of several ranks; else NULL */

/* Runs at exit, too: a script may have called os.exit. */
static void close_world(void) {
  fflush(stdout); /* rank 0 waits here for the others */
  zt_world_close(world);
  world = NULL;
}

static void log_to_stderr(void *user, const char *line) {
  (void)user;
  zt_say(line, NULL);
}

/* A failure of standard output (a full disk) shows here at the latest. */
static int close_output(int status) {
  if (fflush(stdout) == 0 && !ferror(stdout)) return status;
  clearerr(stdout);
  errno = 0; /* the cause of an earlier failure is known no more: one more character shows it */
  if (fputc('\n', stdout) != EOF) fflush(stdout);
  char text[200];
  snprintf(text, sizeof text, "standard output: %s", errno ? strerror(errno) : "a part could not be written");
  zt_say(text, NULL);
  return status ? status : EXIT_FAILED;
}

/* What another rank's failure was, for the thread that ends this one. */
static struct {
  char message[1100];
  int status;
} failure;

static void *end_in_time(void *user) {
  (void)user;
  struct timespec left = {.tv_sec = END_SECONDS};
  while (nanosleep(&left, &left) != 0) {
  }
  if (ftrylockfile(stdout) == 0) fflush(stdout); /* where the script is inside of a print, it is lost */
  zt_say(failure.message, NULL);
  _exit(failure.status);
}

static void on_failure(void *user, const char *message, int exit_status) {
  pthread_t thread;
  (void)user;
  snprintf(failure.message, sizeof failure.message, "%s; the script did not stop within %d s", message, END_SECONDS);
  failure.status = exit_status;
  if (pthread_create(&thread, NULL, end_in_time, NULL) == 0) pthread_detach(thread);
}

/* Says what failed; the exit status. */
static int report(const zt_host *host) {
  int status = EXIT_FAILED, signal = host ? zt_host_signal(host) : 0;
  fflush(stdout);
  zt_say(zt_message(), host ? zt_host_traceback(host) : NULL);
  if (world && zt_world_failed(world, NULL, &status)) return status;
  return signal ? EXIT_SIGNAL + signal : status;
}

/* --- running */

/* Standard output is rank 0's. */
static zt_status be_silent(void) {
  int fd = open("/dev/null", O_WRONLY);
  if (fd < 0 || dup2(fd, STDOUT_FILENO) < 0) return zt_fail(ZT_IO, "/dev/null: %s", strerror(errno));
  close(fd);
  return ZT_OK;
}

static zt_status join(const zt_program *p, zt_world_options *options) {
  zt_say_as(options->rank, options->size);
  if (options->rank > 0) ZT_TRY(be_silent());
  options->timeout = p->settings.collective_timeout.number;
  ZT_TRY(zt_world_open(options, &world));
  if (atexit(close_world) != 0) return zt_fail(ZT_NOMEM, "atexit: no memory");
  return ZT_OK;
}

static zt_host_options host_options(const zt_program *p) {
  return (zt_host_options){
      .context = {.device = p->settings.device.given ? p->settings.device.text : NULL,
                  .device_memory = (size_t)p->settings.device_memory.integer,
                  .world = world},
      .settings = &p->settings,
      .log = log_to_stderr,
      .signals = true,
      .traceback = p->settings.debug.given,
      .on_failure = on_failure,
  };
}

/* Runs the recipe, or where there is one, the module. */
static int run_host(const zt_program *p, const char *module) {
  zt_host *host;
  zt_host_options options = host_options(p);
  int n_args = 0, status = 0;
  while (p->rest[n_args + 1]) n_args++;
  zt_status st = zt_host_new(&options, &host);
  if (st == ZT_OK)
    st = module ? zt_host_run_module(host, module, n_args, p->rest + 1)
                : zt_host_run_file(host, p->rest[0], n_args, p->rest + 1);
  if (st != ZT_OK) status = report(host);
  zt_host_free(host);
  close_world();
  return status;
}

/* A command that is written in Lua. */
static int run_library(zt_program *p) {
  if (p->settings.num_processes.given) return usage_error("a command starts no ranks (-n)");
  char module[80];
  snprintf(module, sizeof module, "ztrain.commands.%s", p->rest[0]);
  return run_host(p, module);
}

/* One process runs a recipe alone, or as the rank that its environment says it is; or it starts the ranks. */
static int run_recipe(zt_program *p) {
  zt_world_options options;
  bool found;
  if (zt_world_options_from_environment(&options, &found) != ZT_OK) {
    zt_say(zt_message(), NULL);
    return EXIT_USAGE;
  }
  bool launched = zt_launched(&options);
  int n = p->settings.num_processes.given ? (int)p->settings.num_processes.integer : 1;
  if (found && !launched && p->settings.num_processes.given) {
    char text[200];
    snprintf(text, sizeof text,
             "the environment says that this is rank %d of %d: it joins them, and starts no ranks (-n %d)",
             options.rank, options.size, n);
    return usage_error(text);
  }
  if (n > 1 && !launched) return zt_launch(n, p->all);
  return found && join(p, &options) != ZT_OK ? report(NULL) : run_host(p, NULL);
}

/* --- the process */

/* Where a standard stream is closed, the next file to be opened would take its place, and get what is printed. What is
** opened instead can only be used the wrong way round: printing fails. */
static void hold_standard_streams(void) {
  for (int fd = 0; fd < 3; fd++)
    if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd ? O_RDONLY : O_WRONLY) < 0) exit(EXIT_FAILED);
}

/* Ranks that somebody else has started on one machine share its cores. */
static bool share_cores(void) {
  zt_world_options options;
  bool found;
  char threads[16];
  if (getenv("OMP_NUM_THREADS") || zt_world_options_from_environment(&options, &found) != ZT_OK || !found) return false;
  snprintf(threads, sizeof threads, "%d", zt_threads_each(options.local_size));
  return setenv("OMP_NUM_THREADS", threads, 1) == 0;
}

/* OpenMP's threads spin while they wait, and where another program wants the cores too, that costs many times the work.
** A policy of the user's own stands. */
static bool let_threads_sleep(void) {
  return !getenv("OMP_WAIT_POLICY") && !getenv("GOMP_SPINCOUNT") && setenv("OMP_WAIT_POLICY", "passive", 1) == 0;
}

/* libgomp reads its environment when it is loaded, before main: so the program sets it and starts itself again. Where the
** second start fails, the first goes on. */
static void prepare_threads(char *argv[]) {
  bool share = share_cores(), sleep = let_threads_sleep();
  if (share || sleep) execv("/proc/self/exe", argv);
}

int main(int argc, char *argv[]) {
  (void)argc;
  prepare_threads(argv);
  hold_standard_streams();
  zt_program program = {.all = argv};
  if (read_options(&program) != ZT_OK) return usage_error(zt_message());
  zt_command command = find_command(&program);
  return command ? close_output(command(&program)) : usage_error("a recipe is missing");
}
