-- accelerator.lua - what surrounds a training loop: steps, clipping, numbers that are not finite, a stop asked for by a
-- signal, logs, the final model. One process; methods are Accelerate's, so that a recipe written for it runs on many.
local core = require "ztrain.core"
local data = require "ztrain.data"
local nn = require "ztrain.nn"
local optim = require "ztrain.optim"
local ranks = require "ztrain.ranks"
local util = require "ztrain.util"

---@class Accelerator
---@field project_dir string? where metrics.jsonl is written
---@field is_main_process boolean
---@field num_processes integer
---@field process_index integer from 0
---@field device string
---@field step integer optimizer steps begun
---@field live_line boolean whether the terminal's last line is one that progress goes on changing
---@field private loader Loader? the first one prepared: its samples key dropout
---@field private optimizers Optimizer[]
---@field private names table<Tensor, string>
---@field private started number
local Accelerator = {}
Accelerator.__index = Accelerator

---@param opts? {project_dir: string?}
---@return Accelerator
local function new(opts)
  opts = util.options("accelerator", opts, {project_dir = util.optional.string})
  if opts.project_dir then -- what cannot be written is known before hours of work
    core.mkdirs(opts.project_dir)
    core.append_file(opts.project_dir .. "/metrics.jsonl", "")
  end
  return setmetatable({
    project_dir = opts.project_dir, device = "cpu", is_main_process = core.rank() == 0,
    num_processes = core.world_size(), process_index = core.rank(), step = 0, live_line = false, optimizers = {},
    names = {}, started = core.time(),
  }, Accelerator)
end

---Takes models, optimizers, loaders and schedules in any order, and gives them back, ready for acc's other methods.
---@param ... any
---@return any ...
function Accelerator:prepare(...)
  for i = 1, select("#", ...) do
    local item = select(i, ...)
    if nn.is_module(item) then
      for name, parameter in item:named_parameters() do self.names[parameter] = name end
    elseif optim.is_optimizer(item) then
      self.optimizers[#self.optimizers + 1] = item
    elseif data.is_loader(item) then
      item:shard(self.process_index, self.num_processes)
      self.loader = self.loader or item
    end
  end
  return ...
end

---Optimizer steps that one epoch of a loader makes, prepared or not.
---@param loader Loader
---@return integer
function Accelerator:num_steps(loader) return loader:num_batches(self.num_processes) end

local signal_names = {[2] = "SIGINT", [15] = "SIGTERM"}

-- A stop that was asked for while a step ran takes effect at its end; outside of steps it does so at once.
local function stop_if_asked(self)
  local signal = core.stop_signal()
  if not signal then
    core.stop_signal(false)
    return
  end
  util.raise("stopped by %s after step %d", signal_names[signal] or signal, self.step)
end

-- What a failed step's message follows is a line of its own.
local function end_live_line(self)
  if self.live_line then print() end
  self.live_line = false
end

---Runs fn, one optimizer step, in a scope: what it made and does not return is freed. A signal that asks to stop waits
---for its end.
---@param fn fun(...): any
---@param ... any for fn
---@return any ... what fn returns
function Accelerator:accumulate(fn, ...)
  local on_error <close> = setmetatable({}, { -- luacheck: ignore
    __close = function(_, message)
      if message then end_live_line(self) end
    end,
  })
  core.stop_signal(true)
  self.step = self.step + 1
  core.random_state {step = self.step, call = 0, first_sample = self.loader and self.loader.first_sample or 0}
  local results = table.pack(core.scope("step", fn, ...))
  stop_if_asked(self)
  return table.unpack(results, 1, results.n)
end

---Gradients of a loss, given as a model's output or as a tensor. A loss that is not finite raises.
---@param what {loss: Tensor, count: integer?}|Tensor
---@param count? integer what the loss is the mean over; an output says it itself. 0: there is nothing to learn from
function Accelerator:backward(what, count)
  local loss = what
  if not util.is_tensor(what) then loss, count = what.loss, count or what.count end
  if not util.is_tensor(loss) then util.raise("backward: there is no loss; did the batch have labels?") end
  if count == 0 then return end
  local value = loss:item()
  if value ~= value or value == math.huge or value == -math.huge then
    util.raise("the loss is %s at step %d", value, self.step)
  end
  loss:backward()
end

---Sets this step's clipping: the optimizers scale gradients so that their norm is max_norm at most.
---@param params Tensor[]
---@param max_norm number
---@return number norm before
function Accelerator:clip_grad_norm_(params, max_norm)
  local norm, factor, bad, element = optim.gradient_norm(params, max_norm)
  if bad then
    util.raise("the gradient of %s is not finite (element %d) at step %d", self.names[bad] or "a parameter", element,
      self.step)
  end
  if #self.optimizers == 0 then util.raise("clip_grad_norm_: prepare() was given no optimizer") end
  for _, opt in ipairs(self.optimizers) do opt.grad_scale = factor end
  return norm
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

---Writes the model as a Hugging Face folder, or, where it is none of the library's, as model.safetensors.
---@param model Module
---@param folder string
function Accelerator:save_model(model, folder)
  if not self.is_main_process then return end
  if model.save_pretrained then return model:save_pretrained(folder) end
  core.mkdirs(folder)
  local tensors, order = model:state_dict()
  core.safetensors_save(folder .. "/model.safetensors", tensors, order, {format = "pt"})
end

---Forgets what was prepared and collects garbage.
function Accelerator:free_memory()
  self.loader, self.optimizers, self.names = nil, {}, {}
  collectgarbage()
  collectgarbage()
end

return new
