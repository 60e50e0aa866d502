#!/usr/bin/env bash
# scripts/site.sh [pictures]
# Builds the site of the documents, with API pages of Python and C++, in build/site, and checks all of its links. "pictures"
# also looks at ten pages in a headless browser, wide and narrow, and writes what it sees to build/site_pictures. Its tools are in
# an environment of their own, build/site_venv; C++ needs Doxygen, pictures Chromium, both of Debian (exit code 77 without).
set -euo pipefail
cd "$(dirname "$0")/.."

[ $# -eq 0 ] || [ "$*" = pictures ] || { echo "site: unknown argument '$*'; expected pictures" >&2; exit 2; }
command -v doxygen >/dev/null || { echo "skipped: no Doxygen: apt-get install doxygen" >&2; exit 77; }

venv=build/site_venv
if ! cmp -s scripts/site/requirements.txt $venv/requirements.txt; then
  python3 -m venv --clear $venv
  $venv/bin/pip install --quiet --requirement scripts/site/requirements.txt || { echo "skipped: no packages for the site" >&2; exit 77; }
  cp scripts/site/requirements.txt $venv/
fi

$venv/bin/python -B scripts/site/pages.py build/site_pages
cmake -DOUT="$PWD/build/site_cpp" -P cmake/api_pages.cmake
cp -r build/site_cpp/api/html build/site_pages/cpp
NO_MKDOCS_2_WARNING=1 $venv/bin/mkdocs --quiet build --strict --clean --config-file docs/mkdocs.yml
$venv/bin/python -B scripts/site/check_links.py build/site
if [ "$*" = pictures ]; then $venv/bin/python -B scripts/site/pictures.py build/site build/site_pictures; fi
