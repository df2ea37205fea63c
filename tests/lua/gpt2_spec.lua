-- GPT-2 against transformers: logits, loss, gradients, six AdamW steps, greedy ids (goldens/gpt2*, made in float64).
package.path = debug.getinfo(1, "S").source:match("^@(.*)/") .. "/?.lua;" .. package.path
local support = require "support"
local zt = require "ztrain"

local function load(name, opts)
  local folder = support.tests .. "goldens/" .. name
  local case = zt.safetensors.load(folder .. "/case.safetensors")
  return zt.models.from_pretrained(folder, opts), case, zt.json.load(folder .. "/case.json")
end

local function batch_of(case)
  return {input_ids = case.input_ids, attention_mask = case.attention_mask, labels = case.labels}
end

-- The key third of c_attn.bias has no gradient by mathematics: what stands there is rounding.
local function without_keys(name, t)
  if not name:match("c_attn%.bias$") then return t end
  local d = t:size(1) // 3
  return zt.cat({t:narrow(1, 1, d), t:narrow(1, 2 * d + 1, d)}, 1)
end

local function decayed_groups(model)
  local decay, plain = {params = {}}, {params = {}, weight_decay = 0}
  for _, p in ipairs(model:parameters()) do table.insert(p:dim() > 1 and decay.params or plain.params, p) end
  return {decay, plain}
end

local tiny = {model_type = "gpt2", vocab_size = 61, n_positions = 24, n_embd = 12, n_layer = 2, n_head = 3,
  resid_pdrop = 0, embd_pdrop = 0, attn_pdrop = 0, bos_token_id = 1, eos_token_id = 2}

local function tiny_with(changes)
  local config = {}
  for key, value in pairs(tiny) do config[key] = value end
  for key, value in pairs(changes or {}) do config[key] = value end
  return config
end

local function random_ids(rows, columns, vocab)
  local ids = {}
  for i = 1, rows do
    ids[i] = {}
    for j = 1, columns do ids[i][j] = math.random(3, vocab - 1) end
  end
  return zt.tensor(ids, {dtype = "int64"})
end

for _, name in ipairs {"gpt2", "gpt2-padded"} do
  for dtype, tolerance in pairs {float32 = 1e-5, float64 = 3e-7} do -- transformers makes the loss in float32
    describe(name .. " in " .. dtype, function()
      it("gives transformers' logits, loss and gradients", function()
        local model, case = load(name, {dtype = dtype})
        local out = model(batch_of(case))
        support.close(out.loss:reshape(1), case.loss, tolerance, "loss")
        support.close(out.logits, case.logits, tolerance, "logits")
        assert.equal(case.labels:narrow(2, 2, 23):ne(-100):to("int64"):sum():item(), out.count)
        out.loss:backward()
        for parameter, p in model:named_parameters() do
          local want = without_keys(parameter, case["grad." .. parameter])
          support.close(without_keys(parameter, p.grad), want, tolerance, "gradient of " .. parameter)
        end
        local norm = zt.clip_grad_norm_(model:parameters(), 1e9)
        assert.near(case.grad_norm:item(), norm, tolerance * norm)
      end)

      it("takes six AdamW steps as PyTorch does", function()
        local model, case, about = load(name, {dtype = dtype})
        local opt = zt.optim.adamw(decayed_groups(model), about.adamw)
        local losses = case.losses:totable()
        for step = 1, about.steps do
          local out = model(batch_of(case))
          assert.near(losses[step], out.loss:item(), tolerance * losses[step])
          out.loss:backward()
          zt.clip_grad_norm_(model:parameters(), about.clip_norm)
          opt:step()
          opt:zero_grad()
        end
        for parameter, p in model:named_parameters() do
          local want = without_keys(parameter, case["weight." .. parameter])
          support.close(without_keys(parameter, p), want, tolerance, parameter)
        end
      end)
    end)
  end
end

