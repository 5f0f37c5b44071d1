#!/usr/bin/env bash
# check_cuda_programs.sh NVCC SOURCE_FOLDER 'PROGRAM...' FLAG...: whether programs of nvcc compile.
# All are put into one translation unit, each in a namespace of its own, because most of the time goes
# into the headers; 'main' is a function there that has to return (940). Templates are instantiated,
# but no code is generated, for the device neither.
set -euo pipefail

compiler=$1 folder=$2 programs=$3
shift 3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Every file that a program includes comes first, outside the namespaces; there it is found again, and
# left out by its '#pragma once'.
for program in $programs; do
  while read -r line; do
    file=$(sed -n 's/^#include "\([^"]*\)".*/\1/p' <<< "$line")
    if [ -n "$file" ] && [ -e "$(dirname "$folder/$program")/$file" ]; then
      line="#include \"$(dirname "$folder/$program")/$file\""
    fi
    echo "$line"
  done < <(grep '^#include' "$folder/$program")
done > "$work/all.cu"
for program in $programs; do
  echo "namespace ${program//[!a-z0-9]/_} {"
  echo "#include \"$folder/$program\""
  echo "}"
done >> "$work/all.cu"

"$compiler" -std=c++20 --expt-relaxed-constexpr -gencode=arch=compute_90a,code=sm_90a \
  -Werror=all-warnings -diag-suppress 940 --fdevice-syntax-only -Xcompiler=-Wall,-Wextra,-fsyntax-only "$@" \
  -c "$work/all.cu" -o "$work/all.o"
