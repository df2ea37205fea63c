#include "core/train/scaler.h"

#include <math.h>

zt_scaler_options zt_scaler_defaults(void) {
  return (zt_scaler_options){
      .initial_scale_power = 16, .loss_scale_window = 1000, .hysteresis = 2, .min_loss_scale = 1};
}

static zt_status check(const zt_scaler_options *o) {
  if (!(o->loss_scale >= 0) || isinf(o->loss_scale))
    return zt_fail(ZT_INVALID, "loss_scale %g: 0 (dynamic), or a positive number", o->loss_scale);
  if (o->initial_scale_power < 0 || o->initial_scale_power > 126)
    return zt_fail(ZT_INVALID, "initial_scale_power %d is outside 0 .. 126", o->initial_scale_power);
  if (o->loss_scale_window < 1 || o->hysteresis < 1)
    return zt_fail(ZT_INVALID, "loss_scale_window %lld and hysteresis %lld: 1 is the least",
                   (long long)o->loss_scale_window, (long long)o->hysteresis);
  if (!(o->min_loss_scale > 0) || isinf(o->min_loss_scale))
    return zt_fail(ZT_INVALID, "min_loss_scale %g is no positive number", o->min_loss_scale);
  return ZT_OK;
}

zt_status zt_scaler_init(zt_scaler *s, const zt_scaler_options *options) {
  ZT_TRY(check(options));
  *s = (zt_scaler){.options = *options,
                   .scale = options->loss_scale != 0 ? options->loss_scale : ldexp(1, options->initial_scale_power),
                   .last_overflow = -1,
                   .hysteresis_left = options->hysteresis};
  return ZT_OK;
}

static zt_status lower(zt_scaler *s, bool raise_at_minimum) {
  double least = s->options.min_loss_scale;
  if (s->hysteresis_left > 1) {
    s->hysteresis_left--;
    return ZT_OK;
  }
  if (s->scale == least && raise_at_minimum)
    return zt_fail(ZT_STATE, "the loss scale is at its minimum of %g already", least);
  s->scale = s->scale / 2 > least ? s->scale / 2 : least;
  return ZT_OK;
}

zt_status zt_scaler_update(zt_scaler *s, bool overflow, bool raise_at_minimum) {
  zt_status st = ZT_OK;
  if (s->options.loss_scale != 0) return ZT_OK;
  if (overflow) {
    st = lower(s, raise_at_minimum);
    s->last_overflow = s->iteration;
  } else {
    int64_t quiet = s->iteration - s->last_overflow - 1; /* steps without an overflow before this one */
    bool window = quiet > 0 && quiet % s->options.loss_scale_window == 0;
    if (window || s->options.consecutive_hysteresis) s->hysteresis_left = s->options.hysteresis;
    if (window) s->scale *= 2;
  }
  s->iteration++;
  return st;
}
