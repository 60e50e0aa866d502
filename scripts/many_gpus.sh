#!/usr/bin/env bash
# scripts/many_gpus.sh [--device cpu] [--list] <output folder> [gpus] [steps ...]
# Everything that needs several GPUs, on any number of them, in one call. It runs programs that are built already, each with a
# time limit, prints a line for each and a table last, and ends with 1 if any failed.
#
#   cpp              collectives and parallel layers over NCCL, and train_lm with 1, 2, 4 ... ranks, whose losses have to agree
#   tests            the Python checks of several ranks over NCCL, and what torchao publishes for several GPUs
#   first_run        the programs of docs/distributed.md, as the page has them
#   fsdp             bench/compare_fsdp.py
#   fsdp_tensor      the same model where 2, 4 ... GPUs divide each layer and FSDP2 shards over the others; from 4 GPUs on
#   tensor_parallel  bench/compare_tensor_parallel.py
#   experts          bench/compare_expert_ranks.py
#   profile          traces and snapshots of memory of compare_fsdp.py
#
# gpus: how many to use; by default all. Steps: by default all, in this order. --device cpu tries each step over gloo and
# threads, with tiny models, on 2 processes by default. --list prints the commands and runs none.
# The output folder gets many_gpus.json, fsdp.json, fsdp_tensor_<n>.json, tensor_parallel.json, experts.json, logs/, profile/
# and what train_lm writes. A program that is not built, or a package that is missing, is "skipped" with the reason. Without a
# CUDA device the script ends with 77.
#
# Environment:
#   INGOT_BUILD=<folder>         programs and tests (default: build/ci); a release build for speeds
#   INGOT_PYTHON_PACKAGE=<folder>  of the package ingot (default: its python/); PYTHON=<interpreter> (default: .venv's)
#   TORCHAO_CHECKOUT=<folder>    a checkout of pytorch/ao, for its tests
#   MANY_GPUS_SECONDS=<n>        how long each benchmark begins new rounds (default: 480)
#   MANY_GPUS_LIMIT=<n>          how long each program may run; benchmarks 300 s longer than their rounds (default: 1200)
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
usage() { echo 'usage: many_gpus.sh [--device cpu] [--list] <output folder> [gpus] [cpp|tests|first_run|fsdp|fsdp_tensor|tensor_parallel|experts|profile ...]' >&2; exit 2; }
device=cuda list=no
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) sed -n '2,/^set -u/{s/^# \{0,1\}//;/^set -u/!p}' "$0"; exit 0 ;;
    --device) device=${2-}; [ $# -ge 2 ] || usage; shift 2 ;;
    --list) list=yes; shift ;;
    -*) echo "many_gpus.sh: unknown option $1" >&2; usage ;;
    *) break ;;
  esac
done
case $device in cuda | cpu) ;; *) echo "many_gpus.sh: --device is '$device', expected cuda or cpu" >&2; exit 2 ;; esac
[ $# -gt 0 ] || usage
out=$1
shift
gpus=
case ${1-} in [0-9]*) gpus=$1; shift ;; esac
all_steps='cpp tests first_run fsdp fsdp_tensor tensor_parallel experts profile'
[ $# -gt 0 ] || set -- $all_steps
for step in "$@"; do
  case " $all_steps " in *" $step "*) ;; *) echo "many_gpus.sh: unknown step $step; expected some of: $all_steps" >&2; exit 2 ;; esac
done

if [ $device = cpu ]; then
  there=${gpus:-2}
elif [ -n "${CUDA_VISIBLE_DEVICES+set}" ]; then
  IFS=, read -r -a visible <<<"$CUDA_VISIBLE_DEVICES"
  there=${#visible[@]}
else
  there=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ')
fi
if [ "$there" = 0 ] && [ $list = no ]; then
  echo 'many_gpus.sh: skipped: no CUDA device; --device cpu tries it' >&2
  exit 77
fi
[ "$there" = 0 ] && there=2  # of a list
gpus=${gpus:-$there}
case $gpus in *[!0-9]* | 0 | 1) echo "many_gpus.sh: gpus is $gpus, expected a number from 2 on" >&2; exit 2 ;; esac
if [ "$gpus" -gt "$there" ] && [ $list = no ]; then
  echo "many_gpus.sh: $gpus GPUs are asked for, and there are $there" >&2
  exit 2
