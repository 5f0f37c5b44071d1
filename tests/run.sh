#!/usr/bin/env bash
# Builds and runs the tests: bash tests/run.sh [--all] [--list] [--help]
#
#   bash tests/run.sh        what a user wants to see: units, laws, parity with transformers, the
#                            server with real clients, the library for C, one program that finds the
#                            installed package; seven and a half minutes on two cores
#   bash tests/run.sh --all  everything, several times as long: also every header and program compiled,
#                            all packages, samples of the docs, aarch64 in QEMU, sanitizers, fuzzers
#                            with a fixed seed, and the GPU's tests where there is one
#   bash tests/run.sh --list the parts of both, with the number of tests where they are configured
#   bash tests/fuzz/run.sh   looks for new inputs that break the parsers, as long as you like
#
# Installs what is missing (Debian, Ubuntu). A GPU is not needed; tests that want one, or files that
# are not there, count as skipped. The last line sums up, and the exit status is 0 only if nothing
# failed.
#
#   NANOVLLM_TEST_PRESETS  which presets of CMakePresets.json; "cpu", or with --all "cpu cpu-fuzz
#                          cpu-tsan cpu-asan", unless set
#   NANOVLLM_TEST_REGEX    only the CTest entries that match; all unless set
#   NANOVLLM_CLIENT_PYTHON a Python with the packages of tests/api/serve/clients/requirements.txt; made in
#                          build/venv by pip unless set, or 'none'
#   NANOVLLM_TEST_MINUTES  presets that would begin later than this are named and count as skipped; no
#                          limit unless set
#   NANOVLLM_TEST_JOBS     tests at a time and compilers at a time; the number of cores unless set
set -uo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
source .ci/packages.sh
source .ci/clients.sh

usage() { sed -n '2,/^set /{/^set /d; s/^# \{0,1\}//; p}' tests/run.sh; }

# list PRESET LABEL WHEN WHAT: a part, and how many tests it has in the build folder of PRESET, if that
# is built.
list() {
  local count
  count=$(ctest --test-dir "build/$1" -N -L "^$2\$" 2> /dev/null | sed -n 's/^Total Tests: //p')
  if [ "${count:-0}" -eq 0 ]; then count=-; fi
  printf '%-9s %-9s %-7s %6s  %s\n' "$1" "$2" "$3" "$count" "$4"
}

all=OFF
while [ $# -gt 0 ]; do
  case $1 in
    --all) all=ON ;;
    --help) usage; exit 0 ;;
    --list)
      printf '%-9s %-9s %-7s %6s\n' preset label when tests
      list cpu cpu always "units, laws, parity; with --all more of them, and aarch64 in QEMU"
      list cpu programs always "the server with clients, the C library; with --all every program compiles"
      list cpu package always "the installed package; with --all all ways to use the library"
      list cpu headers always "the rules of the tree; with --all every header alone, samples, docs"
      list cpu docs --all "the site of docs/, its links, and its API reference"
      list cpu-asan cpu --all "AddressSanitizer and UBSan"
      list cpu-tsan cpu --all "ThreadSanitizer"
      list cpu-fuzz fuzz --all "fuzzers with a fixed seed"
      list cuda gpu --all "kernels and engines on a GPU"
      exit 0 ;;
    *) usage; echo "unknown option: $1"; exit 2 ;;
  esac
  shift
done

if [ "$all" = ON ]; then
  presets=${NANOVLLM_TEST_PRESETS:-cpu cpu-fuzz cpu-tsan cpu-asan}
else
  presets=${NANOVLLM_TEST_PRESETS:-cpu}
fi
# Tests that want weights that are not in the tree are skipped without them.
GIT_TERMINAL_PROMPT=0 timeout 120 bash examples/models/get.sh > /dev/null 2>&1 || true
regex=${NANOVLLM_TEST_REGEX:-}
jobs=${NANOVLLM_TEST_JOBS:-$(nproc)}
passed=0 failed=0 skipped=0

log=$(mktemp)
trap 'rm -f "$log"' EXIT

# stage NAME COMMAND...: runs it quietly, says how long it took, and shows its output if it fails.
stage() {
  local name=$1 begin=$SECONDS
  shift
  if "$@" > "$log" 2>&1; then
    printf '%-24s %4d s\n' "$name" $((SECONDS - begin))
    return 0
  fi
  cat "$log"
  printf '%-24s FAILED after %d s\n' "$name" $((SECONDS - begin))
  return 1
}

# Whether NANOVLLM_TEST_MINUTES are over.
is_late() { [ -n "${NANOVLLM_TEST_MINUTES:-}" ] && [ "$SECONDS" -ge $((NANOVLLM_TEST_MINUTES * 60)) ]; }

# The number after NAME=" in the head of a JUnit file.
junit_count() { grep -o -m 1 "$2=\"[0-9]*\"" "$1" | grep -o '[0-9]*'; }

