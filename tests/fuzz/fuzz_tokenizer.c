/* Any bytes as a tokenizer.json: refused with a message, or a tokenizer that encodes and decodes any text. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base/mem.h"
#include "core/text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes);

static void require(int truth) {
  if (!truth) abort();
}

static void try_text(const zt_tokenizer *tok, const char *text, size_t nbytes, const zt_encode_options *o) {
  zt_ids ids = {0};
  char *decoded;
  size_t n;
  if (zt_tokenizer_encode(tok, text, nbytes, o, &ids) != ZT_OK) {
    require(ids.count == 0 && strlen(zt_message()) > 0); /* a byte without a token, or a pattern that takes too long */
  } else {
    require(zt_tokenizer_decode(tok, ids.data, ids.count, false, &decoded, &n) == ZT_OK);
    zt_free(decoded);
  }
  zt_ids_clear(&ids);
}

static void try_file(const char *path, const char *text, size_t nbytes) {
  static const char usual[] =
      "low lower  newest\n\xc3\xa9 \xff 12345 a<s>b aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
      "aaaaaaaaaaaaaaa";
  zt_tokenizer *tok;
  if (zt_tokenizer_load(path, &tok) != ZT_OK) {
    require(!tok && strlen(zt_message()) > 0);
    return;
  }
  try_text(tok, usual, sizeof usual - 1, &(zt_encode_options){.add_special_tokens = true});
  try_text(tok, text, nbytes, &(zt_encode_options){.plain = true});
  zt_tokenizer_free(tok);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes) {
  static int fd = -1;
  char path[64];
  uint64_t n_live = zt_mem_get_stats().n_live_blocks;
  if (fd < 0) fd = memfd_create("tokenizer", 0);
  require(fd >= 0 && ftruncate(fd, 0) == 0 && pwrite(fd, data, nbytes, 0) == (ssize_t)nbytes);
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  try_file(path, (const char *)data, nbytes);
  require(zt_mem_get_stats().n_live_blocks == n_live);
  return 0;
}
