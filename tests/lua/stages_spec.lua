-- What ZeRO's stages promise: the same bits however the work is shared out, and the memory that each leaves.
package.path = debug.getinfo(1, "S").source:match("^@(.*)/") .. "/?.lua;" .. package.path
local support = require "support"

local sizes = {1, 2, 3, 4}

describe("stages", function()
  it("give the same bits, and any number of ranks the same losses", function()
    local steps = support.long and 20 or 5
    local reference, lines = nil, {}
    for _, n in ipairs(sizes) do
      local rows, hashes = support.rows(n, "stages", steps), {}
      assert.equal(24, #rows)
      for _, row in ipairs(rows) do
        local what = ("%d ranks, %s, %s"):format(n, row.precision, row.policy)
        hashes[what] = hashes[what] or row.hash
        assert.equal(hashes[what], row.hash, ("%s, stage %d"):format(what, row.stage))
        assert.is_true(row.clipped > 0, what)
        lines[#lines + 1] = ("%d  %-4s  %-7s  %d  %s  %.6f"):format(n, row.precision, row.policy, row.stage, row.hash,
          row.losses[#row.losses])
        if row.precision == "no" then
          reference = reference or row.losses
          for i, loss in ipairs(row.losses) do assert.near(reference[i], loss, 1e-5) end
        end
      end
    end
    print("\nranks, precision, policy, stage, hash, last loss\n" .. table.concat(lines, "\n"))
  end)

  it("do not depend on overlap, page size, resident limit and recompute", function()
    for _, n in ipairs {2, 3} do
      local rows = support.rows(n, "variants")
      for _, row in ipairs(rows) do assert.equal(rows[1].hash, row.hash, ("%d ranks, way %d"):format(n, row.way)) end
    end
  end)

  -- D68: at most two gathers and one reduction for each page and micro-step where there is no limit.
  it("gather a page twice at most, and reduce it once, a micro-step", function()
    for _, row in ipairs(support.rows(2, "counts")) do
      assert.is_true(row.gathers <= 2 * row.pages * row.micro_steps, "stage " .. row.stage)
      assert.equal(row.reductions, row.pages * row.micro_steps, "stage " .. row.stage)
    end
  end)

  -- Bytes a parameter, in bf16, of N ranks.
  local formulas = {
    sharded = {
      [0] = function(n) return 14 + 4 / n end, function(n) return 2 + 16 / n end, function(n) return 2 + 16 / n end,
      function(n) return 18 / n end,
    },
    ["local"] = {
      [0] = function() return 18 end, function(n) return 6 + 12 / n end, function(n) return 6 + 12 / n end,
      function(n) return 4 + 14 / n end,
    },
  }

  it("leave the memory that the formulas say, less from stage to stage", function()
    for _, n in ipairs {1, 2, 4} do
      local last, peak
      for _, row in ipairs(support.rows(n, "bytes")) do
        local want = row.micro_steps == 1 and 16 or formulas[row.policy][row.stage](n)
        assert.near(want, row.bytes, 0.02 * want, ("%d ranks, %s, stage %d"):format(n, row.policy, row.stage))
        if row.stage > 0 then
          assert.is_true(row.bytes <= last * 1.001, "bytes rise to stage " .. row.stage)
          assert.is_true(row.peak <= peak * 1.001, "the peak rises to stage " .. row.stage) -- D61
        end
        last, peak = row.bytes, row.peak
      end
    end
  end)
end)
