-- ranks.lua - what ranks do together with values: tensors, numbers, and tables of them (and of tables).
local core = require "ztrain.core"
local util = require "ztrain.util"

local M = {}

-- Integers first, then names: the same order on every rank.
local function sorted_keys(t)
  local keys = {}
  for key in pairs(t) do keys[#keys + 1] = key end
  table.sort(keys, function(a, b)
    if type(a) == type(b) then return a < b end
    return type(a) == "number"
  end)
  return keys
end

-- The value with each tensor replaced by on_tensor of it, each number by on_number.
local function map(who, value, on_tensor, on_number)
  if util.is_tensor(value) then return on_tensor(value) end
  if type(value) == "number" then return on_number(value) end
  if type(value) ~= "table" then
    util.raise("%s: tensors, numbers and tables of them are expected, not %s", who, util.describe(value))
  end
  local mapped = {}
  for _, key in ipairs(sorted_keys(value)) do mapped[key] = map(who, value[key], on_tensor, on_number) end
  return mapped
end

local function column(rows)
  local list, all_integers = {}, true
  for r, row in ipairs(rows) do
    list[r], all_integers = row[1], all_integers and math.type(row[1]) == "integer"
  end
  return list, all_integers and "int64" or "float64"
end

---All ranks' rows of each tensor, in rank order. A scalar, or a number, counts as one row.
---@param value any
---@return any
function M.gather(value)
  return map("gather", value, function(tensor) return core.all_gather_tensor(tensor, "gather") end, function(number)
    local list, dtype = column(core.gather_numbers({number}, "gather"))
    return core.tensor(list, {dtype = dtype})
  end)
end

---The sum or mean over ranks of each tensor and number.
---@param value any
---@param reduction "sum"|"mean"
---@return any
function M.reduce(value, reduction)
  if reduction ~= "sum" and reduction ~= "mean" then
    util.unknown("reduce", "reduction", reduction, {"sum", "mean"})
  end
  return map("reduce", value, function(tensor) return core.all_reduce_tensor(tensor, reduction, "reduce") end,
    function(number)
      local list, sum = column(core.gather_numbers({number}, "reduce")), 0
      for _, x in ipairs(list) do sum = sum + x end
      return reduction == "mean" and sum / #list or sum
    end)
end

return M
