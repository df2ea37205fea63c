-- export.lua - `ztrain export CKPT OUT`: a Hugging Face folder from a checkpoint, of any number of ranks and any stage.
-- It is streamed: no more than a block of the weights is in memory, and no GPU is needed.
local config_file = require "ztrain.models.config"
local core = require "ztrain.core"
local util = require "ztrain.util"

local M = {}

M.usage = [[
usage: ztrain export CKPT OUT [--dtype float32|bfloat16|float16]

Writes the Hugging Face folder OUT (config.json, model.safetensors) from a checkpoint, or from the newest one in the
folder CKPT. Weights are the float32 masters unless --dtype says otherwise.]]

local dtypes = {"float32", "bfloat16", "float16"}

local function check_dtype(dtype)
  for _, known in ipairs(dtypes) do
    if dtype == known then return dtype end
  end
  util.unknown("export", "dtype", dtype or "", dtypes)
end

-- The two folders, and the dtype.
local function read_arguments(argv)
  local folders, dtype, i = {}, "float32", 1
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

local float_dtypes = {float32 = true, float64 = true, bfloat16 = true, float16 = true}

---@param checkpoint string
---@param out string
---@param dtype dtype
function M.export(checkpoint, out, dtype)
  local path = core.file_exists(checkpoint .. "/manifest.json") and checkpoint or core.checkpoint_latest(checkpoint)
  local ck = core.checkpoint_open(path)
  local model = core.json_decode(ck:json()).model
  if not model then util.raise("'%s' is not the checkpoint of a model that has a config", path) end
  core.mkdirs(out)
  local list = {}
  for i, t in ipairs(model.tensors) do
    list[i] = {name = t.name, as = t.as, dtype = float_dtypes[t.dtype] and dtype or t.dtype}
  end
  ck:export(out .. "/model.safetensors", list)
  ck:close()
  model.config.dtype = dtype
  config_file.save(out, model.config, model.generation_config)
end

---@param argv string[]
function M.main(argv)
  if argv[1] == "--help" or argv[1] == "-h" then
    print(M.usage)
    return
  end
  local checkpoint, out, dtype = read_arguments(argv)
  M.export(checkpoint, out, dtype)
end

return M
