package.path = debug.getinfo(1, "S").source:match("^@(.*)/") .. "/?.lua;" .. package.path
local support = require "support"
local zt = require "ztrain"

-- y = w x towards y = 3 x, with a loader, an optimizer and a schedule.
local function setting(opts, lr)
  local samples = {}
  for i = 1, 6 do samples[i] = {x = i / 6, y = i / 2} end
  local model = zt.nn.Linear(1, 1, {bias = false, std = 0})
  local opt = zt.optim.sgd(model:parameters(), {lr = lr or 0.1})
  local loader = zt.data.loader(samples, {batch_size = 2})
  local sched = zt.schedule.constant(opt)
  local acc = zt.accelerator(opts)
  return acc, acc:prepare(model, opt, loader, sched)
end

local function loss_of(model, batch)
  return zt.mse(model(batch.x:reshape(-1, 1)), batch.y:reshape(-1, 1))
end

describe("accelerator", function()
  after_each(support.clean)

  it("trains", function()
    local acc, model, opt, loader, sched = setting({}, 0.5)
    assert.same({3, 1, 0, true, "cpu"},
      {acc:num_steps(loader), acc.num_processes, acc.process_index, acc.is_main_process, acc.device})
    for _ = loader.epoch, 20 do
      for batch in loader:iter() do
        local value = acc:accumulate(function()
          local loss = loss_of(model, batch)
          acc:backward(loss, 2)
          opt:step()
          sched:step()
          opt:zero_grad()
          return loss:item()
        end)
        assert.equal("number", type(value))
      end
    end
    assert.equal(60, acc.step)
    assert.near(3, model.weight:item(), 1e-3)
  end)

  it("frees what a step made and did not return", function()
    local acc, model, _, loader = setting()
    local freed
    for batch in loader:iter() do
      local kept, n = acc:accumulate(function()
        freed = loss_of(model, batch)
        return loss_of(model, batch), 5
      end)
      assert.same({5, "number"}, {n, type(kept:item())})
      assert.match("step", support.message(function() return freed:item() end))
    end
  end)

  it("clips in the step, and gives the norm before", function()
    local acc, model, opt = setting({}, 1)
    acc:accumulate(function()
      acc:backward((model.weight * 4):sum())
      assert.near(4, acc:clip_grad_norm_(model:parameters(), 0.5), 1e-6)
      assert.equal(4, model.weight.grad:item())
      opt:step()
      assert.near(-0.5, model.weight:item(), 1e-6)
      opt:step()
      assert.near(-1, model.weight:item(), 1e-6)
    end)
  end)

  it("skips a step whose gradient is not finite, says which, and ends where too many come in a row", function()
    local acc, model, opt, _, sched = setting {max_skipped_steps = 2}
    local said = {}
    acc.print = function(_, text) said[#said + 1] = text end
    local function step(factor)
      return acc:accumulate(function()
        acc:backward((model.weight * factor):sum())
        opt:step()
        sched:step()
        opt:zero_grad()
      end)
    end
    model.weight:fill_(1)
    step(0 / 0)
    step(math.huge)
    assert.same({1, 0, 2, 2}, {model.weight:item(), sched.count, acc.step, acc.skipped_steps})
    assert.match("step 1 skipped: the gradient of weight is not finite %(element 0, rank 0, micro%-step 1%)", said[1])
    assert.match("3 steps in a row were skipped %(the limit is 2%); in step 3 the gradient of weight is not finite",
      support.message(step, 0 / 0))
    step(1)
    assert.same({3, 1}, {acc.skipped_steps, sched.count})
    assert.near(0.9, model.weight:item(), 1e-6)
    assert.match("there is no loss", support.message(acc.backward, acc, {}))
  end)

  it("learns nothing from a batch without labels", function()
    local acc, model, opt = setting()
    acc:accumulate(function()
      acc:backward {loss = model.weight:sum(), count = 0}
      assert.equal(0, model.weight.grad:item())
      opt:step()
    end)
    assert.same({0, 1, true}, {model.weight:item(), acc.skipped_steps, acc.optimizer_step_was_skipped})
  end)

  it("keys dropout by the step and the sample", function()
    local function masks()
      zt.seed(4)
      local acc, _, _, loader = setting()
      local seen = {}
      for _ in loader:iter() do
        acc:accumulate(function() seen[#seen + 1] = zt.dropout(zt.ones(2, 64), 0.5):hash() end)
      end
      return seen
    end
    local one = masks()
    zt.randn(3)
    assert.same(one, masks())
    assert.is_not.equal(one[1], one[2])
  end)

  it("logs lines of JSON", function()
    local folder = support.folder()
    local acc = zt.accelerator {project_dir = folder .. "/run"}
    acc:log {loss = 0.5}
    acc:accumulate(function() end)
    acc:log {loss = 0.25, epoch = 1}
    acc:log({loss = 1}, 9)
    local lines = {}
    for line in io.lines(folder .. "/run/metrics.jsonl") do lines[#lines + 1] = zt.json.decode(line) end
    assert.same({0, 1, 9}, {lines[1].step, lines[2].step, lines[3].step})
    assert.same({0.5, 0.25, 1}, {lines[1].loss, lines[2].loss, lines[2].epoch})
    assert.is_true(lines[1].seconds >= 0)
    zt.accelerator():log {loss = 1}
  end)

  it("stops at the end of a step when a signal asks for it, its metrics kept", function()
    local folder = support.folder()
    support.write(folder .. "/stop.lua", [[
      local zt = require "ztrain"
      local acc = zt.accelerator {project_dir = arg[1]}
      for step = 1, 3 do
        acc:accumulate(function()
          if step == 2 then os.execute "kill -TERM $PPID" end
          acc:log {loss = step}
        end)
      end]])
    local interpreter = arg[-1] and not arg[-1]:match("^lua") and arg[-1] or "lua5.4"
    local pipe = io.popen(("%s %s/stop.lua %s 2>&1"):format(interpreter, folder, folder))
    local text = pipe:read("a")
    assert.is_falsy(pipe:close())
    assert.match("stop.lua:%d+: stopped by SIGTERM after step 2", text)
    assert.match('"loss": ?2[^\n]*\n$', support.read(folder .. "/metrics.jsonl"))
  end)

  it("gathers and reduces in a world of one", function()
    local acc, t = zt.accelerator(), zt.ones(2)
    assert.same({true, 1, 0}, {acc.is_main_process, acc.num_processes, acc.process_index})
    assert.is_true(t:equal(acc:gather(t)))
    assert.is_true(t:equal(acc:gather_for_metrics(t)))
    assert.is_true(t:equal(acc:reduce(t, "mean")))
    assert.same({0.5, 7, {1}}, acc:reduce {0.5, 7, {1}})
    assert.same({{3}, "int64"}, {acc:gather(3):totable(), acc:gather(3):dtype()})
    acc:wait_for_everyone()
    assert.match("unknown reduction 'men'; did you mean 'mean'", support.message(acc.reduce, acc, t, "men"))
    assert.match("gather: tensors, numbers and tables of them are expected, not 'x'",
      support.message(acc.gather, acc, {a = {"x"}}))
  end)

  it("saves a model of one's own by its names", function()
    local folder = support.folder() .. "/deep/er"
    local acc, model = setting()
    acc:save_model(model, folder)
    assert.same({{0}}, zt.safetensors.load(folder .. "/model.safetensors").weight:totable())
    acc:free_memory()
  end)

  it("knows its options", function()
    assert.match("unknown option 'project_dri'; did you mean 'project_dir'",
      support.message(zt.accelerator, {project_dri = "x"}))
  end)
end)
