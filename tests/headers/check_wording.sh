#!/usr/bin/env bash
# check_wording.sh COMPILER [FLAG...]: whether the compiler says of every fault in wording.cpp what a
# comment there wants it to say.
set -uo pipefail

compiler=$1
shift
source="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/wording.cpp"
said=$("$compiler" -std=c++20 -fsyntax-only "$@" "$source" 2>&1)
status=0
while read -r wanted; do
  if ! grep -qF -- "$wanted" <<< "$said"; then
    echo "not said: $wanted"
    status=1
  fi
done < <(sed -n 's|^// says: ||p' "$source")
exit $status
