#!/bin/sh
# install.sh BUILD CC - installs into a fresh folder, then builds a C program with pkg-config, runs a recipe with the
# installed program from elsewhere, and lets stock Lua require the module.
set -eu
build=$1
cc=$2
here=$(cd "$(dirname "$0")" && pwd)
prefix=$(mktemp -d)
trap 'rm -rf "$prefix"' EXIT
fail() { echo "install: $*" >&2; exit 1; }

cmake --install "$build" --prefix "$prefix/usr" >"$prefix/log" || { cat "$prefix/log"; exit 1; }
mv "$prefix/usr" "$prefix/moved" # nothing in it may depend on where it was
usr=$prefix/moved
pc=$(find "$usr" -name ztrain.pc)
lib=$(dirname "$(dirname "$pc")")
export PKG_CONFIG_PATH="${pc%/*}"

# shellcheck disable=SC2046 # flags are words
"$cc" -std=c11 -Wall -Wextra -Werror "$here/install.c" $(pkg-config --cflags --libs ztrain) -o "$prefix/shared"
LD_LIBRARY_PATH=$lib "$prefix/shared" || fail "the program linked with libztrain.so fails"
# shellcheck disable=SC2046
"$cc" -std=c11 "$here/install.c" $(pkg-config --cflags ztrain) "$lib/libztrain.a" \
  $(pkg-config --static --libs ztrain | sed 's/-lztrain//') -o "$prefix/static"
"$prefix/static" || fail "the program linked with libztrain.a fails"

cd "$prefix"
echo 'local zt = require "ztrain"; assert(zt.tensor({1, 2, 3}):sum():item() == 6); print(zt._VERSION)' >three.lua
LUA_CPATH="$usr/lib/lua/5.4/?.so" lua5.4 three.lua || fail "stock lua5.4 cannot require ztrain"
"$usr/bin/ztrain" three.lua || fail "the installed ztrain cannot run a recipe"
for file in share/ztrain/lua/ztrain/meta/core.lua share/ztrain/recipes/gpt_xl_stage3.lua; do
  [ -f "$usr/$file" ] || fail "$file is not installed"
done
