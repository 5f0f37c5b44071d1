#!/usr/bin/env bash
# From a fresh clone to a server: bash examples/serve.sh [option of serve]...
#
# Installs what is missing (Debian, Ubuntu), builds examples/server into build/serve and starts it
# with the model of this repository on port 8000. Options are passed on, so that '--model DIR' and
# '--port N' take the place of those.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
source .ci/packages.sh

build=build/serve
program=serve
options=(-DCMAKE_BUILD_TYPE=Release -DNANOVLLM_BUILD_TESTS=OFF -DNANOVLLM_CUDA=OFF)

install_packages "${library_packages[@]}" "${server_packages[@]}" libcli11-dev
# On a GPU, where there is one and a compiler for it.
if has_gpu && find_nvcc; then
  build=build/serve-cuda
  program=serve_cuda
  options=(-DCMAKE_BUILD_TYPE=Release -DNANOVLLM_BUILD_TESTS=OFF -DNANOVLLM_CUDA=ON
           -DCMAKE_CUDA_ARCHITECTURES=native)
fi

echo "Building $build/examples/server/$program"
quietly cmake -S . -B "$build" -G Ninja "${options[@]}"
quietly cmake --build "$build" --target "$program"

# value_of OPTION DEFAULT ARGUMENT...: what an option was given, the last time it was.
value_of() {
  local option=$1 value=$2
  shift 2
  while [ $# -gt 0 ]; do
    case $1 in
      "$option") value=${2:-$value} ;;
      "$option="*) value=${1#*=} ;;
    esac
    shift
  done
  echo "$value"
}

arguments=("$@")
if [ -z "$(value_of --model "" "$@")" ]; then arguments+=(--model examples/models/fairytale); fi
port=$(value_of --port 8000 "$@")
cat << EOT

Once it listens, open http://127.0.0.1:$port/ or try

  curl http://127.0.0.1:$port/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{"messages": [{"role": "user", "content": "Tell me of a fox."}]}'

EOT
exec "$build/examples/server/$program" "${arguments[@]}"
