#include "core/base/exact.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { WORD_BITS = 32, SIGNIFICAND_BITS = 52, EXPONENT_BITS = 11, LOWEST_EXPONENT = -1074 };
static const uint64_t WORD_MASK = 0xffffffffu;
/* An addition changes a slot by less than 2^32, and a carried slot is below 2^32, too. */
static const uint64_t MAX_ADDED = ((uint64_t)1 << 31) - 2;

void zt_exact_clear(zt_exact *sum) { memset(sum, 0, sizeof *sum); }

/* Leaves every slot but the last, which keeps the sign, in [0, 2^32). */
static void carry(zt_exact *sum) {
  int64_t over = 0;
  for (int i = 0; i < ZT_EXACT_WORDS - 1; i++) {
    int64_t slot = sum->word[i] + over;
    sum->word[i] = slot & (int64_t)WORD_MASK;
    over = (slot - sum->word[i]) / ((int64_t)1 << WORD_BITS);
  }
  sum->word[ZT_EXACT_WORDS - 1] += over;
  sum->n_added = 0;
}

/* value = significand * 2^(position - 1074), the significand with its hidden bit, position >= 0. */
void zt_exact_add(zt_exact *sum, double value) {
  union {
    double f;
    uint64_t u;
  } bits = {value};
  uint64_t significand = bits.u & (((uint64_t)1 << SIGNIFICAND_BITS) - 1);
  unsigned exponent = (unsigned)(bits.u >> SIGNIFICAND_BITS) & ((1u << EXPONENT_BITS) - 1);
  if (exponent == (1u << EXPONENT_BITS) - 1) {
    sum->n_bad++;
    return;
  }
  if (exponent) significand |= (uint64_t)1 << SIGNIFICAND_BITS;
  unsigned position = exponent ? exponent - 1 : 0;
  unsigned shift = position % WORD_BITS;
  int64_t *slot = sum->word + position / WORD_BITS;
  int64_t sign = bits.u >> 63 ? -1 : 1;
  uint64_t low = (significand & WORD_MASK) << shift, high = (significand >> WORD_BITS) << shift;
  if (sum->n_added >= MAX_ADDED) carry(sum);
  slot[0] += sign * (int64_t)(low & WORD_MASK);
  slot[1] += sign * (int64_t)((low >> WORD_BITS) + (high & WORD_MASK));
  slot[2] += sign * (int64_t)(high >> WORD_BITS);
  sum->n_added++;
}

void zt_exact_merge(zt_exact *sum, const zt_exact *other) {
  zt_exact carried = *other;
  carry(&carried);
  if (sum->n_added >= MAX_ADDED) carry(sum);
  for (int i = 0; i < ZT_EXACT_WORDS; i++) sum->word[i] += carried.word[i];
  sum->n_added++;
  sum->n_bad += other->n_bad;
}

static void negate(zt_exact *sum) {
  for (int i = 0; i < ZT_EXACT_WORDS; i++) sum->word[i] = -sum->word[i];
  carry(sum);
}

static int highest_slot(const zt_exact *sum) {
  int top = ZT_EXACT_WORDS - 1;
  while (top > 0 && sum->word[top] == 0) top--;
  return top;
}

/* The 64 bits below and with the highest set bit, the last one also set where any bit below them is: rounding these to
** a double rounds the whole sum once. '*weight' is the exponent of the last. */
static uint64_t leading_bits(const zt_exact *sum, int *weight) {
  int top = highest_slot(sum);
  int low = top < 2 ? 0 : top - 2;
  uint64_t rest = 0;
  for (int i = 0; i < low; i++) rest |= (uint64_t)sum->word[i];
  *weight = LOWEST_EXPONENT + WORD_BITS * low;
  uint64_t upper = 0, lower = (uint64_t)sum->word[low];
  if (top > low) upper = (uint64_t)sum->word[low + 1];
  if (top > low + 1) upper |= (uint64_t)sum->word[low + 2] << WORD_BITS;
  /* shift (upper, lower) right until upper's 32 lower places hold nothing that lower cannot take in */
  uint64_t bits = (upper << WORD_BITS) | lower;
  for (uint64_t over = upper >> WORD_BITS; over; over >>= 1) {
    rest |= bits & 1;
    bits = (bits >> 1) | (over << 63);
    ++*weight;
  }
  return bits | (rest != 0);
}

double zt_exact_value(const zt_exact *sum) {
  if (sum->n_bad) return NAN;
  zt_exact carried = *sum;
  carry(&carried);
  bool negative = carried.word[ZT_EXACT_WORDS - 1] < 0;
  if (negative) negate(&carried);
  /* the highest slot is never used in full: 2^1024 is slot 65, and sums of 2^64 values stay below slot 68 */
  assert(carried.word[ZT_EXACT_WORDS - 1] <= (int64_t)WORD_MASK);
  int weight;
  uint64_t bits = leading_bits(&carried, &weight);
  double value = ldexp((double)bits, weight);
  return negative ? -value : value;
}
