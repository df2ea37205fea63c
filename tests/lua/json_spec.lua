local core = require "ztrain.core"
package.path = debug.getinfo(1, "S").source:match("^@(.*)/") .. "/?.lua;" .. package.path
local support = require "support"

local message = support.message
local raises = support.raises

describe("JSON in", function()
  it("becomes tables, with integers and null of their own", function()
    local v = core.json_decode [[
      {"a": [1, 2.0, -3e2, null, true, false, "\u00e9"], "big": 9223372036854775807, "o": {}}]]
    assert.equal("integer", math.type(v.a[1]))
    assert.equal("float", math.type(v.a[2]))
    assert.equal(-300.0, v.a[3])
    assert.equal(core.null, v.a[4])
    assert.is_true(v.a[5])
    assert.is_false(v.a[6])
    assert.equal("é", v.a[7])
    assert.equal(7, #v.a)
    assert.equal(math.maxinteger, v.big)
    assert.same({}, v.o)
    assert.equal(3, core.json_decode(" 3 "))
  end)

  it("says where it is wrong, at the caller's line", function()
    local text = message(function() core.json_decode('{"a": 1,\n "b": }', "conf") end)
    assert.matches("json_spec%.lua:%d+: conf: line 2, column 7: unexpected token near '}'$", text)
    raises("JSON: line 1, column 2: invalid token near 'x'", core.json_decode, "[x]")
    raises("duplicate object key", core.json_decode, '{"a": 1, "a": 2}')
    raises("cannot read '/nowhere/x.json': No such file or directory", core.json_load, "/nowhere/x.json")
  end)

  it("bears 2,000 levels and refuses more", function()
    local v = core.json_decode(("["):rep(2000) .. ("]"):rep(2000))
    local depth = 0
    while v do
      depth, v = depth + 1, v[1]
    end
    assert.equal(2000, depth)
    raises("maximum parsing depth", core.json_decode, ("["):rep(100000))
  end)
end)

describe("JSON out", function()
  it("is sorted and on one line", function()
    assert.equal('{"a": [1, 2.5, "x\\n"], "b": {}, "c": null, "d": true, "é": -0.0}',
      core.json_encode { d = true, ["é"] = -0.0, a = { 1, 2.5, "x\n" }, c = core.null, b = {} })
    assert.equal('"x"', core.json_encode("x"))
    assert.equal("[]", core.json_encode({}, { empty_array = true }))
  end)

  it("is indented on demand", function()
    assert.equal('{\n  "a": [\n    1,\n    {}\n  ],\n  "b": {\n    "x": 1\n  }\n}',
      core.json_encode({ a = { 1, {} }, b = { x = 1 } }, { indent = 2 }))
  end)

  it("reads back as it was", function()
    local function random(depth)
      local kind = math.random(depth > 3 and 4 or 6)
      if kind == 1 then return math.random(0) end
      if kind == 2 then return string.unpack("d", string.pack("i8", math.random(0) & 0x7fefffffffffffff)) end
      if kind == 3 then return math.random() < 0.5 end
      if kind == 4 then return ("x\0\n\"\\é😀"):rep(math.random(0, 2)):gsub("%z", "") .. "" end
      local v = {}
      for i = 1, math.random(1, 5) do v[kind == 5 and i or "k" .. math.random(100)] = random(depth + 1) end
      return v
    end
    for _ = 1, 300 do
      local v = random(1)
      local text = core.json_encode(v)
      assert.same(v, core.json_decode(text))
      assert.same(v, core.json_decode(core.json_encode(v, { indent = 3 })))
      assert.equal(text, core.json_encode(core.json_decode(text)))
    end
  end)

  it("says what it cannot write, and where", function()
    local loop = {}
    loop.x = { loop }
    raises("json_encode: %.a%[2%]%.b: JSON has no number for NaN", core.json_encode,
      { a = { 1, { b = 0 / 0 } } })
    raises("json_encode: %.f: JSON has no function", core.json_encode, { f = print })
    raises("json_encode: %[1%]: a JSON string must be UTF%-8", core.json_encode, { "\xff" })
    raises("json_encode: %.m: a table with keys other than strings", core.json_encode, { m = { 1, 2, x = 3 } })
    raises("a table with keys other than strings", core.json_encode, { [1] = 1, [3] = 3 })
    raises("nested deeper than 128 tables; does a table contain itself%?", core.json_encode, loop)
    raises("unknown option 'indnt'; did you mean 'indent'%?", core.json_encode, {}, { indnt = 2 })
    raises("JSON has no nil", core.json_encode)
  end)

  it("leaves no host memory behind, whatever fails", function()
    local value = { a = { 1, 2, { b = ("x"):rep(500) } }, c = 0.1 }
    local text = core.json_encode(value)
    collectgarbage()
    local before = core.host_memory().n_live_blocks
    for n = 1, 1000 do
      core.fail_allocation(n)
      local ok, why = pcall(function() return core.json_encode(core.json_decode(text)) end)
      core.fail_allocation(0)
      if not ok then assert.matches("host memory", why) end
      collectgarbage()
      local now = core.host_memory().n_live_blocks
      assert.is_true(now <= before, ("allocation %d: %d blocks leak"):format(n, now - before))
      before = now -- what earlier tests left for the collector is gone
      if ok then
        assert.is_true(n > 5)
        return
      end
    end
    error("it never succeeds")
  end)
end)
