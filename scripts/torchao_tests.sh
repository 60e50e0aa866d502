#!/usr/bin/env bash
# scripts/torchao_tests.sh [--gpus n] <checkout of pytorch/ao> [arguments of pytest]
# Runs the tests that torchao publishes for its float8 package with ingot.float8 in the package's place. Without a GPU the
# CPU takes its place, and 180 of the 204 tests can pass, for torchao too: CPU's autocast has another default than the GPU's
# (18), and 6 ask for an error at sizes that Ingot computes. Nothing is written to the checkout.
# --gpus n runs those for several GPUs instead, each with a line that says how it ended: FSDP2, DTensor and tensor parallelism
# on two of them, FSDP2 with tensor parallelism on four if there are, and FSDP1.
# With TORCHAO_ITSELF=1 torchao's own package is tested in the same way, for comparison. PYTHON is the interpreter,
# INGOT_PYTHON_PACKAGE the folder of the package ingot; by default .venv's and build/ci/python.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
gpus=0
if [ "${1-}" = --gpus ]; then
  gpus=${2-}
  case $gpus in '' | *[!0-9]* | 0 | 1) echo "torchao_tests: --gpus is '$gpus', expected a number from 2 on" >&2; exit 2 ;; esac
  shift 2
fi
[ $# -gt 0 ] && [ -d "$1/test/float8" ] || { echo "usage: scripts/torchao_tests.sh [--gpus n] <checkout of pytorch/ao> [pytest arguments]" >&2; exit 2; }
checkout=$(cd "$1" && pwd)
shift
python=${PYTHON:-$root/.venv/bin/python}
package=${INGOT_PYTHON_PACKAGE:-$root/build/ci/python}
[ -d "$package/ingot" ] || { echo "torchao_tests: no package ingot in $package: build the target ingot_python" >&2; exit 2; }

sees_gpus='import sys, torch; sys.exit(torch.cuda.device_count() < int(sys.argv[1]))'
if [ "$gpus" -gt 0 ] && ! "$python" -c "$sees_gpus" "$gpus"; then
  echo "torchao_tests: --gpus $gpus: PyTorch sees fewer CUDA devices" >&2
  exit 2
fi

tests=$(mktemp -d)
trap 'rm -rf "$tests"' EXIT
# copy <name>: with our package in torchao's place. The processes of --gpus have no conftest.py, so each file replaces it for
# torchao's helpers too.
copy() {
  local file=$tests/$(basename "$1").py
  if [ -n "${TORCHAO_ITSELF:-}" ]; then
    cp "$checkout/test/float8/$1.py" "$file"
    return
  fi
  if [ "$gpus" -gt 0 ]; then printf 'import ingot.float8\n\ningot.float8.replace_torchao()\n'; fi >"$file"
  sed 's/\btorchao\.float8\b/ingot.float8/g' "$checkout/test/float8/$1.py" >>"$file"
}
if [ "$gpus" -gt 0 ]; then
  names='test_fsdp2/test_fsdp2 test_dtensor test_fsdp2_tp test_fsdp test_fsdp_compile'
else
  names='test_base test_compile test_auto_filter test_float8_utils'
fi
for name in $names; do copy "$name"; done
cp "$root/python_bindings/tests/torchao_tests_conftest.py" "$tests/conftest.py"
cd "$tests"
export PYTHONPATH="$package:$checkout${PYTHONPATH:+:$PYTHONPATH}"
"$python" -c 'import expecttest' || { echo "torchao_tests: PyTorch's test helpers need it: pip install expecttest" >&2; exit 2; }
if [ "$gpus" -eq 0 ]; then
  "$python" -m pytest -q -p no:cacheprovider --rootdir "$tests" "$@" "$tests"
  exit
fi

failed=0
# run <name> <command ...>
run() {
  local name=$1 begin=$SECONDS outcome=passed
  shift
  timeout -k 10 900 "$@" || { outcome="FAILED: exit code $?"; failed=1; }
  printf 'torchao %-28s %5d s  %s\n' "$name" $((SECONDS - begin)) "$outcome"
}
torchrun=("$python" -m torch.distributed.run --standalone --nproc_per_node)
export NCCL_DEBUG=${NCCL_DEBUG:-WARN}
run test_fsdp2 "$python" -m pytest -q -p no:cacheprovider --rootdir "$tests" "$@" "$tests/test_fsdp2.py"
run test_dtensor "${torchrun[@]}" 2 "$tests/test_dtensor.py"
if [ "$gpus" -ge 4 ]; then run test_fsdp2_tp "${torchrun[@]}" 4 "$tests/test_fsdp2_tp.py"; else echo 'torchao test_fsdp2_tp skipped: it needs four GPUs'; fi
if "$python" -c 'import fire' 2>/dev/null; then
  for compiles in False True; do run "test_fsdp ($compiles)" "$python" "$tests/test_fsdp.py" --compile_fsdp $compiles; done
  run test_fsdp_compile "$python" "$tests/test_fsdp_compile.py"
else
  echo 'torchao test_fsdp, test_fsdp_compile skipped: they need the package fire'
fi
exit $failed