-- luacheck's settings. Recipes and the library read and set no globals; specs know busted's words.
std = "lua54"
max_line_length = 120
exclude_files = {"build*", "out", "lua/ztrain/meta"} -- meta: declarations for language servers, without bodies
files["tests/lua"] = {std = "lua54+busted"}
