-- config.lua - reads and writes config.json as transformers does: defaults, other names of keys, null.
local core = require "ztrain.core"
local util = require "ztrain.util"

local M = {}

---A file that holds one JSON object.
---@param path string
---@return table
function M.load(path)
  local object = core.json_load(path)
  if type(object) ~= "table" or #object > 0 then util.raise("%s: is not a JSON object", path) end
  return object
end

---The table of a config.json, of a folder that has one, or the given table itself.
---@param source string|table
---@return table
function M.read(source)
  if type(source) == "table" then return source end
  if type(source) ~= "string" then util.raise("a config is a path or a table, not %s", util.describe(source)) end
  if not source:match("%.json$") then source = source .. "/config.json" end
  return M.load(source)
end

-- A key that the model does not know is kept, as configs carry many that only others read; but not one that looks like
-- a slip of the pen.
local function check_key(key, defaults)
  if type(key) ~= "string" then util.raise("config has the key %s, which is no name", util.describe(key)) end
  local nearest = util.nearest(key, util.keys(defaults))[1]
  if #key <= #nearest + 2 and core.edit_distance(key, nearest) <= 2 then
    util.raise("config has '%s'; '%s' is what the model knows", key, nearest)
  end
end

-- A value is of its default's type; the ids of tokens may also be null, or lists.
local function check_value(key, value, default)
  if default == nil or default == util.none or key:match("_token_id$") or type(value) == type(default) then return end
  util.raise("config: '%s' must be a %s, not %s", key, type(default),
    value == core.null and "null" or util.describe(value))
end

---A model's config: what `given` says, else `defaults`. null in `given` means: no value, not the default's.
---@param given table
---@param defaults table<string, any> util.none where a key has no default
---@param other_names? table<string, string> other name -> the model's own
---@return table config
function M.complete(given, defaults, other_names)
  local config = {}
  for key, value in pairs(defaults) do
    if value ~= util.none then config[key] = value end
  end
  for key, value in pairs(given) do
    key = other_names and other_names[key] or key
    if defaults[key] == nil then check_key(key, defaults) end
    check_value(key, value, defaults[key])
    if value == core.null then value = nil end
    config[key] = value
  end
  return config
end

---What config.json holds: keys of `defaults` without a value are null.
---@param config table
---@param defaults table<string, any>
---@return table
function M.with_nulls(config, defaults)
  local out = {}
  for key in pairs(defaults) do out[key] = core.null end
  for key, value in pairs(config) do out[key] = value end
  return out
end

---Writes config.json, and generation_config.json where there is one.
---@param folder string
---@param config table
---@param generation_config? table
function M.save(folder, config, generation_config)
  core.write_file(folder .. "/config.json", core.json_encode(config, {indent = 2, empty_array = false}) .. "\n")
  if not generation_config then return end
  core.write_file(folder .. "/generation_config.json", core.json_encode(generation_config, {indent = 2}) .. "\n")
end

return M
