#!/usr/bin/env bash
# Shows that check_includes.sh finds a name whose header is missing, and nothing else.
set -euo pipefail

check="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/check_includes.sh"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failures=0

# expect 0|1 WORDS: of the header that is read from standard input, after one that has it all.
expect() {
  local status=0
  printf '#include <vector>\n#include <string>\n' > "$scratch/a.hpp"
  cat > "$scratch/b.hpp"
  output=$("$check" "$scratch") || status=$?
  if [ "$status" -ne "$1" ] || ! grep -qF -- "$2" <<< "$output"; then
    echo "expected $1 and '$2', got $status: $output"
    failures=$((failures + 1))
  fi
}

expect 1 'b.hpp:2: std::vector needs #include <vector>' <<< '#include <string>
std::vector<int> x;'
expect 1 'std::sort needs #include <algorithm>' <<< 'auto f = [](auto& x) { std::ranges::sort(x); };'
expect 1 'std::size_t needs #include <cstddef>' <<< '  ::std::size_t n = 0;'
expect 0 '2 headers include what they use' <<< '#include <vector>
std::vector<int> x;'
expect 0 '2 headers' <<< 'int x;
#if NANOVLLM_BODIES
#include <vector>
std::vector<int> y;
#endif'
expect 0 '2 headers' <<< '// std::vector
const char* text = "std::string, \"std::map\"";
my_std::vector<int> z; nanovllm::std_like::set w; std::unknown_name v;'
expect 0 '2 headers' <<< 'using X = std::ranges::array;  // another name'
exit $((failures > 0))
