#!/usr/bin/env bash
# test_many_gpus.sh <source tree>
# Runs scripts/many_gpus.sh, and scripts/torchao_tests.sh --gpus, on stub programs: what they start and with which settings,
# which exit codes count, and what they say last.
set -u
root=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
faults=0

fail() { printf 'FAILED: %s\n' "$*" >&2; faults=$((faults + 1)); }
expect() { grep -qF -e "$1" "$work/output" || { fail "the output lacks \"$1\":"; cat "$work/output" >&2; }; }
expect_line() { grep -qxE -e "$1" "$work/output" || { fail "the output has no line \"$1\":"; cat "$work/output" >&2; }; }
expect_call() { grep -qF -e "$1" "$work/calls" || { fail "not called: $1"; cat "$work/calls" >&2; }; }
stub() { printf '#!/usr/bin/env bash\n%s\n' "$2" >"$1"; chmod +x "$1"; }

# Programs that note what they are called with. Python's runs of the first program of docs/distributed.md print losses.
fresh() {
  rm -rf "$work/build" "$work/out" "$work/path" "$work/calls"
  mkdir -p "$work/build/tests" "$work/build/examples" "$work/build/python/ingot" "$work/path"
  : >"$work/calls"
  local note='echo "$(basename "$0") $* [$INGOT_TEST_DEVICE $INGOT_TEST_RANKS ${CUDA_VISIBLE_DEVICES-all}]" >>$CALLS'
  for name in tests/test_runtime_gpu tests/test_nn_gpu tests/test_runtime tests/test_nn; do stub "$work/build/$name" "$note"; done
  stub "$work/build/examples/train_lm" "$note"'
    while [ $# -gt 0 ]; do case $1 in --out) out=$2 ;; --ranks) ranks=$2 ;; esac; shift; done
    mkdir -p $out
    [ $ranks -eq 1 ] && printf "step,loss_fp8\n1,5.0\n2,4.0\n" >$out/loss.csv
    [ $ranks -eq 1 ] || printf "step,loss_fp8\n1,5.0\n2,${LOSS:-4.0}\n" >$out/loss.csv'
  stub "$work/python" "$note"'
    case $* in
      *"${BROKEN:-no such}"*) echo "what went wrong"; exit 3 ;;
      *"${SLOW:-no such}"*) exec sleep 30 ;;
      *"nproc_per_node 1 first_run_serving.py") echo "rank 0 step ${LAST:-39} loss 1.5" ;;
      *first_run.py) for rank in $(seq 0 $((INGOT_TEST_RANKS - 1))); do for step in 0 19; do echo -n "rank $rank step $step loss $((${FROM:-20} - step)).5"; done; done ;;
    esac'
}
# run <exit code> <arguments>
run() {
  local expected=$1 code
  shift
  CALLS=$work/calls PATH=$work/path:$PATH INGOT_BUILD=$work/build PYTHON=$work/python "$root/scripts/many_gpus.sh" "$@" >"$work/output" 2>&1
  code=$?
  [ $code -eq "$expected" ] || { fail "exit code $code instead of $expected: $*"; cat "$work/output" >&2; }
}
has_gpus() { stub "$work/path/nvidia-smi" "for i in \$(seq 0 $(($1 - 1))); do echo \"GPU \$i: one\"; done"; }
unset CUDA_VISIBLE_DEVICES TORCHAO_CHECKOUT MANY_GPUS_SECONDS MANY_GPUS_LIMIT INGOT_PYTHON_PACKAGE INGOT_CACHE_DIR

echo '== all steps, on all GPUs'
fresh
has_gpus 4
MANY_GPUS_SECONDS=77 run 0 "$work/out"
expect_call 'test_runtime_gpu --run_test=test_comm_gpu [cuda 4 all]'
expect_call 'test_nn_gpu --run_test=test_parallel_linear_gpu [cuda 4 all]'
for ranks in 1 2 4; do expect_call "--micro-batches 4 --ranks $ranks --out $work/out/train_lm_$ranks"; done
for name in test_nn_all_gather test_sharded_situations test_ranks_against_one test_float8_distributed test_nn_distributed test_nn_tensor_parallel test_experts_distributed test_experts_all_gather test_checkpoint_to_serving; do
  expect_call "-m pytest -q -p no:cacheprovider $root/python_bindings/tests/$name.py [cuda 4 all]"
