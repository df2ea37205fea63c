/* wire.h - frames over TCP, as the control plane sends them. For core/comm alone.
** Both ends run the same version on machines of one byte order: frames carry structs as they are; another byte order has
** another magic number, and is a stranger. */
#ifndef zt_wire_h
#define zt_wire_h

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/buffer.h"

enum { ZT_FRAME_BYTES = 8192 }; /* header and payload, at most */

typedef struct zt_frame_header {
  uint32_t magic; /* ZT_FRAME_MAGIC */
  uint16_t type;
  uint16_t nbytes; /* of the payload */
} zt_frame_header;
#define ZT_FRAME_MAGIC 0x7a747231u

/* A connection that never blocks. */
typedef struct zt_conn {
  int fd; /* owned; -1: closed */
  size_t n_in;
  zt_buffer out; /* what the socket did not take yet: bytes from n_out on */
  size_t n_out;
  char in[ZT_FRAME_BYTES]; /* n_in bytes that are no complete frame yet */
} zt_conn;

/* Takes over a connected socket. */
zt_status zt_conn_open(zt_conn *c, int fd);
/* Also right for one that is all zero but for fd -1. */
void zt_conn_close(zt_conn *c);

/* Queues a frame and sends what the socket takes. ZT_PEER where the connection is broken; the message is the reason. */
zt_status zt_conn_send(zt_conn *c, uint16_t type, const void *payload, size_t nbytes);
zt_status zt_conn_flush(zt_conn *c);
static inline bool zt_conn_has_output(const zt_conn *c) { return c->out.nbytes > c->n_out; }

/* Reads what there is: at most one frame, type 0 where none is complete, its payload in payload[*nbytes]. Call again until
** there is none. ZT_PEER where the connection is closed or broken, ZT_FORMAT where the other side does not speak this. */
zt_status zt_conn_receive(zt_conn *c, uint16_t *type, char payload[ZT_FRAME_BYTES], size_t *nbytes);

zt_status zt_no_blocking(int fd);
/* A socket that listens at 'port' (0: any, *port is then which): on this machine's loopback alone, or everywhere. */
zt_status zt_listen(bool loopback, int *port, int *out);
/* A connection to a host, or the reason why there is none within 'seconds'. */
zt_status zt_dial(const char *address, int port, double seconds, int *out);

#endif
