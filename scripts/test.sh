#!/usr/bin/env bash
# scripts/test.sh
# Runs all tests that need no GPU: set-up, build with warnings as errors, ctest (GPU tests report that they are skipped).
# The sanitizers have presets of their own: see CONTRIBUTING.md.
set -euo pipefail
cd "$(dirname "$0")/.."

step() { printf '\n== %s (%d min %02d s so far)\n' "$*" $((SECONDS / 60)) $((SECONDS % 60)); }

if [ $# -gt 0 ]; then
  cmake --preset ci > /dev/null
  entries=$(ctest --preset ci -N -R "$1" | sed -n 's/^ *Test *#[0-9]*: //p')
  [ -n "$entries" ] || { echo "test: no test's name matches '$1'" >&2; exit 1; }
  # The entry runtime.kernel_store is the program test_runtime_kernel_store; shares of a suite are one program. Entries
  # that are scripts have none.
  programs=$(sed -E 's/\.[0-9]+_of_[0-9]+$//; s/\./_/g; s/^/test_/' <<< "$entries" | sort -u)
  targets=$(ninja -C build/ci -t targets all | sed -n 's/^\(test_[^:]*\): phony$/\1/p' | grep -xF "$programs" || true)
  # shellcheck disable=SC2086
  [ -z "$targets" ] || ninja -C build/ci $targets
  INGOT_TESTS_ALL=1 exec ctest --preset ci -R "$1" -j "$(nproc)"
fi

step "set-up"
scripts/setup.sh clang-format-14 doxygen groff-base mandoc zsh  # the last four read comments, man pages and completions
# Python compiles what it imports; compiling all of PyTorch and transformers takes minutes.
pip() { .venv/bin/python -m pip install -q --no-compile --disable-pip-version-check "$@"; }
pip numpy ml_dtypes pytest nanobind scikit-build-core
# What only the tests need is downloaded and unpacked while the build runs.
peers() {
  # PyTorch's build without CUDA: the comparisons with it need no GPU, and the default build takes gigabytes.
  if ! .venv/bin/python -c 'import torch' 2> /dev/null && ! pip torch==2.13.0+cpu; then
    echo "test: the CPU build of PyTorch 2.13.0 cannot be installed here; the comparisons with PyTorch are skipped"
  fi
  # torchao's float8 is what ingot.float8 is compared with, bit by bit; a small wheel of plain Python.
  if ! .venv/bin/python -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torchao") is None)' &&
     ! pip --no-deps torchao==0.18.0; then
    echo "test: torchao 0.18.0 cannot be installed here; the comparisons with it are skipped"
  fi
  # PEFT's adapters train over ingot.nn's frozen layers, transformers' models are loaded from FP8 checkpoints and converted,
  # from configs and without weights; matplotlib draws train_gpt.py's plot. Without what else they would bring.
  if ! .venv/bin/python -c 'import matplotlib, peft, transformers' 2> /dev/null &&
     ! { pip --no-deps peft==0.21.2 accelerate==1.15.0 transformers==4.57.6 huggingface_hub==0.36.2 safetensors==0.8.0 \
           tokenizers==0.22.2 && pip matplotlib psutil PyYAML regex requests tqdm packaging filelock fsspec; }; then
    echo "test: PEFT, transformers or matplotlib cannot be installed here; the tests with them are skipped"
  fi
}
peers &
peers=$!

scripts/oldest_torch.sh install &
oldest_torch=$!

step "build"
cmake --preset ci
cmake --build --preset ci
wait $peers $oldest_torch || true  # tests without them say that they are skipped

step "tests"
ctest --preset ci -j "$(nproc)"
