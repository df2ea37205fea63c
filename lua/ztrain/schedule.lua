-- schedule.lua - learning rates over time: transformers' schedules and DeepSpeed's, step by step as they run there.
-- A schedule writes opt.groups[i].lr when it is made, and again at every step(). Formulas: transformers'
-- optimization.py, DeepSpeed's runtime/lr_schedules.py; operations stand in their order, so that rates agree to the
-- last bit.
local util = require "ztrain.util"

local M = {}

---@class Schedule
---@field name string
---@field opt Optimizer
---@field count integer steps so far
---@field training Training? whose steps these are, once prepared
---@field private base_lrs number[] each group's rate when the schedule was made
---@field private rates fun(count: integer, base_lr: number): number
---@field private betas (fun(count: integer): number[])?
local Schedule = {}
Schedule.__index = Schedule

---@private
function Schedule:apply()
  for i, group in ipairs(self.opt.groups) do
    group.lr = self.rates(self.count, self.base_lrs[i])
    if self.betas and group.betas then group.betas = self.betas(self.count) end
  end
end

---Moves on: call it after opt:step(). Prepared: where the optimizer has stepped.
function Schedule:step()
  if self.training and not self.training:moves() then return end
  self.count = self.count + 1
  self:apply()
end

---The rates now in use, one for each group.
---@return number[]
function Schedule:get_last_lr()
  local list = {}
  for i, group in ipairs(self.opt.groups) do list[i] = group.lr end
  return list
end

---@return {name: string, count: integer, base_lrs: number[]}
function Schedule:state_dict()
  return {name = self.name, count = self.count, base_lrs = {table.unpack(self.base_lrs)}}
end

