-- ztrain.models - models by their model_type, from Hugging Face folders and configs.
local config_file = require "ztrain.models.config"
local core = require "ztrain.core"
local nn = require "ztrain.nn"
local util = require "ztrain.util"

local M = {}

-- model_type -> {Model, defaults, architecture, rename}; a model's file says what these are.
local registry = {gpt2 = require "ztrain.models.gpt2"}

local known_options = {dtype = util.none, gradient_checkpointing = false, config = util.none}

local function new_model(who, source, opts, init)
  opts = util.options(who, opts, known_options)
  local given = {}
  for key, value in pairs(config_file.read(source)) do given[key] = value end
  for key, value in pairs(opts.config or {}) do given[key] = value end
  local kind = registry[given.model_type]
  if not kind then util.unknown(who .. ": model_type", given.model_type, util.keys(registry)) end
  local model = kind.Model(given, {init = init, gradient_checkpointing = opts.gradient_checkpointing})
  if opts.dtype then model:to(opts.dtype) end
  return model, kind
end

---A model with random weights.
---@param source string|table a config.json, a folder with one, or its table; model_type says which model
---@param opts? {dtype: dtype?, gradient_checkpointing: boolean?, config: table?} config: values that take the place of the source's
---@return Module
function M.from_config(source, opts)
  return (new_model("models.from_config", source, opts, true))
end

---A model with the weights of a Hugging Face folder: config.json, and model.safetensors or its index.
---@param folder string
---@param opts? {dtype: dtype?, gradient_checkpointing: boolean?, config: table?}
---@return Module in eval mode, as in transformers
function M.from_pretrained(folder, opts)
  local model, kind = new_model("models.from_pretrained", folder .. "/config.json", opts, false)
  local index = folder .. "/model.safetensors.index.json"
  local path = core.file_exists(index) and index or folder .. "/model.safetensors"
  core.safetensors_load_into(path, (model:state_dict()), {rename = kind.rename(model.config)})
  local generation = folder .. "/generation_config.json"
  if core.file_exists(generation) then model.generation_config = core.json_load(generation) end
  return model:eval()
end

---Writes a Hugging Face folder that transformers opens: config.json, generation_config.json, model.safetensors.
---@param folder string made where it does not exist
function nn.Module:save_pretrained(folder)
  local kind = self.config and registry[self.config.model_type]
  if not kind then util.raise("save_pretrained: %s is none of this library's models", self:path()) end
  core.mkdirs(folder)
  local tensors, order = self:state_dict()
  core.safetensors_save(folder .. "/model.safetensors", tensors, order, {format = "pt"})
  local config = {}
  for key, value in pairs(self.config) do config[key] = value end
  config.architectures, config.dtype = {kind.architecture}, tensors[order[1]]:dtype()
  core.write_file(folder .. "/config.json", config_file.encode(config, kind.defaults))
  local generation = self.generation_config or
    {bos_token_id = config.bos_token_id, eos_token_id = config.eos_token_id, pad_token_id = config.pad_token_id}
  core.write_file(folder .. "/generation_config.json", core.json_encode(generation, {indent = 2}) .. "\n")
end

return M
