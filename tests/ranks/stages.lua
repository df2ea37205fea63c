-- A line for each ZeRO stage, precision and policy: the hash of the masters after 20 steps, and the losses. Dropout is
-- on, weights are tied, three micro-steps of 12 rows (over all ranks) make a step, clipping fires.
package.path = debug.getinfo(1, "S").source:match("^@(.*)/") .. "/?.lua;" .. package.path
local core = require "ztrain.core"
local small = require "small"
local zt = require "ztrain"

local STEPS = math.tointeger(arg[1]) or 20
local clipped = 0
for _, precision in ipairs {"no", "bf16", "fp16"} do
  for _, policy in ipairs {"sharded", "local"} do
    for stage = 0, 3 do
      local run = small.prepare({
        zero_stage = stage, mixed_precision = precision, accumulate = policy, gradient_accumulation_steps = 3,
        gradient_clipping = 0.5,
      }, {rows = 12 // core.world_size()})
      local losses = small.train(run, STEPS, function() if run.acc.clip_coef < 1 then clipped = clipped + 1 end end)
      run.acc:print(zt.json.encode {
        precision = precision, policy = policy, stage = stage, hash = run.acc.training:hash(), losses = losses,
        norm = run.acc.grad_norm, skipped = run.acc.skipped_steps, clipped = clipped,
      })
      run.acc:free_memory()
      clipped = 0
    end
  end
end
