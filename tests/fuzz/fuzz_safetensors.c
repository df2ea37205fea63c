/* Any bytes as a safetensors file: refused, or opened with every tensor inside of them. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/io/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes);

static void require(int truth) {
  if (!truth) abort();
}

static void check_entry(const zt_safetensors *st, size_t i, const uint8_t *data, size_t nbytes) {
  const zt_safetensors_entry *e = zt_safetensors_get(st, i);
  const uint8_t *begin = e->data;
  size_t need = zt_dtype_nbytes(e->dtype);
  for (int d = 0; d < e->ndim; d++) need *= (size_t)e->shape[d];
  require(e->ndim <= ZT_SAFETENSORS_MAX_DIM && need == e->nbytes);
  require(begin >= data && e->nbytes <= (size_t)(data + nbytes - begin));
  require(zt_safetensors_find(st, e->name) == e);
}

static void check_metadata(const zt_safetensors *st) {
  const char *key, *value;
  for (size_t i = 0; (key = zt_safetensors_metadata_at(st, i, &value)); i++)
    require(zt_safetensors_metadata(st, key) == value);
}

static void try_open(const uint8_t *data, size_t nbytes) {
  zt_safetensors *st;
  size_t n_data = 0;
  if (zt_safetensors_open_bytes("input", data, nbytes, &st) != ZT_OK) {
    require(strlen(zt_message()) > 0 && !st);
    return;
  }
  for (size_t i = 0; i < zt_safetensors_count(st); i++) {
    check_entry(st, i, data, nbytes);
    n_data += zt_safetensors_get(st, i)->nbytes;
  }
  require(n_data < nbytes);
  check_metadata(st);
  zt_safetensors_close(st);
}

/* With the length that ends the header behind its last brace: most mutations would end at the length otherwise. */
static void try_with_true_length(const uint8_t *data, size_t nbytes) {
  size_t end = nbytes;
  while (end > 8 && data[end - 1] != '}') end--;
  if (end <= 8) return;
  uint8_t *copy = malloc(nbytes);
  uint64_t length = end - 8;
  require(copy != NULL);
  memcpy(copy, data, nbytes);
  memcpy(copy, &length, 8);
  try_open(copy, nbytes);
  free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes) {
  uint64_t n_live = zt_mem_get_stats().n_live_blocks;
  try_open(data, nbytes);
  try_with_true_length(data, nbytes);
  require(zt_mem_get_stats().n_live_blocks == n_live);
  return 0;
}
