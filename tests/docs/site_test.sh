#!/usr/bin/env bash
# Runs site_test.py with the packages of the site, which docs/site/build.sh has installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
python=build/site-venv/bin/python
if [ ! -x "$python" ] || [ ! -e build/site/index.html ]; then
  echo "skipped: docs/site/build.sh has made no site"
  exit 77
fi
exec "$python" -B tests/docs/site_test.py
