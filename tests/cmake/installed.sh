#!/usr/bin/env bash
# installed.sh CMAKE GENERATOR COMPILER SOURCE_FOLDER BUILD_FOLDER CHECKPOINT PREFIX VERSION: builds the
# consumer of the library as it is installed in PREFIX, runs it, and says what a change of README's
# program costs: seconds of a core to compile it again. That must be little more than the include takes.
set -euo pipefail

cmake=$1 generator=$2 compiler=$3 source=$4 build=$5 checkpoint=$6 prefix=$7 version=$8
"$cmake" -G "$generator" -S "$source/tests/consumer/find_package" -B "$build" \
  "-DCMAKE_CXX_COMPILER=$compiler" -DCMAKE_CXX_COMPILER_LAUNCHER= \
  "-DCMAKE_PREFIX_PATH=$prefix" "-DNANOVLLM_VERSION=$version"
"$cmake" --build "$build" --parallel 1
"$build/consumer" "$checkpoint"

# Seconds that the target's compilers take, of a core and not of the wall: the machine may be shared.
seconds_of() {
  local before after shell=$BASHPID
  find "$build/CMakeFiles/$1.dir" -name '*.o' -delete
  before=$(awk '{ print $16 + $17 }' /proc/$shell/stat)
  "$cmake" --build "$build" --target "$1" > /dev/null
  after=$(awk '{ print $16 + $17 }' /proc/$shell/stat)
  awk -v ticks=$((after - before)) -v hz="$(getconf CLK_TCK)" 'BEGIN { printf "%.1f\n", ticks / hz }'
}
include=$(seconds_of include_alone)
rebuild=$(seconds_of readme)
echo "the include alone $include s, the program again $rebuild s"
awk -v a="$include" -v b="$rebuild" 'BEGIN { exit !(b <= 1.5 * a + 1) }'
