#!/usr/bin/env bash
# get.sh [NAME...]: the weights of models that are not in the tree: fairytale_embedding, fairytale_moe and
# tiny_gpt2, all of them unless named. They come from the repository's history, where the commit below has
# them: of this clone, or where it is shallow of the one it was made from. A release has them as
# nanovllm-models.tar.gz, to be unpacked at the top of the tree.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")"
commit=a1cc6cf4a7294b8c427fd82f70ba72d6539bf9b3

declare -A sum=(
  [fairytale_embedding]=3b837a5bcce1aa61e747941052320f9a6c8f0abff601c2510c9a26ca32800411
  [fairytale_moe]=4fe1bd98befc3990b23ef72a4fe004e4f10ad111a528376c88a7a619d98ead05
  [tiny_gpt2]=bd8358b7112b6eefa1b5bdff55144fcf05cbfb73c58ce2fa885d19bf3c1a71aa)

is_there() { [ "$(sha256sum < "$1/model.safetensors" 2> /dev/null)" = "${sum[$1]}  -" ]; }

if [ $# -eq 0 ]; then set -- fairytale_embedding fairytale_moe tiny_gpt2; fi
for name in "$@"; do
  if [ -z "${sum[$name]:-}" ]; then
    echo "get.sh: there is no model $name; there are ${!sum[*]}" >&2
    exit 2
  fi
  if is_there "$name" 2> /dev/null; then continue; fi
  file=examples/models/$name/model.safetensors
  if ! git cat-file -e "$commit:$file" 2> /dev/null; then
    git fetch -q --depth 1 origin "$commit" || {
      echo "get.sh: $file is in commit $commit, which cannot be fetched; the file nanovllm-models.tar.gz of a release has it too" >&2
      exit 1
    }
  fi
  git show "$commit:$file" > "$name/model.safetensors.part"
  mv "$name/model.safetensors.part" "$name/model.safetensors"
  is_there "$name" || {
    echo "get.sh: $file is not what it was: its SHA-256 differs" >&2
    exit 1
  }
  echo "examples/models/$name/model.safetensors"
done
