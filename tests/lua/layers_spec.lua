-- Who may include whom (docs/design.md, "The house"), read from the sources, so that the architecture on paper and the
-- one in the tree cannot drift apart.

-- Inside core a folder includes itself and what stands before it.
local core_order = {base = 1, device = 2, comm = 3, tensor = 4, io = 5, train = 6, text = 7, data = 8}
-- All that kernels see: pointers, dtypes and counts.
local kernels_may = {["core/base"] = true, ["core/device"] = true, ["core/comm"] = true}

local function files(where, pattern)
  local found = {}
  local pipe = assert(io.popen(("find %s -name '%s' 2>/dev/null | sort"):format(where, pattern)))
  for path in pipe:lines() do found[#found + 1] = path end
  pipe:close()
  return found
end

-- Calls fn(file, line number, line) for each line of the files in some folders.
local function each_line(where, pattern, fn)
  for _, file in ipairs(files(where, pattern)) do
    local n = 0
    for line in io.lines(file) do
      n = n + 1
      fn(file, n, line)
    end
  end
end

-- The folder an include of our own names, from the root or beside the file that includes it.
local function folder_of(file, path)
  if not path:find("/") then return file:match("^(.*)/") end
  return path:match("^(.*)/")
end

-- Lists the lines for which find(file, line) gives a reason, as "file:line: reason".
local function listed(where, pattern, find)
  local list = {}
  each_line(where, pattern, function(file, n, line)
    local reason = find(file, line)
    if reason then list[#list + 1] = ("%s:%d: %s"):format(file, n, reason) end
  end)
  return list
end

-- Lists the includes that break a rule.
local function broken(where, rule)
  return listed(where, "*.[ch]", function(file, line)
    local open, path = line:match('^%s*#%s*include%s*(["<])([^">]+)')
    local why = path and rule(file, path, open == '"')
    return why and path .. ": " .. why
  end)
end

local function is_lua_header(path) return path:match("^lua[%w_]*%.h$") or path:match("^lauxlib%.h$") end

-- Rules give the reason why an include is wrong, or nil.
local function core_rule(file, path, quoted)
  if is_lua_header(path) then return "core does not know Lua" end
  if path:match("^cuda") or path:match("^nccl") then return "core does not know CUDA" end
  if not quoted or file == "core/ztrain.h" then return nil end
  local to = folder_of(file, path)
  local mine, other = core_order[file:match("^core/(%w+)/")], core_order[to:match("^core/(%w+)$")]
  if not other then return "core includes only core" end
  if other > mine then return "a folder includes only folders before it: base device comm tensor io train text data" end
end

local function kernels_rule(file, path, quoted)
  if is_lua_header(path) then return "kernels do not know Lua" end
  if not quoted then return nil end
  local to = folder_of(file, path)
  if kernels_may[to] or path == "core/tensor/kernels.h" or to == file:match("^(kernels/%w+)") then return nil end
  return "kernels see core/base, core/device, core/comm and core/tensor/kernels.h"
end

local function bindings_rule(file, path, quoted)
  if quoted and not (folder_of(file, path):match("^core") or folder_of(file, path) == "bindings") then
    return "bindings include core and bindings"
  end
end

describe("layers", function()
  it("core includes only folders before its own, and neither Lua nor CUDA", function()
    assert.are.same({}, broken("core", core_rule))
  end)

  it("kernels get pointers, dtypes and counts", function() assert.are.same({}, broken("kernels", kernels_rule)) end)

  it("kernels never allocate", function()
    assert.are.same({}, listed("kernels", "*.[ch]", function(_, line)
      return line:match("%f[%w_][%w_]*alloc%s*%(") or line:match("%f[%w_]free%s*%(")
    end))
  end)

  it("bindings include core", function() assert.are.same({}, broken("bindings", bindings_rule)) end)

  it("only the tables of backends ask what a build has", function()
    local tables = {["core/device/device.c"] = true, ["core/comm/comm.c"] = true}
    assert.are.same({}, listed("core kernels bindings", "*.[ch]", function(file, line)
      local option = line:match("^%s*#%s*e?l?if.*(ZT_%u+)")
      return not tables[file] and (option == "ZT_CUDA" or option == "ZT_MPI" or option == "ZT_NCCL") and line
    end))
  end)

  it("recipes require ztrain alone, the Lua library ztrain and its parts", function()
    local function strangers(where, allowed)
      return listed(where, "*.lua", function(_, line)
        local name = line:match("^[^%-]*%f[%w_]require%s*%(?%s*[\"']([^\"']+)")
        return name and not name:match(allowed) and "require " .. name
      end)
    end
    assert.are.same({}, strangers("recipes tests/bench", "^ztrain$"))
    assert.are.same({}, strangers("lua", "^ztrain%f[.\0]"))
  end)

  it("would notice", function()
    assert.is_string(core_rule("core/base/err.c", "core/tensor/tensor.h", true))
    assert.is_string(core_rule("core/base/err.c", "lua.h", false))
    assert.is_string(core_rule("core/data/order.c", "kernels/cpu/cpu.h", true))
    assert.is_nil(core_rule("core/data/corpus.c", "core/text/tokenizer.h", true))
    assert.is_string(kernels_rule("kernels/cpu/gemm.c", "core/tensor/tensor.h", true))
    assert.is_nil(kernels_rule("kernels/cpu/gemm.c", "core/tensor/kernels.h", true))
    assert.is_string(bindings_rule("bindings/lua_io.c", "kernels/cpu/cpu.h", true))
    assert.is_true(#files("core", "*.[ch]") > 10)
  end)
end)
