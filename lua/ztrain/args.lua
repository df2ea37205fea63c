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
---@field presets? table<string, table<string, any>> name -> defaults: the option `preset` chooses one

local function type_of(value)
  if value == nil then return "string" end
  return math.type(value) == "integer" and "integer" or math.type(value) == "float" and "number" or type(value)
end

local types = {string = true, integer = true, number = true, boolean = true}

-- The declared options: by name, and their names in the order for --help.
local Declared = {}
Declared.__index = Declared

function Declared:add(entry)
  if type(entry) ~= "table" then util.raise("args: entry %d is %s", #self.order + 1, util.describe(entry)) end
  local name = entry[1]
  if type(name) ~= "string" then util.raise("args: entry %d has no name", #self.order + 1) end
  if self.by_name[name] then util.raise("args: option '%s' is declared twice", name) end
  local option = {name = name, default = entry[2], help = entry[3], choices = entry.choices}
  option.type = entry.type or type_of(entry[2])
  if not types[option.type] then util.raise("args: option '%s' cannot be a %s", name, option.type) end
  self.by_name[name], self.order[#self.order + 1] = option, name
end

-- Options that only presets mention are options all the same.
function Declared:add_presets(presets)
  local from_presets = {}
  for _, preset in pairs(presets) do
    for name, value in pairs(preset) do
      if not self.by_name[name] then from_presets[name] = value end
    end
  end
  for _, name in ipairs(util.keys(from_presets)) do
    self:add {name, nil, "default by preset", type = type_of(from_presets[name])}
  end
end

local function declare(declared, presets)
  local self = setmetatable({by_name = {}, order = {}}, Declared)
  for _, entry in ipairs(declared) do self:add(entry) end
  local plain = {}
  for key in pairs(declared) do
    if type(key) == "string" then plain[#plain + 1] = key end
  end
  table.sort(plain)
  for _, name in ipairs(plain) do self:add {name, declared[name]} end
  if presets then
    if not self.by_name.preset then util.raise("args: presets need an option 'preset' with a default") end
    self.by_name.preset.choices = util.keys(presets)
    self:add_presets(presets)
  end
  return self
end

-- What a word of the command line means, or nil.
local parse = {
  string = function(text) return text end,
  boolean = function(text) return ({["true"] = true, ["false"] = false})[text] end,
  number = tonumber,
  integer = function(text) return math.tointeger(tonumber(text)) end,
}

local function convert(option, text)
  local value = parse[option.type](text)
  if value == nil then
    util.raise("--%s wants %s %s, not '%s'", option.name, option.type == "integer" and "an" or "a", option.type, text)
  end
  return value
end

local function choice_names(option)
  local names = {}
  for i, choice in ipairs(option.choices) do names[i] = tostring(choice) end
  return names
end

local function check_choice(option, value)
  for _, choice in ipairs(option.choices or {value}) do
    if choice == value then return end
  end
  util.unknown(nil, "--" .. option.name, value, choice_names(option))
end

local function help(declared, about)
  local lines = {about or "options of this recipe:"}
  for _, name in ipairs(declared.order) do
    local option = declared.by_name[name]
    local left = option.type == "boolean" and "--" .. name or ("--%s %s"):format(name, option.type:upper())
    local right = {option.help}
    if option.choices then right[#right + 1] = "one of " .. table.concat(choice_names(option), ", ") end
    if option.default ~= nil then right[#right + 1] = "default " .. tostring(option.default) end
    lines[#lines + 1] = ("  %-42s %s"):format(left, table.concat(right, "; "))
  end
  return table.concat(lines, "\n")
end

local function with_dashes(names)
  local list = {}
  for i, name in ipairs(names) do list[i] = "--" .. name end
  return list
end

-- One word of the command line: the option and, where the word brings it, its text.
local function split(word, declared)
  local name, text = word:match("^%-%-([^=]+)=(.*)$")
  name = (name or word:match("^%-%-(.+)$") or ""):gsub("-", "_")
  if name == "" then util.raise("'%s' is not an option; options start with --", word) end
  if declared.by_name[name] then return declared.by_name[name], text end
  local negated = declared.by_name[name:match("^no_(.+)$") or ""]
  if negated and negated.type == "boolean" and not text then return negated, "false" end
  util.unknown(nil, "option", "--" .. name, with_dashes(declared.order))
end

local function read(argv, declared, about)
  local given, i = {}, 1
  while i <= #argv do
    if argv[i] == "--help" or argv[i] == "-h" then
      print(help(declared, about))
      os.exit(true, true)
    end
    local option, text = split(argv[i], declared)
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

-- The first that is not nil: what was given, what the preset says, the default.
local function value_of(option, given, preset)
  if given[option.name] ~= nil then return given[option.name] end
  if preset[option.name] ~= nil then return preset[option.name] end
  return option.default
end

---Declares a recipe's options and reads them from the command line: --name value, --name=value, --flag, --no_flag,
---with hyphens or underscores. A default's type is the option's; one with help, choices or no default is an entry:
---`zt.args { lr = 5e-4, {"size", "tiny", "how large", choices = {"tiny", "xl"}}, {"train_file", type = "string"} }`.
---The word --help prints them and ends the program. Reading a name that was not declared raises.
---@param declared table<string|integer, any>
---@param opts? ArgsOptions
---@return table<string, any>
return function(declared, opts)
  if type(declared) ~= "table" then util.raise("args: options are a table, not %s", util.describe(declared)) end
  opts = util.options("args", opts, {
    argv = util.optional.table, about = util.optional.string, presets = util.optional.table,
  })
  local options = declare(declared, opts.presets)
  local given = read(opts.argv or rawget(_G, "arg") or {}, options, opts.about)
  local preset = {}
  if opts.presets then
    local name = value_of(options.by_name.preset, given, {})
    check_choice(options.by_name.preset, name)
    preset = opts.presets[name]
  end
  local args = {}
  for name, option in pairs(options.by_name) do
    args[name] = value_of(option, given, preset)
    if args[name] ~= nil then check_choice(option, args[name]) end
  end
  return setmetatable(args, {
    __index = function(_, name)
      if not options.by_name[name] then util.unknown("args", "option", name, options.order) end
    end,
  })
end
