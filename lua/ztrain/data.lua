-- data.lua - datasets and loaders. A dataset is anything with #ds and ds[i] (i from 1); one that also has fetch(rows)
-- gives a whole batch at once. A loader orders, groups and collates, and knows where it is.
local core = require "ztrain.core"
local util = require "ztrain.util"

local M = {}

-- Raises unless `dataset` is something with a length and an index.
local function check_dataset(who, dataset)
  local meta = getmetatable(dataset)
  local fits = type(dataset) == "table" or type(meta) == "table" and meta.__len and meta.__index
  if not fits or util.is_tensor(dataset) then
    util.raise("%s: a dataset has #ds and ds[i]; %s does not", who, util.describe(dataset))
  end
end

------------------------------------------------------------------------------ text

---Blocks of block_size tokens from text files, for causal language models: ds[i] and fetch(rows) give input_ids, and
---labels that are the same (the model shifts them).
---@class TextDataset
---@field block_size integer
---@field private corpora Corpus[]
---@field private starts integer[] blocks before each corpus
---@field private count integer
---@field [integer] {input_ids: Tensor, labels: Tensor}
local Text = {}

local text_meta = {
  __len = function(self) return self.count end,
  __index = function(self, key)
    if math.type(key) ~= "integer" then return Text[key] end
    if key < 1 or key > self.count then return nil end
    local batch = self:fetch {key}
    return {input_ids = batch.input_ids[1], labels = batch.labels[1]}
  end,
}

---@param files string|string[]
---@param tokenizer Tokenizer
---@param opts {block_size: integer?, cache_dir: string?} block_size: 1024; cache_dir: of token ids, the user's cache
---@return TextDataset
function M.text(files, tokenizer, opts)
  opts = util.options("data.text", opts, {block_size = 1024, cache_dir = util.optional.string})
  util.check_number("data.text", "block_size", opts.block_size, 1, nil, true)
  local self = setmetatable({block_size = opts.block_size, corpora = {}, starts = {}, count = 0}, text_meta)
  for i, path in ipairs(type(files) == "table" and files or {files}) do
    self.corpora[i] = core.corpus_open(path, tokenizer, opts.block_size, opts.cache_dir)
    self.starts[i] = self.count
    self.count = self.count + self.corpora[i].block_count
  end
  return self
end

