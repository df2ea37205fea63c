/* Ranks that die, end, raise, sleep, or do something else: all end in time, and say why. */
#include "tests/c/crew.h"

#include <pthread.h>
#include <stdatomic.h>

#include "core/comm/control.h"

static const char *here(void *user) { return user; }

/* Collectives at a line of a script. */
static zt_status barrier_at(zt_world *w, const char *what, const char *line) {
  zt_world_set_where(w, here, (void *)line);
  return zt_barrier(w, &(zt_label){.what = what, .id = -1});
}

static zt_status gather_at(zt_world *w, const char *what, int64_t id, size_t nbytes, const char *line) {
  static char data[CREW_MAX * 4096];
  zt_world_set_where(w, here, (void *)line);
  return zt_all_gather(w, &(zt_label){.what = what, .id = id}, data, nbytes);
}

static zt_status forever(zt_world *w) {
  while (!zt_world_failed(w, NULL, NULL)) crew_sleep(0.01);
  return zt_barrier(w, NULL);
}

static void run(crew *c, double limit) {
  crew_start(c);
  crew_wait(c, limit);
}

/* All but 'rank' ended with this message within 'limit' seconds. */
static void assert_others(const crew *c, int rank, const char *line, double limit) {
  for (int r = 0; r < c->options.size; r++) {
    if (r == rank) continue;
    assert_rank(c, r, CREW_PEER, line);
    if (c->ranks[r].seconds > limit) fail_msg("rank %d ended after %g s", r, c->ranks[r].seconds);
  }
}

/* --- death */

static bool rank_2_said_ready(const crew *c) { return strstr(c->ranks[2].text, "ready") != NULL; }

static void kill_rank_2(crew *c) {
  crew_start(c);
  crew_until(c, rank_2_said_ready, 10);
  crew_sleep(0.1);
  kill(c->ranks[2].pid, SIGKILL);
  crew_wait(c, 10);
}

static zt_status in_a_collective(zt_world *w, int rank) {
  if (rank == 2) crew_say("ready\n");
  if (rank == 0) return forever(w); /* it does not wait in a collective, and is told all the same */
  return barrier_at(w, "a", "recipe.lua:1");
}

static void test_killed_in_a_collective(void **state) {
  (void)state;
  crew c = {.options = {.size = 4}, .body = in_a_collective};
  kill_rank_2(&c);
  assert_others(&c, 2, "rank 2/4 died (its connection closed)", 5);
}

static zt_status outside(zt_world *w, int rank) {
  if (rank != 2) return barrier_at(w, "a", "recipe.lua:1");
  crew_say("ready\n");
  return forever(w);
}

static void test_killed_outside(void **state) {
  (void)state;
  crew c = {.options = {.size = 4}, .body = outside};
  kill_rank_2(&c);
  assert_others(&c, 2, "rank 2/4 died (its connection closed)", 5);
}

/* In the middle of much data. */
static zt_status busy(zt_world *w, int rank) {
  static char data[3 << 20];
  if (rank == 2) crew_say("ready\n");
  for (;;) ZT_TRY(zt_all_gather(w, NULL, data, sizeof data / 4));
}

static void test_killed_while_busy(void **state) {
  (void)state;
  crew c = {.options = {.size = 4}, .body = busy};
  kill_rank_2(&c);
  assert_others(&c, 2, "rank 2/4 died (its connection closed)", 5);
}

/* From before they know each other to the middle of data: the others end, with the same cause where it is known. */
static void test_killed_at_any_time(void **state) {
  (void)state;
  for (int i = 0; i < 20; i++) {
    crew c = {.options = {.size = 3, .open_limit = 0.5}, .body = busy};
    int victim = (int)scratch_below(3);
    char text[64];
    snprintf(text, sizeof text, "rank %d/3 died", victim);
    crew_start(&c);
    crew_sleep(1e-3 * (double)scratch_below(30));
    kill(c.ranks[victim].pid, SIGKILL);
    crew_wait(&c, 10);
    for (int r = 0; r < 3; r++) {
      if (r == victim) continue;
      assert_rank(&c, r, CREW_PEER, NULL);
      if (!strstr(c.ranks[r].text, "cannot join") && !strstr(c.ranks[r].text, "not come")) assert_said(&c, r, text);
    }
  }
}

