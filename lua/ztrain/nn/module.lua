-- module.lua - Module: a callable object that knows its parameters, buffers and submodules by the names they were
-- assigned to, in that order. An instance stays empty, so that every assignment passes through `assign`; what it holds
-- is in the table behind its STATE key.
local core = require "ztrain.core"
local util = require "ztrain.util"

local M = {}
local STATE = {} -- key of an instance's state

---@class ModuleState
---@field values table<string, any> every field
---@field kinds table<string, "parameter"|"buffer"|"module"> of the registered ones
---@field names string[] registered fields in the order of assignment
---@field parent Module? where it was assigned first
---@field name string? the field's name there
---@field kept boolean? mixed precision leaves the parameters' dtype alone
---@field output dtype? what forward's results are converted to

---@class Module
---@field training boolean
---@overload fun(...): any runs forward(...) in a scope: what it made and does not return, save or keep is freed
local Module = {}

---@param value any
---@return boolean
local function is_module(value)
  if type(value) ~= "table" then return false end
  local meta = getmetatable(value)
  return type(meta) == "table" and meta.__module == true and rawget(value, STATE) ~= nil
end
M.is_module = is_module

-- Positions count from 1 and are named from 0, as in Hugging Face files: list[1] is "0".
local function field_name(key)
  return math.type(key) == "integer" and tostring(key - 1) or key
end

local function kind_of(name, value)
  if type(name) ~= "string" or name:sub(1, 1) == "_" then return nil end
  if is_module(value) then return "module" end
  if not util.is_tensor(value) then return nil end
  if not value:requires_grad() then return "buffer" end
  return value:is_leaf() and "parameter" or nil
end

