-- util.lua - errors at the script's line, checks of options, dtypes. Used by every other part of the library.
local core = require "ztrain.core"

local M = {}

-- Where the library's own files lie: chunk names that start so, and name a loaded module, are not the script's.
local prefix = debug.getinfo(1, "S").source:gsub("util%.lua$", "")

---@param source string a chunk name
local function is_library(source)
  if source:sub(1, #prefix) ~= prefix then return false end
  local module = source:sub(#prefix + 1):gsub("%.lua$", ""):gsub("/?init$", ""):gsub("/", ".")
  return package.loaded[module == "" and "ztrain" or "ztrain." .. module] ~= nil
end

---Raises at the line of the script that called into the library, however deep the library is by now.
---@param format string as in string.format
function M.raise(format, ...)
  local message = select("#", ...) > 0 and format:format(...) or format
  local level = 2
  local info = debug.getinfo(level, "S")
  while info and (info.what == "C" or is_library(info.source)) do
    level = level + 1
    info = debug.getinfo(level, "S")
  end
  error(message, info and level or 0)
end

local LONGEST = 64 -- characters of a name that count

---The names, the nearest to `name` first.
---@param name string
---@param names string[]
---@return string[]
function M.nearest(name, names)
  name = name:sub(1, LONGEST)
  local sorted, distance = {table.unpack(names)}, {}
  for _, n in ipairs(names) do distance[n] = core.edit_distance(name:lower(), n:lower()) end
  table.sort(sorted, function(a, b)
    if distance[a] ~= distance[b] then return distance[a] < distance[b] end
    return a < b
  end)
  return sorted
end

---What a value is, in a few words: itself where it is short, else its type.
---@param value any
---@return string
function M.describe(value)
  local kind = type(value)
  if kind == "number" or kind == "boolean" or kind == "nil" then return tostring(value) end
  if kind == "string" then return ("'%s'"):format(value:sub(1, LONGEST)) end
  return "a " .. (M.is_tensor(value) and "tensor" or kind)
end

---Raises that `name` is not one of `names`: "optim.adamw: unknown option 'lt'; did you mean 'lr'? Valid: lr, eps, ...",
---the nearest first.
---@param who string? the function
---@param what string what is being named: "option"
---@param name any
---@param names string[]
function M.unknown(who, what, name, names)
  name = type(name) == "string" and name:sub(1, LONGEST) or M.describe(name)
  local sorted = M.nearest(name, names)
  local near = sorted[1] and core.edit_distance(name:lower(), sorted[1]:lower()) <= 1 + #name // 3
  M.raise("%sunknown %s '%s'%s Valid: %s", who and who .. ": " or "", what, name,
    near and ("; did you mean '%s'?"):format(sorted[1]) or ".", table.concat(sorted, ", "))
end

---The sorted keys of a table.
---@param t table<string, any>
---@return string[]
function M.keys(t)
  local list = {}
  for key in pairs(t) do list[#list + 1] = key end
  table.sort(list)
  return list
end

---In M.options: this option has no default, and any value is fine; or one of a type is.
M.none = {}
M.optional = {number = {}, string = {}, boolean = {}, table = {}, ["function"] = {}}

local type_of_optional = {}
for kind, marker in pairs(M.optional) do type_of_optional[marker] = kind end

---Checks an option table and fills in defaults. `known` names every option; a given value has to be of its default's
---type.
---@param who string the function, for messages
---@param given table?
---@param known table<string, any> M.none or one of M.optional where there is no default
---@return table options a new table
function M.options(who, given, known)
  if given ~= nil and type(given) ~= "table" then
    M.raise("%s: options must be a table, not a %s", who, type(given))
  end
  local options = {}
  for key, default in pairs(known) do
    if default ~= M.none and not type_of_optional[default] then options[key] = default end
  end
  for key, value in pairs(given or {}) do
    local default = known[key]
    if default == nil then M.unknown(who, "option", key, M.keys(known)) end
    local wanted = type_of_optional[default] or type(default)
    if default ~= M.none and type(value) ~= wanted then
      M.raise("%s: %s must be a %s, not %s", who, key, wanted, M.describe(value))
    end
    options[key] = value
  end
  return options
end

---Raises unless `value` is a number within [low, high]; an integer where `integer` is set.
---@param who string
---@param name string
---@param value any
---@param low number
---@param high? number
---@param integer? boolean
function M.check_number(who, name, value, low, high, integer)
  if type(value) ~= "number" then M.raise("%s: %s must be a number, not %s", who, name, M.describe(value)) end
  if integer and not math.tointeger(value) then M.raise("%s: %s must be an integer, not %s", who, name, value) end
  if value ~= value or value < low or (high and value > high) then
    M.raise("%s: %s = %s is outside [%s, %s]", who, name, value, low, high or "inf")
  end
end

---Raises unless `value` is a tensor.
---@param who string
---@param name string
---@param value any
function M.check_tensor(who, name, value)
  if not M.is_tensor(value) then M.raise("%s: %s must be a tensor, not %s", who, name, M.describe(value)) end
end

---Raises unless `value` is a list of tensors.
---@param who string
---@param name string
---@param value any
function M.check_tensors(who, name, value)
  if type(value) ~= "table" then M.raise("%s: %s must be a list of tensors, not %s", who, name, M.describe(value)) end
  for i, item in ipairs(value) do M.check_tensor(who, ("%s[%d]"):format(name, i), item) end
end

---Whether value is a ztrain tensor (of any Lua state's metatable named "ztrain.Tensor").
---@param value any
---@return boolean
function M.is_tensor(value)
  if type(value) ~= "userdata" then return false end
  local meta = getmetatable(value)
  return type(meta) == "table" and meta.__name == M.tensor_name
end

M.tensor_name = "Tensor"

local float_dtypes = {float32 = true, float64 = true, bfloat16 = true, float16 = true}

---@param dtype string
---@return boolean
function M.is_float(dtype) return float_dtypes[dtype] == true end

---Whether value is a float tensor of another dtype than this one.
---@param value any
---@param dtype dtype
---@return boolean
function M.is_other_float(value, dtype)
  return M.is_tensor(value) and value:dtype() ~= dtype and M.is_float(value:dtype())
end

---A float tensor in this dtype, gradients flow through; anything else as it is.
---@generic T
---@param value T
---@param dtype dtype
---@return T
function M.as_dtype(value, dtype)
  return M.is_other_float(value, dtype) and value:to(dtype) or value
end

return M
