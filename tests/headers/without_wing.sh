#!/usr/bin/env bash
# without_wing.sh [--build] WING...: what is left of the library without a wing compiles and passes. 'all'
# is each wing in turn, 'one' the wing that the commit's hash chooses.
#
# In a copy of the tree, with/WING, its faces, its line in the CMake list and its models among those that
# are compiled are deleted, and what stands on it: in with/, api/, tests, examples and benchmarks each file
# that includes one that is gone, and so on. The lines of headers that bring all parts together
# (nanovllm.hpp) go as well. An include under '#if __has_include' needs nothing. The house may include
# nothing of a wing: that is an error here, and nothing is built.
#
# Then all headers that are left are compiled as one unit, and the tests of the engine, the scheduler and
# the block manager are built, header-only, and pass. With --build the library is built instead, and the
# tests that are left of 'bash tests/run.sh' pass.
set -euo pipefail

usage() { sed -n '2,/^set /{/^set /d; s/^# \{0,1\}//; p}' "$0"; }
build=false
if [ "${1:-}" = --build ]; then build=true; shift; fi
if [ $# -eq 0 ]; then usage; exit 2; fi
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
mapfile -t wings < <(cd include/nanovllm/with && find . -mindepth 1 -maxdepth 1 -type d -printf '%f\n' | LC_ALL=C sort)
case $1 in
  all) set -- "${wings[@]}" ;;
  one) set -- "${wings[$((16#$(git rev-parse --short=8 HEAD) % ${#wings[@]}))]}" ;;
esac

# What brings all parts together: a line of it goes with a wing.
umbrellas='^include/nanovllm/(nanovllm|implementation|full_policy|chat|grammar|mpi|serve)\.hpp$|^include/nanovllm/cuda\.cuh$|^\.cmake/compiled/'

list_sources() {
  git ls-files -co --exclude-standard include tests examples benchmarks .cmake |
    grep -E '\.(h|hpp|cuh|inc|cpp|cu|c|in)$' | while read -r file; do if [ -e "$file" ]; then echo "$file"; fi; done
}

# stands_on WING: 'gone FILE', 'line FILE INCLUDE', or 'house FILE INCLUDE', which is an error.
stands_on() {
  list_sources > "$work/files"
  xargs grep -HnE '^ *# *(include|if __has_include|endif)' < "$work/files" > "$work/includes"
  awk -v wing="$1" -v umbrellas="$umbrellas" '
    function resolve(path, from,   i, tried) {
      tried = from
      sub(/[^\/]*$/, "", tried)
      tried = tried path
      while (match(tried, /[^\/.][^\/]*\/\.\.\//))
        tried = substr(tried, 1, RSTART - 1) substr(tried, RSTART + RLENGTH)
      if (tried in exists) return tried
      for (i = 1; i <= num_roots; i++) if ((roots[i] path) in exists) return roots[i] path
      return ""
    }
    function is_house(path) {
      return path ~ /^include\/nanovllm\// && path !~ /^include\/nanovllm\/(with|api|c)\//
    }
    BEGIN { num_roots = split("include/ tests/ benchmarks/ examples/", roots, " ") }
    FILENAME ~ /files$/ {
      exists[$0]
      if ($0 ~ ("^(include/nanovllm|tests)/with/" wing "(/|\\.)")) gone[$0]
      next
    }
    {
      split($0, parts, ":")
      if ($0 ~ /# *endif/) { guarded = ""; next }
      if ($0 ~ /__has_include/) { guarded = parts[1]; next }
      if (guarded == parts[1] || !match($0, /[<"][^>"]+[>"]/)) next
      path = substr($0, RSTART + 1, RLENGTH - 2)
      to = resolve(path, parts[1])
      if (to == "") next
      source[++num] = parts[1]
      target[num] = to
      text[num] = path
    }
    END {
      do {
        changed = 0
        for (i = 1; i <= num; i++) {
          if (!(target[i] in gone) || source[i] in gone || done[i]) continue
          done[i] = changed = 1
          if (source[i] ~ umbrellas) print "line", source[i], text[i]
          else if (is_house(source[i])) print "house", source[i], text[i]
          else gone[source[i]]
        }
      } while (changed)
      for (path in gone) print "gone", path
    }' "$work/files" "$work/includes"
}

check_headers() {
  (cd "$tree/include" && find nanovllm -name '*.hpp' | LC_ALL=C sort |
    grep -vE '^nanovllm/(implementation|mpi|with/mpi)\.hpp$|^nanovllm/with/mpi/' |
    sed 's/.*/#include "&"/') > "$work/all.cpp"
  "${CXX:-g++}" -std=c++20 -fsyntax-only -Wall -Wextra -Werror -I"$tree/include" "$work/all.cpp"
}

# build_tests OPTION...
build_tests() {
  local jobs=${NANOVLLM_TEST_JOBS:-$(nproc)}
  if ! { cmake -S "$tree" -B "$work/build" -G Ninja -DNANOVLLM_TEST_ALL=OFF -DNANOVLLM_TEST_PACKAGING=OFF \
           -DNANOVLLM_CLIENT_PYTHON=none -DNANOVLLM_CUDA=OFF -DNANOVLLM_BUILD_EXAMPLES=OFF "$@" &&
         cmake --build "$work/build" --parallel "$jobs" &&
         ctest --test-dir "$work/build" -L '^cpu$' --parallel "$jobs" --output-on-failure; } > "$work/log" 2>&1
  then
    tail -n 60 "$work/log"
    return 1
  fi
  grep 'tests passed' "$work/log"
}

check_left() {
  if $build; then
    build_tests -DCMAKE_BUILD_TYPE=Release
  else
    check_headers && build_tests -DCMAKE_BUILD_TYPE=Debug -DNANOVLLM_COMPILED=OFF \
      "-DNANOVLLM_TEST_PROGRAMS=engine/engine_test;sched/scheduler_test;kv/block_manager_test"
  fi
}

status=0
for wing in "$@"; do
  begin=$SECONDS
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  if [ ! -d "include/nanovllm/with/$wing" ]; then echo "there is no wing '$wing'"; exit 2; fi
  stands_on "$wing" > "$work/stands"
  tree=$work/tree
  mkdir "$tree"
  git ls-files -co --exclude-standard -z | xargs -0 -I {} sh -c 'if [ -e "$1" ]; then echo "$1"; fi' _ {} |
    tar -cf - -T - | tar -xf - -C "$tree"
  if grep '^house' "$work/stands"; then
    echo "without $wing: the house includes it"
    status=1
  else
    grep '^gone' "$work/stands" | while read -r _ file; do rm -f "$tree/$file"; done
    grep '^line' "$work/stands" | while read -r _ file include; do
      sed -i "\\|#include [<\"]$include[>\"]|d" "$tree/$file"
    done
    sed -i "/^  with\/$wing\$/d" "$tree/.cmake/compiled.cmake"
    sed -i "/define NANOVLLM_SHAPES/s/, [a-z0-9_]*${wing}_any//" "$tree/include/nanovllm/engine/compiled.hpp"
    echo "without $wing: $(grep -c '^gone' "$work/stands") files fewer"
    if ! check_left; then echo "without $wing: FAILED"; status=1; fi
    echo "without $wing: $((SECONDS - begin)) s"
  fi
  rm -rf "$work"
done
exit $status
