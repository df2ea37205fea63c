package.path = debug.getinfo(1, "S").source:match("^@(.*)/") .. "/?.lua;" .. package.path
local support = require "support"
local zt = require "ztrain"

local function numbers(n)
  local list = {}
  for i = 1, n do list[i] = {x = i} end
  return list
end

local function epoch(loader)
  local seen = {}
  for batch in loader:iter() do
    for _, v in ipairs(batch.x:totable()) do seen[#seen + 1] = v end
  end
  return seen
end

describe("loader", function()
  it("gives every sample once, in order", function()
    local loader = zt.data.loader(numbers(10), {batch_size = 4})
    assert.equal(3, #loader)
    assert.same({1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, epoch(loader))
    assert.equal(2, loader.epoch)
    loader = zt.data.loader(numbers(10), {batch_size = 4, drop_last = true})
    assert.equal(2, #loader)
    assert.same({1, 2, 3, 4, 5, 6, 7, 8}, epoch(loader))
  end)

  it("shuffles by seed and epoch", function()
    local n = 23
    local a = zt.data.loader(numbers(n), {batch_size = 5, shuffle = true, seed = support.seed})
    local b = zt.data.loader(numbers(n), {batch_size = 3, shuffle = true, seed = support.seed})
    local first, second = epoch(a), epoch(a)
    assert.same(first, epoch(b))
    assert.same(second, epoch(b))
    assert.is_not.same(first, second)
    table.sort(first)
    assert.same(n, #first)
    for i = 1, n do assert.equal(i, first[i]) end
  end)

  it("takes zt.seed's seed", function()
    zt.seed(5)
    local a = epoch(zt.data.loader(numbers(50), {shuffle = true}))
    zt.seed(5)
    local b = epoch(zt.data.loader(numbers(50), {shuffle = true}))
    zt.seed(6)
    local c = epoch(zt.data.loader(numbers(50), {shuffle = true}))
    assert.same(a, b)
    assert.is_not.same(a, c)
  end)

  it("goes on where a state says", function()
    local function new() return zt.data.loader(numbers(17), {batch_size = 3, shuffle = true, seed = 9}) end
    local a, seen = new(), {}
    epoch(a)
    local state
    for batch in a:iter() do
      for _, v in ipairs(batch.x:totable()) do seen[#seen + 1] = v end
      if #seen == 6 then
        state = a:state_dict()
        break
      end
    end
    local b = new()
    b:load_state_dict(state)
    assert.equal(2, b.epoch)
    for _, v in ipairs(epoch(b)) do seen[#seen + 1] = v end
    local whole = new()
    epoch(whole)
    assert.same(epoch(whole), seen)
    assert.same(epoch(whole), epoch(b))
    assert.match("dataset of 17 samples, not 4",
      support.message(function() zt.data.loader(numbers(4), {}):load_state_dict(state) end))
  end)

  it("starts anew after a break", function()
    local loader = zt.data.loader(numbers(5), {batch_size = 2})
    loader:iter()()
    assert.same({1, 2, 3, 4, 5}, epoch(loader))
  end)

  it("collates with a function of one's own", function()
    local loader = zt.data.loader(numbers(4), {batch_size = 3, collate = function(samples) return #samples end})
    local sizes = {}
    for size in loader:iter() do sizes[#sizes + 1] = size end
    assert.same({3, 1}, sizes)
  end)

  it("raises for what gives no batch, and for unknown options", function()
    assert.match("0 samples give no batch", support.message(zt.data.loader, {}, {}))
    assert.match("unknown option 'batchsize'; did you mean 'batch_size'%?",
      support.message(zt.data.loader, numbers(3), {batchsize = 2}))
  end)
end)

describe("collate", function()
  it("pads ids and labels, and makes the mask", function()
    local batch = zt.data.collate {{input_ids = {5, 6, 7}, labels = {5, 6, 7}}, {input_ids = {8}, labels = {8}}}
    assert.same({{5, 6, 7}, {8, 0, 0}}, batch.input_ids:totable())
    assert.same({{1, 1, 1}, {1, 0, 0}}, batch.attention_mask:totable())
    assert.same({{5, 6, 7}, {8, -100, -100}}, batch.labels:totable())
    assert.equal("int64", batch.attention_mask:dtype())
  end)

  it("keeps a mask that is there, and pads with the given id", function()
    local batch = zt.data.collate({
      {input_ids = {5, 6}, attention_mask = {0, 1}}, {input_ids = {7}, attention_mask = {1}},
    }, 9)
    assert.same({{5, 6}, {7, 9}}, batch.input_ids:totable())
    assert.same({{0, 1}, {1, 0}}, batch.attention_mask:totable())
  end)

  it("stacks tensors, joins numbers, lists the rest", function()
    local batch = zt.data.collate {{x = zt.ones(2), label = 1, score = 0.5, text = "a"},
      {x = zt.zeros(2), label = 0, score = 1, text = "b"}}
    assert.same({{1, 1}, {0, 0}}, batch.x:totable())
    assert.equal("int64", batch.label:dtype())
    assert.equal("float32", batch.score:dtype())
    assert.same({"a", "b"}, batch.text)
    assert.same({2, 3}, {zt.data.collate({zt.ones(3), zt.ones(3)}):size()})
  end)

  it("names a sample that lacks a field", function()
    assert.match("sample 2 of the batch has no 'x'", support.message(zt.data.collate, {{x = 1}, {y = 1}}))
  end)
end)

describe("subset and split", function()
  it("are datasets", function()
    local first, rest = zt.data.split(numbers(10), 0.25)
    assert.same({2, 8, 1, 3}, {#first, #rest, first[1].x, rest[1].x})
    assert.is_nil(first[3])
    assert.same({1, 9}, {#zt.data.split(numbers(10), 0), #select(2, zt.data.split(numbers(10), 0))})
    assert.match("4 to 11 of a dataset of 10", support.message(zt.data.subset, numbers(10), 4, 11))
  end)
end)

describe("text", function()
  local folder, tokenizer, path

  setup(function()
    folder = support.folder()
    path = folder .. "/words.txt"
    local words, lines = {"alpha", "beta", "gamma", "delta", "epsilon"}, {}
    for i = 1, 400 do
      local line = {}
      for j = 1, 8 do line[j] = words[math.random(#words)] end
      lines[i] = table.concat(line, " ") .. "\n"
    end
    support.write(path, table.concat(lines))
    tokenizer = zt.tokenizer.train_bpe({path}, {vocab_size = 300})
  end)
  teardown(support.clean)

  local function open(files) return zt.data.text(files or path, tokenizer, {block_size = 16, cache_dir = folder}) end

  it("gives blocks of tokens that decode to the text", function()
    local text = open()
    local ids = text:fetch({1, 2}).input_ids
    assert.same({2, 16}, {ids:size()})
    local start = tokenizer:decode(ids:reshape(-1))
    assert.equal(start, support.read(path):sub(1, #start))
    assert.is_true(text[2].input_ids:equal(ids[2]))
    assert.is_true(text[2].labels:equal(ids[2]))
    assert.is_nil(text[#text + 1])
  end)

  it("joins files", function()
    local one, two = open(), open {path, path}
    assert.equal(2 * #one, #two)
    local batch = two:fetch {#one + 3, 1, #one, #one + 1}
    assert.is_true(batch.input_ids[1]:equal(one[3].input_ids))
    assert.is_true(batch.input_ids[2]:equal(one[1].input_ids))
    assert.is_true(batch.input_ids[3]:equal(one[#one].input_ids))
    assert.is_true(batch.input_ids[4]:equal(one[1].input_ids))
  end)

  it("feeds a loader by blocks", function()
    local first, rest = zt.data.split(open(), 0.1)
    local batch = zt.data.loader(rest, {batch_size = 4, shuffle = true, seed = 1}):iter()()
    assert.same({4, 16}, {batch.input_ids:size()})
    assert.is_true(first:fetch({1}).input_ids[1]:equal(first[1].input_ids))
    assert.is_true(rest:fetch({1}).input_ids[1]:equal(rest[1].input_ids))
  end)

  it("measures the unigram model", function()
    local text = open()
    local valid, train = zt.data.split(text, 0.2)
    local n_vocab, counts, n = tokenizer.vocab_size, {}, 0
    for i = 1, #train do
      for _, id in ipairs(train[i].input_ids:totable()) do counts[id], n = (counts[id] or 0) + 1, n + 1 end
    end
    local nats, m = 0, 0
    for i = 1, #valid do
      for j, id in ipairs(valid[i].input_ids:totable()) do
        if j > 1 then nats, m = nats - math.log(((counts[id] or 0) + 1) / (n + n_vocab)), m + 1 end
      end
    end
    assert.near(nats / m, zt.data.unigram_loss(valid, train, n_vocab), 1e-9)
  end)

  it("raises for an empty file, and one that is not there", function()
    support.write(folder .. "/empty.txt", "")
    assert.match("empty.txt", support.message(open, folder .. "/empty.txt"))
    assert.match("no%-such.txt", support.message(open, folder .. "/no-such.txt"))
  end)
end)
