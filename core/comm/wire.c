#include "core/comm/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* A machine that is gone without a word is missed after 8 s. */
enum { IDLE_SECONDS = 3, PROBE_SECONDS = 1, N_PROBES = 5, UNACKED_MS = 8000 };

static zt_status set(int fd, int level, int name, int value) {
  if (setsockopt(fd, level, name, &value, sizeof value) == 0) return ZT_OK;
  return zt_fail(ZT_IO, "socket option %d: %s", name, strerror(errno));
}

zt_status zt_no_blocking(int fd) {
  int flags = fcntl(fd, F_GETFL);
  if (flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0) return ZT_OK;
  return zt_fail(ZT_IO, "socket: %s", strerror(errno));
}

zt_status zt_conn_open(zt_conn *c, int fd) {
  *c = (zt_conn){.fd = fd};
  ZT_TRY(zt_no_blocking(fd));
  ZT_TRY(set(fd, IPPROTO_TCP, TCP_NODELAY, 1));
  ZT_TRY(set(fd, SOL_SOCKET, SO_KEEPALIVE, 1));
  ZT_TRY(set(fd, IPPROTO_TCP, TCP_KEEPIDLE, IDLE_SECONDS));
  ZT_TRY(set(fd, IPPROTO_TCP, TCP_KEEPINTVL, PROBE_SECONDS));
  ZT_TRY(set(fd, IPPROTO_TCP, TCP_KEEPCNT, N_PROBES));
  return set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, UNACKED_MS);
}

void zt_conn_close(zt_conn *c) {
  if (c->fd >= 0) close(c->fd);
  zt_buffer_clear(&c->out);
  c->fd = -1;
}

static bool would_block(void) { return errno == EAGAIN || errno == EWOULDBLOCK; }

/* Sends what the socket takes of some bytes. */
static zt_status send_some(const zt_conn *c, const char *data, size_t nbytes, size_t *sent) {
  *sent = 0;
  while (*sent < nbytes) {
    ssize_t n = send(c->fd, data + *sent, nbytes - *sent, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && would_block()) return ZT_OK;
    if (n < 0) return zt_fail(ZT_PEER, "%s", strerror(errno));
    *sent += (size_t)n;
  }
  return ZT_OK;
}

zt_status zt_conn_flush(zt_conn *c) {
  size_t sent;
  if (!zt_conn_has_output(c)) return ZT_OK;
  ZT_TRY(send_some(c, c->out.data + c->n_out, c->out.nbytes - c->n_out, &sent));
  c->n_out += sent;
  if (zt_conn_has_output(c)) return ZT_OK;
  zt_buffer_clear(&c->out);
  c->n_out = 0;
  return ZT_OK;
}

/* Memory is only needed for what the socket does not take. */
zt_status zt_conn_send(zt_conn *c, uint16_t type, const void *payload, size_t nbytes) {
  zt_frame_header header = {ZT_FRAME_MAGIC, type, (uint16_t)nbytes};
  char frame[ZT_FRAME_BYTES];
  size_t length = sizeof header + nbytes, sent = 0;
  if (length > sizeof frame) return zt_fail(ZT_INVALID, "a frame of %zu bytes", nbytes);
  memcpy(frame, &header, sizeof header);
  if (nbytes) memcpy(frame + sizeof header, payload, nbytes);
  if (!zt_conn_has_output(c)) ZT_TRY(send_some(c, frame, length, &sent));
  return sent < length ? zt_buffer_add(&c->out, frame + sent, length - sent) : ZT_OK;
}

/* Takes a frame from what has been read; type 0: it is not complete. */
static zt_status take_frame(zt_conn *c, uint16_t *type, char *payload, size_t *nbytes) {
  zt_frame_header header;
  *type = 0;
  if (c->n_in < sizeof header) return ZT_OK;
  memcpy(&header, c->in, sizeof header);
  if (header.magic != ZT_FRAME_MAGIC || header.type == 0 || header.nbytes > sizeof c->in - sizeof header)
    return zt_fail(ZT_FORMAT, "it does not speak as ranks do");
  size_t length = sizeof header + header.nbytes;
  if (c->n_in < length) return ZT_OK;
  memcpy(payload, c->in + sizeof header, header.nbytes);
  c->n_in -= length;
  memmove(c->in, c->in + length, c->n_in);
  *type = header.type, *nbytes = header.nbytes;
  return ZT_OK;
}

