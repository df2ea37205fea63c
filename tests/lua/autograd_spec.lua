-- Gradients as scripts see them: leaves, backward, modes, checkpoints whose Lua function runs again, optimizers.
local core = require "ztrain.core"
package.path = debug.getinfo(1, "S").source:match("^@(.*)/") .. "/?.lua;" .. package.path
local support = require "support"

local seed = tonumber(os.getenv "ZT_SEED") or os.time()
core.seed(seed)

local message = support.message

describe("autograd (ZT_SEED=" .. seed .. ")", function()
  it("adds gradients to leaves", function()
    local w = core.tensor({1, 2, 3}):requires_grad_()
    assert.is_true(w:requires_grad())
    assert.is_nil(w.grad)
    local loss = (w * w):sum()
    assert.is_true(loss:requires_grad())
    loss:backward()
    assert.are.same({2, 4, 6}, w.grad:totable())
    w:sum():backward(nil, {seed = 10})
    assert.are.same({12, 14, 16}, w.grad:totable())
    local y = w * 2
    y:backward(core.tensor {1, 0, 1})
    assert.are.same({14, 14, 18}, w.grad:totable())
  end)

  it("lets grad be set and dropped", function()
    local w = core.tensor({1, 2}):requires_grad_()
    w.grad = core.tensor {5, 6}
    w:sum():backward()
    assert.are.same({6, 7}, w.grad:totable())
    w.grad = nil
    assert.is_nil(w.grad)
    assert.matches("grad: float32 %(3%) for a tensor float32 %(2%)", message(function() w.grad = core.zeros(3) end))
    assert.matches("only a leaf", message(function() (w * 2).grad = core.zeros(2) end))
  end)

  it("refuses what has no gradient", function()
    assert.matches("int64 tensor has no gradient", message(function() core.arange(3):requires_grad_() end))
    local w = core.tensor({1, 2}):requires_grad_()
    assert.matches("was computed", message(function() (w * 2):requires_grad_() end))
    assert.matches("backward", message(function() core.zeros(1):backward() end))
    local loss = (w * w):sum()
    loss:backward()
    assert.matches("freed by an earlier backward", message(function() loss:backward() end))
    assert.is_false(w:requires_grad_(false):requires_grad())
  end)

  it("stops in no_grad and detach", function()
    local w = core.tensor({3}):requires_grad_()
    local y, n = core.no_grad(function(x)
      assert.is_false(core.grad_enabled())
      return x * 2, 5
    end, w)
    assert.is_true(core.grad_enabled())
    assert.are.equal(5, n)
    assert.is_false(y:requires_grad())
    assert.is_false((w * 2):detach():requires_grad())
    assert.matches("inside", message(core.no_grad, error, "inside"))
    assert.is_true(core.grad_enabled())
    w:detach():fill_(4)
    assert.are.equal(4, w:item())
  end)

  it("forgets the tape with the last handle", function()
    collectgarbage()
    local before = core.tape_length()
    local w = core.randn(3):requires_grad_()
    core.scope("s", function() local y = (w * w):exp():sum() assert.is_true(y:requires_grad()) end)
    assert.are.equal(before, core.tape_length())
  end)

  it("computes a checkpointed segment again, with equal bits", function()
    local function gradients(checkpointed)
      core.seed(seed)
      local w, x = core.randn(5, 5):requires_grad_(), core.randn(3, 5):requires_grad_()
      local calls = 0
      local function block(h, scale, none)
        calls = calls + 1
        assert.are.same({2, nil}, {scale, none})
        return (h:matmul(w) * scale):tanh():dropout(0.3), h * w:sum()
      end
      local run = checkpointed and function(...) return core.checkpoint(block, ...) end or block
      local h = x
      for _ = 1, 3 do
        local a, b = run(h, 2, nil)
        h = a + b * 0.01
      end
      h:sum():backward()
      return w.grad, x.grad, calls
    end
    local w1, x1, calls1 = gradients(false)
    local w2, x2, calls2 = gradients(true)
    assert.are.same({3, 6}, {calls1, calls2})
    assert.is_true(w1:equal(w2) and x1:equal(x2))
  end)

  it("frees a segment's activations in between", function()
    local w = core.randn(64, 64):requires_grad_()
    local function block(h)
      for _ = 1, 20 do h = h:matmul(w):tanh() end
      return h
    end
    local function grown(run)
      collectgarbage()
      local before = core.memory().used
      local y = core.scope("s", run, block, core.randn(256, 64))
      local used = core.memory().used - before
      y:sum():backward()
      return used
    end
    local plain = grown(function(f, x) return f(x) end)
    local checkpointed = grown(core.checkpoint)
    assert.is_true(checkpointed * 4 < plain)
  end)

  it("passes on an error of a segment, in forward and in backward", function()
    local w = core.tensor({1}):requires_grad_()
    assert.matches("spec.lua:%d+: model: at once$",
                   message(core.scope, "model", function() core.checkpoint(function() error "at once" end, w) end))
    local object, n = {}, 0
    local y = core.checkpoint(function(x)
      n = n + 1
      if n == 2 then error(object) end
      return x * 2
    end, w)
    local ok, err = pcall(y.backward, y)
    assert.is_false(ok)
    assert.are.equal(object, err)
    assert.matches("result 1 is a number", message(core.checkpoint, function() return 1 end, w))
    local z = core.checkpoint(function(x) return x * 3 end, w) -- and all goes on
    z:backward()
    assert.are.same({3}, w.grad:totable())
  end)

  it("refuses a backward inside a backward", function()
    local x, n, inner = core.tensor({1, 2}):requires_grad_(), 0, nil
    core.checkpoint(function(a)
      local y = a * 2
      n = n + 1
      inner = message(function() y:sum():backward() end)
      return y
    end, x):sum():backward()
    assert.are.equal(2, n)
    assert.matches("another one is going on", inner)
    assert.are.same({2, 2}, x.grad:totable())
  end)

  it("refuses a segment whose second run gives other outputs", function()
    local x = core.randn(3):requires_grad_()
    local function differs(first, second)
      local n = 0
      local y, z = core.checkpoint(function(a)
        n = n + 1
        return (n == 1 and first or second)(a)
      end, x)
      return message(function() (z and y + z or y):sum():backward() end)
    end
    local function double(a) return a * 2 end
    assert.matches("output 2 %(3%) is missing in the second run", differs(function(a) return a * 2, a * 3 end, double))
    assert.matches("was float32 %(3%), in the second run it is float32 %(2%)",
                   differs(double, function(a) return a:narrow(1, 1, 2) end))
    assert.matches("it is float64 %(3%)", differs(double, function(a) return a:to "float64" end))
    assert.is_nil(x.grad)
  end)

  it("knows what a segment reads through upvalues", function()
    local w, x = core.tensor({2}):requires_grad_(), core.tensor {5}
    local y = core.checkpoint(function(h) return h * w end, x)
    y:backward()
    assert.are.same({5}, w.grad:totable())
  end)
end)

