-- What users of other trainers report, one function each, named by what it is about: arg[1]. Run on any number of
-- ranks; prints "ok" at the end, or fails.
package.path = debug.getinfo(1, "S").source:match("^@(.*)/") .. "/?.lua;" .. package.path
local core = require "ztrain.core"
local small = require "small"
local zt = require "ztrain"

local rank, size = core.rank(), core.world_size()
local M = {}

local function check(condition, ...)
  if not condition then error(table.concat({...}, " "), 2) end
end

-- The same training in every stage; returns what `read` gives of each, checked to be equal.
local function each_stage(opts, own, steps, read)
  local first
  for stage = 0, 3 do
    local all = {zero_stage = stage}
    for key, value in pairs(opts) do all[key] = value end
    local settings = own()
    settings.rows = 12 // size
    local run = small.prepare(all, settings)
    small.train(run, steps)
    local got = read(run)
    first = first or got
    check(got == first, "stage", stage, "gives", tostring(got), "not", tostring(first))
    run.acc:free_memory()
  end
  return first
end

local function hash(run) return run.acc.training:hash() end

function M.stages_with_accumulation() -- D1, D2: a tied weight, norms
  each_stage({gradient_accumulation_steps = 4}, function() return {} end, 5, hash)
end

function M.norm_of_each_stage() -- D3
  local norm = each_stage({gradient_accumulation_steps = 2}, function() return {} end, 1, function(run)
    return run.acc.grad_norm
  end)
  check(norm > 0)
end

