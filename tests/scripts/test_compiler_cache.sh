#!/usr/bin/env bash
# test_compiler_cache.sh <source tree> <cmake> <C++ compiler> <ccache>
# Builds a project with a precompiled header under cmake/compiler_cache.cmake, with its own cache: a second build is
# served from the cache, a header of which only a comment changed is not included together with its older version, and
# nothing is served that was stored without depend mode.
set -eu
root=$1 cmake=$2 compiler=$3 ccache=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset "${!CCACHE_@}" CMAKE_CXX_COMPILER_LAUNCHER
export CCACHE_DIR=$work/cache

fail() { printf 'FAILED: %s\n' "$*" >&2; exit 1; }
# build <comment> <value> [cmake option...]: from nothing but the cache.
build() {
  local comment=$1 value=$2
  shift 2
  printf '#pragma once\n// %s\nstruct Value { int number; };\n' "$comment" > "$work/value.h"
  printf '#include "value.h"\nint main() { return Value{%s}.number; }\n' "$value" > "$work/main.cpp"
  rm -rf "$work/build"
  sleep 1.1  # ccache stores no result of a compilation whose headers are as new as itself
  "$ccache" -z > /dev/null
  "$cmake" -S "$work" -B "$work/build" -G Ninja -DCMAKE_CXX_COMPILER="$compiler" -DINGOT_CCACHE="$ccache" "$@" \
    > "$work/log" 2>&1 && "$cmake" --build "$work/build" >> "$work/log" 2>&1 ||
    { cat "$work/log" >&2; fail "the build with // $comment"; }
  "$work/build/value" && code=0 || code=$?
  [ "$code" = "$value" ] || fail "the program returned $code instead of $value"
}
# hits <number> <when>
hits() {
  local seen
  seen=$("$ccache" --print-stats | awk '$1 ~ /^(direct|preprocessed)_cache_hit$/ { n += $2 } END { print n }')
  [ "$seen" = "$1" ] || { "$ccache" -s >&2; fail "$seen hits instead of $1 $2"; }
}

cat > "$work/CMakeLists.txt" << END
cmake_minimum_required(VERSION 3.25)
project(value LANGUAGES CXX)
include($root/cmake/compiler_cache.cmake)
add_executable(value main.cpp)
target_precompile_headers(value PRIVATE value.h)
END
without=("$cmake" -E env CCACHE_SLOPPINESS=pch_defines,time_macros "$ccache")
build 'a comment' 1 -DCMAKE_CXX_COMPILER_LAUNCHER="$(IFS=';'; echo "${without[*]}")"
build 'a comment' 1
hits 0 'of results that were stored without depend mode'
build 'a comment' 1
hits 2 'of a precompiled header and a source'
build 'another comment' 2
hits 0 'after both changed'
