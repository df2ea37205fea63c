-- bpe.lua - byte-level BPE: encoding and decoding on one thread, and a corpus on all cores, in MB of text a second.
local zt = require "ztrain"

local args = zt.args({
  {"tokenizer", nil, "a tokenizer's folder; else a BPE of 8192 tokens is trained on the text"},
  {"text", "out/data/train.txt"}, {"repeats", 5},
}, {about = "Measures tokenization."})

local file <close> = assert(io.open(args.text, "rb"))
local text = file:read "a"

-- The best of some runs: what else the machine does only makes it slower.
local function rate(what, fn)
  local best, result = math.huge, nil
  for _ = 1, args.repeats do
    collectgarbage()
    local started = zt.time()
    result = fn()
    best = math.min(best, zt.time() - started)
  end
  print(("bpe: %-28s %8.2f MB/s"):format(what, #text / best / 1e6))
  return result
end

local function train() return zt.tokenizer.train_bpe({args.text}, {vocab_size = 8192}) end
local tok = args.tokenizer and zt.tokenizer.from_pretrained(args.tokenizer) or rate("train, 8192 tokens", train)
local ids = rate("encode, one thread", function() return tok:encode(text).input_ids end)
print(("bpe: %d bytes, %d tokens"):format(#text, #ids))
local back = rate("decode, one thread", function() return tok:decode(ids) end)
assert(back == text, "decoding does not give the text back")

local folder = os.tmpname()
os.remove(folder)
rate("corpus, all cores, no cache", function()
  os.execute(("rm -rf '%s'"):format(folder))
  return zt.data.text(args.text, tok, {block_size = 128, cache_dir = folder})
end)
rate("corpus, cached", function() return zt.data.text(args.text, tok, {block_size = 128, cache_dir = folder}) end)
os.execute(("rm -rf '%s'"):format(folder))