done
expect_call "rank_deaths.py --device cuda --ranks 4 --kills 4"
expect_call "--nproc_per_node 4 $work/out/first_run_ten_lines.py"
expect_call "--nproc_per_node 4 $work/out/first_run.py"
expect_call "--nproc_per_node 4 $work/out/first_run_tensor_parallel.py"
expect_call "--nproc_per_node 4 first_run_serving.py"
expect_call "--nproc_per_node 1 first_run_serving.py"
expect_call "compare_fsdp.py --seconds 77 --json $work/out/fsdp.json"
expect_call "compare_fsdp.py --tensor 2 --seconds 77 --json $work/out/fsdp_tensor_2.json"
expect_call "compare_tensor_parallel.py --seconds 77 --json $work/out/tensor_parallel.json"
expect_call "compare_expert_ranks.py --seconds 77 --json $work/out/experts.json"
expect_call "compare_fsdp.py --profile $work/out/profile"
# of_page <file> <what only that program of docs/distributed.md has>
of_page() {
  local file=$work/out/$1
  grep -qF "$2" "$file" && [ "$(grep -c '^import os, torch' "$file")" = 1 ] && tail -n 5 "$file" | grep -q "${3-destroy_process_group}" ||
    fail "$1 is not the program of the page"
}
of_page first_run_ten_lines.py 'fully_shard(model)' 'part of grad'
of_page first_run.py 'precompute_float8_all_gather(model)'
of_page first_run_tensor_parallel.py 'parallelize_module(model'
of_page first_run_serving.py 'save_float8_checkpoint(model' 'served.generate'
expect_line 'cpp.losses_of_4 +[0-9]+ s  passed'
expect_line 'tests.torchao +0 s  skipped: TORCHAO_CHECKOUT names no checkout of pytorch/ao'
expect_line '30 passed, 0 failed, 1 skipped, [0-9]+ s in all'
python3 -c '
import json, sys
found = json.load(open(sys.argv[1]))
assert found["device"] == "cuda" and found["gpus"] == 4 and found["runs"][0]["name"] == "cpp.comm"' "$work/out/many_gpus.json" || fail many_gpus.json

echo '== fewer GPUs than there are, and those that the caller made visible'
fresh
has_gpus 4
run 0 "$work/out" 2 tests
expect_call 'test_nn_distributed.py [cuda 2 0,1]'
fresh
has_gpus 4
CUDA_VISIBLE_DEVICES=7,5,3 run 0 "$work/out" 2 cpp
expect_call 'test_comm_gpu [cuda 2 7,5]'
run 2 "$work/out" 5 cpp
expect 'many_gpus.sh: 5 GPUs are asked for, and there are 4'

echo '== three, whose parts only one and three divide'
fresh
has_gpus 3
run 0 "$work/out" cpp
[ "$(grep -c train_lm "$work/calls")" -eq 2 ] || fail "train_lm: $(grep train_lm "$work/calls")"

echo '== losses that differ are a failure: on GPUs by more than 1 %, on the CPU at all'
fresh
has_gpus 2
LOSS=4.01 run 0 "$work/out" cpp
LOSS=4.1 run 1 "$work/out" cpp
expect 'step 2: loss 4.1, with one rank 4.0'
expect_line 'cpp.losses_of_2 +[0-9]+ s  FAILED: exit code 1'
LOSS=nan run 1 "$work/out" cpp
LOSS=4.01 run 1 --device cpu "$work/out" cpp
expect_call 'test_runtime --run_test=test_comm [cpu 2 all]'
LOSS=4.0 run 0 --device cpu "$work/out" cpp

echo '== what fails is said with the end of its log, and the others run'
fresh
has_gpus 2
BROKEN=compare_fsdp.py run 1 "$work/out" fsdp tensor_parallel
expect 'what went wrong'
expect_line 'fsdp +[0-9]+ s  FAILED: exit code 3'
expect_line 'tensor_parallel +[0-9]+ s  passed'
[ "$(tail -n 2 "$work/output" | head -n 1 | cut -d' ' -f1)" = fsdp ] || fail 'failures are not last'
expect_line '1 passed, 1 failed, 0 skipped, [0-9]+ s in all'
SLOW=test_nn_dist MANY_GPUS_LIMIT=1 run 1 "$work/out" tests
expect_line 'tests.test_nn_distributed +[0-9]+ s  FAILED: ran past 1 s'
FROM=30 run 0 "$work/out" first_run
LAST=19 run 1 "$work/out" first_run
expect_line 'first_run.serving_steps +[0-9]+ s  FAILED: exit code 1'
BROKEN='import transformers' run 0 "$work/out" first_run
expect_line 'first_run.serving +0 s  skipped: it needs the package transformers'
stub "$work/python" 'echo "rank 0 step 0 loss 1.0"; echo "rank 0 step 19 loss 1.0"'
run 1 "$work/out" first_run
expect_line 'first_run.ranks +[0-9]+ s  FAILED: exit code 1'
expect_line 'first_run.learns +[0-9]+ s  FAILED: exit code 1'

