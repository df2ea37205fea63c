#include "core/device/device.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "core/device/backends.h"

/* The one list of backends. */
static const zt_device_ops *const backends[] = {&zt_cpu_device_ops};
enum { N_BACKENDS = sizeof backends / sizeof *backends };

static zt_status parse_index(const char *name, const char *digits, int *index) {
  char *end;
  long value = strtol(digits, &end, 10);
  if (end == digits || *end != '\0' || value < 0 || value > INT_MAX)
    return zt_fail(ZT_INVALID, "device '%s': what follows the colon is not a number", name);
  *index = (int)value;
  return ZT_OK;
}

zt_status zt_device_open(const char *name, zt_device **out) {
  *out = NULL;
  const char *colon = strchr(name, ':');
  size_t length = colon ? (size_t)(colon - name) : strlen(name);
  int index = 0;
  if (colon) ZT_TRY(parse_index(name, colon + 1, &index));
  for (int i = 0; i < N_BACKENDS; i++) {
    const char *kind = backends[i]->kind;
    if (strlen(kind) == length && strncmp(kind, name, length) == 0) return backends[i]->open(index, out);
  }
  char known[128] = "";
  for (int i = 0; i < N_BACKENDS; i++) {
    if (i) strncat(known, ", ", sizeof known - strlen(known) - 1);
    strncat(known, backends[i]->kind, sizeof known - strlen(known) - 1);
  }
  return zt_fail(ZT_INVALID, "there is no device '%s' in this build; it has: %s", name, known);
}

void zt_device_close(zt_device *device) {
  if (device) device->ops->close(device);
}
