#!/usr/bin/env bash
# scripts/setup.sh [debian package...]
# Prepares a machine for building Ingot: installs the Debian packages that are missing (ours and those named), makes
# .venv, and, if there is no CUDA toolkit, installs CUDA's headers, NVRTC and cuBLASLt there from Python wheels. Running
# it again takes a second.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(g++ cmake ninja-build ccache python3 python3-venv python3-dev ca-certificates
          libfmt-dev libcli11-dev nlohmann-json3-dev libxxhash-dev libboost-dev bible-kjv "$@")
missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  if [ "$(id -u)" -ne 0 ]; then
    echo "setup: these Debian packages are missing; as root: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  echo "setup: installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends "${missing[@]}" > /dev/null
fi

[ -x .venv/bin/python ] || python3 -m venv .venv

# Looks in the same order as cmake/dependencies.cmake. (The tests include cuda_fp8.h, which includes nv/target.)
has_cuda() {
  [ -e "$1/include/cuda.h" ] && [ -e "$1/include/nvrtc.h" ] && [ -e "$1/include/cublasLt.h" ] &&
    { [ -e "$1/include/nv/target" ] || [ -e "$1/include/cccl/nv/target" ]; }
}
for root in "${INGOT_CUDA_ROOT:-}" "${CUDA_PATH:-}" "${CUDA_HOME:-}" /usr/local/cuda \
            .venv/lib/python3*/site-packages/nvidia/cu13; do
  if [ -n "$root" ] && has_cuda "$root"; then
    echo "setup: CUDA headers in $root"
    exit 0
  fi
done
echo "setup: no CUDA toolkit has cuda.h, nvrtc.h, cublasLt.h and nv/target; installing headers, NVRTC and cuBLASLt from Python wheels"
.venv/bin/python -m pip install -q --disable-pip-version-check --no-deps \
  nvidia-cublas==13.1.0.3 nvidia-cuda-nvrtc==13.0.88 nvidia-cuda-runtime==13.0.96 nvidia-cuda-crt==13.0.88 \
  nvidia-cuda-cccl==13.0.85
