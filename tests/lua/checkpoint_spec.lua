-- Runs that stop and go on: at the same number of ranks to the bit, at any other with the same state; and runs that are
-- killed.
package.path = debug.getinfo(1, "S").source:match("^@(.*)/") .. "/?.lua;" .. package.path
local support = require "support"

-- Trains with tests/ranks/resume.lua; returns what it printed.
local function train(n, stage, precision, steps, load, save, optimizer)
  local rows = support.rows(n, "resume", stage, precision, steps, load or "-", save or "-", optimizer or "adamw")
  assert.equal(1, #rows)
  return rows[1]
end

describe("checkpoints", function()
  after_each(support.clean)

  it("go on as if nothing had happened: 10 steps are 5, saved and loaded, and 5 (D33, D34, D48)", function()
    local folder = support.folder()
    for _, precision in ipairs {"no", "bf16", "fp16"} do
      local straight = train(4, 2, precision, 10)
      for stage = 0, 3 do
        train(4, stage, precision, 5, nil, folder .. "/ck")
        local resumed = train(4, stage, precision, 10, folder .. "/ck")
        assert.same(straight, resumed, ("%s, stage %d"):format(precision, stage))
      end
    end
  end)

  it("open at any number of ranks and in any stage (D30)", function()
    local folder = support.folder()
    local straight = train(4, 3, "bf16", 10)
    local at_5 = train(4, 3, "bf16", 5, nil, folder .. "/a")
    for n = 1, 3 do
      assert.same(at_5, train(n, 1, "bf16", 5, folder .. "/a", folder .. "/b"), n .. " ranks")
      assert.same(straight, train(4, 3, "bf16", 10, folder .. "/b"), n .. " ranks and back")
    end
  end)

  it("hold any number of tensors for each parameter (D32)", function()
    local folder = support.folder()
    for _, optimizer in ipairs {"sgd", "lion", "adam"} do
      local straight = train(3, 1, "no", 6, nil, nil, optimizer)
      train(3, 1, "no", 3, nil, folder .. "/ck", optimizer)
      assert.same(straight, train(3, 3, "no", 6, folder .. "/ck", nil, optimizer), optimizer)
    end
  end)
end)
