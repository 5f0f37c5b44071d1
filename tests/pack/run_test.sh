#!/usr/bin/env bash
# Shows that run.sh counts every program that build.sh was to build, with a folder of programs that a
# made-up nvcc makes: scripts that pass, fail or say 'skipped', as their sources are called. No GPU.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
pack="$scratch/pack" failures=0
mkdir -p "$scratch/tools" "$pack/tests/cuda" "$pack/tests/with/mpi" "$pack/benchmarks/cuda_ops" "$pack/examples"
cp "$here/build.sh" "$here/run.sh" "$pack"
touch "$pack/tests/cuda/"{passes,skips}_test.cu "$pack/tests/with/mpi/passes_test.cu" \
  "$pack/benchmarks/cuda_ops/passes_bench.cu" "$pack/examples/generate.cu"
mkdir -p "$pack/benchmarks/"{engine_bench,prefix_cache,speculation} "$pack/tests/oracle/fingerprint"
touch "$pack/benchmarks/engine_bench/"{engine_bench,moe_engine_bench,quantized_engine_bench}.cu \
  "$pack/benchmarks/prefix_cache/"{prefix_cache,ladder}.cu \
  "$pack/benchmarks/speculation/speculation_bench.cu" "$pack/tests/oracle/fingerprint/fingerprint.cu"

cat > "$scratch/tools/nvcc" << 'NVCC'
#!/usr/bin/env bash
while [ $# -gt 0 ]; do
  case $1 in
    -MF) dependencies=$2; shift ;;
    -o) output=$2; shift ;;
    *.cu) source=$1 ;;
  esac
  shift
done
case $source in
  */broken_test.cu) echo "$source(1): error: made up"; exit 1 ;;
  */fails_test.cu) says='exit 1' ;;
  */skips_test.cu) says='echo "skipped: no GPU"' ;;
  *) says='echo "All tests passed (3 assertions in 2 test cases)"' ;;
esac
echo "x: $source" > "$dependencies"
printf '#!/bin/sh\n%s\n' "$says" > "$output"
chmod +x "$output"
NVCC
chmod +x "$scratch/tools/nvcc"
export PATH="$scratch/tools:$PATH"

# expect STATUS WORDS COMMAND...
expect() {
  local wanted=$1 words=$2 status=0 output
  shift 2
  output=$("$@" 2>&1) || status=$?
  if [ "$status" -ne "$wanted" ] || ! grep -qE -- "$words" <<< "$output"; then
    echo "$*: expected status $wanted and '$words', got $status: $output"
    failures=$((failures + 1))
  fi
}

mkdir "$pack/bin"
expect 1 'there is no programs.txt' "$pack/run.sh"
rmdir "$pack/bin"
expect 0 '^12 programs in' "$pack/build.sh"
expect 0 '^2 passed, 0 failed, 1 skipped$' "$pack/run.sh"

# One that does not compile, though it did before, and one that fails.
touch "$pack/tests/cuda/fails_test.cu"
mv "$pack/tests/cuda/passes_test.cu" "$pack/tests/cuda/broken_test.cu"
expect 1 '^test_cuda_broken_gpu: FAILED' "$pack/build.sh"
expect 1 '^test_cuda_broken_gpu +FAILED: it was not built$' "$pack/run.sh"
expect 1 '^1 passed, 2 failed, 1 skipped$' "$pack/run.sh"
expect 1 '^0 passed, 1 failed, 0 skipped$' "$pack/run.sh" --repeat 3 broken
expect 0 '^1 passed, 0 failed, 0 skipped$' "$pack/run.sh" mpi

# A build that was broken off leaves programs that are missing, by name.
rm "$pack/bin/test_with_mpi_passes_gpu"
expect 1 '^test_with_mpi_passes_gpu +FAILED: it was not built$' "$pack/run.sh"

# A part of the programs is built, and the rest is still wanted; what the sources have no more is not.
rm "$pack/tests/cuda/"{broken,fails}_test.cu
expect 0 '^1 programs in' "$pack/build.sh" skips
expect 1 '^0 passed, 1 failed, 1 skipped$' "$pack/run.sh"
expect 0 '^1 programs in' "$pack/build.sh" test_with_mpi
expect 0 '^1 passed, 0 failed, 1 skipped$' "$pack/run.sh"

# In a new folder only what was to be built is wanted.
rm -r "$pack/bin" "$pack/programs.txt"
expect 0 '^1 programs in' "$pack/build.sh" test_with_mpi
expect 0 '^1 passed, 0 failed, 0 skipped$' "$pack/run.sh"
exit $((failures > 0))
