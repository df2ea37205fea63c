-- args.lua - a recipe's own options: declared with their defaults, read from the command line, explained by --help.
local util = require "ztrain.util"

---@class ArgsEntry an option with more to say; [1] its name, [2] its default (nil: none), [3] a line of help
---@field [1] string
---@field [2] any
---@field [3] string?
---@field choices? any[] the values it may have
---@field type? "string"|"integer"|"number"|"boolean" by default that of the default, or "string"

---@class ArgsOptions
---@field argv? string[] instead of the script's own arguments
---@field about? string a line for --help

local function type_of(value)
  if value == nil then return "string" end
  return math.type(value) == "integer" and "integer" or math.type(value) == "float" and "number" or type(value)
end

local types = {string = true, integer = true, number = true, boolean = true}

-- The declared options: by name, and their names in the order for --help (listed ones first, as they stand).
local function declare(declared)
  local by_name, order = {}, {}
  local function add(entry)
    local name = entry[1]
    if type(name) ~= "string" then util.raise("args: entry %d has no name", #order + 1) end
    if by_name[name] then util.raise("args: option '%s' is declared twice", name) end
    local option = {name = name, default = entry[2], help = entry[3], choices = entry.choices}
    option.type = entry.type or type_of(entry[2])
    if not types[option.type] then util.raise("args: option '%s' cannot be a %s", name, option.type) end
    by_name[name], order[#order + 1] = option, name
  end
  for _, entry in ipairs(declared) do add(entry) end
  local plain = {}
  for key in pairs(declared) do
    if type(key) == "string" then plain[#plain + 1] = key end
  end
  table.sort(plain)
  for _, name in ipairs(plain) do add {name, declared[name]} end
  return by_name, order
end

local function convert(option, text)
  local value
  if option.type == "string" then
    value = text
  elseif option.type == "boolean" then
    if text == "true" then value = true elseif text == "false" then value = false end
  else
    value = tonumber(text)
    if option.type == "integer" then value = value and math.tointeger(value) end
  end
  if value == nil then util.raise("--%s wants %s %s, not '%s'", option.name, option.type == "integer" and "an" or "a", option.type, text) end
  return value
end

local function check_choice(option, value)
  if not option.choices then return end
  local names = {}
  for i, choice in ipairs(option.choices) do
    if choice == value then return end
    names[i] = tostring(choice)
  end
  util.unknown("--" .. option.name, value, names)
end

local function help(by_name, order, about)
  local lines = {about or "options of this recipe:"}
  for _, name in ipairs(order) do
    local option = by_name[name]
    local left = option.type == "boolean" and "--" .. name or ("--%s %s"):format(name, option.type:upper())
    local right = {option.help}
    if option.choices then
      local names = {}
      for i, choice in ipairs(option.choices) do names[i] = tostring(choice) end
      right[#right + 1] = "one of " .. table.concat(names, ", ")
    end
    if option.default ~= nil then right[#right + 1] = "default " .. tostring(option.default) end
    lines[#lines + 1] = ("  %-42s %s"):format(left, table.concat(right, "; "))
  end
  return table.concat(lines, "\n")
end

-- One word of the command line: the option and, where the word brings it, its text.
local function split(word, by_name, order)
  local name, text = word:match("^%-%-([^=]+)=(.*)$")
  name = (name or word:match("^%-%-(.+)$") or ""):gsub("-", "_")
  if name == "" then util.raise("'%s' is not an option; options start with --", word) end
  if by_name[name] then return by_name[name], text end
  local negated = by_name[name:match("^no_(.+)$") or ""]
  if negated and negated.type == "boolean" and not text then return negated, "false" end
  util.unknown("option", word, order)
end

local function read(argv, by_name, order, about)
  local given, i = {}, 1
  while i <= #argv do
    if argv[i] == "--help" or argv[i] == "-h" then
      print(help(by_name, order, about))
      os.exit(true, true)
    end
    local option, text = split(argv[i], by_name, order)
    if not text and option.type == "boolean" then
      local next_word = argv[i + 1]
      if next_word == "true" or next_word == "false" then i = i + 1 end
      text = next_word == "false" and "false" or "true"
    elseif not text then
      i = i + 1
      text = argv[i]
      if not text then util.raise("--%s wants a value", option.name) end
    end
    given[option.name] = convert(option, text)
    i = i + 1
  end
  return given
end

---Declares a recipe's options and reads them from the command line: --name value, --name=value, --flag, --no_flag, with
---hyphens or underscores. A default's type is the option's type; an option with help, choices or no default is an entry:
---`zt.args { lr = 5e-4, {"preset", "tiny", "how large", choices = {"tiny", "xl"}}, {"train_file", type = "string"} }`.
-----help prints them and ends the program. Reading a name that was not declared raises.
---@param declared table<string|integer, any>
---@param opts? ArgsOptions
---@return table<string, any>
return function(declared, opts)
  opts = util.options("args", opts, {argv = util.none, about = util.none})
  local by_name, order = declare(declared)
  local given = read(opts.argv or rawget(_G, "arg") or {}, by_name, order, opts.about)
  local args = {}
  for name, option in pairs(by_name) do
    args[name] = given[name]
    if args[name] == nil then args[name] = option.default end
    if args[name] ~= nil then check_choice(option, args[name]) end
  end
  return setmetatable(args, {
    __index = function(_, name)
      if not by_name[name] then util.unknown("args: option", name, order) end
    end,
  })
end
