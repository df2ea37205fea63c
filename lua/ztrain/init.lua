-- ztrain - trains large models from short scripts. This is all that a recipe requires: `local zt = require "ztrain"`.
-- Parts are loaded when first used.
local core = require "ztrain.core"
local util = require "ztrain.util"

---@class ztrain: ztrain.core
---@field nn ztrain.nn
---@field optim table adamw, adam, sgd, lion
---@field schedule table linear, cosine, ..., WarmupDecayLR, ..., get
---@field models table from_pretrained, from_config
---@field tokenizer table from_pretrained, train_bpe
---@field data table text, loader, collate, subset, unigram_loss
---@field accelerator fun(opts?: table): Accelerator
---@field progress fun(acc: Accelerator, opts: table): Progress
---@field args fun(declared: table, opts?: ArgsOptions): table
local M = {_VERSION = core._VERSION}

-- What of core is for scripts.
local public = {
  "tensor", "zeros", "ones", "full", "arange", "randn",
  "no_grad", "grad_enabled", "checkpoint", "scope", "seed", "time", "memory", "reset_peak_memory", "peak_rss",
  "add", "sub", "mul", "div", "pow", "neg", "exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "relu", "gelu",
  "gelu_tanh", "silu", "clamp", "eq", "ne", "lt", "le", "gt", "ge", "where", "masked_fill",
  "sum", "mean", "max", "min", "var", "norm", "argmax", "logsumexp", "topk",
  "matmul", "linear", "layer_norm", "residual_layer_norm", "softmax", "log_softmax", "dropout", "attention",
  "attention_qkv", "cross_entropy", "linear_cross_entropy", "mse", "conv1d", "embedding", "gather", "index_select",
  "scatter_add", "cat", "stack", "split", "reshape", "view", "expand", "transpose", "permute", "narrow", "contiguous",
  "copy", "sample",
}
for _, name in ipairs(public) do M[name] = core[name] end

M.safetensors = {}

---@param path string a .safetensors file, or the index of several
---@param names? string[] only these
---@return table<string, Tensor> tensors
---@return string[] order
---@return table<string, string>? metadata
function M.safetensors.load(path, names) return core.safetensors_load(path, names) end

---@param path string
---@param tensors table<string, Tensor>
---@param metadata? table<string, string>
function M.safetensors.save(path, tensors, metadata) core.safetensors_save(path, tensors, nil, metadata) end

M.json = {decode = core.json_decode, encode = core.json_encode, load = core.json_load, null = core.null}

---Writes a whole file at once: the old one stays until the new one is complete.
---@param path string
---@param value any
function M.json.save(path, value) core.write_file(path, core.json_encode(value, {indent = 2}) .. "\n") end

local parts = {
  nn = true, optim = true, schedule = true, models = true, tokenizer = true, data = true, accelerator = true,
  progress = true, args = true,
}

---Scales all gradients in place so that their norm is max_norm at most.
---@param params Tensor[]
---@param max_norm number
---@return number norm before
function M.clip_grad_norm_(params, max_norm) return M.optim.clip_grad_norm_(params, max_norm) end

return setmetatable(M, {
  __index = function(self, name)
    if parts[name] then
      local part = require("ztrain." .. name)
      rawset(self, name, part)
      return part
    end
    local names = util.keys(self)
    for part in pairs(parts) do
      if rawget(self, part) == nil then names[#names + 1] = part end
    end
    util.unknown("zt", "name", name, {table.unpack(util.nearest(tostring(name), names), 1, 8)})
  end,
})
