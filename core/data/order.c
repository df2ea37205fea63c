#include "core/data/order.h"

#include <assert.h>

#include "core/base/rng.h"

enum { N_ROUNDS = 8 };

/* A balanced Feistel network (Luby and Rackoff, 1988) over 2 x 'n_bits' bits: each round is undone by itself, so any round
** function gives a bijection. */
static uint64_t permute(uint64_t key, int n_bits, uint64_t x) {
  uint64_t mask = ((uint64_t)1 << n_bits) - 1, left = x >> n_bits, right = x & mask;
  for (uint64_t round = 0; round < N_ROUNDS; round++) {
    uint64_t next = left ^ (zt_rng_mix(zt_rng_mix(key, round), right) & mask);
    left = right, right = next;
  }
  return left << n_bits | right;
}

/* The network permutes 4^n_bits numbers, fewer than 4 x count. Going on from a number outside until one is inside (Black
** and Rogaway, 2002) takes fewer than 4 steps on average and keeps it a bijection. */
uint64_t zt_order_at(uint64_t seed, uint64_t epoch, uint64_t count, uint64_t i) {
  assert(i < count);
  int n_bits = 1;
  while (n_bits < 32 && count > (uint64_t)1 << (2 * n_bits)) n_bits++;
  uint64_t key = zt_rng_mix(seed, epoch);
  do i = permute(key, n_bits, i);
  while (i >= count);
  return i;
}
