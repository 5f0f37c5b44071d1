#!/usr/bin/env bash
# build.sh [--jobs N] [--arch 90a] [--list] [PATTERN]: compiles the programs of this folder whose
# name matches the extended regular expression PATTERN, N at a time, into bin/. Needs nvcc, a host
# compiler and nothing else. A program whose inputs are as they were is not compiled again. The exit
# status is 0 only if all compile. programs.txt has the names of all that this and earlier calls were
# to build; run.sh counts what is missing of them.
set -uo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")"
jobs=$(nproc) arch=90a list=0 pattern=.
while [ $# -gt 0 ]; do
  case $1 in
    --jobs) jobs=$2; shift 2 ;;
    --arch) arch=$2; shift 2 ;;
    --list) list=1; shift ;;
    *) pattern=$1; shift ;;
  esac
done

# 'name source' for every program; the names are CMake's.
programs() {
  local source name
  for source in $(find tests -name '*_test.cu' | LC_ALL=C sort); do
    name=${source#tests/} name=${name%_test.cu}
    echo "test_${name//\//_}_gpu $source"
  done
  for source in benchmarks/cuda_ops/*_bench.cu; do
    echo "cuda_$(basename "$source" .cu) $source"
  done
  echo "engine_bench_cuda benchmarks/engine_bench/engine_bench.cu"
  echo "moe_engine_bench_cuda benchmarks/engine_bench/moe_engine_bench.cu"
  echo "quantized_engine_bench_cuda benchmarks/engine_bench/quantized_engine_bench.cu"
  echo "speculation_bench_cuda benchmarks/speculation/speculation_bench.cu"
  echo "prefix_cache_cuda benchmarks/prefix_cache/prefix_cache.cu"
  echo "prefix_cache_ladder_cuda benchmarks/prefix_cache/ladder.cu"
  echo "fingerprint_cuda tests/oracle/fingerprint/fingerprint.cu"
  for source in examples/*.cu; do echo "$(basename "$source" .cu)_cuda $source"; done
}
selected=$(programs | grep -E "^[^ ]*($pattern)[^ ]* " || true)
if [ -z "$selected" ]; then echo "no program matches $pattern"; exit 1; fi
if [ "$list" -eq 1 ]; then echo "$selected"; exit 0; fi

if ! command -v nvcc > /dev/null; then PATH=$PATH:/usr/local/cuda/bin; fi
command -v nvcc > /dev/null || { echo "there is no nvcc"; exit 1; }
mkdir -p bin
# Earlier ones that the sources still have, and these.
wanted=$({ grep -xF -f <(programs | cut -d ' ' -f 1) programs.txt 2> /dev/null
  cut -d ' ' -f 1 <<< "$selected"; } | LC_ALL=C sort -u)
echo "$wanted" > programs.txt

# Folders of a library that the CUDA Toolkit or Python's packages may bring.
library_folder() {
  local file
  for file in {/usr/local/cuda,/usr/local/cuda-*,/usr,/usr/local}/lib{64,/*-linux-gnu,}/"$1"* \
      $(python3 -c 'import sys; print(*sys.path, sep="\n")' 2> /dev/null |
        while read -r folder; do ls "$folder"/nvidia/*/lib/"$1"* 2> /dev/null; done); do
    if [ -e "$file" ]; then dirname "$file"; return; fi
  done
}
export PACK_LIBRARIES=""
cublas=$(library_folder libcublasLt.so)
PACK_LIBRARIES+=" -L$cublas -l:$(cd "$cublas" && ls libcublasLt.so* | head -n 1)"
PACK_LIBRARIES+=" -Xlinker=-rpath,$cublas"
export PACK_FLAGS="-std=c++20 -O3 -DNDEBUG --expt-relaxed-constexpr \
-gencode=arch=compute_$arch,code=sm_$arch -Iinclude -Ideps/include -Ideps/generated"
nccl=$(library_folder libnccl.so)
if [ -e deps/include/nccl.h ] && [ -n "$nccl" ]; then
  PACK_LIBRARIES+=" -L$nccl -l:$(cd "$nccl" && ls libnccl.so* | head -n 1)"
  PACK_LIBRARIES+=" -Xlinker=-rpath,$nccl"
else
  echo "no NCCL: several GPUs are not tested"
  rm -f deps/include/nccl.h
fi
PACK_LIBRARIES+=" -Ldeps/lib -l:libpcre2-8.a -l:libutf8proc.a -l:libxxhash.a -lpthread"

export PACK_CATCH="bin/catch_main.o"
if [ -e deps/include/catch2/catch.hpp ]; then
  if [ ! -e $PACK_CATCH ] && grep -q '^test_' <<< "$selected"; then
    echo '#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>' |
      g++ -std=c++20 -O1 -Ideps/include -x c++ -c - -o $PACK_CATCH || exit 1
  fi
else
  PACK_CATCH="deps/lib/libCatch2Main.a deps/lib/libCatch2.a"
fi

# compile NAME SOURCE
compile() {
  local name=$1 source=$2 begin=$SECONDS flags=$PACK_FLAGS more=""
  case $source in
    # The host's part of a test need not be fast.
    tests/*_test.cu) flags="${flags/-O3/-O1} -Itests" more=$PACK_CATCH ;;
    benchmarks/*) flags+=" -Ibenchmarks" ;;
  esac
  local key="$flags $more $PACK_LIBRARIES"
  if [ -e "bin/$name" ] && [ "$(sed -n 1p "bin/$name.inputs" 2> /dev/null)" = "$key" ] &&
      sed 1d "bin/$name.inputs" | sha256sum --check --status 2> /dev/null; then
    echo "$name: as it was"
    return
  fi
  rm -f "bin/$name" "bin/$name.inputs"
  # shellcheck disable=SC2086
  if ! nvcc $flags -MD -MF "bin/$name.d" "$source" $more $PACK_LIBRARIES -o "bin/$name" \
      > "bin/$name.log" 2>&1; then
    echo "$name: FAILED after $((SECONDS - begin)) s"
    grep -E 'error|fatal' "bin/$name.log" | head -n 20
    return 1
  fi
  # The files of this folder that went into it, with what they hold.
  { echo "$key"
    sed -e 's/\\$//' -e 's/^[^:]*: //' "bin/$name.d" | tr -s ' ' '\n' | grep -v '^/' |
      grep . | sort -u | xargs sha256sum; } > "bin/$name.inputs"
  rm -f "bin/$name.d" "bin/$name.log"
  echo "$name: $((SECONDS - begin)) s"
}
export -f compile

begin=$SECONDS
echo "$selected" | xargs -P "$jobs" -L 1 bash -c 'compile "$0" "$1"'
status=$?
echo "$(wc -l <<< "$selected") programs in $((SECONDS - begin)) s"
[ "$status" -eq 0 ]
