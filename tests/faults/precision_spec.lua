-- Faults of accumulation, precision and clipping that users of other trainers report (D4, ...), each with its right.
package.path = debug.getinfo(1, "S").source:match("^@(.*)faults/") .. "lua/?.lua;" .. package.path
require "support"
local zt = require "ztrain"

-- A parameter alone, prepared; returns the accelerator, the parameter, the optimizer.
local function alone(value, opts, optimizer, lr)
  local w = zt.nn.Parameter(type(value) == "number" and zt.tensor {value} or value)
  local opt = zt.optim[optimizer or "sgd"]({w}, {lr = lr or 1})
  local acc = zt.accelerator(opts)
  acc:prepare(opt)
  return acc, w, opt
end

describe("precision", function()
  it("D4, D11: sums 256 gradients of 1 + 2^-7 in bfloat16 exactly", function()
    local g = 1 + 2 ^ -7
    local acc, w, opt = alone(0, {mixed_precision = "bf16", gradient_accumulation_steps = 256})
    for i = 1, 256 do
      acc:accumulate(function()
        acc:backward((w * g):sum())
        if i == 256 then assert.equal(g, w.grad:item()) end
        opt:step()
      end)
    end
    assert.equal(g, acc.grad_norm)
  end)

  it("D6: adds up several backwards of one step", function()
    local acc, w, opt = alone(0, {})
    acc:accumulate(function()
      for factor = 1, 3 do acc:backward((w * factor):sum()) end
      assert.equal(6, w.grad:item())
      opt:step()
    end)
    assert.equal(-6, w:item())
  end)

  it("D7, D8: gives one gradient however a ragged batch is cut", function()
    local x = zt.tensor {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
    local function gradient(cuts)
      local acc, w = alone(0.5, {gradient_accumulation_steps = #cuts})
      local at, got = 1, nil
      for i, n in ipairs(cuts) do
        acc:accumulate(function()
          acc:backward(((x:narrow(1, at, n) * w - 1) ^ 2):mean(), n)
          if i == #cuts then got = w.grad:item() end
        end)
        at = at + n
      end
      return got
    end
    local whole = gradient {10}
    for _, cuts in ipairs {{5, 5}, {1, 2, 3, 4}, {4, 4, 2}} do
      assert.near(whole, gradient(cuts), 1e-6 * math.abs(whole))
    end
  end)

  it("D9: leaves buffers their dtype", function()
    local Net = zt.nn.class "Net"
    function Net:init() self.fc, self.table = zt.nn.Linear(4, 4), zt.full({4}, 1 + 2 ^ -20) end
    local net = Net()
    local acc, opt = zt.accelerator {mixed_precision = "bf16"}, zt.optim.sgd(net:parameters(), {lr = 1})
    acc:prepare(net, opt)
    assert.same({"bfloat16", "float32"}, {net.fc.weight:dtype(), net.table:dtype()})
    assert.equal(1 + 2 ^ -20, net.table[1]:item())
  end)

  it("D12: moves a weight of bfloat16 by steps that are smaller than its rounding", function()
    for _, w16 in ipairs {false, true} do
      local start = w16 and zt.tensor({1}, {dtype = "bfloat16"}) or 1.0
      local acc, w, opt = alone(start, w16 and {} or {mixed_precision = "bf16"}, "adamw", 1e-4)
      for _ = 1, 1000 do
        acc:accumulate(function()
          acc:backward(w:sum())
          opt:step()
          opt:zero_grad()
        end)
      end
      assert.equal("bfloat16", w:dtype())
      assert.is_true(w:item() < 0.95)
    end
  end)

  it("D13: sees gradients of 1e-7 in float16, through the loss scale", function()
    local acc, w, opt = alone(1, {mixed_precision = "fp16"}, "sgd", 1e4)
    acc:accumulate(function()
      acc:backward((w:to "float32" * 1e-7):sum())
      opt:step()
    end)
    assert.near(1 - 1e-3, w:item(), 1e-3)
    assert.near(1e-7, acc.grad_norm, 1e-9)
  end)

  it("D20, D21, D22: clips by torch's coefficient, and says norm and coefficient", function()
    local acc, w, opt = alone(zt.tensor {0, 0}, {gradient_clipping = 1})
    acc:accumulate(function()
      acc:backward((w * zt.tensor {3, 4}):sum())
      opt:step()
    end)
    assert.equal(5, acc.grad_norm)
    assert.near(1 / (5 + 1e-6), acc.clip_coef, 1e-12)
    assert.near(1, w:norm():item(), 1e-5)
    local frozen, v, sgd = alone(1, {gradient_clipping = 1e-9})
    frozen:accumulate(function()
      frozen:backward((v * 100):sum())
      sgd:step()
    end)
    assert.near(1, v:item(), 1e-6)
  end)
end)
