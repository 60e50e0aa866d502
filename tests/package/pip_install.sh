#!/usr/bin/env bash
# pip_install.sh <source tree> <python>
# What `pip install .` builds and installs: the Python module, the program `ingot` and the documents; and that a source
# distribution and an archive of the repository have headers where the sources look for them.
#
# Environment:
#   INGOT_WHEEL=<yes|no>   install it, which takes minutes, and use it; no: only hold what would be built and installed
#                          against that list (default: no)
set -euo pipefail
source_dir=$1 python=$2

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export CMAKE_GENERATOR=Ninja

step() { printf '\n== %s\n' "$*"; }
fail() { printf 'pip_install: %s\n' "$*" >&2; exit 1; }

if [ "${INGOT_WHEEL:-no}" = yes ]; then
  step "pip install"
  "$python" -m venv --without-pip "$work/venv"
  "$python" -m pip install -q --disable-pip-version-check --no-index --no-deps --no-build-isolation --ignore-installed \
    --prefix "$work/venv" -C build-dir="$work/build" "$source_dir"
  step "the program, from another folder and without the environment that built it"
  cd "$work"
  ingot() { env -u VIRTUAL_ENV INGOT_DEVICE=cpu INGOT_CACHE_DIR="$work/store" "$work/venv/bin/ingot" "$@"; }
  rm -rf "$work/build"
  ingot --version
  ingot info
  ingot show "cast bf16->e4m3fn scale=row out=codes"  # the templates are in it
  version=$("$work/venv/bin/python" -c 'import importlib.metadata as m; print(m.version("ingot"))')
  [ "$(ingot --version)" = "ingot $version" ] || fail "$(ingot --version), but the package is ingot $version"
  exit
fi

# resolves <tree>: the public header, and all that it includes, by nothing but what is in the tree.
resolves() {
  c++ -std=c++20 -M -MF /dev/null -I "$1/src/include" -x c++ - <<< '#include <ingot/ingot.h>' || fail "<ingot/...> does not resolve in $2"
}

step "includes of a source distribution, and of an archive of the repository"
(cd "$source_dir" && "$python" -c 'import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])' "$work") > "$work/log" ||
  { cat "$work/log"; exit 1; }
mkdir "$work/sdist" "$work/archive"
tar xzf "$work"/ingot-*.tar.gz -C "$work/sdist" --strip-components 1
resolves "$work/sdist" "a source distribution"
for field in 'Name: ingot' 'License-Expression: MIT' 'License-File: LICENSE' 'Author: The Ingot authors' 'Requires-Python: >=3.10'; do
  grep -qxF "$field" "$work/sdist/PKG-INFO" || fail "the metadata of a source distribution lacks \"$field\"; pyproject.toml gives it"
done
if find "$work/sdist/src/include" -name '*.cpp' | grep .; then fail "the sources above are in the distribution twice"; fi
if git -C "$source_dir" rev-parse --verify -q HEAD > "$work/log"; then
  git -C "$source_dir" archive HEAD src | tar xf - -C "$work/archive"
  resolves "$work/archive" "an archive of the repository"
fi

step "configure as pip does"
definitions=$("$python" - "$source_dir/pyproject.toml" <<'END'
import sys, tomllib
settings = tomllib.load(open(sys.argv[1], "rb"))["tool"]["scikit-build"]
print("\n".join(f"-D{name}={value}" for name, value in settings["cmake"]["define"].items()))
END
)
mapfile -t definitions <<< "$definitions"
cmake -S "$source_dir" -B "$work/build" -DSKBUILD=2 -DSKBUILD_SCRIPTS_DIR="$work/wheel/scripts" \
  -DSKBUILD_DATA_DIR="$work/wheel/data" \
  -DPython_EXECUTABLE="$python" "${definitions[@]}" > "$work/log" || { cat "$work/log"; exit 1; }

step "what would be built: nothing but these"
built=$(cmake --build "$work/build" --target help | sed -nE 's/^([a-z_]+): phony$/\1/p' | sort | tr '\n' ' ')
echo "$built"
for target in ingot ingot_cli ingot_python; do
  [[ " $built " == *" $target "* ]] || fail "there is no target $target"
done
if grep -oE '(test|bench)_[a-z]+|train_lm' <<< "$built"; then fail "the targets above make the wheel slow to build"; fi

step "what would be installed"
installed=$(cat $(find "$work/build" -name cmake_install.cmake))
for file in wheel/scripts/ingot _core wheel/data/share/doc/ingot; do
  grep -qF "$file" <<< "$installed" || fail "$file is not installed"
done
if grep -qE 'include/ingot|libingot\.a' <<< "$installed"; then fail "the wheel has the headers and the library, too"; fi
echo "the module, the program and the documents"
