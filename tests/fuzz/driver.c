/* Runs a fuzz target without libFuzzer: fuzz_NAME ROUNDS FILE... gives it each file as it is, then ROUNDS inputs mutated
** from them by a generator with a fixed seed. A finding is a crash (sanitizers help); the input that did it is written to
** crash-NAME first, to be given as FILE with 0 rounds. With clang -fsanitize=fuzzer this file is left out. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <signal.h>
#include <fcntl.h>
#include <unistd.h>

#include "core/base/rng.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes);

enum { MAX_NBYTES = 1 << 16 };
typedef struct input {
  uint8_t *bytes;
  size_t nbytes;
} input;

static input current; /* what the signal handler saves */
static const char *crash_path;

static uint64_t draw(uint64_t n) {
  static uint64_t count;
  return zt_rng_mix(20240501, count++) % n;
}

static void on_crash(int number) {
  int fd = open(crash_path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (fd >= 0 && write(fd, current.bytes, current.nbytes) == (ssize_t)current.nbytes) close(fd);
  signal(number, SIG_DFL);
  raise(number);
}

static void flip(input *in) {
  if (in->nbytes) in->bytes[draw(in->nbytes)] ^= (uint8_t)(1 << draw(8));
}

static void replace(input *in) {
  if (in->nbytes) in->bytes[draw(in->nbytes)] = (uint8_t)draw(256);
}

static void cut_end(input *in) { in->nbytes = draw(in->nbytes + 1); }

static void remove_part(input *in) {
  size_t at = draw(in->nbytes + 1), n = draw(in->nbytes - at + 1);
  memmove(in->bytes + at, in->bytes + at + n, in->nbytes - at - n);
  in->nbytes -= n;
}

static void insert(input *in, const void *part, size_t n) {
  size_t at = draw(in->nbytes + 1);
  if (in->nbytes + n > MAX_NBYTES) return;
  memmove(in->bytes + at + n, in->bytes + at, in->nbytes - at);
  memcpy(in->bytes + at, part, n);
  in->nbytes += n;
}

static void repeat_part(input *in) {
  uint8_t part[64];
  size_t at = draw(in->nbytes + 1), n = draw((in->nbytes - at < 64 ? in->nbytes - at : 64) + 1);
  memcpy(part, in->bytes + at, n);
  insert(in, part, n);
}

/* Pieces that JSON and length fields are sensitive to. */
static void insert_piece(input *in) {
  static const char *const pieces[] = {"{",
                                       "}",
                                       "[",
                                       "]",
                                       ",",
                                       ":",
                                       "\"",
                                       "\\",
                                       "-",
                                       "0",
                                       "-1",
                                       "1e99",
                                       "2.5",
                                       "null",
                                       "4294967296",
                                       "9223372036854775807",
                                       "9223372036854775808",
                                       "\\u0000",
                                       "\\ud800",
                                       "\xff\xff\xff\xff",
                                       "\xc3",
                                       "[[[[[[[[",
                                       "\n"};
  const char *piece = pieces[draw(sizeof pieces / sizeof *pieces)];
  insert(in, piece, strlen(piece));
}

/* Overwrites a run of digits with another number of as many digits: keeps the text well-formed and its lengths right. */
static void change_number(input *in) {
  size_t at = draw(in->nbytes + 1);
  while (at < in->nbytes && (in->bytes[at] < '0' || in->bytes[at] > '9')) at++;
  for (; at < in->nbytes && in->bytes[at] >= '0' && in->bytes[at] <= '9'; at++)
    in->bytes[at] = (uint8_t)('0' + draw(10));
}

static void mutate(input *in) {
  static void (*const ways[])(input *) = {flip,        replace,      cut_end,       remove_part,
                                          repeat_part, insert_piece, change_number, change_number};
  for (uint64_t n = 1 + draw(4); n; n--) ways[draw(sizeof ways / sizeof *ways)](in);
}

static input read_seed(const char *path) {
  input in = {malloc(MAX_NBYTES), 0};
  FILE *file = fopen(path, "rb");
  if (!in.bytes || !file) {
    fprintf(stderr, "cannot read '%s'\n", path);
    exit(2);
  }
  in.nbytes = fread(in.bytes, 1, MAX_NBYTES, file);
  fclose(file);
  return in;
}

/* In a block of exactly its size, so that a sanitizer sees what reads past its end. */
static void run(const input *in) {
  current = (input){malloc(in->nbytes), in->nbytes};
  if (in->nbytes && !current.bytes) exit(2);
  if (in->nbytes) memcpy(current.bytes, in->bytes, in->nbytes);
  LLVMFuzzerTestOneInput(current.bytes, current.nbytes);
  free(current.bytes);
}

int main(int argc, char **argv) {
  static input seeds[256];
  static uint8_t bytes[MAX_NBYTES];
  int n_seeds = argc - 2;
  char path[256];
  if (n_seeds < 1 || n_seeds > 256) return fprintf(stderr, "usage: %s ROUNDS FILE...\n", argv[0]), 2;
  const char *slash = strrchr(argv[0], '/');
  snprintf(path, sizeof path, "crash-%s", slash ? slash + 1 : argv[0]);
  crash_path = path;
  signal(SIGABRT, on_crash);
  signal(SIGSEGV, on_crash);
  for (int i = 0; i < n_seeds; i++) seeds[i] = read_seed(argv[2 + i]), run(&seeds[i]);
  for (long round = strtol(argv[1], NULL, 10); round > 0; round--) {
    const input *seed = &seeds[draw((uint64_t)n_seeds)];
    input in = {bytes, seed->nbytes};
    memcpy(bytes, seed->bytes, seed->nbytes);
    mutate(&in);
    run(&in);
  }
  for (int i = 0; i < n_seeds; i++) free(seeds[i].bytes);
  return 0;
}
