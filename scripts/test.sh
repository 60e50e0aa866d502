#!/usr/bin/env bash
# scripts/test.sh
# Runs all tests that need no GPU: set-up, build with warnings as errors, ctest (GPU tests report that they are skipped).
# The sanitizers have presets of their own: see CONTRIBUTING.md.
set -euo pipefail
cd "$(dirname "$0")/.."

step() { printf '\n== %s (%d min %02d s so far)\n' "$*" $((SECONDS / 60)) $((SECONDS % 60)); }

step "set-up"
scripts/setup.sh clang-format-14
pip() { .venv/bin/python -m pip install -q --disable-pip-version-check "$@"; }
pip numpy ml_dtypes pytest nanobind scikit-build-core
# PyTorch's build without CUDA: the comparisons with it need no GPU, and the default build takes gigabytes.
if ! .venv/bin/python -c 'import torch' 2> /dev/null && ! pip torch==2.13.0+cpu; then
  echo "test: the CPU build of PyTorch 2.13.0 cannot be installed here; the comparisons with PyTorch are skipped"
fi

step "build"
cmake --preset ci
cmake --build --preset ci

step "tests"
ctest --preset ci -j "$(nproc)"
