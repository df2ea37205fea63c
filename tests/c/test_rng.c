/* Philox against the vectors that its authors publish (Random123, kat_vectors), and what is built on it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "core/base/rng.h"

static void known_answers(void **state) {
  (void)state;
  static const struct {
    uint32_t counter[4];
    uint64_t key; /* the second word of the pair is the upper half */
    uint32_t want[4];
  } vectors[] = {
      {{0, 0, 0, 0}, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {{~0u, ~0u, ~0u, ~0u}, ~0ull, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
       0x299f31d0a4093822ull,
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
    uint32_t out[4];
    zt_philox(vectors[i].key, vectors[i].counter, out);
    assert_memory_equal(out, vectors[i].want, sizeof out);
  }
}

static void a_block_is_named_by_sample_call_and_place(void **state) {
  (void)state;
  const zt_rng_key key = {0x0123456789abcdefull, 77, 5};
  const uint32_t counter[4] = {0x89abcdef, 0x1234567, 13, 77};
  uint32_t want[4], got[4];
  zt_philox(key.seed_mix, counter, want);
  zt_rng_block(&key, 13, 0x123456789abcdefull, got);
  assert_memory_equal(got, want, sizeof got);
}

static void thresholds_and_units(void **state) {
  (void)state;
  assert_true(zt_rng_keep_threshold(0.0) == 1ull << 32);
  assert_true(zt_rng_keep_threshold(1.0) == 0);
  assert_true(zt_rng_keep_threshold(0.5) == 1ull << 31);
  assert_true(zt_rng_uniform(0) == 0.0f);
  assert_true(zt_rng_uniform(~0u) == 1.0f - 0x1p-24f);
}

/* Either argument changes about half of the bits. */
static void mixing(void **state) {
  (void)state;
  int changed = 0;
  for (uint64_t i = 0; i < 1000; i++) {
    uint64_t a = zt_rng_mix(1, i), b = zt_rng_mix(2, i), bit = 1ull << i % 64;
    changed += __builtin_popcountll(zt_rng_mix(a, b) ^ zt_rng_mix(a ^ bit, b));
    changed += __builtin_popcountll(zt_rng_mix(a, b) ^ zt_rng_mix(a, b ^ bit));
  }
  assert_true(changed > 2000 * 31 && changed < 2000 * 33);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(known_answers),
      cmocka_unit_test(a_block_is_named_by_sample_call_and_place),
      cmocka_unit_test(thresholds_and_units),
      cmocka_unit_test(mixing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
