-- initialize.lua - fills parameters in place: nn.init. Formulas as in torch.nn.init.
local util = require "ztrain.util"

local M = {}

---@param t Tensor @param mean? number @param std? number
---@return Tensor t
function M.normal_(t, mean, std) return t:normal_(mean or 0, std or 1) end

---@param t Tensor @param low? number @param high? number
---@return Tensor t
function M.uniform_(t, low, high) return t:uniform_(low or 0, high or 1) end

---@param t Tensor @param value number
---@return Tensor t
function M.constant_(t, value) return t:fill_(value) end

---@param t Tensor
---@return Tensor t
function M.zeros_(t) return t:zero_() end

---@param t Tensor
---@return Tensor t
function M.ones_(t) return t:fill_(1) end

-- Inputs and outputs of one unit of a weight (out, in, ...).
local function fans(who, t)
  if t:dim() < 2 then util.raise("nn.init.%s: a weight of 2 and more dimensions is needed, not of %d", who, t:dim()) end
  local field = 1
  for d = 3, t:dim() do field = field * t:size(d) end
  return t:size(2) * field, t:size(1) * field
end

---@param t Tensor @param gain? number
---@return Tensor t
function M.xavier_uniform_(t, gain)
  local fan_in, fan_out = fans("xavier_uniform_", t)
  local bound = (gain or 1) * math.sqrt(6 / (fan_in + fan_out))
  return t:uniform_(-bound, bound)
end

---@param t Tensor @param gain? number
---@return Tensor t
function M.xavier_normal_(t, gain)
  local fan_in, fan_out = fans("xavier_normal_", t)
  return t:normal_(0, (gain or 1) * math.sqrt(2 / (fan_in + fan_out)))
end

---@param t Tensor @param a? number slope of the leaky ReLU that follows; 0: ReLU
---@return Tensor t
function M.kaiming_uniform_(t, a)
  local bound = math.sqrt(6 / ((1 + (a or 0) ^ 2) * fans("kaiming_uniform_", t)))
  return t:uniform_(-bound, bound)
end

---@param t Tensor @param a? number slope of the leaky ReLU that follows; 0: ReLU
---@return Tensor t
function M.kaiming_normal_(t, a)
  return t:normal_(0, math.sqrt(2 / ((1 + (a or 0) ^ 2) * fans("kaiming_normal_", t))))
end

-- All of them take a tensor, then numbers.
for name, fill in pairs(M) do
  M[name] = function(t, ...)
    util.check_tensor("nn.init." .. name, "the first argument", t)
    for i = 1, select("#", ...) do
      local value = select(i, ...)
      if value ~= nil then util.check_number("nn.init." .. name, "argument " .. i + 1, value, -math.huge) end
    end
    return fill(t, ...)
  end
end

return M
