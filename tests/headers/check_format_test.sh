#!/usr/bin/env bash
# Shows that check_format.sh notices a line that is not formatted, and a folder without sources.
set -euo pipefail

check="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/check_format.sh"
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cp "$root/.clang-format" "$scratch"
mkdir "$scratch/include"

status=0
output=$("$check" "$scratch") || status=$?
if [ "$status" -eq 77 ]; then
  echo "$output"
  exit 77
fi
if [ "$status" -ne 1 ]; then echo "a folder without sources: exit status $status"; exit 1; fi
echo 'int two() { return 2; }' > "$scratch/include/two.hpp"
"$check" "$scratch" > /dev/null
echo 'int  three( ) {return 3;}' > "$scratch/include/three.cuh"
status=0
output=$("$check" "$scratch") || status=$?
if [ "$status" -ne 1 ] || ! grep -q '^include/three.cuh:1:' <<< "$output"; then
  echo "a line that is not formatted: exit status $status, and:"
  echo "$output"
  exit 1
fi
