#!/usr/bin/env bash
# check_readme.sh COMPILER README [FLAG...]: whether README's C++ compiles and its first program catches
# the library's errors, and whether README says where a model comes from and how to find the library
# after an installation.
set -euo pipefail

compiler=$1 readme=$2
shift 2
program=$(mktemp --suffix=.cpp)
trap 'rm -f "$program"' EXIT
awk '/^```/ { if (inside) exit; inside = /^```cpp/; next } inside' "$readme" > "$program"
"$(dirname "${BASH_SOURCE[0]}")/check_docs.sh" "$compiler" "$readme" "$@"

status=0
# says FILE TEXT WHAT
says() {
  if ! grep -qF -- "$2" "$1"; then
    echo "README does not say $3: '$2' is missing" >&2
    status=1
  fi
}
says "$program" "catch (const nvllm::Error& error)" "what its program does without a model"
says "$readme" "hf download Qwen/Qwen3-0.6B --local-dir Qwen3-0.6B" "where a model comes from"
says "$readme" "find_package(nanovllm REQUIRED)" "how to find the library"
says "$readme" "cmake --install build" "how to install the library"
exit $status
