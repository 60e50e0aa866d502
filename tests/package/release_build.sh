#!/usr/bin/env bash
# release_build.sh <source tree> <c++ compiler> [compiler launcher]
# Builds what a user builds, with the preset release: the program, the examples and the benchmarks, optimised as a whole.
# CI builds with INGOT_QUICK_BUILD, so it links none of them like that, and a name that only an optimised build needs, or
# has inlined away, goes unseen.
set -euo pipefail
source_dir=$1 cxx=$2 launcher=${3:-}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { printf 'release_build: %s\n' "$*" >&2; exit 1; }

cd "$source_dir"
cmake --preset release -B "$work/build" -DINGOT_QUICK_BUILD=OFF -DCMAKE_CXX_COMPILER="$cxx" \
  -DCMAKE_CXX_COMPILER_LAUNCHER="$launcher"
cmake --build "$work/build"

"$work/build/bin/ingot" --version
linked=$(find "$work/build/examples" "$work/build/bench" -maxdepth 1 -type f -executable | wc -l)
[ "$linked" -gt 5 ] || fail "the preset release links only $linked examples and benchmarks"
echo "release_build: the program, and $linked examples and benchmarks"
