/* cpu.c - host memory as a device. Work runs in the caller's thread (kernels use OpenMP inside), so a stream is only a
** name and nothing needs waiting for. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/base/mem.h"
#include "core/device/backends.h"

/* The kernels were compiled once for each instruction set (kernels/cpu/cpu.h). */
extern const zt_kernels k_table_base;
#if defined(__x86_64__)
extern const zt_kernels k_table_v3, k_table_v4;

static const zt_kernels *best_kernels(void) {
  __builtin_cpu_init();
  bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
            __builtin_cpu_supports("avx512vl");
  return v4 ? &k_table_v4 : v3 ? &k_table_v3 : &k_table_base;
}
#else
static const zt_kernels *best_kernels(void) { return &k_table_base; }
#endif

static zt_status cpu_open(int index, zt_device **out) {
  if (index != 0) return zt_fail(ZT_INVALID, "device 'cpu:%d': there is one cpu device, 'cpu'", index);
  struct cpu_device {
    zt_device device;
    zt_stream stream;
  } *cpu = zt_calloc(1, sizeof *cpu);
  ZT_CHECK_ALLOC(cpu);
  cpu->device = (zt_device){&zt_cpu_device_ops, best_kernels(), 0, "cpu", &cpu->stream};
  cpu->stream.device = &cpu->device;
  *out = &cpu->device;
  return ZT_OK;
}

static void cpu_close(zt_device *device) { zt_free(device); }

enum { ALIGNMENT = 4096 };

/* The address that zt_malloc gave stands right before the aligned bytes. */
static zt_status cpu_alloc(zt_device *device, size_t nbytes, void **out) {
  (void)device;
  *out = NULL;
  char *raw = nbytes <= SIZE_MAX - 2 * ALIGNMENT ? zt_malloc(nbytes + 2 * ALIGNMENT) : NULL;
  if (!raw) return zt_fail(ZT_NOMEM, "the host has no %zu bytes left", nbytes);
  char *data = raw + 2 * ALIGNMENT - (uintptr_t)raw % ALIGNMENT;
  memcpy(data - sizeof raw, &raw, sizeof raw);
  *out = data;
  return ZT_OK;
}

static void cpu_free(zt_device *device, void *data, size_t nbytes) {
  (void)device, (void)nbytes;
  if (!data) return;
  void *raw;
  memcpy(&raw, (char *)data - sizeof raw, sizeof raw);
  zt_free(raw);
}

static zt_status cpu_copy(zt_stream *s, void *dst, const void *src, size_t nbytes) {
  (void)s;
  if (nbytes) memmove(dst, src, nbytes);
  return ZT_OK;
}

static zt_status cpu_sync(zt_stream *s) {
  (void)s;
  return ZT_OK;
}

static zt_status cpu_memory(zt_device *device, size_t *free_nbytes, size_t *total_nbytes) {
  (void)device;
  long page = sysconf(_SC_PAGESIZE), free_pages = sysconf(_SC_AVPHYS_PAGES), pages = sysconf(_SC_PHYS_PAGES);
  if (page < 0 || free_pages < 0 || pages < 0) return zt_fail(ZT_IO, "cpu: the system does not tell its memory");
  *free_nbytes = (size_t)page * (size_t)free_pages;
  *total_nbytes = (size_t)page * (size_t)pages;
  return ZT_OK;
}

const zt_device_ops zt_cpu_device_ops = {
    .kind = "cpu",
    .open = cpu_open,
    .close = cpu_close,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .copy = cpu_copy,
    .sync = cpu_sync,
    .memory = cpu_memory,
};
