-- ops.lua - single operations against the machine: GB of memory traffic a second (reads and writes that the operation
-- cannot avoid), or GFLOP a second for products. Sizes are those of GPT-2 124 M at 4 x 256 tokens.
local zt = require "ztrain"

local args = zt.args {seconds = 0.3}
zt.seed(1)

-- Median seconds of fn over the given time; what it makes is freed each time.
local function measure(fn)
  local times, stop = {}, zt.time() + args.seconds
  repeat
    local started = zt.time()
    zt.scope("bench", function() fn() end)
    times[#times + 1] = zt.time() - started
  until zt.time() > stop and #times >= 3
  table.sort(times)
  return times[#times // 2 + 1]
end

local function traffic(name, n_floats, fn)
  local s = measure(fn)
  print(("ops: %-34s %9.3f ms %8.1f GB/s"):format(name, s * 1e3, 4 * n_floats / s / 1e9))
end

local function product(name, flops, fn)
  local s = measure(fn)
  print(("ops: %-34s %9.3f ms %8.1f GFLOP/s"):format(name, s * 1e3, flops / s / 1e9))
end

local T, C, V, H = 1024, 768, 50257, 12
local x, y = zt.randn(T, 4 * C), zt.randn(T, 4 * C)
local n = T * 4 * C
local gain, shift = zt.ones(4 * C), zt.zeros(4 * C)

local function elementwise()
  traffic("add", 3 * n, function() return x + y end)
  traffic("copy", 2 * n, function() return x:copy() end)
  traffic("transpose and copy", 2 * n, function() return x:transpose(1, 2):contiguous() end)
  traffic("gelu_tanh", 2 * n, function() return x:gelu_tanh() end)
  traffic("exp", 2 * n, function() return x:exp() end)
  traffic("dropout 0.1", 2 * n, function() return zt.dropout(x, 0.1) end)
  traffic("softmax", 2 * n, function() return x:softmax(-1) end)
  traffic("layer_norm", 2 * n, function() return zt.layer_norm(x, gain, shift, 1e-5) end)
  traffic("sum", n, function() return x:sum() end)
  traffic("sum over rows", n, function() return x:sum(1) end)
  traffic("to bfloat16", 1.5 * n, function() return x:to "bfloat16" end)
end

local function products()
  local a, w, w_out = zt.randn(T, C), zt.randn(4 * C, C), zt.randn(V, C)
  local labels = zt.full({T}, 7, {dtype = "int64"})
  local qkv = zt.randn(4, T // 4, 3 * C)
  product("matmul 1024 x 768 x 3072", 2 * T * C * 4 * C, function() return zt.linear(a, w) end)
  product("linear + bias + gelu_tanh", 2 * T * C * 4 * C, function()
    return zt.linear(a, w, shift, {act = "gelu_tanh"})
  end)
  product("attention 4 x 256, causal", 2 * 4 * T * (T // 4) * C / 2, function()
    return zt.attention_qkv(qkv, H, {causal = true})
  end)
  product("linear_cross_entropy, no gradient", 2 * T * C * V, function()
    return (zt.linear_cross_entropy(a, w_out, labels))
  end)
end

zt.no_grad(elementwise)
zt.no_grad(products)

local p = zt.randn(16 << 20):requires_grad_()
local opt = zt.optim.adamw({p}, {lr = 1e-4})
p.grad = zt.randn(p:numel())
opt:step()
traffic("adamw (7 floats a parameter)", 7 * p:numel(), function() opt:step() end)
