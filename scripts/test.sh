#!/usr/bin/env bash
# scripts/test.sh
# All tests that need no GPU: set-up, build with warnings as errors, ctest (GPU tests report that they are skipped).
# Sanitizers have presets of their own: CONTRIBUTING.md.
set -euo pipefail
cd "$(dirname "$0")/.."

step() { printf '\n== %s (%d min %02d s so far)\n' "$*" $((SECONDS / 60)) $((SECONDS % 60)); }

step "set-up"
scripts/setup.sh clang-format-14
pip() { .venv/bin/python -m pip install -q --disable-pip-version-check "$@"; }
pip numpy ml_dtypes pytest nanobind scikit-build-core
# The build without CUDA: the comparisons with PyTorch need no GPU, and the default build is gigabytes.
if ! .venv/bin/python -c 'import torch' 2> /dev/null && ! pip torch==2.13.0+cpu; then
  echo "test: no CPU build of PyTorch 2.13.0 to be had here; the comparisons with PyTorch are skipped"
fi

step "build"
cmake --preset ci
cmake --build --preset ci

step "tests"
ctest --preset ci -j "$(nproc)"
