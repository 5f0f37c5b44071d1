#!/usr/bin/env bash
# compare.sh OLD NEW: whether two outputs of fingerprint agree. Each may hold the lines of several
# runs one after the other; a case then agrees if the two sides have a line in common. Prints a line
# for each case that does not agree, or is on one side alone, and sums up.
set -euo pipefail

if [ $# -ne 2 ]; then sed -n '2,4s/^# //p' "$0"; exit 2; fi
awk '
  FNR == 1 { side++ }
  !/ tokens=/ { next }
  { names[$1] = 1; on[side, $1] = on[side, $1] "\n" $0; seen[side, $0] = 1 }
  END {
    for (name in names) {
      cases++
      equal = 0
      count = split(on[2, name], lines, "\n")
      for (i = 2; i <= count; i++) if ((1, lines[i]) in seen) equal = 1
      if (equal) continue
      different++
      if (on[1, name] == "") print name ": not in the old output"
      else if (on[2, name] == "") print name ": not in the new output"
      else print name ":\n  old" on[1, name] "\n  new" on[2, name]
    }
    print cases + 0 " cases, " different + 0 " differ"
    exit cases == 0 || different > 0
  }' "$1" "$2"
