-- Runs busted in the Lua that runs this file (Debian's `busted` command takes whatever `lua` is).
require "busted.runner" {standalone = false}
