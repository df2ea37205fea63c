-- Scopes: what a call made is freed when it returns, but for what it returns, keeps, or a module holds.
local core = require "ztrain.core"
package.path = debug.getinfo(1, "S").source:match("^@(.*)/") .. "/?.lua;" .. package.path
local support = require "support"

local message = support.message

local function used()
  collectgarbage()
  collectgarbage()
  return core.memory().used
end

describe("scopes", function()
  it("free what is not returned at once", function()
    collectgarbage()
    local before, inside, temporary = core.memory().used, nil, nil
    local result = core.scope("block", function(n)
      temporary = core.zeros(n)
      inside = core.memory().used
      return core.ones(3), 7, nil
    end, 1 << 16)
    assert.is_true(inside >= before + (4 << 16))
    assert.is_true(core.memory().used < before + (4 << 16))
    assert.are.same({1, 1, 1}, result:totable())
    local text = message(function() return temporary + 1 end)
    assert.matches("tensor was freed at the end of scope 'block'; return it or call :keep%(%)$", text)
    assert.matches("^[^:]*scope_spec.lua:%d+: ", text)
  end)

  it("return what the function returns", function()
    assert.are.same({n = 4, 1, nil, "x"}, table.pack(core.scope("s", function(...) return ... end, 1, nil, "x", nil)))
    assert.are.equal(0, select("#", core.scope("s", function() end)))
  end)

  it("follow tables, metatables, functions and cycles from what is returned", function()
    local out = core.scope("s", function()
      local a, b, c, d, e = core.tensor {1}, core.tensor {2}, core.tensor {3}, core.tensor {4}, core.tensor {5}
      local t = {list = {{a}}, [b] = true, f = function() return c end}
      t.self = t
      return setmetatable(t, {__index = function(_, key) return key == "d" and d or nil end, e = e})
    end)
    assert.are.equal(1, out.list[1][1]:item())
    assert.are.equal(2, (next({[next(out, nil)] = 1}) and 2))
    for key in pairs(out) do
      if type(key) == "userdata" then assert.are.equal(2, key:item()) end
    end
    assert.are.equal(3, out.f():item())
    assert.are.equal(4, out.d:item())
    assert.are.equal(5, getmetatable(out).e:item())
  end)

  it("do not look into modules or the globals", function()
    local module = setmetatable({}, {__module = true})
    local returned = core.scope("s", function()
      rawset(module, "cache", core.tensor {1})
      rawset(module, "kept", core.tensor {2}:keep())
      return module, function() return _ENV end
    end)
    assert.matches("end of scope 's'", message(function() return returned.cache:item() end))
    assert.are.equal(2, returned.kept:item())
  end)

  it("nest: survivors belong to the enclosing scope", function()
    local inner, kept
    local outer = core.scope("outer", function()
      inner = core.scope("inner", function() return core.tensor {1} end)
      kept = core.scope("inner", function() return core.tensor {2}:keep() end)
      assert.are.equal(1, inner:item())
      return core.tensor {3}
    end)
    assert.matches("end of scope 'outer'", message(function() return inner:item() end))
    assert.are.equal(2, kept:item())
    assert.are.equal(3, outer:item())
  end)

  it("leave arguments alone", function()
    local x = core.tensor {1}
    core.scope("s", function(y) assert.are.equal(x, y) end, x)
    assert.are.equal(1, x:item())
  end)

  it("close on errors, which pass on with the path once", function()
    local before, temporary = used(), nil
    local text = message(core.scope, "model", function()
      core.scope("model.layer", function()
        temporary = core.zeros(1 << 16)
        error("went wrong")
      end)
    end)
    assert.matches("^[^:]*scope_spec.lua:%d+: model.layer: went wrong$", text)
    assert.are.equal(before, used())
    assert.matches("scope 'model.layer'", message(function() return temporary:item() end))
    local object = {}
    local ok, err = pcall(core.scope, "s", function() error(object) end)
    assert.is_false(ok)
    assert.are.equal(object, err)
    assert.are.same({}, {core.scope("s", function() end)}) -- and a new one can begin
  end)

  it("belong to their coroutine, and may yield", function()
    local outside
    local co = coroutine.wrap(function()
      core.scope("stream", function()
        local x = core.tensor {1}
        coroutine.yield(core.tensor {2})
        coroutine.yield(x)
      end)
    end)
    local a = co()
    core.scope("other", function() outside = core.tensor {3} end)
    assert.matches("scope 'other'", message(function() return outside:item() end))
    assert.are.equal(2, a:item())
    assert.are.equal(1, co():item())
    co()
    assert.matches("scope 'stream'", message(function() return a:item() end))
  end)

  it("of a dropped coroutine end with it", function()
    local before, x = used(), nil
    do
      local co = coroutine.wrap(function()
        core.scope("dropped", function()
          local temporary = core.zeros(1 << 16)
          x = core.ones(1)
          coroutine.yield(temporary)
        end)
      end)
      co()
    end
    assert.is_true(used() < before + (4 << 16))
    assert.are.equal(1, x:item())
  end)

  it("keep what autograd needs", function()
    local w = core.tensor({2}):requires_grad_()
    local y = core.scope("s", function() return (w * w * w):sum() end)
    y:backward()
    assert.are.same({12}, w.grad:totable())
  end)

  it("count what is made as a kind of memory", function()
    local before = core.memory().kinds.optimizer
    local t = core.with_kind("optimizer", function() return core.zeros(1000) end)
    assert.is_true(core.memory().kinds.optimizer >= before + 4000)
    assert.are.equal(1000, t:numel())
    local activations = core.memory().kinds.activations
    pcall(core.with_kind, "parameters", error, "x")
    local u = core.zeros(1000)
    assert.is_true(core.memory().kinds.activations > activations and u:numel() == 1000)
    assert.matches("did you mean 'gradients'", message(core.with_kind, "gradient", print))
  end)
end)
