-- small.lua - what the rank scripts train: a GPT-2 of three blocks with tied weights and dropout, on sequences that
-- follow from their number. Everything that matters follows from the seed.
local zt = require "ztrain"

local M = {}

local VOCABULARY, LENGTH = 211, 16

---@param opts? table gradient_checkpointing; n_embd, n_layer, vocab_size, n_positions, dropout, tie of the config
function M.model(opts)
  opts = opts or {}
  local p = opts.dropout or 0.1
  return zt.models.from_config({
    model_type = "gpt2", n_layer = opts.n_layer or 3, n_embd = opts.n_embd or 48, n_head = 4,
    vocab_size = opts.vocab_size or VOCABULARY, n_positions = opts.n_positions or 32,
    resid_pdrop = p, embd_pdrop = p, attn_pdrop = p, tie_word_embeddings = opts.tie ~= false,
  }, {gradient_checkpointing = opts.gradient_checkpointing}):train()
end

---@param count integer sequences; every third has labels for a part of it only
function M.data(count)
  local list = {}
  for i = 1, count do
    local ids, labels = {}, {}
    for t = 1, LENGTH do
      ids[t] = (i * 7 + t * t * 3 + i * i) % VOCABULARY
      labels[t] = i % 3 == 0 and t <= i % LENGTH and -100 or ids[t]
    end
    list[i] = {input_ids = zt.tensor(ids, {dtype = "int64"}), labels = zt.tensor(labels, {dtype = "int64"})}
  end
  return list
end

---Prepares all that a run needs. opts: those of zt.accelerator, and rows, samples, lr, seed, optimizer, model
---@return table run {acc, model, opt, train, sched}
function M.prepare(opts, own)
  own = own or {}
  zt.seed(own.seed or 7)
  local acc = zt.accelerator(opts)
  local model = own.model or M.model(own)
  local train = zt.data.loader(M.data(own.samples or 144), {batch_size = own.rows or 4, shuffle = true})
  local opt = zt.optim[own.optimizer or "adamw"](model:parameters(), {lr = own.lr or 1e-3, weight_decay = 0.05})
  local sched = zt.schedule.linear(opt, {num_warmup_steps = 3, num_training_steps = 60})
  acc:prepare(model, opt, train, sched)
  return {acc = acc, model = model, opt = opt, train = train, sched = sched}
end

---Trains to the given step; returns the mean loss of each micro-step, of all ranks.
---@param run table
---@param steps integer
---@param after? fun(run: table) after each step
---@return number[]
function M.train(run, steps, after)
  local acc, losses = run.acc, {}
  while acc.step < steps do
    for batch in run.train:iter() do
      acc:accumulate(function()
        local out = run.model(batch)
        acc:backward(out)
        run.opt:step()
        run.sched:step()
        run.opt:zero_grad()
        local sums = acc:reduce {out.count > 0 and out.loss:item() * out.count or 0, out.count}
        losses[#losses + 1] = sums[1] / sums[2]
      end)
      if acc.sync_gradients and after then after(run) end
      if acc.sync_gradients and acc.step >= steps then break end
    end
  end
  return losses
end

return M
