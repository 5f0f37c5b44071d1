#!/usr/bin/env bash
# Runs one test case: run_case.sh PROGRAM [ARGUMENT...]. A case that passes and says 'skipped' on a
# line of its output exits with 77, which CTest counts as skipped. A name that matches no test case
# is a failure. Listings go through untouched.
set -u

for argument in "$@"; do
  case "$argument" in --list-*) exec "$@" ;; esac
done

log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT
"$@" 2>&1 | tee "$log"
status=${PIPESTATUS[0]}
if [ "$status" -ne 0 ]; then exit "$status"; fi
if grep -q 'No test cases matched' "$log"; then exit 1; fi
if grep -qiw 'skipped' "$log"; then exit 77; fi
exit 0