for _, name in ipairs {"gpt2", "gpt2-padded"} do
  it(name .. " in float64 is right to 1e-9", function()
    local model, case = load(name, {dtype = "float64"})
    local want = zt.safetensors.load(support.tests .. "goldens/" .. name .. "/float64.safetensors")
    local out = model(batch_of(case))
    support.close(out.loss:reshape(1), want.loss, 1e-9, "loss")
    support.close(out.logits, want.logits, 1e-9, "logits")
    out.loss:backward()
    for parameter, p in model:named_parameters() do
      local gradient = without_keys(parameter, want["grad." .. parameter])
      support.close(without_keys(parameter, p.grad), gradient, 1e-9, "gradient of " .. parameter)
    end
  end)
end

-- What mixed precision computes with; without_keys as above. Tolerances: the logits and the whole gradient, one tensor.
local function check_16_bits(name, dtype, tolerance, single, prepare)
  local model, case = load(name, {dtype = dtype})
  if prepare then prepare(model) end
  local out = model(batch_of(case))
  support.close(out.loss:reshape(1), case.loss, 1e-3, "loss")
  support.close(out.logits, case.logits, tolerance, "logits")
  local seed = 65536 -- DeepSpeed's first loss scale
  out.loss:backward(nil, {seed = seed})
  local got, want = {}, {}
  for parameter, p in model:named_parameters() do
    local g = without_keys(parameter, p.grad):to("float64") / seed
    local w = without_keys(parameter, case["grad." .. parameter]):to("float64")
    support.close(g, w, single, "gradient of " .. parameter)
    got[#got + 1], want[#want + 1] = g:reshape(-1), w:reshape(-1)
  end
  support.close(zt.cat(got, 1), zt.cat(want, 1), tolerance, "the whole gradient")
end

for _, name in ipairs {"gpt2", "gpt2-padded"} do
  describe(name .. " in 16 bits", function()
    it("gives transformers' numbers in bfloat16", function() check_16_bits(name, "bfloat16", 2e-2, 6e-2) end)
    it("gives transformers' numbers in float16", function() check_16_bits(name, "float16", 3e-3, 6e-3) end)

    it("gives them with some of its modules in float32", function()
      local function pick(pattern)
        return function(model)
          for path, module in model:named_modules() do
            if path:match(pattern) then module:to "float32" end
          end
        end
      end
      for _, pattern in ipairs {"ln_", "%.wpe$", "1%.attn$", "0%.mlp%.c_fc$"} do
        check_16_bits(name, "bfloat16", 2e-2, 6e-2, pick(pattern))
      end
      check_16_bits(name, "bfloat16", 2e-2, 6e-2, function(model)
        model.transformer.wte:to "float32"
        model.lm_head.weight = model.transformer.wte.weight
      end)
    end)
  end)
end

describe("generate", function()
  it("gives transformers' greedy ids, with and without the cache", function()
    local model, case = load "gpt2"
    model:train()
    for _, use_cache in ipairs {true, false} do
      local ids = model:generate(case.input_ids, {max_new_tokens = 16, use_cache = use_cache})
      assert.same(case.greedy:totable(), ids:totable())
    end
    assert.is_true(model.training)
    assert.is_true(zt.grad_enabled())
  end)

  it("gives a left-padded row what the row alone gets", function()
    local model = zt.models.from_config(tiny_with {initializer_range = 0.5}):eval()
    local ids = random_ids(1, 7, 61)
    local alone = model:generate(ids, {max_new_tokens = 8, eos_token_id = 60}):totable()[1]
    local padded = zt.cat({zt.full({1, 3}, 60, {dtype = "int64"}), ids}, 2)
    local mask = zt.cat({zt.zeros(1, 3, {dtype = "int64"}), zt.ones(1, 7, {dtype = "int64"})}, 2)
    for _, use_cache in ipairs {true, false} do
      local both = model:generate(zt.cat({padded, random_ids(1, 10, 61)}, 1), {max_new_tokens = 8, eos_token_id = 60,
        attention_mask = zt.cat({mask, zt.ones(1, 10, {dtype = "int64"})}, 1), use_cache = use_cache}):totable()[1]
      for j = 1, #alone do assert.equal(alone[j], both[j + 3], "ZT_SEED=" .. support.seed) end
    end
  end)

  it("stops each row at its end token and pads", function()
    local model = zt.models.from_config(tiny_with {initializer_range = 0.5})
    local ids = random_ids(3, 5, 61)
    local free = model:generate(ids, {max_new_tokens = 12, eos_token_id = {}}):totable()
    local eos = free[1][7] -- what row 1 makes second
    local rows = model:generate(ids, {max_new_tokens = 12, eos_token_id = eos, pad_token_id = 0}):totable()
    for i = 1, 3 do
      local ended = false
      for j, id in ipairs(rows[i]) do
        assert.equal(ended and 0 or free[i][j], id, "ZT_SEED=" .. support.seed)
        ended = ended or (j > 5 and id == eos)
      end
    end
    local later = model:generate(ids, {max_new_tokens = 12, eos_token_id = eos, min_new_tokens = 5}):totable()
    for j = 6, 10 do assert.is_not.equal(eos, later[1][j]) end
  end)

  it("samples by the seed, and as greedily as asked", function()
    local model = zt.models.from_config(tiny_with {initializer_range = 0.5})
    local ids = random_ids(2, 4, 61)
    local function sample(seed, opts)
      zt.seed(seed)
      opts.max_new_tokens, opts.do_sample, opts.eos_token_id = 15, true, {}
      return model:generate(ids, opts):totable()
    end
    assert.same(sample(3, {}), sample(3, {}))
    assert.is_not.same(sample(3, {temperature = 3.0}), sample(4, {temperature = 3.0}))
    local greedy = model:generate(ids, {max_new_tokens = 15, eos_token_id = {}}):totable()
    assert.same(greedy, sample(5, {top_k = 1}))
    assert.same(greedy, sample(6, {top_p = 1e-6}))
  end)

  it("keeps to n_positions and to its options", function()
    local model = zt.models.from_config(tiny)
    assert.match("20 tokens and 6 new ones are more than n_positions 24",
      support.message(model.generate, model, random_ids(1, 20, 61), {max_new_tokens = 6}))
    assert.match("unknown option 'max_tokens'; did you mean 'max_new_tokens'",
      support.message(model.generate, model, {1, 2}, {max_tokens = 6}))
    assert.same({1, 6}, {model:generate({5, 6, 7}, {max_length = 6, eos_token_id = {}}):size()})
    assert.is_true(model.training)
  end)
end)

describe("GPT-2", function()
  it("raises for a batch that does not fit", function()
    local model = zt.models.from_config(tiny)
    local function bad(batch) return support.message(model, batch) end
    assert.match("a sequence of 25 tokens is longer than n_positions 24", bad {input_ids = random_ids(1, 25, 61)})
    assert.match("input_ids must be int64, not float32", bad {input_ids = zt.ones(1, 4)})
    assert.match("input_ids must be %(batch, sequence%), not %(4%)", bad {input_ids = random_ids(1, 4, 61)[1]})
    assert.match("labels is %(1, 3%), input_ids %(1, 4%)",
      bad {input_ids = random_ids(1, 4, 61), labels = random_ids(1, 3, 61)})
    assert.match("gpt2.transformer.wte: .*61", bad {input_ids = zt.full({1, 4}, 61, {dtype = "int64"})})
    assert.match("^%S*gpt2_spec.lua:%d+: ", support.message(function() model {input_ids = zt.ones(1, 4)} end))
  end)

  it("computes logits when they are read, and not once the weights have changed", function()
    local model = zt.models.from_config(tiny)
    local batch = {input_ids = random_ids(2, 5, 61), labels = random_ids(2, 5, 61)}
    local out = model(batch)
    assert.same({2, 5, 61}, {out.logits:size()})
    assert.equal(out.logits, out.logits)
    out = model(batch)
    out.loss:backward()
    zt.optim.sgd(model:parameters()):step()
    assert.match("the weights have changed", support.message(function() return out.logits end))
  end)

  it("counts no label where all are -100", function()
    local model = zt.models.from_config(tiny)
    local out = model {input_ids = random_ids(2, 5, 61), labels = zt.full({2, 5}, -100, {dtype = "int64"})}
    assert.same({0, 0}, {out.count, out.loss:item()})
  end)

  it("takes a batch of no rows: loss 0, count 0, and gradients of exactly 0", function()
    local config = tiny_with {resid_pdrop = 0.1, embd_pdrop = 0.1, attn_pdrop = 0.1}
    local ids = zt.zeros(0, 7, {dtype = "int64"})
    for _, dtype in ipairs {"float32", "float64", "bfloat16", "float16"} do
      for _, checkpointing in ipairs {false, true} do
        local model = zt.models.from_config(config, {gradient_checkpointing = checkpointing}):to(dtype)
        local out = model {input_ids = ids, labels = ids, attention_mask = ids, position_ids = ids}
        assert.same({0, 0, 0, 7, 61}, {out.loss:item(), out.count, out.logits:size()})
        out.loss:backward(nil, {seed = 2 ^ 20})
        for name, p in model:named_parameters() do
          assert.is_true(p.grad:equal(zt.zeros({p:size()}, {dtype = dtype})), dtype .. " " .. name)
        end
      end
    end
  end)

  it("writes a folder that it reads back, bit for bit", function()
    for _, tie in ipairs {true, false} do
      local model = zt.models.from_config(tiny_with {tie_word_embeddings = tie, activation_function = "relu",
        scale_attn_by_inverse_layer_idx = true, n_inner = 20})
      local folder = support.folder()
      model:save_pretrained(folder)
      local again = zt.models.from_pretrained(folder)
      local ids = random_ids(2, 9, 61)
      assert.is_true(model:eval() {input_ids = ids}.logits:equal(again {input_ids = ids}.logits))
      local tensors = zt.safetensors.load(folder .. "/model.safetensors")
      assert.equal(not tie, tensors["lm_head.weight"] ~= nil)
      local config = zt.json.load(folder .. "/config.json")
      assert.same({"GPT2LMHeadModel"}, config.architectures)
      assert.same({20, "relu", "float32", zt.json.null},
        {config.n_inner, config.activation_function, config.dtype, config.pad_token_id})
    end
    support.clean()
  end)

  it("reads files without 'transformer.', with old masks and a tied head", function()
    local model, folder = zt.models.from_config(tiny), support.folder()
    model:save_pretrained(folder)
    local tensors = {}
    for name, p in model:named_parameters() do tensors[name:gsub("^transformer%.", "")] = p end
    tensors["h.0.attn.bias"], tensors["h.1.attn.masked_bias"] = zt.ones(1, 1, 24, 24), zt.full({1}, -1e4)
    tensors["lm_head.weight"] = model.transformer.wte.weight
    zt.safetensors.save(folder .. "/model.safetensors", tensors)
    local again = zt.models.from_pretrained(folder)
    for name, p in again:named_parameters() do assert.is_true(p:equal((model:state_dict())[name]), name) end
    support.clean()
  end)

  it("lists all that is wrong with a file", function()
    local model, folder = zt.models.from_config(tiny), support.folder()
    model:save_pretrained(folder)
    local tensors = model:state_dict()
    tensors["transformer.ln_f.bias"], tensors["transformer.wpe.weight"] = nil, zt.ones(3, 3)
    tensors["transformer.h.0.attn.c_attn.weight"] = nil
    zt.safetensors.save(folder .. "/model.safetensors", tensors)
    local message = support.message(zt.models.from_pretrained, folder)
    for _, part in ipairs {"ln_f.bias", "wpe.weight", "h.0.attn.c_attn.weight", "3"} do
      assert.is_truthy(message:find(part, 1, true), message)
    end
    support.clean()
  end)

  it("knows configs by transformers' other names, and slips of the pen", function()
    local model = zt.models.from_config {model_type = "gpt2", hidden_size = 8, num_hidden_layers = 1,
      num_attention_heads = 2, max_position_embeddings = 9, vocab_size = 11}
    local config = model.config
    assert.same({8, 1, 2, 9}, {config.n_embd, config.n_layer, config.n_head, config.n_positions})
    local function bad(changes) return support.message(zt.models.from_config, tiny_with(changes)) end
    assert.match("config has 'n_layers'; 'n_layer' is what the model knows", bad {n_layers = 3})
    assert.match("n_embd 12 is no multiple of n_head 5", bad {n_head = 5})
    assert.match("unknown activation_function 'gelu_now'; did you mean 'gelu_new'",
      bad {activation_function = "gelu_now"})
    assert.match("unknown model_type 'gpt3'; did you mean 'gpt2'", bad {model_type = "gpt3"})
  end)

  it("starts as GPT-2 does", function()
    local model = zt.models.from_config {model_type = "gpt2", n_embd = 64, n_layer = 8, n_head = 2, vocab_size = 500}
    local h = model.transformer.h[3]
    assert.near(0.02, model.transformer.wte.weight:var():item() ^ 0.5, 1e-3)
    assert.near(0.02, h.mlp.c_fc.weight:var():item() ^ 0.5, 1e-3)
    assert.near(0.02 / 4, h.mlp.c_proj.weight:var():item() ^ 0.5, 2.5e-4)
    assert.near(0.02 / 4, h.attn.c_proj.weight:var():item() ^ 0.5, 4e-4)
    assert.same({0, 64}, {h.attn.c_attn.bias:norm():item(), model.transformer.ln_f.weight:sum():item()})
    assert.is_true(model.training)
  end)

  it("gives the same gradients with gradient_checkpointing, dropout and all, bit for bit", function()
    local config = tiny_with {resid_pdrop = 0.1, embd_pdrop = 0.1, attn_pdrop = 0.1}
    local ids, gradients = random_ids(3, 11, 61), {}
    for i, checkpointing in ipairs {false, true} do
      zt.seed(11)
      local model = zt.models.from_config(config, {gradient_checkpointing = checkpointing})
      local out = model {input_ids = ids, labels = ids}
      out.loss:backward()
      gradients[i] = {loss = out.loss:item()}
      for name, p in model:named_parameters() do gradients[i][name] = p.grad end
    end
    assert.equal(gradients[1].loss, gradients[2].loss)
    for name, grad in pairs(gradients[1]) do
      if name ~= "loss" then assert.is_true(grad:equal(gradients[2][name]), name) end
    end
  end)

  it("gives the same gradients for all 16 patterns of checkpointed blocks over a tied weight", function()
    local function gradients(pattern)
      zt.seed(7)
      local tied = zt.nn.Linear(6, 6)
      local blocks, params = {}, tied:parameters()
      for i = 1, 4 do
        blocks[i] = zt.nn.Linear(6, 6)
        for _, p in ipairs(blocks[i]:parameters()) do params[#params + 1] = p end
      end
      local x = zt.randn(3, 6):requires_grad_()
      params[#params + 1] = x
      local y = x
      for i = 1, 4 do
        local function run(t) return zt.dropout(tied(blocks[i](t):tanh()), 0.2) + t end
        if pattern >> (i - 1) & 1 == 1 then y = zt.checkpoint(run, y) else y = run(y) end
      end
      y:sum():backward()
      local hashes = {}
      for i, p in ipairs(params) do hashes[i] = p.grad:hash() end
      return hashes
    end
    local want = gradients(0)
    for pattern = 1, 15 do assert.same(want, gradients(pattern), "pattern " .. pattern) end
  end)
end)
