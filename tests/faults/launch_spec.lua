-- Ranks that were started together end together: what each prints, with which status, and how soon. The numbers are
-- those of fault reports of other trainers.
package.path = debug.getinfo(1, "S").source:match("^@(.*)/") .. "/../lua/?.lua;" .. package.path
local support = require "support"
local ztrain = assert(os.getenv "ZTRAIN", "ZTRAIN names the program")

local folder, recipe

local function shell(command, ...) return support.shell(command:format(...)) end

-- late() comes when the other ranks have long been where they go.
local function write(text)
  local first = "local core = require 'ztrain.core'; local function late() core.barrier() os.execute 'sleep 0.3' end "
  support.write(recipe, first .. "local _ = late\n" .. text)
end

-- Runs a recipe of that text (its lines count from 2) with options; as support.shell.
local function run(options, text, arguments)
  write(text)
  return shell("%s %s %s %s", ztrain, options, recipe, arguments or "")
end

-- The lines of the error output, sorted, without the recipe's folder.
local function lines(err)
  local list = {}
  for line in err:gmatch("[^\n]+") do list[#list + 1] = line:gsub(folder .. "/", "") end
  table.sort(list)
  return list
end

-- How many processes have that in their command line. The pattern does not match the shell that asks.
local function processes(what)
  local pattern = ("[%s]%s"):format(what:sub(1, 1), what:sub(2)):gsub("%.", "[.]")
  local _, out = shell("pgrep -fc '%s' || true", pattern)
  return tonumber(out)
end

-- A duration that no other process sleeps for.
local naps = 0
local function nap()
  naps = naps + 1
  return ("%d.%06d"):format(500 + naps, support.seed)
end

describe("ranks", function()
  setup(function()
    folder = support.folder()
    recipe = folder .. "/r.lua"
  end)
  teardown(support.clean)
  after_each(function() assert.are.equal(0, processes(recipe), "processes left behind") end)

  it("all run, and only rank 0 prints", function()
    local text = [[
      local list = core.gather_numbers({core.rank()}, "who")
      print(core.rank(), core.world_size(), core.local_rank(), core.plane(), #list)
      io.stderr:write(core.rank() .. "\n")]]
    local status, out, err = run("-n 3", text)
    assert.are.same({0, "0\t3\t0\tshm\t3\n"}, {status, out})
    assert.are.same({"0", "1", "2"}, lines(err))
    status, out, err = run("-n 1", text)
    assert.are.same({0, "0\t1\t0\tself\t1\n", "0\n"}, {status, out, err})
    status, out, err = run("--num-processes=8", text) -- more than cores, or not
    assert.are.same({0, "0\t8\t0\tshm\t8\n", 8}, {status, out, #lines(err)})
  end)

  it("D55: os.exit(7) in one rank ends all with 7, leaves no process and no port, and the next start works", function()
    for _ = 1, 3 do
      local status, out, err, seconds = run("-n 4", [[
        if core.rank() == 0 then print(os.getenv "MASTER_PORT") end
        if core.rank() == 2 then late() os.exit(7) end
        core.barrier()
        core.barrier()]])
      assert.are.equal(7, status)
      assert.are.same({
        "ztrain: rank 0/4: r.lua:5: rank 2/4: r.lua:3: os.exit(7)",
        "ztrain: rank 1/4: r.lua:5: rank 2/4: r.lua:3: os.exit(7)",
        "ztrain: rank 3/4: r.lua:5: rank 2/4: r.lua:3: os.exit(7)",
      }, lines(err))
      assert.is_true(seconds < 5)
      local listening = (":%04X 00000000:0000 0A"):format(tonumber(out))
      assert.is_nil(support.read("/proc/net/tcp"):find(listening, 1, true))
      assert.are.equal(0, processes(recipe))
    end
  end)

  it("D55: an error in one rank ends all, those that compute as those that wait", function()
    local status, out, err, seconds = run("-n 4", [[
      if core.rank() == 2 then late() error "boom" end
      core.barrier()
      if core.rank() == 1 then core.barrier() end
      while true do end]])
    assert.are.same({1, ""}, {status, out})
    assert.are.same({
      "ztrain: rank 0/4: r.lua:5: rank 2/4: r.lua:2: boom",
      "ztrain: rank 1/4: r.lua:4: rank 2/4: r.lua:2: boom",
      "ztrain: rank 2/4: r.lua:2: boom",
      "ztrain: rank 3/4: r.lua:5: rank 2/4: r.lua:2: boom",
    }, lines(err))
    assert.is_true(seconds < 5)
  end)

  it("D55: a rank that is killed is named, and all end", function()
    local status, _, err, seconds = run("-n 4", [[
      if core.rank() == 2 then late() os.execute "kill -9 $PPID" end
      core.barrier()
      while true do end]])
    assert.are.equal(137, status)
    local got = lines(err)
    assert.are.equal("ztrain: rank 2/4 was killed by signal 9", got[3])
    for i, rank in pairs {[1] = 0, [2] = 1, [4] = 3} do
      assert.matches(("^ztrain: rank %d/4: r.lua:4: rank 2/4 died"):format(rank), got[i])
    end
    assert.is_true(seconds < 5)
  end)

  it("all say that there is no such recipe", function()
    local status, out, err = shell("%s -n 2 %s/missing.lua", ztrain, folder)
    assert.are.same({1, ""}, {status, out})
    assert.are.same({
      "ztrain: rank 0/2: cannot read missing.lua: No such file or directory",
      "ztrain: rank 1/2: cannot read missing.lua: No such file or directory",
    }, lines(err))
  end)

  it("D55: scripts that sleep end within 10 s, with what they have started", function()
    local sleep = nap()
    local status, _, err, seconds = run("-n 3", ([[
      if core.rank() == 1 then late() error "boom" end
      core.barrier()
      os.execute "sleep %s"]]):format(sleep))
    assert.are.equal(1, status)
    assert.are.same({
      "ztrain: rank 0/3: rank 1/3: r.lua:2: boom; the script did not stop within 6 s",
      "ztrain: rank 1/3: r.lua:2: boom",
      "ztrain: rank 2/3: rank 1/3: r.lua:2: boom; the script did not stop within 6 s",
    }, lines(err))
    assert.is_true(seconds < 10)
    assert.are.equal(0, processes("sleep " .. sleep))
  end)

  it("D55: a rank that does not react is killed within 10 s", function()
    local status, _, err, seconds = run("-n 3", [[
      if core.rank() == 2 then late() error "boom" end
      core.barrier()
      if core.rank() == 1 then os.execute "kill -STOP $PPID" end
      core.barrier()]])
    assert.are.equal(1, status)
    assert.are.same({
      "ztrain: rank 0/3: r.lua:5: rank 2/3: r.lua:2: boom",
      "ztrain: rank 1/3 did not end in time: killed",
      "ztrain: rank 2/3: r.lua:2: boom",
    }, lines(err))
    assert.is_true(seconds < 10)
  end)

  it("end with what they have left behind", function()
    local sleep = nap()
    local status = run("-n 2", ([[os.execute "sleep %s >/dev/null 2>&1 &"]]):format(sleep))
    assert.are.equal(0, status)
    assert.are.equal(0, processes("sleep " .. sleep))
  end)

  it("end with the process that started them, and what they have started as well", function()
    local sleep = nap()
    write(([[os.execute "sleep %s"]]):format(sleep))
    local start = "%s -n 2 %s & sleep 0.5; pgrep -fc 'sleep %s'; kill -9 $!; wait; sleep 0.3"
    local _, out = shell(start, ztrain, recipe, sleep)
    assert.is_true(tonumber(out) >= 2)
    assert.are.equal(0, processes("sleep " .. sleep))
  end)

  it("may end early, unless another waits for one that has ended", function()
    for leaves, how in pairs {[0] = "os.exit(0)", [2] = "return"} do
      local status, _, err = run("-n 3", ("if core.rank() == %d then %s end\nprint 'x'"):format(leaves, how))
      assert.are.same({0, ""}, {status, err})
      local seconds
      status, _, err, seconds = run("-n 3", ("if core.rank() == %d then %s end\ncore.barrier 'b'"):format(leaves, how))
      assert.are.equal(1, status)
      assert.are.equal(2, #lines(err))
      for _, line in ipairs(lines(err)) do
        assert.matches(("rank %d/3 ended, while rank %%d waits in barrier 'b'"):format(leaves), line)
      end
      assert.is_true(seconds < 10)
    end
  end)

  it("give a script that catches the failure time to clean up", function()
    local status, out = run("-n 2", [[
      if core.rank() == 1 then late() error "boom" end
      core.barrier()
      local ok, message = pcall(core.barrier)
      print(ok, message:match "rank 1.*", core.ones(2):sum():item())
      print(pcall(core.barrier))]])
    assert.are.equal(1, status)
    assert.matches("^false\trank 1/2: .*r.lua:2: boom\t2.0\nfalse\t.*rank 1/2: .*r.lua:2: boom\n$", out)
  end)

  it("stop at a signal, at once at the second one", function()
    local text = "core.barrier()\nif core.rank() == 0 then io.stdout:write('ready\\n'):flush() end\n"
    for name, status in pairs {INT = 130, TERM = 143} do
      write(text .. "while true do end")
      local start = "env --default-signal=INT %s -n 3 %s & sleep 0.7; kill -%s $!; wait $!"
      local got, out, err, seconds = shell(start, ztrain, recipe, name)
      assert.are.same({status, "ready\n", 3}, {got, out, #lines(err)})
      for _, line in ipairs(lines(err)) do assert.matches("stopped by SIG" .. name .. "$", line) end
      assert.is_true(seconds < 5)
      write(text .. "core.stop_signal(true)\nwhile true do end")
      start = start:gsub("; wait", "; sleep 0.3; kill -0 $! && kill -%%s $!; wait")
      got, out, err, seconds = shell(start, ztrain, recipe, name, name)
      assert.are.same({status, "ready\n", ""}, {got, out, err})
      assert.is_true(seconds < 5)
    end
  end)

  it("stop together where one of them gets a signal", function()
    local status, _, err, seconds = run("-n 3", [[
      core.barrier()
      if core.rank() == 1 then os.execute "sleep 0.3; kill -TERM $PPID" end
      while true do end]])
    assert.are.equal(143, status)
    assert.are.same({
      "ztrain: rank 0/3: r.lua:4: rank 1/3: r.lua:3: stopped by SIGTERM",
      "ztrain: rank 1/3: r.lua:3: stopped by SIGTERM",
      "ztrain: rank 2/3: r.lua:4: rank 1/3: r.lua:3: stopped by SIGTERM",
    }, lines(err))
    assert.is_true(seconds < 5)
  end)

  it("leave an ignored SIGINT ignored", function()
    write "local n = 0\nfor i = 1, 1e8 do n = n + i end\nprint 'done'"
    local start = "env --ignore-signal=INT %s -n 2 %s & sleep 0.3; kill -INT $!; kill -INT $!; wait $!"
    local status, out = shell(start, ztrain, recipe)
    assert.are.same({0, "done\n"}, {status, out})
  end)

  it("D67: share the cores of the machine", function()
    local text = [[
      local mask = io.open("/proc/self/status"):read "a":match "Cpus_allowed_list:%s*(%S+)"
      local list = core.gather_strings(mask .. " " .. os.getenv "OMP_NUM_THREADS", "cores")
      print(table.concat(list, "\n"))]]
    local _, out = shell "nproc"
    local cores = tonumber(out)
    if cores < 2 then return pending "one core" end
    write(text)
    local function share(n)
      return select(2, shell("env -u OMP_NUM_THREADS %s -n %d %s", ztrain, n, recipe))
    end
    out = share(2)
    local seen = {}
    for mask, threads in out:gmatch "(%S+) (%d+)\n" do
      assert.are.equal(cores // 2, tonumber(threads))
      for first, last in mask:gmatch "(%d+)-?(%d*)" do
        for core = tonumber(first), tonumber(last) or tonumber(first) do
          assert.is_nil(seen[core])
          seen[core] = true
        end
      end
    end
    local n = 0
    for _ in pairs(seen) do n = n + 1 end
    assert.are.equal(cores, n)
    out = share(2 * cores) -- more than cores: where they run is the system's matter
    for mask, threads in out:gmatch "(%S+) (%d+)\n" do assert.are.same({"1", true}, {threads, #mask > 1}) end
    _, out = shell("OMP_NUM_THREADS=3 %s -n 2 %s", ztrain, recipe)
    assert.matches("^%S+ 3\n%S+ 3\n$", out)
  end)
end)

-- Ranks that somebody else starts.
describe("an environment of ranks", function()
  setup(function()
    folder = support.folder()
    recipe = folder .. "/r.lua"
  end)
  teardown(support.clean)

  local port = 21000 + support.seed % 9000

  -- Two ranks of a recipe of that text; gives the statuses of both, and the output of both.
  local function two(text)
    port = port + 1
    write(text)
    local function start(rank)
      return ("MASTER_ADDR=127.0.0.1 MASTER_PORT=%d WORLD_SIZE=2 RANK=%d %s %s"):format(port, rank, ztrain, recipe)
    end
    return shell("%s & %s; first=$?; wait $!; echo $?; exit $first", start(1), start(0))
  end

  it("is joined", function()
    local status, out, err = two "print(core.rank(), core.world_size(), #core.gather_numbers({1}, 'x'))"
    assert.are.same({0, "0\t2\t2\n0\n", ""}, {status, out, err})
  end)

  it("ends with a rank that fails", function()
    local status, out, err = two "if core.rank() == 1 then late() os.exit(5) end\ncore.barrier()\ncore.barrier()"
    assert.are.same({5, "5\n"}, {status, out})
    assert.are.same({"ztrain: rank 0/2: r.lua:4: rank 1/2: r.lua:2: os.exit(5)"}, lines(err))
  end)

  it("has to make sense", function()
    write "print 'ran'"
    for environment, message in pairs {
      ["RANK=2 WORLD_SIZE=2 MASTER_PORT=1"] = "RANK=2: it has to be a number from 0 to 1",
      ["RANK=x WORLD_SIZE=2 MASTER_PORT=1"] = "RANK=x: it has to be a number",
      ["RANK=0 WORLD_SIZE=0 MASTER_PORT=1"] = "WORLD_SIZE=0: it has to be a number",
      ["RANK=0 WORLD_SIZE=2"] = "no MASTER_PORT",
      ["RANK=0 WORLD_SIZE=2 MASTER_PORT=1 LOCAL_RANK=3 LOCAL_WORLD_SIZE=2"] = "LOCAL_RANK=3",
    } do
      local status, out, err = shell("%s %s %s", environment, ztrain, recipe)
      assert.are.same({2, ""}, {status, out}, err)
      assert.is_truthy(err:find(message, 1, true), err)
    end
    local status, out = shell("RANK=0 WORLD_SIZE=1 %s -n 2 %s", ztrain, recipe)
    assert.are.same({0, "ran\n"}, {status, out})
  end)

  it("excludes -n", function()
    local status, out, err = shell("RANK=0 WORLD_SIZE=2 MASTER_PORT=1 %s -n 2 %s", ztrain, recipe)
    assert.are.same({2, ""}, {status, out})
    local message = "ztrain: the environment says that this is rank 0 of 2: it joins them, and starts no ranks (-n 2)"
    assert.are.equal(message .. "; see ztrain --help\n", err)
  end)
end)
