/* main.c - the program ztrain: reads the engine's options and runs a recipe in a host. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bindings/nearest.h"
#include "bindings/zt_host.h"

enum { EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_SIGNAL = 128 };

/* What is said stays one line, and the terminal's own commands stay out of it: names in messages are files' and users'. A
** line's end becomes a space, with the blanks that follow it; other control characters become "\27". */
static void say(const char *text) {
  fputs("ztrain: ", stderr);
  for (; *text; text++) {
    unsigned char ch = (unsigned char)*text;
    if (ch == '\n') {
      fputc(' ', stderr);
      text += strspn(text, "\n\t ") - 1;
    } else if (ch < ' ' || ch == 127) {
      fprintf(stderr, "\\%d", ch);
    } else {
      fputc(ch, stderr);
    }
  }
  fputc('\n', stderr);
}

static int usage_error(const char *format, const char *text, const char *more) {
  char line[1000];
  snprintf(line, sizeof line, format, text, more);
  size_t length = strlen(line);
  snprintf(line + length, sizeof line - length, "; see ztrain --help");
  say(line);
  return EXIT_USAGE;
}

/* --- sizes: a number and a unit, binary (KiB, MiB, ...) or decimal (KB, MB, ...) */

static bool unit_factor(const char *unit, double *factor) {
  static const char *const prefixes = "KMGT";
  const char *prefix = *unit ? strchr(prefixes, *unit) : NULL;
  *factor = 1;
  if (!prefix) return strcmp(unit, "") == 0 || strcmp(unit, "B") == 0;
  bool binary = unit[1] == 'i';
  for (const char *p = prefixes; p <= prefix; p++) *factor *= binary ? 1024 : 1000;
  return strcmp(unit + 1, binary ? "iB" : "B") == 0;
}

static bool parse_size(const char *text, size_t *nbytes) {
  char *unit;
  double factor, number = strtod(text, &unit);
  if (unit == text || !unit_factor(unit, &factor) || !(number > 0) || !(number * factor < 0x1p63)) return false;
  *nbytes = (size_t)(number * factor);
  return true;
}

/* --- the engine's options: those before the recipe */

typedef struct zt_settings zt_settings;
typedef int (*zt_command)(const zt_settings *settings, char *argv[]); /* returns the exit status */

struct zt_settings {
  zt_host_options host;
  zt_command command;
};

static int run_recipe(const zt_settings *settings, char *argv[]);
static int print_help(const zt_settings *settings, char *argv[]);
static int print_version(const zt_settings *settings, char *argv[]);

/* Words that may stand in the place of the recipe. */
static const struct {
  const char *name;
  zt_command run;
} commands[] = {{"help", print_help}, {"version", print_version}};

static bool set_device(zt_settings *s, const char *value) { return s->host.context.device = value, true; }
static bool set_device_memory(zt_settings *s, const char *value) {
  return parse_size(value, &s->host.context.device_memory);
}
static bool set_debug(zt_settings *s, const char *value) { return (void)value, s->host.traceback = true; }
static bool set_help(zt_settings *s, const char *value) { return (void)value, s->command = print_help, true; }
static bool set_version(zt_settings *s, const char *value) { return (void)value, s->command = print_version, true; }

static const struct {
  const char *name;
  const char *value; /* what it stands for in the help; NULL: the option takes none */
  const char *help;
  bool (*set)(zt_settings *settings, const char *value); /* false: the value is not one */
} options[] = {
    {"--device", "NAME", "where tensors are and ops run: cpu", set_device},
    {"--device-memory", "SIZE", "budget for the device's memory: 24GiB, 1.5GB; a hard limit", set_device_memory},
    {"--debug", NULL, "errors come with a traceback", set_debug},
    {"--help", NULL, "this text", set_help},
    {"--version", NULL, "the version", set_version},
};
enum { N_OPTIONS = sizeof options / sizeof *options };

static int print_help(const zt_settings *settings, char *argv[]) {
  (void)settings, (void)argv;
  printf("usage: ztrain [options] recipe.lua [the recipe's options]\n\n");
  for (int i = 0; i < N_OPTIONS; i++)
    printf("  %s %-*s  %s\n", options[i].name, 20 - (int)strlen(options[i].name),
           options[i].value ? options[i].value : "", options[i].help);
  printf("\nThe recipe's own options: ztrain recipe.lua --help\n");
  return 0;
}

static int print_version(const zt_settings *settings, char *argv[]) {
  (void)settings, (void)argv;
  printf("ztrain %s\n", ZT_VERSION);
  return 0;
}

/* Length of the name in NAME or NAME=VALUE. */
static size_t name_length(const char *arg) { return strcspn(arg, "="); }

