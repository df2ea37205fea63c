-- tokenizer.lua - text to what a model takes: ids with a mask, truncated and padded, one text or a batch. Option names
-- are transformers'. The ids come from core; see meta/core.lua for decode, token_to_id, save_pretrained and the rest.
local core = require "ztrain.core"
local util = require "ztrain.util"

local M = {}

---A tokenizer from a Hugging Face folder, or from a tokenizer.json.
---@param path string
---@return Tokenizer
function M.from_pretrained(path) return core.tokenizer_load(path) end

---Learns a byte-level BPE from text files. Special tokens are the first ids; the first of them becomes bos and eos.
---@param files string|string[]
---Defaults: vocab_size 30000, min_frequency 2, special_tokens {"<|endoftext|>"}.
---@param opts? {vocab_size: integer?, min_frequency: integer?, special_tokens: string[]?}
---@return Tokenizer
function M.train_bpe(files, opts)
  local o = util.options("tokenizer.train_bpe", opts,
    {vocab_size = 30000, min_frequency = 2, special_tokens = {"<|endoftext|>"}})
  return core.tokenizer_train_bpe(type(files) == "string" and {files} or files, o)
end

---@class Tokenizer
---@field bos_token_id integer?
---@field eos_token_id integer?
---@field unk_token_id integer?
---@field pad_token_id integer?
---@field sep_token_id integer?
---@field cls_token_id integer?
---@field mask_token_id integer?
---@field bos_token string?
---@field eos_token string?
---@field unk_token string?
---@field pad_token string?
---@field sep_token string?
---@field cls_token string?
---@field mask_token string?
local Tokenizer = core.Tokenizer

---@class EncodeOptions
---@field add_special_tokens? boolean what the tokenizer puts around texts; default true
---@field split_special_tokens? boolean special tokens in the text are text; default false
---@field truncation? boolean|"longest_first"|"only_first"|"only_second" true is "longest_first"; default false
---@field padding? boolean|"longest"|"max_length" true is "longest"; default false, in a batch true
---@field max_length? integer default the tokenizer's model_max_length
---@field pad_to_multiple_of? integer
---@field pad_token_id? integer default the tokenizer's
---@field padding_side? "left"|"right" default the tokenizer's
---@field truncation_side? "left"|"right" default the tokenizer's
---@field return_tensors? boolean int64 tensors (rows, tokens) instead of lists; default false, in a batch true
---@field return_attention_mask? boolean default true
---@field return_token_type_ids? boolean default whether the model takes them

---@class Encoding
---@field input_ids integer[]|integer[][]|Tensor
---@field attention_mask integer[]|integer[][]|Tensor|nil
---@field token_type_ids integer[]|integer[][]|Tensor|nil

local choices = {
  truncation = {longest_first = true, only_first = true, only_second = true},
  padding = {longest = true, max_length = true},
  side = {left = true, right = true},
}

local function check_choice(who, name, value, valid)
  if value and not valid[value] then util.unknown(who, name, value, util.keys(valid)) end
end

local function check_count(who, o, name)
  if o[name] ~= nil then util.check_number(who, name, o[name], 1, nil, true) end
end

-- The options with defaults, checked.
local function encode_options(tok, who, given, is_batch)
  local settings = tok:settings()
  local o = util.options(who, given, {
    add_special_tokens = true, split_special_tokens = false, truncation = util.none, padding = util.none,
    max_length = util.optional.number, pad_to_multiple_of = util.optional.number, pad_token_id = util.optional.number,
    padding_side = settings.padding_side, truncation_side = settings.truncation_side, return_tensors = is_batch,
    return_attention_mask = true, return_token_type_ids = settings.type_ids,
  })
  if o.padding == nil then o.padding = is_batch end
  if o.truncation == true then o.truncation = "longest_first" end
  if o.padding == true then o.padding = "longest" end
  check_choice(who, "truncation", o.truncation, choices.truncation)
  check_choice(who, "padding", o.padding, choices.padding)
  check_choice(who, "padding_side", o.padding_side, choices.side)
  check_choice(who, "truncation_side", o.truncation_side, choices.side)
  check_count(who, o, "max_length")
  check_count(who, o, "pad_to_multiple_of")
  local needs_length = o.truncation or o.padding == "max_length"
  if o.max_length and not needs_length then
    util.raise("%s: max_length is for truncation or padding = \"max_length\"", who)
  end
  o.max_length = o.max_length or settings.max_length
  if needs_length and not o.max_length then
    util.raise("%s: max_length is needed, this tokenizer has no model_max_length", who)
  end
  o.pad_token_id = o.pad_token_id or tok.pad_token_id
  o.who = who
  return o
end

-- How many ids of a and of b stay so that both are `room` at most: tokenizers' rule, which shortens the longer first.
local function longest_first(a, b, room)
  local short = math.min(a, b)
  local long = short > room and short or math.max(short, room - short)
  if short + long > room then short, long = room // 2, room // 2 + room % 2 end
  if a > b then return long, short end
  return short, long
end

local function kept_lengths(o, a, b, room)
  local over = a + (b or 0) - room
  if over <= 0 then return a, b end
  if o.truncation == "longest_first" and b then return longest_first(a, b, room) end
  local is_second = o.truncation == "only_second"
  local length = is_second and b or a
  if not length or length < over then
    util.raise("%s: truncation to max_length %d would take %d ids off a text of %d", o.who, o.max_length, over,
      length or 0)
  end
  if is_second then return a, b - over end
  return a - over, b
