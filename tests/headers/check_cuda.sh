#!/usr/bin/env bash
# check_cuda.sh alone|hot NVCC SOURCE OUTPUT [FLAG...]: compiles one .cu file for sm_90a. Warnings of
# nvcc and of the host compiler are errors. OUTPUT and its dependencies, OUTPUT.d, are left when all
# is well.
#
#   alone  SOURCE is one include. The front end of the device sees it all, also what is for the host,
#          but no bodies at the ends of other headers; no code is generated, and the host's compiler,
#          which takes as long again, is left to headers/nvcc.
#   hot    down to machine code, for sm_80 too. It also fails for a note of ptxas numbered C75xx
#          (setmaxnreg was dropped, or wgmma serialised) and for a kernel that spills registers.
set -euo pipefail

mode=$1 nvcc=$2 source=$3 output=$4
shift 4
log=$(mktemp)
trap 'rm -f "$log"' EXIT

case "$mode" in
  alone) how=(-ptx -fdevice-syntax-only "-DNANOVLLM_BODIES=(__INCLUDE_LEVEL__==1)") ;;
  hot) how=(-c -O3 --threads 2 -Xptxas -v -gencode=arch=compute_80,code=sm_80) ;;
  *) echo "check_cuda.sh: 'alone' or 'hot' is wanted, got '$mode'"; exit 2 ;;
esac

rm -f "$output"
if ! "$nvcc" -std=c++20 --expt-relaxed-constexpr "${how[@]}" \
    -Werror=all-warnings -Xcompiler=-Wall,-Wextra,-Werror \
    -gencode=arch=compute_90a,code=sm_90a "$@" \
    -MD -MF "$output.d" -MT "$output" "$source" -o "$output" > "$log" 2>&1; then
  grep -v '^ptxas info' "$log" || cat "$log"
  exit 1
fi

# ptxas names the architecture with each kernel, then the kernel and every function that it calls.
if ! awk '
  /\(C75[0-9][0-9]\)/ { print; failed = 1 }
  /Compiling entry function/ { architecture = $NF; gsub(/\047/, "", architecture) }
  /Function properties for/ { name = $NF }
  /bytes spill stores/ && ($5 > 0 || $9 > 0) {
    # Two exceptions. The sampler reads its logits with 3 blocks a processor: 32 bytes spill, and
    # with 2 blocks nothing spills and 256 rows take 123 us instead of 104 (H200). What finishes a
    # row or a shard of it, a block for each, waits for memory and is hot in no other sense.
    if (name ~ /sample_scan_kernelILi8E/ && $5 <= 32) next
    if (name ~ /sample_finish_kernel|draw_shard_kernel|survey_shard_kernel|cuda10mass_above|cuda10total_mass|cuda17draw_from_nucleus|cuda11find_prefix|cuda8find_tie/) next
    print name " for " architecture ": " $5 " bytes of spill stores, " $9 " bytes of spill loads"
    failed = 1
  }
  END { exit failed }' "$log"; then
  rm -f "$output"
  exit 1
fi
touch "$output"
