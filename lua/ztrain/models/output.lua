-- output.lua - what a language model returns: loss and count at once, logits when first read.
local core = require "ztrain.core"
local util = require "ztrain.util"

---@class LMOutput
---@field loss Tensor? mean over `count` labels; where labels were given
---@field count integer? labels that are not -100
---@field logits Tensor (B, T, V), computed when first read; raises once the weights have changed
---@field private source {hidden: Tensor, weight: Tensor, version: integer} of the logits: (B, T, C), (V, C), and the
---weight's version when `hidden` was computed

local M = {}

local meta = {
  __index = function(out, key)
    if key ~= "logits" then return nil end
    local source = rawget(out, "source")
    if source.weight:version() ~= source.version then
      util.raise("out.logits: the weights have changed since this output was computed; read it before the step")
    end
    local logits = core.linear(source.hidden, source.weight)
    rawset(out, "logits", logits)
    return logits
  end,
}

---@param hidden Tensor (B, T, C), of the weight's dtype
---@param weight Tensor (V, C)
---@return LMOutput
function M.new(hidden, weight)
  return setmetatable({source = {hidden = hidden, weight = weight, version = weight:version()}}, meta)
end

return M
