/* backends.h - the devices that a build may have; device.c lists those it has. */
#ifndef zt_backends_h
#define zt_backends_h

#include "core/device/device.h"

extern const zt_device_ops zt_cpu_device_ops;

#endif
