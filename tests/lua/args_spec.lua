package.path = debug.getinfo(1, "S").source:match("^@(.*)/") .. "/?.lua;" .. package.path
local support = require "support"
local zt = require "ztrain"

local function parse(...)
  return zt.args({
    lr = 5e-4, epochs = 3, model = "gpt2", debug = false,
    {"size", "tiny", "how large", choices = {"tiny", "xl"}}, {"train_file", nil, "text"},
    {"max_steps", type = "integer"},
  }, {argv = {...}})
end

describe("args", function()
  it("gives the defaults", function()
    local args = parse()
    assert.same({5e-4, 3, "gpt2", false, "tiny"}, {args.lr, args.epochs, args.model, args.debug, args.size})
    assert.is_nil(args.train_file)
  end)

  it("reads --name value and --name=value, with hyphens or underscores", function()
    local args = parse("--lr", "1e-3", "--epochs=4", "--train-file", "-x.txt", "--max_steps", "7")
    assert.same({1e-3, 4, "-x.txt", 7}, {args.lr, args.epochs, args.train_file, args.max_steps})
    assert.equal("integer", math.type(args.epochs))
    assert.equal("a=b", parse("--model=a=b").model)
    assert.equal(2, parse("--lr", "2").lr)
  end)

  it("reads flags", function()
    assert.is_true(parse("--debug").debug)
    assert.is_false(parse("--debug", "false").debug)
    assert.is_false(parse("--debug", "--no-debug").debug)
    assert.is_true(parse("--debug=true", "--epochs", "1").debug)
  end)

  it("reads the script's own arguments", function()
    local saved = rawget(_G, "arg")
    rawset(_G, "arg", {[0] = "recipe.lua", "--n", "5"})
    local args = zt.args {n = 1}
    rawset(_G, "arg", saved)
    assert.equal(5, args.n)
  end)

  it("takes defaults from presets", function()
    local function with(...)
      return zt.args({{"preset", "a"}, n = 1}, {argv = {...}, presets = {a = {n = 2, width = 8}, b = {width = 16}}})
    end
    assert.same({2, 8}, {with().n, with().width})
    assert.same({1, 16}, {with("--preset", "b").n, with("--preset=b").width})
    assert.same({2, 4}, {with("--width", "4").n, with("--width", "4").width})
    assert.match("unknown %-%-preset 'c'; did you mean 'a'%? Valid: a, b", support.message(with, "--preset", "c"))
    assert.match("wants an integer", support.message(with, "--width", "x"))
  end)

  it("raises for what it cannot read, and names the nearest", function()
    assert.match(
      "unknown option '%-%-epoch'; did you mean '%-%-epochs'%? Valid: %-%-epochs, ",
      support.message(parse, "--epoch", "2"))
    assert.match("%-%-epochs wants an integer, not '2.5'", support.message(parse, "--epochs", "2.5"))
    assert.match("%-%-lr wants a number, not 'fast'", support.message(parse, "--lr=fast"))
    assert.match("%-%-debug wants a boolean", support.message(parse, "--debug=yes"))
    assert.match("unknown %-%-size 'xll'; did you mean 'xl'%? Valid: xl, tiny", support.message(parse, "--size", "xll"))
    assert.match("%-%-lr wants a value", support.message(parse, "--lr"))
    assert.match("'x' is not an option", support.message(parse, "x"))
    assert.match("unknown option 'trian_file'; did you mean 'train_file'%? Valid: train_file, ",
      support.message(function() return parse().trian_file end))
  end)

  it("raises at the script's line", function()
    assert.match("^%S*args_spec.lua:%d+: ", support.message(function() zt.args({n = 1}, {argv = {"--m", "1"}}) end))
  end)
end)
