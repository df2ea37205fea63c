#include "bindings/say.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char who[40] = "ztrain: ";

void zt_say_as(int rank, int size) { snprintf(who, sizeof who, "ztrain: rank %d/%d: ", rank, size); }

/* Keeps the terminal's own commands out: names in messages are files' and users'. A line's end becomes a space, with the
** blanks that follow it; other control characters become "\27". The result ends in a newline; its length. */
static size_t make_line(char *line, size_t room, const char *text) {
  size_t n = (size_t)snprintf(line, room, "%s", who);
  for (; *text && n + 8 < room; text++) {
    unsigned char ch = (unsigned char)*text;
    if (ch == '\n') {
      line[n++] = ' ';
      text += strspn(text, "\n\t ") - 1;
    } else if (ch < ' ' || ch == 127) {
      n += (size_t)snprintf(line + n, room - n, "\\%d", ch);
    } else {
      line[n++] = (char)ch;
    }
  }
  line[n++] = '\n';
  return n;
}

/* A pipe or terminal that takes less at once gets the rest; one that takes nothing has nobody who reads. */
static void write_all(const char *text, size_t nbytes) {
  while (nbytes > 0) {
    ssize_t n = write(STDERR_FILENO, text, nbytes);
    if (n < 0 && errno != EINTR) return;
    if (n > 0) text += n, nbytes -= (size_t)n;
  }
}

void zt_say(const char *text, const char *more) {
  char lines[16384];
  size_t n = make_line(lines, sizeof lines, text);
  if (more) n += (size_t)snprintf(lines + n, sizeof lines - n, "%s\n", more);
  write_all(lines, n < sizeof lines ? n : sizeof lines - 1);
}