static zt_status first_dies(zt_world *w, int rank) {
  if (rank == 0) kill(getpid(), SIGKILL);
  return barrier_at(w, "a", "recipe.lua:1");
}

static void test_first_dies(void **state) {
  (void)state;
  crew c = {.options = {.size = 3}, .body = first_dies};
  run(&c, 10);
  assert_others(&c, 0, "rank 0/3 died (its connection closed)", 5);
}

static zt_status exits(zt_world *w, int rank) {
  if (rank == 1) _exit(0);
  return barrier_at(w, "a", "recipe.lua:1");
}

static void test_exits_without_a_word(void **state) {
  (void)state;
  crew c = {.options = {.size = 3}, .body = exits};
  run(&c, 10);
  assert_others(&c, 1, "rank 1/3 died (its connection closed)", 5);
}

/* --- ends and failures */

static zt_status ends(zt_world *w, int rank) {
  ZT_TRY(barrier_at(w, "a", "recipe.lua:1"));
  return rank == 1 ? ZT_OK : gather_at(w, "parameters of page", 3, 10, "recipe.lua:2");
}

static void test_ends_too_early(void **state) {
  (void)state;
  crew c = {.options = {.size = 3}, .body = ends};
  run(&c, 10);
  assert_rank(&c, 1, CREW_OK, "");
  assert_others(&c, 1, "rank 1/3 ended, while rank 0 waits in all_gather 'parameters of page 3' (recipe.lua:2)", 8);
}

static zt_status first_ends(zt_world *w, int rank) {
  return rank == 0 ? ZT_OK : gather_at(w, "parameters of page", 3, 10, "recipe.lua:2");
}

static void test_first_ends_too_early(void **state) {
  (void)state;
  crew c = {.options = {.size = 3}, .body = first_ends};
  run(&c, 10);
  assert_rank(&c, 0, CREW_OK, ""); /* it waits in zt_world_close */
  assert_others(&c, 0, "rank 0/3 ended, while rank 1 waits in all_gather 'parameters of page 3' (recipe.lua:2)", 8);
}

/* What a rank has done ends it in good order, whatever the others still do. */
static zt_status one_after_another(zt_world *w, int rank) {
  ZT_TRY(zt_barrier(w, NULL));
  crew_sleep(0.2 * (3 - rank));
  return ZT_OK;
}

static void test_ends_in_good_order(void **state) {
  (void)state;
  crew c = {.options = {.size = 4}, .body = one_after_another};
  run(&c, 10);
  for (int r = 0; r < 4; r++) assert_rank(&c, r, CREW_OK, "");
  assert_true(c.ranks[3].seconds < c.ranks[1].seconds && c.ranks[1].seconds < c.ranks[0].seconds);
}

static pthread_t main_thread;
static void on_failure(void *user, const char *message, int exit_status) {
  bool same = pthread_equal(pthread_self(), main_thread);
  crew_say("%s thread, %s: %s, status %d\n", same ? "same" : "other", (const char *)user, message, exit_status);
}

static zt_status raises(zt_world *w, int rank) {
  main_thread = pthread_self();
  const char *message;
  int status;
  zt_world_set_on_failure(w, on_failure, "user");
  if (rank == 3) {
    crew_sleep(0.1);
    zt_world_fail(w, "recipe.lua:7: broken", 7);
    zt_world_fail(w, "recipe.lua:8: broken twice", 8);
  }
  zt_status st = rank == 1 ? forever(w) : barrier_at(w, "a", "recipe.lua:1");
  if (!zt_world_failed(w, &message, &status) || status != 7 || strcmp(message, zt_message()) != 0) _exit(98);
  return st;
}

