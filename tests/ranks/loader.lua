-- Loaders of all ranks: prints on the first what all were given, which the spec compares for several numbers of ranks.
local zt = require "ztrain"
local core = require "ztrain.core"
local acc = zt.accelerator()
local rank, size = acc.process_index, acc.num_processes

local function numbers(n, from)
  local list = {}
  for i = 1, n do list[i] = {x = from + i, input_ids = {i, i}} end
  return list
end

-- One dataset for all: each sample once, in an order that does not depend on the number of ranks.
local loader = acc:prepare(zt.data.loader(numbers(23, 0), {batch_size = 2, shuffle = true, seed = 7}))
for _ = 1, 2 do
  local seen, before = {}, core.comm_stats().n_all_gather
  for batch in loader:iter() do
    assert(batch.input_ids:size(1) == batch.x:size(1) and batch.attention_mask:dim() == 2)
    seen[#seen + 1] = batch.x
  end
  assert(core.comm_stats().n_all_gather == before + 1, "collectives in an epoch")
  local whole = {}
  for _, x in ipairs(seen) do
    for _, v in ipairs(acc:gather_for_metrics(x):totable()) do whole[#whole + 1] = v end
  end
  acc:print(table.concat(whole, " "))
end

-- Each has its own, 4 + rank batches: the ranks go on together to the end of the longest.
local own = acc:prepare(zt.data.loader(numbers(2 * (4 + rank) - 1, 100 * rank), {batch_size = 2, sharded = true}))
assert(#own == 4 + size - 1 and acc:num_steps(own) == #own)
local model = zt.nn.Linear(1, 1)
local opt = zt.optim.sgd(model:parameters(), {lr = 1e-5})
acc = zt.accelerator()
model, opt, own = acc:prepare(model, opt, own)
local seen, n_last = {}, 0
for batch in own:iter() do
  for _, v in ipairs(batch.x:totable()) do seen[#seen + 1] = v end
  n_last = n_last + (own:is_last() and 1 or 0)
  acc:accumulate(function()
    local x = batch.x:to("float32"):reshape(-1, 1)
    acc:backward((model(x) - x):norm(), x:size(1))
    opt:step()
    opt:zero_grad()
  end)
end
assert(#seen == 2 * (4 + rank) - 1 and n_last == 1 and acc.step == #own)
for i, v in ipairs(seen) do assert(v == 100 * rank + i) end
acc:print(("%d samples in %d steps"):format(acc:gather(zt.tensor(seen)):numel(), acc.step))
