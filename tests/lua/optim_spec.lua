-- Optimizers against PyTorch's, step by step, in float64 and float32 (goldens/train/optim.json).
package.path = debug.getinfo(1, "S").source:match("^@(.*)/") .. "/?.lua;" .. package.path
local support = require "support"
local zt = require "ztrain"

local folder = support.tests .. "goldens/train/"
local about = zt.json.load(folder .. "optim.json")
local tensors = zt.safetensors.load(folder .. "optim.safetensors")

local kinds = {AdamW = "adamw", Adam = "adam", SGD = "sgd", Lion = "lion"}

local function options(case)
  local opts = {}
  for key, value in pairs(case) do
    if key ~= "optimizer" then opts[key] = value end
  end
  return opts
end

local function start(name, dtype)
  local params = {}
  for i = 1, 2 do params[i] = tensors[name .. ".start." .. i]:to(dtype):copy():requires_grad_() end
  return params, zt.optim[kinds[about[name].optimizer]](params, options(about[name]))
end

local function set_gradients(name, params, step)
  for i, p in ipairs(params) do p.grad = tensors[("%s.grad.%d.%d"):format(name, step, i)]:to(p:dtype()):copy() end
end

describe("optim", function()
  for name, case in pairs(about) do
    if type(case) == "table" and case.optimizer then
      for dtype, tolerance in pairs {float64 = 1e-12, float32 = 1e-6} do
        it(("%s equals PyTorch's in %s"):format(name, dtype), function()
          local params, opt = start(name, dtype)
          for step = 1, about.steps do
            set_gradients(name, params, step)
            opt:step()
            for i, p in ipairs(params) do
              support.close(p, tensors[("%s.after.%d.%d"):format(name, step, i)], tolerance, "step " .. step)
            end
          end
        end)
      end

      it(name .. " goes on from a saved state, bit for bit", function()
        local params, opt = start(name, "float32")
        local others, other = start(name, "float32")
        for step = 1, 4 do
          set_gradients(name, params, step)
          opt:step()
        end
        for i, p in ipairs(params) do others[i]:copy_(p) end
        other:load_state_dict(opt:state_dict())
        for step = 5, 8 do
          for _, pair in ipairs {{params, opt}, {others, other}} do
            set_gradients(name, pair[1], step)
            pair[2]:step()
          end
        end
        for i, p in ipairs(params) do assert.is_true(p:equal(others[i])) end
      end)
    end
  end

  it("gives each group its own numbers", function()
    local a, b = zt.ones(3):requires_grad_(), zt.ones(3):requires_grad_()
    local opt = zt.optim.sgd({{params = {a}}, {params = {b}, lr = 0.5}}, {lr = 0.25})
    a.grad, b.grad = zt.ones(3), zt.ones(3)
    opt:step()
    assert.same({{0.75, 0.75, 0.75}, {0.5, 0.5, 0.5}}, {a:totable(), b:totable()})
    opt.groups[1].lr = 0
    opt:step()
    assert.same({0.75, 0, 0.75}, {a[1]:item(), b[1]:item(), a[3]:item()})
  end)

  it("leaves parameters without a gradient alone", function()
    local a, b = zt.ones(2):requires_grad_(), zt.ones(2):requires_grad_()
    local opt = zt.optim.adamw({a, b}, {lr = 0.1, weight_decay = 0.5})
    a.grad = zt.ones(2)
    opt:step()
    assert.same({1, 1}, b:totable())
    assert.is_true(a[1]:item() < 1)
    opt:zero_grad()
    assert.is_nil(a.grad)
  end)

  it("checks what it is given", function()
    local p = {zt.ones(2):requires_grad_()}
    local function bad(opts, kind) return support.message(zt.optim[kind or "adamw"], p, opts) end
    assert.match(
      "unknown option 'weight_dekay'; did you mean 'weight_decay'%?",
      bad {weight_dekay = 1})
    assert.match("lr = %-1 is outside", bad {lr = -1})
    assert.match("beta 1.0 is outside", bad {betas = {0.9, 1.0}})
    assert.match("nesterov needs a momentum", bad({nesterov = true}, "sgd"))
    assert.match("there are no parameters", support.message(zt.optim.adamw, {}, {}))
    assert.match(
      "group: unknown option 'lrr'; did you mean 'lr'%?", support.message(zt.optim.adamw, {{params = p, lrr = 1}}))
    assert.match("^%S*optim_spec.lua:%d+: ", support.message(function() zt.optim.adamw(p, {lr = -1}) end))
  end)
end)

describe("clip_grad_norm_", function()
  it("scales gradients as PyTorch does", function()
    local a, b = zt.zeros(5):requires_grad_(), zt.zeros(3, 2):requires_grad_()
    a.grad, b.grad = zt.randn(5), zt.randn(3, 2)
    local want = math.sqrt(a.grad:norm():item() ^ 2 + b.grad:norm():item() ^ 2)
    local before = a.grad:copy()
    assert.near(want, zt.clip_grad_norm_({a, b}, 0.5), 1e-6 * want)
    support.close(a.grad, before * (0.5 / (want + 1e-6)), 1e-6)
    local small = a.grad:copy()
    zt.clip_grad_norm_({a, b}, 10)
    assert.is_true(small:equal(a.grad))
  end)

  it("gives 0 where there is no gradient", function()
    assert.equal(0, zt.clip_grad_norm_({zt.zeros(2):requires_grad_()}, 1))
  end)

  it("starts sgd's momentum from the gradient of the step that turns it on, as torch does", function()
    local p = zt.tensor({1.0}, {dtype = "float64"}):requires_grad_()
    local opt = zt.optim.sgd({p}, {lr = 0.1})
    p.grad = zt.tensor({2.0}, {dtype = "float64"})
    opt:step()
    opt.groups[1].momentum, opt.groups[1].dampening = 0.9, 0.5
    opt:step()
    assert.near(1 - 0.1 * 2 - 0.1 * 2, p:item(), 1e-15)
    opt:step()
    assert.near(0.6 - 0.1 * (0.9 * 2 + 0.5 * 2), p:item(), 1e-15)
  end)
end)
