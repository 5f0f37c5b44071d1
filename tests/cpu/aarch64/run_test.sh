#!/usr/bin/env bash
# The CPU's kernels and one engine on aarch64: run_test.sh COMPILER QEMU FOLDER [JOBS]
#
# Cross-compiles the programs below with COMPILER (aarch64-linux-gnu-g++) to FOLDER, JOBS at a time,
# and runs them in QEMU (qemu-aarch64): what is the same on every CPU on one that has NEON alone;
# dense layers and the engine also on one with the instructions for bf16; products of integers on
# one with the matrix product of bytes, on one with their dot product, and on one with neither.
# Exits with 77 and says 'skipped' if one of the two or a header of another library is not there.
#
# Nothing but the compiler's own libraries is needed for aarch64. The headers of the other libraries
# are those of this machine, in /usr/include. Catch2 2.13 and JSON are no more than that, and xxHash
# is compiled into the program. PCRE2 and utf8proc are left out by the linker: the engine's
# checkpoint has no tokenizer, so that no function of theirs is called.
set -euo pipefail

compiler=$1 qemu=$2 folder=$3 jobs=${4:-$(nproc)}
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."

for tool in "$compiler" "$qemu"; do
  if ! command -v "$tool" > /dev/null; then
    echo "skipped: no ${tool##*/} (Debian: g++-aarch64-linux-gnu, qemu-user)"
    exit 77
  fi
done
mkdir -p "$folder"
flags=(-std=c++20 -O1 -Wall -Wextra -Wshadow -Werror -DNANOVLLM_CHECKS -DXXH_INLINE_ALL
  -Iinclude -Itests -idirafter /usr/include)
probe=
for header in catch2/catch.hpp nlohmann/json.hpp pcre2.h utf8proc.h xxhash.h; do
  probe+="#if !__has_include(<$header>)
#error $header
#endif
"
done
if ! "$compiler" "${flags[@]}" -E -x c++ - <<< "$probe" > /dev/null 2> "$folder/headers.log"; then
  echo "skipped: /usr/include has no $(sed -n 's/.*#error //p' "$folder/headers.log" | xargs)" \
    "(Debian 12: catch2, nlohmann-json3-dev, libpcre2-dev, libutf8proc-dev, libxxhash-dev)"
  exit 77
fi

# Those that take longest come first.
programs=(cpu/aarch64/engine cpu/linear/linear_test with/eight_bits/cpu/fp8_matrix_test
  cpu/kernels/attention_test with/eight_bits/cpu/attention_byte_kv_test cpu/kernels/qk_norm_rope_store_test
  with/eight_bits/cpu/linear_test with/eight_bits/cpu/int_kernels_test with/eight_bits/cpu/int_matrix_test
  cpu/isa_test cpu/simd/simd_test cpu/kernels/rms_norm_test cpu/kernels/silu_mul_test
  cpu/kernels/embedding_test cpu/linear/packed_matrix_test)
# Of attention the cases that do not take minutes.
attention='attention works*,a prompt gives*,long contexts*,later keys*,scores far apart*'
attention+=',queries and outputs*,padded decode*'

compile() {
  local source=$1 object=$2
  if command -v ccache > /dev/null; then
    ccache "$compiler" "${flags[@]}" -c "$source" -o "$object"
  else
    "$compiler" "${flags[@]}" -c "$source" -o "$object"
  fi
}

# run CPU ISA KERNELS PROGRAM: the program on this CPU of QEMU, which has these instructions at most
# and these kernels for integers.
run() {
  local cpu=$1 isa=$2 kernels=$3 program=$4 arguments=(--warn NoTests) log
  if [ "$program" = cpu/kernels/attention_test ]; then arguments+=("$attention"); fi
  log="$folder/${program//\//_}.$cpu.log"
  if ! NANOVLLM_TEST_ISA=$isa NANOVLLM_TEST_INT_KERNELS=$kernels \
      "$qemu" -cpu "$cpu" "$folder/${program//\//_}" "${arguments[@]}" > "$log" 2>&1; then
    cat "$log"
    echo "FAILED: $program on $cpu"
    return 1
  fi
  echo "$program on $cpu ($isa): $(grep -m 1 'All tests passed' "$log")"
}

# build_and_run PROGRAM
build_and_run() {
  local program=$1 name=${1//\//_}
  compile "tests/$program.cpp" "$folder/$name.o"
  "$compiler" -static "$folder/$name.o" "$folder/main.o" -o "$folder/$name" \
    -Wl,--unresolved-symbols=ignore-in-object-files
  run cortex-a72 neon "" "$program"
  case "$program" in
    cpu/kernels/* | cpu/simd/*) return ;;
  esac
  run max neon_bf16 "dotprod i8mm" "$program"
  case "$program" in
    cpu/isa_test | with/eight_bits/cpu/*) run neoverse-n1 neon dotprod "$program" ;;
  esac
}

printf '#define CATCH_CONFIG_MAIN\n#include <catch2/catch.hpp>\n' > "$folder/main.cpp"
compile "$folder/main.cpp" "$folder/main.o"

pids=()
for program in "${programs[@]}"; do
  while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do sleep 0.1; done
  build_and_run "$program" &
  pids+=($!)
done
status=0
for pid in "${pids[@]}"; do wait "$pid" || status=1; done
exit "$status"
