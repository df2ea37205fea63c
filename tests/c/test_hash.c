/* The checksum of bytes: what it has to find. */
#include "tests/c/scratch.h"

#include "core/base/hash.h"

enum { MAX_NBYTES = 133 };

static void fill(unsigned char *data, size_t nbytes) {
  for (size_t i = 0; i < nbytes; i++) data[i] = (unsigned char)scratch_random();
}

static void flip(unsigned char *data, size_t bit) { data[bit / 8] ^= (unsigned char)(1u << bit % 8); }

/* Any change of 8 bytes in their place, all flipped bits among them. */
static void test_finds_changed_words(void **state) {
  (void)state;
  unsigned char data[MAX_NBYTES], changed[MAX_NBYTES];
  for (size_t nbytes = 1; nbytes <= MAX_NBYTES; nbytes++) {
    fill(data, nbytes);
    uint64_t hash = zt_hash_bytes(nbytes, data, nbytes);
    for (size_t bit = 0; bit < 8 * nbytes; bit++) {
      flip(data, bit);
      assert_true(zt_hash_bytes(nbytes, data, nbytes) != hash);
      flip(data, bit);
    }
    for (size_t n = 0; n < 100; n++) {
      size_t at = scratch_below(nbytes) / 8 * 8, room = nbytes - at < 8 ? nbytes - at : 8;
      memcpy(changed, data, nbytes);
      fill(changed + at, room);
      bool same = memcmp(changed, data, nbytes) == 0;
      assert_true((zt_hash_bytes(nbytes, changed, nbytes) == hash) == same);
    }
  }
}

/* Changes that go together: up to three flipped bits, wherever they are (three signs of numbers in a row, say). */
static void test_finds_three_flips(void **state) {
  (void)state;
  enum { N = 48 };
  unsigned char data[N];
  fill(data, N);
  uint64_t hash = zt_hash_bytes(0, data, N);
  for (size_t a = 0; a < 8 * N; a++) {
    flip(data, a);
    for (size_t b = 0; b < a; b++) {
      flip(data, b);
      assert_true(zt_hash_bytes(0, data, N) != hash);
      for (size_t c = b % 8; c < b; c += 8) { /* every eighth */
        flip(data, c);
        if (zt_hash_bytes(0, data, N) == hash) fail_msg("bits %zu, %zu, %zu", a, b, c);
        flip(data, c);
      }
      flip(data, b);
    }
    flip(data, a);
  }
}

static void test_finds_signs(void **state) {
  (void)state;
  float x[64];
  for (int n = 0; n < 1000; n++) {
    for (int i = 0; i < 64; i++) x[i] = (float)scratch_below(1000000) + 1;
    uint64_t hash = zt_hash_bytes(0, x, sizeof x);
    for (int first = 0; first < 62; first++) {
      for (int i = first; i < first + 3; i++) x[i] = -x[i];
      assert_true(zt_hash_bytes(0, x, sizeof x) != hash);
      for (int i = first; i < first + 3; i++) x[i] = -x[i];
    }
  }
}

static void test_depends_on_all(void **state) {
  (void)state;
  unsigned char data[MAX_NBYTES] = {0};
  for (size_t a = 0; a < MAX_NBYTES; a++) {
    assert_true(zt_hash_bytes(a, data, 8) != zt_hash_bytes(a + 1, data, 8));
    for (size_t b = 0; b < a; b++) assert_true(zt_hash_bytes(0, data, a) != zt_hash_bytes(0, data, b));
  }
  for (size_t cut = 0; cut <= 64; cut++) /* in two parts it is another */
    assert_true(zt_hash_bytes(zt_hash_bytes(0, data, cut), data, 64 - cut) != zt_hash_bytes(0, data, 64));
  unsigned char bytes[80];
  for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (unsigned char)i;
  assert_true(zt_hash_bytes(0, bytes, sizeof bytes) ==
              UINT64_C(0x601e7eadce0df406)); /* files have it: it never changes */
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_finds_changed_words),
      cmocka_unit_test(test_finds_three_flips),
      cmocka_unit_test(test_finds_signs),
      cmocka_unit_test(test_depends_on_all),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
