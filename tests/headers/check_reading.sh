#!/usr/bin/env bash
# check_reading.sh LINES [PAGE [STRANGERS]]: whether the sources that a reading list links, docs/reading.md
# unless given, are short enough: each is there, together they have at most LINES lines, and they name at
# most STRANGERS types, 45 unless given, that the headers under include/ define and none of the list does.
# A file that is linked twice counts once; links to pages do not count. Parameters of a file's templates
# are no types.
set -euo pipefail

most=$1 most_strangers=${3:-45}
page=${2:-"$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/docs/reading.md"}
if [ ! -e "$page" ]; then
  echo "there is no $page"
  exit 1
fi
cd "$(dirname "$page")"
mapfile -t files < <(grep -o '](\([^)]*\))' "$(basename "$page")" | sed 's/^](//; s/[#)].*//' |
  grep -E '\.(hpp|cuh|cpp|cu|h|inc)$' | awk '!seen[$0]++')
if [ "${#files[@]}" -lt 5 ]; then
  echo "$page links ${#files[@]} sources; a reading list has at least 5"
  exit 1
fi
sum=0
for file in "${files[@]}"; do
  if [ ! -e "$file" ]; then
    echo "$page links $file, which is not there"
    exit 1
  fi
  lines=$(wc -l < "$file")
  printf '%6d %s\n' "$lines" "$file"
  sum=$((sum + lines))
done
printf '%6d lines in %d files\n' "$sum" "${#files[@]}"
if [ "$sum" -gt "$most" ]; then
  echo "that is more than $most lines"
  exit 1
fi

# Of each file the types that it defines and the words that it names, of code alone.
strangers=$(find ../include -name '*.hpp' -o -name '*.cuh' -o -name '*.inc' | LC_ALL=C sort |
  awk -v list="${files[*]}" '
    function word_at(text) { return match(text, /^[A-Za-z_][A-Za-z_0-9]*/) ? substr(text, 1, RLENGTH) : "" }
    # Adds to `found` the words after each match of `before`, where what follows is `after` or the end.
    function collect(text, before, after, found,   rest, word) {
      rest = text
      while (match(rest, before)) {
        rest = substr(rest, RSTART + RLENGTH)
        word = word_at(rest)
        if (word == "") continue
        rest = substr(rest, length(word) + 1)
        if (word ~ /^[A-Z]/ && (rest ~ after || rest ~ /^ *$/)) found[word]
      }
    }
    BEGIN {
      num = split(list, listed, " ")
      for (i = 1; i <= num; i++) on_list[listed[i]]
    }
    { files[++num_files] = $0 }
    END {
      for (i = 1; i <= num_files; i++) {
        split("", here)
        split("", parameters)
        split("", words)
        is_listed = files[i] in on_list
        while ((getline line < files[i]) > 0) {
          gsub(/"([^"\\]|\\.)*"/, "", line)
          sub(/\/\/.*/, "", line)
          collect(line, "(struct|class|enum class|enum|union|concept) +", "^ *(final)? *[:{=]", here)
          collect(line, "using +", "^ *=", here)
          if (!is_listed) continue
          collect(line, "(class|typename|Element|[A-Z][A-Za-z]*Like(<[^>]*>)?) +", "^ *[,>=]", parameters)
          while (match(line, /[A-Za-z_0-9]+/)) {
            words[substr(line, RSTART, RLENGTH)]
            line = substr(line, RSTART + RLENGTH)
          }
        }
        close(files[i])
        for (word in here) {
          defined[word]
          if (is_listed) known[word]
        }
        for (word in words) if (!(word in parameters)) named[word]
      }
      for (word in named) if (word in defined && !(word in known) && word ~ /[a-z]/) print word
    }' | LC_ALL=C sort)
num_strangers=$(grep -c . <<< "$strangers" || true)
echo "$num_strangers types that they name and none of them defines"
if [ "$num_strangers" -gt "$most_strangers" ]; then
  echo "that is more than $most_strangers:" $strangers
  exit 1
fi
