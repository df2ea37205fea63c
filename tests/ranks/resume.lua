-- Trains to a step, from a checkpoint where one is given, and saves one where asked: arg = {stage, precision, steps,
-- load, save, optimizer}, "-" for none. Prints the step, the hash of the masters, and where the data stands.
package.path = debug.getinfo(1, "S").source:match("^@(.*)/") .. "/?.lua;" .. package.path
local core = require "ztrain.core"
local small = require "small"
local zt = require "ztrain"

local stage, precision, steps, load, save, optimizer = table.unpack(arg)
local run = small.prepare({
  zero_stage = math.tointeger(stage), mixed_precision = precision, gradient_accumulation_steps = 2,
  gradient_clipping = 0.5,
}, {rows = 12 // core.world_size(), optimizer = optimizer})
if load ~= "-" then run.acc:load_state(load) end
small.train(run, math.tointeger(steps))
if save ~= "-" then run.acc:save_state(save) end
local hash, train = run.acc.training:hash(), run.train:state_dict()
run.acc:print(zt.json.encode {
  step = run.acc.step, hash = hash, epoch = train.epoch, position = train.position, lr = run.sched:get_last_lr()[1],
})
