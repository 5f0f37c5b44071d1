#!/usr/bin/env bash
# check_endings.sh PROGRAM: whatever ends one of two processes ends the job, soon, with a
# message that names the rank and the cause. PROGRAM is endings.cpp.
set -uo pipefail

program=$1
log=$(mktemp)
trap 'rm -f "$log"' EXIT
failures=0

# ending WAY RANK STATUS PATTERN: STATUS is 0, or 1 for any other than 0.
ending() {
  local way=$1 rank=$2 status=$3 pattern=$4 got=0 begin=$SECONDS
  timeout --kill-after=5 30 "$(dirname "$0")/mpirun.sh" -n 2 "$program" "$way" "$rank" > "$log" 2>&1 || got=$?
  if [ "$got" -eq 124 ]; then
    echo "FAILED: $way of rank $rank: the job has not ended after 30 s"
  elif [ $((got != 0)) -ne "$status" ]; then
    echo "FAILED: $way of rank $rank: the status is $got"
  elif ! grep -qE -- "$pattern" "$log"; then
    echo "FAILED: $way of rank $rank: nothing has '$pattern'"
  else
    echo "$way of rank $rank: $((SECONDS - begin)) s"
    return
  fi
  cat "$log"
  failures=$((failures + 1))
}

ending well 1 0 '^20 tokens'
for rank in 0 1; do
  ending throw $rank 1 "nanovllm: rank $rank of 2, on .*, ends the job: the machine is on fire"
  ending kill $rank 1 "process rank $rank .* exited on signal 9"
  ending exception $rank 1 "nanovllm: rank $rank of 2, on .*: an exception has ended its group"
done
ending hang 1 1 'nanovllm: rank [01] of 2, on .*: a step has not ended within 1.00 s'
ending early 1 1 'nanovllm: rank 1 of 2, on .*: its engine has gone before that of rank 0'
ending single 0 1 'main: ProcessGroup: MPI was initialised for one thread'
[ "$failures" -eq 0 ]
