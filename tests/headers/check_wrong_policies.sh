#!/usr/bin/env bash
# check_wrong_policies.sh COMPILER [FLAG...]: what the compiler says of the policies in
# wrong_policies.cpp, and with a library of those in unlinked_policies.cpp. There is one error for
# each, in their order, and nothing else. Its line has the first sentence that a comment there wants,
# and what belongs to it the others. It takes at most 15 lines, of which three say where the header was
# included.
set -uo pipefail

compiler=$1
shift
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
flags=(-std=c++20 -fsyntax-only "$@")
if "$compiler" --version | grep -q clang; then flags+=(-ferror-limit=0); fi

# check SOURCE LEAST: one of the files, which has at least LEAST policies.
check() {
  { LC_ALL=C "$compiler" "${flags[@]}" "$1" 2>&1 || true; } | awk -v source="$1" -v least="$2" '
  BEGIN {
    while ((getline line < source) > 0) {
      if (line ~ /^namespace /) name = substr(line, 11, length(line) - 12)
      if (line !~ /^\/\/ says: /) continue
      line = substr(line, 10)
      if (name != names[cases]) names[++cases] = name
      wanted[cases, ++num_wanted[cases]] = line
    }
  }

  # clang++ begins with the error; g++ leads to it.
  /^In file included from / || /^ +from / || /^[0-9]+ errors? generated/ { next }
  /: In instantiation of / || / static_assert failed / { if (!begun || said_error) begin() }
  { lines[at]++; text[at] = text[at] $0 "\n" }
  / error: / { errors[at]++; error[at] = $0; said_error = 1 }

  function begin() { at++; begun = 1; said_error = 0 }

  END {
    for (i = 1; i <= cases; i++) {
      if (index(error[i], wanted[i, 1]) == 0) fault(i, "its error is not: " wanted[i, 1])
      for (j = 2; j <= num_wanted[i]; j++)
        if (index(text[i], wanted[i, j]) == 0) fault(i, "not said: " wanted[i, j])
      if (errors[i] != 1 || lines[i] > 12) fault(i, errors[i] " errors in " lines[i] " lines")
    }
    if (at > cases || lines[0] > 0) {
      print "more than one error for each:\n" text[0] text[cases + 1]
      faults++
    }
    print cases " wrong policies, " faults + 0 " faults"
    exit faults > 0 || cases < least
  }
  function fault(i, what) {
    print names[i] ": " what "\n" text[i]
    faults++
  }'
}

status=0
check "$here/wrong_policies.cpp" 20 || status=1
if [[ " $* " == *" -DNANOVLLM_SEPARATE "* ]]; then check "$here/unlinked_policies.cpp" 3 || status=1; fi
exit "$status"
