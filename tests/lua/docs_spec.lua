-- The documents: what they show is Lua, what they link to is there, and the reference is that of the sources.

local function read(path)
  local file <close> = assert(io.open(path))
  return file:read "a"
end

local pages = {"README.md"}
do
  local pipe <close> = assert(io.popen "ls docs/*.md")
  for path in pipe:lines() do pages[#pages + 1] = path end
end

describe("documents", function()
  it("have an up-to-date Lua reference", function()
    local pipe <close> = assert(io.popen "lua5.4 docs/generate.lua")
    local fresh = pipe:read "a"
    assert.is_true(#fresh > 10000)
    assert.is_true(fresh == read "docs/lua-api.md", "run: lua5.4 docs/generate.lua > docs/lua-api.md")
  end)

  it("show Lua that compiles", function()
    local n = 0
    for _, page in ipairs(pages) do
      for code in read(page):gmatch("\n```lua\n(.-)\n```") do
        n = n + 1
        assert.is_truthy(load(code, "=" .. page, "t"))
      end
    end
    assert.is_true(n >= 4)
  end)

  it("link to files that exist", function()
    for _, page in ipairs(pages) do
      local folder = page:match("^(.*/)") or ""
      for target in read(page):gmatch("%]%(([^)#:]+)[^):]*%)") do
        local file = io.open(folder .. target)
        assert.is_truthy(file, page .. " links to " .. target)
        file:close()
      end
    end
  end)

  it("name every line of Tensor in the reference", function()
    local reference = read "docs/lua-api.md"
    for name in read("lua/ztrain/meta/core.lua"):gmatch("function Tensor:([%w_]+)") do
      local internal = name == "bytes" or name == "version" -- say so in meta/core.lua
      assert.are.equal(not internal, reference:find("`Tensor:" .. name .. "(", 1, true) ~= nil, name)
    end
  end)
end)
