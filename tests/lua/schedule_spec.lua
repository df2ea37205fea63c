-- Rates equal those that transformers and DeepSpeed really use, step by step (goldens/train/schedules.json).
package.path = debug.getinfo(1, "S").source:match("^@(.*)/") .. "/?.lua;" .. package.path
local support = require "support"
local zt = require "ztrain"

local function optimizer(lr, n_groups)
  local groups = {}
  for i = 1, n_groups or 1 do groups[i] = {params = {zt.zeros(1):requires_grad_()}} end
  return zt.optim.sgd(groups, {lr = lr})
end

describe("schedule", function()
  local golden = zt.json.load(support.tests .. "goldens/train/schedules.json")

  for _, row in ipairs(golden.rows) do
    it(("%s equals %s's"):format(row.name, row.source), function()
      local opt = optimizer(row.base_lr)
      local sched = zt.schedule[row.name](opt, row.args)
      for step, want in ipairs(row.lr) do
        local got = opt.groups[1].lr
        assert(math.abs(got - want) <= 2 ^ -51 * math.abs(want), ("step %d: %.17g, not %.17g"):format(step, got, want))
        assert.equal(got, sched:get_last_lr()[1])
        sched:step()
      end
    end)
  end

  it("keeps each group's own rate apart", function()
    local opt = optimizer(1.0, 2)
    opt.groups[2].lr = 10
    local sched = zt.schedule.linear(opt, {num_training_steps = 4})
    sched:step()
    assert.same({0.75, 7.5}, sched:get_last_lr())
  end)

  it("goes on from a saved state", function()
    local args = {num_warmup_steps = 2, num_training_steps = 9}
    local one, other = optimizer(0.3), optimizer(0.7)
    local first, second = zt.schedule.cosine(one, args), zt.schedule.cosine(other, args)
    for _ = 1, 5 do first:step() end
    second:load_state_dict(first:state_dict())
    assert.same(first:get_last_lr(), second:get_last_lr())
    first:step()
    second:step()
    assert.same(one.groups[1].lr, other.groups[1].lr)
  end)

  it("turns momentum against the rate in OneCycle", function()
    local opt = zt.optim.adamw({zt.zeros(1):requires_grad_()}, {lr = 1})
    local sched = zt.schedule.OneCycle(opt, {cycle_min_lr = 0.1, cycle_max_lr = 1, cycle_first_step_size = 4})
    assert.same({0.8, 0.99}, opt.groups[1].betas)
    for _ = 1, 4 do sched:step() end
    assert.near(1.0, opt.groups[1].lr, 1e-15)
    assert.near(0.8, opt.groups[1].betas[1], 1e-15)
  end)

  it("takes transformers' names for DeepSpeed's warm-up schedules", function()
    local one, other = optimizer(5e-4), optimizer(5e-4)
    local first = zt.schedule.get("WarmupDecayLR", one, {num_warmup_steps = 0, num_training_steps = 11})
    local second = zt.schedule.WarmupDecayLR(other, {warmup_max_lr = 5e-4, warmup_num_steps = 0, total_num_steps = 11})
    for _ = 1, 13 do
      assert.equal(other.groups[1].lr, one.groups[1].lr)
      first:step()
      second:step()
    end
  end)

  it("names the nearest for what it does not know", function()
    local opt = optimizer(1)
    assert.match("unknown schedule 'cosin'; did you mean 'cosine'%? Valid: cosine, ",
      support.message(zt.schedule.get, "cosin", opt, {}))
    assert.match(
      "schedule.linear: unknown option 'num_warmup_step'; did you mean 'num_warmup_steps'%? Valid: num_warmup_steps, ",
      support.message(zt.schedule.linear, opt, {num_warmup_step = 1}))
    assert.match("schedule.linear needs num_training_steps", support.message(zt.schedule.linear, opt, {}))
    assert.match("^%S*schedule_spec.lua:%d+: ", support.message(function() zt.schedule.linear(opt, {}) end))
  end)
end)
