#!/usr/bin/env bash
# Shows that check_words.sh counts what it is for, and that its numbers only go down.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failures=0

fresh_tree() {
  rm -rf "${scratch:?}"/*
  mkdir -p "$scratch/include/nanovllm/"{engine/core,sched,cpu,with/tiers} "$scratch/tests/headers"
  printf '#include "nanovllm/with/tiers/disk.hpp"\nint disk;\nint Swapped;  // to disk\n' \
    > "$scratch/include/nanovllm/engine/core/step.hpp"
  echo 'int steps;' > "$scratch/include/nanovllm/sched/disk_plan.hpp"
  echo 'int disk;' > "$scratch/include/nanovllm/cpu/op.hpp"
  echo 'int disk;' > "$scratch/include/nanovllm/with/tiers/disk.hpp"
  printf '# a list\ntiers %s disk|swap\nbeams 4 beam\n' "$1" > "$scratch/tests/headers/words.txt"
}
complain() { echo "FAILED: $1"; failures=$((failures + 1)); }

fresh_tree 2
if ! output=$("$here/check_words.sh" "$scratch"); then complain "two lines of two: $output"; fi
if ! grep -q '2 lines of 3 speak of a wing' <<< "$output"; then complain "the sum: $output"; fi
fresh_tree 1
if output=$("$here/check_words.sh" "$scratch"); then complain "two lines of one are not noticed"; fi
if ! grep -qF 'tiers: 2 lines of the house speak of it; at most 1' <<< "$output"; then
  complain "what is said of two lines of one: $output"
fi
if "$here/check_words.sh" --lower "$scratch" > /dev/null; then complain "--lower raises a number"; fi
if ! grep -q '^tiers 1 ' "$scratch/tests/headers/words.txt"; then complain "--lower has raised a number"; fi
fresh_tree 9
"$here/check_words.sh" --lower "$scratch" > /dev/null
if [ "$(grep -v '^#' "$scratch/tests/headers/words.txt")" != $'tiers 2 disk|swap\nbeams 0 beam' ]; then
  complain "--lower has left $(cat "$scratch/tests/headers/words.txt")"
fi
rm "$scratch/tests/headers/words.txt"
if "$here/check_words.sh" "$scratch" > /dev/null; then complain "no list is not noticed"; fi
rm -r "$scratch/include/nanovllm/"{engine,sched}
if "$here/check_words.sh" "$scratch" > /dev/null; then complain "no headers are not noticed"; fi
if [ "$failures" -gt 0 ]; then exit 1; fi
echo "words are counted"
