#!/usr/bin/env bash
# doxygen_filter.sh <header>: the header with Doxygen's comments. A type without a comment of its own has its header's.
folder=$(dirname "$0")
sed -E -f "$folder/doxygen_comments.sed" "$1" | awk -v header="${1##*/src/include/}" '
  /^(class|struct) [^;]*\{/ && !described { print "/// \\copydoc " header }
  held != "" { print held; held = "" }
  /^template <.*>$/ && !described { held = $0; next }
  !/^template/ { described = /^\/\/\// }
  { print }'
