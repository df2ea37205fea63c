-- ranks.lua - a training step in every ZeRO stage, with and without overlap, on the ranks that it is started with:
-- ztrain -n 4 tests/bench/ranks.lua. Time, collectives and memory of one rank.
local core = require "ztrain.core"
local zt = require "ztrain"

local args = zt.args {
  batch = 2, seq = 128, steps = 6, warmup = 2, n_layer = 8, n_embd = 512, n_head = 8, vocab_size = 8192,
  mixed_precision = "no",
}
math.randomseed(core.rank() + 1)
local rows = {}
for b = 1, args.batch do
  rows[b] = {}
  for t = 1, args.seq do rows[b][t] = math.random(5, args.vocab_size - 1) end
end

local function measure(stage, overlap)
  collectgarbage()
  collectgarbage()
  zt.seed(1)
  local acc = zt.accelerator {
    zero_stage = stage, overlap = overlap, mixed_precision = args.mixed_precision, gradient_clipping = 1.0,
  }
  local model = zt.models.from_config({
    model_type = "gpt2", n_layer = args.n_layer, n_embd = args.n_embd, n_head = args.n_head,
    vocab_size = args.vocab_size, n_positions = args.seq,
  }):train()
  local opt = zt.optim.adamw(model:parameters(), {lr = 1e-4})
  acc:prepare(model, opt)
  local ids, times = zt.tensor(rows, {dtype = "int64"}), {}
  for i = 1, args.warmup + args.steps do
    acc:wait_for_everyone()
    local started = zt.time()
    acc:accumulate(function()
      acc:backward(model {input_ids = ids, labels = ids})
      opt:step()
      opt:zero_grad()
    end)
    acc:wait_for_everyone()
    if i > args.warmup then times[#times + 1] = 1e3 * (zt.time() - started) end
  end
  table.sort(times)
  local stats, peak = acc.training:stats(), zt.memory().peak
  local format = "ranks: %d, stage %d, overlap %-3s: median %.0f ms (%.0f to %.0f); %d pages, %.1f M parameters, "
    .. "peak %.0f MiB"
  acc:print(format:format(acc.num_processes, stage, overlap and "on" or "off", times[#times // 2 + 1], times[1],
    times[#times], stats.pages, stats.elements / 1e6, peak / 2 ^ 20))
  acc:free_memory()
  zt.reset_peak_memory()
end

for stage = 0, 3 do
  for _, overlap in ipairs {true, false} do measure(stage, overlap) end
end
