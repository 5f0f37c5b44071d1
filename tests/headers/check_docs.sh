#!/usr/bin/env bash
# check_docs.sh COMPILER DOCUMENT [FLAG...]: whether the C++ of a page compiles: its blocks, one after
# the other, but for those of CUDA, and docs_PAGE.inc after them where there is one.
set -euo pipefail

compiler=$1 document=$2
shift 2
folder=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source=$(mktemp --suffix=.cpp)
trap 'rm -f "$source"' EXIT
awk '/^```cpp/ { block = "#line " NR + 1 " \"" FILENAME "\"\n"; inside = 1; next }
     /^```/ { if (inside && block !~ /Cuda/) printf "%s", block; inside = 0 }
     inside { block = block $0 "\n" }' "$document" > "$source"
more="docs_$(basename "$document" .md).inc"
if [ -e "$folder/$more" ]; then echo "#include \"$more\"" >> "$source"; fi
"$compiler" -std=c++20 -fsyntax-only -Wall -Wextra "-I$folder" "$@" "$source"
