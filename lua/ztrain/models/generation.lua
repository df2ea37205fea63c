-- generation.lua - generate(): tokens one after the other, with a cache of keys and values; greedy or sampled. Options,
-- defaults and padding are transformers'.
local core = require "ztrain.core"
local util = require "ztrain.util"

local M = {}

---@class GenerateOptions
---@field max_new_tokens? integer
---@field max_length? integer prompt and new tokens together; 20 where max_new_tokens is absent, too
---@field min_new_tokens? integer
---@field do_sample? boolean default false: the likeliest token each time
---@field temperature? number
---@field top_k? integer default 50 where do_sample; 0: all
---@field top_p? number
---@field eos_token_id? integer|integer[]
---@field pad_token_id? integer default the first eos_token_id
---@field attention_mask? Tensor (B, T): 0 on the left where rows are shorter
---@field use_cache? boolean

------------------------------------------------------------------------------ cache

---Keys and values of all layers, for as many tokens as generation will see.
---@class KeyValueCache
---@field length integer tokens in it
---@field private layers {k: Tensor, v: Tensor, cache: KeyValueCache}[]
local Cache = {}
Cache.__index = Cache

local Layer = {}
Layer.__index = Layer

---@param n_layer integer
---@param shape integer[] batch, tokens, heads, head size
---@param dtype dtype
---@return KeyValueCache
function M.cache(n_layer, shape, dtype)
  local self = setmetatable({length = 0, layers = {}}, Cache)
  for i = 1, n_layer do
    local k, v = core.zeros(shape, {dtype = dtype}), core.zeros(shape, {dtype = dtype})
    self.layers[i] = setmetatable({k = k, v = v, cache = self}, Layer)
  end
  return self
end

function Cache:layer(i) return self.layers[i] end

---Puts in the newest tokens' keys and values (B, T, H, D); gives back all there are. The cache's length goes up when
---all layers have theirs (generate).
function Layer:append(k, v)
  local start, n = self.cache.length + 1, k:size(2)
  self.k:narrow(2, start, n):copy_(k)
  self.v:narrow(2, start, n):copy_(v)
  return self.k:narrow(2, 1, start + n - 1), self.v:narrow(2, 1, start + n - 1)
end

------------------------------------------------------------------------------ options

local known = {
  max_new_tokens = util.optional.number, max_length = util.optional.number, min_new_tokens = 0, do_sample = false,
  temperature = 1.0, top_k = 50, top_p = 1.0, eos_token_id = util.none, pad_token_id = util.optional.number,
  attention_mask = util.none, use_cache = true,
}

local function check_options(o)
  util.check_number("generate", "min_new_tokens", o.min_new_tokens, 0, nil, true)
  for _, key in ipairs {"max_new_tokens", "max_length"} do
    if o[key] then util.check_number("generate", key, o[key], 1, nil, true) end
  end
  if o.pad_token_id then util.check_number("generate", "pad_token_id", o.pad_token_id, -math.huge, nil, true) end
  for _, id in ipairs(type(o.eos_token_id) == "table" and o.eos_token_id or {o.eos_token_id}) do
    util.check_number("generate", "eos_token_id", id, -math.huge, nil, true)
  end
end

-- What the call says, else generation_config.json, else config.json, else transformers' default.
local function options(model, given)
  local call, merged = util.options("generate", given, known), {}
  for _, source in ipairs {model.config, model.generation_config or {}, given or {}} do
    for key in pairs(known) do
      if source[key] ~= nil and source[key] ~= core.null then merged[key] = source[key] end
    end
  end
  if given and given.max_length and not given.max_new_tokens then merged.max_new_tokens = nil end
  merged.attention_mask = call.attention_mask
  local o = util.options("generate", merged, known)
  check_options(o)
  return o
end

-- int64 (B, T), T 1 or more.
local function as_ids(input_ids)
  local ids = input_ids
  if type(ids) == "table" then
    ids = core.tensor(type(ids[1]) == "table" and ids or {ids}, {dtype = "int64"})
  end
  util.check_tensor("generate", "input_ids", ids)
  if ids:dim() == 1 then ids = ids:reshape(1, -1) end
  if ids:dtype() ~= "int64" or ids:dim() ~= 2 or ids:size(2) == 0 then
    util.raise("generate: input_ids must be int64 (batch, sequence) with a token at least, not %s (%s)", ids:dtype(),
      table.concat({ids:size()}, ", "))
  end
  return ids
end

local function check_mask(mask, ids)
  if mask == nil then return end
  util.check_tensor("generate", "attention_mask", mask)
  local shape, wanted = table.concat({mask:size()}, ", "), table.concat({ids:size()}, ", ")
  if shape ~= wanted then util.raise("generate: attention_mask is (%s), input_ids (%s)", shape, wanted) end
end

-- Rows of 0 and 1. Without a mask it is all ones, but where the prompt has pad tokens that are no end tokens.
local function mask_rows(ids, o, is_eos)
  local rows, pad = ids:totable(), o.pad_token_id
  local given = o.attention_mask and o.attention_mask:totable()
  for i, row in ipairs(rows) do
    for j, id in ipairs(row) do
      if given then
        row[j] = given[i][j] ~= 0 and 1 or 0
      else
        row[j] = (pad and id == pad and not is_eos[pad]) and 0 or 1
      end
    end
  end
  return rows
end

local function all_ones(rows)
  for _, row in ipairs(rows) do
    for _, v in ipairs(row) do
      if v == 0 then return false end
    end
  end
  return true
