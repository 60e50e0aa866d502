#!/usr/bin/env bash
# test_wheel_check.sh <source tree>
# What scripts/wheel_check.sh says without a wheel, and that only wheels that exist reach pip.
set -u
check=$1/scripts/wheel_check.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
faults=0

fail() { printf 'FAILED: %s\n' "$*" >&2; faults=$((faults + 1)); }
# Notes what it is called with, and installs nothing.
printf '#!/usr/bin/env bash\necho "$*" >>"%s"\nexit 1\n' "$work/calls" >"$work/python"
chmod +x "$work/python"
touch "$work/one.whl" "$work/calls"
cd "$work" || exit 1

# refused <what it says> <arguments>
refused() {
  local says=$1 code
  shift
  PYTHON=$work/python "$check" "$@" >"$work/output" 2>&1
  code=$?
  [ $code -eq 2 ] || fail "exit code $code instead of 2: $*"
  [ "$(cat "$work/output")" = "wheel_check.sh: $says" ] || fail "$* says: $(cat "$work/output")"
}
usage='no wheel is named; usage: wheel_check.sh <output folder> <wheel...> [-- pytest argument...]'
refused "$usage"
refused "$usage" out
refused "$usage" out -- -k cast
refused "there is no file none.whl, expected a wheel" out one.whl none.whl
refused "there is no file no/such.whl, expected a wheel" out no/such.whl -- -k cast
refused "there is no file $work, expected a wheel" out "$work"
[ -e out ] && fail 'a run without a wheel writes'
[ -s calls ] && fail "pip is called: $(cat calls)"

PYTHON=$work/python "$check" out one.whl >output 2>&1
[ $? -eq 2 ] || fail 'a wheel that pip does not install is no failure'
grep -q -- "-m pip install .* $(realpath one.whl)\$" calls || fail "pip is not called: $(cat calls output)"
"$check" --help | grep -q 'WHEEL_CHECK_SECONDS=<n>' || fail '--help does not tell the environment variables'

[ $faults -eq 0 ] || { echo "$faults faults" >&2; exit 1; }
