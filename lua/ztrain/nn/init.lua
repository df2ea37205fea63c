-- ztrain.nn - modules: the class they are made from, layers, attention, initial values.
local attention = require "ztrain.nn.attention"
local layers = require "ztrain.nn.layers"
local module = require "ztrain.nn.module"
local util = require "ztrain.util"

---@class ztrain.nn
local M = {
  class = module.class,
  is_module = module.is_module,
  kept_parameters = module.kept_parameters,
  Module = module.Module,
  init = require "ztrain.nn.initialize",
}

for _, part in ipairs {layers, attention} do
  for name, class in pairs(part) do M[name] = class end
end

---Marks a tensor as a parameter: assigned to a module's field it is trained with it.
---@param tensor Tensor
---@return Tensor tensor
function M.Parameter(tensor)
  util.check_tensor("nn.Parameter", "the argument", tensor)
  return tensor:requires_grad_()
end

return M
