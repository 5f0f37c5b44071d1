#!/usr/bin/env bash
# Looks for inputs that break the parsers: bash tests/fuzz/run.sh [SECONDS [NAME...]]
#
# Builds the preset cpu-fuzz and runs each fuzzer, or those named, for SECONDS seconds (600 unless
# given) with a new seed, as many at a time as there are cores. Inputs that reach new code are kept in
# build/cpu-fuzz/found/NAME and used again the next time; those that fail are in
# build/cpu-fuzz/failed. The exit status is 0 only if none failed. Where a run has found something,
# mend it, and put the input into tests/fuzz/corpus/NAME.
set -euo pipefail

seconds=${1:-600}
if ! [[ "$seconds" =~ ^[1-9][0-9]*$ ]]; then
  sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
  exit 2
fi
shift $(($# > 0 ? 1 : 0))
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
names=("$@")
if [ "${#names[@]}" -eq 0 ]; then
  for source in tests/fuzz/*_fuzzer.cpp; do
    name=$(basename "$source" _fuzzer.cpp)
    names+=("$name")
  done
fi
for name in "${names[@]}"; do
  if [ ! -e "tests/fuzz/${name}_fuzzer.cpp" ]; then
    echo "there is no fuzzer '$name'; there are: $(cd tests/fuzz && echo *_fuzzer.cpp | sed 's/_fuzzer.cpp//g')"
    exit 2
  fi
done

cmake --preset cpu-fuzz
cmake --build --preset cpu-fuzz --parallel "$(nproc)" --target "${names[@]/%/_fuzzer}"
mkdir -p build/cpu-fuzz/failed

# run_fuzzer NAME: its last lines, which say how far it came.
run_fuzzer() {
  local name=$1 folders=("build/cpu-fuzz/found/$1")
  mkdir -p "${folders[0]}"
  if [ -d "tests/fuzz/corpus/$name" ]; then folders+=("tests/fuzz/corpus/$name"); fi
  if ! "build/cpu-fuzz/tests/${name}_fuzzer" -max_total_time="$seconds" -rss_limit_mb=4096 \
      -artifact_prefix="build/cpu-fuzz/failed/$name-" "${folders[@]}" \
      > "build/cpu-fuzz/found/$name.log" 2>&1; then
    tail -n 40 "build/cpu-fuzz/found/$name.log"
    echo "$name: FAILED"
    return 1
  fi
  echo "$name: $(grep -o '^Done.*' "build/cpu-fuzz/found/$name.log")"
}
export -f run_fuzzer
export seconds
printf '%s\n' "${names[@]}" | xargs -P "$(nproc)" -I {} bash -c 'run_fuzzer {}'
