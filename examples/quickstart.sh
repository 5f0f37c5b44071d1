#!/usr/bin/env bash
# From a fresh clone to streamed text:
#
#   bash examples/quickstart.sh [--quantize int8|int4 | --speculate] ["prompt"] [option]...
#
# Installs what is missing (Debian, Ubuntu), builds one example into build/quickstart and runs it
# with the model of this repository. The lines after the text are the speed in tokens per second and
# the settings that it was drawn with; options change them: --temperature X, --seed N, --max-tokens N
# and the other fields of SamplingParams. With --quantize the weights are kept in integers of so many
# bits. With --speculate three tales are told with drafts of n-grams, of a draft model and of an
# EAGLE-3 head, and again without to compare. Both are on the CPU.
set -euo pipefail

case ${1:-} in
  -h | --help) exec sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" ;;
esac

cd "$(dirname "${BASH_SOURCE[0]}")/.."
source .ci/packages.sh

format=
if [ "${1:-}" = --quantize ]; then
  format=${2:-}
  if [ "$format" != int8 ] && [ "$format" != int4 ]; then
    echo "quickstart.sh: --quantize takes int8 or int4, got '$format'" >&2
    exit 2
  fi
  shift 2
fi

build=build/quickstart
program=quickstart
if [ -z "$format" ] && [ "${1:-}" = --speculate ]; then
  program=speculative
  shift
fi
options=(-DCMAKE_BUILD_TYPE=Release -DNANOVLLM_BUILD_TESTS=OFF -DNANOVLLM_CUDA=OFF)

install_packages "${library_packages[@]}" libcli11-dev
# The CUDA build of the example, where there is one, a GPU and a compiler for it.
if [ -n "$format" ]; then
  program=quantized
elif [ "$program" = quickstart ] && [ -f examples/quickstart.cu ] && has_gpu && find_nvcc; then
  build=build/quickstart-cuda
  program=quickstart_cuda
  options=(-DCMAKE_BUILD_TYPE=Release -DNANOVLLM_BUILD_TESTS=OFF -DNANOVLLM_CUDA=ON
           -DCMAKE_CUDA_ARCHITECTURES=native)
fi

echo "Building $build/examples/$program"
quietly cmake -S . -B "$build" -G Ninja "${options[@]}"
quietly cmake --build "$build" --target "$program"
echo
exec "$build/examples/$program" ${format:+"$format"} examples/models/fairytale "$@"
