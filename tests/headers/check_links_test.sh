#!/usr/bin/env bash
# Shows that check_links.sh catches what it is for: a small checkout that passes, then one mistake at
# a time, which must be named.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failures=0

fresh_checkout() {
  rm -rf "${scratch:?}/tree"
  mkdir -p "$scratch/tree"/{docs,include/nanovllm/kv,benchmarks/results}
  touch "$scratch/tree/include/nanovllm/kv/pool.hpp" "$scratch/tree/benchmarks/results/cpu_ops.json"
  printf '# Other page\n## A heading, `with` code\n' > "$scratch/tree/docs/other.md"
  cat > "$scratch/tree/README.md" <<'PAGE'
# Page
[a page](docs/other.md), [a heading](docs/other.md#a-heading-with-code), [here](#page),
`kv/pool.hpp`,
`include/nanovllm/kv/`, `kv/*.hpp`, `cpu_ops.json`, [elsewhere](https://example.org/none)
```console
$ cat [no](link.md) `kv/none.hpp`
```
PAGE
}

expect_failure() {  # LINE WORDS
  fresh_checkout
  echo "$1" >> "$scratch/tree/README.md"
  local output
  if output=$("$here/check_links.sh" "$scratch/tree"); then
    echo "not found: $1"
    failures=1
  elif [[ $output != *"$2"* ]]; then
    echo "wrong words for '$1': $output"
    failures=1
  fi
}

fresh_checkout
"$here/check_links.sh" "$scratch/tree" || { echo "a checkout without mistakes fails"; failures=1; }
expect_failure '[gone](docs/gone.md)' 'no file for the link docs/gone.md'
expect_failure '[gone](docs/other.md#gone)' 'no heading for the link docs/other.md#gone'
expect_failure '[gone](#gone)' 'no heading for the link #gone'
expect_failure 'see `kv/gone.hpp`' 'no file for the path kv/gone.hpp'
expect_failure 'see `include/nanovllm/gone/`' 'no file for the path include/nanovllm/gone'
expect_failure 'see `kv/gone_*.hpp`' 'no file for the path kv/gone_*.hpp'
expect_failure 'see `cpu_gone.json`' 'no file for the path cpu_gone.json'
fresh_checkout
touch "$scratch/tree/benchmarks/results/cuda_unnamed.json"
if "$here/check_links.sh" "$scratch/tree" > /dev/null; then
  echo "not found: a result that no page names"
  failures=1
fi
exit $failures
