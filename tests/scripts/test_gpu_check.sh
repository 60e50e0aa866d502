#!/usr/bin/env bash
# test_gpu_check.sh <source tree>
# Runs scripts/gpu_check.sh on stub programs: what it starts, what runs side by side, which exit codes count, and what
# it says last.
set -u
check=$1/scripts/gpu_check.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
faults=0

fail() { printf 'FAILED: %s\n' "$*" >&2; faults=$((faults + 1)); }
expect() {  # expect <text>: the output of the last run has it
  grep -qF -e "$1" "$work/output" || { fail "the output lacks \"$1\":"; cat "$work/output" >&2; }
}
expect_line() {  # expect_line <regular expression>: a whole line of the last run's output
  grep -qxE -e "$1" "$work/output" || { fail "the output has no line \"$1\":"; cat "$work/output" >&2; }
}

# A build folder with nothing but `ingot` and a compute-sanitizer that runs its program as it is.
fresh() {
  rm -rf "$work/build" "$work/out" "$work/seen"
  mkdir -p "$work/build/bin" "$work/build/tests" "$work/seen" "$work/path"
  stub "$work/build/bin/ingot" 'echo "stub ingot $1"'
  stub "$work/path/compute-sanitizer" '
    [ "$1" = --help ] && { echo "  --port arg  base port"; exit; }
    while [ "${1#*/}" = "$1" ]; do echo "$1" >>"$SEEN/sanitizer"; [ "$1" = --port ] && echo "$2" >>"$SEEN/ports"; shift; done
    "$@"'
}
stub() { printf '#!/usr/bin/env bash\n%s\n' "$2" >"$1"; chmod +x "$1"; }
program() { stub "$work/build/tests/$1" "$2"; }
# run <exit code> <step...>
run() {
  local expected=$1 code
  shift
  GPU_CHECK_JOBS=${places:-4} SEEN=$work/seen PATH=$work/path:$PATH "$check" "$work/build" "$work/out" "$@" >"$work/output" 2>&1
  code=$?
  [ $code -eq "$expected" ] || { fail "exit code $code instead of $expected:"; cat "$work/output" >&2; }
}

echo '== programs run side by side'
fresh
for i in 1 2 3; do  # each waits for the others
  program "test_${i}_gpu" "
    touch \$SEEN/$i
    for ((t = 0; t < 100; ++t)); do [ -e \$SEEN/1 ] && [ -e \$SEEN/2 ] && [ -e \$SEEN/3 ] && exit 0; sleep 0.1; done
    exit 5"
done
run 0 tests
expect_line 'test_1_gpu +[0-9]+ s  passed'
expect_line '3 passed, 0 failed, 0 skipped, [0-9]+ s in all'
[ "$(tail -n 1 "$work/output")" = "$(tail -n 1 "$work/out/gpu_check.log")" ] || fail 'the table is not last in the log'
grep -q 'stub ingot info' "$work/out/gpu_check.log" || fail 'the log lacks ingot info'

echo '== no more at once than there are places'
fresh
for i in 1 2 3 4 5; do
  program "test_${i}_gpu" 'mkdir $SEEN/busy || exit 5; sleep 0.1; rmdir $SEEN/busy'
done
places=1 run 0 tests
expect '5 passed, 0 failed'

echo '== long programs run in shares, and the suite huge in one process'
fresh
for name in runtime_backends runtime_gemm_cross runtime_dequant_matmul nn_float8_linear nn_weight_only other; do
  program "test_${name}_gpu" 'echo "$(basename $0) $*" >>$SEEN/calls'
done
run 0 tests
for i in 0 1 2 3; do
  for call in "test_runtime_backends_gpu --run_test=!huge -- $i/4" "test_runtime_gemm_cross_gpu --run_test=cross -- $i/4" \
              "test_runtime_dequant_matmul_gpu --run_test=* -- $i/4" "test_nn_float8_linear_gpu --run_test=* -- $i/4" \
              "test_nn_weight_only_gpu --run_test=* -- $i/4"; do
    [ "$(grep -cxF -e "$call" "$work/seen/calls")" -eq 1 ] || fail "not called once: $call"
  done
