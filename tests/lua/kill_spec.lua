-- A run that saves after every step is killed at random moments, one rank or all, and started again: it always finds a
-- complete checkpoint, and ends with the weights of a run that nobody disturbed (D41).
package.path = debug.getinfo(1, "S").source:match("^@(.*)/") .. "/?.lua;" .. package.path
local support = require "support"
local zt = require "ztrain"

local RANKS, STEPS, STAGE = 3, 30, 3

-- Starts the run in the background; returns the launcher's process id.
local function start(folder)
  local command = "%s -n %d %sranks/saving.lua %s %d %d >%s/out 2>&1 & echo $!"
  local pipe = io.popen(command:format(os.getenv "ZTRAIN", RANKS, support.tests, folder, STAGE, STEPS, folder))
  local pid = pipe:read "n"
  pipe:close()
  return pid
end

local function is_running(pid) return os.execute(("kill -0 %d 2>/dev/null"):format(pid)) == true end

local function wait(pid, seconds)
  local started = zt.time()
  while is_running(pid) and zt.time() - started < seconds do os.execute "sleep 0.02" end
end

-- One rank, and with it the others; or the launcher and all ranks at once.
local function kill(pid, all)
  local ranks = {}
  local pipe = io.popen(("pgrep -P %d"):format(pid))
  for line in pipe:lines() do ranks[#ranks + 1] = line end
  pipe:close()
  if all then
    os.execute(("kill -9 %d %s 2>/dev/null"):format(pid, table.concat(ranks, " ")))
  elseif #ranks > 0 then
    os.execute(("kill -9 %s 2>/dev/null"):format(ranks[math.random(#ranks)]))
  end
  wait(pid, 30)
  assert(not is_running(pid), "a run lives on after a rank was killed")
end

describe("a run that is killed", function()
  teardown(support.clean)

  it("goes on from a complete checkpoint, and ends as if nothing had happened", function()
    local undisturbed = support.rows(RANKS, "saving", support.folder(), STAGE, STEPS)[1]
    local folder, kills, last = support.folder(), support.long and 40 or 4, 0
    local n, ended, started = 0, nil, zt.time()
    while not ended do
      local pid = start(folder)
      if n < kills then
        wait(pid, 0.1 + math.random() * (support.long and 0.6 or 1.2))
        if is_running(pid) then
          n = n + 1
          kill(pid, n % 2 == 0)
        end
      end
      wait(pid, 120)
      local text = support.read(folder .. "/out")
      for line in text:gmatch "[^\n]+" do
        if line:sub(1, 1) == "{" then ended = zt.json.decode(line) end
      end
      assert(not text:match "damaged" and not text:match "no complete", text)
      assert(ended or n <= kills and zt.time() - started < 280, text)
      if ended and n < kills and last < 3 then -- it was faster than we: once more from the start
        last, ended = last + 1, nil
        os.execute(("rm -rf %s/step_*"):format(folder))
      end
    end
    assert.same({undisturbed.step, undisturbed.hash}, {ended.step, ended.hash})
    assert.is_true(n > 0)
    print(("\n%d kills, ended from step %d on"):format(n, ended.first))
  end)
end)