end

------------------------------------------------------------------------------ state of one call

---@class Generation
---@field ids Tensor int64 (B, room): prompt and new tokens
---@field length integer tokens in ids
---@field mask Tensor? uint8 (B, room)
---@field position_rows integer[][]? where rows are padded: position of each token
---@field cache KeyValueCache?
---@field finished boolean[]
local Generation = {}
Generation.__index = Generation

-- Positions count a row's own tokens, as transformers makes them from the mask; padding gets 1, which nothing reads.
local function positions(rows)
  local out = {}
  for i, row in ipairs(rows) do
    local n = 0
    out[i] = {}
    for j, v in ipairs(row) do
      n = n + v
      out[i][j] = v == 1 and n - 1 or 1
    end
    out[i].next = n
  end
  return out
end

local function new_generation(model, ids, o, is_eos)
  local B, T = ids:size()
  local room = o.max_new_tokens and T + o.max_new_tokens or o.max_length or 20
  if room <= T then util.raise("the prompt of %d tokens leaves no room within max_length %d", T, room) end
  local n_positions = model.config.n_positions
  if room - 1 > n_positions then
    util.raise("%d tokens and %d new ones are more than n_positions %d", T, room - T, n_positions)
  end
  local self = setmetatable({length = T, room = room, finished = {}}, Generation)
  self.ids = core.full({B, room}, o.pad_token_id or 0, {dtype = "int64"})
  self.ids:narrow(2, 1, T):copy_(ids)
  local rows = mask_rows(ids, o, is_eos)
  if not all_ones(rows) then
    self.mask = core.ones(B, room, {dtype = "uint8"})
    self.mask:narrow(2, 1, T):copy_(core.tensor(rows, {dtype = "uint8"}))
    self.position_rows = positions(rows)
  end
  if o.use_cache then self.cache = model:new_cache(B, room) end
  return self
end

-- position_ids of the last n tokens.
function Generation:positions(n)
  if not self.position_rows then return nil end
  local rows = {}
  for i, row in ipairs(self.position_rows) do rows[i] = {table.unpack(row, self.length - n + 1, self.length)} end
  return core.tensor(rows, {dtype = "int64"})
end

function Generation:next_logits(model)
  local n = self.cache and self.length - self.cache.length or self.length
  local ids = self.ids:narrow(2, self.length - n + 1, n)
  local mask = self.mask and self.mask:narrow(2, 1, self.length)
  local logits = model:next_logits(ids, mask, self:positions(n), self.cache)
  if self.cache then self.cache.length = self.length end
  return logits
end

-- Writes one token a row; rows that have ended get the pad token. Returns whether all have ended.
function Generation:append(tokens, pad, is_eos)
  local column, all_finished = {}, true
  for i, token in ipairs(tokens) do
    if self.finished[i] then token = pad end
    self.finished[i] = self.finished[i] or is_eos[token] or false
    all_finished = all_finished and self.finished[i]
    column[i] = token
  end
  self.length = self.length + 1
  self.ids:narrow(2, self.length, 1):copy_(core.tensor(column, {dtype = "int64"}):reshape(#column, 1))
  for _, row in ipairs(self.position_rows or {}) do
    row[self.length] = row.next
    row.next = row.next + 1
  end
  return all_finished
end

-- A mask (1, V) of the end tokens, or nil where there are none.
local function end_mask(is_eos, n_vocab)
  if not next(is_eos) then return nil end
  local row = {}
  for id = 0, n_vocab - 1 do row[id + 1] = is_eos[id] and 1 or 0 end
  return core.tensor({row}, {dtype = "uint8"})
end

local function as_set(ids)
  local set = {}
  for _, id in ipairs(ids) do set[id] = true end
  return set
end

-- The ids of the next tokens, one a row; none that `forbidden` masks.
local function choose(logits, o, forbidden)
  if forbidden then logits = logits:masked_fill(forbidden, -math.huge) end
  if not o.do_sample then return logits:argmax(-1):totable() end
  return core.sample(logits, {temperature = o.temperature, top_k = o.top_k, top_p = o.top_p}):totable()
end

local function run(model, input_ids, o)
  local end_ids = type(o.eos_token_id) == "table" and o.eos_token_id or {o.eos_token_id}
  local is_eos = as_set(end_ids)
  o.pad_token_id = o.pad_token_id or end_ids[1]
  local ids = as_ids(input_ids)
  check_mask(o.attention_mask, ids)
  local state = new_generation(model, ids, o, is_eos)
  local ends, n_new, finished = end_mask(is_eos, model.config.vocab_size), 0, false
  while state.length < state.room and not finished do
    finished = core.scope("generate", function()
      local tokens = choose(state:next_logits(model), o, n_new < o.min_new_tokens and ends or nil)
      return state:append(tokens, o.pad_token_id, is_eos)
    end)
    n_new = n_new + 1
  end
  return state.ids:narrow(2, 1, state.length):copy()
end

---@param model Module has config, next_logits(ids, mask, position_ids, cache) and new_cache(batch_size, length)
---@param input_ids Tensor|integer[]|integer[][]
---@param opts? GenerateOptions
---@return Tensor
function M.generate(model, input_ids, opts)
  local o, was_training = options(model, opts), model.training
  local restored <close> = setmetatable({}, {__close = function() model:train(was_training) end}) -- luacheck: ignore
  model:eval()
  return core.scope("generate", core.no_grad, run, model, input_ids, o)
end

return M
