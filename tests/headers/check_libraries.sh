#!/usr/bin/env bash
# check_libraries.sh default|hidden PROGRAM LIBRARY...: runs the program, then looks at what the
# libraries export. Kernels are never exported, so that two libraries cannot launch each other's;
# built with hidden symbols, nothing of ours is.
set -euo pipefail

visibility=$1 program=$2
shift 2
"$program" tests/fixtures/parity/group1_tied_yarn

for library in "$@"; do
  exported=$(nm --dynamic --defined-only --demangle "$library")
  if grep -E 'nanovllm::.*_kernel\b' <<<"$exported"; then
    echo "$library exports these kernels"
    exit 1
  fi
  if [ "$visibility" = hidden ] && grep -E ' [TWVuBD] .*nanovllm::' <<<"$exported"; then
    echo "$library is built with hidden symbols, but exports these"
    exit 1
  fi
done
