#!/usr/bin/env bash
# check_words.sh [--lower] [ROOT]: how many lines of the rooms that every engine has speak of wings,
# of capabilities that are folders of with/. tests/headers/words.txt has a line a wing:
#
#   WING MOST WORDS    at most MOST lines match WORDS, an extended regular expression without regard
#                      to case; so the number may only go down
#
# Lines of includes are not counted: house_arrows.txt lists them. With --lower the numbers of the list
# become those of the tree, where they are lower.
set -euo pipefail

lower=0
if [ "${1:-}" = --lower ]; then
  lower=1
  shift
fi
cd "${1:-"$(dirname "${BASH_SOURCE[0]}")/../.."}"
list=tests/headers/words.txt
rooms=(engine sched kv model/layers)
mapfile -t files < <(cd include/nanovllm && find "${rooms[@]}" -type f 2> /dev/null | LC_ALL=C sort)
if [ "${#files[@]}" -eq 0 ]; then
  echo "no headers in ${rooms[*]} under $PWD/include/nanovllm"
  exit 1
fi
if [ ! -s "$list" ]; then
  echo "there is no $list"
  exit 1
fi

lines=$(cd include/nanovllm && grep -nvE '^[ \t]*#[ \t]*include' "${files[@]}")
status=0 all='' new=''
while IFS= read -r row; do
  if [[ $row == '#'* || -z $row ]]; then
    new+=$row$'\n'
    continue
  fi
  read -r wing most words <<< "$row"
  # After the file's name and the number of the line.
  count=$(grep -ciE "^[^:]*:[0-9]*:.*($words)" <<< "$lines" || true)
  printf '%6d of %6d %s\n' "$count" "$most" "$wing"
  if [ "$count" -gt "$most" ]; then
    grep -iE "^[^:]*:[0-9]*:.*($words)" <<< "$lines" | cut -c1-120 | head -n 5
    echo "$wing: $count lines of the house speak of it; at most $most"
    status=1
  elif [ "$lower" -eq 1 ]; then
    most=$count
  fi
  all+="${all:+|}$words"
  new+="$wing $most $words"$'\n'
done < "$list"
printf '%6d lines of %d speak of a wing\n' "$(grep -ciE "^[^:]*:[0-9]*:.*($all)" <<< "$lines" || true)" \
  "$(wc -l <<< "$lines")"
if [ "$lower" -eq 1 ] && [ "$status" -eq 0 ]; then printf '%s' "$new" > "$list"; fi
exit "$status"
