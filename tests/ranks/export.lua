-- Trains two steps, and writes both a checkpoint and the model itself: arg = {stage, precision, folder, "tied" or not}.
package.path = debug.getinfo(1, "S").source:match("^@(.*)/") .. "/?.lua;" .. package.path
local small = require "small"

local stage, precision, folder, tie = table.unpack(arg)
local run = small.prepare({
  zero_stage = math.tointeger(stage), mixed_precision = precision,
}, {rows = 12, model = small.model {tie = tie == "tied"}})
small.train(run, 2)
run.acc:save_state(folder .. "/step_2")
run.acc:save_model(run.model, folder .. "/model")