static void test_raises(void **state) {
  (void)state;
  crew c = {.options = {.size = 4}, .body = raises};
  run(&c, 10);
  assert_others(&c, -1, NULL, 5);
  for (int r = 0; r < 4; r++) assert_said(&c, r, "rank 3/4: recipe.lua:7: broken\n");
  for (int r = 0; r < 3; r++) assert_said(&c, r, "other thread, user: rank 3/4: recipe.lua:7: broken, status 7\n");
  assert_null(strstr(c.ranks[3].text, "thread"));
}

/* Who sets the callback late hears all the same; a rank that only waits for the others to end hears too. */
static zt_status told_late(zt_world *w, int rank) {
  main_thread = pthread_self();
  if (rank == 1) zt_world_fail(w, "broken", 1);
  zt_status st = rank == 2 ? forever(w) : ZT_OK;
  if (rank == 2 && st != ZT_PEER) _exit(98);
  if (rank != 1) zt_world_set_on_failure(w, on_failure, "user");
  if (rank == 2) crew_sleep(0.3);
  return ZT_OK;
}

static void test_told_late(void **state) {
  (void)state;
  crew c = {.options = {.size = 3}, .body = told_late};
  run(&c, 10);
  assert_rank(&c, 0, CREW_OK, "other thread, user: rank 1/3: broken, status 1");
  assert_rank(&c, 2, CREW_OK, "other thread, user: rank 1/3: broken, status 1");
}

/* --- different collectives */

static zt_status skips(zt_world *w, int rank) {
  ZT_TRY(barrier_at(w, "a", "recipe.lua:1"));
  if (rank != 1) ZT_TRY(barrier_at(w, "b", "recipe.lua:2"));
  return gather_at(w, "parameters of page", 3, 100, "recipe.lua:3");
}

static void test_skips(void **state) {
  (void)state;
  crew c = {.options = {.size = 3}, .body = skips};
  run(&c, 10);
  assert_others(
      &c, -1,
      "ranks differ at collective 3: rank 0 is in barrier 'b' (recipe.lua:2), rank 1 in all_gather 'parameters "
      "of page 3' (recipe.lua:3)",
      2);
}

/* The same bytes, for another page: nothing may be overwritten. */
static zt_status other_page(zt_world *w, int rank) {
  zt_status st =
      gather_at(w, "parameters of page", rank == 2 ? 4 : 3, 100, rank == 2 ? "recipe.lua:9" : "recipe.lua:3");
  if (st == ZT_OK) _exit(98);
  return st;
}

static void test_other_page(void **state) {
  (void)state;
  crew c = {.options = {.size = 4}, .body = other_page};
  run(&c, 10);
  assert_others(
      &c, -1,
      "ranks differ at collective 2: rank 0 is in all_gather 'parameters of page 3' (recipe.lua:3), rank 2 in "
      "all_gather 'parameters of page 4' (recipe.lua:9)",
      2);
}

static zt_status other_bytes(zt_world *w, int rank) {
  return gather_at(w, "x", -1, rank == 1 ? 100 : 200, "recipe.lua:3");
}

static void test_other_bytes(void **state) {
  (void)state;
  crew c = {.options = {.size = 2}, .body = other_bytes};
  run(&c, 10);
  assert_others(&c, -1,
                "ranks differ at collective 2: rank 0 is in all_gather of 200 bytes 'x' (recipe.lua:3), rank 1 in "
                "all_gather of 100 bytes 'x' (recipe.lua:3)",
                2);
}

/* Neither waits for the other here; they meet in the next. */
static zt_status other_root(zt_world *w, int rank) {
  char byte = 0;
  ZT_TRY(zt_broadcast(w, NULL, &byte, 1, rank));
  return zt_barrier(w, NULL);
}

static void test_other_root(void **state) {
  (void)state;
  crew c = {.options = {.size = 2}, .body = other_root};
  run(&c, 10);
  assert_others(&c, -1, "ranks differ at collective 2: rank 0 is in broadcast, rank 1 in broadcast", 5);
}

