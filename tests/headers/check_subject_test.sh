#!/usr/bin/env bash
# Shows what check_subject.sh takes and what it refuses.
set -euo pipefail

check="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/check_subject.sh"
message=$(mktemp)
trap 'rm -f "$message"' EXIT
failures=0

# expect 0|1 MESSAGE
expect() {
  local status=0
  printf '%s\n' "$2" > "$message"
  "$check" "$message" > /dev/null || status=$?
  if [ "$status" -ne "$1" ]; then
    echo "expected $1, got $status: $2"
    failures=$((failures + 1))
  fi
}

long=$(printf 'kv: %068d' 0)
expect 0 'kv: count pins in check_invariants'
expect 0 'cuda/linear, ops: one key for all dense layers'
expect 0 "$long"
expect 0 $'kv: count pins\n\nA block that is pinned twice was freed once.'
expect 0 'Merge branch main'
expect 1 "${long}0"
expect 1 'count pins in check_invariants'
expect 1 'kv:count pins'
expect 1 'kv: count pins.'
expect 1 'wip: pins'
expect 1 'kv: WIP'
expect 1 ''
expect 1 $'kv: count pins\nA block that is pinned twice was freed once.'
exit $((failures > 0))
