#!/usr/bin/env bash
# scripts/test.sh                    what CI runs: set-up, build with warnings as errors, and the tests that need no GPU
# scripts/test.sh nightly [<name>]   all that CI leaves out (label nightly): it says what that is, builds it and runs it
# scripts/test.sh <name>             sets up, builds and runs the tests of CI whose names match
# Every run of the same tree runs the same tests. GPU tests are built nightly, and scripts/gpu_check.sh runs them. The
# sanitizers have their own presets: see CONTRIBUTING.md.
set -euo pipefail
cd "$(dirname "$0")/.."

# Thirty interpreters of the tests import PyTorch: with its bytecode that takes half of the time. None of it in the tree.
export PYTHONDONTWRITEBYTECODE='' PYTHONPYCACHEPREFIX=$PWD/build/pycache

step() { printf '\n== %s (%d min %02d s so far)\n' "$*" $((SECONDS / 60)) $((SECONDS % 60)); }

# entries <preset> <name>: ctest's entries of a preset whose names match, or an error.
entries() {
  local found
  found=$(ctest --preset "$1" -N -R "$2" | sed -n 's/^ *Test *#[0-9]*: //p')
  [ -n "$found" ] || { echo "test: no test's name matches '$2'" >&2; exit 1; }
  printf '%s\n' "$found"
}

# words_of <preset> <name>: the programs that these entries name; for those that import the package, its targets.
words_of() {
  entries "$1" "$2" | python3 -c '
import pathlib, re, sys
entries = set(sys.stdin.read().split())
for file in pathlib.Path("build/ci").rglob("CTestTestfile.cmake"):
    text = file.read_text()
    for name, command in re.findall(r"^add_test\(\[=\[(.*?)\]=\] (.*)\)$", text, re.M):
        if name in entries:
            print(*(pathlib.Path(word).name for word in re.findall(r"\"([^\"]*/[^\"]*)\"", command)), sep="\n")
    for name, properties in re.findall(r"^set_tests_properties\(\[=\[(.*?)\]=\] (.*)\)$", text, re.M):
        if name in entries and "PYTHONPATH=" in properties:
            print("ingot_python", "ingot_cli", sep="\n")'
}

# build_for <preset> <name>: what these entries need.
build_for() {
  local words targets
  words=$(words_of "$1" "$2")
  targets=$(ninja -C build/ci -t targets all | sed -n 's/^\([a-z][a-z0-9_]*\): phony$/\1/p' | grep -xF "$words" || true)
  # shellcheck disable=SC2086
  [ -z "$targets" ] || ninja -C build/ci $targets
}

# run_tests <ctest argument...>: the slowest twenty come before ctest's closing lines.
run_tests() {
  ctest "$@" -j "$(nproc)" | awk '
    function table() {
      print "\nThe slowest twenty, in seconds:"
      fflush()
      sort = "sort -rn | head -n 20"
      for (name in seconds) printf "%8.2f  %s\n", seconds[name], name | sort
      close(sort)
      print ""
    }
    /^ *[0-9]+\/[0-9]+ Test +#[0-9]+: / { at = index($0, ": "); name = substr($0, at + 2); sub(/ .*/, "", name); seconds[name] = $(NF - 1) }
    /^[0-9]+% tests passed/ { table() }
    { print; fflush() }'
}

# Python compiles what it imports; compiling all of PyTorch and transformers takes minutes.
pip() { .venv/bin/python -m pip install -q --no-compile --disable-pip-version-check "$@"; }
tools() { pip numpy ml_dtypes pytest nanobind scikit-build-core; }
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
  # from configs and without weights; Lightning trains with Ingot's plugin; matplotlib draws train_gpt.py's plot. Without what
  # else they would bring.
  if ! .venv/bin/python -c 'import importlib.util as u, sys; sys.exit(None in map(u.find_spec,
           ("matplotlib", "peft", "transformers", "pytorch_lightning", "httpx")))' &&
     ! { pip --no-deps peft==0.21.2 accelerate==1.15.0 transformers==5.17.0 huggingface_hub==1.33.0 safetensors==0.8.0 \
           tokenizers==0.23.3 pytorch-lightning==2.6.6 lightning-utilities==0.15.3 torchmetrics==1.9.0 &&
         pip matplotlib psutil PyYAML regex httpx tqdm packaging filelock fsspec; }; then
    echo "test: PEFT, transformers, Lightning or matplotlib cannot be installed here; the tests with them are skipped"
  fi
}

if [ $# -gt 0 ] && [ "$1" != nightly ]; then
  scripts/setup.sh
  .venv/bin/python -c 'import ml_dtypes, nanobind, numpy, pytest, scikit_build_core' 2> /dev/null || tools
  cmake --preset ci > /dev/null
  entries ci "$1" > /dev/null
  if words_of ci "$1" | grep -qx ingot_python; then peers; fi
  build_for ci "$1"
  exec ctest --preset ci -R "$1" -j "$(nproc)"
fi

preset=${1:-ci}
name=${2:-.}
step "set-up"
packages=(clang-format-14 doxygen)
[ "$preset" = ci ] || packages+=(clang-tidy-14)
scripts/setup.sh "${packages[@]}"
tools
peers &
peers=$!

oldest_torch=
if [ "$preset" = nightly ]; then
  scripts/oldest_torch.sh install &
  oldest_torch=$!
fi

step "build"
cmake --preset "$preset"
if [ "$preset" = nightly ]; then
  printf '\nNightly tests:\n%s\n\n' "$(entries nightly "$name")"
fi
if [ "$name" = . ]; then cmake --build --preset "$preset"; else build_for "$preset" "$name"; fi
wait $peers $oldest_torch || true  # tests without them say that they are skipped

linted=0
if [ "$preset" = nightly ] && [ "$name" = . ]; then
  step "clang-tidy"  # which needs the compile commands of each file, and the examples' kernels as text
  { cmake --preset dev && cmake --build --preset dev --target example_texts && scripts/lint.sh tidy; } || linted=1
fi

step "tests"
run_tests --preset "$preset" -R "$name"
exit $linted
