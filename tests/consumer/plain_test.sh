#!/usr/bin/env bash
# plain_test.sh MODE COMPILER SOURCE_FOLDER BUILD_FOLDER CHECKPOINT [PREFIX]: builds the consumer without CMake,
# runs it, and says how long that took. The flags are those of docs/building.md. Then doors.cpp: which files
# a program opens that includes engine.hpp alone.
#   header_only  the headers alone, in three files
#   separate     NANOVLLM_SEPARATE, and a file of implementation.hpp
#   pkg_config   the library as it is installed in PREFIX
set -euo pipefail

mode=$1 compiler=$2 source=$3 build=$4 checkpoint=$5 prefix=${6:-}
files=("$source"/tests/consumer/{main,own_policy,own_shape}.cpp)
options=(-std=c++20 -O1 -Wall -Wextra -Werror)
rm -rf "$build"
mkdir -p "$build"

case $mode in
  header_only)
    flags=(-I "$source/include")
    libraries=(-lpcre2-8 -lutf8proc -lxxhash -pthread) ;;
  separate)
    flags=(-DNANOVLLM_SEPARATE -I "$source/include")
    libraries=(-lpcre2-8 -lutf8proc -lxxhash -pthread)
    echo '#include <nanovllm/implementation.hpp>' > "$build/nanovllm.cpp"
    files+=("$build/nanovllm.cpp")
    # An engine that no library has is no riddle for the linker.
    if said=$("$compiler" "${options[@]}" "${flags[@]}" -DNANOVLLM_SHAPES=gpt2_any -fsyntax-only \
        "${files[0]}" 2>&1) || ! grep -qF "'#include <nanovllm/policy.hpp>' compiles it" <<< "$said"; then
      echo "not said: which include compiles an engine that no library has: $said"
      exit 1
    fi ;;
  pkg_config)
    if ! command -v pkg-config > /dev/null; then
      echo "skipped: there is no pkg-config"
      exit 77
    fi
    export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
    read -ra flags <<< "$(pkg-config --cflags nanovllm)"
    read -ra libraries <<< "$(pkg-config --libs nanovllm)" ;;
esac

objects=()
for file in "${files[@]}"; do
  object=$build/$(basename "$file" .cpp).o
  "$compiler" "${options[@]}" "${flags[@]}" -c "$file" -o "$object"
  objects+=("$object")
done
"$compiler" "${objects[@]}" "${libraries[@]}" -o "$build/consumer"
"$build/consumer" "$checkpoint"

doors=$source/tests/consumer/doors.cpp
options[1]=-O0
"$compiler" "${options[@]}" "${flags[@]}" -c "$doors" -o "$build/doors.o"
case $mode in
  header_only)
    # A part counts for the whole program, whichever file includes it.
    "$compiler" "$build/doors.o" "${libraries[@]}" -o "$build/house"
    "$build/house" "$source" "$build/files" house
    "$compiler" "${options[@]}" "${flags[@]}" -c "$source/tests/consumer/doors_parts.cpp" -o "$build/parts.o"
    objects=("$build/parts.o" "$build/doors.o")
    if said=$("$compiler" "${options[@]}" "${flags[@]}" -DOTHER_MODEL -fsyntax-only "$doors" 2>&1) ||
      ! grep -m1 error: <<< "$said" | grep -qF "'#include <nanovllm/with/NAME.hpp>'"; then
      echo "not said: which include defines a model that is only declared: $said"
      exit 1
    fi ;;
  separate) objects=("$build/nanovllm.o" "$build/doors.o") ;;
  pkg_config) objects=("$build/doors.o") ;;
esac
"$compiler" "${objects[@]}" "${libraries[@]}" -o "$build/doors"
"$build/doors" "$source" "$build/files" parts
echo "$mode: compiled, linked and run in $SECONDS s"
