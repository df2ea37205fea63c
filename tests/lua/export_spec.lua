-- `ztrain export`: the folder that it writes from a checkpoint is the model that was trained.
package.path = debug.getinfo(1, "S").source:match("^@(.*)/") .. "/?.lua;" .. package.path
local core = require "ztrain.core"
local support = require "support"
local zt = require "ztrain"
local ztrain = assert(os.getenv "ZTRAIN", "ZTRAIN names the program")

-- Whether `ztrain export ...` ended well, and its only line.
local function export(...)
  local pipe = io.popen(("%s export %s 2>&1"):format(ztrain, table.concat({...}, " ")))
  local text = pipe:read "a"
  local ok = pipe:close() == true
  assert.equal(1, select(2, text:gsub("\n", "")), text)
  return ok, (text:gsub("\n", ""))
end

local function fails(pattern, ...)
  local ok, line = export(...)
  assert.is_false(ok)
  assert.matches(pattern, line)
end

-- A checkpoint in folder/step_2, and the model in folder/model.
local function train(n, stage, precision, folder, tie)
  local ok, text = support.run(n, "export", stage, precision, folder, tie or "tied")
  assert(ok, text)
end

local function load(path) return core.safetensors_load(path .. "/model.safetensors") end

local function names(tensors)
  local list = {}
  for name in pairs(tensors) do list[#list + 1] = name end
  table.sort(list)
  return list
end

describe("export", function()
  local folder

  before_each(function() folder = support.folder() end)
  after_each(support.clean)

  it("writes what save_model writes, from any number of ranks and any stage", function()
    for _, case in ipairs {{1, 0, "tied"}, {3, 3, "tied"}, {2, 2, "untied"}} do
      local n, stage, tie = table.unpack(case)
      local own, out = ("%s/%d"):format(folder, n), ("%s/%d/out"):format(folder, n)
      train(n, stage, "no", own, tie)
      local ok, line = export(own .. "/step_2", out)
      assert.is_true(ok, line)
      local want, got = load(own .. "/model"), load(out)
      assert.equal(("%s: %d tensors of %s/step_2"):format(out, #names(got), own), line)
      assert.same(names(want), names(got))
      assert.equal(tie == "untied", got["lm_head.weight"] ~= nil) -- D39, D40: a tied one is there once
      for name, t in pairs(want) do assert.is_true(t:equal(got[name]), name) end
      for _, file in ipairs {"config.json", "generation_config.json"} do
        assert.equal(support.read(own .. "/model/" .. file), support.read(out .. "/" .. file))
      end
      local model = zt.models.from_pretrained(out)
      assert.equal(tie == "tied", rawequal(model.lm_head.weight, model.transformer.wte.weight))
    end
  end)

  it("writes the masters, or rounds them to the dtype that is asked for", function()
    train(2, 1, "bf16", folder)
    assert.is_true((export(folder, folder .. "/masters"))) -- the newest of the folder
    local masters, trained = load(folder .. "/masters"), load(folder .. "/model")
    assert.equal("float32", zt.json.load(folder .. "/masters/config.json").dtype)
    local rounded
    for name, t in pairs(masters) do
      assert.equal("float32", t:dtype())
      assert.is_true(trained[name]:to("bfloat16"):equal(t:to("bfloat16")), name)
      rounded = rounded or not t:equal(t:to("bfloat16"):to("float32"))
    end
    assert.is_true(rounded)
    for _, dtype in ipairs {"bfloat16", "float16", "float32"} do
      assert.is_true((export(folder .. "/step_2/", "--dtype=" .. dtype, folder .. "/out")))
      local got = load(folder .. "/out")
      for name, t in pairs(masters) do assert.is_true(t:to(dtype):equal(got[name]), dtype .. " " .. name) end
      assert.equal(dtype, zt.json.load(folder .. "/out/config.json").dtype)
    end
  end)

  it("says in a line why it cannot", function()
    train(1, 0, "no", folder)
    local ck, out = folder .. "/step_2", folder .. "/out"
    fails("^ztrain: export wants a checkpoint and a folder to write; see ztrain export %-%-help$", ck)
    fails("export wants a checkpoint and a folder", ck, out, "more")
    fails("unknown option '%-%-dtyp'; did you mean '%-%-dtype'%?", ck, out, "--dtyp", "float32")
    fails("unknown dtype 'fp16'", ck, out, "--dtype", "fp16")
    fails("unknown dtype ''", ck, out, "--dtype")
    fails("cannot read the folder '.*/no': No such file or directory$", folder .. "/no", out)
    fails("/model' has no checkpoint %(a folder step_N or epoch_N%); it has: ", folder .. "/model", out)
    fails("cannot make the folder '/dev/null': File exists$", ck, "/dev/null/out")
    support.write(folder .. "/model/model.safetensors.index.json", "{}")
    fails("model.safetensors.index.json' is there", ck, folder .. "/model")
    assert.is_false(core.file_exists(out))
    local manifest = support.read(ck .. "/manifest.json")
    support.write(ck .. "/manifest.json", (manifest:gsub('"step"', '"Step"')))
    fails("manifest.json' is damaged: it does not have its checksum$", ck, out)
    support.write(ck .. "/manifest.json", manifest)
    local data = manifest:match('"name":"(rank[^"]*)"')
    local bytes = support.read(ck .. "/" .. data)
    support.write(ck .. "/" .. data, bytes:sub(1, 1000) .. "X" .. bytes:sub(1002))
    fails("tensor '.*%.bin' is damaged: bytes 0 to %d+ do not have their checksum$", ck, out)
    assert.is_false(core.file_exists(out .. "/model.safetensors"))
  end)

  it("needs a model that has a config", function()
    support.write(folder .. "/script.lua", [[
      local zt = require "ztrain"
      local model = zt.nn.Linear(3, 2)
      local acc = zt.accelerator()
      acc:prepare(model, zt.optim.sgd(model:parameters(), {lr = 1}))
      acc:save_state(arg[1])]])
    assert(os.execute(("%s %s/script.lua %s/step_0"):format(ztrain, folder, folder)))
    fails("step_0' is not the checkpoint of one model that has a config: there is nothing to export$", folder,
      folder .. "/out")
  end)

  it("explains itself", function()
    local pipe = io.popen(ztrain .. " export --help")
    assert.matches("^usage: ztrain export CKPT OUT %[%-%-dtype", pipe:read "a")
    assert.is_true(pipe:close())
  end)
end)

describe("an open checkpoint", function()
  local folder

  before_each(function() folder = support.folder() end)
  after_each(support.clean)

  it("says what is in it, and gives it", function()
    train(2, 3, "bf16", folder)
    local path = core.checkpoint_latest(folder)
    assert.equal(folder .. "/step_2", path)
    local ck = core.checkpoint_open(path)
    assert.equal(2, zt.json.decode(ck:json()).step)
    ck:verify()
    local dtype, shape = ck:info "model.transformer.wpe.weight"
    assert.same({"float32", {32, 48}}, {dtype, shape})
    for _, name in ipairs(ck:names()) do
      dtype, shape = ck:info(name)
      local t = ck:read(name)
      assert.same({dtype, shape}, {t:dtype(), {t:size()}})
    end
    support.raises("the checkpoint has no tensor 'no'", ck.read, ck, "no")
    support.raises("the checkpoint has no tensor 'no'", ck.info, ck, "no")
    ck:close()
    ck:close()
    support.raises("the checkpoint was closed", ck.names, ck)
    support.raises("cannot read '.*/no/manifest.json'", core.checkpoint_open, folder .. "/no")
    core.checkpoint_prune(folder, 1)
    assert.equal(path, core.checkpoint_latest(folder))
    support.raises("0 checkpoints are to stay; 1 is the least", core.checkpoint_prune, folder, 0)
  end)
end)
