#!/usr/bin/env bash
# scripts/torchao_tests.sh <checkout of pytorch/ao> [arguments of pytest]
# Runs the tests that torchao publishes for its float8 package with ingot.float8 in the package's place. Without a GPU the
# CPU takes its place, and 180 of the 204 tests can pass, for torchao too: CPU's autocast has another default than the GPU's
# (18), and 6 ask for an error at sizes that Ingot computes. Nothing is written to the checkout.
# With TORCHAO_ITSELF=1 torchao's own package is tested in the same way, for comparison. PYTHON is the interpreter,
# INGOT_PYTHON_PACKAGE the folder of the package ingot; by default .venv's and build/ci/python.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
[ $# -gt 0 ] && [ -d "$1/test/float8" ] || { echo "usage: scripts/torchao_tests.sh <checkout of pytorch/ao> [pytest arguments]" >&2; exit 2; }
checkout=$(cd "$1" && pwd)
shift
python=${PYTHON:-$root/.venv/bin/python}
package=${INGOT_PYTHON_PACKAGE:-$root/build/ci/python}
[ -d "$package/ingot" ] || { echo "torchao_tests: no package ingot in $package: build the target ingot_python" >&2; exit 2; }

tests=$(mktemp -d)
trap 'rm -rf "$tests"' EXIT
for name in test_base test_compile test_auto_filter test_float8_utils; do
  if [ -n "${TORCHAO_ITSELF:-}" ]; then
    cp "$checkout/test/float8/$name.py" "$tests"
  else
    sed 's/\btorchao\.float8\b/ingot.float8/g' "$checkout/test/float8/$name.py" > "$tests/$name.py"
  fi
done
cp "$root/python_bindings/tests/torchao_tests_conftest.py" "$tests/conftest.py"
cd "$tests"
export PYTHONPATH="$package:$checkout${PYTHONPATH:+:$PYTHONPATH}"
"$python" -c 'import expecttest' || { echo "torchao_tests: PyTorch's test helpers need it: pip install expecttest" >&2; exit 2; }
"$python" -m pytest -q -p no:cacheprovider --rootdir "$tests" "$@" "$tests"
