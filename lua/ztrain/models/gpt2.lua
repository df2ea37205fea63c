-- gpt2.lua - GPT-2 with transformers' config, parameter names and arithmetic (GPT2LMHeadModel).
local config_file = require "ztrain.models.config"
local core = require "ztrain.core"
local generation = require "ztrain.models.generation"
local nn = require "ztrain.nn"
local output = require "ztrain.models.output"
local PreTrainedModel = require "ztrain.models.pretrained"
local util = require "ztrain.util"

local defaults = {
  vocab_size = 50257, n_positions = 1024, n_embd = 768, n_layer = 12, n_head = 12, n_inner = util.none,
  activation_function = "gelu_new", resid_pdrop = 0.1, embd_pdrop = 0.1, attn_pdrop = 0.1, layer_norm_epsilon = 1e-5,
  initializer_range = 0.02, scale_attn_weights = true, scale_attn_by_inverse_layer_idx = false,
  reorder_and_upcast_attn = false, add_cross_attention = false, tie_word_embeddings = true, use_cache = true,
  bos_token_id = 50256, eos_token_id = 50256, pad_token_id = util.none,
}

local other_names = {
  hidden_size = "n_embd", max_position_embeddings = "n_positions", num_attention_heads = "n_head",
  num_hidden_layers = "n_layer",
}

local activations = {
  gelu_new = "gelu_tanh", gelu_pytorch_tanh = "gelu_tanh", gelu = "gelu", relu = "relu", silu = "silu", swish = "silu",
  tanh = "tanh",
}

local MAX_LAYERS = 10000 -- a config that says more is wrong, and would fill the memory with empty modules

local function check(config)
  if not activations[config.activation_function] then
    util.unknown("gpt2", "activation_function", config.activation_function, util.keys(activations))
  end
  for _, key in ipairs {"vocab_size", "n_positions", "n_embd", "n_layer", "n_head"} do
    util.check_number("gpt2", key, config[key], 1, key == "n_layer" and MAX_LAYERS or nil, true)
  end
  if config.n_inner then util.check_number("gpt2", "n_inner", config.n_inner, 1, nil, true) end
  for _, key in ipairs {"resid_pdrop", "embd_pdrop", "attn_pdrop"} do
    util.check_number("gpt2", key, config[key], 0, 1)
  end
  for _, key in ipairs {"layer_norm_epsilon", "initializer_range"} do
    util.check_number("gpt2", key, config[key], 0)
  end
  if config.n_embd % config.n_head ~= 0 then
    util.raise("gpt2: n_embd %d is no multiple of n_head %d", config.n_embd, config.n_head)
  end
  if config.add_cross_attention then util.raise("gpt2: add_cross_attention is not supported") end
end

-- The standard deviation of a sublayer's last projection: the residual stream adds up 2 n_layer of them.
local function output_std(config) return config.initializer_range / math.sqrt(2 * config.n_layer) end

------------------------------------------------------------------------------ a block

local Attention = nn.class "GPT2Attention"

