-- Host allocation 1, 2, 3, ... fails while something runs: a clean error, no device memory left behind, and the next
-- run gives the same numbers.
package.path = debug.getinfo(1, "S").source:match("^@(.*)/") .. "/?.lua;" .. package.path
local core = require "ztrain.core"
local support = require "support"
local zt = require "ztrain"

local function used()
  collectgarbage()
  collectgarbage()
  return zt.memory().used
end

-- run() gives a comparable value. Every `stride`-th allocation is made to fail, alone and with all after it.
local function fail_each(what, stride, run)
  run() -- what is made once is made now
  local before = core.host_memory().n_allocations
  local want = run()
  local count, at_rest = core.host_memory().n_allocations - before, used()
  local failures = 0
  for _, forever in ipairs {false, true} do
    for n = math.random(stride), count, stride do
      core.fail_allocation(n, forever)
      local ok, got = pcall(run)
      core.fail_allocation(0)
      local where = ("%s: allocation %d of %d (ZT_SEED=%d)"):format(what, n, count, support.seed)
      if ok then assert.same(want, got, where) else failures = failures + 1 end
      local said = ok or got:match("memory") or got:match("the device has no more")
      assert.is_truthy(said, where .. ": " .. tostring(got))
      assert.same(want, run(), where)
      assert.equal(at_rest, used(), where)
    end
  end
  assert.is_true(failures > 0, what .. ": nothing failed")
  assert.equal(0, core.tape_length())
end

local function x(...) return core.tensor(core.randn(...):totable()):requires_grad_() end
local function ids(...) return core.tensor({...}, {dtype = "int64"}) end

-- Inputs, and an operation on them.
local ops = {
  add = {{x(3, 2), x(2)}, function(a, b) return a + b end},
  div = {{x(3, 2), x(3, 1)}, function(a, b) return a / b end},
  pow = {{x(4)}, function(a) return (a * a + 1) ^ 1.5 end},
  gelu = {{x(4)}, function(a) return a:gelu() + a:gelu_tanh() + a:silu() end},
  clamp = {{x(4)}, function(a) return a:clamp(-1, 1) end},
  where = {{x(4), x(1)}, function(a, b) return core.where(a:gt(0), a, b) end},
  reduce = {{x(3, 4)}, function(a) return a:sum(1) + a:mean(1) + a:var(1) + a:norm(1) + a:logsumexp(1) + a:max(1) end},
  topk = {{x(3, 4)}, function(a) return (a:topk(2, 2)) end},
  matmul = {{x(2, 3, 4), x(4, 5)}, function(a, b) return a:matmul(b) end},
  linear = {{x(3, 4), x(5, 4), x(5)}, function(a, w, b) return core.linear(a, w, b, {act = "gelu"}) end},
  layer_norm = {{x(3, 4), x(4), x(4)}, function(a, w, b) return core.layer_norm(a, w, b, 1e-5) end},
  residual_layer_norm = {{x(3, 4), x(3, 4), x(4), x(4)}, function(a, r, w, b)
    local y, sum = core.residual_layer_norm(a, r, w, b, 1e-5)
    return y + sum
  end},
  softmax = {{x(3, 4)}, function(a) return a:softmax(-1) + a:log_softmax(-1) end},
  dropout = {{x(3, 4)}, function(a) return core.dropout(a, 0.5) end},
  attention = {{x(2, 3, 2, 4), x(2, 3, 2, 4), x(2, 3, 2, 4)}, function(q, k, v)
    return core.attention(q, k, v, {causal = true, dropout = 0.1})
  end},
  attention_qkv = {{x(2, 3, 24)}, function(qkv) return core.attention_qkv(qkv, 2, {causal = true}) end},
  cross_entropy = {{x(3, 5)}, function(a) return (core.cross_entropy(a, ids(1, 2, 0), {label_smoothing = 0.1})) end},
  linear_cross_entropy = {{x(3, 4), x(5, 4)}, function(a, w)
    return (core.linear_cross_entropy(a, w, ids(1, 2, 0)))
  end},
  mse = {{x(3), x(3)}, function(a, b) return core.mse(a, b) end},
  conv1d = {{x(2, 6, 3), x(4, 3, 2), x(4)}, function(a, w, b) return core.conv1d(a, w, b, {padding = 1}) end},
  embedding = {{x(5, 2)}, function(w) return core.embedding(w, ids(1, 1, 4)) end},
  index = {{x(3, 2)}, function(a)
    return a:index_select(1, ids(2, 0)) + a:gather(1, ids(0, 1, 2, 2):reshape(2, 2))
  end},
  scatter_add = {{x(3, 2), x(1, 2)}, function(a, b) return a:scatter_add(1, ids(0, 2):reshape(1, 2), b) end},
  shapes = {{x(3, 4)}, function(a)
    local l, r = a:split(2, 2)
    return core.cat({l:transpose(1, 2):contiguous(), core.stack({r[1], r[2], r[3]}, 2)}, 1):reshape(-1)
  end},
  cast = {{x(3)}, function(a) return a:to("float64"):to("bfloat16"):to("float32") end},
}

