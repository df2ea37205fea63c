-- Faults that users of other trainers report (D1, ...: a numbered list of reports), each with what is right instead. The
-- scripts are functions of tests/ranks/faults.lua, run on one rank and on several.
package.path = debug.getinfo(1, "S").source:match("^@(.*)faults/") .. "lua/?.lua;" .. package.path
local support = require "support"

local function holds(name, ...)
  for _, n in ipairs {1, 3} do
    local ok, text = support.run(n, "faults", name, ...)
    assert.is_true(ok and text == "ok\n", ("%d ranks: %s"):format(n, text))
  end
end

describe("training", function()
  it("D1, D2: gives the same weights in every stage with accumulation and tied weights", function()
    holds "stages_with_accumulation"
  end)
  it("D3: gives the same norm in every stage", function() holds "norm_of_each_stage" end)
  it("D16: does not depend on when gradients and parameters arrive", function()
    holds("overlap_with_delays", support.long and 500 or 20)
  end)
  it("D19, D34: takes parameters of no and of three elements, and sizes that nothing divides", function()
    holds "parameters_of_no_and_three_elements"
  end)
  it("D23, D24, D25: skips a step whole where one rank overflows, and names parameter, rank and micro-step", function()
    holds "overflow_is_named"
  end)
  it("D27: moves the schedule once a step", function() holds "schedule_moves_with_steps" end)
  it("D38: loads a state that was saved with parameters frozen", function() holds "frozen_then_unfrozen" end)
  it("D43, D44: saves with three collectives and no memory of the device", function() holds "cheap_save" end)
  it("D54: says nothing between ranks until the last micro-step, where sums are local", function()
    holds "quiet_micro_steps"
  end)
  it("D58: shows whole parameters in stage 3, and keeps what is written into them", function()
    holds "shapes_and_writes"
  end)
  it("D63: gives all memory back", function() holds "made_and_freed" end)
  it("D72: trains with frozen parameters, recompute and stage 3", function() holds "frozen_with_recompute" end)
end)

describe("ranks that differ", function()
  after_each(support.clean)

  -- Runs tests/ranks/differ.lua; returns its exit status, its text and the seconds.
  local function differ(mode, stage)
    local _, text, seconds, status = support.run(3, "differ", mode, stage or 3, support.folder())
    return status, text, seconds
  end

  it("D51: an op on other parameters is an error that names both sides", function()
    for stage = 0, 3, 3 do
      local status, text, seconds = differ("branch", stage)
      assert.equal(1, status)
      assert.is_true(seconds < 10)
      assert.match("ranks differ at collective %d+: rank 0 is in .-a%.weight.-, rank 1 in .-b%.weight", text)
      assert.match("differ%.lua:%d+", text)
    end
  end)

  it("D52: a backward that one rank leaves out is named with tensor and line", function()
    local status, text, seconds = differ "skip"
    assert.equal(1, status)
    assert.is_true(seconds < 10)
    assert.match("ranks differ at collective %d+: rank 0 is in .-differ%.lua:%d+.-, rank 1 in .-differ%.lua:%d+", text)
  end)

  it("D45: saving on the first rank alone is an error on all, and leaves nothing", function()
    local status, text, seconds = differ "save"
    assert.equal(1, status)
    assert.is_true(seconds < 10)
    assert.match("rank 0 is in .-checkpoint", text)
    for rank = 0, 2 do assert.match(("rank %d/3"):format(rank), text) end
  end)

  it("D49: a checkpoint that is not there is an error", function()
    local status, text = differ "latest"
    assert.equal(1, status)
    assert.match("no checkpoint", text)
  end)

  it("D55: os.exit(7), an error, a kill of one rank end all, with its status and the cause", function()
    local status, text, seconds = differ "exit"
    assert.same({7, true}, {status, seconds < 10})
    assert.match("rank 0/3: .-rank 1/3: .-os%.exit%(7%)", text)
    status, text, seconds = differ "raise"
    assert.same({1, true}, {status, seconds < 10})
    assert.match("rank 2/3: .-rank 1/3: .-boom", text)
    status, text, seconds = differ "kill"
    assert.same({137, true}, {status, seconds < 10})
    assert.match("rank 1/3 was killed by signal 9", text)
  end)
end)