-- Delays at random places, different on each rank, must not change a bit.
function M.overlap_with_delays() -- D16
  local hashes = {}
  for i, overlap in ipairs {true, false} do
    local run = small.prepare({zero_stage = 3, overlap = overlap, page_size = 8000}, {rows = 12 // size})
    local random = rank + 1
    small.train(run, math.tointeger(arg[2]) or 20, function()
      random = random * 1103515245 + 12345 & 0x7fffffff
      local until_ = zt.time() + random % 7 * 1e-3
      while zt.time() < until_ do random = random + 0 end
    end)
    hashes[i] = hash(run)
    run.acc:free_memory()
  end
  check(hashes[1] == hashes[2])
end

-- A module with a parameter of no elements, and one of three.
local Odd = zt.nn.class "Odd"
function Odd:init()
  self.empty = zt.nn.Parameter(zt.zeros(0, 8))
  self.three = zt.nn.Parameter(zt.ones(3))
  self.prime = zt.nn.Linear(131, 257)
end
function Odd:forward(batch)
  local y = self.prime(batch.x) * self.three:sum() + self.empty:sum()
  return zt.mse(y:to "float32", batch.y)
end

local function odd_run(opts)
  zt.seed(3)
  local acc = zt.accelerator(opts)
  local model, rows = Odd(), {}
  for i = 1, 24 do
    local x = {}
    for k = 1, 131 do x[k] = math.sin(i * k) end
    local y = {}
    for k = 1, 257 do y[k] = math.cos(i + k) end
    rows[i] = {x = zt.tensor(x), y = zt.tensor(y)}
  end
  local train = zt.data.loader(rows, {batch_size = 12 // size})
  local opt = zt.optim.adamw(model:parameters(), {lr = 1e-2})
  acc:prepare(model, opt, train)
  return {acc = acc, model = model, opt = opt, train = train}
end

local function odd_train(run, steps)
  while run.acc.step < steps do
    for batch in run.train:iter() do
      run.acc:accumulate(function()
        run.acc:backward(run.model(batch), batch.x:size(1))
        run.opt:step()
        run.opt:zero_grad()
      end)
      if run.acc.step >= steps then break end
    end
  end
end

function M.parameters_of_no_and_three_elements() -- D19, D34
  local first
  for stage = 0, 3 do
    for _, precision in ipairs {"no", "bf16"} do
      local run = odd_run {zero_stage = stage, mixed_precision = precision}
      odd_train(run, 4)
      first = first or {}
      first[precision] = first[precision] or hash(run)
      check(first[precision] == hash(run), "stage", stage)
      run.acc:free_memory()
    end
  end
end

-- The schedule moves once for each step of the optimizer.
function M.schedule_moves_with_steps() -- D27
  local run = small.prepare({gradient_accumulation_steps = 4, zero_stage = 2}, {rows = 3, samples = 12 * size * 10})
  small.train(run, 10)
  check(run.sched.count == 10 and run.acc.step == 10, run.sched.count)
end

-- Frozen parameters, recompute and stage 3, as with LoRA.
function M.frozen_with_recompute() -- D72
  local hashes = {}
  for stage = 0, 3 do
    zt.seed(5)
    local model = small.model {gradient_checkpointing = true}
    for name, p in model:named_parameters() do
      if not name:match("attn%.c_attn") then p:requires_grad_(false) end
    end
    local before = model.transformer.wte.weight:hash()
    local trained = {}
    for _, p in ipairs(model:parameters()) do
      if p:requires_grad() then trained[#trained + 1] = p end
    end
    local acc = zt.accelerator {zero_stage = stage, page_size = 4000}
    local opt = zt.optim.adamw(trained, {lr = 1e-2})
    local train = zt.data.loader(small.data(48), {batch_size = 12 // size})
    acc:prepare(model, opt, train)
    small.train({acc = acc, model = model, opt = opt, train = train, sched = {step = function() end}}, 4)
    check(model.transformer.wte.weight:hash() == before, "a frozen parameter has changed")
    hashes[stage] = acc.training:hash()
    check(hashes[stage] == hashes[0], "stage", stage)
    acc:free_memory()
  end
end

-- Parameters are whole for whoever looks, in every stage; what is written stays, on all ranks.
function M.shapes_and_writes() -- D58
  local model = small.model {dropout = 0}
  local count = model:num_parameters()
  local acc = zt.accelerator {zero_stage = 3, mixed_precision = "bf16", page_size = 4000}
  local opt = zt.optim.sgd(model:parameters(), {lr = 0.5})
  acc:prepare(model, opt)
  check(model:num_parameters() == count, "the number of elements has changed")
  local w = model.transformer.h[2].mlp.c_fc.weight
  local row = {}
  for i = 1, w:size(2) do row[i] = i / 64 end
  zt.no_grad(function() w:narrow(1, 3, 1):copy_(zt.tensor({row}, {dtype = "bfloat16"})) end)
  check(w[3]:to("float32"):equal(zt.tensor(row)), "what was written is not read back")
  acc:accumulate(function()
    acc:backward((w:to("float32") * 0):sum())
    opt:step()
    opt:zero_grad()
  end)
  check(w[3]:to("float32"):equal(zt.tensor(row)), "what was written is lost in a step")
  local grad
  acc:accumulate(function()
    acc:backward(w:to("float32"):sum())
    grad = w.grad
    check(grad:equal(zt.ones(w:size())), "the gradient is not whole")
    opt:step()
    opt:zero_grad()
  end)
  check(math.abs(w[3][4]:item() - (row[4] - 0.5)) < 0.01, "the step is not taken from what was written")
end

-- Frozen, prepared, saved; then all trainable, prepared and loaded: the weights are those that were saved.
function M.frozen_then_unfrozen() -- D38
  local folder = core.broadcast_string(rank == 0 and os.tmpname() or nil, 0)
  local function prepare(frozen)
    zt.seed(frozen and 1 or 2)
    local model = small.model()
    for name, p in model:named_parameters() do p:requires_grad_(not (frozen and name:match "wte")) end
    local trained = {}
    for _, p in ipairs(model:parameters()) do
      if p:requires_grad() then trained[#trained + 1] = p end
    end
    local acc = zt.accelerator {zero_stage = 3}
    local train = zt.data.loader(small.data(48), {batch_size = 12 // size})
    local opt = zt.optim.adamw(trained, {lr = 1e-2})
    acc:prepare(model, opt, train)
    return {acc = acc, model = model, opt = opt, train = train, sched = {step = function() end}}
  end
  local run = prepare(true)
  small.train(run, 2)
  run.acc:save_state(folder .. ".state")
  local saved = hash(run)
  run.acc:free_memory()
  run = prepare(false)
  run.acc:load_state(folder .. ".state")
  check(hash(run) == saved, "the weights are not those that were saved")
  small.train(run, 4)
  if rank == 0 then os.execute(("rm -rf %s %s.state"):format(folder, folder)) end
end

function M.cheap_save() -- D43, D44
  local folder = core.broadcast_string(rank == 0 and os.tmpname() or nil, 0)
  local run = small.prepare({zero_stage = 3, mixed_precision = "bf16"}, {rows = 12 // size})
  small.train(run, 2)
  zt.reset_peak_memory()
  local before, used = core.comm_stats(), zt.memory().used
  run.acc:save_state(folder .. ".state")
  local after = core.comm_stats()
  local n = 0
  for _, kind in ipairs {"n_all_gather", "n_all_to_all", "n_broadcast", "n_barrier"} do
    n = n + after[kind] - before[kind]
  end
  check(n <= 3, n, "collectives")
  check(zt.memory().peak == used, "the device's memory grew by", zt.memory().peak - used)
  core.barrier "saved"
  if rank == 0 then os.execute(("rm -rf %s %s.state"):format(folder, folder)) end
end

function M.made_and_freed() -- D63
  local function once(stage)
    local run = small.prepare({zero_stage = stage, mixed_precision = "bf16"}, {rows = 12 // size})
    small.train(run, 2)
    run.acc:free_memory()
  end
  local used
  for i = 1, 20 do
    once(i % 4)
    collectgarbage()
    collectgarbage()
    used = used or zt.memory().used
    check(zt.memory().used <= used, i, zt.memory().used, "after", used)
  end
end

-- With the policy 'local' nothing is said between the steps.
function M.quiet_micro_steps() -- D54
  for stage = 0, 2 do
    local run = small.prepare({zero_stage = stage, accumulate = "local", gradient_accumulation_steps = 4},
      {rows = 2, samples = 4 * 2 * size * 3})
    local quiet, n = 0, 0
    for batch in run.train:iter() do
      local before = core.comm_stats()
      run.acc:accumulate(function()
        run.acc:backward(run.model(batch))
        run.opt:step()
        run.opt:zero_grad()
      end)
      local after = core.comm_stats()
      n = n + 1
      if n % 4 ~= 0 then
        quiet = quiet + 1
        check(after.n_all_gather + after.n_all_to_all == before.n_all_gather + before.n_all_to_all, "stage", stage)
      end
    end
    check(quiet == 9)
    run.acc:free_memory()
  end
end

-- Overflows on one rank are known to all; nothing changes, and the message names who and where.
function M.overflow_is_named() -- D23, D24, D25
  local said = {}
  local run = small.prepare({
    zero_stage = 3, mixed_precision = "fp16", gradient_accumulation_steps = 2,
    fp16 = {initial_scale_power = 4, hysteresis = 1},
  }, {rows = 2, samples = 96, dropout = 0})
  run.acc.training.notify = function(text) said[#said + 1] = text end
  local target = run.model.transformer.h[2].mlp.c_proj.bias
  local before, step, micro = hash(run), 0, 0
  for batch in run.train:iter() do
    micro = micro % 2 + 1
    run.acc:accumulate(function()
      local loss = run.model(batch).loss
      if step < 2 and micro == 2 and rank == size - 1 then loss = loss + (target * 1e30):sum():to("float32") * 0 end
      if step < 2 then loss = loss + (target:to("float32") * (micro == 2 and rank == size - 1 and 1e30 or 0)):sum() end
      run.acc:backward(loss)
      run.opt:step()
      run.sched:step()
      run.opt:zero_grad()
    end)
    if micro == 2 then step = step + 1 end
    if step == 2 and micro == 2 then break end
  end
  check(run.acc.skipped_steps == 2, "skipped", run.acc.skipped_steps)
  check(hash(run) == before, "a skipped step has changed something")
  check(run.sched.count == 0, "a skipped step has moved the schedule")
  check(run.acc.loss_scale == 4, "the loss scale is", run.acc.loss_scale)
  local want = ("transformer.h.1.mlp.c_proj.bias is not finite (element 0, rank %d, micro-step 2)"):format(size - 1)
  check(said[1]:find(want, 1, true), said[1])
end

local function run_named(name)
  if not M[name] then error("no fault " .. tostring(name)) end
  M[name]()
  if rank == 0 then print "ok" end
end

run_named(arg[1])
