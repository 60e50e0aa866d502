#!/usr/bin/env bash
# test_integrations.sh <source tree>
# Runs scripts/integrations.sh with a python3 and environments that stand in for pip's: what is installed and run, and what
# counts as a failure.
set -u
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
faults=0

fail() { printf 'FAILED: %s\n' "$*" >&2; faults=$((faults + 1)); }
expect_line() { grep -qxE -e "$1" "$work/output" || { fail "the output has no line \"$1\":"; cat "$work/output" >&2; }; }
expect_calls() { [ "$(grep -cF -e "$2" "$work/calls")" = "$1" ] || { fail "not $1 calls of: $2"; cat "$work/calls" >&2; }; }

mkdir -p "$work/scripts" "$work/path" "$work/python_bindings/tests/environments"
cp "$1/scripts/integrations.sh" "$work/scripts"
for name in lightning quark transformers9; do echo "$name==1" >"$work/python_bindings/tests/environments/$name.txt"; done
# `python3 -m venv <folder>` makes an environment whose python is this program too.
cat >"$work/path/python3" <<'PROGRAM'
#!/usr/bin/env bash
echo "$*" >>"$CALLS"
case $* in
  "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  *"${BROKEN:-no such}"*) echo 'what went wrong'; exit 1 ;;
  *pytest*) echo "${SAYS:-3 passed, 2 skipped} in 1.00s" ;;
esac
PROGRAM
chmod +x "$work/path/python3"

# run <exit code> <arguments>
run() {
  local expected=$1 code
  shift
  : >"$work/calls"
  CALLS=$work/calls PATH=$work/path:$PATH PYTHONPATH=$work "$work/scripts/integrations.sh" "$@" >"$work/output" 2>&1
  code=$?
  [ $code -eq "$expected" ] || { fail "exit code $code instead of $expected: $*"; cat "$work/output" >&2; }
}

echo '== all are installed, by their exact versions, and tested'
run 0
for name in lightning quark transformers9; do expect_line "integration $name +[0-9]+ s  passed"; done
expect_calls 3 '--no-deps -r python_bindings/tests/environments/'
expect_calls 1 'test_integrations.py -k test_lightning'
expect_calls 1 'test_nn_checkpoint_layouts.py -k test_quark_writes'

echo '== only what has changed is installed again'
echo 'quark==2' >"$work/python_bindings/tests/environments/quark.txt"
run 0 quark lightning
expect_calls 1 '--no-deps -r'
expect_calls 1 'environments/quark.txt'

echo '== what cannot be imported, tests that fail, and tests of which none ran'
BROKEN='import quark.torch' run 1
expect_line 'integration quark +[0-9]+ s  FAILED: import quark.torch'
expect_line 'what went wrong'
expect_line 'integration transformers9 +[0-9]+ s  passed'
BROKEN='test_quark_writes' run 1 quark
expect_line 'integration quark +[0-9]+ s  FAILED: its tests'
SAYS='1 skipped, 8 deselected' run 1 quark
expect_line 'integration quark +[0-9]+ s  FAILED: no test ran'

echo '== pip that fails leaves nothing that counts as installed'
echo 'quark==3' >"$work/python_bindings/tests/environments/quark.txt"
BROKEN='pip install' run 1 quark
expect_line 'integration quark +[0-9]+ s  FAILED: pip could not install it'
run 0 quark
expect_calls 1 '--no-deps -r'

echo '== a name that is none'
run 2 torch
expect_line "integrations: 'torch' is no file of python_bindings/tests/environments"

[ $faults -eq 0 ] || { echo "$faults faults" >&2; exit 1; }
