#!/usr/bin/env bash
# Builds the site of docs/: bash docs/site/build.sh [--serve]
#
# The site is build/site: the pages of docs/ with a search, and an API reference that Doxygen makes of
# the comments in include/. A link that leads nowhere is an error, and so is a page that looks other
# than where it is read as plain Markdown. --serve shows the site at http://127.0.0.1:8001/ then.
#
# Installs Doxygen (apt-get) and, into build/site-venv, the pinned packages of requirements.txt (pip).
# Ends with 77, which CTest counts as skipped, where one of them cannot be installed.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source .ci/packages.sh
source .ci/clients.sh

if [ $# -gt 0 ] && [ "$1" != --serve ]; then
  sed -n '2,/^set /{/^set /d; s/^# \{0,1\}//; p}' docs/site/build.sh
  exit $([ "$1" = --help ] && echo 0 || echo 2)
fi
if ! install_packages doxygen:doxygen || ! command -v doxygen > /dev/null; then
  echo "skipped: there is no doxygen"
  exit 77
fi
if ! python=$(NANOVLLM_CLIENT_PYTHON='' find_client_python "$PWD/build/site-venv" \
    "$PWD/docs/site/requirements.txt"); then
  echo "skipped: pip cannot install docs/site/requirements.txt"
  exit 77
fi

pages=build/site-pages
rm -rf "$pages" build/site-doxygen
mkdir -p "$pages" build/site-doxygen
"$python" -B docs/site/stage.py . "$pages"
"$python" -B docs/site/comments.py include build/site-doxygen/include
{
  cat docs/site/Doxyfile
  echo "INPUT = build/site-doxygen/include"
  echo "STRIP_FROM_PATH = build/site-doxygen/include"
  echo "OUTPUT_DIRECTORY = build/site-doxygen"
} | doxygen - > build/site-doxygen/log 2>&1 || { cat build/site-doxygen/log; exit 1; }
# Other warnings are about C++ and CUDA that Doxygen does not know.
if grep -E 'tag </?[A-Za-z]+> found|command|comment block' build/site-doxygen/log |
    grep -v 'of command @param is not found'; then
  echo "Doxygen reads these comments as something else than text"
  exit 1
fi
"$python" -B docs/site/api.py build/site-doxygen/xml include "$pages"
export PYTHONDONTWRITEBYTECODE=1 NO_MKDOCS_2_WARNING=1
"$python" -m mkdocs build --strict --clean --config-file docs/site/mkdocs.yml 2>&1 |
  { grep -vE '^(INFO|$)' || true; }
echo "build/site/index.html"
if [ "${1:-}" = --serve ]; then
  echo "http://127.0.0.1:8001/"
  exec "$python" -m http.server --bind 127.0.0.1 --directory build/site 8001
fi
