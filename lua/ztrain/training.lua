-- training.lua - the steps of a prepared model: micro-steps make a window, and when it closes the gradients of all
-- ranks are agreed on, and the optimizers step or all skip. The numbers are the engine's, in C.
local core = require "ztrain.core"
local nn = require "ztrain.nn"
local util = require "ztrain.util"

local M = {}

---@class Training
---@field step integer optimizer steps begun, skipped ones included
---@field skipped_steps integer
---@field sync boolean whether a step of the optimizer acts now: the window's last micro-step, or no window at all
---@field was_skipped boolean whether the last step was skipped
---@field norm number? of the last step's gradient, unscaled and unclipped
---@field clip_coef number? what clipping multiplied it with
---@field count integer? tokens (or samples) of the last step, of all ranks
---@field signal integer? the signal that some rank got
---@field private settings Settings
---@field private engine Engine?
---@field private scaler Scaler?
---@field private models Module[]
---@field private optimizers Optimizer[]
---@field private names table<Tensor, string>
---@field private buffers {[1]: string, [2]: Tensor}[]
---@field private micro integer micro-steps of the open window
---@field private decided boolean whether the gradients of the window were agreed on
---@field private clip number? this step's, where the script sets one
---@field private skips_in_a_row integer
---@field private notify fun(text: string)
local Training = {}
Training.__index = Training

local half = {fp16 = "float16", bf16 = "bfloat16"}

---@param settings Settings
---@param opts {fp16: table?, max_skipped_steps: integer, notify: fun(text: string)}
---@return Training
function M.new(settings, opts)
  local self = setmetatable({
    settings = settings, step = 0, skipped_steps = 0, skips_in_a_row = 0, max_skipped_steps = opts.max_skipped_steps,
    sync = true, was_skipped = false, decided = true, micro = 0, models = {}, optimizers = {}, names = {}, buffers = {},
    notify = opts.notify,
  }, Training)
  if settings.mixed_precision == "fp16" then
    self.scaler = core.scaler(opts.fp16)
  elseif opts.fp16 then
    util.raise("accelerator: fp16 = {...} is for mixed_precision fp16, not %s", settings.mixed_precision)
  end
  return self
end

------------------------------------------------------------------------------ building

