#!/usr/bin/env bash
# scripts/demo.sh [options of train_lm]
# Trains a small language model twice, in bf16 and in FP8, starting from a fresh Debian machine: set-up, build, training.
set -euo pipefail
cd "$(dirname "$0")/.."

case " $* " in
  *" -h "* | *" --help "*)
    echo 'usage: scripts/demo.sh [options of train_lm]'
    echo 'Sets the machine up, builds, and trains a small language model in bf16 and in FP8.'
    echo 'The options, once it is built: build/release/examples/train_lm --help'
    exit
    ;;
esac

scripts/setup.sh
cmake --preset release
cmake --build --preset release --target train_lm ingot_cli
mkdir -p build/demo
build/release/examples/train_lm --out build/demo "$@"
