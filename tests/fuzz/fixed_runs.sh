#!/usr/bin/env bash
# fixed_runs.sh FUZZER RUNS [CORPUS]: RUNS inputs with a fixed seed, from CORPUS on. What is new goes to
# a folder that is thrown away, so the next run has the same inputs; what fails stays here.
set -euo pipefail

fuzzer=$1 runs=$2
shift 2
found=$(mktemp -d)
trap 'rm -rf "$found"' EXIT
"$fuzzer" -seed=20251125 -runs="$runs" -rss_limit_mb=4096 "$found" "$@"
