#!/usr/bin/env bash
# check_format.sh [FOLDER]: whether every source is as clang-format 14.0.6 writes it with .clang-format:
# other versions write other things. It is Debian 12's clang-format-14, and 'pip install
# clang-format==14.0.6' everywhere. Without it the check exits with 77, which CTest counts as skipped.
#
# To format what you changed: git diff --name-only main | grep -E '\.(hpp|cpp|cuh|cu|h|c|inc)$' |
# xargs clang-format -i
set -euo pipefail

version=14.0.6
cd "${1:-"$(dirname "${BASH_SOURCE[0]}")/../.."}"
program=
for name in clang-format-14 clang-format; do
  if command -v "$name" > /dev/null && "$name" --version | grep -qF "version $version"; then
    program=$name
    break
  fi
done
if [ -z "$program" ]; then
  echo "skipped: there is no clang-format $version; 'pip install clang-format==$version' has it"
  exit 77
fi

folders=()
for folder in include tests examples benchmarks .cmake; do
  if [ -d "$folder" ]; then folders+=("$folder"); fi
done
mapfile -t files < <(find "${folders[@]}" -regex '.*\.\(hpp\|cpp\|cuh\|cu\|h\|c\|inc\)' | LC_ALL=C sort)
if [ "${#files[@]}" -eq 0 ]; then
  echo "no sources under $PWD"
  exit 1
fi
status=0
wrong=$(printf '%s\n' "${files[@]}" | xargs -P "$(nproc)" -n 40 "$program" --dry-run -Werror 2>&1) || status=1
if [ "$status" -ne 0 ]; then
  sed -n 's/: error: code should be clang-formatted.*//p' <<< "$wrong"
  echo "these lines are not as $program writes them"
  exit 1
fi
echo "${#files[@]} files, all formatted"
