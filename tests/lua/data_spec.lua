package.path = debug.getinfo(1, "S").source:match("^@(.*)/") .. "/?.lua;" .. package.path
local support = require "support"
local zt = require "ztrain"
local core = require "ztrain.core"

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

-- The batches of an epoch of `size` ranks: batches[rank + 1][k] is a list of samples. Loaders of one process, as
-- acc:prepare would make them. `lengths`: each rank has numbers of its own, r * 1000 + 1 and so on.
local function world(size, opts, lengths)
  local loaders = {}
  core.gather_numbers = function(mine)
    local all = {}
    for r = 1, size do
      all[r] = table.move(mine, 1, #mine, 1, {})
      if lengths then all[r][#mine] = lengths[r] end
    end
    return all
  end
  for r = 1, size do
    local set = numbers(lengths and lengths[r] or opts.n)
    for _, sample in ipairs(set) do sample.x = sample.x + (lengths and r * 1000 or 0) end
    loaders[r] = zt.data.loader(set, {batch_size = opts.batch_size, shuffle = opts.shuffle, seed = 11,
      drop_last = opts.drop_last, sharded = lengths ~= nil})
    loaders[r]:shard(r - 1, size)
  end
  return loaders
end

local function run_epoch(loaders, limit)
  local batches = {}
  for r, loader in ipairs(loaders) do
    batches[r] = {}
    for batch in loader:iter() do
      local rows = batch.x:totable()
      table.insert(batches[r], {rows = rows, first = loader.first_sample, last = loader:is_last()})
      if #batches[r] == limit then break end
    end
  end
  return batches
end

-- All samples in the order of global batches.
local function joined(batches)
  local list = {}
  for k = 1, #batches[1] do
    for r = 1, #batches do table.move(batches[r][k].rows, 1, #batches[r][k].rows, #list + 1, list) end
  end
  return list
end

describe("loaders of ranks", function()
  local n, gather_numbers = 23, core.gather_numbers
  after_each(function() core.gather_numbers = gather_numbers end)

  it("give each sample once, in an order that does not depend on their number", function()
    for _, shuffle in ipairs {false, true} do
      local order = epoch(zt.data.loader(numbers(n), {batch_size = 4, shuffle = shuffle, seed = 11}))
      for size = 1, 5 do
        for _, batch_size in ipairs {1, 3, 4, 30} do
          local loaders = world(size, {n = n, batch_size = batch_size, shuffle = shuffle})
          local batches = run_epoch(loaders)
          assert.same(order, joined(batches))
          for r, loader in ipairs(loaders) do
            assert.equal(math.ceil(n / (size * batch_size)), #loader)
            assert.equal(#loader, #batches[r])
            for k, batch in ipairs(batches[r]) do
              assert.equal(k == #loader, batch.last)
              assert.equal((k - 1) * size * batch_size + (r - 1) * batch_size, batch.first)
            end
          end
        end
      end
    end
  end)

  it("number samples over epochs", function()
    local loaders = world(2, {n = n, batch_size = 4})
    run_epoch(loaders)
    local batches = run_epoch(loaders)
    assert.same({23, 27}, {batches[1][1].first, batches[2][1].first})
    assert.same({3, 3}, {loaders[1].epoch, loaders[2].epoch})
  end)

  it("leave out what is not full with drop_last", function()
    for size = 1, 5 do
      local batches = run_epoch(world(size, {n = n, batch_size = 3, drop_last = true}))
      local whole = n // (3 * size)
      for r = 1, size do
        assert.equal(whole, #batches[r])
        for k, batch in ipairs(batches[r]) do assert.same({3, k == whole}, {#batch.rows, batch.last}) end
      end
      assert.equal(whole * 3 * size, #joined(batches))
    end
    assert.match("23 samples give no batch of 12 for each of 2 ranks", support.message(function()
      world(2, {n = n, batch_size = 12, drop_last = true})
    end))
  end)

  it("go on from a state of any number of ranks and batch size", function()
    local whole = joined(run_epoch(world(1, {n = n, batch_size = 1, shuffle = true})))
    for before = 1, 4 do
      for after = 1, 4 do
        local first = world(before, {n = n, batch_size = 2, shuffle = true})
        local seen = joined(run_epoch(first, 2))
        local second = world(after, {n = n, batch_size = 3, shuffle = true})
        for _, loader in ipairs(second) do loader:load_state_dict(first[1]:state_dict()) end
        local rest = run_epoch(second)
        for r = 1, after do
          for k, batch in ipairs(rest[r]) do assert.equal(k == #rest[r], batch.last) end
        end
        assert.same(whole, table.move(joined(rest), 1, n - #seen, #seen + 1, seen))
        assert.equal(2, second[1].epoch)
        run_epoch(second, #second[1])
        assert.equal(n, second[1]:state_dict().position)
      end
    end
  end)

  it("cut the rest of an epoch into whole batches with drop_last", function()
    local loaders = world(2, {n = n, batch_size = 3, drop_last = true})
    for _, loader in ipairs(loaders) do loader:load_state_dict {epoch = 1, position = 4, seed = 11, count = n} end
    local rest = joined(run_epoch(loaders))
    assert.same({5, 22, 18}, {rest[1], rest[#rest], #rest})
  end)

  it("go through data of their own to the end of the longest", function()
    local lengths = {4, 9, 1}
    local loaders = world(3, {batch_size = 2}, lengths)
    local batches = run_epoch(loaders)
    for r, length in ipairs(lengths) do
      assert.equal(5, #loaders[r])
      assert.equal(5, #batches[r])
      local own = {}
      for k, batch in ipairs(batches[r]) do
        table.move(batch.rows, 1, #batch.rows, #own + 1, own)
        assert.equal(k == 5, batch.last)
      end
      assert.equal(length, #own)
      for i, x in ipairs(own) do assert.equal(r * 1000 + i, x) end
    end
    assert.same({0, 4, 13}, {batches[1][1].first, batches[2][1].first, batches[3][1].first})
    assert.same({15, 6}, {batches[3][2].first, batches[2][2].first})
    local state = loaders[1]:state_dict()
    assert.same({14, lengths}, {state.count, state.lengths})
    loaders[2]:load_state_dict(state)
    state.lengths = {5, 8, 1}
    assert.match("a dataset of 5 %+ 8 %+ 1 samples, not 4 %+ 9 %+ 1",
      support.message(loaders[2].load_state_dict, loaders[2], state))
    for r, rank_batches in ipairs(run_epoch(world(3, {batch_size = 2, drop_last = true}, lengths))) do
      local sizes = {}
      for k, batch in ipairs(rank_batches) do sizes[k] = #batch.rows end
      assert.same(({{2, 2, 0, 0}, {2, 2, 2, 2}, {0, 0, 0, 0}})[r], sizes)
    end
  end)

  it("give a rank that has none left a batch without rows", function()
    local set = {}
    for i = 1, 3 do
      set[i] = {input_ids = {i, i, i}, x = zt.ones(2, 2):to("bfloat16"), name = "sample " .. i, one = zt.ones(1)}
    end
    local loader = zt.data.loader(set, {batch_size = 2})
    loader:shard(3, 4)
    local batch = loader:iter()()
    assert.same({0, 3}, {batch.input_ids:size()})
    assert.same({0, 3}, {batch.attention_mask:size()})
    assert.same({0, 2, 2}, {batch.x:size()})
    assert.same({"int64", "bfloat16"}, {batch.input_ids:dtype(), batch.x:dtype()})
    assert.same({}, batch.name)
    assert.same({}, batch.one:totable())

    loader = zt.data.loader(set, {collate = function(samples)
      return {inner = {y = core.zeros(#samples, 5), more = samples}, scale = 2}
    end})
    loader:shard(3, 4)
    batch = loader:iter()()
    assert.same({0, 5}, {batch.inner.y:size()})
    assert.same({{}, 2}, {batch.inner.more, batch.scale})
  end)

  it("say where they differ", function()
    local loader, other = zt.data.loader(numbers(5), {seed = 1}), nil
    loader:shard(0, 2)
    core.gather_numbers = function(mine) return {mine, other(table.move(mine, 1, #mine, 1, {}))} end
    other = function(theirs)
      theirs[4] = 2
      return theirs
    end
    assert.match("loaders differ: seed is 1 on rank 0 and 2 on rank 1", support.message(loader.iter, loader))
    other = function(theirs)
      theirs[#theirs] = 6
      return theirs
    end
    assert.match("datasets have 5, 6 samples; where each rank has its own, sharded = true says so",
      support.message(loader.iter, loader))
    other = function() return {0} end
    assert.match("dataset of rank 1 has no samples",
      support.message(zt.data.loader, numbers(2), {sharded = true}))
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