/* One is in a collective that needs nobody else, the other waits where the data plane has nothing to compare. */
static zt_status ends_elsewhere(zt_world *w, int rank) {
  char byte = 0;
  if (rank == 0) return zt_broadcast(w, NULL, &byte, 1, 0);
  return barrier_at(w, "b", "recipe.lua:2");
}

static void test_ends_elsewhere(void **state) {
  (void)state;
  crew c = {.options = {.size = 2}, .body = ends_elsewhere};
  run(&c, 10);
  assert_rank(&c, 0, CREW_OK, "");
  assert_rank(&c, 1, CREW_PEER,
              "ranks differ at collective 2: rank 0 is in broadcast, rank 1 in barrier 'b' (recipe.lua:2)");
}

/* --- slow ranks */

static double rank_1_sleeps;
static zt_status slow(zt_world *w, int rank) {
  ZT_TRY(barrier_at(w, "a", "recipe.lua:1"));
  if (rank == 1) crew_sleep(rank_1_sleeps);
  return barrier_at(w, "b", "recipe.lua:2");
}

static const char for_rank_1[] =
    " s for rank 1 in barrier 'b' (recipe.lua:2); it was last in collective 2, barrier 'a' (recipe.lua:1)\n";

static void test_timeout(void **state) {
  (void)state;
  crew c = {.options = {.size = 3, .timeout = 0.7}, .body = slow};
  rank_1_sleeps = 2;
  run(&c, 10);
  for (int r = 0; r < 3; r++) {
    assert_rank(&c, r, CREW_PEER, NULL);
    assert_said(&c, r, "rank 0 has waited ");
    assert_said(&c, r, for_rank_1);
  }
  assert_true(c.ranks[0].seconds < c.ranks[1].seconds);
}

static void test_slow(void **state) {
  (void)state;
  crew c = {.options = {.size = 3, .timeout = 4}, .body = slow};
  rank_1_sleeps = 3;
  run(&c, 20);
  for (int r = 0; r < 3; r++) assert_rank(&c, r, CREW_OK, NULL);
  const crew_rank *one = c.ranks[0].length ? &c.ranks[0] : &c.ranks[2]; /* that waited for long enough first */
  assert_int_equal(c.ranks[0].length + c.ranks[1].length + c.ranks[2].length, one->length);
  assert_non_null(strstr(one->text, "log: waiting "));
  assert_non_null(strstr(one->text, for_rank_1));
}

/* A rank that is stopped keeps its connection, and says nothing. */
static zt_status stops(zt_world *w, int rank) {
  if (rank == 2) crew_say("ready\n");
  if (rank == 2) return forever(w);
  return barrier_at(w, "b", "recipe.lua:2");
}

static bool rank_0_and_1_gone(const crew *c) { return c->ranks[0].gone && c->ranks[1].gone; }

static void test_stopped(void **state) {
  (void)state;
  crew c = {.options = {.size = 3, .timeout = 1}, .body = stops};
  crew_start(&c);
  crew_until(&c, rank_2_said_ready, 10);
  kill(c.ranks[2].pid, SIGSTOP);
  crew_until(&c, rank_0_and_1_gone, 10);
  kill(c.ranks[2].pid, SIGKILL);
  crew_wait(&c, 10);
  assert_said(&c, 0, " s for rank 2 in barrier 'b' (recipe.lua:2); it does not answer\n");
  assert_said(&c, 1, " s for rank 2 in barrier 'b' (recipe.lua:2); it does not answer\n");
  assert_others(&c, 2, NULL, 5);
}

/* --- beginnings */

static zt_status nothing(zt_world *w, int rank) {
  (void)w, (void)rank;
  return ZT_OK;
}

static bool is_1(int rank) { return rank == 1; }
static bool is_1_or_3(int rank) { return rank == 1 || rank == 3; }
static bool is_0(int rank) { return rank == 0; }

