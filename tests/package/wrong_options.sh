#!/usr/bin/env bash
# wrong_options.sh <source tree> <cmake> <C++ compiler>
# A build option that cannot be met ends the configuration with a message that names it.
set -eu
root=$1 cmake=$2 compiler=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# refused <option> <words...>: the words are in the message, whose lines CMake may break anywhere.
refused() {
  local option=$1 message word
  shift
  rm -rf "$work/build"
  if "$cmake" -S "$root" -B "$work/build" -G Ninja -DCMAKE_CXX_COMPILER="$compiler" "$option" > "$work/log" 2>&1; then
    echo "FAILED: $option was accepted" >&2
    exit 1
  fi
  message=$(tr -s ' \n' ' ' < "$work/log")
  for word in "$@"; do
    [[ $message == *"$word"* ]] || { cat "$work/log" >&2; echo "FAILED: no \"$word\" for $option" >&2; exit 1; }
  done
}

refused -DINGOT_CUDA_ROOT="$work/no_toolkit" "INGOT_CUDA_ROOT is $work/no_toolkit" 'nvrtc.h, cublasLt.h and nv/target' \
  'leave the option empty'
# As on a machine without these packages.
printf 'set(CMAKE_DISABLE_FIND_PACKAGE_%s ON CACHE BOOL "")\n' fmt CLI11 > "$work/missing.cmake"
refused "-C$work/missing.cmake" 'Debian packages are missing: libfmt-dev libfmt9 libcli11-dev;' \
  'set the environment variable CMAKE_PREFIX_PATH to <folder>/usr'
refused -DINGOT_SANITIZE=adress 'INGOT_SANITIZE is adress' 'expected "address,undefined" or "thread"'
