#!/usr/bin/env bash
# scripts/wheel_check.sh <output folder> <wheel...> [-- pytest argument...]
# What a user has who has no compiler: installs the wheels (Ingot's, and such as torchao's, which ingot.float8 is compared with)
# beside the PyTorch of python3, takes compilers out of PATH, and runs `ingot info`, the Python programs of the documents, and
# the PyTorch tests that know a GPU. Tests run side by side if pytest-xdist is installed. The output folder gets the logs; a
# test that is running when the time is over counts as not run. Ends with 1 if anything failed or was not run.
#
# Environment:
#   PYTHON=<interpreter>      that has PyTorch and pytest (default: python3)
#   WHEEL_CHECK_JOBS=<n>      tests at once (default: one per core, at most 15)
#   WHEEL_CHECK_SECONDS=<n>   how long the tests may take (default: 1200)
set -u
[ "${1-}" != --help ] || { sed -n '2,/^set -u/{s/^# \{0,1\}//;/^set -u/!p}' "$0"; exit 0; }
fail() { echo "wheel_check.sh: $1" >&2; exit 2; }
out=${1-}
[ $# -eq 0 ] || shift
wheels=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  [ -f "$1" ] || fail "there is no file $1, expected a wheel"
  wheels+=("$(realpath "$1")")
  shift
done
[ $# -eq 0 ] || shift
[ ${#wheels[@]} -gt 0 ] || fail 'no wheel is named; usage: wheel_check.sh <output folder> <wheel...> [-- pytest argument...]'
mkdir -p "$out" || exit 2
out=$(realpath "$out")
cd "$(dirname "$0")/.." || exit 2
python=$(command -v "${PYTHON:-python3}") || fail "no ${PYTHON:-python3}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m pip install -q --no-index --no-deps --no-compile --disable-pip-version-check --target "$work/site" "${wheels[@]}" || exit 2

# All programs of PATH but compilers. Python is called by its own path, where it finds its packages.
mkdir "$work/bin"
IFS=: read -r -a folders <<<"$PATH"
for folder in "${folders[@]}"; do
  for program in "$folder"/*; do
    name=${program##*/}
    case $name in
      *gcc* | *g++* | *clang* | cc | c++ | c89 | c99 | cpp | ld | ld.* | *-ld | nvcc* | cicc | ptxas | python*) ;;
      *) [ -e "$work/bin/$name" ] || ln -s "$program" "$work/bin/$name" ;;
    esac
  done
done
printf '#!/bin/sh\nexec "%s" "$@"\n' "$python" >"$work/bin/python3"
chmod +x "$work/bin/python3"
unset CC CXX CUDA_HOME CUDA_PATH
export PATH=$work/bin:$work/site/bin INGOT_CACHE_DIR=${INGOT_CACHE_DIR:-$work/store} PYTHONPATH=$work/site PYTHONDONTWRITEBYTECODE=1
for compiler in cc c++ gcc g++ clang nvcc; do
  ! command -v $compiler || fail 'PATH still has the compiler above'
done

failed=0
# run <name> <seconds> <command...>
run() {
  local name=$1 limit=$2 begin=$SECONDS code
  shift 2
  timeout -s INT -k 20 "$limit" "$@" >"$out/$name.log" 2>&1
  code=$?
  printf '%-10s exit %d, %d s: %s\n' "$name" $code $((SECONDS - begin)) "$(grep -v '^ *$' "$out/$name.log" | tail -n 1 | cut -c 1-160)"
  return $code
}

run info 60 ingot info || failed=1
run documents 300 python3 tests/layout/run_readme_python.py &  # next to the tests, which take longer
documents=$!
mapfile -t files < <(grep -l cuda python_bindings/tests/test_*.py)
jobs=()
if python3 -c 'import xdist' 2>/dev/null; then
  cores=$(nproc)
  jobs=(-n "${WHEEL_CHECK_JOBS:-$((cores < 15 ? cores : 15))}" --dist worksteal)
fi
PYTHONPATH=$work/site:python_bindings/tests run tests "${WHEEL_CHECK_SECONDS:-1200}" python3 -m pytest -q -p no:cacheprovider -m 'not nightly' \
  "${jobs[@]}" "${files[@]}" "$@" || failed=1
wait $documents || failed=1
grep -E '^(FAILED|ERROR)' "$out/tests.log" | head -n 20
exit $failed
