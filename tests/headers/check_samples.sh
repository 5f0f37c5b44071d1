#!/usr/bin/env bash
# check_samples.sh CXX CC INCLUDE_FOLDER [FLAG...]: whether the samples in the headers' comments
# compile. A sample is a block between '/// ```cpp' (in a header for C '/// ```c') and '/// ```'. All
# of C++ go into one translation unit behind samples.hpp, which declares what they take as given:
# one that begins with a declaration as it is, any other one as the body of a function. Text that is
# indented by four blanks, without a fence, is a drawing or an outline and is not compiled.
set -euo pipefail

cxx=$1 cc=$2 root=$3
shift 3
folder=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$root"
mapfile -t files < <(find nanovllm -name '*.h' -o -name '*.hpp' -o -name '*.cuh' | LC_ALL=C sort)

# samples LANGUAGE: the samples of this language as a translation unit, without includes.
samples() {
  awk -v wanted="$1" '
    function complain(text) {
      print FILENAME ":" FNR ": " text > "/dev/stderr"
      failed = 1
    }
    FNR == 1 && language != "" { failed = 1; print before ": a sample has no end" > "/dev/stderr" }
    FNR == 1 { language = ""; before = FILENAME }
    /^ *\/\/\/ *```/ {
      name = $0
      sub(/^ *\/\/\/ *```/, "", name)
      if (name == "") {
        if (language == wanted) {
          print whole ? "namespace sample_" ++count " {" : "void sample_" ++count "(void) {"
          printf "#line %d \"%s\"\n%s}\n", begin, FILENAME, block
        }
        if (language == "") complain("the end of a sample that has no beginning")
        language = ""
      } else if (language != "") {
        complain("a sample begins within another")
      } else if (name !~ /^(cpp|c|cmake|console)$/) {
        complain("a sample is of cpp, c, cmake or console, not of \"" name "\"")
      } else {
        if (name == "cpp" && FILENAME ~ /\.cuh$/) complain("samples of .cuh files are not compiled")
        language = name
        block = ""
        begin = FNR + 1
      }
      next
    }
    language != "" {
      line = $0
      if (line !~ /^ *\/\/\//) complain("a sample has a line without ///")
      sub(/^ *\/\/\/ ?/, "", line)
      if (block == "") whole = line ~ /^(template|struct|class|enum|namespace|#)/
      block = block line "\n"
    }
    END {
      if (language != "") complain("a sample has no end")
      if (count == 0) complain("no samples of " wanted)
      exit failed
    }' "${files[@]}"
}

{ echo '#include "samples.hpp"'; samples cpp; } > "$work/samples.cpp"
"$cxx" -std=c++20 -fsyntax-only -Wall -Wextra -Werror -Wno-unused "-I$folder" "$@" "$work/samples.cpp"
if [ -n "$cc" ]; then
  { echo '#include "samples.h"'; samples c; } > "$work/samples.c"
  "$cc" -std=c99 -fsyntax-only -Wall -Wextra -Werror -Wno-unused "-I$folder" "-I$root" "$work/samples.c"
fi
