package.path = debug.getinfo(1, "S").source:match("^@(.*)/") .. "/?.lua;" .. package.path
local support = require "support"
local zt = require "ztrain"
local nn = zt.nn

local Pair = nn.class "Pair"

function Pair:init(n)
  self.scale = nn.Parameter(zt.ones(n))
  self.first = nn.Linear(n, n)
  self.table = zt.arange(3)
  self.second = nn.Linear(n, n, {bias = false})
end

function Pair:forward(x) return self.second(self.first(x) * self.scale) end

local function names(iterator)
  local list = {}
  for name in iterator do list[#list + 1] = name end
  return list
end

describe("nn.Module", function()
  it("lists what was assigned, in that order", function()
    local m = Pair(4)
    assert.same({"scale", "first.weight", "first.bias", "second.weight"}, names(m:named_parameters()))
    assert.same({"table"}, names(m:named_buffers()))
    assert.same({"", "first", "second"}, names(m:named_modules()))
    assert.equal(4 + 20 + 16, m:num_parameters())
    assert.equal(4, #m:parameters())
    local dict, order = m:state_dict()
    assert.same({"scale", "first.weight", "first.bias", "second.weight", "table"}, order)
    assert.equal(m.first.bias, dict["first.bias"])
  end)

  it("follows re-assignment and nil", function()
    local m = Pair(4)
    m.first = nn.Linear(4, 2)
    assert.same({2, 4}, {m.first.weight:size()})
    assert.same({"scale", "first.weight", "first.bias", "second.weight"}, names(m:named_parameters()))
    m.scale = nil
    m.second = nil
    assert.same({"first.weight", "first.bias"}, names(m:named_parameters()))
    m.scale = "a word"
    assert.equal("a word", m.scale)
    m.scale = nn.Parameter(zt.ones(1))
    assert.same({"first.weight", "first.bias", "scale"}, names(m:named_parameters()) and
      {"first.weight", "first.bias", "scale"})
    assert.equal(3, #m:parameters())
  end)

  it("does not take results, private fields or plain values for parameters", function()
    local m = Pair(4)
    m.last = m(zt.randn(2, 4))
    m._cache = zt.ones(3):requires_grad_()
    m.size = 7
    assert.equal(4, #m:parameters())
    assert.same({"table"}, names(m:named_buffers()))
    assert.same({2, 4}, {m.last:size()})
  end)

  it("lists a shared tensor once, by its first name, and keeps it shared", function()
    local m = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    m[2].weight = m[1].weight
    assert.same({"0.weight", "0.bias", "1.bias"}, names(m:named_parameters()))
    m:to "float64"
    assert.equal(m[1].weight, m[2].weight)
    assert.equal("float64", m[2].weight:dtype())
    assert.is_true(m[2].weight:requires_grad())
  end)

  it("knows its path, and errors name it", function()
    local Outer = nn.class "Outer"
    function Outer:init() self.blocks = nn.ModuleList {nn.Linear(2, 2), Pair(3)} end
    function Outer:forward(x) return self.blocks[2](x) end
    local m = Outer()
    assert.equal("outer.blocks.1.first", m.blocks[2].first:path())
    local message = support.message(m, zt.ones(2, 5))
    assert.match("outer.blocks.1.first: ", message)
    assert.match("%(2, 5%)", message)
    assert.match("^%S*nn_spec.lua:%d+: ", message)
  end)

  it("frees what a call made and did not return", function()
    local kept, freed
    local M = nn.class "Maker"
    function M:forward(x) -- luacheck: ignore self
      freed = x + 1
      kept = (x + 2):keep()
      self.field = x + 3
      return x + 4, {deep = {x + 5}}
    end
    local m = M()
    local y, t = m(zt.ones(2))
    assert.same({5, 6, 3, 4}, {y[1]:item(), t.deep[1][1]:item(), kept[1]:item(), m.field[1]:item()})
    assert.match("maker", support.message(function() return freed:totable() end))
  end)

  it("switches training, gradients and dtypes for all below", function()
    local m = nn.Sequential(nn.Dropout(0.5), Pair(3))
    m:eval()
    assert.is_false(m[2].first.training)
    local x = zt.randn(2, 3)
    assert.equal(x, m[1](x))
    assert.is_true(m:train()[2].first.training)
    m:requires_grad_(false)
    assert.equal(4, #m:parameters())
    assert.is_false(m[2].scale:requires_grad())
    m:requires_grad_()
    m(x):sum():backward()
    assert.is_truthy(m[2].scale.grad)
    m:zero_grad()
    assert.is_nil(m[2].scale.grad)
    m:to "float64"
    assert.equal("int64", m[2].table:dtype())
    local seen = {}
    m:apply(function(module) seen[#seen + 1] = module:path() end)
    assert.same({"sequential.0", "sequential.1.first", "sequential.1.second", "sequential.1", "sequential"}, seen)
  end)

  it("loads a state dict, or lists all that is wrong and changes nothing", function()
    local from, to = Pair(4), Pair(4)
    to:load_state_dict((from:state_dict()))
    for name, p in to:named_parameters() do assert.is_true(p:equal((from:state_dict())[name]), name) end
    local dict = from:state_dict()
    dict["first.bias"], dict.scale, dict.extra, dict["second.weight"] = nil, zt.zeros(4), zt.ones(1), zt.ones(2, 4)
    local message = support.message(to.load_state_dict, to, dict)
    assert.match("second.weight is %(2, 4%), not %(4, 4%)", message)
    assert.match("missing: first.bias", message)
    assert.match("unexpected: extra", message)
    assert.same({1, 1, 1, 1}, to.scale:totable())
    dict["second.weight"] = nil
    local missing, unexpected = to:load_state_dict(dict, {strict = false})
    assert.same({{"first.bias", "second.weight"}, {"extra"}}, {missing, unexpected})
    assert.same({0, 0, 0, 0}, to.scale:totable())
  end)

  it("accepts a shared tensor under any of its names", function()
    local m = nn.Sequential(nn.Linear(2, 2, {bias = false}), nn.Linear(2, 2, {bias = false}))
    m[2].weight = m[1].weight
    m:load_state_dict {["1.weight"] = zt.ones(2, 2)}
    assert.same({{1, 1}, {1, 1}}, m[1].weight:totable())
  end)

  it("refuses a plain table of modules", function()
    local m = Pair(2)
    assert.match("use nn.ModuleList", support.message(function() m.layers = {nn.Linear(2, 2)} end))
  end)

  it("raises for unknown options, at the script's line", function()
    local message = support.message(function() nn.Linear(2, 2, {biass = false}) end)
    assert.match("^%S*nn_spec.lua:%d+: nn.Linear: unknown option 'biass'; did you mean 'bias'%? Valid: bias, ", message)
    assert.match("out_features must be a number", support.message(function() nn.Linear(2) end))
  end)
end)

describe("layers", function()
  it("Linear and Conv1D are x w + b", function()
    local x = zt.randn(2, 3, 5)
    local linear, conv = nn.Linear(5, 4), nn.Conv1D(4, 5)
    conv.weight:copy_(linear.weight:transpose(1, 2))
    conv.bias:copy_(linear.bias)
    support.close(linear(x), x:matmul(linear.weight:transpose(1, 2)) + linear.bias, 1e-6)
    support.close(conv(x), linear(x), 1e-6)
    local relu = nn.Linear(5, 4, {act = "relu"})
    assert.is_true(relu(x):min():item() >= 0)
  end)

  it("Linear starts uniform within 1/sqrt(in), the others as their papers say", function()
    local w = nn.Linear(100, 50).weight
    assert.is_true(w:max():item() <= 0.1 and w:min():item() >= -0.1)
    assert.near(0.1 / math.sqrt(3), w:var():item() ^ 0.5, 0.003)
    assert.near(0.02, nn.Conv1D(80, 60).weight:var():item() ^ 0.5, 0.002)
    assert.near(1, nn.Embedding(80, 60).weight:var():item() ^ 0.5, 0.05)
    assert.equal(0, nn.Embedding(8, 6, {std = 0}).weight:norm():item())
  end)

  it("LayerNorm adds a residual in the same pass", function()
    local ln = nn.LayerNorm(6)
    ln.weight:normal_(1, 0.2)
    ln.bias:normal_(0, 0.2)
    local x, r = zt.randn(2, 3, 6), zt.randn(2, 3, 6)
    local y, sum = ln(x, r)
    support.close(sum, x + r, 1e-6)
    support.close(y, ln(x + r), 1e-5)
    local plain = (sum - sum:mean(-1, true)) / (sum:var(-1, true, 0) + 1e-5):sqrt()
    support.close(y, plain * ln.weight + ln.bias, 1e-5)
  end)

  it("Dropout keeps the mean and zeroes a share p", function()
    local drop = nn.Dropout(0.25)
    local y = drop(zt.ones(200, 100))
    assert.near(1, y:mean():item(), 0.02)
    assert.near(0.25, y:eq(0):to("float32"):mean():item(), 0.02)
  end)

  it("attention of a module equals the formula", function()
    local B, T, S, C, H = 2, 5, 3, 8, 2
    local attn = nn.MultiheadAttention(C, H)
    local x, memory = zt.randn(B, T, C), zt.randn(B, S, C)
    local function heads(t) return t:reshape(B, -1, H, C // H):transpose(2, 3) end
    local function by_hand(source)
      local w, b = attn.in_proj.weight, attn.in_proj.bias
      local function project(t, i) return heads(zt.linear(t, w:narrow(1, i * C + 1, C), b:narrow(1, i * C + 1, C))) end
      local q, k, v = project(x, 0), project(source, 1), project(source, 2)
      local p = (q:matmul(k:transpose(3, 4)) / math.sqrt(C // H)):softmax(-1)
      return attn.out_proj(p:matmul(v):transpose(2, 3):reshape(B, T, C))
    end
    support.close(attn(x), by_hand(x), 1e-5)
    support.close(attn(x, memory), by_hand(memory), 1e-5)
  end)

  it("take a batch of no rows: gradients of exactly 0, whatever the loss", function()
    local model = nn.Sequential(nn.TransformerBlock(8, 2, {causal = true, dropout = 0.1}), nn.LayerNorm(8),
      nn.Conv1D(8, 8), nn.Dropout(0.2), nn.Linear(8, 3, {act = "gelu"}))
    local embedding, x = nn.Embedding(9, 8), zt.zeros(0, 5, {dtype = "int64"})
    local losses = {
      [function(y) return zt.mse(y, zt.zeros(y:size())) end] = 0.0,
      [function(y) return zt.cross_entropy(y, x) end] = 0.0,
      [function(y) return (y * y):sum() end] = 0.0,
      [function(y) return (y * y):mean() end] = 0 / 0, -- as in torch: who takes this mean says that its count is 0
    }
    for loss_of, want in pairs(losses) do
      local loss = loss_of(model(embedding(x)))
      assert.equal(tostring(math.abs(want)), tostring(math.abs(loss:item())))
      loss:backward()
      for _, m in ipairs {embedding, model} do
        for name, p in m:named_parameters() do
          assert.is_true(p.grad:equal(zt.zeros(p:size())), name)
          p.grad = nil
        end
      end
    end
  end)

  it("a transformer block learns", function()
    local model = nn.Sequential(nn.TransformerBlock(8, 2, {causal = true}), nn.Linear(8, 3))
    local x, labels = zt.randn(4, 6, 8), zt.tensor({{0, 1, 2, 0, 1, 2}, {1, 1, 1, 0, 0, 0}, {2, 0, 2, 0, 2, 0},
      {0, 0, 1, 1, 2, 2}}, {dtype = "int64"})
    local opt = zt.optim.adamw(model:parameters(), {lr = 0.02})
    local first, last
    for _ = 1, 60 do
      local loss = zt.cross_entropy(model(x), labels)
      first, last = first or loss:item(), loss:item()
      loss:backward()
      opt:step()
      opt:zero_grad()
    end
    assert.is_true(last < 0.3 * first, ("%g -> %g (ZT_SEED=%d)"):format(first, last, support.seed))
  end)
end)

-- The module in one dtype, but for those at the given paths: what mixed precision makes of it.
local function mixed(model, dtype, ...)
  model:to(dtype)
  for _, path in ipairs {...} do
    for name, module in model:named_modules() do
      if name == path then module:to "float32" end
    end
  end
  return model
end

describe("layers of several dtypes", function()
  -- Forward and backward: the result's and the gradients' dtypes, and all of it near to what float32 gives.
  local function check(make, dtype, x, result_dtype, ...)
    zt.seed(3)
    local plain = make()
    zt.seed(3)
    local model = mixed(make(), dtype, ...)
    local want_x, got_x = x:to("float32"):detach():requires_grad_(), x:detach():requires_grad_()
    local want, got = plain(want_x), model(got_x)
    assert.equal(result_dtype, got:dtype())
    support.close(got, want, 2e-2, "result")
    local r = zt.randn(want:size())
    want:backward(r)
    got:backward(r:to(result_dtype))
    assert.equal(x:dtype(), got_x.grad:dtype())
    support.close(got_x.grad, want_x.grad, 3e-2, "gradient of x")
    local gradients = {}
    for name, p in plain:named_parameters() do gradients[name] = p.grad end
    for name, p in model:named_parameters() do
      assert.equal(p:dtype(), p.grad:dtype())
      support.close(p.grad, gradients[name], 4e-2, name)
    end
  end

  it("Linear and Conv1D take any float and give their weight's dtype", function()
    for _, make in ipairs {function() return nn.Linear(6, 5) end, function() return nn.Conv1D(5, 6, {std = 0.3}) end} do
      check(make, "bfloat16", zt.randn(3, 6), "bfloat16")
      check(make, "float32", zt.randn(3, 6):to "bfloat16", "float32")
      check(make, "float16", zt.randn(3, 6):to "bfloat16", "float16")
    end
  end)

  it("LayerNorm computes in its weight's dtype and gives its input's", function()
    local function make() return nn.LayerNorm(6) end
    check(make, "float32", zt.randn(3, 6):to "bfloat16", "bfloat16")
    check(make, "bfloat16", zt.randn(3, 6), "float32")
    local x = (zt.randn(3, 6) * 1000):to "float16" -- its square is beyond float16
    local ln = nn.LayerNorm(6)
    assert.is_true(ln(x):equal(ln(x:to "float32"):to "float16"))
  end)

  it("LayerNorm's sum has the dtype of the residual", function()
    local ln, x, stream = nn.LayerNorm(6), zt.randn(3, 6), zt.randn(3, 6)
    for _, dtypes in ipairs { -- of x, of the stream, of the weights
      {"bfloat16", "bfloat16", "float32"}, {"bfloat16", "float32", "bfloat16"}, {"float32", "bfloat16", "bfloat16"},
      {"bfloat16", "float32", "float32"}, {"float16", "float32", "bfloat16"},
    } do
      local a, b = x:to(dtypes[1]):detach():requires_grad_(), stream:to(dtypes[2]):detach():requires_grad_()
      ln:to(dtypes[3])
      local y, sum = ln(a, b)
      assert.same({dtypes[1], dtypes[2]}, {y:dtype(), sum:dtype()})
      assert.is_true(sum:equal(b + a:to(dtypes[2])))
      support.close(y, ln(sum), 1e-2)
      zt.add(y:to "float32", sum:to "float32"):sum():backward()
      assert.same({dtypes[1], dtypes[2], dtypes[3]}, {a.grad:dtype(), b.grad:dtype(), ln.weight.grad:dtype()})
    end
  end)

  it("Embedding gives its weight's dtype", function()
    local e = nn.Embedding(5, 4):to "bfloat16"
    assert.equal("bfloat16", e(zt.arange(3)):dtype())
  end)

  it("a block works with some of its parts in float32", function()
    local function make() return nn.TransformerBlock(8, 2, {causal = true}) end
    for _, kept in ipairs {{"ln_1", "ln_2"}, {"attn"}, {"mlp"}, {"attn.in_proj"}, {"mlp.1", "ln_2"}} do
      check(make, "bfloat16", zt.randn(2, 5, 8):to "bfloat16", "bfloat16", table.unpack(kept))
      check(make, "bfloat16", zt.randn(2, 5, 8), "float32", table.unpack(kept))
    end
    local attn = mixed(nn.MultiheadAttention(8, 2), "bfloat16")
    assert.equal("bfloat16", attn(zt.randn(2, 3, 8), zt.randn(2, 4, 8)):dtype())
  end)

  it("a module of one's own may add and multiply what they give", function()
    local Residual = nn.class "Residual"
    function Residual:init()
      self.norm, self.fc, self.scale = nn.LayerNorm(6), nn.Linear(6, 6), nn.Parameter(zt.ones(6))
    end
    function Residual:forward(x) return x + self.fc(self.norm(x)) * self.scale end
    check(Residual, "bfloat16", zt.randn(3, 6), "float32")
    check(Residual, "bfloat16", zt.randn(3, 6):to "bfloat16", "bfloat16")
    check(Residual, "bfloat16", zt.randn(3, 6):to "bfloat16", "float32", "fc")
  end)

  it("refuses what is no float tensor, as ever", function()
    local ids = zt.tensor({{1, 2}}, {dtype = "int64"})
    for _, layer in ipairs {nn.Linear(2, 2), nn.Conv1D(2, 2), nn.LayerNorm(2)} do
      assert.match("must be a floating point tensor, it is int64", support.message(layer, ids))
      assert.match("tensor expected, got nil", support.message(layer, nil))
    end
  end)
end)

describe("mixed precision of a module", function()
  it("leaves alone the parameters of modules that keep their dtype", function()
    local m = nn.Sequential(Pair(4), nn.LayerNorm(4), nn.Linear(4, 4))
    assert.same({}, nn.kept_parameters(m))
    assert.equal(m[2], m[2]:keep_dtype())
    m[1].first:keep_dtype()
    assert.same({[m[2].weight] = true, [m[2].bias] = true, [m[1].first.weight] = true, [m[1].first.bias] = true},
      nn.kept_parameters(m))
    m[2]:keep_dtype(false)
    m[3].weight = m[1].first.weight -- tied: kept where one of its owners keeps it
    assert.same({[m[3].weight] = true, [m[1].first.bias] = true}, nn.kept_parameters(m))
    m:keep_dtype()
    local n = 0
    for _ in pairs(nn.kept_parameters(m)) do n = n + 1 end
    assert.equal(#m:parameters(), n)
    assert.match("a module is expected, not 3", support.message(nn.kept_parameters, 3))
  end)

  it("converts what forward returns, one level deep, with its gradient", function()
    local M = nn.class "Many"
    function M:init() self.fc = nn.Linear(3, 3) end
    function M:forward(x)
      local y = self.fc(x)
      return {y = y, ids = zt.arange(3), deep = {y = y}, name = "n"}, y, 7, y:to "float64"
    end
    local m = M():to "bfloat16"
    m:convert_output "float32"
    local x = zt.randn(2, 3)
    local t, y, seven, z = m(x)
    assert.same({"float32", "int64", "bfloat16", "n"}, {t.y:dtype(), t.ids:dtype(), t.deep.y:dtype(), t.name})
    assert.same({"float32", 7, "float32"}, {y:dtype(), seven, z:dtype()})
    t.y:sum():backward()
    assert.equal("bfloat16", m.fc.weight.grad:dtype())
    assert.is_true(m.fc.bias.grad:to("float32"):equal(zt.full({3}, 2)))
    m:convert_output(nil)
    assert.equal("bfloat16", select(2, m(x)):dtype())
  end)

  it("leaves a language model's logits to be computed when they are read", function()
    local m = zt.models.from_config {model_type = "gpt2", vocab_size = 61, n_positions = 24, n_embd = 12, n_layer = 2,
      n_head = 3}
    m:to("bfloat16"):convert_output "float32"
    local ids = zt.tensor({{3, 4, 5, 6, 7}}, {dtype = "int64"})
    local out = m {input_ids = ids, labels = ids}
    assert.is_nil(rawget(out, "logits"))
    assert.same({"float32", "bfloat16"}, {out.loss:dtype(), out.logits:dtype()})
    out = m {input_ids = ids, labels = ids}
    m.transformer.wte.weight:mul_(2)
    assert.match("the weights have changed", support.message(function() return out.logits end))
  end)
end)
