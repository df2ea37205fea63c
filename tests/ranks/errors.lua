-- What goes wrong between ranks; the case is the argument.
local zt = require "ztrain"
local acc = zt.accelerator()
local rank = acc.process_index

local function numbers(n)
  local list = {}
  for i = 1, n do list[i] = {x = i} end
  return list
end

local cases = {
  unfit = function() acc:gather(rank == 2 and zt.ones(3, 5) or zt.ones(rank, 4)) end,
  dtypes = function() acc:reduce(rank == 1 and zt.ones(2) or zt.arange(2)) end,
  mean = function() acc:reduce(zt.arange(2), "mean") end,
  lengths = function() acc:prepare(zt.data.loader(numbers(5 + rank))):iter() end,
  seeds = function() acc:prepare(zt.data.loader(numbers(5), {seed = rank})):iter() end,
  empty = function() zt.data.loader(numbers(1 - rank % 2), {sharded = true}) end,
  -- evaluation on the main process alone, with a loader of all
  alone = function()
    local loader = acc:prepare(zt.data.loader(numbers(5)))
    if acc.is_main_process then loader:iter() else acc:wait_for_everyone() end
  end,
}
cases[arg[1]]()
