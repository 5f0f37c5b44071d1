#!/usr/bin/env bash
# without_wing.sh [--list] [WING...|all]: takes a wing out of a copy of the tree, and compiles and runs
# what is left. Without a name it takes the wing that the commit's hash chooses.
#
# Out go include/nanovllm/with/WING, its face and tests/with/WING; its lines in the lists of all wings
# (nanovllm.hpp, cuda.cuh and .cmake/compiled); and what is built on it: other wings, api/, tests,
# examples and benchmarks that include it, named in the line of the wing. Nothing of the house may go:
# a file of the house that includes the wing is a failure, unless it asks whether the wing is there
# (__has_include). Every .hpp that is left is compiled in one unit, header-only and as a library's
# user sees it, and a program generates text with the fairytale model. --list says what would go, and
# compiles nothing.
#
#   CXX              the compiler; g++ unless set
#   NANOVLLM_FLAGS   flags besides -std=c++20: where libraries are that the system does not have
set -euo pipefail

list=0
if [ "${1:-}" = --list ]; then list=1; shift; fi
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
mapfile -t wings < <(find include/nanovllm/with -mindepth 1 -maxdepth 1 -type d -printf '%f\n' |
  LC_ALL=C sort)
if [ $# -eq 0 ]; then
  commit=$(git rev-parse --short=7 HEAD 2> /dev/null || echo 0)
  set -- "${wings[$((16#$commit % ${#wings[@]}))]}"
elif [ "$1" = all ]; then
  set -- "${wings[@]}"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
status=0

# Lists that name every wing: a wing's lines go with it.
is_list() {
  case $1 in
    include/nanovllm/nanovllm.hpp | include/nanovllm/cuda.cuh | .cmake/compiled/*) return 0 ;;
  esac
  return 1
}

# is_house FILE: whether it must stay.
is_house() {
  case $1 in
    include/nanovllm/with/* | include/nanovllm/api/*) return 1 ;;
    # Faces of wings and protocols, and the file that compiles everything.
    include/nanovllm/mpi.hpp | include/nanovllm/serve.hpp | include/nanovllm/grammar.hpp | \
      include/nanovllm/chat.hpp | include/nanovllm/implementation.hpp) return 1 ;;
    include/*) return 0 ;;
  esac
  return 1
}

# take_out WING: 'gone' has what went, 'house' what could not.
take_out() {
  local wing=$1 file target
  gone=() house=()
  local -a next=()
  mapfile -t next < <(cd "$tree" && find "include/nanovllm/with/$wing" "tests/with/$wing" \
    "include/nanovllm/with/$wing.hpp" "include/nanovllm/with/$wing.cuh" -type f 2> /dev/null)
  # 'FILE TARGET' for each include that does not ask whether its file is there.
  (cd "$tree" && find include tests examples benchmarks .cmake -type f \
    \( -name '*.[ch]pp' -o -name '*.cu' -o -name '*.cuh' -o -name '*.inc' -o -name '*.h' \) |
    LC_ALL=C sort | xargs awk '
      FNR == 1 { asked = 0; depth = 0 }
      /^#if.*__has_include/ { if (!asked) asked = depth + 1 }
      /^ *# *if/ { depth++ }
      /^ *# *endif/ { if (asked == depth) asked = 0; depth-- }
      /^ *# *include/ && !asked && match($0, /[<"][^>"]*[>"]/) {
        target = substr($0, RSTART + 1, RLENGTH - 2)
        folder = FILENAME
        sub(/[^\/]*$/, "", folder)
        print FILENAME, "include/" target
        print FILENAME, folder target
        print FILENAME, "tests/" target
        print FILENAME, "benchmarks/" target
      }') > "$work/includes"
  while [ ${#next[@]} -gt 0 ]; do
    (cd "$tree" && rm -f "${next[@]}")
    gone+=("${next[@]}")
    printf '%s\n' "${next[@]}" > "$work/next"
    mapfile -t next < <(awk 'NR == FNR { out[$0] = 1; next } $2 in out { print $1 }' \
      "$work/next" "$work/includes" | LC_ALL=C sort -u)
    local -a kept=()
    for file in ${next[@]+"${next[@]}"}; do
      if [ ! -e "$tree/$file" ]; then continue; fi
      if is_list "$file"; then
        while read -r target; do
          sed -i "\\|include \"${target#include/}\"|d" "$tree/$file"
        done < "$work/next"
      elif is_house "$file"; then
        house+=("$file")
      else
        kept+=("$file")
      fi
    done
    next=(${kept[@]+"${kept[@]}"})
  done
}

# compile NAME FLAG... < source
compile() {
  local name=$1
  shift
  # shellcheck disable=SC2086
  if ! ${CXX:-g++} -std=c++20 ${NANOVLLM_FLAGS:-} -I"$tree/include" -x c++ - -x none "$@" \
      > "$work/log" 2>&1; then
    head -n 20 "$work/log"
    echo "without $wing: $name does not compile"
    status=1
    return 1
  fi
}

for wing in "$@"; do
  if [ ! -d "include/nanovllm/with/$wing" ]; then
    echo "there is no wing '$wing'; the wings are ${wings[*]}"
    exit 2
  fi
  begin=$SECONDS
  tree=$work/tree
  rm -rf "$tree"
  mkdir -p "$tree"
  git ls-files -co --exclude-standard include tests examples benchmarks .cmake |
    grep -vE '^(tests/(fixtures|consumer|headers)|benchmarks/results|examples/models)/' |
    while read -r file; do if [ -e "$file" ]; then echo "$file"; fi; done |
    tar -cf - -T - | tar -xf - -C "$tree"
  take_out "$wing"
  with_it=$(printf '%s\n' "${gone[@]}" |
    grep -vE "^(include/nanovllm/|tests/)with/$wing(/|\.)" |
    sed -E 's,^include/nanovllm/((with|api)/[a-z0-9_]+).*,\1,; s,^([a-z]+)/.*\..*,\1,' |
    LC_ALL=C sort | uniq -c | awk '{ printf "%s%s %s", NR == 1 ? "" : ", ", $2, $1 }')
  echo "without $wing: $(printf '%s\n' "${gone[@]}" | grep -c .) files out${with_it:+, of them in $with_it}"
  if [ ${#house[@]} -gt 0 ]; then
    printf 'without %s: %s of the house includes it\n' $(printf "$wing %s " "${house[@]}")
    status=1
  fi
  if [ "$list" -eq 1 ]; then continue; fi
  (cd "$tree/include" && find nanovllm -name '*.hpp' | LC_ALL=C sort |
    grep -vE '^nanovllm/(with/mpi(/|\.)|mpi\.hpp|implementation\.hpp)' |
    sed 's/.*/#include "&"/') > "$work/all.cpp"
  compile "what is left, header-only," -fsyntax-only < "$work/all.cpp" || continue
  compile "what is left, with a library," -fsyntax-only -DNANOVLLM_SEPARATE < "$work/all.cpp" ||
    continue
  compile "a program" -O1 -o "$work/program" -lpcre2-8 -lutf8proc -lxxhash -pthread << 'PROGRAM' || continue
#include <nanovllm/engine.hpp>

#include <cstdio>

int main() {
  namespace nv = nanovllm;
  nv::Engine<nv::Qwen3<nv::shapes::fairytale>> engine({.model = "examples/models/fairytale"});
  const auto outputs = engine.generate({"Once upon a time", "The wolf"},
                                       {.temperature = 0.f, .max_tokens = 8, .ignore_eos = true});
  for (const nv::Output& output : outputs) {
    if (output.token_ids.size() != 8) return 1;
    std::puts(output.text.c_str());
  }
}
PROGRAM
  if ! "$work/program" > "$work/log" 2>&1; then
    cat "$work/log"
    echo "without $wing: the program fails"
    status=1
    continue
  fi
  echo "without $wing: the rest compiles and generates text, $((SECONDS - begin)) s"
done
exit "$status"
