#!/usr/bin/env bash
# Shows that check_reading.sh sums each linked source once, and what it refuses.
set -euo pipefail

check="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/check_reading.sh"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/docs" "$scratch/include"
page=$scratch/docs/reading.md
failures=0

# Five sources of 10 lines; the first one is linked three times.
for i in 1 2 3 4 5; do seq 10 > "$scratch/include/h$i.hpp"; done
write_page() {
  echo '| [h1](../include/h1.hpp) | see [a part](../include/h1.hpp#L3) and [page](other.md) |'
  for i in "$@"; do echo "[h$i](../include/h$i.hpp)"; done
}

# expect 0|1 WORDS LINES PAGE [STRANGERS]
expect() {
  local status=0
  output=$("$check" "${@:3}") || status=$?
  if [ "$status" -ne "$1" ] || ! grep -qF -- "$2" <<< "$output"; then
    echo "expected $1 and '$2', got $status: $output"
    failures=$((failures + 1))
  fi
}

expect 1 'there is no' 50 "$page"
write_page 1 2 3 4 5 > "$page"
expect 0 '50 lines in 5 files' 50 "$page"
expect 1 'more than 49 lines' 49 "$page"
# Of the types that h1 names, Far is a stranger: the list defines Near, T is a parameter, Gone is nowhere.
printf '%s\n' 'template <class T>' 'void f(T, Near, Far, Gone);  // Other' > "$scratch/include/h1.hpp"
echo 'struct Near {};' > "$scratch/include/h2.hpp"
printf '%s\n' 'class Far;' 'class Far {};' 'using T = int;' 'enum class Other {};' > "$scratch/include/far.hpp"
expect 0 '1 types that they name' 50 "$page" 1
expect 1 'more than 0: Far' 50 "$page" 0
write_page 2 3 > "$page"
expect 1 'links 3 sources' 50 "$page"
write_page 1 2 3 4 5 6 > "$page"
expect 1 'h6.hpp, which is not there' 60 "$page"
exit $((failures > 0))
