-- layers.lua - the layers that models are made of. Weights start as torch.nn's do (Conv1D as transformers').
local core = require "ztrain.core"
local module = require "ztrain.nn.module"
local util = require "ztrain.util"

local M = {}

-- A parameter of zeros; a scope does not free it, even where the model is made inside one.
local function parameter(...) return core.parameter(...):keep() end

local function normal(t, std)
  if std > 0 then t:normal_(0, std) end
  return t
end

-- x in the dtype of a layer's weights: layers of several dtypes work together.
local function as_weight(x, weight) return util.as_dtype(x, weight:dtype()) end

local function check_size(who, name, value) util.check_number(who, name, value, 1, nil, true) end

---@class nn.LinearOptions
---@field bias? boolean default true
---@field act? act
---@field std? number a normal start with this deviation instead of torch's uniform one; 0: zeros
---@field weight? Tensor one that is shared with another module

---y = act(x weight^T + bias), x (..., in_features).
---@class nn.Linear: Module
---@field weight Tensor (out_features, in_features)
---@field bias Tensor? (out_features)
---@overload fun(in_features: integer, out_features: integer, opts?: nn.LinearOptions): nn.Linear
M.Linear = module.class "Linear"

function M.Linear:init(in_features, out_features, opts)
  check_size("nn.Linear", "in_features", in_features)
  check_size("nn.Linear", "out_features", out_features)
  opts = util.options("nn.Linear", opts, {
    bias = true, act = util.optional.string, std = util.optional.number, weight = util.none,
  })
  if opts.weight ~= nil then util.check_tensor("nn.Linear", "weight", opts.weight) end
  local bound = 1 / math.sqrt(in_features)
  local function start(t) return opts.std and normal(t, opts.std) or t:uniform_(-bound, bound) end
  self.weight = opts.weight or start(parameter(out_features, in_features))
  if opts.bias then self.bias = start(parameter(out_features)) end
  self.act = opts.act
end

function M.Linear:forward(x)
  return core.linear(as_weight(x, self.weight), self.weight, self.bias, {act = self.act})
end

---transformers' Conv1D: a linear layer whose weight lies the other way round.
---@class nn.Conv1D: Module
---@field weight Tensor (nx, nf)
---@field bias Tensor (nf)
---@overload fun(nf: integer, nx: integer, opts?: {act: act?, std: number?}): nn.Conv1D
M.Conv1D = module.class "Conv1D"

function M.Conv1D:init(nf, nx, opts)
  check_size("nn.Conv1D", "nf", nf)
  check_size("nn.Conv1D", "nx", nx)
  opts = util.options("nn.Conv1D", opts, {act = util.optional.string, std = 0.02})
  self.weight = normal(parameter(nx, nf), opts.std)
  self.bias = parameter(nf)
  self.act = opts.act
end

function M.Conv1D:forward(x)
  return core.linear(as_weight(x, self.weight), self.weight, self.bias, {act = self.act, in_out = true})
end

---Rows of `weight` by number: ids (...) -> (..., embedding_dim). Numbers count from 0.
---@class nn.Embedding: Module
---@field weight Tensor (num_embeddings, embedding_dim)
---@overload fun(num_embeddings: integer, embedding_dim: integer, opts?: {std: number?}): nn.Embedding
M.Embedding = module.class "Embedding"

function M.Embedding:init(num_embeddings, embedding_dim, opts)
  check_size("nn.Embedding", "num_embeddings", num_embeddings)
  check_size("nn.Embedding", "embedding_dim", embedding_dim)
  opts = util.options("nn.Embedding", opts, {std = 1})
  self.weight = normal(parameter(num_embeddings, embedding_dim), opts.std)
end

function M.Embedding:forward(ids) return core.embedding(self.weight, ids) end

---Over the last dimension. Called with a residual it takes the sum of both, and returns the normalised sum and the sum:
---the add that ends one sublayer and the norm that begins the next are one pass over memory. It computes in its
---weight's dtype; what it returns has the dtype of x, and the sum that of the residual.
---@class nn.LayerNorm: Module
---@field weight Tensor (size)
---@field bias Tensor (size)
---@overload fun(size: integer, opts?: {eps: number?}): nn.LayerNorm
M.LayerNorm = module.class "LayerNorm"

function M.LayerNorm:init(size, opts)
  check_size("nn.LayerNorm", "size", size)
  opts = util.options("nn.LayerNorm", opts, {eps = 1e-5})
  self.weight = parameter(size):fill_(1)
  self.bias = parameter(size)
  self.eps = opts.eps
end

-- The norm of h, in the dtype of x.
local function normalized(self, h, x)
  local y = core.layer_norm(as_weight(h, self.weight), self.weight, self.bias, self.eps)
  return util.as_dtype(y, x:dtype())
end

---@param x Tensor
---@param residual? Tensor
---@return Tensor normalised
---@return Tensor? sum
function M.LayerNorm:forward(x, residual)
  if not residual then return normalized(self, x, x) end
  local w, dtype = self.weight, self.weight:dtype()
  if not util.is_other_float(x, dtype) and not util.is_other_float(residual, dtype) then
    return core.residual_layer_norm(x, residual, w, self.bias, self.eps)
  end
  local sum = residual + util.as_dtype(x, residual:dtype())
  return normalized(self, sum, x), sum
end

---While training, zeroes elements with probability p and scales the rest by 1 / (1 - p).
---@class nn.Dropout: Module
---@field p number
---@overload fun(p?: number): nn.Dropout
M.Dropout = module.class "Dropout"

function M.Dropout:init(p)
  p = p or 0.5
  util.check_number("nn.Dropout", "p", p, 0, 1)
  self.p = p
end

function M.Dropout:forward(x)
  if not self.training or self.p == 0 then return x end
  return core.dropout(x, self.p)
end

-- Modules given one by one or as one list.
local function listed(...)
  local first = ...
  if type(first) == "table" and not module.is_module(first) then return first end
  return {...}
end

local function check_module(who, position, value)
  if not module.is_module(value) then util.raise("%s: %d is a %s, not a module", who, position, type(value)) end
end

---Modules one after the other, each called with what the one before returned first.
---@class nn.Sequential: Module
---@field [integer] Module from 1; its name counts from 0
---@overload fun(...: Module|Module[]): nn.Sequential
M.Sequential = module.class "Sequential"

function M.Sequential:init(...)
  for i, item in ipairs(listed(...)) do
    check_module("nn.Sequential", i, item)
    self[i] = item
  end
end

function M.Sequential:forward(x)
  for i = 1, #self do x = self[i](x) end
  return x
end

---A list of modules that their owner calls; `#list`, `list[i]`, `ipairs(list)`.
---@class nn.ModuleList: Module
---@field [integer] Module from 1; its name counts from 0
---@overload fun(...: Module|Module[]): nn.ModuleList
M.ModuleList = module.class "ModuleList"

function M.ModuleList:init(...)
  for i, item in ipairs(listed(...)) do self:append(item, i) end
end

---@param item Module
---@return self
function M.ModuleList:append(item)
  check_module("nn.ModuleList", #self + 1, item)
  self[#self + 1] = item
  return self
end

return M
