#!/usr/bin/env bash
# check_links.sh [ROOT]: whether what the pages of a checkout point to is there. In every .md:
#   - relative links: the file, and the heading after '#'
#   - in backticks, paths of files of this repository, from its root or from include/nanovllm
#   - results by name (cuda_x.json, cpu_x.json), which are in benchmarks/results; and each file there
#     is named by a page
# Exit code 1 if something is missing.
set -euo pipefail
root=${1:-$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)}
cd "$root"

failed=0
report() { echo "$1: $2"; failed=1; }

# The anchors of a page as GitHub makes them, one a line; code blocks have no headings.
declare -A anchors
load_anchors() {
  anchors[$1]=$'\n'$(
    awk '/^```/ { code = !code } !code && /^#+ / { sub(/^#+ +/, ""); print }' "$1" |
    sed -E 's/\[([^]]*)\]\([^)]*\)/\1/g; s/[^[:alnum:] _-]//g; s/ /-/g' |
    tr '[:upper:]' '[:lower:]')$'\n'
}

check_link() {  # PAGE TARGET
  local page=$1 target=$2 file anchor
  case $target in http://* | https://* | mailto:*) return ;; esac
  file=${target%%#*} anchor=''
  if [[ $target == *'#'* ]]; then anchor=${target#*#}; fi
  if [[ -z $file ]]; then
    file=$page
  else
    file=$(realpath -m --relative-to=. "$(dirname "$page")/$file")
  fi
  if [[ ! -e $file ]]; then report "$page" "no file for the link $target"; return; fi
  if [[ -z $anchor || $file != *.md ]]; then return; fi
  if [[ -z ${anchors[$file]:-} ]]; then load_anchors "$file"; fi
  if [[ ${anchors[$file]} != *$'\n'"$anchor"$'\n'* ]]; then
    report "$page" "no heading for the link $target"
  fi
}

check_path() {  # PAGE PATH
  local page=$1 path=${2%/} place
  for place in "$path" "include/nanovllm/$path" "benchmarks/results/$path"; do
    if compgen -G "$place" > /dev/null; then return; fi
  done
  report "$page" "no file for the path $path"
}

folders='include|core|ops|cpu|cuda|kv|sched|sampling|model|parallel|io|text|chat|grammar|engine|c|serve|with|api'
folders+='|tests|examples|benchmarks|docs'
endings='hpp|cuh|inc|cpp|cu|h|c|py|sh|md|json|service|yaml'
pages=0
while IFS= read -r page; do
  pages=$((pages + 1))
  text=$(awk '/^```/ { code = !code; next } !code' "$page")
  while IFS= read -r target; do
    check_link "$page" "$target"
  done < <(grep -oE '\]\([^) ]+\)' <<< "$text" | sed -E 's/^\]\(//; s/\)$//')
  # Lines about another project, and NAME where a reader puts one, are left out.
  while IFS= read -r path; do
    check_path "$page" "$path"
  done < <(grep -vE '^\[\^|vLLM|SGLang|NAME' <<< "$text" | grep -oE '`[^` ]+`' | tr -d '`' | grep -E \
    -e "^($folders)/[A-Za-z0-9_./*-]+(\.($endings)|/)\$" -e '^(cuda|cpu|peers)_[a-z0-9_*]+\.json$')
done < <(find . -name '*.md' -not -path './build*' -not -path './.*' | sed 's|^\./||' | sort)

while IFS= read -r result; do
  if ! grep -rqF --include='*.md' "$(basename "$result")" README.md docs; then
    report "$result" "no page names it"
  fi
done < <(find benchmarks/results -name '*.json' 2> /dev/null | sort)

if ((pages == 0)); then report "$root" "no pages"; fi
exit $failed