---@param state {name: string, count: integer, base_lrs: number[]}
function Schedule:load_state_dict(state)
  if state.name ~= self.name then util.raise("the state is that of schedule '%s', not '%s'", state.name, self.name) end
  if #state.base_lrs ~= #self.base_lrs then
    util.raise("the state has %d groups, the optimizer %d", #state.base_lrs, #self.base_lrs)
  end
  self.count, self.base_lrs = state.count, {table.unpack(state.base_lrs)}
  self:apply()
end

------------------------------------------------------------------------------ transformers
-- What makes factor(step) of a schedule's options: the rate is the group's own times the factor. Steps count from 0.

local function warmup(step, warm) return step / math.max(1, warm) end

local transformers = {}

function transformers.constant()
  return function() return 1.0 end
end

function transformers.constant_with_warmup(o)
  local warm = o.num_warmup_steps
  return function(step) return step < warm and warmup(step, warm) or 1.0 end
end

function transformers.linear(o)
  local warm, total = o.num_warmup_steps, o.num_training_steps
  return function(step)
    if step < warm then return warmup(step, warm) end
    return math.max(0.0, (total - step) / math.max(1, total - warm))
  end
end

-- How far a step is between warm-up's end (0) and the schedule's (1).
local function progress(step, o)
  return (step - o.num_warmup_steps) / math.max(1, o.num_training_steps - o.num_warmup_steps)
end

function transformers.cosine(o)
  local warm = o.num_warmup_steps
  return function(step)
    if step < warm then return warmup(step, warm) end
    return math.max(0.0, 0.5 * (1.0 + math.cos(math.pi * o.num_cycles * 2.0 * progress(step, o))))
  end
end

function transformers.cosine_with_restarts(o)
  local warm = o.num_warmup_steps
  return function(step)
    if step < warm then return warmup(step, warm) end
    local p = progress(step, o)
    if p >= 1.0 then return 0.0 end
    return math.max(0.0, 0.5 * (1.0 + math.cos(math.pi * ((o.num_cycles * p) % 1.0))))
  end
end

function transformers.polynomial(o, opt)
  local warm, total, lr = o.num_warmup_steps, o.num_training_steps, opt.defaults.lr
  if lr <= o.lr_end then
    util.raise("schedule.polynomial: lr_end (%s) must be below the optimizer's lr (%s)", o.lr_end, lr)
  end
  return function(step)
    if step < warm then return warmup(step, warm) end
    if step > total then return o.lr_end / lr end
    local left = 1 - (step - warm) / math.max(1, total - warm)
    return ((lr - o.lr_end) * left ^ o.power + o.lr_end) / lr
  end
end

function transformers.inverse_sqrt(o)
  local warm = o.num_warmup_steps
  local scale = o.timescale or (warm > 0 and warm or 10000)
  return function(step)
    if step < warm then return warmup(step, warm) end
    return 1.0 / math.sqrt((step + (scale - warm)) / scale)
  end
end

-- The options of each beside num_warmup_steps and num_training_steps, which all take.
local specific = {
  constant = {}, constant_with_warmup = {}, linear = {}, cosine = {num_cycles = 0.5},
  cosine_with_restarts = {num_cycles = 1}, polynomial = {lr_end = 1e-7, power = 1.0},
  inverse_sqrt = {timescale = util.optional.number},
}
local endless = {constant = true, constant_with_warmup = true, inverse_sqrt = true}

local function new_transformers(name, opt, args)
  local who = "schedule." .. name
  local known = {num_warmup_steps = 0, num_training_steps = util.optional.number}
  for key, default in pairs(specific[name]) do known[key] = default end
  local o = util.options(who, args, known)
  util.check_number(who, "num_warmup_steps", o.num_warmup_steps, 0)
  if not endless[name] then
    if o.num_training_steps == nil then util.raise("%s needs num_training_steps", who) end
    util.check_number(who, "num_training_steps", o.num_training_steps, 0)
  end
  local factor = transformers[name](o, opt)
  return function(step, base_lr) return base_lr * factor(step) end
end

------------------------------------------------------------------------------ DeepSpeed
-- Each entry: options with defaults, and what makes rate(it, base_lr) of them. DeepSpeed counts from -1 (construction),
-- so the warm-up schedules use their first rate twice: at construction, and after the first step.

local deepspeed = {}

-- Share of the warm-up done at it < warm: logarithmic (the default), or linear.
local function warm_share(it, warm, kind)
  if kind == "linear" then return it / warm end
  return (1.0 / math.log(warm)) * math.log(it + 1)
end

-- log(warm) stands in the denominator, so 2 is the least.
local function warm_steps(who, o)
  util.check_number(who, "warmup_num_steps", o.warmup_num_steps, 0)
  if o.warmup_type ~= "log" and o.warmup_type ~= "linear" then
    util.unknown(who, "warmup_type", o.warmup_type, {"log", "linear"})
  end
  return math.max(2, o.warmup_num_steps)
end

local function total_steps(who, o)
  if o.total_num_steps == nil then util.raise("%s needs total_num_steps", who) end
  util.check_number(who, "total_num_steps", o.total_num_steps, 0)
  return o.total_num_steps
end

deepspeed.WarmupLR = {
  known = {warmup_min_lr = 0.0, warmup_max_lr = util.optional.number, warmup_num_steps = 1000, warmup_type = "log"},
  make = function(who, o)
    local warm = warm_steps(who, o)
    return function(it, base_lr)
      if it < 0 then return o.warmup_min_lr end
      local share = it < warm and warm_share(it, warm, o.warmup_type) or 1.0
      return o.warmup_min_lr + ((o.warmup_max_lr or base_lr) - o.warmup_min_lr) * share
    end
  end,
}

deepspeed.WarmupDecayLR = {
  known = {
    total_num_steps = util.optional.number, warmup_min_lr = 0.0, warmup_max_lr = 0.001, warmup_num_steps = 1000,
    warmup_type = "log",
  },
  make = function(who, o)
    local warm, total = warm_steps(who, o), total_steps(who, o)
    return function(it)
      if it < 0 then return o.warmup_min_lr end
      local share = it < warm and warm_share(it, warm, o.warmup_type) or
        math.max(0.0, (total - it) / math.max(1.0, total - warm))
      return o.warmup_min_lr + (o.warmup_max_lr - o.warmup_min_lr) * share
    end
  end,
}

deepspeed.WarmupCosineLR = {
  known = {
    total_num_steps = util.optional.number, warmup_min_ratio = 0.0, warmup_num_steps = 1000, cos_min_ratio = 0.0001,
    warmup_type = "log",
  },
  make = function(who, o)
    local warm, total = warm_steps(who, o), total_steps(who, o)
    return function(it, base_lr)
      if it < 0 then return 0.0 end
      if it < warm then
        return base_lr * (o.warmup_min_ratio + warm_share(it, warm, o.warmup_type) * (1.0 - o.warmup_min_ratio))
      end
      local done = math.min(1.0, (it - warm + 1) / math.max(1, total - warm))
      local share = (1 + math.cos(math.pi * done)) / 2
      return base_lr * math.max(0.0, o.cos_min_ratio + (1.0 - o.cos_min_ratio) * share)
    end
  end,
}

-- Share of the height at it, counted from -1: up over the first part of the cycle, down over the second; with stairs,
-- in that many equal steps.
local function cycle_share(it, o)
  local first, second = o.cycle_first_step_size, o.cycle_second_step_size
  local size = first + second
  local at = it + 1
  local x = 1.0 + at / size - (1 + at // size)
  local up = x <= first / size
  local stairs = up and o.cycle_first_stair_count or o.cycle_second_stair_count
  if stairs > 0 then
    local within = at % size
    local place = within <= first and within * stairs / first or (size - within) * stairs / second
    return math.floor(place) / stairs
  end
  return up and x / (first / size) or (x - 1) / (first / size - 1)
end

deepspeed.OneCycle = {
  known = {
    cycle_min_lr = util.optional.number, cycle_max_lr = util.optional.number, decay_lr_rate = 0.0,
    cycle_first_step_size = 2000, cycle_second_step_size = util.optional.number,
    cycle_first_stair_count = 0, cycle_second_stair_count = util.optional.number,
    decay_step_size = 0, cycle_momentum = true, cycle_min_mom = 0.8, cycle_max_mom = 0.9, decay_mom_rate = 0.0,
  },
  make = function(who, o)
    for _, key in ipairs {"cycle_min_lr", "cycle_max_lr"} do
      if o[key] == nil then util.raise("%s needs %s", who, key) end
    end
    util.check_number(who, "cycle_first_step_size", o.cycle_first_step_size, 1)
    o.cycle_second_step_size = o.cycle_second_step_size or o.cycle_first_step_size
    o.cycle_second_stair_count = o.cycle_second_stair_count or o.cycle_first_stair_count
    util.check_number(who, "cycle_second_step_size", o.cycle_second_step_size, 0)
    local size = o.cycle_first_step_size + o.cycle_second_step_size
    -- 1 + rate * (number of decay intervals since the cycle's end)
    local function decay(it, rate) return 1 + rate * ((it - size + 1) / o.decay_step_size) end
    local function rate(it)
      if it < size then return o.cycle_min_lr + (o.cycle_max_lr - o.cycle_min_lr) * cycle_share(it, o) end
      if o.decay_step_size == 0 or o.decay_lr_rate == 0 then return o.cycle_min_lr end
      return o.cycle_min_lr / decay(it, o.decay_lr_rate)
    end
    local function betas(it)
      local high, low = o.cycle_max_mom, o.cycle_min_mom
      if it < 0 then return {low, 0.99} end
      if it < size then return {high - (high - low) * cycle_share(it, o), 0.99} end
      if o.decay_step_size == 0 or o.decay_mom_rate == 0 then return {high, 0.99} end
      return {high * decay(it, o.decay_mom_rate), 0.99}
    end
    return rate, o.cycle_momentum and betas or nil
  end,
}

deepspeed.LRRangeTest = {
  known = {
    lr_range_test_min_lr = 1e-3, lr_range_test_step_size = 2000, lr_range_test_step_rate = 1.0,
    lr_range_test_staircase = false,
  },
  make = function(who, o)
    util.check_number(who, "lr_range_test_step_size", o.lr_range_test_step_size, 1)
    return function(it)
      local interval = (it + 1) / o.lr_range_test_step_size
      if o.lr_range_test_staircase then interval = math.floor(interval) end
      return o.lr_range_test_min_lr * (1 + o.lr_range_test_step_rate * interval)
    end
  end,
}

local function new_deepspeed(name, args)
  local who, entry = "schedule." .. name, deepspeed[name]
  local rate, betas = entry.make(who, util.options(who, args, entry.known))
  return function(count, base_lr) return rate(count - 1, base_lr) end,
    betas and function(count) return betas(count - 1) end
end

------------------------------------------------------------------------------ by name
local names = util.keys(specific)
for name in pairs(deepspeed) do names[#names + 1] = name end

local function new(name, opt, args)
  if type(opt) ~= "table" or not opt.groups then util.raise("schedule.%s: an optimizer comes first", name) end
  local self = setmetatable({name = name, opt = opt, count = 0, base_lrs = {}}, Schedule)
  for i, group in ipairs(opt.groups) do self.base_lrs[i] = group.lr end
  if deepspeed[name] then
    self.rates, self.betas = new_deepspeed(name, args)
  else
    self.rates = new_transformers(name, opt, args)
  end
  self:apply()
  return self
end

for _, name in ipairs(names) do
  M[name] = function(opt, args) return new(name, opt, args) end
end

-- DeepSpeed's warm-up schedules under transformers' names: what "auto" means in a DeepSpeed configuration.
local function as_deepspeed(name, opt, args)
  local known, translated = deepspeed[name].known, {}
  for key, value in pairs(args or {}) do translated[key] = value end
  if known.warmup_num_steps and translated.num_warmup_steps then
    translated.warmup_num_steps, translated.num_warmup_steps = translated.num_warmup_steps, nil
    if known.warmup_max_lr then translated.warmup_max_lr = translated.warmup_max_lr or opt.defaults.lr end
  end
  if translated.num_training_steps and known.warmup_num_steps then
    if known.total_num_steps then translated.total_num_steps = translated.num_training_steps end
    translated.num_training_steps = nil
  end
  return translated
end

---Whether value is one of these schedules.
---@param value any
---@return boolean
function M.is_schedule(value) return getmetatable(value) == Schedule end

---A schedule by its name. DeepSpeed's warm-up schedules also take num_warmup_steps and num_training_steps here, with
---the optimizer's rate as warmup_max_lr, so that one line serves every name.
---@param name string
---@param opt Optimizer
---@param args? table
---@return Schedule
function M.get(name, opt, args)
  if not specific[name] and not deepspeed[name] then util.unknown(nil, "schedule", name, names) end
  return new(name, opt, deepspeed[name] and as_deepspeed(name, opt, args) or args)
end

return M
