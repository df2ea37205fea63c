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

-- An epoch is a sequence of global batches, one for each step of all ranks together: the next batch_size x size samples
-- of the (shuffled) order, of which rank r takes the r-th batch_size. So the order does not depend on the number of
-- ranks, and a position in it means the same for any number. Where each rank has a dataset of its own (sharded), each
-- goes through its own in the same steps, as many as the longest needs.

---@class Loader
---@field epoch integer the epoch that the next iter() goes through, from 1
---@field dataset table
---@field batch_size integer samples of one rank's batch
---@field first_sample integer global number, over all epochs and from 0, of the first sample of the batch last given
---@field rank integer whose part this loader gives, from 0
---@field size integer number of ranks that share the samples
---@field on_batch fun()? called before a batch is given (internal: acc:prepare)
---@field private position integer samples of this epoch already given to all ranks; by each rank, where sharded
---@field private resumed boolean whether iter() goes on from `position`
---@field private shared boolean whether the ranks iterate together
---@field private lengths integer[]? of the ranks' datasets, where each has its own
local Loader = {}
Loader.__index = Loader
Loader.__len = function(self) return self:num_batches(self.size) end

---@class LoaderOptions
---@field batch_size? integer of each rank; default 1
---@field shuffle? boolean
---@field seed? integer of the shuffle; by default zt.seed's
---@field collate? fun(samples: any[]): any by default data.collate
---@field drop_last? boolean leaves out a last batch that is not full
---@field pad_token_id? integer for data.collate
---@field sharded? boolean each rank has its own dataset, and all make the loader; default: the samples are shared out

