/* device.h - what a place for bytes can do, and the list of such places.
** A device with a kernel table computes; one without is a tier (pinned host memory, disk): it only holds bytes.
** Calls that take a stream queue work on it and may return before it is done; 'sync' waits. */
#ifndef zt_device_h
#define zt_device_h

#include <stddef.h>

#include "core/base/dtype.h"

typedef struct zt_device zt_device;
typedef struct zt_kernels zt_kernels; /* core/tensor/kernels.h */

/* An ordered queue of work on one device. Devices may extend it; kernels get it as their first argument. */
typedef struct zt_stream {
  zt_device *device; /* borrowed */
} zt_stream;

typedef struct zt_device_ops {
  const char *kind;                              /* "cpu" */
  zt_status (*open)(int index, zt_device **out); /* raises where there is no such device */
  void (*close)(zt_device *device);
  zt_status (*alloc)(zt_device *device, size_t nbytes, void **out); /* aligned to 64 bytes or more, not zeroed */
  void (*free)(zt_device *device, void *data, size_t nbytes);
  zt_status (*copy)(zt_stream *s, void *dst, const void *src, size_t nbytes); /* within the device, or with the host */
  zt_status (*sync)(zt_stream *s);
  zt_status (*memory)(zt_device *device, size_t *free_nbytes, size_t *total_nbytes);
} zt_device_ops;

struct zt_device {
  const zt_device_ops *ops;
  const zt_kernels *kernels; /* NULL for a tier */
  int index;
  char name[16];     /* "cpu", "cuda:0" */
  zt_stream *stream; /* the compute stream; owned */
};

/* Opens a device by name: "cpu", or KIND:INDEX. '*out' is owned by the caller. An unknown kind lists the known ones. */
ZT_API zt_status zt_device_open(const char *name, zt_device **out);
ZT_API void zt_device_close(zt_device *device); /* NULL ok */

#endif
