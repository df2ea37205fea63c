#include "core/base/dtype.h"

#include <string.h>

static const struct {
  const char *name;
  size_t nbytes;
  bool is_float;
} dtypes[ZT_N_DTYPES] = {
#define ZT_DTYPE_ROW(id, name, st_name, nbytes, is_float) {name, nbytes, is_float},
    ZT_DTYPES(ZT_DTYPE_ROW)
#undef ZT_DTYPE_ROW
};

const char *zt_dtype_name(zt_dtype t) { return dtypes[t].name; }
size_t zt_dtype_nbytes(zt_dtype t) { return dtypes[t].nbytes; }
bool zt_dtype_is_float(zt_dtype t) { return dtypes[t].is_float; }
zt_dtype zt_dtype_stat(zt_dtype t) { return t == ZT_F64 ? ZT_F64 : ZT_F32; }

bool zt_dtype_from_name(const char *name, zt_dtype *out) {
  for (int i = 0; i < ZT_N_DTYPES; i++) {
    if (strcmp(dtypes[i].name, name) != 0) continue;
    *out = (zt_dtype)i;
    return true;
  }
  return false;
}
