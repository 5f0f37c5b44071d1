#!/usr/bin/env bash
# check_reading.sh LINES [PAGE]: whether the sources that a reading list links, docs/reading.md unless
# given, are short enough: each is there, and together they have at most LINES lines. A file that
# is linked twice counts once; links to pages do not count.
set -euo pipefail

most=$1
page=${2:-"$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/docs/reading.md"}
if [ ! -e "$page" ]; then
  echo "there is no $page"
  exit 1
fi
cd "$(dirname "$page")"
mapfile -t files < <(grep -o '](\([^)]*\))' "$(basename "$page")" | sed 's/^](//; s/[#)].*//' |
  grep -E '\.(hpp|cuh|cpp|cu|h|inc)$' | awk '!seen[$0]++')
if [ "${#files[@]}" -lt 5 ]; then
  echo "$page links ${#files[@]} sources; a reading list has at least 5"
  exit 1
fi
sum=0
for file in "${files[@]}"; do
  if [ ! -e "$file" ]; then
    echo "$page links $file, which is not there"
    exit 1
  fi
  lines=$(wc -l < "$file")
  printf '%6d %s\n' "$lines" "$file"
  sum=$((sum + lines))
done
printf '%6d lines in %d files\n' "$sum" "${#files[@]}"
if [ "$sum" -gt "$most" ]; then
  echo "that is more than $most lines"
  exit 1
fi
