-- output.lua - what a language model returns: loss and count at once, logits when first read.
local core = require "ztrain.core"
local util = require "ztrain.util"

---@class LMOutput
---@field loss Tensor? mean over `count` labels; where labels were given
---@field count integer? labels that are not -100
---@field logits Tensor (B, T, V), computed when first read; raises once the weights have changed
---@field private hidden Tensor (B, T, C)
---@field private weight Tensor (V, C)
---@field private version integer the weight's when `hidden` was computed

local M = {}

local meta = {
  __index = function(out, key)
    if key ~= "logits" then return nil end
    local weight = rawget(out, "weight")
    if weight:version() ~= rawget(out, "version") then
      util.raise("out.logits: the weights have changed since this output was computed; read it before the step")
    end
    local logits = core.linear(rawget(out, "hidden"), weight)
    rawset(out, "logits", logits)
    return logits
  end,
}

---@param hidden Tensor (B, T, C)
---@param weight Tensor (V, C)
---@return LMOutput
function M.new(hidden, weight)
  return setmetatable({hidden = hidden, weight = weight, version = weight:version()}, meta)
end

return M
