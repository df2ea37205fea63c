-- gpt2_step.lua - time and memory of a training step of GPT-2 (124 M by default) on random tokens: forward, backward,
-- clip to 1.0, AdamW, dropout 0.1. docs/benchmarks.md says what it is held against.
local zt = require "ztrain"

local args = zt.args {
  batch = 4, seq = 256, steps = 8, warmup = 3, n_layer = 12, n_embd = 768, n_head = 12, vocab_size = 50257,
  dropout = 0.1, gradient_checkpointing = false,
}
zt.seed(1)
math.randomseed(1)
local model = zt.models.from_config({
  model_type = "gpt2", n_layer = args.n_layer, n_embd = args.n_embd, n_head = args.n_head, vocab_size = args.vocab_size,
  resid_pdrop = args.dropout, embd_pdrop = args.dropout, attn_pdrop = args.dropout,
}, {gradient_checkpointing = args.gradient_checkpointing})
model:train()
local acc = zt.accelerator()
local opt = acc:prepare(zt.optim.adamw(model:parameters(), {lr = 1e-4, weight_decay = 0.01}))

local rows = {}
for b = 1, args.batch do
  rows[b] = {}
  for t = 1, args.seq do rows[b][t] = math.random(5, args.vocab_size - 1) end
end
local ids = zt.tensor(rows, {dtype = "int64"})

local function step()
  local started, loss = zt.time(), nil
  acc:accumulate(function()
    local out = model {input_ids = ids, labels = ids}
    acc:backward(out)
    acc:clip_grad_norm_(model:parameters(), 1.0)
    opt:step()
    opt:zero_grad()
    loss = out.loss:item()
  end)
  return 1e3 * (zt.time() - started), loss
end

local times, peaks, loss = {}, {}, nil
for i = 1, args.warmup + args.steps do
  zt.reset_peak_memory()
  local ms, l = step()
  if i > args.warmup then times[#times + 1], peaks[zt.memory().peak], loss = ms, true, l end
end
table.sort(times)
local ms = times[#times // 2 + 1]
local peak = {}
for nbytes in pairs(peaks) do peak[#peak + 1] = ("%.1f"):format(nbytes / 2 ^ 20) end
print(("gpt2_step: %.1f M parameters, %d x %d tokens, loss %.3f"):format(
  model:num_parameters() / 1e6, args.batch, args.seq, loss))
print(("gpt2_step: median %.0f ms a step (%.0f to %.0f), %.0f tokens/s"):format(
  ms, times[1], times[#times], args.batch * args.seq / ms * 1e3))
print(("gpt2_step: peak %s MiB in the pool (one figure: the same each step), %.0f MiB resident"):format(
  table.concat(peak, ", "), zt.peak_rss() / 2 ^ 20))
