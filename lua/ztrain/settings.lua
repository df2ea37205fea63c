-- settings.lua - what the command line and the script may both say about training, its checks and defaults.
local core = require "ztrain.core"
local util = require "ztrain.util"

local M = {}

---@class Settings
---@field zero_stage integer 0 to 3: shards nothing; optimizer state; and gradients; and parameters
---@field mixed_precision "no"|"fp16"|"bf16"
---@field gradient_accumulation_steps integer
---@field gradient_clipping number 0: none
---@field accumulate "sharded"|"local"
---@field page_size integer? bytes
---@field resident_memory integer? bytes of gathered pages at once; 0: no limit
---@field overlap boolean
---@field hash boolean prints a checksum at the end

local defaults = {
  zero_stage = 0, mixed_precision = "no", gradient_accumulation_steps = 1, gradient_clipping = 0,
  accumulate = "sharded", overlap = true, hash = false,
}

-- What a script may say of them: options of zt.accelerator.
M.known = {
  zero_stage = util.optional.number, mixed_precision = util.optional.string,
  gradient_accumulation_steps = util.optional.number, gradient_clipping = util.optional.number,
  accumulate = util.optional.string, page_size = util.optional.number, resident_memory = util.optional.number,
  overlap = util.optional.boolean, hash = util.optional.boolean,
}

local choices = {mixed_precision = {"no", "fp16", "bf16"}, accumulate = {"sharded", "local"}}

local function check(settings)
  local who = "accelerator"
  util.check_number(who, "zero_stage", settings.zero_stage, 0, 3, true)
  util.check_number(who, "gradient_accumulation_steps", settings.gradient_accumulation_steps, 1, nil, true)
  util.check_number(who, "gradient_clipping", settings.gradient_clipping, 0)
  for _, name in ipairs {"page_size", "resident_memory"} do
    if settings[name] then util.check_number(who, name, settings[name], 0, nil, true) end
  end
  for name, list in pairs(choices) do
    local fits = false
    for _, choice in ipairs(list) do fits = fits or choice == settings[name] end
    if not fits then util.unknown(who, name, settings[name], list) end
  end
end

---The settings: what the command line says, what the script says, the defaults. Raises where the two differ.
---@param script table<string, any> the script's
---@return Settings
function M.resolve(script)
  local line, settings = core.settings(), {}
  for name in pairs(M.known) do
    local a, b = line[name], script[name]
    if a ~= nil and b ~= nil and a ~= b then
      util.raise("%s is %s on the command line and %s in the script", name, a, b)
    end
    settings[name] = a
    if settings[name] == nil then settings[name] = b end
    if settings[name] == nil then settings[name] = defaults[name] end
  end
  check(settings)
  return settings
end

return M