done
for call in 'test_runtime_backends_gpu --run_test=huge' 'test_runtime_gemm_cross_gpu --run_test=small_checker' 'test_other_gpu '; do
  [ "$(grep -cxF -e "$call" "$work/seen/calls")" -eq 1 ] || fail "not called once: $call"
done
[ "$(wc -l <"$work/seen/calls")" -eq 23 ] || fail "$(wc -l <"$work/seen/calls") calls instead of 23"
expect_line 'test_runtime_backends_gpu \(4 shares\) +[0-9]+ s  passed'
expect '8 passed, 0 failed, 0 skipped'

echo '== several GPUs take turns'
fresh
stub "$work/path/nvidia-smi" 'echo "GPU 0: one"; echo "GPU 1: another"'
program test_runtime_backends_gpu 'echo "${CUDA_VISIBLE_DEVICES-none}" >>$SEEN/gpus'
run 0 tests
[ "$(sort "$work/seen/gpus" | uniq -c | xargs)" = '3 0 2 1' ] || fail "the GPUs: $(sort "$work/seen/gpus" | uniq -c | xargs)"
rm "$work/seen/gpus"
CUDA_VISIBLE_DEVICES=7,5 run 0 tests
[ "$(sort "$work/seen/gpus" | uniq -c | xargs)" = '2 5 3 7' ] || fail "the GPUs: $(sort "$work/seen/gpus" | uniq -c | xargs)"
rm "$work/seen/gpus" "$work/path/nvidia-smi"
CUDA_VISIBLE_DEVICES=7 run 0 tests
[ "$(sort "$work/seen/gpus" | uniq -c | xargs)" = '5 7' ] || fail "the GPUs: $(sort "$work/seen/gpus" | uniq -c | xargs)"

echo '== racecheck sees gemm_sm90 with a template in which each lane releases a stage'
fresh
program test_runtime_gemm_sm90_gpu '
  echo "$1 $(grep -c "EachLaneReleases = true" "${INGOT_TEMPLATES:-/none}/gemm/gemm_sm90_tiling.cuh" 2>/dev/null)" >>$SEEN/gemm'
run 0 sanitizer
[ "$(sort "$work/seen/gemm" | xargs)" = '--run_test=small* --run_test=small* 1' ] || fail "gemm_sm90: $(cat "$work/seen/gemm")"
touch "$work/out/templates/of_an_earlier_run"
run 0 sanitizer
[ -e "$work/out/templates/of_an_earlier_run" ] && fail 'racecheck takes the templates of an earlier run'
expect_line 'racecheck_test_runtime_gemm_sm90_gpu +[0-9]+ s  passed'

echo '== what fails is said, with the end of its log'
fresh
program test_good_gpu 'exit 0'
program test_bad_gpu 'echo "row 7 is wrong"; exit 201'
program test_runtime_backends_gpu '[ "${*: -1}" != 2/4 ] || { echo "share 2 is wrong"; exit 3; }'
program test_no_suite_gpu 'echo "Test setup error: no test cases matching filter or all test cases were disabled"; exit 200'
run 1 tests
expect 'row 7 is wrong'
expect 'share 2 is wrong'
expect_line 'test_bad_gpu +[0-9]+ s  FAILED exit_201'
expect_line 'test_runtime_backends_gpu \(4 shares\) +[0-9]+ s  FAILED exit_3, 1 of 4'
expect_line 'test_no_suite_gpu +[0-9]+ s  FAILED exit_200'
expect '2 passed, 3 failed, 0 skipped'

