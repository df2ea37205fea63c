-- All ranks open one text at once, with no cache yet: arg[1] is the text, arg[2] the folder of the cache.
local zt = require "ztrain"
local core = require "ztrain.core"
local acc = zt.accelerator()

local function same(text, what)
  for r, other in ipairs(core.gather_strings(text)) do
    assert(other == text, ("%s: %s here, %s on rank %d"):format(what, text, other, r - 1))
  end
end

local tokenizer = zt.tokenizer.train_bpe(arg[1], {vocab_size = 400})
same(tokenizer:hash(), "tokenizer")
acc:wait_for_everyone()
local text = zt.data.text(arg[1], tokenizer, {block_size = 8, cache_dir = arg[2]})
local pipe = io.popen("stat -c %i '" .. arg[2] .. "'/*")
local files = pipe:read "a"
pipe:close()
same(files, "cache files") -- a second writer would have put its own file in the first one's place
local rows = {}
for i = 1, #text do rows[i] = i end
same(text:fetch(rows).input_ids:hash(), "blocks")
acc:print(#text > 100 and "ok")
