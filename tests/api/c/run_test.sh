#!/usr/bin/env bash
# run_test.sh TEST TOOL LIBRARY FOLDER: a test of the shared library of nanovllm/c/nanovllm.h, by a C
# compiler or by Python, from the repository's root. What is compiled goes to FOLDER.
#
#   api       api_test.c: every function, used and misused
#   versions  versions_test.c with an older, this and a newer header: the same text
#   symbols   the library shows the header's functions and nothing else
#   header    the header by itself: C99 and C11, and C++ where there is a C++ compiler (CXX)
#   example   examples/c_api.c, and the program at the head of docs/c_api.md
#   ctypes    ctypes_test.py, by Python
set -euo pipefail

test=$1 tool=$2 library=$3 folder=$4
model=examples/models/fairytale
header=include/nanovllm/c/nanovllm.h
warnings=(-Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Werror)
mkdir -p "$folder"

# compile OUTPUT SOURCE FLAG...
compile() {
  local output=$1 source=$2
  shift 2
  "$tool" -std=c99 "${warnings[@]}" -Iinclude "$@" "$source" "$library" \
    "-Wl,-rpath,$(dirname "$(realpath "$library")")" -o "$folder/$output"
}

# Today's header with two fields more at the end of each struct that has a size. (The sizes of the
# others never change.)
write_newer() {
  awk '/^typedef struct/ { has_size = 0 }
       /size_t struct_size;/ { has_size = 1 }
       /^} nvllm_/ && has_size { print "  int64_t added;\n  const char* added_text;" }
       { print }' "$header" > "$folder/newer.h"
  [ "$(grep -c 'int64_t added;' "$folder/newer.h")" -eq "$(grep -c 'size_t struct_size;' "$header")" ]
}

case $test in
  api)
    compile api_test tests/api/c/api_test.c
    mkdir -p "$folder/warned"
    ln -sf "$PWD/$model"/* "$folder/warned/"
    sed 's/"dtype": "bfloat16"/&, "torch_dtype": "float32"/' "$model/config.json" > "$folder/config.json"
    mv "$folder/config.json" "$folder/warned/"
    "$folder/api_test" "$model" "$folder/warned" ;;
  versions)
    write_newer
    compile older tests/api/c/versions_test.c -Itests/api/c '-DHEADER="older.h"'
    compile same tests/api/c/versions_test.c '-DHEADER=<nanovllm/c/nanovllm.h>'
    compile newer tests/api/c/versions_test.c "-I$folder" '-DHEADER="newer.h"' -DNEWER
    expected=$("$folder/same" "$model")
    [ -n "$expected" ]
    for header_version in older newer; do
      text=$("$folder/$header_version" "$model")
      if [ "$text" != "$expected" ]; then
        echo "with the $header_version header: '$text', and with this one: '$expected'"
        exit 1
      fi
    done
    echo "$expected" ;;
  symbols)
    # What linkers make themselves, the name of the version, is of type A.
    shown=$(nm -D --defined-only "$library" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | sort)
    declared=$(grep -o '^NVLLM_API .*' "$header" | grep -o 'nvllm_[a-z_]*(' | tr -d '(' | sort)
    diff <(echo "$declared") <(echo "$shown")
    echo "$shown" | wc -l | sed 's/$/ functions/'
    readelf -d "$library" | grep -q "SONAME.*$(awk '/define NVLLM_ABI_VERSION/ { print ".so." $3 }' "$header")\]" ;;
  header)
    for standard in c99 c11; do
      "$tool" "-std=$standard" "${warnings[@]}" -fsyntax-only -x c "$header"
    done
    for standard in c++98 c++20; do
      "${CXX:-c++}" "-std=$standard" -Wall -Wextra -Werror \
        -fsyntax-only -x c++ "$header"
    done ;;
  example)
    compile c_api examples/c_api.c
    "$folder/c_api" "$model" > "$folder/c_api.txt"
    grep -q 'tokens per second' "$folder/c_api.txt"
    [ "$("$folder/c_api" "$model" "A king had " "[1-9] sons" | head -n 1 | grep -c 'A king had [1-9] sons$')" -eq 1 ]
    if "$folder/c_api" "$model" "A king" "a(" > "$folder/refused.txt" 2>&1; then exit 1; fi
    grep -q 'regular expression' "$folder/refused.txt"
    "$folder/c_api" --version | grep -qx 'nanovllm [0-9.]*'
    awk '/^```c$/ { inside = 1; next } /^```$/ { if (inside) exit } inside' docs/c_api.md > "$folder/page.c"
    compile page "$folder/page.c"
    [ -n "$("$folder/page")" ] ;;
  ctypes) "$tool" tests/api/c/ctypes_test.py "$library" "$model" ;;
  *) echo "unknown test '$test'"; exit 1 ;;
esac
