-- A line for each way of doing the same: overlap, page size, resident limit, recompute, stage. All have one hash.
package.path = debug.getinfo(1, "S").source:match("^@(.*)/") .. "/?.lua;" .. package.path
local core = require "ztrain.core"
local small = require "small"
local zt = require "ztrain"

local ways = {
  {zero_stage = 3}, {zero_stage = 3, overlap = false}, {zero_stage = 3, page_size = 1},
  {zero_stage = 3, page_size = 1, overlap = false, resident_memory = 1}, {zero_stage = 3, page_size = 20000},
  {zero_stage = 3, page_size = 1 << 30}, {zero_stage = 3, resident_memory = 1}, {zero_stage = 3, resident_memory = 0},
  {zero_stage = 3, page_size = 10000, resident_memory = 60000}, {zero_stage = 3, page_size = 1, recompute = true},
  {zero_stage = 3, page_size = 1, resident_memory = 1, recompute = true}, {zero_stage = 2, page_size = 1},
  {zero_stage = 1, page_size = 3000, recompute = true}, {zero_stage = 0, page_size = 1, overlap = false},
  {zero_stage = 0, page_size = 5000, recompute = true},
}
for i, way in ipairs(ways) do
  local recompute = way.recompute
  way.recompute = nil
  way.mixed_precision, way.gradient_accumulation_steps = "bf16", 2
  local run = small.prepare(way, {rows = 12 // core.world_size(), gradient_checkpointing = recompute})
  small.train(run, 6)
  local stats = run.acc.training:stats()
  run.acc:print(zt.json.encode {
    way = i, hash = run.acc.training:hash(), pages = stats.pages, gathers = stats.gathers,
    reductions = stats.reductions,
  })
  run.acc:free_memory()
end