function Attention:init(config, layer)
  local d = config.n_embd
  self.c_attn = nn.Conv1D(3 * d, d, {std = config.initializer_range})
  self.c_proj = nn.Conv1D(d, d, {std = output_std(config)})
  self.resid_dropout = nn.Dropout(config.resid_pdrop)
  self.n_head, self.attn_pdrop = config.n_head, config.attn_pdrop
  self.scale = config.scale_attn_weights and 1 / math.sqrt(d // config.n_head) or 1.0
  if config.scale_attn_by_inverse_layer_idx then self.scale = self.scale / layer end
end

-- Attention of the newest tokens to all that the cache holds, these included.
function Attention:attend_cached(qkv, mask, cache)
  local B, T, d = qkv:size(1), qkv:size(2), qkv:size(3) // 3
  local packed = qkv:reshape(B, T, 3 * self.n_head, d // self.n_head)
  local q, k, v = packed:split(self.n_head, 3)
  k, v = cache:append(k, v)
  return core.attention(q, k, v, {causal = true, scale = self.scale, mask = mask}):reshape(B, T, d)
end

function Attention:forward(x, mask, cache)
  local qkv = self.c_attn(x)
  local y
  if cache then
    y = self:attend_cached(qkv, mask, cache)
  else
    local dropout = self.training and self.attn_pdrop or 0
    y = core.attention_qkv(qkv, self.n_head, {causal = true, scale = self.scale, mask = mask, dropout = dropout})
  end
  return self.resid_dropout(self.c_proj(y))
end

local MLP = nn.class "GPT2MLP"

function MLP:init(config)
  local d, inner = config.n_embd, config.n_inner or 4 * config.n_embd
  self.c_fc = nn.Conv1D(inner, d, {std = config.initializer_range, act = activations[config.activation_function]})
  self.c_proj = nn.Conv1D(d, inner, {std = output_std(config)})
  self.dropout = nn.Dropout(config.resid_pdrop)
end

function MLP:forward(x) return self.dropout(self.c_proj(self.c_fc(x))) end

local Block = nn.class "GPT2Block"

function Block:init(config, layer)
  self.ln_1 = nn.LayerNorm(config.n_embd, {eps = config.layer_norm_epsilon})
  self.attn = Attention(config, layer)
  self.ln_2 = nn.LayerNorm(config.n_embd, {eps = config.layer_norm_epsilon})
  self.mlp = MLP(config)
end

-- A norm adds what the sublayer before it made to the residual stream, so a block passes on both apart: `update`, not
-- yet added, and `stream` (nil before the first block).
function Block:forward(update, stream, mask, cache)
  local x, sum = self.ln_1(update, stream)
  x, sum = self.ln_2(self.attn(x, mask, cache), sum or update)
  return self.mlp(x), sum
end

------------------------------------------------------------------------------ the stack

local Transformer = nn.class "GPT2Model"

function Transformer:init(config, opts)
  self.wte = nn.Embedding(config.vocab_size, config.n_embd, {std = config.initializer_range})
  self.wpe = nn.Embedding(config.n_positions, config.n_embd, {std = config.initializer_range})
  self.drop = nn.Dropout(config.embd_pdrop)
  self.h = nn.ModuleList()
  for layer = 1, config.n_layer do self.h:append(Block(config, layer)) end
  self.ln_f = nn.LayerNorm(config.n_embd, {eps = config.layer_norm_epsilon})
  self.gradient_checkpointing = opts.gradient_checkpointing
end

-- The embeddings of positions first, first + 1, ...: rows of wpe as they lie, where no ids are given.
function Transformer:positions(ids, position_ids, first)
  if position_ids then return self.wpe(position_ids) end
  return self.wpe.weight:narrow(1, first, ids:size(2))
end

-- The residual stream has the dtype of wte.
function Transformer:embed(ids, position_ids, first)
  local tokens = self.wte(ids)
  return tokens + util.as_dtype(self:positions(ids, position_ids, first), tokens:dtype())
end

function Transformer:run_block(block, update, stream, mask, cache)
  if not (self.gradient_checkpointing and self.training and core.grad_enabled()) then
    return block(update, stream, mask, cache)
  end
  return core.checkpoint(block, update, stream, mask)
end

---@param ids Tensor int64 (B, T)
---@param mask? Tensor uint8 (B, S): S = T, or all that the cache holds after these
---@param position_ids? Tensor int64 (B, T)
---@param cache? KeyValueCache
---@return Tensor (B, T, n_embd)
function Transformer:forward(ids, mask, position_ids, cache)
  local first = cache and cache.length + 1 or 1
  local update = self.drop(self:embed(ids, position_ids, first))
  local stream
  for layer, block in ipairs(self.h) do
    update, stream = self:run_block(block, update, stream, mask, cache and cache:layer(layer))
  end
  return (self.ln_f(update, stream))
end

------------------------------------------------------------------------------ the model

---@class GPT2: PreTrainedModel
local GPT2 = nn.class("GPT2", PreTrainedModel)
GPT2.config_defaults = defaults
GPT2.architecture = "GPT2LMHeadModel"

---@param given table a config as in config.json
---@param opts {init: boolean, gradient_checkpointing: boolean} init false: weights stay zero, to be loaded
function GPT2:init(given, opts)
  local config = config_file.complete(given, defaults, other_names)
  check(config)
  self.config = config
  local weights = opts.init and config or setmetatable({initializer_range = 0}, {__index = config})
  self.transformer = Transformer(weights, opts)
  if config.tie_word_embeddings then
    self.lm_head = nn.Linear(config.n_embd, config.vocab_size, {bias = false, weight = self.transformer.wte.weight})
  else
    self.lm_head = nn.Linear(config.n_embd, config.vocab_size, {bias = false, std = weights.initializer_range})
  end
end

local function shape_text(t) return "(" .. table.concat({t:size()}, ", ") .. ")" end

-- What is raised in a module's forward gets the module's path in front.

local function check_ids(name, t)
  util.check_tensor("batch", name, t)
  if t:dtype() ~= "int64" then util.raise("%s must be int64, not %s", name, t:dtype()) end
end

local function check_shape(name, t, ids)
  if shape_text(t) ~= shape_text(ids) then
    util.raise("%s is %s, input_ids %s", name, shape_text(t), shape_text(ids))
  end
end

local function check_batch(batch, n_positions)
  if type(batch) ~= "table" then util.raise("a batch is a table with input_ids, not a %s", type(batch)) end
  local ids = batch.input_ids
  check_ids("input_ids", ids)
  if ids:dim() ~= 2 then util.raise("input_ids must be (batch, sequence), not %s", shape_text(ids)) end
  if ids:size(2) > n_positions then
    util.raise("a sequence of %d tokens is longer than n_positions %d", ids:size(2), n_positions)
  end
  if ids:size(2) == 0 then util.raise("input_ids is %s: sequences of no tokens", shape_text(ids)) end
  local positions = batch.position_ids
  if positions then
    check_ids("position_ids", positions)
    if positions:size(1) ~= 1 or positions:dim() ~= 2 then check_shape("position_ids", positions, ids) end
  end
  if batch.attention_mask then util.check_tensor("batch", "attention_mask", batch.attention_mask) end
  if batch.labels then check_ids("labels", batch.labels) end
  for _, name in ipairs {"attention_mask", "labels"} do
    if batch[name] then check_shape(name, batch[name], ids) end
  end
end

-- The label of each position is the next token's; the last position has none.
local function shift_left(labels)
  local B, T = labels:size()
  return core.cat({labels:narrow(2, 2, T - 1), core.full({B, 1}, -100, {dtype = "int64"})}, 2)
end

---@param mask? Tensor of any dtype, 0 where there is no token
---@return Tensor? uint8
local function as_mask(mask)
  if not mask or mask:dtype() == "uint8" then return mask end
  return mask:ne(0)
end

---@class GPT2Batch
---@field input_ids Tensor int64 (B, T)
---@field attention_mask? Tensor (B, T), 0 where there is no token
---@field position_ids? Tensor int64 (B, T)
---@field labels? Tensor int64 (B, T): as input_ids, shifted by the model; -100 is left out

---@param batch GPT2Batch
---@return LMOutput
function GPT2:forward(batch)
  check_batch(batch, self.config.n_positions)
  local weight = self.lm_head.weight
  local hidden = self.transformer(batch.input_ids, as_mask(batch.attention_mask), batch.position_ids)
  hidden = util.as_dtype(hidden, weight:dtype())
  local out = output.new(hidden, weight)
  if batch.labels then
    local loss, count = core.linear_cross_entropy(hidden, weight, shift_left(batch.labels))
    out.loss, out.count = loss, math.tointeger(count:item())
  end
  return out
end

---Token ids going on from input_ids, with transformers' option names.
---@param input_ids Tensor|integer[]|integer[][] int64 (B, T)
---@param opts? GenerateOptions
---@return Tensor int64 (B, T + new tokens)
function GPT2:generate(input_ids, opts)
  return generation.generate(self, input_ids, opts)
end

-- For generation: logits (B, V) of the last position.
function GPT2:next_logits(ids, mask, position_ids, cache)
  local hidden = self.transformer(ids, mask, position_ids, cache)
  return self.lm_head(hidden:narrow(2, hidden:size(2), 1)):reshape(ids:size(1), self.config.vocab_size)
end

---@param batch_size integer
---@param length integer
---@return KeyValueCache
function GPT2:new_cache(batch_size, length)
  local c = self.config
  local dtype = self.lm_head.weight:dtype()
  return generation.cache(c.n_layer, {batch_size, length, c.n_head, c.n_embd // c.n_head}, dtype)
end

-- Files may leave out "transformer.", and carry masks that old versions stored, or the tied head.
function GPT2:rename(name)
  if name:match("%.attn%.bias$") or name:match("%.attn%.masked_bias$") then return nil end
  if name == "lm_head.weight" then return not self.config.tie_word_embeddings and name or nil end
  return name:match("^transformer%.") and name or "transformer." .. name
end

return GPT2
