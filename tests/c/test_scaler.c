/* The loss scale of float16 training: step by step what DeepSpeed's DynamicLossScaler does (goldens/train), its
** options, and the rules one by one. */
#include "core/io/json.h"
#include "core/train/scaler.h"
#include "tests/c/scratch.h"

static double number(const json_t *table, const char *name) {
  const json_t *value = json_object_get(table, name);
  assert_non_null(value);
  return json_is_boolean(value) ? json_is_true(value) : json_number_value(value);
}

/* 2^n -> n; DeepSpeed's class takes the scale, its configuration the power. */
static int power_of(double scale) {
  int n = 0;
  while (scale > 1) scale /= 2, n++;
  assert_true(scale == 1);
  return n;
}

static zt_scaler_options options_of(const json_t *args) {
  return (zt_scaler_options){.initial_scale_power = power_of(number(args, "init_scale")),
                             .loss_scale_window = (int64_t)number(args, "scale_window"),
                             .hysteresis = (int64_t)number(args, "delayed_shift"),
                             .consecutive_hysteresis = number(args, "consecutive_hysteresis") != 0,
                             .min_loss_scale = number(args, "min_scale")};
}

static void check_row(const json_t *row) {
  const json_t *args = json_object_get(row, "args"), *overflow = json_object_get(row, "overflow");
  const json_t *scale = json_object_get(row, "scale");
  zt_scaler_options options = options_of(args);
  zt_scaler s;
  assert_ok(zt_scaler_init(&s, &options));
  for (size_t i = 0; i < json_array_size(scale); i++) {
    double want = json_number_value(json_array_get(scale, i));
    if (s.scale != want) fail_msg("before step %d the scale is %g, DeepSpeed's %g", (int)i, s.scale, want);
    bool overflows = json_number_value(json_array_get(overflow, i)) != 0;
    assert_ok(zt_scaler_update(&s, overflows, number(args, "raise_error_at_min_scale") != 0));
  }
}

static void as_deepspeed(void **state) {
  (void)state;
  json_t *all, *row;
  size_t i;
  assert_ok(zt_json_load(ZT_TEST_ROOT "/goldens/train/loss_scale.json", &all));
  assert_true(json_array_size(json_object_get(all, "rows")) > 0);
  json_array_foreach(json_object_get(all, "rows"), i, row) check_row(row);
  json_decref(all);
}

static zt_scaler start(int power, int64_t window, int64_t hysteresis, double least) {
  zt_scaler_options o = {
      .initial_scale_power = power, .loss_scale_window = window, .hysteresis = hysteresis, .min_loss_scale = least};
  zt_scaler s;
  assert_ok(zt_scaler_init(&s, &o));
  return s;
}

static void stays_at_its_minimum(void **state) {
  (void)state;
  zt_scaler s = start(1, 1000, 1, 1);
  assert_ok(zt_scaler_update(&s, true, true));
  assert_true(s.scale == 1);
  assert_ok(zt_scaler_update(&s, true, false));
  assert_true(s.scale == 1);
  assert_fails(zt_scaler_update(&s, true, true), ZT_STATE, "the loss scale is at its minimum of 1 already");
  assert_true(s.scale == 1);
  s = start(2, 1000, 1, 3); /* half of it is below */
  assert_ok(zt_scaler_update(&s, true, true));
  assert_true(s.scale == 3);
}

static void a_fixed_one_never_moves(void **state) {
  (void)state;
  zt_scaler_options o = zt_scaler_defaults();
  zt_scaler s;
  o.loss_scale = 128, o.loss_scale_window = 1;
  assert_ok(zt_scaler_init(&s, &o));
  for (int i = 0; i < 9; i++) assert_ok(zt_scaler_update(&s, i % 3 == 0, true));
  assert_true(s.scale == 128);
}

/* What is saved with a checkpoint is the whole of it: a copy goes on as the first does. */
static void goes_on_from_its_numbers(void **state) {
  (void)state;
  zt_scaler s = start(16, 3, 2, 1);
  for (int i = 0; i < 50; i++) {
    zt_scaler other = start(16, 3, 2, 1);
    other.scale = s.scale, other.iteration = s.iteration;
    other.last_overflow = s.last_overflow, other.hysteresis_left = s.hysteresis_left;
    bool overflow = scratch_below(4) == 0;
    assert_ok(zt_scaler_update(&s, overflow, true));
    assert_ok(zt_scaler_update(&other, overflow, true));
    assert_true(s.scale == other.scale && s.hysteresis_left == other.hysteresis_left);
  }
}

static void options_are_checked(void **state) {
  (void)state;
  zt_scaler s;
  zt_scaler_options o = zt_scaler_defaults();
  assert_ok(zt_scaler_init(&s, &o));
  assert_true(s.scale == 65536 && o.loss_scale_window == 1000 && o.hysteresis == 2 && o.min_loss_scale == 1);
  o.loss_scale = -2;
  assert_fails(zt_scaler_init(&s, &o), ZT_INVALID, "loss_scale -2: 0 (dynamic), or a positive number");
  o = zt_scaler_defaults(), o.initial_scale_power = 127;
  assert_fails(zt_scaler_init(&s, &o), ZT_INVALID, "initial_scale_power 127 is outside 0 .. 126");
  o = zt_scaler_defaults(), o.hysteresis = 0;
  assert_fails(zt_scaler_init(&s, &o), ZT_INVALID, "loss_scale_window 1000 and hysteresis 0: 1 is the least");
  o = zt_scaler_defaults(), o.min_loss_scale = 0;
  assert_fails(zt_scaler_init(&s, &o), ZT_INVALID, "min_loss_scale 0 is no positive number");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(as_deepspeed),
      cmocka_unit_test(stays_at_its_minimum),
      cmocka_unit_test(a_fixed_one_never_moves),
      cmocka_unit_test(goes_on_from_its_numbers),
      cmocka_unit_test(options_are_checked),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
