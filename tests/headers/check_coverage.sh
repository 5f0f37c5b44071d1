#!/usr/bin/env bash
# check_coverage.sh [ROOT]: whether one finds the tests of a header. A header of 100 lines or more has
# a test of its name (kv/block_manager.hpp: a block_manager_test.cpp or .cu anywhere in tests/), or
# tests/headers/covered_by.txt says which suites cover it. A line there is
#
#   FOLDER SUITE...     for all headers of the folder that have no test of their name
#   HEADER SUITE...     for one header
#
# with paths from include/nanovllm and from tests. A suite in C++ or CUDA must reach the header by its
# includes. A line that no header needs is an error, so the list says what is, and no more.
set -euo pipefail

cd "${1:-"$(dirname "${BASH_SOURCE[0]}")/../.."}"
list=tests/headers/covered_by.txt
mapfile -t files < <(find include/nanovllm tests -regex '.*\.\(hpp\|cuh\|h\|inc\|cpp\|cu\)' | LC_ALL=C sort)
mapfile -t others < <(find tests -name '*_test.py' -o -name '*_test.sh' -o -name '*_test.c' | LC_ALL=C sort)

awk -v list="$list" -v others="${others[*]}" '
  function complain(where, text) {
    print where ": " text
    failed = 1
  }

  # What an include in path names: a header of ours, a file of tests/, or a file beside path.
  function resolve(path, name,   beside) {
    if (name ~ /^nanovllm\//) return "include/" name
    if (("tests/" name) in exists) return "tests/" name
    beside = path
    sub(/[^\/]*$/, name, beside)
    return beside
  }

  function reach(path,   next_files, count, k) {
    if (path in reached) return
    reached[path] = 1
    count = split(edges[path], next_files, " ")
    for (k = 1; k <= count; k++) reach(next_files[k])
  }

  # "include/nanovllm/kv/pool.hpp" is "kv/pool.hpp" in the list, in the folder "kv".
  function short(path) {
    sub(/^include\/nanovllm\//, "", path)
    return path
  }
  function folder_of(path) {
    return sub(/\/[^\/]*$/, "", path) ? path : "."
  }

  BEGIN {
    for (i = 1; i < ARGC; i++) exists[ARGV[i]] = 1
    count = split(others, names, " ")
    for (i = 1; i <= count; i++) exists[names[i]] = 1
    for (path in exists)
      if (path ~ /_test\.(cpp|cu)$/) {
        name = path
        gsub(/^.*\/|_test\.(cpp|cu)$/, "", name)
        has_test[name] = 1
      }
  }

  { num_lines[FILENAME] = FNR }
  /^[ \t]*#[ \t]*(include|define NANOVLLM_KERNELS)[ \t]*"/ {
    name = $0
    sub(/^[^"]*"/, "", name)
    sub(/".*/, "", name)
    edges[FILENAME] = edges[FILENAME] " " resolve(FILENAME, name)
  }

  END {
    for (i = 1; i < ARGC; i++) {
      path = ARGV[i]
      name = path
      gsub(/^.*\/|\.[a-z]*$/, "", name)
      if (path ~ /^include\/.*\.(hpp|cuh|h)$/ && num_lines[path] >= 100 && !(name in has_test))
        needs[short(path)] = 1
    }

    while ((getline line < list) > 0) {
      where = list ":" ++row
      if (line ~ /^#/ || line == "") continue
      count = split(line, words, " ")
      split("", reached)
      unknown = 0
      for (i = 2; i <= count; i++) {
        if (!(("tests/" words[i]) in exists)) complain(where, "there is no test tests/" words[i])
        if (words[i] !~ /\.(cpp|cu)$/) unknown = 1
        reach("tests/" words[i])
      }
      if (count < 2) complain(where, "no suite is named")
      used = 0
      for (header in needs) {
        if (header != words[1] && folder_of(header) != words[1]) continue
        # A line for the header itself counts, and not one for its folder as well.
        if (header != words[1] && (header in named)) continue
        used = 1
        if (header == words[1]) named[header] = 1
        covered[header] = 1
        if (!(("include/nanovllm/" header) in reached) && !unknown)
          complain(where, "none of these suites includes " header)
      }
      if (!used)
        complain(where, "no header of 100 lines or more without a test of its name needs this line")
    }
    for (header in needs)
      if (!(header in covered))
        complain("include/nanovllm/" header, num_lines["include/nanovllm/" header] \
                 " lines, no test of its name, and no line in " list)
    if (row == 0) complain(list, "there is no list")
    exit failed
  }' "${files[@]}" | LC_ALL=C sort