fi
for name in MANY_GPUS_SECONDS MANY_GPUS_LIMIT; do
  case ${!name-1} in *[!0-9]* | '') echo "many_gpus.sh: $name is '${!name}', expected a number of seconds" >&2; exit 2 ;; esac
done
seconds=${MANY_GPUS_SECONDS:-480} limit=${MANY_GPUS_LIMIT:-1200}

build=${INGOT_BUILD:-$root/build/ci}
python=${PYTHON:-$root/.venv/bin/python}
command -v "$python" >/dev/null || python=python3
package=${INGOT_PYTHON_PACKAGE:-$build/python}
[ -d "$package/ingot" ] && export PYTHONPATH="$package${PYTHONPATH:+:$PYTHONPATH}"
export INGOT_TEST_DEVICE=$device INGOT_TEST_RANKS=$gpus
torchrun=("$python" -m torch.distributed.run --standalone --nproc_per_node "$gpus")
cpu_bench=()
[ $device = cuda ] || cpu_bench=(--device cpu --try)
logs=$out/logs results=$out/results
if [ $list = no ]; then
  mkdir -p "$logs"
  : >"$results"
  export INGOT_CACHE_DIR=${INGOT_CACHE_DIR:-$out/store}
  if [ $device = cuda ] && [ "$gpus" -lt "$there" ]; then  # programs that take all GPUs get these
    CUDA_VISIBLE_DEVICES=$(IFS=,; if [ -n "${CUDA_VISIBLE_DEVICES+set}" ]; then echo "${visible[*]:0:gpus}"; else seq -s, 0 $((gpus - 1)); fi)
    export CUDA_VISIBLE_DEVICES
  fi
fi

# note <name> <outcome> <seconds>: a line, now and in the results.
note() {
  [ $list = yes ] && { printf '%-32s %s\n' "$1" "$2"; return; }
  printf '%-32s %5d s  %s\n' "$1" "$3" "$2"
  printf '%s\t%s\t%d\n' "$1" "$2" "$3" >>"$results"
}

# run <name> <seconds allowed> <command ...>: runs it alone, keeps its log, and says how it ended. Returns its exit code.
run() {
  local name=$1 allowed=$2 begin=$SECONDS code
  shift 2
  if [ $list = yes ]; then
    printf '%-32s %s\n' "$name" "$*"
    return 0
  fi
  timeout -k 10 "$allowed" "$@" >"$logs/$name.log" 2>&1
  code=$?
  case $code in
    0) note "$name" passed $((SECONDS - begin)) ;;
    124 | 137) note "$name" "FAILED: ran past $allowed s" $((SECONDS - begin)) ;;
    *) note "$name" "FAILED: exit code $code" $((SECONDS - begin)); tail -n 15 "$logs/$name.log" | sed 's/^/    /' ;;
  esac
  return $code
}

# program <name> <program> <arguments ...>: of the build, if it is there.
program() {
  local name=$1 path=$build/$2
  shift 2
  if [ -x "$path" ] || [ $list = yes ]; then run "$name" "$limit" "$path" "$@"; else note "$name" "skipped: $path is not built" 0; fi
}

# ---- steps -----------------------------------------------------------------------------------------------------------

# Compares the losses of two runs of train_lm: on the CPU equal to the last digit; NCCL adds in another order than one rank.
same_losses='
  NR == FNR { expected[FNR] = $2; lines = FNR; next }
  FNR > 1 && ($2 !~ /^[0-9.]+(e[-+]?[0-9]+)?$/ || ($2 - expected[FNR]) ^ 2 > (most * expected[FNR]) ^ 2) { print "step " $1 ": loss " $2 ", with one rank " expected[FNR]; bad = 1 }
  END { if (FNR != lines || lines < 3) { print "other steps: " FNR - 1 " and " lines - 1; bad = 1 } exit bad }'

