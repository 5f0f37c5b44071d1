#!/usr/bin/env bash
# check_kernels.sh LIBRARY: the engines in the library have no kernels of their own. Those are in the
# objects that are called cuda_*, once, but for some small ones that are in every object.
set -euo pipefail

each=$(nm -A --defined-only "$1" |
  sed -nE 's/^[^:]+:([^:]+):.* _ZGVZ.*__device_stub__(Z[A-Za-z0-9_]+)$/\2 \1/p' | sort -u)
small='code_probe|side_by_side|plan_segments|plan_varlen|unpack_step|publish_results'
faults=$(grep -vE "($small)_kernel" <<< "$each" |
  awk '$2 !~ /^cuda_/ || $1 == last { print "_" $1 " in " $2 } { last = $1 }')
if [ -n "$faults" ]; then
  echo "kernels that should be in one object of nanovllm/cuda/compiled_ops.cuh:"
  c++filt -p <<< "$faults"
  exit 1
fi
echo "$(wc -l <<< "$each") kernels in $(cut -d' ' -f2 <<< "$each" | sort -u | wc -l) objects"
