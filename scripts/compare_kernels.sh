#!/usr/bin/env bash
# scripts/compare_kernels.sh <list before> <list after>
# Tells which kernels' machine code differs between two builds, for changes that must not affect it. The program
# machine_code of a build tree prints such a list. NVRTC's front end runs one compile at a time, so several processes
# make the list in shares:
#
#   cmake --build build/ci --target machine_code
#   for i in 0 1 2 3; do build/ci/tests/machine_code $i/4 > build/after.$i & done; wait; cat build/after.? > build/after
#
# Where only templates change, one build is enough: with INGOT_TEMPLATES it reads them from a folder, such as one of an
# older commit. Exits with 1 if a kernel differs or is missing from one of the lists.
set -euo pipefail
[ $# -eq 2 ] || { sed -n '2,3p' "$0" >&2; exit 2; }

# Each line has a digest, the registers, the bytes spilled (not in older lists), and what the kernel computes.
awk '
  { digest = $1; sub(/^[^ ]+ +[0-9]+( +[0-9]+)? +/, "") }
  FNR == NR { before[$0] = digest; next }
  !($0 in before) { print "only after:  " $0; ++different; next }
  before[$0] != digest { print "differs:     " $0; ++different }
  { seen[$0] = 1; ++same }
  END {
    for (kernel in before) if (!(kernel in seen)) { print "only before: " kernel; ++different }
    printf "%d kernels are in both lists; %d lines above\n", same, different
    exit different > 0
  }' "$1" "$2"