# run_tests PRESET [LABEL]: CTest's output without the lines of what passed.
run_tests() {
  local preset=$1 report="$PWD/build/$1/junit.xml" begin=$SECONDS status
  local arguments=(--preset "$preset" --parallel "$jobs" --output-junit "$report")
  if [ -n "$regex" ]; then arguments+=(--tests-regex "$regex"); fi
  if [ $# -gt 1 ]; then arguments+=(--label-regex "$2"); fi
  # Of a test of several prefix caches or block sizes one is enough without --all.
  if [ "$all" = OFF ]; then
    arguments+=(--exclude-regex ' - (Radix|Uncached)Policy$| - SwappingPolicy<[12]>$')
  fi
  rm -f "$report"
  "${around[@]}" ctest "${arguments[@]}" 2>&1 |
    awk '/^ *Start +[0-9]+: / || /\.\.   Passed +[0-9.]+ sec$/ || /^(cpu|gpu|headers|programs|package|docs|fuzz) +=/ ||
         /^(Internal ctest|Test project|Label Time Summary)/ || /^ *$/ { next } { print }'
  status=${PIPESTATUS[0]}
  if [ ! -s "$report" ]; then
    echo "ctest --preset $preset left no report"
    failed=$((failed + 1))
    return
  fi
  local total failures disabled without_run
  total=$(junit_count "$report" tests) failures=$(junit_count "$report" failures)
  disabled=$(junit_count "$report" disabled) without_run=$(junit_count "$report" skipped)
  if [ "$status" -ne 0 ] && [ "$failures" -eq 0 ]; then failures=1; fi
  passed=$((passed + total - failures - disabled - without_run))
  failed=$((failed + failures))
  skipped=$((skipped + disabled + without_run))
  printf '%-24s %4d s\n' "$preset: ctest" $((SECONDS - begin))
}

# run_preset PRESET [TARGET LABEL]
run_preset() {
  local preset=$1 target=${2:-all}
  local options=("-DNANOVLLM_TEST_ALL=$all")
  if [ "$preset" = cpu ]; then
    options+=("-DNANOVLLM_CLIENT_PYTHON=$client_python" -DNANOVLLM_TEST_BESIDE=)
    # Most programs are compiled for one of the two.
    if [[ " $presets " == *" cpu-asan "* ]]; then options+=(-DNANOVLLM_TEST_BESIDE=cpu-asan); fi
  fi
  if ! stage "$preset: configure" cmake --preset "$preset" "${options[@]}"; then
    failed=$((failed + 1))
    return
  fi
  # What does not compile is one failure, and CTest reports each of its programs as not run.
  stage "$preset: build" "${around[@]}" cmake --build --preset "$preset" --target "$target" \
    --parallel "$jobs" -- -k 0 || failed=$((failed + 1))
  run_tests "$preset" ${3:+"$3"}
}

install_packages "${library_packages[@]}" "${server_packages[@]}" catch2 nlohmann-json3-dev \
  libcli11-dev libbenchmark-dev libopenmpi-dev openmpi-bin binutils || exit 1
if command -v ccache > /dev/null; then
  export CMAKE_CXX_COMPILER_LAUNCHER=ccache
  # What ccache's manual asks for where headers are precompiled.
  export CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
fi
find_nvcc || true
if [ "$all" = ON ]; then
  install_packages g++-aarch64-linux-gnu:aarch64-linux-gnu-g++ qemu-user:qemu-aarch64 ||
    echo "skipped: cpu/aarch64, there is no cross compiler or no QEMU"
  install_packages doxygen:doxygen || echo "skipped: docs/site, there is no doxygen"
fi

# Clients of the server. Wheels alone: what needs a compiler to install is no client of ours.
client_python=
if [[ " $presets " == *" cpu "* ]]; then
  client_python=$(find_client_python "$PWD/build/venv" "$PWD/tests/api/serve/clients/requirements.txt") ||
    echo "skipped: programs/clients_*, pip cannot install them"
fi

for preset in $presets; do
  if is_late; then
    echo "skipped: preset $preset, ${NANOVLLM_TEST_MINUTES} minutes are over"
    skipped=$((skipped + 1))
    continue
  fi
  around=()
  case $preset in
    cpu-tsan)
      # ThreadSanitizer of GCC 12 needs the address-space layout of older kernels.
      if setarch -R true 2> /dev/null; then around=(setarch -R); fi ;;
    cpu-fuzz)
      if ! compgen -G 'tests/fuzz/*_fuzzer.cpp' > /dev/null; then continue; fi
      if ! echo 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }' |
          clang++ -fsanitize=fuzzer -x c++ - -o /dev/null 2> /dev/null; then
        count=$(ls tests/fuzz/*_fuzzer.cpp | wc -l)
        echo "skipped: $count fuzzers, there is no clang++ with libFuzzer"
        skipped=$((skipped + count))
        continue
      fi ;;
  esac
  run_preset "$preset"
done

around=()
gpu_files=$(find tests -name '*_test.cu' | wc -l)
if [ "$all" = ON ] && [ "$gpu_files" -gt 0 ]; then
  if has_gpu && command -v nvcc > /dev/null; then
    run_preset cuda gpu_tests gpu
  else
    echo "skipped: $gpu_files GPU test programs, there is no GPU or no nvcc"
    skipped=$((skipped + gpu_files))
  fi
fi

echo "Total time $((SECONDS / 60)) min $((SECONDS % 60)) s"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