static void test_missing(void **state) {
  (void)state;
  char text[256];
  crew c = {.options = {.size = 3, .open_limit = 0.4}, .body = nothing, .absent = is_1};
  run(&c, 10);
  snprintf(text, sizeof text, "after 0.4 s rank 1 has not come (of 3; rank 0 listens at port %d)", c.options.port);
  assert_others(&c, 1, text, 5);
  crew d = {.options = {.size = 4, .open_limit = 0.4}, .body = nothing, .absent = is_1_or_3};
  run(&d, 10);
  snprintf(text, sizeof text, "after 0.4 s ranks 1, 3 have not come (of 4; rank 0 listens at port %d)", d.options.port);
  assert_rank(&d, 0, CREW_PEER, text);
  assert_rank(&d, 2, CREW_PEER, text);
}

static void test_first_is_missing(void **state) {
  (void)state;
  char text[256];
  crew c = {.options = {.size = 2, .open_limit = 0.4}, .body = nothing, .absent = is_0};
  run(&c, 10);
  snprintf(text, sizeof text, "rank 1 cannot join rank 0 at 127.0.0.1:%d within 0.4 s: Connection refused",
           c.options.port);
  assert_rank(&c, 1, CREW_PEER, text);
}

static zt_hello hello_of(const crew *c, int rank) {
  zt_hello h = {.session = c->options.session, .rank = rank, .size = c->options.size, .plane = "shm"};
  snprintf(h.version, sizeof h.version, "%s", ZT_VERSION);
  return h;
}

/* The test itself says hello in place of rank 1, and more. */
static int say_hello(const crew *c, const zt_hello *h, size_t nbytes) {
  zt_frame_header header = {ZT_FRAME_MAGIC, ZT_HELLO, (uint16_t)nbytes};
  int fd = crew_connect(c->options.port);
  assert_true(fd >= 0);
  assert_int_equal(write(fd, &header, sizeof header), sizeof header);
  assert_int_equal(write(fd, h, nbytes), nbytes);
  return fd;
}

#define EXPECT_REFUSED(change, nbytes, text)                                          \
  do {                                                                                \
    crew c = {.options = {.size = 2, .session = 5}, .body = nothing, .absent = is_1}; \
    crew_start(&c);                                                                   \
    zt_hello h = hello_of(&c, 1);                                                     \
    change;                                                                           \
    int fd = say_hello(&c, &h, nbytes);                                               \
    crew_wait(&c, 10);                                                                \
    assert_refusal(fd, text);                                                         \
    assert_others(&c, 1, text, 5);                                                    \
  } while (0)

/* What rank 0 says to one that it refuses. */
static void assert_refusal(int fd, const char *text) {
  zt_frame_header header;
  zt_fail_frame frame;
  assert_int_equal(recv(fd, &header, sizeof header, MSG_WAITALL), sizeof header);
  assert_int_equal(header.type, ZT_FAIL);
  assert_int_equal(recv(fd, &frame, sizeof frame, MSG_WAITALL), sizeof frame);
  assert_string_equal(frame.message, text);
  close(fd);
}

static void test_refused(void **state) {
  (void)state;
  EXPECT_REFUSED(strcpy(h.version, "0.0.9"), sizeof h, "rank 1 runs ztrain 0.0.9, rank 0 runs " ZT_VERSION);
  EXPECT_REFUSED(strcpy(h.version, "0.0.9"), sizeof h - 8, "rank 1 runs ztrain 0.0.9, rank 0 runs " ZT_VERSION);
  EXPECT_REFUSED(h.size = 4, sizeof h, "rank 1 was started as one of 4 ranks, rank 0 as one of 2");
  EXPECT_REFUSED(strcpy(h.plane, "mpi"), sizeof h, "rank 1 was started with the plane 'mpi', rank 0 with 'shm'");
  EXPECT_REFUSED(h.rank = 2, sizeof h, "a process says it is rank 2 of 2");
  EXPECT_REFUSED(h.rank = -1, sizeof h, "a process says it is rank -1 of 2");
}

static void test_twice(void **state) {
  (void)state;
  crew c = {.options = {.size = 3}, .body = nothing, .absent = is_1};
  crew_start(&c);
  zt_hello h = hello_of(&c, 1);
  h.rank = 2;
  int fd = say_hello(&c, &h, sizeof h);
  crew_wait(&c, 10);
  close(fd);
  assert_rank(&c, 0, CREW_PEER, "two processes say they are rank 2");
  assert_rank(&c, 2, CREW_PEER, "two processes say they are rank 2");
}

