-- Scripts of tests/ranks on several ranks, as a user starts them.
package.path = debug.getinfo(1, "S").source:match("^@(.*)/") .. "/?.lua;" .. package.path
local support = require "support"
local core = require "ztrain.core"
local zt = require "ztrain"

local run = support.run

describe("ranks", function()
  teardown(support.clean)

  for n = 1, 4 do
    it("gather, reduce and broadcast: " .. n, function()
      local ok, text = run(n, "collectives")
      assert.is_true(ok, text)
      assert.equal(("ok\t%d\t%s\n"):format(n, n == 1 and "self" or "shm"), text)
    end)
  end

  it("go through an epoch in one order, each sample once", function()
    local orders = {}
    for n = 1, 4 do
      local ok, text = run(n, "loader")
      assert.is_true(ok, text)
      local first, second, count, steps = text:match("^([%d ]+)\n([%d ]+)\n(%d+) samples in (%d+) steps\n$")
      orders[n] = {first, second}
      assert.same(orders[1], orders[n])
      local sum = 0
      for x in first:gmatch("%d+") do sum = sum + x end
      assert.equal(23 * 24 // 2, sum)
      assert.is_true(first ~= second)
      assert.same({n * (n + 6), n + 3}, {tonumber(count), tonumber(steps)})
    end
  end)

  it("open one text together, which one of them encodes", function()
    local folder, lines = support.folder(), {}
    for i = 1, 200000 do lines[i] = ("%d %d %d\n"):format(i, i * i % 1009, i * 7) end
    support.write(folder .. "/text", table.concat(lines))
    local ok, text = run(4, "text", folder .. "/text", folder .. "/cache")
    assert.is_true(ok, text)
    assert.equal("ok\n", text)
  end)

  local errors = {
    unfit = "gather: the ranks' tensors do not fit together: rank 0 has float32 %(0, 4%), rank 1 has float32 %(1, 4%), "
      .. "rank 2 has float32 %(3, 5%)",
    dtypes = "reduce: the ranks' tensors do not fit together: rank 0 has int64 %(2%), rank 1 has float32 %(2%)",
    mean = "reduce: the mean of int64 tensors is none of that dtype",
    lengths = "the ranks' datasets have 5, 6, 7 samples; where each rank has its own, sharded = true says so",
    seeds = "the ranks' loaders differ: seed is 0 on rank 0 and 1 on rank 1",
    empty = "data.loader: the dataset of rank 1 has no samples",
    alone = "rank 0 is in all_gather 'loader' %b(), rank [12] in barrier 'wait_for_everyone'",
  }
  for name, pattern in pairs(errors) do
    it("that differ fail with what each has: " .. name, function()
      local ok, text, seconds = run(3, "errors", name)
      assert.is_false(ok)
      assert.match(pattern, text)
      assert.match("errors.lua:%d+: ", text)
      assert.is_true(seconds < 10, seconds .. " s")
    end)
  end
end)

describe("a world of one", function()
  it("is this process", function()
    assert.same({0, 1, 0, "self"}, {core.rank(), core.world_size(), core.local_rank(), core.plane()})
    local before = core.comm_stats()
    core.barrier "nothing"
    local after = core.comm_stats()
    assert.equal(before.n_barrier + 1, after.n_barrier)
    assert.equal(0, after.nbytes_sent)
    assert.match("^%x+$", after.hash)
    assert.is_true(before.hash ~= after.hash)
  end)

  it("checks what collectives are given", function()
    support.raises("argument 2: rank 1 is not in 0 %.%. 0", core.broadcast_string, "x", 1)
    support.raises("argument 2: rank %-1 is not in 0 %.%. 0", core.broadcast_tensor, zt.ones(1), -1)
    support.raises("argument 1: string expected, got nil", core.broadcast_string, nil, 0)
    support.raises("argument 1: tensor expected, got nil", core.broadcast_tensor, nil, 0)
    support.raises("argument 1: tensor expected, got number", core.all_gather_tensor, 1)
    support.raises("gather_numbers: element 2 is a string, not a number", core.gather_numbers, {1, "2"})
    support.raises("unknown reduction 'product'", core.all_reduce_tensor, zt.ones(1), "product")
    support.raises("sums over ranks are of float32, .* not of int32", core.all_reduce_tensor,
      zt.ones(1, {dtype = "int32"}), "sum")
  end)
end)
