#!/usr/bin/env bash
# check_libraries.sh default|hidden PROGRAM LIBRARY...: runs the program, then looks at what the
# libraries export. Kernels are never exported, so that two libraries cannot launch each other's;
# built with hidden symbols, no function or object of ours is. (Templates of the standard library
# are, also those on types of ours: its namespace asks for that.)
set -euo pipefail

visibility=$1 program=$2
shift 2
"$program" tests/fixtures/parity/group1_tied_yarn

ours='_Z(TI|TS|TV|TT|GV|GR|Z|GVZ)?N[KVRO]*8nanovllm'
for library in "$@"; do
  exported=$(nm --dynamic --defined-only "$library")
  if grep -E " $ours.*_kernel" <<< "$exported" | c++filt; then
    echo "$library exports these kernels"
    exit 1
  fi
  if [ "$visibility" = hidden ] && grep -E " $ours" <<< "$exported" | c++filt; then
    echo "$library is built with hidden symbols, but exports these"
    exit 1
  fi
done
