#!/usr/bin/env bash
# scripts/compare_kernels.sh <list before> <list after>
# Says which kernels' machine code differs between two builds, for changes that are to leave it alone. A list is what
# the program machine_code of a build tree prints; as NVRTC's front end runs one compile at a time, several processes
# make it in shares:
#
#   cmake --build build/ci --target machine_code
#   for i in 0 1 2 3; do build/ci/tests/machine_code $i/4 > build/after.$i & done; wait; cat build/after.? > build/after
#
# Ends with 1 where a kernel differs, or one list has kernels that the other lacks.
set -euo pipefail
[ $# -eq 2 ] || { sed -n '2,3p' "$0" >&2; exit 2; }

# A line: digest, registers, what the kernel computes.
awk '
  { digest = $1; $1 = ""; $2 = ""; sub(/^ +/, "") }
  FNR == NR { before[$0] = digest; next }
  !($0 in before) { print "only after:  " $0; ++different; next }
  before[$0] != digest { print "differs:     " $0; ++different }
  { seen[$0] = 1; ++same }
  END {
    for (kernel in before) if (!(kernel in seen)) { print "only before: " kernel; ++different }
    printf "%d kernels are in both lists; %d lines above\n", same, different
    exit different > 0
  }' "$1" "$2"
