-- pretrained.lua - PreTrainedModel: what all models of the library share, their config and their files. A model's class
-- says `config_defaults`, `architecture` (transformers' class), and rename(name), its name for a tensor of a file.
local config_file = require "ztrain.models.config"
local core = require "ztrain.core"
local nn = require "ztrain.nn"

---@class PreTrainedModel: Module
---@field config table
---@field generation_config table? defaults of generate(), from generation_config.json
---@field config_defaults table<string, any>
---@field architecture string
local PreTrainedModel = nn.class "PreTrainedModel"

---The model's name for a tensor of a file; nil: the file's tensor is not wanted.
---@param name string
---@return string?
function PreTrainedModel:rename(name) return name end -- luacheck: ignore self

---Fills the weights from a folder's model.safetensors, or the files of its index; missing and unexpected tensors raise.
---@param folder string
function PreTrainedModel:load_pretrained(folder)
  local index = folder .. "/model.safetensors.index.json"
  local path = core.file_exists(index) and index or folder .. "/model.safetensors"
  core.safetensors_load_into(path, (self:state_dict()), {rename = function(name) return self:rename(name) end})
  local generation = folder .. "/generation_config.json"
  if core.file_exists(generation) then self.generation_config = config_file.load(generation) end
end

---What the files config.json and generation_config.json hold.
---@param dtype dtype of the weights beside them
---@return table config
---@return table generation_config
function PreTrainedModel:export_config(dtype)
  local config = {}
  for key, value in pairs(self.config) do config[key] = value end
  config.architectures, config.dtype, config.torch_dtype = {self.architecture}, dtype, nil
  local generation = self.generation_config or
    {bos_token_id = config.bos_token_id, eos_token_id = config.eos_token_id, pad_token_id = config.pad_token_id}
  return config_file.with_nulls(config, self.config_defaults), generation
end

---Writes a Hugging Face folder that transformers opens: config.json, generation_config.json, model.safetensors.
---@param folder string made where it does not exist
function PreTrainedModel:save_pretrained(folder)
  core.mkdirs(folder)
  local tensors, order = self:state_dict()
  core.safetensors_save(folder .. "/model.safetensors", tensors, order, {format = "pt"})
  config_file.save(folder, self:export_config(tensors[order[1]]:dtype()))
end

return PreTrainedModel