echo '== what is not built is skipped'
fresh
has_gpus 2
rm "$work/build/tests/test_nn_gpu" "$work/build/examples/train_lm"
run 0 "$work/out" cpp
expect "skipped: $work/build/tests/test_nn_gpu is not built"
expect_line '1 passed, 0 failed, 3 skipped, [0-9]+ s in all'

echo '== on the CPU: tiny sizes'
fresh
run 0 --device cpu "$work/out" 3 tests fsdp
expect_call 'test_nn_distributed.py -m not nightly [cpu 3 all]'
expect_call "compare_fsdp.py --device cpu --try --seconds 480"

echo '== a list runs nothing'
fresh
run 0 --list "$work/out" 8
expect '--nproc_per_node 8'
expect 'examples/train_lm'
[ -s "$work/calls" ] && fail 'a list runs programs'
[ -e "$work/out" ] && fail 'a list writes'

echo '== without GPUs, and wrong usage'
fresh
stub "$work/path/nvidia-smi" 'exit 9'
run 77 "$work/out"
expect 'many_gpus.sh: skipped: no CUDA device; --device cpu tries it'
run 2 --device tpu "$work/out"
expect "--device is 'tpu', expected cuda or cpu"
run 2 --device cpu "$work/out" 1
expect 'gpus is 1, expected a number from 2 on'
run 2 --device cpu "$work/out" 2 frobnicate
expect 'unknown step frobnicate; expected some of: cpp tests first_run fsdp fsdp_tensor tensor_parallel experts profile'
MANY_GPUS_SECONDS=1h run 2 --device cpu "$work/out"
expect "MANY_GPUS_SECONDS is '1h', expected a number of seconds"
run 2
expect 'usage: many_gpus.sh'
run 2 --frobnicate
expect 'unknown option --frobnicate'
run 0 --help
expect 'TORCHAO_CHECKOUT=<folder>'

echo "== torchao's tests for several GPUs"
checkout=$work/ao
mkdir -p "$checkout/test/float8/test_fsdp2"
for name in test_fsdp2/test_fsdp2 test_dtensor test_fsdp2_tp test_fsdp test_fsdp_compile; do
  echo 'from torchao.float8.config import ScalingType' >"$checkout/test/float8/$name.py"
done
torchao() {
  local expected=$1 code
  shift
  CALLS=$work/calls INGOT_PYTHON_PACKAGE=$work/build/python PYTHON=$work/python "$root/scripts/torchao_tests.sh" "$@" >"$work/output" 2>&1
  code=$?
  [ $code -eq "$expected" ] || { fail "torchao_tests.sh: exit code $code instead of $expected: $*"; cat "$work/output" >&2; }
}
fresh
stub "$work/python" '
  echo "$*" >>$CALLS
  for file in "$@"; do case $file in *.py) head -n 4 "$file" >>$CALLS ;; esac; done
  case $* in *"${BROKEN:-no such}"*) exit 5 ;; *"import fire") exit ${FIRE:-0} ;; *device_count*) exit ${FEWER:-0} ;; esac'
torchao 0 --gpus 4 "$checkout"
expect_call '-m pytest -q -p no:cacheprovider --rootdir'
expect_call 'ingot.float8.replace_torchao()'
expect_call 'from ingot.float8.config import ScalingType'
expect_call '--nproc_per_node 2'
expect_call '--nproc_per_node 4'
expect_call 'test_fsdp.py --compile_fsdp True'
expect_line 'torchao test_fsdp2_tp +[0-9]+ s  passed'
BROKEN=test_dtensor.py FIRE=1 torchao 1 --gpus 2 "$checkout"
expect_line 'torchao test_dtensor +[0-9]+ s  FAILED: exit code 5'
expect 'torchao test_fsdp2_tp skipped: it needs four GPUs'
expect 'torchao test_fsdp, test_fsdp_compile skipped: they need the package fire'
FEWER=1 torchao 2 --gpus 2 "$checkout"
expect 'torchao_tests: --gpus 2: PyTorch sees fewer CUDA devices'
torchao 2 --gpus 1 "$checkout"
expect "--gpus is '1', expected a number from 2 on"
: >"$work/calls"
TORCHAO_ITSELF=1 torchao 0 --gpus 2 "$checkout"
grep -q 'replace_torchao' "$work/calls" && fail 'torchao itself is replaced'
expect_call 'from torchao.float8.config import ScalingType'

echo '== many_gpus.sh gives them the checkout'
fresh
has_gpus 2
TORCHAO_CHECKOUT=$checkout run 0 "$work/out" tests
expect_line 'tests.torchao +[0-9]+ s  passed'

[ $faults -eq 0 ] || { echo "$faults faults" >&2; exit 1; }
