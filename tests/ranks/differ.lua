-- Ranks that do not do the same: arg = {how, stage, folder}. Rank 1 is the one that differs, in step 3.
local core = require "ztrain.core"
local zt = require "ztrain"

local mode, stage, folder = arg[1], math.tointeger(arg[2]), arg[3]
zt.seed(1)
local acc = zt.accelerator {zero_stage = stage, page_size = 1, project_dir = folder .. "/project"}
local Net = zt.nn.class "Net"
function Net:init() self.a, self.b = zt.nn.Linear(8, 8), zt.nn.Linear(8, 8) end
function Net:forward(x, other)
  if other then return self.b(x) end
  return self.a(x)
end
local net = Net()
local opt = zt.optim.adamw(net:parameters(), {lr = 0.1})
acc:prepare(net, opt)
if mode == "latest" then acc:load_state "latest" end
for step = 1, 5 do
  local differs = core.rank() == 1 and step == 3
  acc:accumulate(function()
    if differs and mode == "skip" then return end
    local loss = net(zt.ones(2, 8), differs and mode == "branch"):sum()
    if differs and mode == "raise" then error "boom" end
    if differs and mode == "exit" then os.exit(7) end
    if differs and mode == "kill" then os.execute "kill -9 $PPID" end
    acc:backward(loss)
    opt:step()
    opt:zero_grad()
  end)
  if mode == "save" and step == 3 and acc.is_main_process then acc:save_state() end
end
acc:print("done", acc.training:hash())
