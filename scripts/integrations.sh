#!/usr/bin/env bash
# scripts/integrations.sh [name ...]
# Tests ingot.integrations, and that Ingot reads what AMD Quark writes, in all environments of
# python_bindings/tests/environments, or in those named. The libraries need versions of others that exclude each other, so each
# file there has the exact versions of one library and of all that it needs. They are installed in build/environments/<name>, and
# again when the file has changed. Ends with 1 if an environment or a test fails. The package ingot is that of PYTHONPATH, or else
# of build/ci/python.
set -uo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH=${PYTHONPATH:-$PWD/build/ci/python} PYTHONPYCACHEPREFIX=$PWD/build/pycache PYTHONDONTWRITEBYTECODE=''
locks=python_bindings/tests/environments tests=python_bindings/tests

# selected <name>: what has to be importable, and pytest's arguments.
selected() {
  case $1 in
    transformers*)
      needed=transformers
      arguments=("$tests"/test_{transformers,experts,record,nn_convert,nn_checkpoint,nn_checkpoint_stacks,nn_checkpoint_renames,integrations}.py) ;;
    lightning) needed=lightning.pytorch arguments=("$tests/test_integrations.py" -k test_lightning) ;;
    torchtitan) needed=torchtitan.models.llama3 arguments=("$tests/test_integrations.py" -k test_torchtitan) ;;
    axolotl) needed=axolotl.cli.train arguments=("$tests/test_integrations.py" -k test_axolotl) ;;
    vllm) needed=vllm.model_executor.layers.linear arguments=("$tests/test_integrations.py" -k test_vllm) ;;
    quark) needed=quark.torch arguments=("$tests/test_nn_checkpoint_layouts.py" -k test_quark_writes) ;;
    *) return 1 ;;
  esac
}

# install <name> <folder>
install() {
  local lock=$locks/$1.txt
  cmp -s "$lock" "$2/lock.txt" && return 0
  rm -rf "$2"
  python3 -m venv "$2" && "$2/bin/python" -m pip install -q --no-compile --disable-pip-version-check --no-deps -r "$lock" &&
    cp "$lock" "$2/lock.txt"
}

names=("$@")
if [ $# -eq 0 ]; then for lock in "$locks"/*.txt; do names+=("$(basename "$lock" .txt)"); done; fi
for name in "${names[@]}"; do
  { selected "$name" && [ -f "$locks/$name.txt" ]; } || { echo "integrations: '$name' is no file of $locks" >&2; exit 2; }
done

failed=0
for name in "${names[@]}"; do
  selected "$name"
  begin=$SECONDS folder=build/environments/$name outcome=passed
  if ! install "$name" "$folder"; then
    outcome='FAILED: pip could not install it'
  elif ! VLLM_TARGET_DEVICE=cpu "$folder/bin/python" -c "import $needed" > "$folder/import.log" 2>&1; then
    tail -n 3 "$folder/import.log"
    outcome="FAILED: import $needed"
  elif ! "$folder/bin/python" -m pytest -q -rs -p no:cacheprovider "${arguments[@]}" | tee "$folder/tests.log"; then
    outcome='FAILED: its tests'
  elif ! grep -q '[0-9] passed' "$folder/tests.log"; then  # pytest ends with 0 when all are skipped
    outcome='FAILED: no test ran'
  fi
  [ "$outcome" = passed ] || failed=1
  printf 'integration %-14s %5d s  %s\n' "$name" $((SECONDS - begin)) "$outcome"
done
exit $failed
