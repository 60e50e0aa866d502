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
# program <name> <script>: the file test_<name>_gpu.cpp, as the only suite of a program. The script gets its arguments.
program() {
  stub "$work/build/tests/test_${1%%_*}_${1#*_}_gpu" "
    [ \"\$1\" = --list_content ] && { echo 'test_${1#*_}_gpu*'; exit; }
    $2"
}
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
  program "any_$i" "
    touch \$SEEN/$i
    for ((t = 0; t < 100; ++t)); do [ -e \$SEEN/1 ] && [ -e \$SEEN/2 ] && [ -e \$SEEN/3 ] && exit 0; sleep 0.1; done
    exit 5"
done
run 0 tests
expect_line 'any.1_gpu +[0-9]+ s  passed'
expect_line '3 passed, 0 failed, 0 skipped, [0-9]+ s in all'
[ "$(tail -n 1 "$work/output")" = "$(tail -n 1 "$work/out/gpu_check.log")" ] || fail 'the table is not last in the log'
grep -q 'stub ingot info' "$work/out/gpu_check.log" || fail 'the log lacks ingot info'

echo '== no more at once than there are places'
fresh
for i in 1 2 3 4 5; do
  program "any_$i" 'mkdir $SEEN/busy || exit 5; sleep 0.1; rmdir $SEEN/busy'
done
places=1 run 0 tests
expect '5 passed, 0 failed'

echo '== long programs run in shares, and the suite huge in one process'
fresh
for name in runtime_backends runtime_gemm_cross runtime_dequant_matmul nn_float8_linear nn_weight_only any_other; do
  program $name 'echo "$(basename $0) $*" >>$SEEN/calls'
done
run 0 tests
for i in 0 1 2 3; do
  for call in "test_runtime_backends_gpu --run_test=test_backends_gpu --run_test=!test_backends_gpu/huge -- $i/4" \
              "test_runtime_gemm_cross_gpu --run_test=test_gemm_cross_gpu/cross -- $i/4" \
              "test_runtime_dequant_matmul_gpu --run_test=test_dequant_matmul_gpu -- $i/4" \
              "test_nn_float8_linear_gpu --run_test=test_float8_linear_gpu -- $i/4" \
              "test_nn_weight_only_gpu --run_test=test_weight_only_gpu -- $i/4"; do
    [ "$(grep -cxF -e "$call" "$work/seen/calls")" -eq 1 ] || fail "not called once: $call"
  done
done
for call in 'test_runtime_backends_gpu --run_test=test_backends_gpu/huge' \
            'test_runtime_gemm_cross_gpu --run_test=test_gemm_cross_gpu/small_checker' \
            'test_any_other_gpu --run_test=test_other_gpu'; do
  [ "$(grep -cxF -e "$call" "$work/seen/calls")" -eq 1 ] || fail "not called once: $call"
done
[ "$(wc -l <"$work/seen/calls")" -eq 23 ] || fail "$(wc -l <"$work/seen/calls") calls instead of 23"
expect_line 'runtime.backends_gpu \(4 shares\) +[0-9]+ s  passed'
expect '8 passed, 0 failed, 0 skipped'

echo '== several GPUs take turns'
fresh
stub "$work/path/nvidia-smi" 'echo "GPU 0: one"; echo "GPU 1: another"'
program runtime_backends 'echo "${CUDA_VISIBLE_DEVICES-none}" >>$SEEN/gpus'
run 0 tests
[ "$(sort "$work/seen/gpus" | uniq -c | xargs)" = '3 0 2 1' ] || fail "the GPUs: $(sort "$work/seen/gpus" | uniq -c | xargs)"
rm "$work/seen/gpus"
CUDA_VISIBLE_DEVICES=7,5 run 0 tests
[ "$(sort "$work/seen/gpus" | uniq -c | xargs)" = '2 5 3 7' ] || fail "the GPUs: $(sort "$work/seen/gpus" | uniq -c | xargs)"
rm "$work/seen/gpus" "$work/path/nvidia-smi"
CUDA_VISIBLE_DEVICES=7 run 0 tests
[ "$(sort "$work/seen/gpus" | uniq -c | xargs)" = '5 7' ] || fail "the GPUs: $(sort "$work/seen/gpus" | uniq -c | xargs)"

echo '== racecheck sees gemm_sm90 and dequant_sm90 with a template in which each lane arrives'
fresh
for of in gemm_sm90 dequant_experts; do
  program runtime_$of '
    echo "$1 $(grep -c "kEachLaneArrives = true" "${INGOT_TEMPLATES:-/none}/ptx/mbarrier.cuh" 2>/dev/null)" >>$SEEN/arrivals'
done
run 0 sanitizer
for of in gemm_sm90 dequant_experts; do
  seen=$(grep $of "$work/seen/arrivals" | sort | xargs)
  [ "$seen" = "--run_test=test_${of}_gpu/small* --run_test=test_${of}_gpu/small* 1" ] || fail "$of: $seen"
done
touch "$work/out/templates/of_an_earlier_run"
run 0 sanitizer
[ -e "$work/out/templates/of_an_earlier_run" ] && fail 'racecheck takes the templates of an earlier run'
expect_line 'racecheck_runtime.gemm_sm90_gpu +[0-9]+ s  passed'

echo '== what fails is said, with the end of its log'
fresh
program any_good 'exit 0'
program any_bad 'echo "row 7 is wrong"; exit 201'
program runtime_backends '[ "${*: -1}" != 2/4 ] || { echo "share 2 is wrong"; exit 3; }'
program any_no_suite 'echo "Test setup error: no test cases matching filter or all test cases were disabled"; exit 200'
run 1 tests
expect 'row 7 is wrong'
expect 'share 2 is wrong'
expect_line 'any.bad_gpu +[0-9]+ s  FAILED exit_201'
expect_line 'runtime.backends_gpu \(4 shares\) +[0-9]+ s  FAILED exit_3, 1 of 4'
expect_line 'any.no_suite_gpu +[0-9]+ s  FAILED exit_200'
expect '2 passed, 3 failed, 0 skipped'

echo '== the sanitizer skips a program that has no small suite'
fresh
program any_with '[ "$1" = "--run_test=test_with_gpu/small*" ]'
program any_without 'echo "Test setup error: no test cases matching filter or all test cases were disabled" >&2; exit 200'
program codegen_pointwise 'exit 0'
program runtime_backends 'echo "$*" >>$SEEN/shares'
program nn_float8_linear 'echo "$*" >>$SEEN/float8_linear'
program nn_weight_only 'echo "$*" >>$SEEN/weight_only'
run 0 sanitizer
expect_line 'memcheck_any.with_gpu +[0-9]+ s  passed'
expect_line 'memcheck_any.without_gpu +[0-9]+ s  skipped: no small suite'
expect_line 'racecheck_codegen.pointwise_gpu +[0-9]+ s  passed'
expect_line 'memcheck_runtime.backends_gpu \(4 shares\) +[0-9]+ s  passed'
expect_line 'racecheck_runtime.backends_gpu \(4 shares\) +[0-9]+ s  passed'
expect '7 passed, 0 failed, 1 skipped'
for name in float8_linear weight_only; do
  expect_line "memcheck_nn.${name}_gpu \\(4 shares\\) +[0-9]+ s  passed"
  for i in 0 1 2 3; do
    [ "$(grep -cxF -e "--run_test=test_${name}_gpu/small* -- $i/4" "$work/seen/$name")" -eq 1 ] || fail "$name has not once share $i/4"
  done
done
[ "$(grep -cxF -e '--run_test=test_backends_gpu/small* -- 3/4' "$work/seen/shares")" -eq 2 ] || fail 'memcheck and racecheck do not both have share 3/4'
[ "$(sort "$work/seen/ports" | uniq -d | wc -l)" -eq 0 ] || fail 'two sanitizers have the same port'

echo '== code 200 for another reason is a failure, and so is an error that the sanitizer finds'
fresh
program any_setup 'echo "uncaught exception in a fixture"; exit 200'
program any_memory 'echo "========= Invalid __global__ read"; exit 9'
run 1 sanitizer
expect_line 'memcheck_any.setup_gpu +[0-9]+ s  FAILED exit_200'
expect_line 'memcheck_any.memory_gpu +[0-9]+ s  FAILED exit_9'

echo '== a step ends in time'
fresh
program any_1_slow 'sleep 60'
program any_2_late 'exit 0'
begin=$SECONDS
GPU_CHECK_STEP_SECONDS=1 places=1 run 1 tests
[ $((SECONDS - begin)) -lt 20 ] || fail "a step of 1 s took $((SECONDS - begin)) s"
expect_line 'any.1_slow_gpu +[0-9]+ s  FAILED timed_out'
expect_line 'any.2_late_gpu +[0-9]+ s  FAILED not_started'

echo '== without a GPU, and without tests'
fresh
program any_1 'touch $SEEN/ran'
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
