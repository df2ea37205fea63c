-- Bytes a parameter between micro-steps and at the peak, in bf16: a line for each stage and policy. arg = {n_embd,
-- n_layer, vocab_size, n_positions}; GPT-2 small is 768 12 50257 1024.
package.path = debug.getinfo(1, "S").source:match("^@(.*)/") .. "/?.lua;" .. package.path
local core = require "ztrain.core"
local small = require "small"
local zt = require "ztrain"

local opts = {
  n_embd = math.tointeger(arg[1]) or 256, n_layer = math.tointeger(arg[2]) or 6, vocab_size = math.tointeger(arg[3]),
  n_positions = math.tointeger(arg[4]), rows = 1, samples = 64,
}

local function measure(stage, policy, micro_steps)
  collectgarbage()
  collectgarbage()
  local run = small.prepare({
    zero_stage = stage, mixed_precision = "bf16", accumulate = policy, gradient_accumulation_steps = micro_steps,
  }, opts)
  core.reset_peak_memory()
  local n, line = 0, nil
  for batch in run.train:iter() do
    run.acc:accumulate(function()
      run.acc:backward(run.model(batch))
      run.opt:step()
      if micro_steps > 1 then run.opt:zero_grad() end
    end)
    n = n + 1
    if n == 2 * micro_steps - 1 then
      local kinds, stats = core.memory().kinds, run.acc.training:stats()
      line = {
        stage = stage, policy = policy, micro_steps = micro_steps, ranks = core.world_size(),
        bytes = (kinds.parameters + kinds.gradients + kinds.optimizer) / stats.padded,
        padding = stats.padded / stats.elements - 1,
      }
      if micro_steps > 1 then break end
    end
    if n == 2 * micro_steps then break end
  end
  line.peak = core.memory().peak / run.acc.training:stats().padded
  run.acc:print(zt.json.encode(line))
  run.acc:free_memory()
end

for _, policy in ipairs {"sharded", "local"} do
  for stage = 0, 3 do measure(stage, policy, 2) end
end
if core.world_size() == 1 then measure(0, "sharded", 1) end
