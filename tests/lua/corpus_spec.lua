local core = require "ztrain.core"
package.path = debug.getinfo(1, "S").source:match("^@(.*)/") .. "/?.lua;" .. package.path
local support = require "support"

local raises = support.raises

describe("order_at", function()
  it("is a permutation from 1 on", function()
    for _, count in ipairs { 1, 2, 5, 64, 1000 } do
      local seen = {}
      for i = 1, count do
        local at = core.order_at(7, 1, count, i)
        assert.is_true(at >= 1 and at <= count and not seen[at])
        seen[at] = true
      end
    end
    assert.equal(312, core.order_at(42, 1, 1000, 1))
  end)

  it("checks its arguments", function()
    raises("argument 4: 11 is not in 1 %.%. 10", core.order_at, 1, 1, 10, 11)
    raises("argument 4: 0 is not in 1 %.%. 10", core.order_at, 1, 1, 10, 0)
    raises("argument 3: 0 is not in", core.order_at, 1, 1, 0, 1)
  end)
end)

describe("a corpus", function()
  local folder, text, tok

  setup(function()
    folder = os.tmpname()
    os.remove(folder)
    core.mkdirs(folder)
    text = folder .. "/text"
    local lines = {}
    for i = 1, 2500 do lines[i] = ("line %d of it"):format(i) end
    core.write_file(text, table.concat(lines, "\n"))
    tok = core.tokenizer_train_bpe({ text }, { vocab_size = 280 })
  end)

  teardown(function() os.execute("rm -r '" .. folder .. "'") end)

  -- Written plainly from the rule: 1,000 lines joined, cut, the rest dropped.
  local function expected(block_size)
    local blocks, ids, n = {}, {}, 0
    local function cut()
      for i = 1, #ids - block_size + 1, block_size do
        blocks[#blocks + 1] = table.move(ids, i, i + block_size - 1, 1, {})
      end
      ids = {}
    end
    for line in core.read_file(text):gmatch("[^\n]*\n?") do
      for _, id in ipairs(tok:encode_ids(line, { add_special_tokens = false })) do ids[#ids + 1] = id end
      n = n + 1
      if n % 1000 == 0 then cut() end
    end
    cut()
    return blocks
  end

  it("is cut into blocks of ids", function()
    for _, block_size in ipairs { 1, 33, 256 } do
      local corpus, blocks = core.corpus_open(text, tok, block_size, folder .. "/cache"), expected(block_size)
      assert.equal(#blocks, corpus.block_count)
      assert.equal(#blocks * block_size, corpus.token_count)
      assert.equal(block_size, corpus.block_size)
      local rows = { #blocks, 1, (#blocks + 1) // 2, 1 }
      local got = corpus:blocks(rows)
      assert.equal("int64", got:dtype())
      assert.same({ 4, block_size }, { got:size() })
      local want = {}
      for i, row in ipairs(rows) do want[i] = blocks[row] end
      assert.same(want, got:totable())
      assert.same({ 0, block_size }, { corpus:blocks({}):size() })
    end
  end)

  it("says what is wrong", function()
    local corpus = core.corpus_open(text, tok, 64, folder .. "/cache")
    raises("blocks: row 2: 0 is not in 1 %.%.", corpus.blocks, corpus, { 1, 0 })
    raises("blocks: row 1 is a string, not a position", corpus.blocks, corpus, { "x" })
    raises("argument 3: 0 is not in", core.corpus_open, text, tok, 0)
    raises("cannot read '/nowhere': No such file", core.corpus_open, "/nowhere", tok, 64)
    raises("too short: its %d+ tokens, in groups of 1000 lines, fill no block of 1000000", core.corpus_open, text,
      tok, 1000000, folder .. "/cache")
    core.write_file(folder .. "/empty", "")
    raises("empty: the file is empty", core.corpus_open, folder .. "/empty", tok, 64)
    assert.is_nil(corpus.no_such_field)
    getmetatable(corpus).__close(corpus)
    raises("the corpus was closed", function() return corpus.block_count end)
  end)
end)