static zt_status meets(zt_world *w, int rank) {
  (void)rank;
  return zt_barrier(w, NULL);
}

/* Strangers of all kinds come first; then the last rank. */
static void test_strangers(void **state) {
  (void)state;
  int fds[64], n = 0;
  char garbage[40000];
  crew c = {.options = {.size = 2, .session = 5}, .body = meets, .absent = is_1};
  crew_start(&c);
  for (size_t i = 0; i < sizeof garbage; i++) garbage[i] = (char)scratch_random();
  zt_hello other = hello_of(&c, 1);
  other.session = 6;
  fds[n++] = say_hello(&c, &other, sizeof other); /* of another run */
  fds[n++] = say_hello(&c, &other, 10);           /* half a hello */
  zt_frame_header large = {ZT_FRAME_MAGIC, ZT_HELLO, UINT16_MAX}, odd = {ZT_FRAME_MAGIC, 0, 0};
  for (int i = 0; i < 40; i++) fds[n++] = crew_connect(c.options.port); /* more than it keeps */
  assert_int_equal(write(fds[n - 1], &large, sizeof large), sizeof large);
  assert_int_equal(write(fds[n - 2], &odd, sizeof odd), sizeof odd);
  assert_int_equal(write(fds[n - 3], "GET / HTTP/1.1\r\n\r\n", 18), 18);
  assert_int_equal(write(fds[n - 4], &large, 3), 3); /* and then nothing */
  signal(SIGPIPE, SIG_IGN);
  ssize_t written = write(fds[n - 5], garbage, sizeof garbage);
  (void)written;
  close(fds[n - 6]);
  fds[n - 6] = -1;
  crew_sleep(0.2);
  crew last = {.options = c.options, .body = meets};
  fflush(NULL);
  pid_t pid = fork();
  assert_true(pid >= 0);
  if (pid == 0) {
    crew_out = open("/dev/null", O_WRONLY | O_CLOEXEC);
    exit(crew_child(&last, 1, -1));
  }
  crew_wait(&c, 10);
  assert_rank(&c, 0, CREW_OK, "");
  int status;
  assert_int_equal(waitpid(pid, &status, 0), pid);
  assert_int_equal(status, 0);
  for (int i = 0; i < n; i++)
    if (fds[i] >= 0) close(fds[i]);
}

/* Once all are there, nobody else gets in: the port is closed. */
static int port_of_rank_0;
static zt_status port_is_closed(zt_world *w, int rank) {
  ZT_TRY(zt_barrier(w, NULL));
  if (rank == 1 && crew_connect(port_of_rank_0) >= 0) return zt_fail(ZT_STATE, "the port is still open");
  return zt_barrier(w, NULL);
}

static void test_port_is_free(void **state) {
  (void)state;
  close(crew_listen(&port_of_rank_0));
  crew c = {.options = {.size = 2, .port = port_of_rank_0}, .body = port_is_closed};
  crew_start(&c);
  crew_wait(&c, 10);
  assert_rank(&c, 0, CREW_OK, "");
  assert_rank(&c, 1, CREW_OK, "");
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)c.options.port)};
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
  close(fd);
}

/* With an address of a network, rank 0 listens on all. */
static void test_addresses(void **state) {
  (void)state;
  const char *addresses[] = {"127.0.0.2", "localhost"};
  for (int i = 0; i < 2; i++) {
    int port;
    close(crew_listen(&port));
    crew c = {.options = {.size = 3, .port = port}, .body = meets};
    snprintf(c.options.address, sizeof c.options.address, "%s", addresses[i]);
    run(&c, 10);
    for (int r = 0; r < 3; r++) assert_rank(&c, r, CREW_OK, "");
  }
}