describe("an allocation that fails", function()
  for name, case in pairs(ops) do
    it("in " .. name .. ", forward or backward", function()
      local inputs, fn = case[1], case[2]
      fail_each(name, 1, function()
        zt.seed(5)
        for _, t in ipairs(inputs) do t.grad = nil end
        core.scope("op", function() fn(table.unpack(inputs)):sum():backward() end)
        local hashes = {}
        for i, t in ipairs(inputs) do hashes[i] = t.grad:hash() end
        for _, t in ipairs(inputs) do t.grad = nil end
        return hashes
      end)
      for _, t in ipairs(inputs) do t.grad = nil end
    end)
  end

  it("in a collective", function()
    local t = core.tensor {{1, 2}, {3, 4}}
    fail_each("collectives", 1, function()
      return core.scope("collectives", function()
        local gathered, mean = core.all_gather_tensor(t), core.all_reduce_tensor(t:to("bfloat16"), "mean")
        return {gathered:hash(), mean:hash(), core.broadcast_tensor(t, 0):hash(), core.gather_numbers({1, 0.5}),
          core.gather_strings("a"), core.broadcast_string("b", 0)}
      end)
    end)
  end)

  it("in an optimizer's step leaves all parameters of all groups as they were", function()
    local failures = 0
    for n = 1, 60 do
      local groups = {{params = {x(3), x(2, 2)}}, {params = {x(4)}, lr = 0.5}}
      local opt, loss = zt.optim.adamw(groups, {lr = 0.1}), 0
      for _, p in ipairs {groups[1].params[1], groups[1].params[2], groups[2].params[1]} do loss = loss + p:sum() end
      loss:backward()
      local before = groups[1].params[1]:hash() .. groups[2].params[1]:hash()
      core.fail_allocation(n)
      local ok = pcall(opt.step, opt)
      core.fail_allocation(0)
      local after = groups[1].params[1]:hash() .. groups[2].params[1]:hash()
      failures = failures + (ok and 0 or 1)
      assert.equal(ok, before ~= after, "allocation " .. n)
    end
    assert.is_true(failures > 5)
  end)

  local config = {model_type = "gpt2", n_layer = 1, n_embd = 8, n_head = 2, n_positions = 16, vocab_size = 32}
  local batch = ids(1, 2, 3, 4, 5):reshape(1, -1)
  local folder

  setup(function()
    folder = support.folder()
    zt.models.from_config(config):save_pretrained(folder)
  end)
  teardown(support.clean)

  for _, checkpointing in ipairs {false, true} do
    it("in a model's load, step, generation and save" .. (checkpointing and ", checkpointed" or ""), function()
      fail_each("model", 13, function()
        zt.seed(5)
        local model = zt.models.from_pretrained(folder, {gradient_checkpointing = checkpointing}):train()
        local acc, opt = zt.accelerator(), zt.optim.adamw(model:parameters(), {lr = 1e-2})
        acc:prepare(model, opt)
        acc:accumulate(function()
          acc:backward(model {input_ids = batch, labels = batch})
          acc:clip_grad_norm_(model:parameters(), 1.0)
          opt:step()
          opt:zero_grad()
        end)
        local text = core.scope("text", function() return model:generate(batch, {max_new_tokens = 3}):totable() end)
        model:save_pretrained(folder .. "/saved")
        return {text, (model:state_dict())["transformer.wte.weight"]:hash()}
      end)
    end)
  end
end)
