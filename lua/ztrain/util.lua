-- util.lua - errors at the script's line, and checks of option tables. Used by every other part of the library.
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

---Number of characters to insert, delete, replace or swap with a neighbour to make b of a.
---@param a string
---@param b string
---@return integer
function M.distance(a, b)
  local before, row = {}, {}
  for j = 0, #b do row[j] = j end
  for i = 1, #a do
    local new = {[0] = i}
    for j = 1, #b do
      local same = a:byte(i) == b:byte(j)
      new[j] = math.min(row[j] + 1, new[j - 1] + 1, row[j - 1] + (same and 0 or 1))
      if i > 1 and j > 1 and a:byte(i) == b:byte(j - 1) and a:byte(i - 1) == b:byte(j) then
        new[j] = math.min(new[j], before[j - 2] + 1)
      end
    end
    before, row = row, new
  end
  return row[#b]
end

---The names, the nearest to `name` first.
---@param name string
---@param names string[]
---@return string[]
function M.nearest(name, names)
  local sorted, distance = {table.unpack(names)}, {}
  for _, n in ipairs(names) do distance[n] = M.distance(name:lower(), n:lower()) end
  table.sort(sorted, function(a, b)
    if distance[a] ~= distance[b] then return distance[a] < distance[b] end
    return a < b
  end)
  return sorted
end

---Raises that `name` is not one of `names`: "optim.adamw: unknown option 'lt'; did you mean 'lr'? Valid: lr, eps, ...",
---the nearest first.
---@param who string? the function
---@param what string what is being named: "option"
---@param name any
---@param names string[]
function M.unknown(who, what, name, names)
  name = tostring(name)
  local sorted = M.nearest(name, names)
  local near = sorted[1] and M.distance(name:lower(), sorted[1]:lower()) <= 1 + #name // 3
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

---Checks an option table and fills in defaults. `known` names every option; a value of M.none stands for no default.
---@param who string the function, for messages
---@param given table?
---@param known table<string, any>
---@return table options a new table
function M.options(who, given, known)
  if given ~= nil and type(given) ~= "table" then
    M.raise("%s: options must be a table, not a %s", who, type(given))
  end
  local options = {}
  for key, default in pairs(known) do
    if default ~= M.none then options[key] = default end
  end
  for key, value in pairs(given or {}) do
    if known[key] == nil then M.unknown(who, "option", key, M.keys(known)) end
    options[key] = value
  end
  return options
end

---In M.options: this option has no default.
M.none = {}

---Raises unless `value` is a number within [low, high]; an integer where `integer` is set.
---@param who string
---@param name string
---@param value any
---@param low number
---@param high? number
---@param integer? boolean
function M.check_number(who, name, value, low, high, integer)
  if type(value) ~= "number" then M.raise("%s: %s must be a number, not a %s", who, name, type(value)) end
  if integer and not math.tointeger(value) then M.raise("%s: %s must be an integer, not %s", who, name, value) end
  if value ~= value or value < low or (high and value > high) then
    M.raise("%s: %s = %s is outside [%s, %s]", who, name, value, low, high or "inf")
  end
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

return M
