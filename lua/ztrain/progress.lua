-- progress.lua - shows how training goes: a live line on a terminal, else a plain line every logging_steps; both ways
-- the figures of each logging_steps go to acc:log.
local core = require "ztrain.core"
local util = require "ztrain.util"

---@class Progress
---@field private acc Accelerator
---@field private total_steps integer
---@field private logging_steps integer
---@field private live boolean
---@field private width integer columns
---@field private window {loss: number, tokens: integer, since: number} of this process, since the last log
local Progress = {}
Progress.__index = Progress

local function new_window() return {loss = 0, tokens = 0, since = core.time()} end

---@param acc Accelerator
---@param opts {total_steps: integer, logging_steps: integer?}
---@return Progress
local function new(acc, opts)
  opts = util.options("progress", opts, {total_steps = util.optional.number, logging_steps = 10})
  util.check_number("progress", "total_steps", opts.total_steps, 0, nil, true)
  util.check_number("progress", "logging_steps", opts.logging_steps, 1, nil, true)
  local live, width = core.is_terminal("stdout")
  live = live and acc.is_main_process
  return setmetatable({
    acc = acc, total_steps = opts.total_steps, logging_steps = opts.logging_steps, live = live, width = width or 80,
    window = new_window(), started = core.time(), first_step = acc.step, shown = -math.huge,
  }, Progress)
end

local function duration(seconds)
  local s = math.floor(seconds + 0.5)
  if s < 3600 then return ("%d:%02d"):format(s // 60, s % 60) end
  return ("%d:%02d:%02d"):format(s // 3600, s // 60 % 60, s % 60)
end

local function with_commas(n)
  local text, count = ("%.0f"):format(n), 1
  while count > 0 do text, count = text:gsub("^(%d+)(%d%d%d)", "%1,%2") end
  return text
end

-- Of all processes: the mean loss, and tokens a second.
local function summary(self, now)
  local w, loss, tokens = self.window, 0, 0
  for _, row in ipairs(core.gather_numbers({w.loss, w.tokens}, "progress")) do
    loss, tokens = loss + row[1], tokens + row[2]
  end
  return loss / math.max(1, tokens), tokens / math.max(1e-9, now - w.since)
end

local function line(self, epoch, loss, rate)
  local step = self.acc.step
  local done = step - self.first_step
  local left = (core.time() - self.started) / math.max(1, done) * (self.total_steps - step)
  return ("epoch %d  step %d/%d  loss %.4f  %s tokens/s  %.0f MiB  ETA %s"):format(epoch, step, self.total_steps, loss,
    with_commas(rate), core.memory().peak / 2 ^ 20, duration(math.max(0, left)))
end

local SHOW_EVERY = 0.1 -- seconds between changes of the live line

---After each micro-step; all processes call it.
---@param values {epoch: integer, loss: number, tokens: integer, lr: number?} loss: mean over `tokens` of this process
function Progress:update(values)
  local w, acc = self.window, self.acc
  local gained = values.tokens > 0 and values.loss * values.tokens or 0
  w.loss, w.tokens = w.loss + gained, w.tokens + values.tokens
  local now, step = core.time(), acc.step
  local due = acc.sync_gradients and (step % self.logging_steps == 0 or step == self.total_steps)
  if not due and not (self.live and now - self.shown > SHOW_EVERY) then return end
  local loss, rate = w.loss / math.max(1, w.tokens), acc.num_processes * w.tokens / math.max(1e-9, now - w.since)
  if due then loss, rate = summary(self, now) end
  if self.live then
    self.shown = now
    io.stdout:write("\r", line(self, values.epoch, loss, rate):sub(1, self.width - 1), "\27[K")
    io.stdout:flush()
    acc.live_line = true
  end
  if not due then return end
  if not self.live then acc:print(line(self, values.epoch, loss, rate)) end
  local peak = core.memory().peak
  acc:log {
    epoch = values.epoch, loss = loss, lr = values.lr, tokens_per_second = rate, peak_bytes = peak,
    grad_norm = acc.grad_norm, clip_coef = acc.clip_coef, loss_scale = acc.loss_scale,
  }
  self.window = new_window()
end

---acc:print, for what comes between epochs: the time since the last step does not count in tokens/s.
function Progress:print(...)
  self.acc:print(...)
  self.window.since = core.time()
end

return new
