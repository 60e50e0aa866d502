#!/usr/bin/env bash
# scripts/coverage.sh [percent]
# Measures how many branches of the store's and the cache's sources their tests reach, prints a table, and ends with 1 if
# fewer than the given percentage (95) of all were. Only these sources are compiled for it, with clang's coverage;
# everything else comes from build/ci, which is built first (g++ and clang++ share the C++ library). Children that are
# killed count too: the counters are in a mapped file. Needs clang-14, llvm-14 and libclang-rt-14-dev.
set -euo pipefail
cd "$(dirname "$0")/.."

wanted=${1:-95}
clang=${CXX:-clang++-14}
out=build/coverage
coverage=(-fprofile-instr-generate -fcoverage-mapping -mllvm -runtime-counter-relocation)
tests=(kernel_store kernel_store_faults kernel_file kernel_key kernel_bundle kernel_cache store_directory store_kills
       store_system_calls store_processes file_lock write_file read_file tuning_store tuning_record matmul_choices
       recorder dry_run context)
sources=(runtime/jit/kernel_store runtime/jit/kernel_file runtime/jit/kernel_bundle runtime/jit/kernel_cache
         runtime/jit/kernel_key runtime/jit/kernel_identity runtime/jit/kernel_listing runtime/jit/kernel_transfer
         runtime/jit/read_only_store runtime/jit/tuning_lines runtime/util/store_directory runtime/util/file_lock
         runtime/util/directory_entries runtime/util/file_size_signal runtime/util/checksummed_line
         runtime/util/write_file runtime/util/read_file runtime/util/trusted_file runtime/util/append_line
         runtime/jit/recorder runtime/jit/recording_file runtime/jit/warm_up runtime/jit/prepare_kernels
         runtime/tuning/tuning_store runtime/tuning/tuning_file runtime/tuning/tuning_import
         runtime/tuning/tuning_record runtime/tuning/matmul_choices)

cmake --preset ci > /dev/null
cmake --build --preset ci --target test_runtime test_runtime_store_system_calls
rm -rf "$out"
mkdir -p "$out"

# The build's own command, less the compiler and what belongs to its precompiled header and its output.
flags_of() {
  ninja -C build/ci -t compdb | python3 -c '
import json, shlex, sys
command = next(e["command"] for e in json.load(sys.stdin) if e["file"].endswith(sys.argv[1]))
words = shlex.split(command)
words = words[max(i for i, w in enumerate(words) if w.endswith("++")) + 1:]  # after ccache and the compiler
kept, skip = [], False
for word, following in zip(words, words[1:] + [""]):
    if skip or word in ("-Winvalid-pch", "-c", "-MD", "-Werror") or word.startswith("-O"): skip = False; continue
    if word in ("-o", "-MF", "-MT") or word == "-include" and "cmake_pch" in following: skip = True; continue
    if word == sys.argv[1] or word.endswith(sys.argv[1]): continue
    kept.append(word)
print("\n".join(kept))' "$1"
}
objects=()
for source in "${sources[@]}"; do
  mapfile -t flags < <(flags_of "src/$source.cpp")
  object=$out/$(basename "$source").o
  (cd build/ci && "$clang" "${flags[@]}" -O1 "${coverage[@]}" -c "../../src/$source.cpp" -o "../../$object")
  objects+=("$PWD/$object")
done

# Our objects come ahead of the library, which then has nothing to add to them.
programs=("$out/test_runtime" "$out/test_runtime_store_system_calls")
for program in "${programs[@]}"; do
  mapfile -t own < <(find "build/ci/tests/CMakeFiles/$(basename "$program").dir" -name '*.o' ! -name 'cmake_pch*')
  "$clang" -fprofile-instr-generate "${own[@]}" "${objects[@]}" build/ci/src/libingot.a \
    build/ci/tests/libingot_test_support.a build/ci/src/libingot.a -ldl -o "$program"
done
for test in "${tests[@]}"; do
  program=$out/test_runtime
  [ "$test" != store_system_calls ] || program+=_$test
  LLVM_PROFILE_FILE=$PWD/$out/$test-%p%c.profraw "$program" "--run_test=test_$test" > "$out/$test.log" 2>&1 ||
    { echo "coverage: $test fails, see $out/$test.log" >&2; exit 1; }
done

llvm-profdata-14 merge -sparse "$out"/*.profraw -o "$out/all.profdata"
report() {
  llvm-cov-14 "$@" "${programs[0]}" "${programs[@]/#/-object=}" -instr-profile="$out/all.profdata" \
    -ignore-filename-regex='\.h$'
}
report report --show-branch-summary --show-region-summary=false | tee "$out/report.txt"
report show --show-branches=count > "$out/lines.txt"
echo "coverage: each line with its count and its branches stands in $out/lines.txt"
awk -v wanted="$wanted" '$1 == "TOTAL" { got = $NF + 0 } END { exit !(got >= wanted) }' "$out/report.txt" ||
  { echo "coverage: fewer than $wanted % of the branches were reached" >&2; exit 1; }
