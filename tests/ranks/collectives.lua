-- What each rank gets from the collectives, checked on each against what it must be. Prints "ok" on the first.
local zt = require "ztrain"
local core = require "ztrain.core"

local rank, size = core.rank(), core.world_size()
local dtypes = {"float32", "float64", "bfloat16", "float16", "int64", "int32", "uint8"}

local function same(got, want, what)
  if not got:equal(want) or got:dtype() ~= want:dtype() then
    error(("%s: %s, not %s"):format(what, tostring(got), tostring(want)))
  end
end

-- Rank r's rows: 10 r + 1, ... in two columns.
local function rows_of(r, n, dtype)
  local rows = {}
  for i = 1, n do rows[i] = {10 * r + i, 100 + r} end
  return n > 0 and zt.tensor(rows, {dtype = dtype}) or zt.zeros(0, 2, {dtype = dtype})
end

-- all_gather_tensor: each rank as many rows as its number, the other way round, and none but on the last.
for _, dtype in ipairs(dtypes) do
  for _, count in ipairs {
    function(r) return r end, function(r) return size - 1 - r end, function(r) return r == size - 1 and 3 or 0 end,
    function() return 2 end, function() return 0 end,
  } do
    local parts = {}
    for r = 0, size - 1 do parts[r + 1] = rows_of(r, count(r), dtype) end
    same(core.all_gather_tensor(parts[rank + 1]), zt.cat(parts, 1), "all_gather_tensor")
  end
end
local scalars = {}
for r = 1, size do scalars[r] = r - 1 end
same(core.all_gather_tensor(zt.tensor(rank)), zt.tensor(scalars), "scalars")
same(core.all_gather_tensor(zt.ones(3, 2 * (rank + 1)):transpose(1, 2)), zt.ones(size * (size + 1), 3), "a view")

-- all_reduce_tensor: sums in rank order; means rounded once.
for _, dtype in ipairs {"float32", "float64", "bfloat16", "float16", "int64"} do
  local sum = zt.tensor({size * (size - 1) // 2, size, 0}, {dtype = dtype})
  same(core.all_reduce_tensor(zt.tensor({rank, 1, 0}, {dtype = dtype}), "sum"), sum, "sum")
  if dtype ~= "int64" then
    local mean = zt.tensor({(size - 1) / 2, 1, 0}, {dtype = dtype})
    same(core.all_reduce_tensor(zt.tensor({rank, 1, 0}, {dtype = dtype}), "mean"), mean, "mean")
  end
end
local in_order = 0
for r = 0, size - 1 do in_order = (zt.tensor(in_order) + zt.tensor(1 / (r + 3) * 10 ^ r)):item() end
same(core.all_reduce_tensor(zt.tensor(1 / (rank + 3) * 10 ^ rank), "sum"), zt.tensor(in_order), "sum in rank order")
zt.seed(rank)
local x = zt.randn(1000):to("bfloat16")
local mean = core.all_reduce_tensor(x:to("float32"), "mean"):to("bfloat16")
same(core.all_reduce_tensor(x, "mean"), mean, "mean of bfloat16")
same(core.all_reduce_tensor(zt.zeros(0, 3), "sum"), zt.zeros(0, 3), "nothing")

-- broadcast_tensor: others give nothing; no history.
for root = 0, size - 1 do
  for _, dtype in ipairs(dtypes) do
    same(core.broadcast_tensor(rank == root and rows_of(root, 3, dtype) or nil, root), rows_of(root, 3, dtype),
      "broadcast_tensor")
  end
  same(core.broadcast_tensor(zt.tensor(rank + 0.5), root), zt.tensor(root + 0.5), "a scalar")
end
local w = zt.ones(2):requires_grad_()
assert(not core.all_gather_tensor(w * 2):requires_grad() and not core.all_reduce_tensor(w, "mean"):requires_grad())

-- numbers and strings
local exact = {math.mininteger + rank, math.maxinteger, 2 ^ 0.5 * rank, rank, 0.0, 1 / 0}
local all = core.gather_numbers(exact)
for r = 0, size - 1 do
  for i, v in ipairs {math.mininteger + r, math.maxinteger, 2 ^ 0.5 * r, r, 0.0, 1 / 0} do
    assert(all[r + 1][i] == v and math.type(all[r + 1][i]) == math.type(v), "gather_numbers")
  end
end
assert(#all == size and #all[1] == 6 and #core.gather_numbers({})[size] == 0)
local texts = core.gather_strings(("x\0y"):rep(rank))
assert(#texts == size)
for r = 0, size - 1 do assert(texts[r + 1] == ("x\0y"):rep(r), "gather_strings") end
for root = 0, size - 1 do
  assert(core.broadcast_string(rank == root and "from " .. root or nil, root) == "from " .. root)
  assert(core.broadcast_string(rank == root and "" or nil, root) == "")
end

-- the accelerator's
local acc = zt.accelerator()
assert(acc.num_processes == size and acc.process_index == rank and acc.is_main_process == (rank == 0))
local got = acc:gather {rows_of(rank, rank, "int64"), named = zt.tensor(rank), {rank, rank + 0.5}}
local parts = {}
for r = 0, size - 1 do parts[r + 1] = rows_of(r, r, "int64") end
same(got[1], zt.cat(parts, 1), "gather: rows")
same(got.named, zt.tensor(scalars), "gather: scalars")
same(got[2][1], zt.tensor(scalars, {dtype = "int64"}), "gather: integers")
same(got[2][2], zt.tensor(scalars, {dtype = "float64"}) + 0.5, "gather: numbers")
local sums = acc:reduce {rank, rank == 0 and 0 or 0.5, t = zt.ones(2)}
assert(sums[1] == size * (size - 1) // 2 and math.type(sums[1]) == "integer")
assert(sums[2] == 0.5 * (size - 1))
same(sums.t, zt.full({2}, size), "reduce: sum")
assert(acc:reduce(rank, "mean") == (size - 1) / 2)
acc:wait_for_everyone()

local stats = core.comm_stats()
for r, hash in ipairs(core.gather_strings(stats.hash)) do assert(hash == stats.hash, "hash of rank " .. r - 1) end
assert(stats.n_barrier == 1 and stats.n_all_gather > 100 and stats.waited >= 0)
assert((stats.nbytes_sent > 0) == (size > 1))
acc:print("ok", size, core.plane())
