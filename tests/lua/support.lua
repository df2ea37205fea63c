-- support.lua - what the specs share: the tests' folder, scratch folders, closeness, seeds.
local zt = require "ztrain"

local M = {}

M.tests = debug.getinfo(1, "S").source:match("^@(.*)lua/[^/]*$")

---A fresh seed for a spec's random inputs, or ZT_SEED's; it stands in the messages of `close`.
M.seed = tonumber(os.getenv("ZT_SEED")) or os.time() % 1000003
zt.seed(M.seed)
math.randomseed(M.seed)

---The distance of two tensors relative to the norm of `want`.
function M.distance(got, want)
  got, want = got:to("float64"), want:to("float64")
  local scale = want:norm():item()
  local off = (got - want):norm():item()
  return scale > 0 and off / scale or off
end

---Raises unless got is within `tolerance` of want, by norm.
function M.close(got, want, tolerance, what)
  local off = M.distance(got, want)
  if off ~= off or off > tolerance then
    error(("%s is off by %g, more than %g (ZT_SEED=%d)"):format(what or "tensor", off, tolerance, M.seed), 2)
  end
end

local folders = {}

---A new empty folder, removed by M.clean().
function M.folder()
  local path = os.tmpname()
  os.remove(path)
  assert(os.execute("mkdir " .. path))
  folders[#folders + 1] = path
  return path
end

function M.clean()
  for _, path in ipairs(folders) do os.execute("rm -rf " .. path) end
  folders = {}
end

function M.write(path, text)
  local file = assert(io.open(path, "w"))
  file:write(text)
  file:close()
end

function M.read(path)
  local file = assert(io.open(path))
  local text = file:read("a")
  file:close()
  return text
end

---Runs a shell command; gives the exit status (128 + signal), standard output, error output, and the seconds it took.
function M.shell(command)
  local folder, start = M.folder(), zt.time()
  local _, kind, status = os.execute(("{ %s ; } >%s/out 2>%s/err </dev/null"):format(command, folder, folder))
  local seconds = zt.time() - start
  return kind == "signal" and 128 + status or status, M.read(folder .. "/out"), M.read(folder .. "/err"), seconds
end

M.long = os.getenv "ZT_TEST_LONG" ~= nil -- ./dev test full

---Runs a script of tests/ranks (or a path) on n ranks, as a user starts them. Returns whether it ended well, what it
---printed on both streams, the seconds it took, and its exit status.
function M.run(n, script, ...)
  local path = script:match("/") and script or ("%sranks/%s.lua"):format(M.tests, script)
  local started = zt.time()
  local pipe = io.popen(("%s -n %d %s %s 2>&1"):format(os.getenv "ZTRAIN", n, path, table.concat({...}, " ")))
  local text = pipe:read "a"
  local ok, _, status = pipe:close()
  return ok == true, text, zt.time() - started, status
end

---The lines of JSON that M.run's script printed; raises with its text where it failed.
function M.rows(...)
  local ok, text = M.run(...)
  if not ok then error(text, 2) end
  local rows = {}
  for line in text:gmatch("[^\n]+") do
    if line:sub(1, 1) == "{" then rows[#rows + 1] = zt.json.decode(line) end
  end
  return rows
end

---The message of the error that fn raises.
function M.message(fn, ...)
  local ok, message = pcall(fn, ...)
  assert(not ok, "no error was raised")
  return message
end

---fn raises, with a message that matches the pattern.
function M.raises(pattern, fn, ...)
  local message = M.message(fn, ...)
  if not message:match(pattern) then error(("'%s' does not match '%s'"):format(message, pattern), 2) end
end

return M
