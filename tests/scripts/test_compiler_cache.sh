#!/usr/bin/env bash
# test_compiler_cache.sh <source tree> <cmake> <C++ compiler>
# Builds a project with a precompiled header under cmake/compiler_cache.cmake and a cache of its own: a second build is
# served from the cache, and a header of which only a comment changed is not included beside its older self.
set -eu
root=$1 cmake=$2 compiler=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export CCACHE_DIR=$work/cache
unset CCACHE_DISABLE CCACHE_READONLY CCACHE_RECACHE

fail() { printf 'FAILED: %s\n' "$*" >&2; exit 1; }
# build <comment> <value>: from nothing but the cache.
build() {
  printf '#pragma once\n// %s\nstruct Value { int number; };\n' "$1" > "$work/value.h"
  printf '#include "value.h"\nint main() { return Value{%s}.number; }\n' "$2" > "$work/main.cpp"
  rm -rf "$work/build"
  sleep 1.1  # ccache trusts no header that is younger than the compilation's first second
  ccache -z > /dev/null
  "$cmake" -S "$work" -B "$work/build" -G Ninja -DCMAKE_CXX_COMPILER="$compiler" > "$work/log" 2>&1 &&
    "$cmake" --build "$work/build" >> "$work/log" 2>&1 || { cat "$work/log" >&2; fail "the build with // $1"; }
  "$work/build/value" && code=0 || code=$?
  [ "$code" = "$2" ] || fail "the program returned $code instead of $2"
}
# hits <number> <when>
hits() {
  local seen
  seen=$(ccache --print-stats | awk '$1 == "direct_cache_hit" || $1 == "preprocessed_cache_hit" { n += $2 } END { print n }')
  [ "$seen" = "$1" ] || { ccache -s >&2; fail "$seen hits instead of $1 $2"; }
}

cat > "$work/CMakeLists.txt" << END
cmake_minimum_required(VERSION 3.25)
project(value LANGUAGES CXX)
include($root/cmake/compiler_cache.cmake)
add_executable(value main.cpp)
target_precompile_headers(value PRIVATE value.h)
END
build 'a comment' 1
hits 0 'with an empty cache'
build 'a comment' 1
hits 2 'of a precompiled header and a source'
build 'another comment' 2
hits 0 'after both changed'
