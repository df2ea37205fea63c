-- accelerator.lua - what surrounds a training loop, on any number of processes: preparing, steps, collectives, a stop
-- asked for by a signal, checkpoints, logs, the final model. Methods are Accelerate's.
local core = require "ztrain.core"
local data = require "ztrain.data"
local nn = require "ztrain.nn"
local optim = require "ztrain.optim"
local ranks = require "ztrain.ranks"
local schedule = require "ztrain.schedule"
local settings = require "ztrain.settings"
local training = require "ztrain.training"
local util = require "ztrain.util"

---@class Accelerator
---@field project_dir string? where metrics.jsonl and checkpoints are written
---@field is_main_process boolean
---@field num_processes integer
---@field process_index integer from 0
---@field device string
---@field settings Settings what the command line and the script say, and the defaults
---@field step integer optimizer steps begun, skipped ones included
---@field skipped_steps integer steps that changed nothing: a gradient was not finite, or no rank had anything to learn
---@field optimizer_step_was_skipped boolean whether the last one was
---@field sync_gradients boolean whether opt:step() acts now: the last micro-step of a window
---@field grad_norm number? of the last step's gradient, before clipping
---@field clip_coef number? what clipping multiplied it with
---@field token_count integer? tokens (or samples) of the last step, of all processes
---@field loss_scale number? of fp16
---@field live_line boolean whether the terminal's last line is one that progress goes on changing
---@field private loaders Loader[] the first one's samples key dropout
---@field private schedules Schedule[]
---@field private training Training
---@field private started number
local Accelerator = {}

-- Fields that live in the training.
local forwarded = {
  step = "step", skipped_steps = "skipped_steps", optimizer_step_was_skipped = "was_skipped", sync_gradients = "sync",
  grad_norm = "norm", clip_coef = "clip_coef", token_count = "count",
}

local accelerator_meta = {
  __index = function(self, key)
    if forwarded[key] then return rawget(self, "training")[forwarded[key]] end
    if key == "loss_scale" then return rawget(self, "training"):loss_scale() end
    return Accelerator[key]
  end,
}

---@class LossScaleOptions DeepSpeed's names and defaults
---@field loss_scale? number a fixed one; 0: dynamic
---@field initial_scale_power? integer it starts at 2 to this power; 16
---@field loss_scale_window? integer steps without an overflow before it doubles; 1000
---@field hysteresis? integer overflows before it halves; 2
---@field consecutive_hysteresis? boolean a step without one makes them up again
---@field min_loss_scale? number 1

---@class AcceleratorOptions: Settings
---@field project_dir? string
---@field checkpoints_total_limit? integer how many checkpoints stay in project_dir
---@field max_skipped_steps? integer more skipped steps in a row end the run; default 50
---@field fp16? LossScaleOptions of mixed_precision fp16

local function known_options()
  local known = {
    project_dir = util.optional.string, checkpoints_total_limit = util.optional.number, max_skipped_steps = 50,
    fp16 = util.optional.table,
  }
  for name, value in pairs(settings.known) do known[name] = value end
  return known
end

-- What cannot be written is known before hours of work.
local function open_project(folder)
  if not folder or core.rank() > 0 then return end
  core.mkdirs(folder)
  core.append_file(folder .. "/metrics.jsonl", "")
end

---@param opts? AcceleratorOptions
---@return Accelerator
local function new(opts)
  opts = util.options("accelerator", opts, known_options())
  local resolved = settings.resolve(opts)
  open_project(opts.project_dir)
  local self
  self = setmetatable({
    project_dir = opts.project_dir, device = "cpu", is_main_process = core.rank() == 0,
    num_processes = core.world_size(), process_index = core.rank(), live_line = false, loaders = {}, schedules = {},
    settings = resolved, total_limit = opts.checkpoints_total_limit, started = core.time(),
    training = training.new(resolved, {
      fp16 = opts.fp16, max_skipped_steps = opts.max_skipped_steps,
      notify = function(text)
        self:print(text)
        self:log {skipped = text}
      end,
    }),
  }, accelerator_meta)
  if resolved.hash then core.at_end(function() self:print("hash " .. self.training:hash()) end) end
  return self
end

