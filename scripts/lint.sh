#!/usr/bin/env bash
# scripts/lint.sh [--fix] [format] [tidy]
# Runs clang-format and clang-tidy over our sources, or only the one named. --fix reformats instead of complaining. tidy
# reads the compile commands of build/dev, or of the build tree that $INGOT_BUILD names; quick builds have none of each file.
set -euo pipefail
cd "$(dirname "$0")/.."

fix=0
checks=()
for argument in "$@"; do
  case $argument in
    --fix) fix=1 ;;
    format | tidy) checks+=("$argument") ;;
    *) echo "lint: unknown argument '$argument'; expected --fix, format or tidy" >&2; exit 2 ;;
  esac
done
[ ${#checks[@]} -gt 0 ] || checks=(format tidy)

tool() {  # tool <name>: version 14, which the tree is formatted with, or else the one with the plain name
  command -v "$1-14" || command -v "$1" || { echo "lint: $1 is missing; apt-get install $1-14" >&2; exit 1; }
}

for check in "${checks[@]}"; do
  if [ "$check" = format ]; then
    program=$(tool clang-format)
    mapfile -t files < <(find . -path ./build -prune -o -path './.*/*' -prune -o -regex '.*\.\(cpp\|h\|cuh\)' -print)
    if [ $fix -eq 1 ]; then "$program" -i "${files[@]}"; else "$program" --dry-run -Werror "${files[@]}"; fi
    echo "format: ${#files[@]} files"
  else
    program=$(tool clang-tidy)
    build=${INGOT_BUILD:-build/dev}
    [ -e "$build/compile_commands.json" ] || { echo "lint: no $build/compile_commands.json; cmake --preset dev" >&2; exit 1; }
    mapfile -t files < <(find src tools examples bench python_bindings -name '*.cpp' -not -path '*/consume/*')
    printf '%s\n' "${files[@]}" | xargs -P "$(nproc)" -n 1 "$program" -p "$build" --quiet --warnings-as-errors='*'
    echo "tidy: ${#files[@]} files"
  fi
done
