#!/usr/bin/env bash
# check_cuda_files_test.sh NVCC: shows that check_cuda_files.sh names file and line of a mistake of any
# kind, that a file finds nothing that only its neighbours include, and that a file is read again when
# something changed that it was made of, and not otherwise.
set -euo pipefail

check="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/check_cuda_files.sh"
nvcc=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
tree="$scratch/tree" failures=0
mkdir -p "$tree/tests/with/mpi" "$tree/docs"

# put PATH: a file from standard input.
put() { cat > "$tree/$1"; }

# run [PAGE]: the check of the tree, to $output and $status.
run() {
  status=0
  output=$("$check" --mpi -DWITH_MPI --pages "${1:-}" "$nvcc" "$tree" "$scratch/cache" -I. 2>&1) || status=$?
}

# expect STATUS WORDS...
expect() {
  local wanted=$1 words
  shift
  for words in "$@"; do
    if [ "$status" -ne "$wanted" ] || ! grep -qF -- "$words" <<< "$output"; then
      echo "expected status $wanted and '$words', got $status: $output"
      failures=$((failures + 1))
    fi
  done
}

put library.cuh <<< '#pragma once
namespace library::cuda { struct Stream {}; }
template <class T> int size_of(const T& values) { return static_cast<int>(values.size()); }
__device__ inline int on_device() { return 1; }
inline int on_host() { return 1; }'
put right.cu <<< '#include "library.cuh"
#include <vector>
__global__ void kernel(int* out) { *out = on_device(); }
int main() { return size_of(std::vector<int>()); }'
put tests/with/mpi/ranks.cu <<< '#if !defined(WITH_MPI)
#error "compiled without MPI"
#endif'
put docs/page.md <<< 'A page.
```cpp
#include <vector>
namespace alias = std;
int main() { alias::vector<int> none; }
```'
run docs/page.md
expect 0 "3 files of CUDA: 0 as they were, 3 compiled"
touch "$tree/library.cuh"
run docs/page.md
expect 0 "3 files of CUDA: 3 as they were, 0 compiled"

# One mistake a file, all in one run.
put syntax.cu <<< 'int one() { return 1 }'
put undeclared.cu <<< '
int one() { return unit; }'
put missing_include.cu <<< '#include "library.cuh"

int one() { return size_of(std::vector<int>()); }'
put instantiated.cu <<< '#include "library.cuh"
int one() { return size_of(3); }'
put ambiguous.cu <<< '#include "library.cuh"
#include <cuda/std/limits>
using namespace library;
cuda::Stream stream;'
put from_device.cu <<< '#include "library.cuh"
__global__ void kernel(int* out) {
  *out = on_host();
}'
put unlaunched.cu <<< '__global__ void kernel() {}

int main() { kernel(); }'
put warned.cu <<< 'int main() { int unused = 1; return 0; }'
put docs/page.md <<< 'A page.
```cpp
#include <cuda_fp16.h>

namespace nv = std;
```'
run docs/page.md
expect 1 "syntax.cu(1): error" "undeclared.cu(2): error" "missing_include.cu(3): error" \
  "library.cuh(3): error" '" at line 2' "ambiguous.cu(4): error" "from_device.cu(3): error" \
  "unlaunched.cu(3): error" "warned.cu(1): error" "docs/page.md(5): error" \
  "instantiated.cu: FAILED" "11 files of CUDA: 2 as they were, 9 compiled"

# What failed is read again, and so is what includes a file that changed.
rm "$tree"/{syntax,undeclared,missing_include,instantiated,ambiguous,from_device,unlaunched}.cu
put warned.cu <<< 'int main() {}'
put library.cuh <<< '#pragma once
inline int on_host() { return 1; }'
run
expect 1 "right.cu(3): error" "right.cu(4): error" "3 files of CUDA: 1 as they were, 2 compiled"
exit $((failures > 0))
