/* utf8.h - walking through text as UTF-8. */
#ifndef zt_utf8_h
#define zt_utf8_h

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Bytes of the well-formed sequence at 'p' (Unicode 15, table 3-7: no overlong forms, no surrogates); 0: none there. */
static inline size_t zti_utf8_length(const unsigned char *p, const unsigned char *end) {
  size_t n = *p < 0x80 ? 1 : *p < 0xc2 ? 0 : *p < 0xe0 ? 2 : *p < 0xf0 ? 3 : *p < 0xf5 ? 4 : 0;
  if (n <= 1) return n;
  if ((size_t)(end - p) < n) return 0;
  for (size_t i = 1; i < n; i++)
    if ((p[i] & 0xc0) != 0x80) return 0;
  bool outside = (*p == 0xe0 && p[1] < 0xa0) || (*p == 0xed && p[1] > 0x9f) || (*p == 0xf0 && p[1] < 0x90) ||
                 (*p == 0xf4 && p[1] > 0x8f);
  return outside ? 0 : n;
}

/* Where the well-formed text that starts at 'p' ends. */
static inline const unsigned char *zti_utf8_run(const unsigned char *p, const unsigned char *end) {
  while (p < end) {
    uint64_t eight;
    for (; end - p >= 8 && (memcpy(&eight, p, 8), (eight & 0x8080808080808080u) == 0);) p += 8;
    if (p == end) break;
    size_t n = zti_utf8_length(p, end);
    if (n == 0) break;
    p += n;
  }
  return p;
}

/* Reads one character of well-formed text and moves on. */
static inline uint32_t zti_utf8_next(const unsigned char **text) {
  const unsigned char *p = *text;
  int n = *p < 0x80 ? 1 : *p < 0xe0 ? 2 : *p < 0xf0 ? 3 : 4;
  uint32_t c = n == 1 ? *p : *p & (0x7fu >> n);
  for (int i = 1; i < n; i++) c = c << 6 | (p[i] & 0x3fu);
  *text = p + n;
  return c;
}

#endif
