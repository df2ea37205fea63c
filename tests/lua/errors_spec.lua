-- Errors say where: the script's line, never the library's, then the module's path, then what, with shapes.
local core = require "ztrain.core"
package.path = debug.getinfo(1, "S").source:match("^@(.*)/") .. "/?.lua;" .. package.path
local support = require "support"

local message = support.message

-- Runs a chunk under a chunk name, as if it were a file.
local function run(chunk_name, text, ...) return assert(load(text, chunk_name, "t"))(...) end

describe("errors", function()
  it("stand at the script's line, with path and shapes", function()
    local text = message(run, "@recipe.lua", [[
      local core = require "ztrain.core"
      local x = core.zeros(8, 4)
      core.scope("gpt2.h.3.attn", function()
        return x:matmul(core.zeros(5, 5))
      end)]])
    assert.matches("^recipe.lua:4: gpt2.h.3.attn: matmul: .*%(8, 4%).*%(5, 5%)", text)
  end)

  it("pass over the library's own lines", function()
    local call = run("@ztrain/nn/layers.lua", "local _\n return function(x) return x:sum(9) end")
    local text = message(run, "@recipe.lua", "local call, x = ...\n\ncall(x)", call, core.zeros(2))
    assert.matches("^recipe.lua:3: sum: argument 1: dimension 9 of a tensor with 1", text)
  end)

  it("take no script for the library's, whatever its folder is called", function()
    local text = message(run, "@ztrain/recipe.lua", "local core = require 'ztrain.core'\ncore.zeros('x')")
    assert.matches("^ztrain/recipe.lua:2: zeros: ", text)
  end)

  it("of Lua itself in the library's lines get the script's line, too", function()
    local broken = run("@ztrain/nn/layers.lua", "return function() local t = nil; return t.x end")
    local call = "local core, fn = ...\ncore.scope('model', function() fn() end)"
    local text = message(run, "@recipe.lua", call, core, broken)
    assert.matches("^recipe.lua:2: model: ztrain/nn/layers.lua:1: attempt to index", text)
  end)

  it("name the argument and what came instead", function()
    local x = core.zeros(2)
    assert.matches("matmul: argument 1: tensor expected, got no value", message(function() x:matmul() end))
    local matmul = core.matmul
    assert.matches("matmul: argument 2: tensor expected, got string", message(function() matmul(x, "y") end))
    assert.matches("list of tensors", message(function() core.cat(x) end))
    assert.matches("element 2: tensor expected, got number", message(function() core.cat {x, 3} end))
    assert.matches("integer expected, got number", message(function() x:sum(1.5) end))
    assert.matches("sum: argument 1: tensor expected, got string", message(function() x.sum("no tensor") end))
  end)

  it("suggest the nearest option and list the valid ones", function()
    local x, labels = core.zeros(2, 3), core.zeros({2}, {dtype = "int64"})
    local text = message(function() core.cross_entropy(x, labels, {lable_smoothing = 0.1}) end)
    assert.matches("unknown option 'lable_smoothing'; did you mean 'label_smoothing'%? " ..
                   "Valid: ignore_index, label_smoothing$", text)
    assert.matches("unknown option 'zzz'%. Valid: dtype, device", message(core.zeros, 2, {zzz = 1}))
    assert.matches("options have names", message(core.zeros, 2, {"float32"}))
    assert.matches("option 'dtype': string expected, got number", message(core.zeros, 2, {dtype = 3}))
    assert.matches("unknown dtype 'float23'; did you mean 'float32'%?", message(core.zeros, 2, {dtype = "float23"}))
    assert.matches("unknown activation 'gleu'; did you mean 'gelu'%?",
                   message(core.linear, x, core.zeros(4, 3), nil, {act = "gleu"}))
    assert.matches("device 'cuda:0' is not open; tensors are on 'cpu'", message(core.zeros, 2, {device = "cuda:0"}))
  end)

  it("refuse what makes no sense", function()
    assert.matches("side by side", message(core.tensor, {{1, 2}, {3}}))
    assert.matches("stands beside tables", message(core.tensor, {{1}, 2}))
    assert.matches("element 2 is a string", message(core.tensor, {1, "x"}))
    assert.matches("not in the range of uint8", message(core.tensor, {256}, {dtype = "uint8"}))
    assert.matches("at most 6", message(core.zeros, 1, 1, 1, 1, 1, 1, 1))
    assert.matches("item: one element expected, the shape is %(2%)", message(function() core.zeros(2):item() end))
    assert.matches("never ends", message(core.arange, 0, 1, 0))
    assert.matches("is not 3 bytes long", message(core.from_bytes, "abc", "float32", {2}))
    assert.matches("only the field 'grad'", message(function() core.zeros(1).x = 1 end))
    assert.matches("did you mean 'adamw'", message(core.optim, "adamW"))
  end)
end)
