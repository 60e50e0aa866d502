#!/usr/bin/env bash
# scripts/oldest_torch.sh install | test [pytest argument...]
# The oldest PyTorch that ingot.torch takes, in a separate environment, .venv-oldest. `install` makes it: PyTorch's
# build without CUDA where pip finds one, else the default build, which takes 5 GB. `test` runs the tests of ingot.torch
# and ingot.nn there, with the extension module that PYTHONPATH names, and exits with 77 if there is no such
# environment.
set -euo pipefail
cd "$(dirname "$0")/.."

version=2.7.1
python=.venv-oldest/bin/python

has_torch() { [ -x $python ] && $python -c 'import torch, numpy, pytest' 2> /dev/null; }

case ${1:-} in
  install)
    has_torch && exit 0
    python3 -m venv .venv-oldest
    pip() { $python -m pip install -q --no-compile --disable-pip-version-check "$@" numpy pytest; }
    if ! pip torch==$version+cpu 2> /dev/null && ! pip torch==$version; then
      echo "oldest_torch: PyTorch $version cannot be installed here; the tests with it are skipped"
    fi
    ;;
  test)
    shift
    if ! has_torch; then
      echo "skipped: there is no PyTorch $version in .venv-oldest; scripts/oldest_torch.sh install brings it"
      exit 77
    fi
    exec $python -m pytest -q -p no:cacheprovider python_bindings/tests/test_torch_*.py \
      python_bindings/tests/test_nn_*.py "$@"
    ;;
  *)
    echo "oldest_torch: expected install or test" >&2
    exit 2
    ;;
esac
