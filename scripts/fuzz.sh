#!/usr/bin/env bash
# scripts/fuzz.sh [seconds [target...]]
# Runs libFuzzer, with the address and undefined-behaviour sanitizers, on every parser (tests/fuzz/targets.h), each for
# the given seconds (60), and prints how many inputs each has had. What a fuzzer finds is in build/fuzz/findings: add it
# to tests/fuzz/corpus/<target> with the fix. Needs clang-14 and libclang-rt-14-dev.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-60}
shift || true
build=build/fuzz
compiler=${CXX:-clang++-14}

cmake -S . -B "$build" -G Ninja -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_BUILD_TYPE=Debug \
  -DCMAKE_CXX_FLAGS_DEBUG="-O1 -gline-tables-only" -DINGOT_FUZZ=ON -DINGOT_SANITIZE=address,undefined \
  -DINGOT_PRECOMPILE=OFF -DINGOT_TOOLS=OFF -DINGOT_BENCH=OFF > "$build.log" 2>&1 || { cat "$build.log" >&2; exit 1; }
cmake --build "$build" --target fuzzers

targets=("$@")
[ ${#targets[@]} -gt 0 ] || for program in "$build"/fuzz/fuzz_*; do targets+=("$(basename "$program" | sed s/fuzz_//)"); done
mkdir -p "$build/findings"
failed=0
for target in "${targets[@]}"; do
  work=$build/corpus/$target
  mkdir -p "$work"
  log=$build/$target.log
  if "$build/fuzz/fuzz_$target" "$work" "tests/fuzz/corpus/$target" -max_total_time="$seconds" -timeout=10 \
      -rss_limit_mb=2048 -max_len=4096 -print_final_stats=1 -artifact_prefix="$build/findings/$target-" > "$log" 2>&1; then
    result="no finding"
  else
    result="FINDING, see $log"
    failed=1
  fi
  echo "fuzz: $target: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") inputs, $result"
done
exit $failed
