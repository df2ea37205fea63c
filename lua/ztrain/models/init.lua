-- ztrain.models - models by their model_type, from Hugging Face folders and configs.
local config_file = require "ztrain.models.config"
local util = require "ztrain.util"

local M = {}

-- model_type -> the model's class, a PreTrainedModel.
local registry = {gpt2 = require "ztrain.models.gpt2"}

---@class ModelOptions
---@field dtype? dtype of the weights; default float32
---@field gradient_checkpointing? boolean blocks are computed again in backward instead of keeping their activations
---@field config? table values that take the place of the config's

local known_options = {
  dtype = util.optional.string, gradient_checkpointing = false, config = util.optional.table,
}

local function new_model(who, source, opts, init)
  opts = util.options(who, opts, known_options)
  local given = {}
  for key, value in pairs(config_file.read(source)) do given[key] = value end
  for key, value in pairs(opts.config or {}) do given[key] = value end
  local class = registry[given.model_type]
  if given.model_type == nil then util.raise("%s: the config has no model_type", who) end
  if not class then util.unknown(who, "model_type", given.model_type, util.keys(registry)) end
  local model = class(given, {init = init, gradient_checkpointing = opts.gradient_checkpointing})
  return opts.dtype and model:to(opts.dtype) or model
end

---A model with random weights.
---@param source string|table a config.json, a folder with one, or its table; model_type says which model
---@param opts? ModelOptions
---@return PreTrainedModel
function M.from_config(source, opts) return new_model("models.from_config", source, opts, true) end

---A model with the weights of a Hugging Face folder, in eval mode as in transformers.
---@param folder string
---@param opts? ModelOptions
---@return PreTrainedModel
function M.from_pretrained(folder, opts)
  if type(folder) ~= "string" then
    util.raise("models.from_pretrained: a folder is wanted, not %s", util.describe(folder))
  end
  local model = new_model("models.from_pretrained", folder .. "/config.json", opts, false)
  model:load_pretrained(folder)
  return model:eval()
end

return M