static bool same_name(const char *name, const char *arg, size_t length) {
  for (size_t i = 0; i < length; i++)
    if (!name[i] || (i > 1 && arg[i] == '_' ? '-' : arg[i]) != name[i]) return false;
  return name[length] == '\0';
}

static int unknown_option(const char *arg) {
  const char *names[N_OPTIONS + 1] = {NULL};
  for (int i = 0; i < N_OPTIONS; i++) names[i] = options[i].name;
  char name[64];
  snprintf(name, sizeof name, "%.*s", (int)name_length(arg), arg);
  const char *nearest = zt_nearest(name, names);
  return usage_error(nearest ? "unknown option '%s'; did you mean '%s'?" : "unknown option '%s'", name, nearest);
}

/* Reads argv[*at] and its value; moves *at behind them. 0, or the exit status. */
static int read_option(zt_settings *settings, char *argv[], int *at) {
  const char *arg = argv[(*at)++];
  size_t length = name_length(arg);
  int i = 0;
  while (i < N_OPTIONS && !same_name(options[i].name, arg, length)) i++;
  if (i == N_OPTIONS) return unknown_option(arg);
  const char *value = arg[length] ? arg + length + 1 : NULL;
  if (!options[i].value && value) return usage_error("option '%s' takes no value, not '%s'", options[i].name, value);
  if (options[i].value && !value) value = argv[*at] ? argv[(*at)++] : NULL;
  if (options[i].value && !value)
    return usage_error("option '%s' needs a value: %s", options[i].name, options[i].value);
  if (!options[i].set(settings, value))
    return usage_error("option '%s': '%s' is not a size such as 24GiB", options[i].name, value);
  return 0;
}

/* --- running */

static void log_to_stderr(void *user, const char *line) {
  (void)user;
  say(line);
}

/* A failure of standard output (a full disk) shows here at the latest. */
static int close_output(int status) {
  if (fflush(stdout) == 0 && !ferror(stdout)) return status;
  clearerr(stdout);
  errno = 0; /* the cause of an earlier failure is known no more: one more character shows it */
  if (fputc('\n', stdout) != EOF) fflush(stdout);
  fprintf(stderr, "ztrain: standard output: %s\n", errno ? strerror(errno) : "a part could not be written");
  return status ? status : EXIT_FAILED;
}

/* Where a standard stream is closed, the next file to be opened would take its place, and get what is printed. What is
** opened instead can only be used the wrong way round: printing fails. */
static void hold_standard_streams(void) {
  for (int fd = 0; fd < 3; fd++)
    if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd ? O_RDONLY : O_WRONLY) < 0) exit(EXIT_FAILED);
}

static int report(const zt_host *host) {
  fflush(stdout);
  say(zt_message());
  const char *traceback = host ? zt_host_traceback(host) : NULL;
  if (traceback) fprintf(stderr, "%s\n", traceback);
  int signal = host ? zt_host_signal(host) : 0;
  return signal ? EXIT_SIGNAL + signal : EXIT_FAILED;
}

static int run_recipe(const zt_settings *settings, char *argv[]) {
  zt_host *host;
  int n_args = 0, status = 0;
  while (argv[n_args + 1]) n_args++;
  if (zt_host_new(&settings->host, &host) != ZT_OK || zt_host_run_file(host, argv[0], n_args, argv + 1) != ZT_OK)
    status = report(host);
  zt_host_free(host);
  return status;
}

/* OpenMP's threads spin while they wait, and where another program wants the cores too, that costs many times the work.
** The policy is read when libgomp is loaded, before main: so the program sets it and starts itself again. A policy of
** the user's own stands; where the second start fails, the first goes on. */
static void let_threads_sleep(char *argv[]) {
  if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT")) return;
  if (setenv("OMP_WAIT_POLICY", "passive", 1) == 0) execv("/proc/self/exe", argv);
}

int main(int argc, char *argv[]) {
  (void)argc;
  let_threads_sleep(argv);
  hold_standard_streams();
  zt_settings settings = {.host = {.log = log_to_stderr, .signals = true}};
  int at = 1;
  while (argv[at] && argv[at][0] == '-') {
    int status = read_option(&settings, argv, &at);
    if (status) return status;
  }
  if (!settings.command && !argv[at]) return usage_error("a recipe is missing%s%s", "", "");
  for (size_t i = 0; i < sizeof commands / sizeof *commands && !settings.command; i++)
    if (strcmp(argv[at], commands[i].name) == 0) settings.command = commands[i].run;
  if (!settings.command) settings.command = run_recipe;
  return close_output(settings.command(&settings, argv + at));
}
