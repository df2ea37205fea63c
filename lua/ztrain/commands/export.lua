-- export.lua - `ztrain export CKPT OUT`: a Hugging Face folder from a checkpoint, of any number of ranks and any stage.
-- It is streamed: no more than a block of the weights is in memory, and no GPU is needed. What it needs stands in the
-- checkpoint's JSON, under `model` (docs/formats.md).
local config_file = require "ztrain.models.config"
local core = require "ztrain.core"
local util = require "ztrain.util"

local M = {}

M.usage = [[
usage: ztrain export CKPT OUT [--dtype float32|bfloat16|float16]

Writes the Hugging Face folder OUT (config.json, generation_config.json, model.safetensors) from a checkpoint, or from
the newest one in the folder CKPT. Weights are the masters as they are (float32) unless --dtype says otherwise.]]

local dtypes = {"float32", "bfloat16", "float16"}

local function check_dtype(dtype)
  for _, known in ipairs(dtypes) do
    if dtype == known then return dtype end
  end
  util.unknown("export", "dtype", dtype, dtypes)
end

-- The two folders, and the dtype.
local function read_arguments(argv)
  local folders, dtype, i = {}, nil, 1
  while i <= #argv do
    local word = argv[i]
    local value = word:match("^%-%-dtype=(.*)$")
    if word == "--dtype" then
      i = i + 1
      value = argv[i] or ""
    end
    if value then
      dtype = check_dtype(value)
    elseif word:match("^%-") then
      util.unknown("export", "option", word, {"--dtype", "--help"})
    else
      folders[#folders + 1] = word
    end
    i = i + 1
  end
  if #folders ~= 2 then util.raise("export wants a checkpoint and a folder to write; see ztrain export --help") end
  return folders[1], folders[2], dtype
end

-- What the checkpoint says of the model that was trained.
local function describe(ck, path)
  local model = core.json_decode(ck:json(), path).model
  if type(model) ~= "table" or type(model.config) ~= "table" or type(model.tensors) ~= "table" then
    util.raise("'%s' is not the checkpoint of one model that has a config: there is nothing to export", path)
  end
  return model
end

---@param checkpoint string a checkpoint, or a folder of some
---@param out string the folder to write
---@param dtype? dtype of all that is float; by default that of the masters
---@return string path of the checkpoint
---@return integer count of tensors
function M.export(checkpoint, out, dtype)
  local path = core.file_exists(checkpoint .. "/manifest.json") and checkpoint or core.checkpoint_latest(checkpoint)
  local index = out .. "/model.safetensors.index.json"
  if core.file_exists(index) then util.raise("'%s' is there: readers would take it for what this writes", index) end
  local ck <close> = core.checkpoint_open(path)
  local model, list = describe(ck, path), {}
  for i, t in ipairs(model.tensors) do
    local own = ck:info(t.name)
    list[i] = {name = t.name, as = t.as, dtype = dtype and util.is_float(own) and dtype or own}
  end
  core.mkdirs(out)
  ck:export(out .. "/model.safetensors", list)
  if list[1] then model.config.dtype = list[1].dtype end
  config_file.save(out, model.config, model.generation_config)
  return path, #list
end

---@param argv string[]
function M.main(argv)
  if argv[1] == "--help" or argv[1] == "-h" then
    print(M.usage)
    return
  end
  local checkpoint, out, dtype = read_arguments(argv)
  local path, count = M.export(checkpoint, out, dtype)
  print(("%s: %d tensors of %s"):format(out, count, path))
end

return M
