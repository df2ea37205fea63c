/* scaler.h - the loss scale of float16 training, as DeepSpeed has it (0.19.8, runtime/fp16/loss_scaler.py:
** DynamicLossScaler). */
#ifndef zt_scaler_h
#define zt_scaler_h

#include <stdbool.h>
#include <stdint.h>

#include "core/base/err.h"

/* Names are those of DeepSpeed's section "fp16". */
typedef struct zt_scaler_options {
  double loss_scale;           /* not 0: a fixed one */
  int initial_scale_power;     /* dynamic: starts at 2^power; DeepSpeed: 16 */
  int64_t loss_scale_window;   /* a step after so many without an overflow doubles it; 1000 */
  int64_t hysteresis;          /* overflows before it halves; 2 */
  bool consecutive_hysteresis; /* a step without one refills them */
  double min_loss_scale;       /* 1 */
} zt_scaler_options;
ZT_API zt_scaler_options zt_scaler_defaults(void);

typedef struct zt_scaler {
  zt_scaler_options options;
  double scale;
  int64_t iteration, last_overflow, hysteresis_left;
} zt_scaler;

/* Checks the options: scales are positive and finite, the window and the hysteresis 1 or more. */
ZT_API zt_status zt_scaler_init(zt_scaler *s, const zt_scaler_options *options);
/* After each attempted step. An overflow with the scale already at its minimum leaves it there and returns ZT_STATE where
** 'raise_at_minimum' ("the loss scale is at its minimum of 1 already"). */
ZT_API zt_status zt_scaler_update(zt_scaler *s, bool overflow, bool raise_at_minimum);

#endif