end

local function keep(ids, n, side)
  if n == #ids then return ids end
  if side == "left" then return table.move(ids, #ids - n + 1, #ids, 1, {}) end
  return table.move(ids, 1, n, 1, {})
end

local plain_template = {{text = 1, type_id = 0}, {text = 2, type_id = 1}}

-- The ids and type ids of one text or two.
local function encode_one(tok, o, text, pair)
  local a = tok:encode_ids(text, {split_special_tokens = o.split_special_tokens})
  local b = pair and tok:encode_ids(pair, {split_special_tokens = o.split_special_tokens})
  local template = o.add_special_tokens and tok:template(pair ~= nil) or plain_template
  if o.truncation then
    local n_special = 0
    for _, item in ipairs(template) do n_special = n_special + (item.id and 1 or 0) end
    if n_special > o.max_length then
      util.raise("%s: max_length %d has no room for %d special tokens", o.who, o.max_length, n_special)
    end
    local n_a, n_b = kept_lengths(o, #a, b and #b, o.max_length - n_special)
    a, b = keep(a, n_a, o.truncation_side), b and keep(b, n_b, o.truncation_side)
  end
  local ids, types = {}, {}
  for _, item in ipairs(template) do
    local part = item.id and {item.id} or (item.text == 1 and a or b) or {}
    table.move(part, 1, #part, #ids + 1, ids)
    for i = #types + 1, #ids do types[i] = item.type_id end
  end
  return ids, types
end

-- `n` values at the side where padding goes.
local function pad_list(list, n, value, side)
  if n == 0 then return list end
  local padding = {}
  for i = 1, n do padding[i] = value end
  if side == "left" then return table.move(list, 1, #list, n + 1, padding) end
  return table.move(padding, 1, n, #list + 1, list)
end

local function padded_length(o, rows)
  local length = o.padding == "max_length" and o.max_length or 0
  for _, ids in ipairs(rows) do length = math.max(length, #ids) end
  local multiple = o.pad_to_multiple_of or 1
  return (length + multiple - 1) // multiple * multiple
end

-- rows, types: a list for each text. Gives back the encoding, of lists.
local function pad_rows(o, rows, types)
  local length, masks = padded_length(o, rows), {}
  for r, ids in ipairs(rows) do
    local n = o.padding and length - #ids or 0
    if n > 0 and not o.pad_token_id then
      util.raise("%s: padding needs a pad token, this tokenizer has none (pad_token_id = tok.eos_token_id would do)",
        o.who)
    end
    masks[r] = pad_list(pad_list({}, #ids, 1), n, 0, o.padding_side)
    rows[r] = pad_list(ids, n, o.pad_token_id, o.padding_side)
    types[r] = pad_list(types[r], n, 0, o.padding_side)
  end
  return {
    input_ids = rows, attention_mask = o.return_attention_mask and masks or nil,
    token_type_ids = o.return_token_type_ids and types or nil,
  }
end

local function to_tensors(o, encoding)
  local length = #(encoding.input_ids[1] or {})
  for r, ids in ipairs(encoding.input_ids) do
    if #ids ~= length then
      util.raise("%s: tensors need padding, text 1 has %d ids and text %d has %d", o.who, length, r, #ids)
    end
  end
  for name, rows in pairs(encoding) do
    local is_empty = #rows == 0 or length == 0
    encoding[name] = is_empty and core.zeros({#rows, length}, {dtype = "int64"}) or core.tensor(rows, {dtype = "int64"})
  end
  return encoding
end

local function check_text(who, what, text)
  if type(text) ~= "string" then util.raise("%s: %s must be a string, not a %s", who, what, type(text)) end
end

---Ids of a text, or of a pair of texts.
---@param text string
---@param pair? string
---@param opts? EncodeOptions
---@return Encoding
---@overload fun(self: Tokenizer, text: string, opts: EncodeOptions): Encoding
function Tokenizer:encode(text, pair, opts)
  if type(pair) == "table" and opts == nil then pair, opts = nil, pair end
  local o = encode_options(self, "tokenizer:encode", opts, false)
  check_text(o.who, "text", text)
  if pair ~= nil then check_text(o.who, "pair", pair) end
  local ids, types = encode_one(self, o, text, pair)
  local encoding = pad_rows(o, {ids}, {types})
  if o.return_tensors then return to_tensors(o, encoding) end
  for name, rows in pairs(encoding) do encoding[name] = rows[1] end
  return encoding
end

---Ids of several texts, or of pairs {text, pair}: tensors (texts, tokens), padded to the longest.
---@param texts (string|string[])[]
---@param opts? EncodeOptions
---@return Encoding
function Tokenizer:batch(texts, opts)
  local o = encode_options(self, "tokenizer:batch", opts, true)
  if type(texts) ~= "table" then util.raise("%s: texts must be a list, not a %s", o.who, type(texts)) end
  local rows, types = {}, {}
  for r, text in ipairs(texts) do
    local first, pair = text, nil
    if type(text) == "table" then first, pair = text[1], text[2] end
    check_text(o.who, "text " .. r, first)
    if pair ~= nil then check_text(o.who, "the pair of text " .. r, pair) end
    rows[r], types[r] = encode_one(self, o, first, pair)
  end
  local encoding = pad_rows(o, rows, types)
  return o.return_tensors and to_tensors(o, encoding) or encoding
end

return M