local function register(state, name, kind)
  if state.kinds[name] == kind then return end
  if state.kinds[name] then
    for i, n in ipairs(state.names) do
      if n == name then
        table.remove(state.names, i)
        break
      end
    end
  end
  state.kinds[name] = kind
  if kind then state.names[#state.names + 1] = name end
end

-- Raises where `child` holds `self`: paths and walks would never end.
local function check_no_cycle(self, name, child)
  for _, module in ipairs(child:modules()) do
    if module == self then util.raise("field '%s': a module cannot hold itself", name) end
  end
end

-- A module's path runs through the place where it was assigned first.
local function adopt(self, name, child)
  local state = child[STATE]
  if not state.parent then state.parent, state.name = self, name end
end

local function disown(self, name, child)
  local state = child[STATE]
  if state.parent == self and state.name == name then state.parent, state.name = nil, nil end
end

local function check_plain_table(name, value)
  for _, item in pairs(value) do
    if is_module(item) then
      util.raise("field '%s' is a plain table of modules, whose parameters nobody would find: use nn.ModuleList", name)
    end
  end
end

local function assign(self, key, value)
  local state, name = rawget(self, STATE), field_name(key)
  local old, kind = state.values[name], kind_of(name, value)
  if type(value) == "table" and not is_module(value) then check_plain_table(name, value) end
  if kind == "module" then check_no_cycle(self, name, value) end
  if is_module(old) and old ~= value then disown(self, name, old) end
  register(state, name, kind)
  state.values[name] = value
  if kind == "module" then adopt(self, name, value) end
  if util.is_tensor(value) then core.keep(value) end
end

---The names from the root to here: gpt2.transformer.h.3.attn. The root goes by its class.
---@return string
function Module:path()
  local state = self[STATE]
  if not state.parent then return getmetatable(self).__name:lower() end
  return state.parent:path() .. "." .. state.name
end

local function describe(self, indent)
  local state, lines = self[STATE], {}
  for _, name in ipairs(state.names) do
    local value = state.values[name]
    if state.kinds[name] == "module" then
      lines[#lines + 1] = indent .. name .. ": " .. describe(value, indent .. "  ")
    else
      lines[#lines + 1] = ("%s%s: (%s) %s"):format(indent, name, table.concat({value:size()}, ", "), value:dtype())
    end
  end
  return getmetatable(self).__name .. (#lines > 0 and "\n" .. table.concat(lines, "\n") or "")
end

local function count_children(self)
  local kinds, n = self[STATE].kinds, 0
  while kinds[tostring(n)] do n = n + 1 end
  return n
end

-- Float tensors among the values, and in the fields of tables, in another dtype; gradients flow through.
local function converted(dtype, ...)
  local results = table.pack(...)
  for i = 1, results.n do
    local value = results[i]
    if type(value) == "table" and not is_module(value) then
      for key, item in pairs(value) do value[key] = util.as_dtype(item, dtype) end
    else
      results[i] = util.as_dtype(value, dtype)
    end
  end
  return table.unpack(results, 1, results.n)
end

-- The metatable of a class's instances.
local function instance_meta(class, name)
  return {
    __module = true,
    __name = name,
    __index = function(self, key)
      local state = rawget(self, STATE)
      local value = state.values[field_name(key)]
      if value == nil then return class[key] end
      return value
    end,
    __newindex = assign,
    __call = function(self, ...)
      local output = rawget(self, STATE).output
      if not output then return core.scope(self:path(), self.forward, self, ...) end
      return core.scope(self:path(), function(...) return converted(output, self:forward(...)) end, ...)
    end,
    __len = count_children,
    __tostring = function(self) return describe(self, "  ") end,
  }
end

---A new class of modules. Its `init(self, ...)` gets the constructor's arguments, `forward(self, ...)` what a call
---gets: `local MLP = nn.class "MLP"; function MLP:init(n) self.fc = nn.Linear(n, n) end; local mlp = MLP(8)`.
---@param name string stands in errors, in lower case where it is the root
---@param base? table another class; by default nn.Module
---@return table class
function M.class(name, base)
  local class = {}
  local meta = instance_meta(class, name)
  return setmetatable(class, {
    __index = base or Module,
    __call = function(_, ...)
      local state = {values = {training = true}, kinds = {}, names = {}}
      local self = setmetatable({[STATE] = state}, meta)
      self:init(...)
      return self
    end,
  })
end

function Module:init() end -- luacheck: ignore self

function Module:forward()
  util.raise("class %s has no forward", getmetatable(self).__name)
end

------------------------------------------------------------------------------ walking

-- Calls visit(name, module) for this module and all below it, each once, parents first.
local function walk(self, visit, prefix, seen)
  seen = seen or {}
  if seen[self] then return end
  seen[self] = true
  visit(prefix or "", self)
  local state = self[STATE]
  for _, name in ipairs(state.names) do
    if state.kinds[name] == "module" then
      walk(state.values[name], visit, prefix and prefix .. "." .. name or name, seen)
    end
  end
end

-- {name, tensor} of all tensors of one kind; a shared one once, unless `all`.
local function tensors(self, kind, all)
  local list, seen = {}, {}
  walk(self, function(prefix, module)
    local state = module[STATE]
    for _, name in ipairs(state.names) do
      local value = state.values[name]
      if state.kinds[name] == kind and (all or not seen[value]) then
        seen[value] = true
        list[#list + 1] = {prefix == "" and name or prefix .. "." .. name, value}
      end
    end
  end)
  return list
end

local function each(list)
  local i = 0
  return function()
    i = i + 1
    if list[i] then return list[i][1], list[i][2] end
  end
end

local function values(list)
  local out = {}
  for i, entry in ipairs(list) do out[i] = entry[2] end
  return out
end

---Iterates over name, tensor; a shared (tied) parameter comes once, by its first name.
---@return fun(): string?, Tensor?
function Module:named_parameters() return each(tensors(self, "parameter")) end

---@return Tensor[] the parameters in the order of named_parameters; an optimizer takes it as it is
function Module:parameters() return values(tensors(self, "parameter")) end

---@return fun(): string?, Tensor?
function Module:named_buffers() return each(tensors(self, "buffer")) end

---Iterates over name, module: this one ("") and all below it, parents first.
---@return fun(): string?, Module?
function Module:named_modules()
  local list = {}
  walk(self, function(name, module) list[#list + 1] = {name, module} end)
  return each(list)
end

---@return Module[]
function Module:modules()
  local list = {}
  walk(self, function(_, module) list[#list + 1] = module end)
  return list
end

---@return Module[] those assigned to this module itself
function Module:children()
  local state, list = self[STATE], {}
  for _, name in ipairs(state.names) do
    if state.kinds[name] == "module" then list[#list + 1] = state.values[name] end
  end
  return list
end

---Calls fn(module) for all modules, children first.
---@param fn fun(module: Module)
---@return self
function Module:apply(fn)
  for _, child in ipairs(self:children()) do child:apply(fn) end
  fn(self)
  return self
end

---@return integer elements of all parameters
function Module:num_parameters()
  local n = 0
  for _, p in self:named_parameters() do n = n + p:numel() end
  return n
end

------------------------------------------------------------------------------ changing

---@param mode? boolean default true
---@return self
function Module:train(mode)
  walk(self, function(_, module) module.training = mode ~= false end)
  return self
end

---@return self
function Module:eval() return self:train(false) end

---@param on? boolean default true
---@return self
function Module:requires_grad_(on)
  for _, p in self:named_parameters() do p:requires_grad_(on ~= false) end
  return self
end

---Drops all gradients.
function Module:zero_grad()
  for _, p in self:named_parameters() do p.grad = nil end
end

---Whether mixed precision leaves the dtype of the parameters of this module, and of all below it, as it is: a float32
---norm among bfloat16 weights. Buffers always keep theirs.
---@param on? boolean default true
---@return self
function Module:keep_dtype(on)
  self[STATE].kept = on ~= false
  return self
end

---What forward returns is converted to this dtype: float tensors, and those in the fields of a table (internal:
---acc:prepare).
---@param dtype dtype?
function Module:convert_output(dtype) self[STATE].output = dtype end

---Converts parameters and buffers to a dtype (integer buffers stay) or moves them to a device. They are new tensors:
---make the optimizer afterwards. Shared ones stay shared.
---@param what dtype|string
---@return self
function Module:to(what)
  local new = {}
  local function convert(tensor)
    if util.is_float(what) and not util.is_float(tensor:dtype()) then return tensor end
    local other = core.no_grad(core.with_kind, "parameters", tensor.to, tensor, what)
    if other:requires_grad() ~= tensor:requires_grad() then other:requires_grad_(tensor:requires_grad()) end
    core.keep(other)
    return other
  end
  walk(self, function(_, module)
    local state = module[STATE]
    for _, name in ipairs(state.names) do
      if state.kinds[name] ~= "module" then
        local old = state.values[name]
        new[old] = new[old] or convert(old)
        state.values[name] = new[old]
      end
    end
  end)
  return self
end

---All parameters and buffers by name, and the names in order. The tensors are the model's own, not copies.
---@return table<string, Tensor> tensors
---@return string[] order
function Module:state_dict()
  local dict, order = {}, {}
  for _, kind in ipairs {"parameter", "buffer"} do
    for _, entry in ipairs(tensors(self, kind)) do
      order[#order + 1] = entry[1]
      dict[entry[1]] = entry[2]
    end
  end
  return dict, order
end

-- Every name a tensor goes by -> the tensor.
local function aliases(self)
  local all = {}
  for _, kind in ipairs {"parameter", "buffer"} do
    for _, entry in ipairs(tensors(self, kind, true)) do all[entry[1]] = entry[2] end
  end
  return all
end

local function shape_text(t) return "(" .. table.concat({t:size()}, ", ") .. ")" end

---Copies tensors in by name, cast to the model's dtypes. Missing and unexpected names raise unless opts.strict is
---false, wrong shapes always; all of them are listed in one error, and nothing is copied then. A shared tensor may come
---under any of its names.
---@param dict table<string, Tensor>
---@param opts? {strict: boolean?}
---@return string[] missing
---@return string[] unexpected
function Module:load_state_dict(dict, opts)
  opts = util.options("load_state_dict", opts, {strict = true})
  local all, filled, problems, unexpected, missing = aliases(self), {}, {}, {}, {}
  for _, name in ipairs(util.keys(dict)) do
    local target = all[name]
    if not target then
      unexpected[#unexpected + 1] = name
    elseif shape_text(target) ~= shape_text(dict[name]) then
      problems[#problems + 1] = ("%s is %s, not %s"):format(name, shape_text(dict[name]), shape_text(target))
    end
    if target then filled[target] = true end
  end
  local own, order = self:state_dict()
  for _, name in ipairs(order) do
    if not filled[own[name]] then missing[#missing + 1] = name end
  end
  if opts.strict then
    if #missing > 0 then problems[#problems + 1] = "missing: " .. table.concat(missing, ", ") end
    if #unexpected > 0 then problems[#problems + 1] = "unexpected: " .. table.concat(unexpected, ", ") end
  end
  if #problems > 0 then util.raise("load_state_dict of %s: %s", self:path(), table.concat(problems, "; ")) end
  core.no_grad(function()
    for name, source in pairs(dict) do
      if all[name] then all[name]:copy_(source) end
    end
  end)
  return missing, unexpected
end

---The parameters whose dtype mixed precision leaves alone.
---@param module Module
---@return table<Tensor, boolean>
function M.kept_parameters(module)
  if not is_module(module) then util.raise("kept_parameters: a module is expected, not %s", util.describe(module)) end
  local kept = {}
  for _, m in ipairs(module:modules()) do
    if m[STATE].kept then
      for _, p in m:named_parameters() do kept[p] = true end
    end
  end
  return kept
end

M.Module = M.class "Module"

return M