echo '== the sanitizer skips a program that has no small suite'
fresh
program test_with_gpu '[ "$1" = "--run_test=small*" ]'
program test_without_gpu 'echo "Test setup error: no test cases matching filter or all test cases were disabled" >&2; exit 200'
program test_codegen_pointwise_gpu 'exit 0'
program test_runtime_backends_gpu 'echo "$*" >>$SEEN/shares'
program test_nn_float8_linear_gpu 'echo "$*" >>$SEEN/float8_linear'
program test_nn_weight_only_gpu 'echo "$*" >>$SEEN/weight_only'
run 0 sanitizer
expect_line 'memcheck_test_with_gpu +[0-9]+ s  passed'
expect_line 'memcheck_test_without_gpu +[0-9]+ s  skipped: no small suite'
expect_line 'racecheck_test_codegen_pointwise_gpu +[0-9]+ s  passed'
expect_line 'memcheck_test_runtime_backends_gpu \(4 shares\) +[0-9]+ s  passed'
expect_line 'racecheck_test_runtime_backends_gpu \(4 shares\) +[0-9]+ s  passed'
expect '7 passed, 0 failed, 1 skipped'
for name in float8_linear weight_only; do
  expect_line "memcheck_test_nn_${name}_gpu \\(4 shares\\) +[0-9]+ s  passed"
  for i in 0 1 2 3; do
    [ "$(grep -cxF -e "--run_test=small* -- $i/4" "$work/seen/$name")" -eq 1 ] || fail "$name has not once share $i/4"
  done
done
[ "$(grep -cxF -e '--run_test=small* -- 3/4' "$work/seen/shares")" -eq 2 ] || fail 'memcheck and racecheck do not both have share 3/4'
[ "$(sort "$work/seen/ports" | uniq -d | wc -l)" -eq 0 ] || fail 'two sanitizers have the same port'

echo '== code 200 for another reason is a failure, and so is an error that the sanitizer finds'
fresh
program test_setup_gpu 'echo "uncaught exception in a fixture"; exit 200'
program test_memory_gpu 'echo "========= Invalid __global__ read"; exit 9'
run 1 sanitizer
expect_line 'memcheck_test_setup_gpu +[0-9]+ s  FAILED exit_200'
expect_line 'memcheck_test_memory_gpu +[0-9]+ s  FAILED exit_9'

echo '== a step ends in time'
fresh
program test_1_slow_gpu 'sleep 60'
program test_2_late_gpu 'exit 0'
begin=$SECONDS
GPU_CHECK_STEP_SECONDS=1 places=1 run 1 tests
[ $((SECONDS - begin)) -lt 20 ] || fail "a step of 1 s took $((SECONDS - begin)) s"
expect_line 'test_1_slow_gpu +[0-9]+ s  FAILED timed_out'
expect_line 'test_2_late_gpu +[0-9]+ s  FAILED not_started'

echo '== without a GPU, and without tests'
fresh
program test_1_gpu 'touch $SEEN/ran'
stub "$work/build/bin/ingot" 'echo "  device        CPU reference (cpu)"'
run 77 tests train
expect 'gpu_check.sh: skipped: no CUDA device'
[ -e "$work/seen/ran" ] && fail 'a test ran without a GPU'
fresh
run 2 tests
expect 'tests has no GPU tests: cmake --preset release -DINGOT_TESTS=ON builds them'

echo '== wrong usage'
fresh
GPU_CHECK_GPUS=x run 2 tests
expect 'GPU_CHECK_GPUS is x, expected a number'
"$check" --help >"$work/output" || fail '--help fails'
expect 'scripts/gpu_check.sh <build folder> <output folder>'
expect 'GPU_CHECK_STEP_SECONDS=<n>'
run 2 tests frobnicate
expect 'unknown step frobnicate'
[ -e "$work/out" ] && fail 'something was written for an unknown step'

[ $faults -eq 0 ] || { echo "$faults faults" >&2; exit 1; }
