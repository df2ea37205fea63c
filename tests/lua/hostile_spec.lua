-- What strangers, slips of the pen and wrong types do: one line that names the thing, at the script's line, no crash.
package.path = debug.getinfo(1, "S").source:match("^@(.*)/") .. "/?.lua;" .. package.path
local core = require "ztrain.core"
local support = require "support"
local zt = require "ztrain"

local here = debug.getinfo(1, "S").short_src:gsub("%p", "%%%0")

-- The message of a failing call, which has to stand on one line and at a line of this file.
local function says(fn, ...)
  local args = table.pack(...)
  local text = support.message(function() return fn(table.unpack(args, 1, args.n)), nil end)
  assert.matches("^" .. here .. ":%d+: [^\n]*$", text)
  return text
end

describe("hostile configs", function()
  local tiny = {model_type = "gpt2", n_layer = 1, n_embd = 8, n_head = 2, n_positions = 16, vocab_size = 32}

  local function with(key, value)
    local config = {}
    for k, v in pairs(tiny) do config[k] = v end
    config[key] = value
    return config
  end

  it("are named by the key", function()
    for _, case in ipairs {
      {"n_layer", 0}, {"n_layer", 10 ^ 9}, {"n_layer", 2.5}, {"n_layer", "8"}, {"n_layer", core.null}, {"n_head", 3},
      {"n_embd", -1}, {"n_embd", 10 ^ 17}, {"n_inner", -1}, {"n_inner", true}, {"attn_pdrop", 2}, {"attn_pdrop", {}},
      {"resid_pdrop", core.null}, {"layer_norm_epsilon", "x"}, {"layer_norm_epsilon", -1}, {"initializer_range", -1},
      {"tie_word_embeddings", 1}, {"activation_function", core.null}, {"use_cache", "yes"}, {"model_type", 5},
    } do
      local key = case[1] == "n_embd" and case[2] > 0 and "shape" or case[1]
      assert.matches(key, says(zt.models.from_config, with(case[1], case[2])))
    end
    assert.matches("no model_type", says(zt.models.from_config, with("model_type", nil)))
    assert.matches("no name", says(zt.models.from_config, with(1, 2)))
    zt.models.from_config(with(("x"):rep(200000), 1)) -- a key that nobody knows, and as long as it is
  end)

  it("are objects", function()
    local folder = support.folder()
    zt.models.from_config(tiny):save_pretrained(folder)
    for _, name in ipairs {"config.json", "generation_config.json"} do
      local text = support.read(folder .. "/" .. name)
      for _, other in ipairs {"5", "null", "\"a\"", "[1]"} do
        support.write(folder .. "/" .. name, other)
        assert.matches(name .. ": is not a JSON object", says(zt.models.from_pretrained, folder))
      end
      support.write(folder .. "/" .. name, text)
    end
    support.clean()
  end)
end)

describe("generate", function()
  local model = zt.models.from_config {model_type = "gpt2", n_layer = 1, n_embd = 8, n_head = 2, n_positions = 16,
    vocab_size = 32}

  it("checks what it is given, whoever says it", function()
    for key, value in pairs {max_new_tokens = 0, max_length = "5", min_new_tokens = -1, do_sample = 1, top_k = "a",
      temperature = {}, eos_token_id = "x", pad_token_id = true, use_cache = 3} do
      assert.matches("generate: " .. key, says(model.generate, model, {1, 2}, {[key] = value}))
      if not key:match("^max_") then -- from the model's folder; the call's max_length goes before that one's
        model.generation_config = {[key] = value}
        local text = says(model.generate, model, {1, 2}, {max_length = 4})
        model.generation_config = nil
        assert.matches("generate: " .. key, text)
      end
    end
  end)

  it("checks ids and masks", function()
    assert.matches("input_ids must be", says(model.generate, model, zt.ones(1, 2)))
    assert.matches("input_ids must be", says(model.generate, model, {}))
    assert.matches("input_ids must be", says(model.generate, model, "x"))
    assert.matches("attention_mask is %(1, 3%), input_ids %(1, 2%)",
      says(model.generate, model, {1, 2}, {attention_mask = zt.ones(1, 3)}))
    assert.matches("attention_mask must be a tensor", says(model.generate, model, {1, 2}, {attention_mask = {1, 1}}))
    assert.matches("index 32 at position 1 of", says(model.generate, model, {1, 32}, {max_new_tokens = 2}))
  end)
end)