---@param model Module
function Training:add_model(model)
  self.models[#self.models + 1] = model
  if half[self.settings.mixed_precision] then model:convert_output "float32" end
end

---@param optimizer Optimizer
function Training:add_optimizer(optimizer)
  self.optimizers[#self.optimizers + 1] = optimizer
  optimizer.training = self
end

-- The dtype that a parameter computes in.
local function compute_dtype(self, parameter, kept)
  local dtype = parameter:dtype()
  if dtype ~= "float32" or kept[parameter] then return dtype end
  return half[self.settings.mixed_precision] or dtype
end

-- parameter -> {number of its optimizer, number of its group}
local function owners(self)
  local of = {}
  for i, optimizer in ipairs(self.optimizers) do
    for g, group in ipairs(optimizer.groups) do
      for _, p in ipairs(group.params) do
        if of[p] then util.raise("prepare: a parameter is in two optimizers") end
        of[p] = {i, g}
      end
    end
  end
  return of
end

local function add_parameter(self, name, parameter, owner, kept)
  self.names[parameter] = name
  owner = owner or {0, 1}
  self.engine:add(name, parameter, compute_dtype(self, parameter, kept), owner[1], owner[2])
end

local function add_models(self, of)
  for i, model in ipairs(self.models) do
    local prefix = i > 1 and ("model%d."):format(i) or ""
    local kept = nn.kept_parameters(model)
    for name, p in model:named_parameters() do
      if not self.names[p] then add_parameter(self, prefix .. name, p, of[p], kept) end
    end
    for name, buffer in model:named_buffers() do
      self.buffers[#self.buffers + 1] = {"buffer." .. prefix .. name, buffer}
    end
  end
end

-- Parameters of no module.
local function add_others(self, of)
  for i, optimizer in ipairs(self.optimizers) do
    local n = 0
    for _, group in ipairs(optimizer.groups) do
      for _, p in ipairs(group.params) do
        n = n + 1
        if not self.names[p] then add_parameter(self, ("optimizer%d.%d"):format(i, n), p, of[p], {}) end
      end
    end
  end
end

---Puts all parameters into the engine, once there is something to train.
function Training:build()
  if self.engine then util.raise "prepare: a model and its optimizer were prepared already; prepare all together" end
  local s = self.settings
  self.engine = core.engine {
    stage = s.zero_stage, accumulate = s.accumulate, micro_steps = s.gradient_accumulation_steps,
    page_size = s.page_size, resident_memory = s.resident_memory, overlap = s.overlap,
  }
  local of = owners(self)
  add_models(self, of)
  add_others(self, of)
  self.engine:build()
  self.engine:closing(true)
  core.stop_signal(true) -- a signal takes effect at the end of a step, on all ranks
end

---@return boolean
function Training:is_built() return self.engine ~= nil end

------------------------------------------------------------------------------ a window

---A micro-step of accumulate() begins.
---@param last boolean whether it is its window's last whatever the number: the epoch ends
function Training:begin_micro(last)
  if self.micro == 0 then
    self.step, self.decided = self.step + 1, false
  end
  self.micro = self.micro + 1
  self.sync = last or self.micro == self.settings.gradient_accumulation_steps
  if self.engine then self.engine:closing(self.sync) end
end

---It ends. Returns whether the window closed with it.
---@return boolean
function Training:end_micro()
  if self.engine then self.engine:micro_end() end
  if not self.sync then return false end
  self.micro = 0
  return true
end

---After a failure: the window's gradients are dropped.
function Training:abandon()
  self.micro, self.decided, self.clip = 0, true, nil
  if not self.engine then return end
  self.engine:micro_end()
  self.engine:zero()
end

---The number of the step that a batch given now is for.
---@return integer
function Training:next_step() return (self.micro == 0 and self.decided) and self.step + 1 or self.step end

-- Without accumulate() a window begins with the first backward after a step.
local function open_window(self)
  if self.micro == 0 and self.decided then
    self.step, self.decided = self.step + 1, false
  end
end

---@param loss Tensor
---@param count integer what it is the mean over
function Training:backward(loss, count)
  open_window(self)
  if not self.engine then return loss:backward() end
  local scale = self.scaler and self.scaler:scale() or 1
  self.engine:micro_step(count, scale)
  loss:backward(nil, {seed = scale})
end

local function culprit(r)
  local where = ("the gradient of %s is not finite (element %d"):format(r.bad, r.bad_element)
  if r.bad_rank < 0 then return where .. ", in the sum over ranks and micro-steps)" end
  return ("%s, rank %d, micro-step %d)"):format(where, r.bad_rank, r.bad_micro)
end

local function skip(self, r)
  self.skipped_steps, self.was_skipped = self.skipped_steps + 1, true
  if not r.bad then
    self.notify(("step %d skipped: no rank has anything to learn from"):format(self.step))
    return
  end
  self.skips_in_a_row = self.skips_in_a_row + 1
  local reason = culprit(r)
  local scale = self.scaler and ("; loss scale %g"):format(self.scaler:scale()) or ""
  self.notify(("step %d skipped: %s%s"):format(self.step, reason, scale))
  if self.skips_in_a_row > self.max_skipped_steps then
    util.raise("%d steps in a row were skipped (the limit is %d); in step %d %s", self.skips_in_a_row,
      self.max_skipped_steps, self.step, reason)
  end
  if self.scaler and not self.scaler:update(true) then
    util.raise("the loss scale is at its minimum already, and in step %d %s", self.step, reason)
  end
end

-- All ranks agree on the gradients, once a window: step or skip.
local function decide(self)
  if self.decided then return end
  self.decided = true
  local r = self.engine:finish()
  self.norm, self.count, self.signal = r.norm, r.count, r.signal or self.signal
  self.was_skipped = false
  if r.bad or r.count == 0 then return skip(self, r) end
  self.skips_in_a_row = 0
  if self.scaler then self.scaler:update(false) end
  local clip = self.clip or self.settings.gradient_clipping
  self.clip_coef = clip > 0 and math.min(1, clip / (r.norm + 1e-6)) or 1
end

---This step's clipping; returns the norm before. Nothing happens where no step acts.
---@param max_norm number
---@return number?
function Training:clip_grad_norm(max_norm)
  util.check_number("clip_grad_norm_", "max_norm", max_norm, 0)
  local set = self.settings.gradient_clipping
  if set ~= 0 and set ~= max_norm then
    util.raise("clip_grad_norm_: %s, but gradient_clipping is %s", max_norm, set)
  end
  if not self.sync then return nil end
  if not self.engine then util.raise("clip_grad_norm_: prepare() was given no optimizer") end
  self.clip = max_norm
  return self.engine:finish().norm
end

---@param optimizer Optimizer
function Training:step_optimizer(optimizer)
  if not self.sync then return end
  decide(self)
  self.clip = nil
  if self.was_skipped then return end
  for i, o in ipairs(self.optimizers) do
    if o == optimizer then self.engine:step(i, o.kind, o:numbers(), self.clip_coef) end
  end
end

function Training:zero_grad()
  if self.sync and self.engine then self.engine:zero() end
end

---Whether a schedule moves on now.
---@return boolean
function Training:moves() return self.sync and not self.was_skipped end

---@return number? factor of the loss
function Training:loss_scale() return self.scaler and self.scaler:scale() end

---@return string 16 hex digits
function Training:hash() return self.engine:hash() end

---@return table pages, parameters, elements, padded, gathers, reductions
function Training:stats() return self.engine:stats() end

------------------------------------------------------------------------------ state

-- What `ztrain export` needs to write a Hugging Face folder.
local function describe_model(self)
  local model = self.models[1]
  if #self.models ~= 1 or not model.export_config then return nil end
  local tensors = {}
  for name, p in model:named_parameters() do
    tensors[#tensors + 1] = {name = "model." .. self.names[p], as = name}
  end
  for name in model:named_buffers() do
    tensors[#tensors + 1] = {name = "buffer." .. name, as = name}
  end
  local config, generation_config = model:export_config "float32"
  return {config = config, generation_config = generation_config, tensors = tensors}
end

local function describe_groups(self, optimizer)
  local groups = {}
  for i, group in ipairs(optimizer.groups) do
    local numbers, params = {}, {}
    for name in pairs(optimizer.defaults) do numbers[name] = group[name] end
    for k, p in ipairs(group.params) do params[k] = self.names[p] end
    groups[i] = {numbers = numbers, params = params}
  end
  return groups
end

---@param others table<string, any> the caller's part of the JSON
---@param folder string
function Training:save(others, folder)
  if not self.engine then util.raise("save_state: prepare() was given no model with its optimizer") end
  local optimizers = {}
  for i, o in ipairs(self.optimizers) do optimizers[i] = {kind = o.kind, groups = describe_groups(self, o)} end
  local state = {
    step = self.step, skipped_steps = self.skipped_steps, skips_in_a_row = self.skips_in_a_row,
    scaler = self.scaler and self.scaler:state(), optimizers = optimizers, parameters = self.engine:steps(),
    random = core.random_state {}, model = describe_model(self),
  }
  for key, value in pairs(others) do state[key] = value end
  self.engine:save(folder, core.json_encode(state), self.buffers)
end

local function restore_groups(self, optimizer, saved)
  local numbers_of = {}
  for _, group in ipairs(saved.groups) do
    for _, name in ipairs(group.params) do numbers_of[name] = group.numbers end
  end
  for _, group in ipairs(optimizer.groups) do
    local numbers = group.params[1] and numbers_of[self.names[group.params[1]]]
    for name, value in pairs(numbers or {}) do group[name] = value end
  end
end

local function check_state(self, state, folder)
  if #state.optimizers ~= #self.optimizers then
    util.raise("%s: %d optimizers, not %d", folder, #state.optimizers, #self.optimizers)
  end
  for i, o in ipairs(self.optimizers) do
    if state.optimizers[i].kind ~= o.kind then
      util.raise("%s: optimizer %d is %s, not %s", folder, i, state.optimizers[i].kind, o.kind)
    end
  end
end

---@param folder string a checkpoint
---@return table state what save was given, and more
function Training:load(folder)
  if not self.engine then util.raise("load_state: prepare() was given no model with its optimizer") end
  local state = core.json_decode(self.engine:load(folder, self.buffers))
  check_state(self, state, folder)
  for i, o in ipairs(self.optimizers) do restore_groups(self, o, state.optimizers[i]) end
  for _, p in ipairs(state.parameters) do self.engine:set_steps(p.name, p.steps, p.begun) end
  if self.scaler and state.scaler then self.scaler:load(state.scaler) end
  self.step, self.skipped_steps, self.skips_in_a_row = state.step, state.skipped_steps, state.skips_in_a_row
  self.micro, self.decided = 0, true
  core.seed(state.random.seed)
  core.random_state {step = state.random.step, call = state.random.call, first_sample = state.random.first_sample}
  return state
end

---Gives the engine's memory back.
function Training:close()
  if self.engine then self.engine:close() end
  for _, o in ipairs(self.optimizers) do o.training = nil end
  self.engine, self.models, self.optimizers, self.names, self.buffers = nil, {}, {}, {}, {}
end

return M
