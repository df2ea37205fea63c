-- The program ztrain: options, arguments, exit codes and what stands on the error output.
package.path = debug.getinfo(1, "S").source:match("^@(.*)/") .. "/?.lua;" .. package.path
local support = require "support"
local ztrain = assert(os.getenv "ZTRAIN", "ZTRAIN names the program")

local folder
local read, shell = support.read, support.shell

local function write(name, text)
  local path = folder .. "/" .. name
  local file = assert(io.open(path, "wb"))
  file:write(text)
  file:close()
  return path
end

local function run(arguments) return shell(ztrain .. " " .. arguments) end

-- Runs a recipe of that text.
local function recipe(text, arguments, options)
  return run(("%s %s %s"):format(options or "", write("recipe.lua", text), arguments or ""))
end

describe("ztrain", function()
  setup(function()
    folder = support.folder()
  end)
  teardown(support.clean)

  it("runs a recipe with its arguments", function()
    local status, out, err = recipe("#!/usr/bin/env ztrain\nprint(..., arg[1], #arg, arg[0])", "--lr 0.1")
    assert.are.same({0, ""}, {status, err})
    assert.are.equal("--lr\t--lr\t2\t" .. folder .. "/recipe.lua\n", out:gsub("0.1\t", ""))
  end)

  it("reports an error in one line at the recipe's line", function()
    local status, out, err = recipe("print(1)\nlocal t = nil\nprint(t.x)")
    assert.are.same({1, "1\n"}, {status, out})
    assert.are.equal("ztrain: " .. folder .. "/recipe.lua:3: attempt to index a nil value (local 't')\n", err)
    status, out, err = recipe("local x =")
    assert.are.same({1, ""}, {status, out})
    assert.matches("^ztrain: [^\n]*recipe.lua:1: [^\n]*\n$", err)
  end)

  it("keeps to one line, whatever a name or a message has in it", function()
    local _, _, err = recipe("error('a\\n\\tb\\27[31mc')")
    assert.are.equal("ztrain: " .. folder .. "/recipe.lua:1: a b\\27[31mc\n", err)
    _, _, err = recipe("require 'no.such.module'")
    assert.matches("^ztrain: [^\n]*no.such.module[^\n]*\n$", err)
  end)

  it("shows a traceback with --debug", function()
    local status, _, err = recipe("local function f() error('x') end\nf()", "", "--debug")
    assert.are.equal(1, status)
    assert.matches("^ztrain: [^\n]*:1: x\nstack traceback:\n.*'f'", err)
  end)

  it("has help and a version", function()
    local status, out = run("--help")
    assert.are.equal(0, status)
    assert.matches("^usage: ztrain ", out)
    local options = "num_processes N,mixed_precision no|fp16|bf16,zero_stage 0..3,gradient_accumulation_steps N,"
      .. "gradient_clipping NORM,accumulate sharded|local,page-size SIZE,resident-memory SIZE|none,no-overlap ,"
      .. "hash ,collective-timeout SECONDS,cpu ,device NAME,device-memory SIZE,debug ,help ,version "
    for option in options:gmatch "[^,]+" do
      assert.is_truthy(out:find("  --" .. option, 1, true), option)
    end
    local guide = read "docs/guide.md"
    for name in out:gmatch "\n  (%-%-%S+)" do
      local common = name == "--help" or name == "--version"
      assert.is_truthy(common or guide:match("|[^\n]*`" .. name:gsub("%p", "%%%0") .. "[ `]"), name)
    end
    status, out = run("--version")
    assert.are.equal(0, status)
    assert.matches("^ztrain %d+%.%d+%.%d+\n$", out)
  end)

  it("refuses what it does not know, and suggests", function()
    for arguments, text in pairs {
      ["--devise cpu x.lua"] = "unknown option '--devise'; did you mean '--device'?",
      ["--device_memroy 1 x.lua"] = "did you mean '--device-memory'?",
      ["--qqqqqqqqqq"] = "unknown option '--qqqqqqqqqq'; see",
      ["--device"] = "option '--device' needs a value",
      ["--debug=1 x.lua"] = "takes no value",
      ["--device-memory 12x x.lua"] = "'12x' is not a size",
      ["--device-memory -1GiB x.lua"] = "'-1GiB' is not a size",
      ["--device-memory 5Gi x.lua"] = "'5Gi' is not a size",
      [""] = "a recipe is missing",
      ["--zero_stge 1 x.lua"] = "unknown option '--zero_stge'; did you mean '--zero_stage'?",
      ["--zero_stage 4 x.lua"] = "option '--zero_stage': '4' is not an integer from 0 to 3",
      ["--zero-stage=1.5 x.lua"] = "option '--zero_stage': '1.5' is not an integer from 0 to 3",
      ["-n 0 x.lua"] = "option '--num_processes': '0' is not an integer from 1 to 4096",
      ["-n"] = "option '--num_processes' needs a value: N",
      ["--gradient_clipping nan x.lua"] = "option '--gradient_clipping': 'nan' is not a number from 0 on",
      ["--gradient_accumulation_steps 0 x.lua"] = "gradient_accumulation_steps': '0' is not an integer from 1",
      ["--mixed_precision bf61 x.lua"] = "'bf61' is not one of no, fp16, bf16; did you mean 'bf16'?",
      ["--accumulate x x.lua"] = "option '--accumulate': 'x' is not one of sharded, local; see",
      ["--resident-memory some x.lua"] = "'some' is not a size such as 24GiB, or none",
      ["--page-size 0 x.lua"] = "option '--page-size': '0' is not a size such as 24GiB",
      ["--collective-timeout 0 x.lua"] = "option '--collective-timeout': '0' is not a number from 0.001 on",
      ["--cpu --device cuda x.lua"] = "option '--cpu' and option '--device cuda' exclude each other",
    } do
      local status, out, err = run(arguments)
      assert.are.same({2, ""}, {status, out})
      assert.is_truthy(err:find(text, 1, true), err)
      assert.matches("^ztrain: [^\n]*\n$", err)
    end
    local status, _, err = run(folder .. "/missing.lua")
    assert.are.equal(1, status)
    assert.matches("^ztrain: cannot read .*missing.lua: No such file", err)
    status, _, err = recipe("", "", "--device abacus")
    assert.are.equal(1, status)
    assert.matches("abacus.*cpu", err)
  end)

  it("gives the options to the recipe as typed values", function()
    local text = [[
      for name, value in pairs(require "ztrain.core".settings()) do
        print(name .. "=" .. tostring(value) .. " " .. (math.type(value) or type(value)))
      end]]
    local function settings(options)
      local status, out, err = recipe(text, "", options)
      assert.are.same({0, ""}, {status, err})
      local list = {}
      for line in out:gmatch "[^\n]+" do list[#list + 1] = line end
      table.sort(list)
      return list
    end
    assert.are.same({}, settings "--debug --cpu --device-memory 1GiB")
    assert.are.same({
      "accumulate=local string", "gradient_accumulation_steps=3 integer", "gradient_clipping=0.5 float",
      "hash=true boolean", "mixed_precision=bf16 string", "num_processes=1 integer", "overlap=false boolean",
      "page_size=1572864 integer", "resident_memory=2000000 integer", "zero_stage=0 integer",
    }, settings("-n 1 --mixed-precision bf16 --zero_stage=0 --gradient-accumulation-steps 3 --gradient_clipping .5 "
      .. "--hash --accumulate local --page-size 1.5MiB --resident_memory 2MB --no-overlap"))
    assert.are.same({"resident_memory=0 integer"}, settings "--resident-memory 1GiB --resident-memory none")
  end)

  it("calls what was registered for the end, in order, where it is a good one", function()
    local text = [[
      local core = require "ztrain.core"
      core.at_end(function() print "first" core.at_end(function() print "third" end) end)
      local how = ...
      core.at_end(function() print "second" error(how, 0) end)
      print "script"
      if how == "fail" then error "x" end]]
    local status, out, err = recipe(text, "boom")
    assert.are.same({1, "script\nfirst\nsecond\n", "ztrain: end: boom\n"}, {status, out, err})
    status, out = recipe(text, "fail")
    assert.are.same({1, "script\n"}, {status, out})
  end)

  it("keeps the device's memory within the budget", function()
    local text = "require('ztrain.core').zeros(1 << 25)" -- 128 MiB
    for _, size in ipairs {"100MiB", "0.1GB", "100000KiB", "100000000"} do
      local status, _, err = recipe(text, "", "--device_memory=" .. size)
      assert.are.equal(1, status)
      assert.matches("recipe.lua:1: .*128%.0 MiB", err)
    end
    assert.are.equal(0, (recipe(text, "", "--device-memory 1GiB")))
  end)

  it("runs only source text", function()
    local status, _, err = run(write("recipe.luac", string.dump(function() end)))
    assert.are.equal(1, status)
    assert.matches("^ztrain: .*recipe.luac: is precompiled Lua; ztrain runs only source text\n$", err)
    write("chunk.lua", string.dump(function() print("executed") end))
    local routes = [[
      local path = (...):match("^(.*)/") .. "/"
      package.path = path .. "?.lua"
      local binary = string.dump(function() print("executed") end)
      local piece = 0
      local function pieces()
        piece = piece + 1
        return piece < 3 and binary:sub(piece, piece == 1 and 1 or -1) or nil
      end
      local routes = {
        function() return load(binary) end, function() return load(binary, "b", "b") end,
        function() return load(pieces) end,
        function() return loadfile(path .. "chunk.lua", "b") end, function() return dofile(path .. "chunk.lua") end,
        function() return require "chunk" end, function() return package.searchers[2]("chunk") end,
        function() return select(2, debug.getupvalue(load, 1))(binary) end,
      }
      for _, route in ipairs(routes) do
        local ok, fn = pcall(route)
        if ok and fn then fn() end
      end]]
    local out
    status, out, err = recipe(routes, folder .. "/recipe.lua")
    assert.are.same({0, "", ""}, {status, out, err})
  end)

  it("knows no undeclared variables", function()
    local _, _, err = recipe("print(nope)")
    assert.matches("recipe.lua:1: variable 'nope' is not declared\n$", err)
    _, _, err = recipe("nope = 1")
    assert.matches("recipe.lua:1: variable 'nope' is not declared; write 'local' before it\n$", err)
  end)

  it("stops at a signal with 128 + its number", function()
    write("loop.lua", "io.stdout:write('ready\\n'):flush()\nwhile true do end")
    for name, status in pairs {INT = 130, TERM = 143} do -- a shell's background jobs ignore SIGINT
      local start = "env --default-signal=INT %s %s/loop.lua & sleep 0.3; kill -%s $!; wait $!"
      local got, out, err = shell(start:format(ztrain, folder, name))
      assert.are.same({status, "ready\n"}, {got, out})
      assert.are.equal(("ztrain: %s/loop.lua:2: stopped by SIG%s\n"):format(folder, name), err)
    end
  end)

  it("takes signals while it multiplies", function()
    write("multiply.lua", [[
      local core = require "ztrain.core"
      core.stop_signal(true)
      local a, b, n = core.randn(512, 512), core.randn(512, 512), 0
      local want = a:matmul(b):hash()
      while not core.stop_signal() do
        core.scope("product", function() assert(a:matmul(b):hash() == want) end)
        n = n + 1
      end
      assert(n > 10)]])
    local send = "for i in $(seq 300); do kill -URG $!; sleep 0.002; done; kill -TERM $!; wait $!"
    local status, _, err = shell(("%s %s/multiply.lua & sleep 0.3; %s"):format(ztrain, folder, send))
    assert.are.same({143, "ztrain: stopped by signal 15\n"}, {status, err})
  end)

  it("leaves an ignored SIGINT ignored", function()
    write("once.lua", "local n = 0\nfor i = 1, 5e7 do n = n + i end\nprint('done')")
    local status, out = shell(("%s %s/once.lua & sleep 0.1; kill -INT $!; wait $!"):format(ztrain, folder))
    assert.are.same({0, "done\n"}, {status, out})
  end)

  it("lets a training loop look for signals, and ends at once at the second", function()
    local text = [[
      local core = require "ztrain.core"
      core.stop_signal(true)
      local n = 0
      while not core.stop_signal() do n = n + 1 end
      print("stopped in good order by " .. core.stop_signal())
      if ... then while true do end end]]
    write("loop.lua", text)
    local start = "%s %s/loop.lua %s & pid=$!; sleep 0.3; kill -TERM $pid; %s wait $pid"
    local status, out = shell(start:format(ztrain, folder, "", ""))
    assert.are.same({143, "stopped in good order by 15\n"}, {status, out})
    assert.are.equal(143, (shell(start:format(ztrain, folder, "on", "sleep 0.3; kill -TERM $pid;"))))
  end)

  it("fails where its output cannot be written", function()
    local status, _, err = shell(("%s %s >/dev/full"):format(ztrain, write("recipe.lua", "print(1)")))
    assert.are.equal(1, status)
    assert.matches("standard output: No space left", err)
    -- the next file to be opened must not become the standard output
    local text = ("local f = io.open('%s/data', 'w')\nprint('text')\nf:write('data')"):format(folder)
    status, _, err = shell(("%s %s >&-"):format(ztrain, write("recipe.lua", text)))
    assert.are.same({1, "ztrain: standard output: Bad file descriptor\n"}, {status, err})
    assert.are.equal("data", read(folder .. "/data"))
  end)
end)

describe("a stock lua5.4", function()
  it("gets no globals from ztrain.core", function()
    local before = {}
    for name in pairs(_G) do before[name] = true end
    require "ztrain.core"
    for name in pairs(_G) do assert.is_true(before[name], name) end
  end)
end)