/* A member that speaks nonsense after the beginning. */
static void test_member_speaks_nonsense(void **state) {
  (void)state;
  crew c = {.options = {.size = 2}, .body = meets, .absent = is_1};
  zt_frame_header frames[] = {{ZT_FRAME_MAGIC, 99, 0},      {ZT_FRAME_MAGIC, ZT_ANSWER, 3}, {ZT_FRAME_MAGIC, ZT_BYE, 0},
                              {ZT_FRAME_MAGIC, ZT_FAIL, 0}, {ZT_FRAME_MAGIC, ZT_ASK, 4},    {0, ZT_LOOK, 1}};
  for (size_t i = 0; i < sizeof frames / sizeof *frames; i++) {
    crew each = c;
    char answer[4096];
    crew_start(&each);
    zt_hello h = hello_of(&each, 1);
    int fd = say_hello(&each, &h, sizeof h);
    zt_frame_header welcome[2];
    assert_int_equal(recv(fd, &welcome[0], sizeof welcome[0], MSG_WAITALL), sizeof welcome[0]);
    assert_int_equal(recv(fd, &welcome[1], sizeof welcome[1], MSG_WAITALL), sizeof welcome[1]);
    assert_int_equal(welcome[0].type, ZT_HEARD);
    assert_int_equal(welcome[1].type, ZT_WELCOME);
    assert_int_equal(recv(fd, answer, welcome[1].nbytes, MSG_WAITALL), welcome[1].nbytes);
    assert_int_equal(send(fd, &frames[i], sizeof frames[i], MSG_NOSIGNAL), sizeof frames[i]);
    assert_int_equal(send(fd, "abcdefgh", frames[i].nbytes, MSG_NOSIGNAL), frames[i].nbytes);
    crew_wait(&each, 10);
    close(fd);
    assert_rank(&each, 0, CREW_PEER, "rank 1/2 died (it does not speak as ranks do)");
  }
}

/* One allocation after another fails on a rank while it opens: no rank hangs, nothing leaks. */
static uint64_t failing;
static zt_status counts(zt_world *w, int rank) {
  if (rank == 1) crew_say("%llu\n", (unsigned long long)zt_mem_get_stats().n_allocations);
  return zt_barrier(w, NULL);
}

static int failing_child(const crew *c) {
  zt_mem_fail_at(failing, false);
  return crew_child(c, 1, -1);
}

static void test_memory_fails(void **state) {
  (void)state;
  for (failing = 1;; failing++) {
    crew c = {.options = {.size = 2, .open_limit = 0.3}, .body = counts, .absent = is_1};
    crew_start(&c);
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
      crew_out = open("/dev/null", O_WRONLY | O_CLOEXEC);
      exit(failing_child(&c));
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    crew_wait(&c, 10);
    if (WEXITSTATUS(status) == CREW_LEAK) fail_msg("allocation %d leaks", (int)failing);
    if (status == 0) break;
    assert_rank(&c, 0, CREW_PEER, NULL);
    assert_true(failing < 100);
  }
  assert_in_range(failing, 5, 50);
}

/* --- what rank 0 makes of reports */

static zt_entry entry(uint64_t seq, uint64_t hash, const char *label) {
  zt_entry e = {.seq = seq, .hash = hash, .kind = ZT_BARRIER};
  snprintf(e.label, sizeof e.label, "%s", label);
  return e;
}

/* A rank that has been in collectives 1 to seq, and has waited in the last one. */
static zt_peer peer(uint64_t seq, double waited, const char *label) {
  zt_peer p = {.known = true, .report = {.seq = seq, .waited = waited}};
  for (uint64_t s = 1; s <= seq; s++) p.report.entries[s % ZT_LOG_ENTRIES] = entry(s, s * 1000, label);
  return p;
}

static void expect_verdict(const zt_peer *peers, int size, double timeout, zt_verdict_kind kind, const char *text) {
  zt_verdict v = zt_judge(peers, size, timeout);
  assert_string_equal(v.text, text);
  assert_int_equal(v.kind, kind);
}

