#!/usr/bin/env bash
# check_cuda_files.sh [--mpi 'FLAG...'] [--pages 'PAGE...'] NVCC FOLDER CACHE [FLAG...]: passes every
# .cu file under FOLDER, the root of a tree, through nvcc's front end for sm_90a: programs, tests and
# benchmarks, on a machine without a GPU. Warnings are errors. Each file is a unit of its own, because
# beside others it would find what they include. It is read as for the device, host functions and what
# they instantiate included, but for what is guarded for the host. The host's compiler, which takes
# three times as long, is left to headers/nvcc and consumer/cuda_engines. A file with kernels of its
# own goes on to PTX, with few optimisations: only there nvcc notices that a kernel calls a host
# function. With --pages the samples of these pages are one more unit: they may stand in a .cu file.
#
# What a file was made of when it last passed is kept in CACHE, as hashes of its inputs and of nvcc;
# a file of which nothing changed is not read again. NANOVLLM_TEST_JOBS files at a time, as many as
# there are cores unless set. Files in tests/with/mpi/ get the flags of --mpi.
set -euo pipefail

export MPI_FLAGS="" NVCC FLAGS CACHE
pages=""
while [ $# -gt 0 ]; do
  case $1 in
    --mpi) MPI_FLAGS=$2; shift 2 ;;
    --pages) pages=$2; shift 2 ;;
    *) break ;;
  esac
done
NVCC=$1 folder=$2 CACHE=$3
shift 3
FLAGS="-std=c++20 --expt-relaxed-constexpr -gencode=arch=compute_90a,code=sm_90a -ptx \
-Werror=all-warnings $*"
export FAST=""  # an option of CUDA 12.9
if grep -qF -- '(-Ofc)' <<< "$("$NVCC" --help)"; then FAST="-Ofc max"; fi
mkdir -p "$CACHE"
CACHE=$(cd "$CACHE" && pwd)
cd "$folder"

# Nothing that git ignores, such as build folders.
list_files() {
  if [ -e .git ]; then
    git ls-files -co --exclude-standard '*.cu' | while read -r file; do
      if [ -e "$file" ]; then echo "$file"; fi
    done
  else
    find . -name '*.cu' | sed 's/^\.\///'
  fi | LC_ALL=C sort
}

# sample_lines KIND PAGE...: of the samples' lines the 'include's or the 'alias'es, each once, or the
# 'rest', all with their places.
sample_lines() {
  local kind=$1
  shift
  awk -v wanted="$kind" '
    /^```/ {
      inside = /^```cpp/
      if (wanted == "rest" && inside) printf "#line %d \"%s\"\n", FNR + 1, FILENAME
      next
    }
    !inside { next }
    { kind = /^#include </ ? "include" : /^namespace [a-z_]+ = / ? "alias" : "rest" }
    wanted == "rest" { print kind == wanted ? $0 : ""; next }
    kind == wanted && !known[$0]++ { printf "#line %d \"%s\"\n%s\n", FNR, FILENAME, $0 }' "$@"
}

# The samples of the pages as one file: includes and aliases first, then a namespace a page.
write_pages() {
  local page
  # shellcheck disable=SC2086
  { sample_lines include $pages
    sample_lines alias $pages; }
  for page in $pages; do
    echo "namespace page_$(basename "$page" .md) {"
    sample_lines rest "$page"
    echo "}"
  done
}

# flags_of FILE
flags_of() {
  local flags="$FLAGS -fdevice-syntax-only"
  if grep -qE '__(global|device)__' "$1"; then flags="$FLAGS $FAST"; fi
  case $1 in
    tests/with/mpi/*) flags+=" $MPI_FLAGS" ;;
    "$CACHE"/pages.cu) flags+=" -diag-suppress 940" ;;  # a 'main' in a namespace has to return
  esac
  echo "$flags"
}

# check FILE: one line, and what nvcc says if it fails.
check() {
  local file=$1 begin=$SECONDS record log inputs status=0
  record="$CACHE/${file//\//_}"
  log="$record.log"
  touch "$record.begin"
  # shellcheck disable=SC2046
  "$NVCC" $(flags_of "$file") -MD -MF "$record.d" -MT x "$file" -o "$record.ptx" > "$log" 2>&1 || status=1
  if [ "$status" -eq 0 ]; then
    inputs=$(sed -e 's/\\$//' -e 's/^x *: //' "$record.d" | tr -s ' ' '\n' | grep . | sort -u)
    # What was edited meanwhile is read again the next time.
    if [ -z "$(xargs bash -c 'find "$@" -newer "$0"' "$record.begin" <<< "$inputs")" ]; then
      { echo "$COMPILER $(flags_of "$file")"; xargs sha256sum <<< "$inputs"; } > "$record.inputs"
    fi
    echo "$file: $((SECONDS - begin)) s"
  else
    { cat "$log"; echo "$file: FAILED after $((SECONDS - begin)) s"; } > "$record.failed"
    cat "$record.failed"
  fi
  rm -f "$record".{begin,d,ptx,log,failed}
  return "$status"
}

mapfile -t files < <(list_files)
if [ "${#files[@]}" -eq 0 ]; then
  echo "no .cu files under $PWD"
  exit 1
fi
if [ -n "$pages" ]; then
  write_pages > "$CACHE/pages.new"
  if ! cmp -s "$CACHE/pages.new" "$CACHE/pages.cu"; then mv "$CACHE/pages.new" "$CACHE/pages.cu"; fi
  files+=("$CACHE/pages.cu")
fi
COMPILER=$("$NVCC" --version | sha256sum | cut -c1-16)
export COMPILER

# The inputs of all records are hashed once, and the records compared with them.
now=$(mktemp)
trap 'rm -f "$now"' EXIT
cat "$CACHE"/*.inputs 2> /dev/null | sed -n 's/^[0-9a-f]\{64\}  //p' | sort -u |
  xargs -r sha256sum > "$now" 2> /dev/null || true
changed=()
for file in "${files[@]}"; do
  record="$CACHE/${file//\//_}.inputs"
  if [ ! -e "$record" ] || [ "$(head -n 1 "$record")" != "$COMPILER $(flags_of "$file")" ] ||
      ! awk 'FILENAME == ARGV[1] { known[$0]; next }
             FNR > 1 && !($0 in known) { exit 1 }' "$now" "$record"; then
    rm -f "$record"
    changed+=("$file")
  fi
done

status=0
if [ "${#changed[@]}" -gt 0 ]; then
  export -f check flags_of
  printf '%s\n' "${changed[@]}" | xargs -P "${NANOVLLM_TEST_JOBS:-$(nproc)}" -I {} \
    bash -c 'check "$1"' check {} || status=1
fi
echo "${#files[@]} files of CUDA: $((${#files[@]} - ${#changed[@]})) as they were, ${#changed[@]}" \
  "compiled in $SECONDS s"
exit $status
