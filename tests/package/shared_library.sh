#!/usr/bin/env bash
# shared_library.sh <source tree> <build tree> <c++ compiler>
# Installs libingot.so and uses it as a stranger would: what it exports, its name, a program that links it.
#
# Environment:
#   INGOT_SHARED_BUILD=<yes|no>   configure and build it with BUILD_SHARED_LIBS=ON, which takes minutes; no: take the one
#                                 that the build tree has linked of the static library's objects (default: no)
set -euo pipefail
source_dir=$1 build_dir=$2 cxx=$3

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset CPATH CPLUS_INCLUDE_PATH CMAKE_PREFIX_PATH LD_LIBRARY_PATH ingot_DIR
export CXX=$cxx CMAKE_GENERATOR=Ninja

step() { printf '\n== %s\n' "$*"; }
fail() { printf 'shared_library: %s\n' "$*" >&2; exit 1; }
install() { cmake --install "$@" --prefix "$prefix" > "$work/install.log" || { cat "$work/install.log"; exit 1; }; }

prefix=$work/prefix
if [ "${INGOT_SHARED_BUILD:-no}" = yes ]; then
  step "build with BUILD_SHARED_LIBS=ON"
  cmake -S "$source_dir" -B "$work/build" -DBUILD_SHARED_LIBS=ON -DINGOT_QUICK_BUILD=ON -DCMAKE_BUILD_TYPE=Release \
    -DINGOT_TESTS=OFF -DINGOT_TOOLS=OFF -DINGOT_BENCH=OFF -DINGOT_EXAMPLES=OFF
  cmake --build "$work/build"
  install "$work/build"
else
  step "install"
  install "$build_dir"
  rm "$prefix"/lib*/libingot.a "$prefix"/lib*/cmake/ingot/ingotTargets*.cmake
  install "$build_dir" --component ingot_shared
  mv "$prefix"/lib*/cmake/ingot-shared/* "$prefix"/lib*/cmake/ingot/
fi
library=$(find "$prefix" -name libingot.so)
[ -n "$library" ] || fail "no libingot.so is installed"
[ -z "$(find "$prefix" -name libingot.a)" ] || fail "libingot.a is installed, too"

step "its name and what it exports"
version=$(sed -nE 's/^#define INGOT_VERSION_PARTS ([0-9]+), ([0-9]+), ([0-9]+)$/\1.\2.\3/p' "$prefix/include/ingot/version.h")
readelf -d "$library" | grep -F "[libingot.so.${version%.*}]" || fail "the SONAME is not libingot.so.${version%.*}"
nm -D --defined-only -C "$library" > "$work/names"
python3 -B "$source_dir/tests/layout/check_exports.py" "$source_dir" "$work/names"

step "find_package"
cmake -S "$source_dir/examples/consume" -B "$work/find_package" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_BUILD_TYPE=Debug
cmake --build "$work/find_package"
readelf -d "$work/find_package/consume" | grep -F "NEEDED" | grep -F libingot.so || fail "consume does not link libingot.so"
"$work/find_package/consume"

step "errors and types across the library's boundary"
"$cxx" -std=c++20 -O0 -I "$prefix/include" "$source_dir/tests/package/use_shared.cpp" -o "$work/use_shared" \
  -L "$(dirname "$library")" -lingot -Wl,-rpath,"$(dirname "$library")"
"$work/use_shared"

step "a program that uses each part"
"$cxx" -std=c++20 -O0 -I "$prefix/include" "$source_dir/tests/package/use_parts.cpp" -o "$work/use_parts" \
  -L "$(dirname "$library")" -lingot -Wl,-rpath,"$(dirname "$library")"
"$work/use_parts"

step "what the inline functions of the public headers call"
printf '#include <ingot/ingot.h>\n' > "$work/all.cpp"
"$cxx" -std=c++20 -O0 -fkeep-inline-functions -I "$prefix/include" -c "$work/all.cpp" -o "$work/all.o"
nm -u "$work/all.o" | sed -n 's/^ *U \(_ZNK\?5ingot.*\)/\1/p' | sort > "$work/called"
nm -D --defined-only "$library" | sed 's/.* //' | sort > "$work/exported"
[ -s "$work/called" ] || fail "the inline functions call nothing of the library: this check looks in the wrong place"
missing=$(comm -23 "$work/called" "$work/exported" | c++filt)
[ -z "$missing" ] || fail "inline functions call what is not exported: $missing"