describe("functions of the library", function()
  -- Everything public that is written in Lua, and what may stand in the place of any argument.
  local parts = {"nn", "models", "data", "tokenizer", "schedule", "optim", "safetensors", "json"}
  local values = {false, true, 0, -1, 2, 1.5, 0 / 0, math.mininteger, "", "x", {}, {1, 2}, {{}}, {x = 1}, print,
    coroutine.create(print), io.stdout, zt.ones(2, 2), zt.zeros(0), zt.zeros({3}, {dtype = "int64"})}

  local function some()
    local list = {n = math.random(0, 3)}
    for i = 1, list.n do list[i] = values[math.random(#values)] end
    return list
  end

  it("raise at the script's line, whatever they get", function()
    local functions = {clip_grad_norm_ = zt.clip_grad_norm_, accelerator = zt.accelerator, progress = zt.progress}
    for _, part in ipairs(parts) do
      for name, fn in pairs(zt[part]) do
        local callable = type(fn) == "function" or (getmetatable(fn) or {}).__call
        if callable and name ~= "save" and name ~= "class" then functions[part .. "." .. name] = fn end
      end
    end
    for name, fn in pairs(zt.nn.init) do functions["nn.init." .. name] = fn end
    for name, fn in pairs(functions) do
      for _ = 1, 60 do
        local args = some()
        local ok, text = pcall(function() return fn(table.unpack(args, 1, args.n)), nil end)
        assert.is_true(ok or tostring(text):match("^" .. here .. ":%d+: [^\n]*$") ~= nil,
          ("%s: %s (ZT_SEED=%d)"):format(name, tostring(text), support.seed))
      end
    end
  end)

  it("check the types of options", function()
    assert.matches("data.loader: batch_size must be a number, not '3'", says(zt.data.loader, {1}, {batch_size = "3"}))
    assert.matches("data.loader: shuffle must be a boolean, not 1", says(zt.data.loader, {1}, {shuffle = 1}))
    assert.matches("nn.Linear: act must be a string, not a table", says(zt.nn.Linear, 2, 2, {act = {}}))
    assert.matches("accelerator: project_dir must be a string, not 5", says(zt.accelerator, {project_dir = 5}))
    assert.matches("unknown schedule 'a tensor'", says(zt.schedule.get, zt.ones(3, 3), {}, {}))
  end)

  it("take no path with a zero byte", function()
    assert.matches("zero byte", says(zt.json.load, "/dev/null\0x"))
  end)

  it("say where there is nothing to predict", function()
    local function fetch(_, rows) return {input_ids = zt.zeros({#rows, 1}, {dtype = "int64"})} end
    local blocks = setmetatable({fetch = fetch}, {__len = function() return 3 end})
    assert.matches("nothing to predict", says(zt.data.unigram_loss, blocks, blocks, 4))
  end)
end)

describe("empty tensors", function()
  it("are copied in every layout", function()
    for a = 0, 2 do
      for b = 0, 2 do
        for c = 0, 2 do
          local t = zt.ones(a, b, c):transpose(1, 3):contiguous()
          assert.same({c, b, a}, {t:size()})
        end
      end
    end
  end)
end)

describe("an accelerator", function()
  it("finds at once that its folder cannot be written, and adds whole lines or none", function()
    local folder = support.folder()
    support.write(folder .. "/file", "")
    assert.matches("cannot make the folder", says(zt.accelerator, {project_dir = folder .. "/file/x"}))
    zt.accelerator {project_dir = folder}
    assert.equal("", support.read(folder .. "/metrics.jsonl"))
    support.clean()
  end)
end)

describe("models and modules", function()
  local i64 = {dtype = "int64"}
  local model = zt.models.from_config {model_type = "gpt2", n_layer = 1, n_embd = 8, n_head = 2, n_positions = 16,
    vocab_size = 32}

  it("say what is wrong with a batch", function()
    local ids = zt.zeros({1, 3}, i64)
    local function bad(key, value) return says(model, {input_ids = ids, [key] = value}) end
    assert.matches("index 32 at position 1 of %(1, 2%)", bad("input_ids", zt.tensor({{1, 32}}, i64)))
    assert.matches("label 99 at position 1 of %(1, 3%)", bad("labels", zt.tensor({{1, 2, 99}}, i64)))
    assert.matches("attention_mask must be a tensor, not a table", bad("attention_mask", {1, 1, 1}))
    assert.matches("position_ids is %(2, 3%)", bad("position_ids", zt.zeros({2, 3}, i64)))
    assert.matches("no tokens", bad("input_ids", zt.zeros({1, 0}, i64)))
    assert.equal(0, model {input_ids = zt.zeros({0, 3}, i64), labels = zt.zeros({0, 3}, i64)}.count)
    assert.same({0, 4}, {model:generate(zt.zeros({0, 3}, i64), {max_new_tokens = 1}):size()})
  end)

  it("cannot hold themselves", function()
    local A = zt.nn.class "A"
    local a, b, c = A(), A(), A()
    a.b, b.c = b, c
    for _, holder in ipairs {a, b, c} do
      assert.matches("cannot hold itself", says(function() holder.again = a end))
    end
    assert.equal("a.b.c", c:path())
  end)

  it("refuse numbers out of range", function()
    local x, label = zt.ones(1, 3), zt.zeros({1}, i64)
    for _, smoothing in ipairs {-0.1, 1.5, 0 / 0} do
      assert.matches("label_smoothing is", says(zt.cross_entropy, x, label, {label_smoothing = smoothing}))
      assert.matches("label_smoothing is",
        says(zt.linear_cross_entropy, x, zt.ones(2, 3), label, {label_smoothing = smoothing}))
    end
    assert.matches("eps is", says(zt.layer_norm, x, nil, nil, -1))
    assert.matches("standard deviation is", says(x.normal_, x, 0, -1))
    assert.matches("low 1 is above high 0", says(x.uniform_, x, 1, 0))
    assert.matches("no more are possible", says(zt.stack, {zt.ones(1, 1, 1, 1, 1, 1)}, 1))
  end)
end)

describe("finalizers", function()
  it("called by hand, on anything, harm nothing", function()
    local tensor, optim = zt.ones(2), core.optim "sgd"
    for _, object in ipairs {tensor, optim} do
      local meta = getmetatable(object)
      for _, name in ipairs {"__gc", "__close"} do
        for _, value in ipairs {5, "x", io.stdout, {}, tensor == object and optim or tensor} do
          pcall(meta[name], value)
        end
        pcall(meta[name])
        pcall(meta[name], object)
        pcall(meta[name], object)
      end
    end
    assert.is_false(pcall(tensor.sum, tensor))
    assert.is_false(pcall(optim.zero_grad, optim))
  end)
end)