-- A loader of datasets of the ranks' own is one of all ranks from the start.
local function share(self)
  self.lengths, self.rank, self.size, self.shared = {}, core.rank(), core.world_size(), true
  for r, row in ipairs(core.gather_numbers({#self.dataset}, "sharded loader")) do
    self.lengths[r] = row[1]
    if row[1] == 0 then util.raise("data.loader: the dataset of rank %d has no samples", r - 1) end
  end
end

---Batches of a dataset. Each epoch has its own order where `shuffle` is set: it follows from seed and epoch alone.
---acc:prepare(loader) shares the batches out between the ranks: each sample is given once an epoch, and a rank that has
---none left gets an empty batch (the same keys, tensors of zero rows).
---@param dataset table #ds, ds[i], and fetch(rows) where it has one
---@param opts? LoaderOptions
---@return Loader
function M.loader(dataset, opts)
  check_dataset("data.loader", dataset)
  opts = util.options("data.loader", opts, {
    batch_size = 1, shuffle = false, seed = util.optional.number, collate = util.optional["function"],
    drop_last = false, pad_token_id = 0, sharded = false,
  })
  util.check_number("data.loader", "batch_size", opts.batch_size, 1, nil, true)
  local self = setmetatable(opts, Loader)
  self.dataset, self.epoch, self.position, self.first_sample, self.resumed = dataset, 1, 0, 0, false
  self.rank, self.size, self.shared = 0, 1, false
  self.seed = opts.seed or core.random_state({}).seed
  if self.sharded then share(self) end
  if #self == 0 then
    util.raise("data.loader: %d samples give no batch of %d", #dataset, opts.batch_size)
  end
  return self
end

-- Where this rank's samples lie, for `size` ranks:
--   stride  how far a global batch moves the position
--   skip    where in a global batch this rank's samples begin
--   longest samples of the longest dataset
--   before, total  samples ahead of this rank's in the numbering of an epoch, and of all
local function layout(self, size)
  local n = #self.dataset
  if not self.lengths then
    local skip = self.rank * self.batch_size
    return {stride = size * self.batch_size, skip = skip, longest = n, before = skip, total = n}
  end
  local longest, before, total = 0, 0, 0
  for r, length in ipairs(self.lengths) do
    longest, total = math.max(longest, length), total + length
    if r <= self.rank then before = before + length end
  end
  return {stride = self.batch_size, skip = 0, longest = longest, before = before, total = total}
end

-- How many of `length` samples are given in an epoch that goes on from `position`.
local function usable(self, length, stride)
  if not self.drop_last then return length end
  return self.position + math.max(0, length - self.position) // stride * stride
end

---Batches of an epoch for each of `size` ranks (internal: acc:num_steps).
---@param size integer
---@return integer
function Loader:num_batches(size)
  local at = layout(self, size)
  local n = at.longest / at.stride
  return self.drop_last and math.floor(n) or math.ceil(n)
end

---Makes this the loader of rank `rank` (from 0) of `size` (internal: acc:prepare).
---@param rank integer
---@param size integer
function Loader:shard(rank, size)
  self.rank, self.size, self.shared = rank, size, true
  if #self == 0 then
    util.raise("the loader's %d samples give no batch of %d for each of %d ranks", #self.dataset, self.batch_size, size)
  end
end

---Whether the batch last given is the epoch's last.
---@return boolean
function Loader:is_last()
  local at = layout(self, self.size)
  return self.position > 0 and self.position >= usable(self, at.longest, at.stride)
end

-- The samples of this rank's part of the next global batch (positions from 1), which may be none; or nil at the end of
-- the epoch. Moves on.
local function next_rows(self)
  local at, count = layout(self, self.size), #self.dataset
  local stop = usable(self, at.longest, at.stride)
  if self.position >= stop then return nil end
  local first = self.position + at.skip
  local last = math.min(first + self.batch_size, usable(self, count, at.stride))
  self.first_sample = (self.epoch - 1) * at.total + self.position + at.before
  self.position = math.min(self.position + at.stride, stop)
  local rows = {}
  for i = first + 1, last do
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

-- A batch without its rows: tensors keep dtype and other dimensions, lists are empty.
local function emptied(value)
  if util.is_tensor(value) then return value:dim() > 0 and value:narrow(1, 1, 0) or value end
  if type(value) ~= "table" then return value end
  local empty = {}
  if value[1] ~= nil then return empty end
  for key, item in pairs(value) do empty[key] = emptied(item) end
  return empty
end

-- What is the same in all ranks' loaders.
local common = {"batch_size", "drop_last", "shuffle", "seed", "epoch", "position"}

local function check_common(all)
  for i, name in ipairs(common) do
    for r = 2, #all do
      if all[r][i] ~= all[1][i] then
        util.raise("the ranks' loaders differ: %s is %s on rank 0 and %s on rank %d", name, all[1][i], all[r][i], r - 1)
      end
    end
  end
end

-- Before an epoch the ranks make sure that they go through the same one: a collective.
local function agree(self)
  local mine, lengths, differ = {}, {}, false
  for i, name in ipairs(common) do
    mine[i] = self[name]
    if type(mine[i]) == "boolean" then mine[i] = mine[i] and 1 or 0 end
  end
  mine[#mine + 1] = #self.dataset
  local all = core.gather_numbers(mine, "loader")
  check_common(all)
  for r, row in ipairs(all) do
    lengths[r] = row[#row]
    differ = differ or lengths[r] ~= lengths[1]
  end
  if self.lengths then
    self.lengths = lengths
  elseif differ then
    util.raise("the ranks' datasets have %s samples; where each rank has its own, sharded = true says so",
      table.concat(lengths, ", "))
  end
end

---Iterates over the batches of epoch `loader.epoch`, which goes up by one when the last has been given. After
---load_state_dict the first epoch goes on where it was left; else each iter() starts at the epoch's first batch.
---Once prepared, all ranks call it.
---@return fun(): any
function Loader:iter()
  if not self.resumed then self.position = 0 end
  self.resumed = false
  if self.shared then agree(self) end
  return function()
    local rows = next_rows(self)
    if not rows then
      self.epoch, self.position = self.epoch + 1, 0
      return nil
    end
    if self.on_batch then self.on_batch() end
    if #rows == 0 then return emptied(make_batch(self, {1})) end
    return make_batch(self, rows)
  end
end

---Where the loader is: enough to go on with the samples not yet given, with any batch size and number of ranks.
---@return {epoch: integer, position: integer, seed: integer, count: integer, lengths: integer[]?}
function Loader:state_dict()
  return {epoch = self.epoch, position = self.position, seed = self.seed, count = layout(self, self.size).total,
    lengths = self.lengths}
end

---@param state {epoch: integer, position: integer, seed: integer, count: integer, lengths: integer[]?}
function Loader:load_state_dict(state)
  local function samples(lengths, count) return lengths and table.concat(lengths, " + ") or tostring(count) end
  local here = self:state_dict()
  local saved, ours = samples(state.lengths, state.count), samples(here.lengths, here.count)
  if saved ~= ours then util.raise("the state is that of a dataset of %s samples, not %s", saved, ours) end
  self.epoch, self.position, self.seed, self.resumed = state.epoch, state.position, state.seed, true
end

---Whether value is a loader.
---@param value any
---@return boolean
function M.is_loader(value) return getmetatable(value) == Loader end

return M
