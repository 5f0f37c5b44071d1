#!/usr/bin/env bash
# Shows that check_coverage.sh catches what it is for: plants one fault at a time in a small tree.
set -euo pipefail

check="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/check_coverage.sh"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failures=0

long_header() { { echo '#pragma once'; seq -f '// %g' 99; } > "$scratch/include/nanovllm/$1"; }
suite() { printf '#include "nanovllm/%s"\n' "$2" > "$scratch/tests/$1"; }
list() { printf '%s\n' "$@" > "$scratch/tests/headers/covered_by.txt"; }

# pool.hpp has a test of its name, list.hpp is covered by it through pool.hpp; short.hpp needs none.
fresh_tree() {
  rm -rf "$scratch/include" "$scratch/tests"
  mkdir -p "$scratch/include/nanovllm/kv" "$scratch/tests/kv" "$scratch/tests/headers"
  long_header kv/list.hpp
  long_header kv/pool.hpp
  echo '#include "nanovllm/kv/list.hpp"' >> "$scratch/include/nanovllm/kv/pool.hpp"
  echo '#pragma once' > "$scratch/include/nanovllm/kv/short.hpp"
  suite kv/pool_test.cpp kv/pool.hpp
  list '# a comment' 'kv kv/pool_test.cpp'
}

# expect WORDS DESCRIPTION COMMAND...; no words where there is nothing to complain of.
expect() {
  local words=$1 description=$2 status=0
  shift 2
  fresh_tree
  "$@"
  output=$("$check" "$scratch" 2>&1) || status=$?
  if [ -z "$words" ] && [ "$status" -eq 0 ]; then return; fi
  if [ -n "$words" ] && [ "$status" -ne 0 ] && grep -qF -- "$words" <<< "$output"; then return; fi
  echo "FAILED: $description: expected '$words', got: $output"
  failures=$((failures + 1))
}

not_included() { long_header kv/new.hpp; }
own_test() { suite kv/list_test.cpp kv/list.hpp; }
short_now() { echo '#pragma once' > "$scratch/include/nanovllm/kv/list.hpp"; }
listed_by_name() { list 'kv/list.hpp kv/pool_test.cpp'; }
listed_both_ways() { list 'kv/list.hpp kv/pool_test.cpp' 'kv kv/pool_test.cpp'; }
shell_suite() { : > "$scratch/tests/kv/kv_test.sh"; list 'kv kv/kv_test.sh'; }

expect '' 'a tree that keeps the rule' true
expect '' 'a header by its name' listed_by_name
expect '' 'a suite that is no C++' shell_suite
expect 'list.hpp: 100 lines, no test of its name' 'a header that no line names' list '# nothing'
expect 'none of these suites includes kv/new.hpp' 'a header that its suite does not include' not_included
expect 'there is no test tests/kv/gone_test.cpp' 'a suite that is not there' list 'kv kv/gone_test.cpp'
expect 'needs this line' 'a header with a test of its name' own_test
expect 'needs this line' 'a header that is short now' short_now
expect 'needs this line' 'a folder whose headers are all named' listed_both_ways
expect 'needs this line' 'a folder that is not there' list 'kv kv/pool_test.cpp' 'sched kv/pool_test.cpp'
expect 'no suite is named' 'a line without a suite' list 'kv'
exit $((failures > 0))
