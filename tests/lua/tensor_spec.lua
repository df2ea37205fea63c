-- Tensors as Lua values: what goes in comes out, in every dtype and shape; operators; writing in place; the messages.
local core = require "ztrain.core"
package.path = debug.getinfo(1, "S").source:match("^@(.*)/") .. "/?.lua;" .. package.path
local support = require "support"

local seed = tonumber(os.getenv "ZT_SEED") or os.time()
math.randomseed(seed)

-- A nested table of the given sizes, filled by fn.
local function nest(sizes, fn, depth)
  depth = depth or 1
  if depth > #sizes then return fn() end
  local t = {}
  for i = 1, sizes[depth] do t[i] = nest(sizes, fn, depth + 1) end
  return t
end

local function random_sizes()
  local sizes = {}
  for i = 1, math.random(0, 6) do sizes[i] = math.random(0, 3) end
  for i, n in ipairs(sizes) do -- behind an empty dimension nothing shows
    if n == 0 then return {table.unpack(sizes, 1, i)} end
  end
  return sizes
end

local message = support.message

describe("tensors (ZT_SEED=" .. seed .. ")", function()
  local exact = { -- values that the dtype holds exactly
    float32 = function() return math.random(-2 ^ 20, 2 ^ 20) / 1024 end,
    float64 = function() return math.random() end,
    bfloat16 = function() return math.random(-128, 128) * 2.0 ^ math.random(-20, 20) end,
    float16 = function() return math.random(-1024, 1024) * 2.0 ^ math.random(-10, 4) end,
    int64 = function() return math.random(math.mininteger, math.maxinteger) end,
    int32 = function() return math.random(-2 ^ 31, 2 ^ 31 - 1) end,
    uint8 = function() return math.random(0, 255) end,
  }
  for dtype, value in pairs(exact) do
    it("give back what they were made of: " .. dtype, function()
      for _ = 1, 50 do
        local sizes = random_sizes()
        local values = nest(sizes, value)
        local t = core.tensor(values, {dtype = dtype})
        assert.are.same(values, t:totable())
        assert.are.same(sizes, {t:size()})
        assert.are.equal(#sizes, t:dim())
        assert.are.equal(dtype, t:dtype())
        local again = core.from_bytes(t:bytes(), dtype, sizes)
        assert.is_true(t:equal(again))
        assert.are.equal(t:hash(), again:hash())
      end
    end)
  end

  it("keep integers as integers", function()
    assert.are.equal("integer", math.type(core.tensor({1}, {dtype = "int64"}):item()))
    assert.are.equal("float", math.type(core.tensor({1}):item()))
    assert.are.equal(math.maxinteger, core.tensor(math.maxinteger, {dtype = "int64"}):item())
    assert.are.same({1, 0}, core.tensor({true, false}, {dtype = "uint8"}):totable())
  end)

  it("differ where a bit differs", function()
    local a = core.tensor {1, 2, 3}
    assert.is_false(a:equal(core.tensor {1, 2, 4}))
    assert.is_false(a:equal(core.tensor({1, 2, 3}, {dtype = "float64"})))
    assert.is_false(a:equal(core.tensor {{1, 2, 3}}))
    assert.are_not.equal(a:hash(), core.tensor({1, 3, 2}):hash())
    assert.is_false(core.tensor({0.0}):equal(core.tensor {-0.0}))
  end)

  it("are made from sizes, as arguments or in a table", function()
    assert.are.same({{0, 0, 0}, {0, 0, 0}}, core.zeros(2, 3):totable())
    assert.are.same({2, 3}, {core.ones({2, 3}, {dtype = "int64"}):size()})
    assert.are.equal("int64", core.ones({2}, {dtype = "int64"}):dtype())
    assert.are.equal(1, core.ones({dtype = "float64"}):item())
    assert.are.same({}, {core.zeros({}):size()})
    assert.are.same({7, 7}, core.full({2}, 7, {dtype = "int32"}):totable())
    assert.are.same({0, 1, 2}, core.arange(3):totable())
    assert.are.same({2, 4, 6}, core.arange(2, 7, 2):totable())
    assert.are.same({1, 0.5, 0}, core.arange(1, -0.25, -0.5, {dtype = "float32"}):totable())
    assert.are.same({}, core.arange(0):totable())
    core.seed(3)
    local a, b = core.randn(4, 5), core.randn(4, 5)
    assert.is_false(a:equal(b))
    core.seed(3)
    assert.is_true(a:equal(core.randn(4, 5)))
  end)

  it("are indexed by position, which is a view", function()
    local t = core.tensor {{1, 2}, {3, 4}, {5, 6}}
    assert.are.same({3, 4}, t[2]:totable())
    assert.are.same({5, 6}, t[-1]:totable())
    assert.are.equal(6, t[3][2]:item())
    t[1]:fill_(9)
    assert.are.same({9, 9}, t[1]:totable())
    assert.matches("index 4 of a tensor of shape %(3, 2%)", message(function() return t[4] end))
    assert.matches("index 0", message(function() return t[0] end))
    assert.matches("scalar", message(function() return t[1][1][1] end))
  end)

  it("compute with numbers on either side", function()
    local t = core.tensor {1, 2, 4}
    assert.are.same({2, 3, 5}, (t + 1):totable())
    assert.are.same({2, 3, 5}, (1 + t):totable())
    assert.are.same({0, 1, 3}, (t - 1):totable())
    assert.are.same({0, -1, -3}, (1 - t):totable())
    assert.are.same({3, 6, 12}, (t * 3):totable())
    assert.are.same({3, 6, 12}, (3 * t):totable())
    assert.are.same({0.5, 1, 2}, (t / 2):totable())
    assert.are.same({8, 4, 2}, (8 / t):totable())
    assert.are.same({1, 4, 16}, (t ^ 2):totable())
    assert.are.same({2, 4, 16}, (2 ^ t):totable())
    assert.are.same({-1, -2, -4}, (-t):totable())
    assert.are.same({2, 4, 8}, (t + t):totable())
    assert.are.same({0, 1, 1}, t:gt(1):totable())
    assert.are.same({1, 0, 0}, core.le(t, 1):totable())
    local n = core.tensor({7, -7}, {dtype = "int64"})
    assert.are.same({8, -6}, (n + 1):totable())
    assert.are.same({math.maxinteger}, (core.tensor({math.maxinteger - 1}, {dtype = "int64"}) + 1):totable())
    assert.matches("not in the range of int64", message(function() return n + 0.5 end))
    assert.are.equal(1 / -math.huge, 1 / (1 / (core.tensor {-0.0} * 2):item()))
  end)

  it("divide as IEEE divides", function()
    local values = nest({100}, function() return math.random() end)
    local t = core.tensor(values, {dtype = "float64"})
    local expected = {}
    for i, v in ipairs(values) do expected[i] = v / 3 end
    assert.are.same(expected, (t / 3):totable())
  end)

  it("take dimensions and positions from 1, or from the end", function()
    local t = core.tensor {{1, 2, 3}, {4, 5, 6}}
    assert.are.same({5, 7, 9}, t:sum(1):totable())
    assert.are.same({6, 15}, t:sum(-1):totable())
    assert.are.same({{6}, {15}}, t:sum(2, true):totable())
    assert.are.equal(21, t:sum():item())
    local values, index = t:max(2)
    assert.are.same({3, 6}, values:totable())
    assert.are.same({2, 2}, index:totable())
    assert.are.same({{2, 3}, {5, 6}}, t:narrow(2, 2, 2):totable())
    assert.are.same({{2}, {5}}, t:narrow(2, -2, 1):totable())
    assert.are.same({{1, 4}, {2, 5}, {3, 6}}, t:transpose(1, 2):totable())
    assert.are.same({{1, 4}, {2, 5}, {3, 6}}, t:permute(-1, 1):totable())
    assert.are.same({3, 2}, {t:reshape(3, -1):size()})
    assert.are.same({{1, 2, 3}, {4, 5, 6}, {1, 2, 3}, {4, 5, 6}}, core.cat({t, t}):totable())
    assert.are.same({2, 3, 2}, {core.stack({t, t}, -1):size()})
    local a, b = core.arange(5):split(3)
    assert.are.same({{0, 1, 2}, {3, 4}}, {a:totable(), b:totable()})
    a, b = core.arange(5):split({1, 4})
    assert.are.same({{0}, {1, 2, 3, 4}}, {a:totable(), b:totable()})
    assert.matches("narrow: 2 elements from position 3", message(t.narrow, t, 2, 3, 2))
    assert.matches("dimension 3 of a tensor with 2", message(t.sum, t, 3))
    assert.matches("dimension 0", message(t.softmax, t, 0))
    assert.matches("permute: there is no dimension 3", message(t.permute, t, 1, 3))
  end)

  it("share memory where they can, and say where they cannot", function()
    local t = core.tensor {{1, 2}, {3, 4}}
    t:view(4):fill_(5)
    assert.are.same({{5, 5}, {5, 5}}, t:totable())
    assert.is_false(t:transpose(1, 2):is_contiguous())
    assert.is_true(t:transpose(1, 2):contiguous():is_contiguous())
    assert.are.equal(t, t:contiguous())
    assert.matches("use reshape", message(core.view, t:transpose(1, 2), 4))
    assert.are.equal(t, t:to("float32"))
    assert.are.equal(t, t:to("cpu"))
    assert.are.equal("bfloat16", t:to("bfloat16"):dtype())
  end)

  it("are written in place, and return themselves", function()
    local t = core.zeros(2, 2)
    local version = t:version()
    assert.are.equal(t, t:fill_(2))
    assert.is_true(t:version() > version)
    assert.are.same({{4, 4}, {4, 4}}, t:mul_(2):totable())
    assert.are.same({{5, 5}, {5, 5}}, t:add_(1):totable())
    assert.are.same({{4, 3}, {4, 3}}, t:add_(core.tensor {2, 4}, -0.5):totable())
    assert.are.same({{1, 2}, {1, 2}}, t:copy_(core.tensor({1, 2}, {dtype = "int64"})):totable())
    assert.are.same({{0, 0}, {0, 0}}, t:zero_():totable())
    local mean = core.zeros(10000):normal_(3, 0.1):mean():item()
    assert.is_true(math.abs(mean - 3) < 0.01)
    local u = core.zeros(10000):uniform_(-1, 1)
    assert.is_true(u:max():item() < 1 and u:min():item() >= -1 and math.abs(u:mean():item()) < 0.05)
  end)

  it("may overlap what is written from them", function()
    local function numbers(n) return core.arange(n):to "float32" end
    local t = numbers(9):reshape(3, 3)
    assert.are.same({{0, 3, 6}, {1, 4, 7}, {2, 5, 8}}, t:copy_(t:transpose(1, 2)):totable())
    local n, sums = 40, {0}
    t = numbers(n)
    for i = 1, n - 1 do sums[i + 1] = 2 * i - 1 end
    t:narrow(1, 2, n - 1):add_(t:narrow(1, 1, n - 1))
    assert.are.same(sums, t:totable())
    assert.are.same({0, 2, 4}, (function(x) return x:add_(x) end)(numbers(3)):totable())
  end)

  it("are not written where an element stands in several places", function()
    local row = core.tensor {{1, 2}}
    for _, write in ipairs {"add_", "mul_", "fill_", "copy_"} do
      local wide = row:expand(3, 2)
      assert.matches(write .. ": dimension 0 .* repeats the same elements",
                     select(2, pcall(wide[write], wide, write == "copy_" and core.ones(3, 2) or 2)))
    end
    assert.are.same({{1, 2}}, row:totable())
    assert.are.equal(5, row:expand(1, 2):fill_(5)[1][2]:item()) -- a size of 1 repeats nothing
  end)

  it("show dtype, shape and values, abbreviated", function()
    assert.are.equal("float32(2, 2)\n{{1, 2.5},\n {3, -4}}", tostring(core.tensor {{1, 2.5}, {3, -4}}))
    assert.are.equal("int64(20) {0, 1, 2, ..., 17, 18, 19}", tostring(core.arange(20)))
    assert.are.equal("float32() 7", tostring(core.tensor(7)))
    assert.are.equal("float32(0) {}", tostring(core.zeros(0)))
    assert.is_true(#tostring(core.zeros(30, 30, 30, 30)) < 4000)
  end)

  it("are closed with their variable", function()
    collectgarbage()
    collectgarbage "stop" -- what other specs left would go in the middle
    local used = core.memory().used
    local out
    do
      local t <close> = core.zeros(1000)
      out = t
      assert.is_true(core.memory().used > used)
    end
    assert.are.equal(used, core.memory().used)
    collectgarbage "restart"
    assert.matches("tensor was closed", message(function() return out:size() end))
    assert.matches("freed", tostring(out))
  end)

  it("find the norm of many and the first bad element", function()
    local a, b = core.tensor {3, 0}, core.tensor({{4}}, {dtype = "float64"})
    assert.are.equal(5, (core.global_norm {a, b}))
    local norm, which, element = core.global_norm {a, core.tensor {1, 2, 0 / 0, 1 / 0}}
    assert.is_true(norm ~= norm)
    assert.are.same({2, 2}, {which, element})
  end)

  it("do not let their memory grow where only the collector frees them", function()
    core.reset_peak_memory()
    local used = core.memory().used
    for _ = 1, 200 do core.zeros(1 << 20) end -- 800 MiB in all
    assert.is_true(core.memory().peak - used < 300 << 20)
  end)
end)