describe("optimizers", function()
  it("step groups with their numbers", function()
    local a, b = core.tensor({1}):requires_grad_(), core.tensor({1}):requires_grad_()
    local optim = core.optim "sgd"
    assert.are.equal(1, optim:add(a, 1))
    assert.are.equal(2, optim:add(b, 2))
    local y = a * 3 + b * 5
    y:sum():backward()
    optim:step({{lr = 0.5}, {lr = 0.25, grad_scale = 2}})
    assert.are.same({-0.5, -1.5}, {a:item(), b:item()})
    optim:zero_grad()
    assert.is_nil(a.grad)
    assert.is_false(pcall(optim.add, optim, a, 1))
    assert.matches("did you mean 'momentum'", message(function() optim:step({{lr = 1, momentun = 1}}) end))
    assert.matches("'lr' must be given", message(function() optim:step({{}}) end))
  end)

  it("give and take their state", function()
    local function one_step(optim, w)
      w.grad = core.full({3}, 0.5)
      optim:step({{lr = 0.1}})
    end
    local w = core.randn(3):requires_grad_()
    local optim = core.optim "adamw"
    optim:add(w, 1)
    one_step(optim, w)
    local v = w:detach():copy():requires_grad_()
    local other = core.optim "adamw"
    other:add(v, 1)
    other:set_state(1, optim:state(1))
    one_step(optim, w)
    one_step(other, v)
    assert.is_true(w:equal(v))
    assert.are.equal(2, (other:state(1)))
    assert.matches("not in 1 .. 1", message(function() optim:state(2) end))
  end)
end)
