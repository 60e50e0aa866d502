#!/usr/bin/env bash
# install_and_consume.sh <source tree> <build tree> <c++ compiler> [compiler launcher]
# Installs the build and uses it as a stranger would: each header on its own, each installed example, a program that uses
# each part, the examples that train and generate, find_package, add_subdirectory.
#
# Environment:
#   INGOT_EMBED=yes   compile each header on its own, not a fifth of them, and build all of Ingot as a part of the user's
#                     project, which takes minutes, instead of only the user's own source
set -euo pipefail
source_dir=$1 build_dir=$2 cxx=$3 launcher=${4:-}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset CPATH CPLUS_INCLUDE_PATH CMAKE_PREFIX_PATH ingot_DIR
export CXX=$cxx CMAKE_GENERATOR=Ninja CMAKE_CXX_COMPILER_LAUNCHER=$launcher CMAKE_BUILD_TYPE=None

step() { printf '\n== %s\n' "$*"; }
fail() { printf 'install_and_consume: %s\n' "$*" >&2; exit 1; }

step "install, then move: a package may not know where it was made"
cmake --install "$build_dir" --prefix "$work/first" > "$work/install.log" || { cat "$work/install.log"; exit 1; }
mv "$work/first" "$work/prefix"
if grep -rlF -e "$source_dir" -e "$work/first" "$work/prefix" --include='*.cmake' --include='*.h'; then
  fail "the files above hold a path of the machine that built them"
fi
if grep -rl -e fmt -e nlohmann -e xxhash "$work/prefix" --include='*.cmake' --include='*.h'; then
  fail "the files above name a private dependency"
fi

step "the program and its benchmarks"
has() { grep -qx "$1:BOOL=ON" "$build_dir/CMakeCache.txt"; }
if has INGOT_TOOLS; then "$work/prefix/bin/ingot" --version; fi
if has INGOT_TOOLS && has INGOT_BENCH; then
  if "$work/prefix/bin/ingot" bench --list | grep "(not built)"; then fail "the benchmarks above are not installed"; fi
  "$work/prefix/bin/ingot" bench gemm --list | grep "wqkv 16384x8192x1280" > /dev/null ||
    fail "ingot bench gemm --list does not run"
fi

# Headers that include each other share a translation unit (header_chains.py): the standard library, which is most of
# what the compiler reads, is read a third as often.
step "each installed header on its own, with nothing of CUDA on the include path"
python3 "$source_dir/tests/package/header_chains.py" "$work/prefix/include" > "$work/chains"
headers=$(wc -w < "$work/chains")
[ "$headers" -ge 20 ] || fail "only $headers headers are installed"
[ "$headers" -eq "$(find "$work/prefix/include" -name '*.h' | wc -l)" ] || fail "header_chains.py leaves headers out"
# In CI a fixed fifth of the chains, by the hash of their first header, and all headers together; nightly every chain.
units=0
while IFS= read -r chain; do
  if [ "${INGOT_EMBED:-no}" != yes ]; then
    hash=$(cksum <<< "${chain%% *}")
    [ $((${hash%% *} % 5)) -eq 0 ] || [ "$(wc -w <<< "$chain")" -eq "$headers" ] || continue
  fi
  for header in $chain; do printf '#include <%s>\n#include <%s>\n' "$header" "$header"; done > "$work/header.cpp"
  "$cxx" -std=c++20 -fsyntax-only -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror -I "$work/prefix/include" \
    "$work/header.cpp" || fail "of the headers $chain one does not compile on its own"
  units=$((units + 1))
done < <(cat "$work/chains"; tr '\n' ' ' < "$work/chains"; echo)
echo "$headers headers, $units translation units of $(wc -l < "$work/chains") and one of all"
[ "$units" -ge 4 ] || fail "only $units translation units were compiled"

# (examples/consume is built below.) The templates are there for a user's own kernels.
step "each installed example, with nothing but the package"
check=(-fsyntax-only)
if has INGOT_EXAMPLES; then check=(-M -MF /dev/null); fi  # which have been compiled against the same headers
examples=0
while IFS= read -r file; do
  "$cxx" -std=c++20 "${check[@]}" -I "$work/prefix/include" -I "$work/prefix/include/ingot/templates" -x c++ "$file" ||
    fail "${file#"$work/prefix/"} is installed but does not compile against the installed headers"
  examples=$((examples + 1))
done < <(find "$work/prefix" -path '*/examples/*' \( -name '*.cpp' -o -name '*.h' -o -name '*.cuh' \) -not -path '*/consume/*')
[ "$examples" -ge 3 ] || fail "only $examples examples are installed"
echo "$examples examples"

step "a program that uses each part, linked to the installed library"
"$cxx" -std=c++20 -O0 -I "$work/prefix/include" "$source_dir/tests/package/use_parts.cpp" -o "$work/use_parts" \
  "$(find "$work/prefix" -name libingot.a)" -pthread -ldl
"$work/use_parts"

# These have their own command lines and files, so they also need CLI11, fmt and nlohmann-json, and the text of their
# kernels, which the build makes. (Two files of train_lm need xxHash, and nothing of Ingot's that the others do not.) The
# build has compiled them against the same headers, so that what is left to see is whether all of those are installed: the
# preprocessor suffices.
if has INGOT_EXAMPLES; then
  step "examples/generate, lora and train_lm, with the installed headers"
  mkdir "$work/cuda"
  printf '#error "an example needs nothing of CUDA"\n' > "$work/cuda/cuda.h"
  (cd "$source_dir/examples" && ls generate/*.cpp common/*.cpp lora/*.cpp training/*.cpp train_lm/{data_parallel,model,prepare,ranks}.cpp) | xargs -P "$(nproc)" -I{} "$cxx" -std=c++20 -M -MF /dev/null \
    -DFMT_HEADER_ONLY -I "$work/cuda" -I "$work/prefix/include" -I "$work/prefix/include/ingot/templates" -I "$source_dir/examples" \
    -I "$source_dir/examples/common" -I "$build_dir/examples" "$source_dir/examples/{}" ||
    fail "an example does not compile against the installed headers"
fi

step "links of the installed documents"
links=0
while IFS= read -r document; do
  while IFS= read -r target; do
    [ -e "$(dirname "$document")/$target" ] || fail "${document#"$work/prefix/"} points to $target, which is not installed"
    links=$((links + 1))
  done < <(grep -oE '\]\([^)#: ]+' "$document" | sed 's/^](//')
done < <(find "$work/prefix" -name '*.md')
[ "$links" -ge 10 ] || fail "only $links links were found in the installed documents"
echo "$links links"

step "find_package"
cmake -S "$source_dir/examples/consume" -B "$work/find_package" -DCMAKE_PREFIX_PATH="$work/prefix"
cmake --build "$work/find_package"
"$work/find_package/consume"

step "add_subdirectory"
cmake -S "$source_dir/examples/consume" -B "$work/add_subdirectory" -DINGOT_SOURCE_DIR="$source_dir"
if cmake --build "$work/add_subdirectory" --target help | grep -E 'test_|ingot_cli'; then
  fail "a project that embeds Ingot gets the targets above, which are our own business"
fi
if [ "${INGOT_EMBED:-no}" = yes ]; then
  cmake --build "$work/add_subdirectory"
  "$work/add_subdirectory/consume"
else
  cmake --build "$work/add_subdirectory" --target CMakeFiles/consume.dir/main.cpp.o
fi
