#!/usr/bin/env bash
# pack_gpu.sh [--sources] DIR: the GPU test programs, the benchmarks and what they read in one
# folder, for a machine without network.
#
#   pack_gpu.sh --sources DIR   sources, and the headers and static libraries they need; there,
#                               'DIR/build.sh' compiles them with nvcc on all cores
#   pack_gpu.sh DIR             compiled here; there, no compiler is needed
#
# 'DIR/run.sh' runs them: one line a program, a summing line last. The CUDA runtime is linked
# statically; cuBLASLt and NCCL, which are large, are looked for where the folder is used.
#
#   NANOVLLM_PACK_PATTERN  compile only the programs whose name matches; all unless set
set -euo pipefail

sources=0
if [ "${1:-}" = --sources ]; then sources=1; shift; fi
if [ $# -ne 1 ]; then sed -n '2,13s/^# \{0,1\}//p' "$0"; exit 2; fi
target=$(mkdir -p "$1" && cd "$1" && pwd)
if [ -e "$target/.git" ] || [ -e "$target/CMakeLists.txt" ]; then
  echo "$target is a source tree, whose folders would be replaced"
  exit 2
fi
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# The first of the files that is there.
first_of() {
  local file
  for file in "$@"; do if [ -e "$file" ]; then echo "$file"; return; fi; done
  echo "none of these is there: $*" >&2
  return 1
}

copy_sources() {
  local to=$1 file library
  rm -rf "$to/include" "$to/tests" "$to/benchmarks" "$to/examples" "$to/deps"
  mkdir -p "$to/deps/include" "$to/deps/lib" "$to/deps/generated"
  # What git knows of, and what is new and not ignored.
  git ls-files -co --exclude-standard include tests benchmarks examples |
    grep -vE '^(tests/(fuzz|consumer|headers|cmake)|benchmarks/results)/' |
    while read -r file; do if [ -e "$file" ]; then echo "$file"; fi; done |
    tar -cf - -T - | tar -xf - -C "$to"
  for file in examples/models/*/model.safetensors; do cp "$file" "$to/$file"; done  # some are ignored
  cp tests/pack/build.sh tests/pack/run.sh "$to"
  for file in nlohmann CLI catch2 xxhash.h utf8proc.h pcre2.h; do
    cp -rL "$(first_of {/usr,/usr/local,"${CONDA_PREFIX:-/none}"}/include/$file)" "$to/deps/include"
  done
  for library in pcre2-8 utf8proc xxhash; do
    cp -L "$(first_of {/usr,/usr/local}/lib{/*-linux-gnu,64,}/lib$library.a)" "$to/deps/lib"
  done
  if [ ! -e "$to/deps/include/catch2/catch.hpp" ]; then  # Catch2 3 is a library
    for library in Catch2Main Catch2; do
      cp -L "$(first_of {/usr,/usr/local}/lib{/*-linux-gnu,64,}/lib$library.a)" "$to/deps/lib"
    done
  fi
  if file=$(first_of {/usr/local/cuda,/usr/local,/usr}/include/nccl.h 2> /dev/null); then
    cp -L "$file" "$to/deps/include"
  fi
  printf '#pragma once\ninline constexpr char kCommit[] = "%s";\n' \
    "$(git describe --always --dirty --abbrev=12 --exclude '*')" > "$to/deps/generated/commit.hpp"
}

if [ "$sources" -eq 1 ]; then
  copy_sources "$target"
else
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  copy_sources "$work"
  "$work/build.sh" --jobs "${NANOVLLM_TEST_JOBS:-$(nproc)}" "${NANOVLLM_PACK_PATTERN:-.}"
  rm -f "$work"/bin/*.*
  strip "$work"/bin/*
  rm -rf "$target/bin" "$target/tests" "$target/examples"
  mkdir -p "$target/tests" "$target/examples"
  tar -C "$work" -cf - bin | gzip -9 > "$target/bin.tar.gz"  # run.sh unpacks them
  cp -r tests/fixtures "$target/tests"
  cp -r examples/models "$target/examples"
  cp tests/pack/run.sh "$work/programs.txt" "$target"
  cp -r tests/oracle/fingerprint/compare.sh "$target"
fi
du -sh "$target" | sed 's/\t/ in /'
