-- optim.lua - optimizers over groups of parameters. The arithmetic and the state are in C; groups and their numbers are
-- plain tables here, so a schedule or a script may write opt.groups[i].lr at any time.
local core = require "ztrain.core"
local util = require "ztrain.util"

local M = {}

---@class OptimGroup
---@field params Tensor[]
---@field lr number
---@field betas? number[]
---@field eps? number
---@field weight_decay number
---@field momentum? number
---@field dampening? number
---@field nesterov? boolean

---@class Optimizer
---@field kind "adamw"|"adam"|"sgd"|"lion"
---@field groups OptimGroup[]
---@field defaults table<string, any> what groups get that say nothing else
---@field training Training? whose steps these are, once prepared
---@field private native Optim
local Optimizer = {}
Optimizer.__index = Optimizer

-- As in torch.optim; lion as its authors'.
local kinds = {
  adamw = {lr = 1e-3, betas = {0.9, 0.999}, eps = 1e-8, weight_decay = 0.01},
  adam = {lr = 1e-3, betas = {0.9, 0.999}, eps = 1e-8, weight_decay = 0},
  sgd = {lr = 1e-3, momentum = 0, dampening = 0, weight_decay = 0, nesterov = false},
  lion = {lr = 1e-4, betas = {0.9, 0.99}, weight_decay = 0},
}

local function check_betas(who, betas)
  if type(betas) ~= "table" or #betas ~= 2 then util.raise("%s: betas must be a pair {beta1, beta2}", who) end
  for _, beta in ipairs(betas) do
    if type(beta) ~= "number" or not (beta >= 0 and beta < 1) then
      util.raise("%s: beta %s is outside [0, 1)", who, beta)
    end
  end
end

local function check_group(who, group)
  for _, name in ipairs {"lr", "eps", "weight_decay", "momentum"} do
    if group[name] ~= nil then util.check_number(who, name, group[name], 0) end
  end
  if group.betas then check_betas(who, group.betas) end
  if group.nesterov and (group.momentum <= 0 or group.dampening ~= 0) then
    util.raise("%s: nesterov needs a momentum above 0 and no dampening", who)
  end
end

-- A list of tensors, or a list of groups.
local function as_groups(who, params)
  if type(params) ~= "table" or #params == 0 then util.raise("%s: there are no parameters", who) end
  if util.is_tensor(params[1]) then return {{params = params}} end
  return params
end

local function add_group(self, who, group)
  if type(group) ~= "table" or type(group.params) ~= "table" then
    util.raise("%s: group %d is not {params = {...}, ...}", who, #self.groups + 1)
  end
  local known = {params = util.none}
  for key, default in pairs(self.defaults) do known[key] = default end
  local new = util.options(who .. ": group", group, known)
  check_group(who, new)
  self.groups[#self.groups + 1] = new
  for i, p in ipairs(new.params) do
    if not util.is_tensor(p) then util.raise("%s: parameter %d of group %d is a %s", who, i, #self.groups, type(p)) end
    self.native:add(p, #self.groups)
  end
end

local function new_optimizer(kind, params, opts)
  local who = "optim." .. kind
  local defaults = util.options(who, opts, kinds[kind])
  check_group(who, defaults)
  local self = setmetatable({kind = kind, groups = {}, defaults = defaults}, Optimizer)
  self.native = core.optim(kind)
  for _, group in ipairs(as_groups(who, params)) do add_group(self, who, group) end
  return self
end

for kind in pairs(kinds) do
  M[kind] = function(params, opts) return new_optimizer(kind, params, opts) end
end

-- The numbers of each group, as C takes them.
---@private
function Optimizer:numbers()
  local numbers = {}
  for i, group in ipairs(self.groups) do
    local betas = group.betas or {}
    numbers[i] = {
      lr = group.lr, beta1 = betas[1], beta2 = betas[2], eps = group.eps, weight_decay = group.weight_decay,
      momentum = group.momentum, dampening = group.dampening, nesterov = group.nesterov,
    }
  end
  return numbers
end

---One update of every parameter that has a gradient; where it fails, of none. Prepared: acts where a window of
---accumulate() closes, and nowhere if the step is skipped; all ranks call it.
function Optimizer:step()
  if self.training then return self.training:step_optimizer(self) end
  self.native:step(self:numbers())
end

---Drops the gradients of all parameters.
function Optimizer:zero_grad()
  if self.training then return self.training:zero_grad() end
  self.native:zero_grad()
end

-- The place in C's list of each parameter: they were added in this order.
local function positions(self)
  local n, list = 0, {}
  for i, group in ipairs(self.groups) do
    list[i] = {}
    for j = 1, #group.params do
      n = n + 1
      list[i][j] = n
    end
  end
  return list, n
end

---Numbers of the groups, and steps and moments of each parameter, in the order in which they were given.
---@return {kind: string, groups: table[], state: {steps: integer, m: Tensor?, v: Tensor?}[]}
function Optimizer:state_dict()
  if self.training then util.raise("the state of a prepared optimizer is saved by acc:save_state") end
  local list, n = positions(self)
  local groups, state = {}, {}
  for i, group in ipairs(self.groups) do
    groups[i] = {}
    for key, value in pairs(group) do groups[i][key] = value end
    groups[i].params = list[i]
  end
  for index = 1, n do
    local steps, m, v = self.native:state(index)
    state[index] = {steps = steps, m = m, v = v}
  end
  return {kind = self.kind, groups = groups, state = state}
end

---@param dict table what state_dict gave
function Optimizer:load_state_dict(dict)
  if self.training then util.raise("the state of a prepared optimizer is loaded by acc:load_state") end
  if dict.kind ~= self.kind then util.raise("the state is that of optim.%s, not optim.%s", dict.kind, self.kind) end
  if #dict.groups ~= #self.groups then util.raise("the state has %d groups, not %d", #dict.groups, #self.groups) end
  for i, group in ipairs(self.groups) do
    if #dict.groups[i].params ~= #group.params then
      util.raise("group %d of the state has %d parameters, not %d", i, #dict.groups[i].params, #group.params)
    end
  end
  for i, group in ipairs(self.groups) do
    for key in pairs(self.defaults) do group[key] = dict.groups[i][key] end
  end
  for index, s in ipairs(dict.state) do self.native:set_state(index, s.steps, s.m, s.v) end
end

---Whether value is one of these optimizers.
---@param value any
---@return boolean
function M.is_optimizer(value) return getmetatable(value) == Optimizer end

-- The gradients that there are.
local function gradients(params)
  local grads = {}
  for _, p in ipairs(params) do
    if core.is_prepared(p) then util.raise("clip_grad_norm_: the parameters were prepared; use acc:clip_grad_norm_") end
    grads[#grads + 1] = p.grad
  end
  return grads
end

---Scales all gradients in place so that their norm is max_norm at most, as torch.nn.utils.clip_grad_norm_ does.
---@param params Tensor[]
---@param max_norm number
---@return number norm before
function M.clip_grad_norm_(params, max_norm)
  util.check_tensors("clip_grad_norm_", "params", params)
  util.check_number("clip_grad_norm_", "max_norm", max_norm, 0)
  local grads = gradients(params)
  if #grads == 0 then return 0.0 end
  local norm = core.global_norm(grads)
  local factor = math.min(1, max_norm / (norm + 1e-6))
  if factor ~= 1 then
    for _, grad in ipairs(grads) do grad:mul_(factor) end
  end
  return norm
end

return M