---Takes models, optimizers, loaders and schedules in any order, and gives them back, ready for acc's other methods.
---@param ... any
---@return any ...
function Accelerator:prepare(...)
  local t = self.training
  local trains, has_model = false, false
  for i = 1, select("#", ...) do
    local item = select(i, ...)
    if nn.is_module(item) then
      t:add_model(item)
      has_model = true
    elseif optim.is_optimizer(item) then
      t:add_optimizer(item)
      trains = true
    elseif data.is_loader(item) then
      self:prepare_loader(item)
    elseif schedule.is_schedule(item) then
      item.training = t
      self.schedules[#self.schedules + 1] = item
    end
  end
  if trains or has_model and t:is_built() then t:build() end
  return ...
end

---@private
function Accelerator:prepare_loader(loader)
  loader:shard(self.process_index, self.num_processes)
  self.loaders[#self.loaders + 1] = loader
  if #self.loaders > 1 then return end
  loader.on_batch = function() -- dropout's key, for loops without accumulate()
    core.random_state {step = self.training:next_step(), call = 0, first_sample = loader.first_sample}
  end
end

---Optimizer steps that one epoch of a loader makes, prepared or not.
---@param loader Loader
---@return integer
function Accelerator:num_steps(loader)
  return math.ceil(loader:num_batches(self.num_processes) / self.settings.gradient_accumulation_steps)
end

local signal_names = {[2] = "SIGINT", [15] = "SIGTERM"}

-- All ranks know of a stop that one was asked for when a step's gradients are agreed on: they save and end together.
-- Where there is nothing to train it takes effect at the end of the step that runs.
local function stop_if_asked(self)
  local t = self.training
  local signal = t.signal
  if not t:is_built() then signal = core.stop_signal() end
  if not signal then
    if not t:is_built() then core.stop_signal(false) end
    return
  end
  local name, saved = signal_names[signal] or signal, ""
  if self.project_dir and t:is_built() then saved = "; saved " .. self:save_state() end
  core.note_stop(signal) -- from here on this rank's error is no failure of the others'
  util.raise("stopped by %s after step %d%s", name, self.step, saved)
end

-- What a failed step's message follows is a line of its own.
local function end_live_line(self)
  if self.live_line then print() end
  self.live_line = false
end

---Runs fn, one micro-step, in a scope: what it made and does not return is freed. gradient_accumulation_steps of them,
---or what an epoch has left, are a window: opt:step(), sched:step() and opt:zero_grad() act in its last one. A signal
---that asks to stop waits for its end.
---@param fn fun(...): any
---@param ... any for fn
---@return any ... what fn returns
function Accelerator:accumulate(fn, ...)
  local loader, t = self.loaders[1], self.training
  local on_error <close> = setmetatable({}, { -- luacheck: ignore
    __close = function(_, message)
      if not message then return end
      end_live_line(self)
      t:abandon()
    end,
  })
  core.stop_signal(true)
  t:begin_micro(loader ~= nil and loader:is_last())
  core.random_state {step = t.step, call = 0, first_sample = loader and loader.first_sample or 0}
  local results = table.pack(core.scope("step", fn, ...))
  if t:end_micro() then stop_if_asked(self) end
  return table.unpack(results, 1, results.n)
end

---Gradients of a loss, given as a model's output or as a tensor. The step's gradient is that of the mean over all
---tokens (samples) of the window's micro-steps and of all processes.
---@param what {loss: Tensor, count: integer?}|Tensor
---@param count? integer what the loss is the mean over; an output says it itself; 1 where nobody does. 0: there is
---nothing to learn from
function Accelerator:backward(what, count)
  local loss = what
  if not util.is_tensor(what) then loss, count = what.loss, count or what.count end
  if not util.is_tensor(loss) then util.raise("backward: there is no loss; did the batch have labels?") end
  count = count or 1
  util.check_number("backward", "count", count, 0, nil, true)
  self.training:backward(loss, math.tointeger(count))
end

---Sets this step's clipping: gradients are scaled so that the norm of all of them is max_norm at most.
---@param params Tensor[] all that is trained: the norm is of all
---@param max_norm number
---@return number? norm before; nil where no step acts
function Accelerator:clip_grad_norm_(params, max_norm)
  util.check_tensors("clip_grad_norm_", "params", params)
  return self.training:clip_grad_norm(max_norm)
end

-- luacheck: push ignore self

---The rows of all processes' tensors, joined along dimension 1 in the order of the processes, which may have different
---numbers of rows. Takes a tensor, a number (one row), or a table of them, and gives the like. A collective, as the
---next three: all processes call it.
---@param value any
---@return any
function Accelerator:gather(value) return ranks.gather(value) end

---gather, for what was computed from the batches of a prepared loader: each sample once, in the loader's order. (No
---batch is filled up with samples, so that there are none to leave out.)
---@param value any
---@return any
function Accelerator:gather_for_metrics(value) return ranks.gather(value) end

---The sum (or mean) over all processes of a tensor or a number, or of each in a table.
---@param value any
---@param reduction? "sum"|"mean" default sum
---@return any
function Accelerator:reduce(value, reduction) return ranks.reduce(value, reduction or "sum") end

---Returns when all processes have called it.
function Accelerator:wait_for_everyone() core.barrier("wait_for_everyone") end

-- luacheck: pop

---print, on the main process only.
function Accelerator:print(...)
  if not self.is_main_process then return end
  if self.live_line then io.stdout:write("\r\27[K") end
  self.live_line = false
  print(...)
end

---Appends a line to project_dir/metrics.jsonl: the values, the step, and the seconds since the accelerator was made.
---@param values table<string, any>
---@param step? integer by default the current one
function Accelerator:log(values, step)
  if not self.project_dir or not self.is_main_process then return end
  local line = {step = step or self.step, seconds = core.time() - self.started}
  for key, value in pairs(values) do line[key] = value end
  core.append_file(self.project_dir .. "/metrics.jsonl", core.json_encode(line) .. "\n")
end

---Writes all that is needed to go on as if nothing had happened: weights, optimizer, schedules, loaders, random state.
---All processes call it.
---@param folder? string default: project_dir/step_N
---@return string folder
function Accelerator:save_state(folder)
  if not folder and not self.project_dir then util.raise("save_state: there is no folder, and no project_dir") end
  local others = {loaders = {}, schedules = {}}
  for i, loader in ipairs(self.loaders) do others.loaders[i] = loader:state_dict() end
  for i, sched in ipairs(self.schedules) do others.schedules[i] = sched:state_dict() end
  local target = folder or ("%s/step_%d"):format(self.project_dir, self.step)
  self.training:save(others, target)
  if self.total_limit and not folder and self.is_main_process then
    core.checkpoint_prune(self.project_dir, self.total_limit)
  end
  return target
end

---Goes on from what save_state wrote, on any number of processes, in any stage. All processes call it, after prepare.
---@param folder string a checkpoint, or "latest": the newest in project_dir
function Accelerator:load_state(folder)
  if folder == "latest" then
    if not self.project_dir then util.raise("load_state: 'latest' needs a project_dir") end
    folder = core.broadcast_string(self.is_main_process and core.checkpoint_latest(self.project_dir) or nil, 0)
  end
  local state = self.training:load(folder)
  for _, what in ipairs {"loaders", "schedules"} do
    if #state[what] ~= #self[what] then util.raise("%s: %d %s, not %d", folder, #state[what], what, #self[what]) end
    for i, item in ipairs(self[what]) do item:load_state_dict(state[what][i]) end
  end
end

-- The main process writes; the others bring their parts of what it reads.
local function write_model(self, model, write)
  if self.is_main_process then return write() end
  local tensors, order = model:state_dict()
  for _, name in ipairs(order) do core.touch(tensors[name]) end
end

---Writes the model as a Hugging Face folder, or, where it is none of the library's, as model.safetensors. All processes
---call it.
---@param model Module
---@param folder string
function Accelerator:save_model(model, folder)
  write_model(self, model, function()
    if model.save_pretrained then return model:save_pretrained(folder) end
    core.mkdirs(folder)
    local tensors, order = model:state_dict()
    core.safetensors_save(folder .. "/model.safetensors", tensors, order, {format = "pt"})
  end)
  core.barrier "save_model"
end

---Bytes of the device's memory by what they are for, of all processes: now, and at the peak of each.
---@return string lines
function Accelerator:memory_report() -- luacheck: ignore self
  local m = core.memory()
  local kinds = util.keys(m.kinds)
  local mine = {m.used, m.peak}
  for _, kind in ipairs(kinds) do
    mine[#mine + 1] = m.kinds[kind]
    mine[#mine + 1] = m.peak_kinds[kind]
  end
  local lines = {}
  for r, row in ipairs(core.gather_numbers(mine, "memory report")) do
    local parts = {}
    for k, kind in ipairs(kinds) do
      parts[k] = ("%s %.1f (%.1f)"):format(kind, row[2 * k + 1] / 2 ^ 20, row[2 * k + 2] / 2 ^ 20)
    end
    lines[r] = ("rank %d: %.1f MiB (at peak %.1f): %s"):format(r - 1, row[1] / 2 ^ 20, row[2] / 2 ^ 20,
      table.concat(parts, ", "))
  end
  return table.concat(lines, "\n")
end

---Forgets what was prepared and collects garbage.
function Accelerator:free_memory()
  self.training:close()
  self.loaders, self.schedules = {}, {}
  collectgarbage()
  collectgarbage()
end

return new
