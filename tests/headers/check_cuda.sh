#!/usr/bin/env bash
# check_cuda.sh NVCC SOURCE OUTPUT [FLAG...]: compiles one .cu file for sm_80 and for sm_90a, down to
# machine code, and fails for
#   a warning of nvcc, of the host compiler or of ptxas;
#   a note of ptxas numbered C75xx: it has dropped setmaxnreg or serialised wgmma;
#   a kernel that spills registers to memory or keeps a stack frame.
# The object file and its dependencies, OUTPUT and OUTPUT.d, are left when all is well.
#
# One such file with a single include shows that a .cuh compiles by itself. All of them together
# cost as much as one large file, since the time goes into CUDA's own headers; each is real code
# for both architectures, because the guards around sm_90a are seen by device passes only.
set -euo pipefail

nvcc=$1 source=$2 output=$3
shift 3
log=$(mktemp)
trap 'rm -f "$log"' EXIT

if ! "$nvcc" -std=c++20 -O3 --expt-relaxed-constexpr -Xptxas -v -Werror=all-warnings \
    -Xcompiler=-Wall,-Wextra,-Werror \
    -gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_90a,code=sm_90a "$@" \
    -MD -MF "$output.d" -MT "$output" -c "$source" -o "$output" > "$log" 2>&1; then
  grep -v '^ptxas info' "$log" || cat "$log"
  rm -f "$output"
  exit 1
fi

if ! awk '
  function complain(text) {
    print kernel " for " architecture ": " text
    failed = 1
  }
  /\(C75[0-9][0-9]\)/ { print; failed = 1 }
  /Compiling entry function/ {
    kernel = $0; sub(/^[^\047]*\047/, "", kernel); sub(/\047.*/, "", kernel)
    architecture = $NF; gsub(/\047/, "", architecture)
  }
  /bytes stack frame/ {
    if ($1 > 0) complain($1 " bytes of stack")
    if ($5 > 0 || $9 > 0) complain($5 " bytes of spill stores, " $9 " bytes of spill loads")
  }
  END { exit failed }' "$log"; then
  rm -f "$output"
  exit 1
fi