-- Rows of the whole, split by corpus: {corpus, rows within it}, in order.
local function by_corpus(self, rows)
  local parts, c = {}, nil
  for _, row in ipairs(rows) do
    if row < 1 or row > self.count then util.raise("block %d of %d", row, self.count) end
    local k = c or 1
    if row <= self.starts[k] then k = 1 end
    while k < #self.starts and row > self.starts[k + 1] do k = k + 1 end
    if k ~= c then parts[#parts + 1] = {self.corpora[k], {}} end
    c = k
    local within = parts[#parts][2]
    within[#within + 1] = row - self.starts[k]
  end
  return parts
end

---@param rows integer[] from 1
---@return {input_ids: Tensor, labels: Tensor} int64 (#rows, block_size)
function Text:fetch(rows)
  local parts = {}
  for i, part in ipairs(by_corpus(self, rows)) do parts[i] = part[1]:blocks(part[2]) end
  local ids = #parts == 1 and parts[1] or core.cat(parts, 1)
  return {input_ids = ids, labels = ids}
end

------------------------------------------------------------------------------ parts of a dataset

local subset_meta = {
  __len = function(self) return self.last - self.first + 1 end,
  __index = function(self, key)
    if math.type(key) ~= "integer" or key < 1 or key > #self then return nil end
    return self.dataset[self.first + key - 1]
  end,
}

local function fetch_subset(self, rows)
  local moved = {}
  for i, row in ipairs(rows) do moved[i] = row + self.first - 1 end
  return self.dataset:fetch(moved)
end

---Samples first to last of a dataset, as a dataset.
---@param dataset table
---@param first integer
---@param last integer
---@return table
function M.subset(dataset, first, last)
  check_dataset("data.subset", dataset)
  util.check_number("data.subset", "first", first, -math.huge, nil, true)
  util.check_number("data.subset", "last", last, -math.huge, nil, true)
  if first < 1 or last > #dataset or first > last then
    util.raise("data.subset: %d to %d of a dataset of %d", first, last, #dataset)
  end
  local self = {dataset = dataset, first = first, last = last}
  if type(dataset.fetch) == "function" then self.fetch = fetch_subset end
  return setmetatable(self, subset_meta)
end

---The first part of a dataset and the rest, each with one sample at least.
---@param dataset table
---@param fraction number of the samples
---@return table first
---@return table rest
function M.split(dataset, fraction)
  check_dataset("data.split", dataset)
  util.check_number("data.split", "fraction", fraction, 0, 1)
  if #dataset < 2 then util.raise("data.split: a dataset of %d cannot be split", #dataset) end
  local n = math.max(1, math.min(#dataset - 1, math.floor(#dataset * fraction)))
  return M.subset(dataset, 1, n), M.subset(dataset, n + 1, #dataset)
end

------------------------------------------------------------------------------ the unigram model

local CHUNK = 256 -- blocks at a time

-- Calls fn(ids) with the token ids of all blocks, some blocks at a time.
local function each_chunk(dataset, fn)
  for first = 1, #dataset, CHUNK do
    local rows = {}
    for row = first, math.min(first + CHUNK - 1, #dataset) do rows[#rows + 1] = row end
    core.scope("unigram", function() fn(dataset:fetch(rows).input_ids) end)
  end
end

---Nats per token of `train`'s unigram model (add-one smoothed over n_vocab) on the tokens that a causal model of
---`valid` predicts, the first of each block not among them: what a trained model has to beat.
---@param valid table a dataset of blocks
---@param train table
---@param n_vocab integer
---@return number
function M.unigram_loss(valid, train, n_vocab)
  for _, dataset in ipairs {valid, train} do
    check_dataset("data.unigram_loss", dataset)
    if type(dataset.fetch) ~= "function" then util.raise("data.unigram_loss: a dataset of blocks has fetch(rows)") end
  end
  util.check_number("data.unigram_loss", "n_vocab", n_vocab, 1, nil, true)
  return core.no_grad(function()
    local counts = core.ones(n_vocab, {dtype = "float64"})
    each_chunk(train, function(ids)
      local flat = ids:reshape(-1)
      counts:copy_(counts:scatter_add(1, flat, core.ones(flat:numel(), {dtype = "float64"})))
    end)
    local log_p = (counts / counts:sum():item()):log()
    local total, n = 0, 0
    each_chunk(valid, function(ids)
      local flat = ids:narrow(2, 2, ids:size(2) - 1):reshape(-1)
      total = total - log_p:index_select(1, flat):sum():item()
      n = n + flat:numel()
    end)
    if n == 0 then util.raise("data.unigram_loss: blocks of 1 token leave nothing to predict") end
    return total / n
  end)
end

------------------------------------------------------------------------------ collate

local padding = {attention_mask = 0, labels = -100, token_type_ids = 0}

-- Rows of numbers -> one tensor, padded on the right with `pad`.
local function pad_rows(rows, pad)
  local longest, all_integers = 0, true
  for _, row in ipairs(rows) do
    longest = math.max(longest, #row)
    for _, v in ipairs(row) do all_integers = all_integers and math.type(v) == "integer" end
  end
  local padded = {}
  for i, row in ipairs(rows) do
    padded[i] = {table.unpack(row)}
    for j = #row + 1, longest do padded[i][j] = pad end
  end
  return core.tensor(padded, {dtype = all_integers and "int64" or "float32"}), longest
end

local function numbers(list)
  for _, v in ipairs(list) do
    if math.type(v) ~= "integer" then return core.tensor(list) end
  end
  return core.tensor(list, {dtype = "int64"})
end

-- 1 where a row has a token.
local function mask_rows(rows)
  local mask = {}
  for i, row in ipairs(rows) do
    mask[i] = {}
    for j = 1, #row do mask[i][j] = 1 end
  end
  return mask
end

local function collate_field(name, list, pad_token_id)
  local first = list[1]
  if util.is_tensor(first) then return core.stack(list, 1) end
  if type(first) == "number" then return numbers(list) end
  if type(first) == "table" then return (pad_rows(list, padding[name] or pad_token_id)) end
  return list
end

---Makes a batch of samples: tensors of one shape are stacked, numbers become a tensor, lists of numbers are padded on
---the right to the longest (labels with -100, input_ids with pad_token_id; an attention_mask is made where there is
---none), anything else stays a list. Samples are tables with the same keys, or tensors.
---@param samples any[]
---@param pad_token_id? integer default 0
---@return any
function M.collate(samples, pad_token_id)
  if type(samples) ~= "table" then util.raise("collate: samples are a list, not %s", util.describe(samples)) end
  pad_token_id = pad_token_id or 0
  if type(samples[1]) ~= "table" then return collate_field("", samples, pad_token_id) end
  local batch = {}
  for name in pairs(samples[1]) do
    local list = {}
    for i, sample in ipairs(samples) do
      list[i] = sample[name]
      if list[i] == nil then util.raise("collate: sample %d of the batch has no '%s'", i, name) end
    end
    batch[name] = collate_field(name, list, pad_token_id)
    if name == "input_ids" and type(list[1]) == "table" and samples[1].attention_mask == nil then
      batch.attention_mask = pad_rows(mask_rows(list), 0)
    end
  end
  return batch
end

------------------------------------------------------------------------------ loader

---@class Loader
---@field epoch integer the epoch that the next iter() goes through, from 1
---@field dataset table
---@field batch_size integer
---@field first_sample integer samples before the batch last given, over all epochs
---@field private position integer samples of this epoch already given
---@field private resumed boolean whether iter() goes on from `position`
local Loader = {}
Loader.__index = Loader
Loader.__len = function(self)
  local n = #self.dataset / self.batch_size
  return self.drop_last and math.floor(n) or math.ceil(n)
end

---@class LoaderOptions
---@field batch_size? integer default 1
---@field shuffle? boolean
---@field seed? integer of the shuffle; by default zt.seed's
---@field collate? fun(samples: any[]): any by default data.collate
---@field drop_last? boolean leaves out a last batch that is not full
---@field pad_token_id? integer for data.collate

---Batches of a dataset. Each epoch has its own order where `shuffle` is set: it follows from seed and epoch alone.
---@param dataset table #ds, ds[i], and fetch(rows) where it has one
---@param opts? LoaderOptions
---@return Loader
function M.loader(dataset, opts)
  check_dataset("data.loader", dataset)
  opts = util.options("data.loader", opts, {
    batch_size = 1, shuffle = false, seed = util.optional.number, collate = util.optional["function"],
    drop_last = false, pad_token_id = 0,
  })
  util.check_number("data.loader", "batch_size", opts.batch_size, 1, nil, true)
  local self = setmetatable(opts, Loader)
  self.dataset, self.epoch, self.position, self.first_sample, self.resumed = dataset, 1, 0, 0, false
  self.seed = opts.seed or core.random_state({}).seed
  if #self == 0 then
    util.raise("data.loader: %d samples give no batch of %d", #dataset, opts.batch_size)
  end
  return self
end

-- The samples of the next batch (positions from 1), or nil at the end of the epoch.
local function next_rows(self)
  local count = #self.dataset
  local last = math.min(self.position + self.batch_size, count)
  if self.position >= count or (self.drop_last and last - self.position < self.batch_size) then return nil end
  local rows = {}
  for i = self.position + 1, last do
    rows[#rows + 1] = self.shuffle and core.order_at(self.seed, self.epoch, count, i) or i
  end
  return rows
end

local function make_batch(self, rows)
  local dataset = self.dataset
  if not self.collate and type(dataset.fetch) == "function" then return dataset:fetch(rows) end
  local samples = {}
  for i, row in ipairs(rows) do samples[i] = dataset[row] end
  if self.collate then return self.collate(samples) end
  return M.collate(samples, self.pad_token_id)
end

---Iterates over the batches of epoch `loader.epoch`, which goes up by one when the last has been given. After
---load_state_dict the first epoch goes on where it was left; else each iter() starts at the epoch's first batch.
---@return fun(): any
function Loader:iter()
  if not self.resumed then self.position = 0 end
  self.resumed = false
  return function()
    local rows = next_rows(self)
    if not rows then
      self.epoch, self.position = self.epoch + 1, 0
      return nil
    end
    self.first_sample = (self.epoch - 1) * #self.dataset + self.position
    self.position = self.position + #rows
    return make_batch(self, rows)
  end
end

---Where the loader is: enough to go on with the next batch.
---@return {epoch: integer, position: integer, seed: integer, count: integer}
function Loader:state_dict()
  return {epoch = self.epoch, position = self.position, seed = self.seed, count = #self.dataset}
end

---@param state {epoch: integer, position: integer, seed: integer, count: integer}
function Loader:load_state_dict(state)
  if state.count ~= #self.dataset then
    util.raise("the state is that of a dataset of %d samples, not %d", state.count, #self.dataset)
  end
  self.epoch, self.position, self.seed, self.resumed = state.epoch, state.position, state.seed, true
end

---Whether value is a loader.
---@param value any
---@return boolean
function M.is_loader(value) return getmetatable(value) == Loader end

return M
