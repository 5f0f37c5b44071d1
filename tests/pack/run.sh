#!/usr/bin/env bash
# run.sh [OPTION...] [PATTERN] [-- ARGUMENT...]: runs the test programs in bin/ whose name matches
# the extended regular expression PATTERN, all unless given, with the ARGUMENTs, e.g. a test case's
# name. One line a program, with the output of what fails; a program that programs.txt names and that
# was not built has failed. The last line sums up, and the exit status is 0 only if something passed
# and nothing failed.
#
#   --repeat N    each program N times
#   --load        beside as many busy processes as there are cores
#   --benchmarks  the kernels' benchmarks and the fingerprint too; outputs go to results/
#   --timeout S   seconds that a program may take; 900 unless given
set -uo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")"
repeat=1 load=0 limit=900 pattern=. kinds='^test_' arguments=()
while [ $# -gt 0 ]; do
  case $1 in
    --repeat) repeat=$2; shift 2 ;;
    --load) load=1; shift ;;
    --benchmarks) kinds='^(test_|cuda_|fingerprint)'; shift ;;
    --timeout) limit=$2; shift 2 ;;
    --) shift; arguments=("$@"); break ;;
    -*) sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 2 ;;
    *) pattern=$1; shift ;;
  esac
done

# Where the CUDA Toolkit or Python's packages keep the large libraries.
for folder in /usr/local/cuda/lib64 /usr/local/cuda-*/lib64 \
    $(python3 -c 'import sys; print(*sys.path, sep="\n")' 2> /dev/null |
      while read -r path; do ls -d "$path"/nvidia/*/lib 2> /dev/null; done); do
  if compgen -G "$folder/libcublasLt.so*" > /dev/null ||
      compgen -G "$folder/libnccl.so*" > /dev/null; then
    LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder
  fi
done
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}

log=$(mktemp)
burners=()
trap 'rm -f "$log"; [ ${#burners[@]} -eq 0 ] || kill "${burners[@]}" 2> /dev/null' EXIT
if [ "$load" -eq 1 ]; then
  for _ in $(seq "$(nproc)"); do
    (while :; do :; done) &
    burners+=($!)
  done
  disown -a
fi

passed=0 failed=0 skipped=0
if [ ! -d bin ]; then tar -xzf bin.tar.gz || exit 1; fi
if [ ! -s programs.txt ]; then
  echo "there is no programs.txt: build.sh and pack_gpu.sh write the names of the programs there"
  exit 1
fi
# Files that come from elsewhere may have lost the permission to be run.
chmod +x bin/* 2> /dev/null
mapfile -t names < <(grep -E "$kinds" programs.txt | grep -E -- "$pattern")
for name in "${names[@]}"; do
  program=bin/$name
  if [ ! -x "$program" ]; then
    failed=$((failed + 1))
    printf '%-44s FAILED: it was not built\n' "$name"
    continue
  fi
  for run in $(seq "$repeat"); do
    begin=$SECONDS label=$name
    if [ "$repeat" -gt 1 ]; then label="$name $run/$repeat"; fi
    timeout --kill-after=10 "$limit" "$program" ${arguments[@]+"${arguments[@]}"} > "$log" 2>&1
    status=$?
    if [[ $name != test_* ]]; then mkdir -p results && cp "$log" "results/$name.txt"; fi
    cases=$(grep -oE 'in [0-9]+ test cases?\)|^test cases: +[0-9]+' "$log" |
      grep -oE '[0-9]+' | tail -n 1)
    absent=$(grep -ciw '^ *skipped' "$log")
    if [ "$status" -ne 0 ] || grep -q 'No test cases matched' "$log"; then
      failed=$((failed + 1))
      cat "$log"
      printf '%-44s FAILED after %d s (status %d)\n' "$label" $((SECONDS - begin)) "$status"
    elif [ "$absent" -gt 0 ] && [ "$absent" -ge "${cases:-1}" ]; then
      skipped=$((skipped + 1))
      printf '%-44s skipped\n' "$label"
    else
      passed=$((passed + 1))
      printf '%-44s passed in %d s%s%s\n' "$label" $((SECONDS - begin)) \
        "${cases:+, $cases cases}" "$([ "$absent" -eq 0 ] || echo ", $absent 'skipped'")"
    fi
  done
done

echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
