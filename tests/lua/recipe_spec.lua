-- The recipe, run as its user runs it, on a little text.
package.path = debug.getinfo(1, "S").source:match("^@(.*)/") .. "/?.lua;" .. package.path
local support = require "support"
local zt = require "ztrain"

local words = {"the", "river", "ran", "over", "stones", "and", "a", "bird", "sang", "in", "old", "trees", "while"}

local function story(n_lines)
  local lines = {}
  for i = 1, n_lines do
    local line, at = {}, math.random(#words)
    for j = 1, 10 do
      line[j] = words[at]
      at = (at + math.random(2)) % #words + 1
    end
    lines[i] = table.concat(line, " ") .. ".\n"
  end
  return table.concat(lines)
end

-- Runs the recipe in this interpreter; returns what it printed.
local function run(...)
  local saved_arg, saved_print, printed = rawget(_G, "arg"), print, {}
  rawset(_G, "arg", {...})
  rawset(_G, "print", function(...) printed[#printed + 1] = table.concat({...}, "\t") end)
  local ok, message = pcall(dofile, support.tests .. "../recipes/gpt_xl_stage3.lua")
  rawset(_G, "arg", saved_arg)
  rawset(_G, "print", saved_print)
  assert(ok, message)
  return table.concat(printed, "\n")
end

local sizes = {"--n_layer", "2", "--n_embd", "32", "--n_head", "2", "--vocab_size", "300", "--block_size", "24",
  "--per_device_train_batch_size", "4", "--logging_steps", "5", "--num_warmup_steps", "2", "--learning_rate", "5e-3"}

describe("gpt_xl_stage3", function()
  local folder, text

  setup(function()
    folder = support.folder()
    text = folder .. "/story.txt"
    support.write(text, story(1500))
  end)
  teardown(support.clean)

  local function recipe(out, ...)
    local list = {"--train_file", text, "--output_dir", out}
    for _, word in ipairs(sizes) do list[#list + 1] = word end
    for _, word in ipairs {...} do list[#list + 1] = word end
    return run(table.unpack(list))
  end

  it("trains, evaluates, saves and shows a sample", function()
    local out = folder .. "/one"
    local printed = recipe(out, "--max_train_steps", "60")
    assert.match("60 steps", printed)
    assert.match("epoch 1 +step 60/60 +loss", printed)
    local results = zt.json.load(out .. "/all_results.json")
    assert.same({1, 60}, {results.epoch, results.step})
    assert.near(math.exp(results.eval_loss), results.perplexity, 1e-9 * results.perplexity)
    assert.is_true(results.perplexity < results.unigram_perplexity, "perplexity " .. results.perplexity)
    local n = 0
    for line in io.lines(out .. "/metrics.jsonl") do
      zt.json.decode(line)
      n = n + 1
    end
    assert.equal(13, n)
    local model, tokenizer = zt.models.from_pretrained(out), zt.tokenizer.from_pretrained(out)
    assert.equal(tokenizer.vocab_size, model.config.vocab_size)
  end)

  it("goes on from a saved folder, on a file of its own for evaluation", function()
    local first, second, valid = folder .. "/first", folder .. "/second", folder .. "/valid.txt"
    support.write(valid, story(60))
    recipe(first, "--max_train_steps", "30", "--validation_file", valid)
    recipe(second, "--max_train_steps", "10", "--validation_file", valid, "--model_name_or_path", first,
      "--lr_scheduler_type", "WarmupDecayLR", "--gradient_checkpointing")
    local before, after = zt.json.load(first .. "/all_results.json"), zt.json.load(second .. "/all_results.json")
    assert.is_true(after.eval_loss < before.eval_loss + 0.1, ("%g -> %g"):format(before.eval_loss, after.eval_loss))
  end)

  it("is the same run for the same seed", function()
    recipe(folder .. "/a", "--max_train_steps", "6", "--seed", "3")
    recipe(folder .. "/b", "--max_train_steps", "6", "--seed", "3")
    recipe(folder .. "/c", "--max_train_steps", "6", "--seed", "4")
    local function loss(name) return zt.json.load(folder .. name .. "/all_results.json").eval_loss end
    assert.equal(loss "/a", loss "/b")
    assert.is_not.equal(loss "/a", loss "/c")
  end)

  it("shows a sample of a model with few positions, and wants blocks that can be learnt from", function()
    local config = folder .. "/config.json"
    support.write(config, '{"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 2, "n_positions": 24}')
    recipe(folder .. "/few", "--config_name", config, "--max_train_steps", "1")
    assert.match("nothing to predict",
      support.message(recipe, folder .. "/one", "--block_size", "1", "--max_train_steps", "1"))
  end)

  it("wants a text, and names the nearest option", function()
    assert.match("%-%-train_file is needed", support.message(run))
    assert.match("unknown option '%-%-train_fiel'; did you mean '%-%-train_file'",
      support.message(run, "--train_fiel", text))
  end)
end)