zt_status zt_conn_receive(zt_conn *c, uint16_t *type, char payload[ZT_FRAME_BYTES], size_t *nbytes) {
  ZT_TRY(take_frame(c, type, payload, nbytes));
  while (*type == 0) {
    ssize_t n = recv(c->fd, c->in + c->n_in, sizeof c->in - c->n_in, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && would_block()) return ZT_OK;
    if (n < 0 && errno != ECONNRESET) return zt_fail(ZT_PEER, "%s", strerror(errno));
    if (n <= 0) return zt_fail(ZT_PEER, "its connection closed");
    c->n_in += (size_t)n;
    ZT_TRY(take_frame(c, type, payload, nbytes));
  }
  return ZT_OK;
}

/* --- sockets */

static zt_status bind_and_listen(int fd, const struct sockaddr *address, socklen_t length) {
  if (bind(fd, address, length) != 0 || listen(fd, 1024) != 0) return zt_fail(ZT_IO, "%s", strerror(errno));
  return ZT_OK;
}

zt_status zt_listen(bool loopback, int *port, int *out) {
  struct sockaddr_in6 any = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)*port), .sin6_addr = in6addr_any};
  struct sockaddr_in local = {.sin_family = AF_INET, .sin_port = any.sin6_port};
  struct sockaddr_in bound; /* the port stands at the same place in both */
  socklen_t length = sizeof any;
  zt_status st;
  local.sin_addr.s_addr = htonl(loopback ? INADDR_LOOPBACK : INADDR_ANY);
  int fd = loopback ? -1 : socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  bool six = fd >= 0;
  if (!six) fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return zt_fail(ZT_IO, "socket: %s", strerror(errno));
  ZT_TRY_GOTO(set(fd, SOL_SOCKET, SO_REUSEADDR, 1), fail);
  if (six) ZT_TRY_GOTO(set(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0), fail);
  if (six)
    ZT_TRY_GOTO(bind_and_listen(fd, (const struct sockaddr *)&any, sizeof any), fail);
  else
    ZT_TRY_GOTO(bind_and_listen(fd, (const struct sockaddr *)&local, sizeof local), fail);
  st = zt_fail(ZT_IO, "socket: no name");
  if (getsockname(fd, (struct sockaddr *)&any, &length) != 0) goto fail;
  memcpy(&bound, &any, sizeof bound);
  *port = ntohs(bound.sin_port), *out = fd;
  return ZT_OK;
fail:
  close(fd);
  return zt_wrap(st, "cannot listen at port %d", *port);
}

static zt_status dial_one(const struct addrinfo *a, double seconds, int *out) {
  int error = 0, fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return zt_fail(ZT_IO, "socket: %s", strerror(errno));
  if (connect(fd, a->ai_addr, a->ai_addrlen) != 0) {
    struct pollfd ready = {.fd = fd, .events = POLLOUT};
    socklen_t length = sizeof error;
    error = errno;
    if (error == EINPROGRESS) {
      int n = poll(&ready, 1, (int)(seconds * 1000));
      if (n == 0) error = ETIMEDOUT;
      if (n < 0) error = errno;
      if (n > 0 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
    }
  }
  if (error) {
    close(fd);
    return zt_fail(ZT_IO, "%s", strerror(error));
  }
  *out = fd;
  return ZT_OK;
}

zt_status zt_dial(const char *address, int port, double seconds, int *out) {
  const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
  struct addrinfo *found;
  char service[16];
  snprintf(service, sizeof service, "%d", port);
  int code = getaddrinfo(address, service, &hints, &found);
  if (code != 0) return zt_fail(ZT_IO, "%s", gai_strerror(code));
  zt_status st = zt_fail(ZT_IO, "it has no address");
  for (struct addrinfo *a = found; a && st != ZT_OK; a = a->ai_next) st = dial_one(a, seconds, out);
  freeaddrinfo(found);
  return st;
}
