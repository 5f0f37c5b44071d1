#!/usr/bin/env bash
# build_type.sh CMAKE COMPILER SOURCE_FOLDER BUILD_FOLDER [PREFIX]: a project that uses the library, from
# its sources or, with PREFIX, installed, is warned when it is configured for a build without
# optimisation, with the line to write, and not otherwise. Nothing is built.
set -euo pipefail

cmake=$1 compiler=$2 source=$3 build=$4 prefix=${5:-}
warning='nanovllm: CMAKE_BUILD_TYPE is not set' failures=0
rm -rf "$build"
mkdir -p "$build/project"

# project LINE...: the project's CMakeLists.txt, with these lines after the library.
project() {
  { echo 'cmake_minimum_required(VERSION 3.24)
project(consumer LANGUAGES CXX)'
    if [ -n "$prefix" ]; then
      echo 'find_package(nanovllm REQUIRED)'
    else
      echo "add_subdirectory(\"$source\" nanovllm)"
    fi
    printf '%s\n' "$@"; } > "$build/project/CMakeLists.txt"
}

# expect 0|1 GENERATOR [OPTION...]: how often there is a warning.
expect() {
  local wanted=$1 generator=$2 folder output count
  shift 2
  folder="$build/${generator// /_}"
  rm -f "$folder/CMakeCache.txt"
  if ! output=$("$cmake" -G "$generator" -S "$build/project" -B "$folder" \
      "-DCMAKE_CXX_COMPILER=$compiler" -DFETCHCONTENT_FULLY_DISCONNECTED=ON "-DCMAKE_PREFIX_PATH=$prefix" \
      "$@" 2>&1); then
    echo "$output"
    exit 1
  fi
  output=$(tr -s ' \n' ' ' <<< "$output")
  count=$({ grep -o "$warning" <<< "$output" || true; } | wc -l)
  if [ "$count" -ne "$wanted" ]; then
    echo "'$generator' $*: $count warnings, expected $wanted: $output"
    failures=$((failures + 1))
  elif [ "$wanted" -eq 1 ] && ! grep -qF -- \
      "cmake -S $build/project -B $folder -DCMAKE_BUILD_TYPE=Release" <<< "$output"; then
    echo "the warning does not say what to write: $output"
    failures=$((failures + 1))
  fi
}

project
expect 1 Ninja
expect 1 Ninja -DCMAKE_CXX_FLAGS=-Wno-Other
expect 0 Ninja -DCMAKE_BUILD_TYPE=Release
expect 0 Ninja -DCMAKE_BUILD_TYPE=None
expect 0 Ninja '-DCMAKE_CXX_FLAGS=-g -O2'
expect 0 'Ninja Multi-Config'
project 'set(CMAKE_BUILD_TYPE Release)'
expect 0 Ninja
project 'add_compile_options(-O2)'
expect 0 Ninja
if [ -z "$prefix" ]; then
  project 'add_subdirectory(more)'
  mkdir -p "$build/project/more"
  echo "add_subdirectory(\"$source\" again)" > "$build/project/more/CMakeLists.txt"
  sed -i '/nanovllm)$/d' "$build/project/CMakeLists.txt"
  expect 1 Ninja
fi
exit $((failures > 0))