cpp() {
  local suffix=_gpu most=0.01 ranks one=$out/train_lm_1/loss.csv other sizes=(--steps 60 --batch $((512 * gpus)))
  local text=${INGOT_TEXT:-$out/text}
  if [ $device = cpu ]; then
    suffix='' most=0
    sizes=(--device cpu --steps 6 --batch $((8 * gpus)) --context 8 --embedding 8 --hidden 64 --blocks 1)
  fi
  [ $list = yes ] || [ -n "${INGOT_TEXT-}" ] || cat "$root"/docs/*.md "$root"/docs/notes/*.md >"$text"
  program cpp.comm "tests/test_runtime$suffix" "--run_test=test_comm$suffix"
  program cpp.parallel_linear "tests/test_nn$suffix" "--run_test=test_parallel_linear$suffix"
  for ranks in $(seq 1 "$gpus"); do  # those that divide the parts of a step
    [ $((gpus % ranks)) -eq 0 ] || continue
    other=$out/train_lm_$ranks/loss.csv
    rm -f "$other"
    program "cpp.train_lm_$ranks" examples/train_lm --text "$text" --only fp8 --micro-batches "$gpus" --ranks "$ranks" \
      --out "$out/train_lm_$ranks" "${sizes[@]}"
    if [ "$ranks" -gt 1 ] && [ -e "$other" ]; then
      run "cpp.losses_of_$ranks" 60 awk -F, -v "most=$most" "$same_losses" "$one" "$other"
    fi
  done
}

tests() {
  local name marks=()
  [ $device = cuda ] || marks=(-m 'not nightly')
  for name in test_nn_all_gather test_sharded_situations test_ranks_against_one test_float8_distributed test_nn_distributed test_nn_tensor_parallel test_experts_distributed test_experts_all_gather test_checkpoint_to_serving; do
    [ -e "$root/python_bindings/tests/$name.py" ] || continue
    run "tests.$name" "$limit" "$python" -m pytest -q -p no:cacheprovider "$root/python_bindings/tests/$name.py" "${marks[@]}"
  done
  [ $device = cpu ] || run tests.rank_deaths "$limit" "$python" "$root/python_bindings/tests/rank_deaths.py" --device cuda \
    --ranks "$gpus" --kills 4
  if [ $device = cpu ]; then
    note tests.torchao 'skipped: torchao tests several GPUs only' 0
  elif [ -z "${TORCHAO_CHECKOUT-}" ]; then
    note tests.torchao 'skipped: TORCHAO_CHECKOUT names no checkout of pytorch/ao' 0
  else
    run tests.torchao "$limit" env PYTHON="$python" INGOT_PYTHON_PACKAGE="$package" \
      "$root/scripts/torchao_tests.sh" --gpus "$gpus" "$TORCHAO_CHECKOUT"
  fi
}

first_run() {
  local program=$out/first_run.py serving=first_run_serving last
  local one=("$python" -m torch.distributed.run --standalone --nproc_per_node 1)
  if [ $list = no ]; then  # the Python programs of the page; its fragments do not begin so
    rm -rf "$out"/first_run*.py "$out/checkpoint_to_serving"
    awk -v "out=$out/first_run" '
      BEGIN { split("_ten_lines.py .py _serving.py _tensor_parallel.py", names, " ") } /^```$/ { inside = 0 }
      inside { print >(out names[count]) } /^```python$/ { begins = 1; next }
      begins && /^import os, torch/ { ++count; inside = 1; print >(out names[count]) } { begins = 0 }' \
      "$root/docs/distributed.md"
  fi
  run first_run.ten_lines "$limit" "${torchrun[@]}" "$out/first_run_ten_lines.py"
  run first_run.tensor_parallel "$limit" "${torchrun[@]}" "$out/first_run_tensor_parallel.py"
  if [ $list = no ] && ! "$python" -c 'import transformers' >"$logs/$serving.log" 2>&1; then
    note first_run.serving 'skipped: it needs the package transformers' 0
  else  # on all ranks, and then resumed on one
    run first_run.serving "$limit" env -C "$out" "${torchrun[@]}" "$serving.py" &&
      run first_run.serving_resumed "$limit" env -C "$out" "${one[@]}" "$serving.py"
    [ $list = yes ] || run first_run.serving_steps 10 grep -q 'rank 0 step 39 loss [0-9]' "$logs/first_run.serving_resumed.log"
  fi
  run first_run "$limit" "${torchrun[@]}" "$program" || return
  [ $list = yes ] && return
  grep -o 'rank [0-9]* step [0-9]* loss [0-9]*\.[0-9]*' "$logs/first_run.log" >"$out/first_run.losses"  # lines may run together
  last=$(grep -c ' step 19 ' "$out/first_run.losses")
  run first_run.ranks 10 test "$last" -eq "$gpus"
  run first_run.learns 10 awk '$2 == 0 { if ($4 == 0) first = $6; last = $6 } END { print first, last; exit !(last < first) }' \
    "$out/first_run.losses"
}

# The table of a benchmark's log, without what torchrun says of an exit code.
print_table() { [ $list = yes ] || awk '/^[WE][0-9]+ |^Traceback/ { inside = 0 } /^contender .* x bf16/ { inside = 1 } inside' "$logs/$1.log"; }

fsdp() {
  run fsdp $((seconds + 300)) "${torchrun[@]}" "$root/bench/compare_fsdp.py" "${cpu_bench[@]}" --seconds "$seconds" --json "$out/fsdp.json"
  print_table fsdp
}

fsdp_tensor() {
  local tensor who=()
  [ $device = cuda ] || who=(--contender 'bf16, compiled' --contender 'ingot *wise, compiled*gather')
  for tensor in $(seq 2 $((gpus / 2))); do
    [ $((gpus % tensor)) -eq 0 ] || continue
    run "fsdp_tensor_$tensor" $((seconds + 300)) "${torchrun[@]}" "$root/bench/compare_fsdp.py" "${cpu_bench[@]}" "${who[@]}" \
      --tensor "$tensor" --seconds "$seconds" --json "$out/fsdp_tensor_$tensor.json"
    print_table "fsdp_tensor_$tensor"
  done
}

tensor_parallel() {
  local who=()
  [ $device = cuda ] || who=(--contender 'bf16*' --contender 'ingot *')  # gloo sends no FP8, as torchao gives it
  run tensor_parallel $((seconds + 300)) "${torchrun[@]}" "$root/bench/compare_tensor_parallel.py" "${cpu_bench[@]}" "${who[@]}" \
    --seconds "$seconds" --json "$out/tensor_parallel.json"
  print_table tensor_parallel
}

experts() {
  run experts $((seconds + 300)) "${torchrun[@]}" "$root/bench/compare_expert_ranks.py" "${cpu_bench[@]}" --seconds "$seconds" \
    --json "$out/experts.json"
  print_table experts
}

profile() {
  run profile "$limit" "${torchrun[@]}" "$root/bench/compare_fsdp.py" "${cpu_bench[@]}" --profile "$out/profile" \
    --contender 'bf16, compiled' --contender 'ingot *wise, compiled' --contender 'ingot *wise, compiled, FP8 gather'
}

# ---- what they found -------------------------------------------------------------------------------------------------

for step in "$@"; do "$step"; done
[ $list = yes ] && exit 0
awk -F '\t' -v device=$device -v gpus="$gpus" '
  { text = $2; gsub(/["\\]/, "\\\\&", text); printf "%s{\"name\": \"%s\", \"outcome\": \"%s\", \"seconds\": %d}", (NR > 1 ? ",\n  " : "{\"device\": \"" device "\", \"gpus\": " gpus ", \"runs\": [\n  "), $1, text, $3 }
  END { print "\n]}" }' "$results" >"$out/many_gpus.json"
echo
awk -F '\t' '
  $2 ~ /^FAILED/ { ++failed; failures = failures sprintf("%-32s %5d s  %s\n", $1, $3, $2); next }
  { printf "%-32s %5d s  %s\n", $1, $3, $2 }
  $2 == "passed" { ++passed }
  $2 ~ /^skipped/ { ++skipped }
  END { printf "%s%d passed, %d failed, %d skipped", failures, passed, failed, skipped; exit failed > 0 }' "$results" >"$out/table"
code=$?
printf ', %d s in all\n' "$SECONDS" >>"$out/table"
cat "$out/table"
exit $code
