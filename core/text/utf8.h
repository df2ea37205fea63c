/* utf8.h - the byte-level alphabet: the 256 characters by which GPT-2's vocabulary files spell bytes. */
#ifndef zt_text_utf8_h
#define zt_text_utf8_h

#include "core/base/utf8.h"

/* The alphabet of https://github.com/openai/gpt-2: visible Latin-1 characters stand for themselves, the other 68 bytes,
** in order, for U+0100 and on. */
static inline uint32_t zti_alphabet_char(unsigned char byte) {
  if (byte <= 32) return 256u + byte;
  if (byte >= 127 && byte <= 160) return 162u + byte;
  return byte == 173 ? 323 : byte;
}
/* The byte that a character stands for; -1: not of the alphabet. */
static inline int zti_alphabet_byte(uint32_t c) {
  if (c < 256) return c > 32 && c != 173 && (c < 127 || c > 160) ? (int)c : -1;
  if (c <= 288) return (int)c - 256;
  if (c <= 322) return (int)c - 162;
  return c == 323 ? 173 : -1;
}
/* Spells 'byte' in UTF-8; returns the length, 1 or 2. */
static inline size_t zti_alphabet_spell(unsigned char byte, unsigned char out[2]) {
  uint32_t c = zti_alphabet_char(byte);
  if (c < 0x80) return out[0] = (unsigned char)c, 1;
  out[0] = (unsigned char)(0xc0 | c >> 6), out[1] = (unsigned char)(0x80 | (c & 0x3f));
  return 2;
}

#endif