static void test_judge(void **state) {
  (void)state;
  zt_peer p[3] = {peer(20, 9, "x"), peer(20, 9, "x"), peer(19, -1, "y")};
  expect_verdict(p, 3, 1800, ZT_NOTHING, "");
  p[1].report.waited = 10.2;
  expect_verdict(p, 3, 1800, ZT_NOTICE,
                 "waiting 10 s for rank 2 in barrier 'x'; it was last in collective 19, barrier 'y'");
  assert_int_equal(zt_judge(p, 3, 1800).to, 1);
  expect_verdict(p, 3, 9.5, ZT_FAILURE,
                 "rank 1 has waited 10 s for rank 2 in barrier 'x'; it was last in collective 19, barrier 'y'");
  p[2].report.seq = 0;
  p[0].report.waited = 30;
  expect_verdict(p, 3, 30, ZT_FAILURE,
                 "rank 0 has waited 30 s for rank 2 in barrier 'x'; it has been in no collective yet");
  p[2] = peer(20, 1, "x");
  expect_verdict(p, 3, 1800, ZT_NOTICE, "waiting 30 s for others in barrier 'x'; no rank is behind");
  p[2].known = false;
  expect_verdict(p, 3, 1800, ZT_NOTICE, "waiting 30 s for rank 2 in barrier 'x'; it does not answer");
  /* the first difference counts, wherever it is; what is only known to one does not */
  p[2] = peer(22, 1, "z");
  expect_verdict(p, 3, 1800, ZT_NOTICE, "waiting 30 s for others in barrier 'x'; no rank is behind");
  p[2].report.entries[18 % ZT_LOG_ENTRIES].hash = 1;
  p[1].report.entries[19 % ZT_LOG_ENTRIES].hash = 1;
  expect_verdict(p, 3, 1800, ZT_FAILURE,
                 "ranks differ at collective 18: rank 0 is in barrier 'x', rank 2 in barrier 'z'");
  p[2].report.entries[7 % ZT_LOG_ENTRIES].hash = 1; /* of 22, the oldest it has */
  expect_verdict(p, 3, 1800, ZT_FAILURE,
                 "ranks differ at or before collective 7: rank 0 is in barrier 'x', rank 2 in barrier 'z'");
  /* one that ended is not missed in what it was part of */
  zt_peer q[2] = {peer(3, 60, "x"), peer(3, -1, "x")};
  q[1].ended = true;
  expect_verdict(q, 2, 1800, ZT_NOTICE, "waiting 60 s for others in barrier 'x'; no rank is behind");
  q[1] = peer(2, -1, "x");
  q[1].ended = true;
  expect_verdict(q, 2, 1800, ZT_FAILURE, "rank 1/2 ended, while rank 0 waits in barrier 'x'");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_killed_in_a_collective),
      cmocka_unit_test(test_killed_outside),
      cmocka_unit_test(test_killed_while_busy),
      cmocka_unit_test(test_killed_at_any_time),
      cmocka_unit_test(test_first_dies),
      cmocka_unit_test(test_exits_without_a_word),
      cmocka_unit_test(test_ends_too_early),
      cmocka_unit_test(test_first_ends_too_early),
      cmocka_unit_test(test_ends_in_good_order),
      cmocka_unit_test(test_raises),
      cmocka_unit_test(test_told_late),
      cmocka_unit_test(test_skips),
      cmocka_unit_test(test_other_page),
      cmocka_unit_test(test_other_bytes),
      cmocka_unit_test(test_other_root),
      cmocka_unit_test(test_ends_elsewhere),
      cmocka_unit_test(test_timeout),
      cmocka_unit_test(test_slow),
      cmocka_unit_test(test_stopped),
      cmocka_unit_test(test_missing),
      cmocka_unit_test(test_first_is_missing),
      cmocka_unit_test(test_refused),
      cmocka_unit_test(test_twice),
      cmocka_unit_test(test_strangers),
      cmocka_unit_test(test_port_is_free),
      cmocka_unit_test(test_addresses),
      cmocka_unit_test(test_member_speaks_nonsense),
      cmocka_unit_test(test_memory_fails),
      cmocka_unit_test(test_judge),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
