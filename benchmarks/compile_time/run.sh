#!/usr/bin/env bash
# run.sh [--check] [--runs N] [FOLDER]: what programs cost to compile, in user seconds of a core and as
# ratios to a page of nlohmann/json that is compiled in the same round. Every program is linked and runs
# the fairytale model. First the library is built, in FOLDER (a new one unless given), with all cores:
# that is what the first build of a project takes. Its page is compiled by all cores, too. The figures
# are the least of N rounds, 3 unless given, for what else a machine does only adds; a program that
# takes more than 20 s is compiled in the first alone. With --check, a ratio more than a fifth above
# what is held is a failure; docs/building.md has the goals.
set -euo pipefail

source=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
here=$source/benchmarks/compile_time
checks=0 rounds=3 build=""
while [ $# -gt 0 ]; do
  case $1 in
    --check) checks=1; shift ;;
    --runs) rounds=$2; shift 2 ;;
    *) build=$1; shift ;;
  esac
done
if [ -z "$build" ]; then
  build=$(mktemp -d)
  trap 'rm -rf "$build"' EXIT
fi
mkdir -p "$build/project"
compiler=${CXX:-g++}
export CCACHE_DISABLE=1  # what is compiled is what is timed

# The project of README's "In your build", with FetchContent.
cat > "$build/project/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.24)
project(app LANGUAGES CXX)
include(FetchContent)
FetchContent_Declare(nanovllm SOURCE_DIR "$source")
FetchContent_MakeAvailable(nanovllm)
add_executable(app "$here/readme.cpp")
target_link_libraries(app PRIVATE nanovllm::nanovllm)
END
cmake -S "$build/project" -B "$build/app" -DCMAKE_BUILD_TYPE=Release "-DCMAKE_CXX_COMPILER=$compiler" \
  -DCMAKE_CXX_COMPILER_LAUNCHER= > /dev/null
cores=$(nproc)

# page_on_all_cores: user seconds of json.cpp where every core compiles it. A core that shares its units
# with another takes longer for the same work, so a build that keeps all cores busy has a page that does.
page_on_all_cores() {
  local seconds
  seconds=$({ TIMEFORMAT=%U; time {
    for ((core = 0; core < cores; ++core)); do
      "$compiler" -std=c++20 -O2 -c "$here/json.cpp" -o "$build/page$core.o" &
    done
    wait
  }; } 2>&1)
  awk -v s="$seconds" -v cores="$cores" 'BEGIN { print s / cores }'
}
page_before=$(page_on_all_cores)
read -r wall first <<< "$({ TIMEFORMAT='%0R %1U'; time cmake --build "$build/app" --parallel "$cores" > /dev/null; } 2>&1)"
page_after=$(page_on_all_cores)

library=$(find "$build/app" -name libnanovllm.a)
include="-I$source/include"
libraries="-lpcre2-8 -lutf8proc -lxxhash -pthread"
policy_lists=$(grep -rhoE -- '-DNANOVLLM_[A-Z_]+(=[^ ]+)?' "$build/app/CMakeFiles/app.dir" | sort -u | tr '\n' ' ')

# name, source, flags, libraries; the ratio that is held
programs=(
  "json|json.cpp||"
  "include, linked|include.cpp|$include $policy_lists|$library $libraries"
  "README's program, linked|readme.cpp|$include $policy_lists|$library $libraries"
  "a policy of one's own, linked|own_policy.cpp|$include $policy_lists|$library $libraries"
  "a policy and a shape, linked|own_shape.cpp|$include $policy_lists|$library $libraries"
  "include, header-only|include.cpp|$include|$libraries"
  "README's program, header-only|readme.cpp|$include|$libraries")
held=(1 0.4 0.55 2.5 2.5 2.3 12)
held_first=27

times=()
for ((round = 0; round < rounds; ++round)); do
  for i in "${!programs[@]}"; do
    if [ -n "${times[i]:-}" ] && [ "${times[i]%%.*}" -ge 20 ]; then continue; fi
    IFS='|' read -r _ file flags more <<< "${programs[i]}"
    # shellcheck disable=SC2086
    seconds=$({ TIMEFORMAT=%U; time "$compiler" -std=c++20 -O2 $flags -c "$here/$file" -o "$build/$i.o" 1>&2 2> /dev/null; } 2>&1)
    times[i]="${times[i]:+${times[i]} }$seconds"
    # shellcheck disable=SC2086
    "$compiler" "$build/$i.o" $more -o "$build/$i"
    "$build/$i" "$source/examples/models/fairytale" > /dev/null
  done
done

least() { tr ' ' '\n' <<< "$1" | grep . | sort -n | sed -n 1p; }
status=0
json=$(least "${times[0]}")
echo "$("$compiler" --version | head -n 1), $rounds rounds, $(date +%F)"
# report NAME SECONDS JSON HELD MORE: a line; fails where the ratio is more than a fifth above HELD.
report() {
  awk -v name="$1" -v s="$2" -v json="$3" -v held="$4" -v more="$5" 'BEGIN {
    printf "%-32s %6.2f s %6.2f x  (held %5.2f x)  %s\n", name, s, s / json, held, more
    exit s / json > held * 1.2 }'
}
page=$(awk -v a="$page_before" -v b="$page_after" 'BEGIN { print (a + b) / 2 }')
report "the first build, of a core" "$first" "$page" "$held_first" "$wall s on $cores cores" || status=1
for i in "${!programs[@]}"; do
  size=$(size "$build/$i.o" | awk 'NR == 2 { print $4 }')
  report "${programs[i]%%|*}" "$(least "${times[i]}")" "$json" "${held[i]}" "$size bytes" || status=1
done
[ "$checks" -eq 0 ] || exit "$status"
