-- Collectives of a few steps without tied weights and with no resident limit: a line for each stage.
package.path = debug.getinfo(1, "S").source:match("^@(.*)/") .. "/?.lua;" .. package.path
local small = require "small"
local zt = require "ztrain"

for stage = 1, 3 do
  local run = small.prepare({
    zero_stage = stage, gradient_accumulation_steps = 2, page_size = 20000, resident_memory = 0,
  }, {tie = false})
  small.train(run, 1)
  local before = run.acc.training:stats()
  small.train(run, 5)
  local stats = run.acc.training:stats()
  run.acc:print(zt.json.encode {
    stage = stage, pages = stats.pages, micro_steps = 8, gathers = stats.gathers - before.gathers,
    reductions = stats.reductions - before.reductions,
  })
  run.acc:free_memory()
end
