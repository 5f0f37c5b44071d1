#!/usr/bin/env bash
# check_program.sh COMPILER SOURCE FLAG...: whether a program compiles. Templates are instantiated,
# but no code is generated, for the device neither.
set -euo pipefail

compiler=$1 source=$2
shift 2
case $source in
  *.cu)
    output=$(mktemp)
    trap 'rm -f "$output"' EXIT
    "$compiler" -std=c++20 --expt-relaxed-constexpr -gencode=arch=compute_90a,code=sm_90a \
      -Werror=all-warnings --fdevice-syntax-only -Xcompiler=-Wall,-Wextra,-fsyntax-only "$@" \
      -c "$source" -o "$output" ;;
  *) "$compiler" -std=c++20 -fsyntax-only -Wall -Wextra -Werror "$@" "$source" ;;
esac
