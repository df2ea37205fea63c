-- attention.lua - attention and a transformer block for models of one's own.
local core = require "ztrain.core"
local layers = require "ztrain.nn.layers"
local module = require "ztrain.nn.module"
local util = require "ztrain.util"

local M = {}

---@class nn.AttentionOptions
---@field dropout? number of the attention weights, while training
---@field bias? boolean default true
---@field causal? boolean

---Several attention heads side by side over one packed projection.
---@class nn.MultiheadAttention: Module
---@field in_proj nn.Linear weight (3 embed_dim, embed_dim): queries, keys, values
---@field out_proj nn.Linear
---@overload fun(embed_dim: integer, num_heads: integer, opts?: nn.AttentionOptions): nn.MultiheadAttention
M.MultiheadAttention = module.class "MultiheadAttention"

function M.MultiheadAttention:init(embed_dim, num_heads, opts)
  util.check_number("nn.MultiheadAttention", "embed_dim", embed_dim, 1, nil, true)
  util.check_number("nn.MultiheadAttention", "num_heads", num_heads, 1, nil, true)
  if embed_dim % num_heads ~= 0 then
    util.raise("nn.MultiheadAttention: embed_dim %d is no multiple of num_heads %d", embed_dim, num_heads)
  end
  opts = util.options("nn.MultiheadAttention", opts, {dropout = 0, bias = true, causal = false})
  self.embed_dim, self.num_heads, self.dropout, self.causal = embed_dim, num_heads, opts.dropout, opts.causal
  self.in_proj = layers.Linear(embed_dim, 3 * embed_dim, {bias = opts.bias})
  self.out_proj = layers.Linear(embed_dim, embed_dim, {bias = opts.bias})
end

---@param x Tensor (B, T, embed_dim): attends to itself, or to `memory`
---@param memory? Tensor (B, S, embed_dim)
---@param mask? Tensor uint8 (B, S or T): 0 where there is nothing to attend to
---@return Tensor (B, T, embed_dim)
function M.MultiheadAttention:forward(x, memory, mask)
  local opts = {causal = self.causal, mask = mask, dropout = self.training and self.dropout or 0}
  if not memory then return self.out_proj(core.attention_qkv(self.in_proj(x), self.num_heads, opts)) end
  local q = self:project(x, 0, 1)
  local k, v = core.split(self:project(memory, 1, 2), self.embed_dim, -1)
  local y = core.attention(self:heads(q), self:heads(k), self:heads(v), opts)
  return self.out_proj(y:reshape(x:size(1), x:size(2), self.embed_dim))
end

-- `count` of the three packed projections, after `skip` of them.
---@private
function M.MultiheadAttention:project(x, skip, count)
  local start, n = skip * self.embed_dim + 1, count * self.embed_dim
  local weight, bias = self.in_proj.weight, self.in_proj.bias
  x = util.as_dtype(x, weight:dtype())
  return core.linear(x, weight:narrow(1, start, n), bias and bias:narrow(1, start, n))
end

-- (B, T, C) -> (B, T, heads, C / heads)
---@private
function M.MultiheadAttention:heads(t)
  return t:reshape(t:size(1), t:size(2), self.num_heads, self.embed_dim // self.num_heads)
end

---@class nn.BlockOptions
---@field ffn_dim? integer default 4 embed_dim
---@field act? act default gelu
---@field dropout? number
---@field causal? boolean
---@field eps? number

---A pre-norm block: x + attention(norm(x)), then x + mlp(norm(x)).
---@class nn.TransformerBlock: Module
---@overload fun(embed_dim: integer, num_heads: integer, opts?: nn.BlockOptions): nn.TransformerBlock
M.TransformerBlock = module.class "TransformerBlock"

function M.TransformerBlock:init(embed_dim, num_heads, opts)
  util.check_number("nn.TransformerBlock", "embed_dim", embed_dim, 1, nil, true)
  opts = util.options("nn.TransformerBlock", opts,
    {ffn_dim = util.optional.number, act = "gelu", dropout = 0, causal = false, eps = 1e-5})
  local ffn_dim = opts.ffn_dim or 4 * embed_dim
  self.ln_1 = layers.LayerNorm(embed_dim, {eps = opts.eps})
  self.attn = M.MultiheadAttention(embed_dim, num_heads, {dropout = opts.dropout, causal = opts.causal})
  self.ln_2 = layers.LayerNorm(embed_dim, {eps = opts.eps})
  self.mlp = layers.Sequential(layers.Linear(embed_dim, ffn_dim, {act = opts.act}), layers.Linear(ffn_dim, embed_dim))
  self.drop = layers.Dropout(opts.dropout)
end

---@param x Tensor (B, T, embed_dim)
---@param mask? Tensor uint8 (B, T)
---@return Tensor
function M.TransformerBlock:forward(x, mask)
  local y, sum = self.ln_2(self.drop(self.attn(self.ln_1(x), nil, mask)), x)
  return sum + util.as_dtype(self.drop(self.mlp(y)), sum:dtype())
end

return M
