-- generate.lua - writes docs/lua-api.md to standard output from the annotations in lua/ztrain, the ones that language
-- servers read: lua5.4 docs/generate.lua > docs/lua-api.md. tests/lua/docs_spec.lua fails where the page is not up to
-- date. A function is listed where a comment of three dashes stands before it (in meta/: always), unless that says
-- "internal", or the section's title does.

local root = arg and arg[0] and arg[0]:match("^(.*)docs/") or ""
local sources = { -- file, how a recipe calls its module; in the order of the page
  {"init", "zt"}, {"meta/core", "zt"}, {"nn/init", "zt.nn"}, {"nn/module", "zt.nn"}, {"nn/layers", "zt.nn"},
  {"nn/attention", "zt.nn"}, {"nn/initialize", "zt.nn.init"}, {"optim", "zt.optim"}, {"schedule", "zt.schedule"},
  {"data", "zt.data"}, {"tokenizer", "zt.tokenizer"}, {"models/init", "zt.models"}, {"models/pretrained", "zt.models"},
  {"models/gpt2", "zt.models"}, {"models/generation", "zt.models"}, {"accelerator", "zt"}, {"progress", "zt"},
  {"args", "zt"},
}

-- A comment's lines as text and tags: {tag = "param", "name type text"}. A tag may follow another on one line.
local function parse_comment(lines)
  local text, tags = {}, {}
  for _, line in ipairs(lines) do
    line = line:gsub("^%s*%-%-%-%s?", "")
    local plain, rest = line:match("^([^@]-)%s*(@%l.*)$")
    plain = plain or (line:sub(1, 1) ~= "@" and line) or ""
    if plain ~= "" then text[#text + 1] = plain end
    for tag, value in ((rest or "") .. " @"):gmatch("@(%l+)%s+(.-)%s*%f[@\0]") do
      tags[#tags + 1] = {tag = tag, value}
    end
  end
  return table.concat(text, " "), tags
end

-- The name as a recipe writes it.
local function public_name(name, prefix)
  local class = name:match("^M%.(%u[%w_]*):")
  if class then return (name:gsub("^M%.", "")) end
  return (name:gsub("^M%.", prefix .. "."):gsub("^core%.", "zt."))
end

local function write_tags(out, tags)
  for _, t in ipairs(tags) do
    if t.tag == "param" then
      local name, rest = t[1]:match("^(%S+)%s*(.*)$")
      out[#out + 1] = ("  - `%s` %s"):format(name, rest)
    elseif t.tag == "return" then
      out[#out + 1] = "  - returns " .. t[1]
    end
  end
end

local function write_class(out, text, tags)
  for _, t in ipairs(tags) do
    if t.tag == "class" then out[#out + 1] = ("\n### %s\n"):format((t[1]:gsub("^nn%.", "zt.nn."))) end
  end
  if text ~= "" then out[#out + 1] = text .. "\n" end
  for _, t in ipairs(tags) do
    if t.tag == "field" and not t[1]:match("^private") then
      local name, rest = t[1]:match("^(%b[]%S*)%s*(.*)$")
      if not name then name, rest = t[1]:match("^(%S+)%s*(.*)$") end
      out[#out + 1] = ("- `.%s` %s"):format(name, rest)
    elseif t.tag == "overload" then
      out[#out + 1] = ("- called: `%s`"):format(t[1])
    end
  end
end

local function write_functions(out, line, prefix, text, tags)
  local names = {}
  for name, args in line:gmatch("function ([%w_.:]+)(%b())") do
    names[#names + 1] = ("`%s%s`"):format(public_name(name, prefix), args)
  end
  local behind = line:match("end%s+%-%-%s*(.*)$")
  if behind then text = text == "" and behind or text .. " (" .. behind .. ")" end
  out[#out + 1] = "- " .. table.concat(names, ", ") .. (text ~= "" and ": " .. text or "")
  write_tags(out, tags)
end

-- The comment at the head of a file, without its name.
local function head_of(lines)
  local text = {}
  for _, line in ipairs(lines) do
    local comment = line:match("^%-%-%s(.*)$")
    if comment then text[#text + 1] = comment elseif not line:match("^%-%-%-@meta") then break end
  end
  return (table.concat(text, " "):gsub("^[%w_./]+ %- ", "", 1))
end

local function write_file(out, name, prefix)
  local file = io.open(root .. "lua/ztrain/" .. name .. ".lua")
  if not file then return end
  local lines, comment, is_meta, hidden = {}, {}, name:match("^meta/") ~= nil, false
  for line in file:lines() do lines[#lines + 1] = line end
  file:close()
  out[#out + 1] = ("\n## %s (lua/ztrain/%s.lua)\n\n%s\n"):format(prefix, name, head_of(lines))
  local function end_comment(line)
    if hidden then
      comment = {}
      return
    end
    local text, tags = parse_comment(comment)
    local is_class = tags[1] and table.concat(comment, "\n"):match("@class")
    local is_function = line:match("^function ") and not line:match("^function [%w_.]+[:.]_")
    if is_class then
      write_class(out, text, tags)
    elseif is_function and (is_meta or #comment > 0) and not (text .. line):match("internal") then
      write_functions(out, line, prefix, text, tags)
    end
    comment = {}
  end
  for _, line in ipairs(lines) do
    local section = line:match("^%-%-%-%-+%s+(.*)$")
    if section then
      end_comment("")
      hidden = section:match("%(internal[:;)]") ~= nil
      if not hidden then out[#out + 1] = ("\n### %s\n"):format(section) end
    elseif line:match("^%-%-%-[^-]") then
      comment[#comment + 1] = line
    else
      end_comment(line)
    end
  end
end

local out = {"# Lua reference\n\nMade by docs/generate.lua from the annotations in lua/ztrain; do not edit."}
for _, source in ipairs(sources) do write_file(out, source[1], source[2]) end
print(table.concat(out, "\n"))
