-- Saves after every step, from the newest checkpoint on where there is one: arg = {folder, stage, steps}. To be killed.
package.path = debug.getinfo(1, "S").source:match("^@(.*)/") .. "/?.lua;" .. package.path
local core = require "ztrain.core"
local small = require "small"
local zt = require "ztrain"

local folder, stage, steps = arg[1], math.tointeger(arg[2]), math.tointeger(arg[3])
local run = small.prepare({
  project_dir = folder, zero_stage = stage, mixed_precision = "bf16", gradient_accumulation_steps = 2,
  checkpoints_total_limit = 2,
}, {rows = 12 // core.world_size()})
local found = core.rank() == 0 and pcall(core.checkpoint_latest, folder)
if core.broadcast_string(core.rank() == 0 and tostring(found) or nil, 0) == "true" then run.acc:load_state "latest" end
local first = run.acc.step
small.train(run, steps, function() run.acc:save_state() end)
local hash = run.acc.training:hash()
run.acc:print(zt.json.encode {first = first, step = run.acc.step, hash = hash})
