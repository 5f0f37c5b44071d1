#!/usr/bin/env bash
# Shows that check_tree.sh catches what it is for: plants one violation at a time in a small tree
# that keeps the rules, and expects the check to fail with the right words.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failures=0

# A clean tree with one header per folder that the cases below use.
fresh_tree() {
  rm -rf "$scratch/nanovllm" "$scratch"/*.txt
  local path
  for path in core/a core/b ops/op cpu/op kv/pool sched/plan model/config model/weights \
              model/qwen3/qwen3 io/safetensors io/file text/tokenizer api/grammar/regex \
              sampling/params parallel/single engine/core engine/runner/runner engine/step/step_inputs \
              api/grammar/bytes/byte_dfa api/grammar/json/writer api/serve/request/chat api/serve/reply/chat \
              kv/prefix/trie sched/scheduler sched/policy/priority policy engine; do
    mkdir -p "$(dirname "$scratch/nanovllm/$path")"
    printf '#pragma once\n\n' > "$scratch/nanovllm/$path.hpp"
  done
  for path in cuda/op cuda/runtime/launch cuda/ptx/mma cuda/tile/vec cuda/linear/linear \
              cuda/linear/small_m/kernel cuda/linear/blas/blas cuda/hopper/linear/mid_m/kernel \
              cuda/hopper/linear/wide_m/kernel cuda/hopper/attention/varlen cuda/sampling/sampler cuda/attention/simt cuda/attention/decode/decode \
              cuda/attention/varlen/varlen parallel/devices cuda; do
    mkdir -p "$(dirname "$scratch/nanovllm/$path")"
    printf '#pragma once\n#include <cuda_runtime.h>\n' > "$scratch/nanovllm/$path.cuh"
  done
  include engine/core.hpp nanovllm/engine/runner/runner.hpp
  include engine/runner/runner.hpp nanovllm/engine/step/step_inputs.hpp
  include api/grammar/json/writer.hpp nanovllm/api/grammar/bytes/byte_dfa.hpp
  include api/serve/reply/chat.hpp nanovllm/api/serve/request/chat.hpp
  include sched/scheduler.hpp nanovllm/sched/policy/priority.hpp
  include cuda/linear/linear.cuh nanovllm/cuda/linear/blas/blas.cuh
  include cuda/hopper/linear/mid_m/kernel.cuh nanovllm/cuda/tile/vec.cuh
  line core/b.hpp '  int count_ = -1;'
  line core/b.hpp '  std::optional<int> limit;  ///< bytes; none for all, or 10 for a start'
  include model/weights.hpp nanovllm/io/safetensors.hpp
  include text/tokenizer.hpp nanovllm/io/file.hpp
  include sched/plan.hpp nanovllm/kv/pool.hpp
  include policy.hpp nanovllm/cpu.hpp
  include parallel/devices.cuh nanovllm/cuda/runtime/launch.cuh
  include cuda/ptx/mma.cuh nanovllm/cuda/runtime/launch.cuh
  include cuda/tile/vec.cuh nanovllm/cuda/ptx/mma.cuh
  include cuda/linear/linear.cuh nanovllm/cuda/tile/vec.cuh
  include cuda/attention/decode/decode.cuh nanovllm/cuda/attention/simt.cuh
  include cuda/op.cuh nanovllm/cuda/linear/linear.cuh
  printf '#pragma once\n' > "$scratch/nanovllm/cuda/linear/tuning.hpp"
  include cuda/linear/linear.cuh nanovllm/cuda/linear/tuning.hpp
  include cuda.cuh nanovllm/parallel/devices.cuh
  mkdir -p "$scratch/benchmarks/"{results,ops}
  touch "$scratch/benchmarks/results/ops.json" "$scratch/benchmarks/ops/op_bench.cu"
  kernel '/// Measured: op_bench, ops.json, 5% of a step.'
  include_for_nvcc engine.hpp nanovllm/cuda.cuh
  echo '// a fragment' > "$scratch/nanovllm/cpu/fragment.inc"
  include cpu/op.hpp nanovllm/cpu/fragment.inc
  include cpu/op.hpp nanovllm/cpu/fragment.inc
  include api/grammar/regex.hpp nanovllm/text/tokenizer.hpp
  include engine.hpp nanovllm/engine/core.hpp
  for path in with/gguf/reader with/gguf with/moe/experts with/moe/cpu/experts with/moe \
              with/eight_bits/rows with/eight_bits; do
    mkdir -p "$(dirname "$scratch/nanovllm/$path")"
    printf '#pragma once\n' > "$scratch/nanovllm/$path.hpp"
  done
  mkdir -p "$scratch/nanovllm/with/moe/cuda"
  printf '#pragma once\n' > "$scratch/nanovllm/with/moe/cuda/experts.cuh"
  include with/gguf.hpp nanovllm/with/gguf/reader.hpp
  include with/moe.hpp nanovllm/with/moe/experts.hpp
  include with/moe.hpp nanovllm/with/moe/cpu/experts.hpp
  include with/moe/experts.hpp nanovllm/with/eight_bits/rows.hpp
  include with/moe/cpu/experts.hpp nanovllm/cpu/op.hpp
  include with/moe/cuda/experts.cuh nanovllm/cuda/linear/linear.cuh
  include with/gguf/reader.hpp nanovllm/io/file.hpp
  local folder
  for folder in core ops cpu kv sched model io text grammar sampling parallel serve; do
    { printf '#pragma once\n'
      (cd "$scratch" && find nanovllm -path "nanovllm/$folder/*.hpp" -printf '#include "%p"\n' -o \
        -path "nanovllm/api/$folder/*.hpp" -printf '#include "%p"\n')
    } > "$scratch/nanovllm/$folder.hpp"
  done
  { printf '#pragma once\n'
    (cd "$scratch" && find nanovllm nanovllm/with -maxdepth 1 -name '*.hpp' -printf '#include "%p"\n')
  } > "$scratch/umbrella"
  mv "$scratch/umbrella" "$scratch/nanovllm/nanovllm.hpp"
  mkdir -p "$scratch/nanovllm/"{c,api/c}
  printf '#ifndef NANOVLLM_C_API_H\n#define NANOVLLM_C_API_H\n#include <stddef.h>\n#endif\n' \
    > "$scratch/nanovllm/c/api.h"
  printf '#pragma once\n' > "$scratch/nanovllm/api/c/handle.hpp"
  mkdir -p "$scratch/nanovllm/with/mpi/"
  printf '#pragma once\n#include <mpi.h>\n' > "$scratch/nanovllm/with/mpi/ranks.hpp"
  include with/mpi/ranks.hpp nanovllm/engine/runner/runner.hpp
  printf '#pragma once\n#include "nanovllm/with/mpi/ranks.hpp"\n' > "$scratch/nanovllm/mpi.hpp"
  include api/c/handle.hpp nanovllm/c/api.h
  include api/c/handle.hpp nanovllm/engine/runner/runner.hpp
}

# A header with a kernel, whose first comment ends with these lines.
kernel() {
  { printf '#pragma once\n/// Adds.\n'; printf '%s\n' "$@" '#include "nanovllm/cuda/tile/vec.cuh"' \
    'template <class T>' '__global__ void add_kernel(T* x) { *x += 1; }'
  } > "$scratch/nanovllm/cuda/sampling/sampler.cuh"
}
include() { printf '#include "%s"\n' "$2" >> "$scratch/nanovllm/$1"; }
include_for_nvcc() { line "$1" '#if defined(__CUDACC__)'; include "$1" "$2"; line "$1" '#endif'; }
line() { printf '%s\n' "$2" >> "$scratch/nanovllm/$1"; }

expect_clean() {
  if ! output=$("$here/check_tree.sh" "$scratch" 2>&1); then
    echo "FAILED: $1: expected no violation, got:"; echo "$output"
    failures=$((failures + 1))
  fi
}

# expect WORDS DESCRIPTION COMMAND...: plants by COMMAND and looks for WORDS among the complaints.
expect() {
  local words=$1 description=$2
  shift 2
  fresh_tree
  "$@"
  if output=$("$here/check_tree.sh" "$scratch" 2>&1); then
    echo "FAILED: $description: not noticed"
    failures=$((failures + 1))
  elif ! grep -qF -- "$words" <<<"$output"; then
    echo "FAILED: $description: expected '$words', got:"; echo "$output"
    failures=$((failures + 1))
  fi
}

long_header() { for _ in $(seq "${1:-400}"); do line core/a.hpp '//'; done; }
# `body HEAD LINES TAIL`, of which LINES are as many lines of a function, at the end of a header.
body() { { printf '%s\n' "$1"; seq -f '  f(%g);' "$2"; printf '%s\n' "$3"; } >> "$scratch/nanovllm/core/a.hpp"; }
long_function() { body 'template <class T>
void __launch_bounds__(max_threads(1))
    add_kernel(T x, T y = {}) {' "${1:-57}" '}'; }
long_constructor() { body '  A(int x)
      : a_{x},
        b_(x) {' 57 '  }'; }
long_by_braces() { body 'inline int f(int x) {
  if (x > 0) {' 29 '  }'; body '  for (;;) {' 29 '  }
}'; }
long_const_method() { body 'struct A {
  [[nodiscard]] int size() const noexcept(kIsNothing) {' 60 '  }
};'; }
# What is no brace of a function, and what is no function.
hidden_braces() {
  body 'inline int g(char c) {  // {' 2 '  if (c == '"'{'"' || c == '"'\\''"') return 1'"'"'000; /* { */
  g("\"{", R"x(
{ ")"
)x", "//");
#define OPEN { \
  {
}'
  body 'inline constexpr int kTable[] = {' 70 '};'
  body 'template <class T = decltype(f())>
class alignas(64) Long : public Base<T, decltype(h(0))> {' 70 '};'
  body 'template <class T>
concept LongLike = requires(T a) {' 70 '};'
  body 'enum class Long : decltype(f()) {' 70 '};'
  body 'inline int h() {' 58 '}'
}
known_function() { long_function; echo 'core/a.hpp add_kernel registers' > "$scratch/long_functions.txt"; }
no_reason() { long_function; echo 'core/a.hpp add_kernel' > "$scratch/long_functions.txt"; }
old_function() { long_function 56; echo 'core/a.hpp add_kernel registers' > "$scratch/long_functions.txt"; }

# A header of so many lines whose name check_tree.sh has among those without a reason.
listed_header() {
  mkdir -p "$scratch/nanovllm/with/sessions"
  echo '#pragma once' > "$scratch/nanovllm/with/sessions.hpp"
  { echo '#pragma once'; seq -f '// %g' "$(($1 - 1))"; } > "$scratch/nanovllm/with/sessions/session.hpp"
  include with/sessions.hpp nanovllm/with/sessions/session.hpp
  include nanovllm.hpp nanovllm/with/sessions.hpp
}
long_by_includes() {
  { echo '#pragma once'; for _ in $(seq 400); do echo '#include <vector>'; done; echo 'namespace n {}'
  } > "$scratch/nanovllm/core/a.hpp"
}
long_bodies() { long_header 200; seq -f '// %g' 200 > "$scratch/nanovllm/core/a.inc"; }
long_with_late_reason() { long_header; line core/a.hpp '/// Longer than 400 lines: one table.'; }
one_body() { echo '// bodies' > "$scratch/nanovllm/core/b.inc"; include core/b.hpp nanovllm/core/b.inc; }
full_folder() { for i in $(seq 19); do printf '#pragma once\n' > "$scratch/nanovllm/core/h$i.hpp"; done; }
new_room() {
  mkdir "$scratch/nanovllm/engine/pool"
  printf '#pragma once\n' > "$scratch/nanovllm/engine/pool/pool.hpp"
  include engine/pool/pool.hpp nanovllm/engine/runner/runner.hpp
}
long_line() { line core/a.hpp "// $(printf '%098d' 0)"; }
wide_line() { line core/a.hpp "// $(printf 'é%.0s' $(seq 97))"; }
measured_gpt2() {
  mkdir -p "$scratch/nanovllm/with/gpt2/cuda"
  cp "$scratch/nanovllm/cuda/sampling/sampler.cuh" "$scratch/nanovllm/with/gpt2/cuda/ops.cuh"
}
cycle() { include core/a.hpp nanovllm/core/b.hpp; include core/b.hpp nanovllm/core/a.hpp; }
unguarded() { echo '// no guard' > "$scratch/nanovllm/core/a.hpp"; }
late_guard() { printf '#include <vector>\n#pragma once\n' > "$scratch/nanovllm/core/a.hpp"; }
unreached() { printf '#pragma once\n' > "$scratch/nanovllm/core/new.hpp"; }
reached_by_nvcc() { unreached; include cuda.cuh nanovllm/core/new.hpp; }
no_umbrella() { rm "$scratch/nanovllm/nanovllm.hpp"; }
new_folder() { mkdir "$scratch/nanovllm/utils"; echo '#pragma once' > "$scratch/nanovllm/utils/x.hpp"; }
wrong_suffix() { echo '#pragma once' > "$scratch/nanovllm/core/a.h"; }
new_part() {
  mkdir "$scratch/nanovllm/cuda/fft"
  echo '#pragma once' > "$scratch/nanovllm/cuda/fft/x.cuh"
  include cuda/fft/x.cuh nanovllm/cuda/runtime/launch.cuh
}
new_cuh() {
  echo '#pragma once' > "$scratch/nanovllm/$1"
  include "$1" nanovllm/cuda/runtime/launch.cuh
}
c_guard() { printf '#pragma once\n' > "$scratch/nanovllm/c/api.h"; }
c_includes() { sed -i 's/stddef/stdio/' "$scratch/nanovllm/c/api.h"; }
empty() { : > "$scratch/nanovllm/core/a.hpp"; }

arrow() { include text/tokenizer.hpp nanovllm/with/gguf/reader.hpp; }
known_arrow() { arrow; echo 'text/tokenizer.hpp with/gguf/reader.hpp' > "$scratch/house_arrows.txt"; }
old_arrow() { echo 'text/tokenizer.hpp with/gguf/reader.hpp' > "$scratch/house_arrows.txt"; }
# The figures of all rooms as they are, but for those of one.
budget_of() {
  (cd "$scratch" && find nanovllm -type f | awk '
    { split($0, parts, "/"); room = parts[3] == "" ? "faces/" : parts[2] "/" }
    parts[2] ~ /^(with|api)$/ && parts[4] != "" { room = parts[2] "/" parts[3] "/" }
    parts[2] == "with" && parts[4] == "" { room = "faces/" }
    { print room }' | sort -u | awk -v room="$1" -v files="$2" -v lines="$3" '
    { print $1, $1 == room ? files " " lines : "99 999" }
    END { print "house 99 999"; print "with 99 999"; print "api 99 999" }') > "$scratch/budgets.txt"
}
house_over() { budget_of none/ 1 1; sed -i 's/^house.*/house 20 999/' "$scratch/budgets.txt"; }
no_budget() { budget_of none/ 1 1; sed -i '/^kv/d' "$scratch/budgets.txt"; }
gone_budget() { budget_of none/ 1 1; echo 'disk/ 1 1' >> "$scratch/budgets.txt"; }

fresh_tree
expect_clean "the clean tree"
known_arrow
expect_clean "an arrow that is on the list"
fresh_tree
budget_of core/ 2 9
expect_clean "a tree within its budgets"
expect "the house may not include nanovllm/with/gguf/reader.hpp" "the house sees a wing" arrow
expect "nothing needs the line" "an arrow on the list that is not there" old_arrow
expect "with/gguf/ may not include" "a wing sees a wing" \
  include with/gguf/reader.hpp nanovllm/with/moe/experts.hpp
expect "with/moe/ may not include" "a wing's host part sees the CPU" \
  include with/moe/experts.hpp nanovllm/cpu/op.hpp
expect "with/moe/ may not include" "a wing's part for the CPU sees CUDA" \
  include with/moe/cpu/experts.hpp nanovllm/cuda/linear/tuning.hpp
expect "do not see each other" "a wing's part for CUDA sees that for the CPU" \
  include with/moe/cuda/experts.cuh nanovllm/with/moe/cpu/experts.hpp
expect "with/ may not include" "a face of a wing sees another wing" \
  include with/gguf.hpp nanovllm/with/moe/experts.hpp
expect "core/ has 2 files and" "a room over its budget of files" budget_of core/ 1 99
expect "core/ has 2 files and" "a room over its budget of lines" budget_of core/ 2 3
expect "house has " "a house over its budget" house_over
expect "no line for kv/" "a room without a budget" no_budget
expect "there is no disk/" "a budget of no room" gone_budget
fresh_tree
{ echo '#pragma once'; echo '/// Longer than 400 lines: one table.'; seq -f '// %g' 400; } \
  > "$scratch/nanovllm/core/a.hpp"
expect_clean "a long header that says why"
fresh_tree
long_function 56
expect_clean "a function of 60 lines"
fresh_tree
hidden_braces
expect_clean "braces that are no function's"
fresh_tree
known_function
expect_clean "a long function that is on the list"
fresh_tree
listed_header 401
expect_clean "a long header that is on the list"
fresh_tree
kernel '/// Measured: not by itself; a step of 2 ms' '/// (op_bench, ops.json).'
expect_clean "a kernel within what was measured"
fresh_tree
measured_gpt2
sed -i 's/op_bench.*/not at all: no model has it./' "$scratch/nanovllm/with/gpt2/cuda/ops.cuh"
expect_clean "a kernel that is listed as not measured"
fresh_tree
wide_line
expect_clean "a line of 100 characters in more bytes"

expect "core/ may not include" "core sees ops" include core/a.hpp nanovllm/ops/op.hpp
expect "ops/ may not include" "ops sees cpu" include ops/op.hpp nanovllm/cpu/op.hpp
expect "cpu/ may not include" "cpu sees kv" include cpu/op.hpp nanovllm/kv/pool.hpp
expect "cuda/ may not include" "cuda sees cpu" include cuda/op.cuh nanovllm/cpu/op.hpp
expect "cuda/ may not include" "cuda sees sched" include cuda/op.cuh nanovllm/sched/plan.hpp
expect "cpu/ may not include" "cpu sees cuda" include cpu/op.hpp nanovllm/cuda/op.cuh
expect "kv/ may not include" "kv sees sched" include kv/pool.hpp nanovllm/sched/plan.hpp
expect "sched/ may not include" "sched sees model" include sched/plan.hpp nanovllm/model/weights.hpp
expect "model/ may not include" "model sees io" include model/qwen3/qwen3.hpp nanovllm/io/safetensors.hpp
expect "model/ may not include" "weights see the tokeniser" \
  include model/weights.hpp nanovllm/text/tokenizer.hpp
expect "text/ may not include" "text sees the weights" include text/tokenizer.hpp nanovllm/model/weights.hpp
expect "parallel/ may not include" "parallel sees cpu" include parallel/single.hpp nanovllm/cpu/op.hpp
expect "engine/ may not include" "engine/ sees cpu" include engine/runner/runner.hpp nanovllm/cpu/op.hpp
expect "engine/ may not include" "engine/ sees policy" include engine/runner/runner.hpp nanovllm/policy.hpp
expect "cuda/ may not include" "cuda sees the ranks" include cuda/op.cuh nanovllm/parallel/devices.cuh
expect "parallel/ may not include" "ranks see cuda without nvcc" \
  include parallel/single.hpp nanovllm/cuda/runtime/launch.cuh
expect "parallel/ may not include" "ranks see more of cuda than the runtime" \
  include parallel/devices.cuh nanovllm/cuda/op.cuh
expect "cuda/runtime/ may not include" "the runtime sees a tile" \
  include cuda/runtime/launch.cuh nanovllm/cuda/tile/vec.cuh
expect "cuda/ptx/ may not include" "instructions see a tile" \
  include cuda/ptx/mma.cuh nanovllm/cuda/tile/vec.cuh
expect "cuda/tile/ may not include" "a tile sees a family" \
  include cuda/tile/vec.cuh nanovllm/cuda/linear/linear.cuh
expect "cuda/linear/ may not include" "a family sees another" \
  include cuda/linear/linear.cuh nanovllm/cuda/sampling/sampler.cuh
expect "cuda/sampling/ may not include" "a family sees another one's numbers" \
  include cuda/sampling/sampler.cuh nanovllm/cuda/linear/tuning.hpp
expect "cuda/attention/decode/ may not include" "decode attention sees varlen attention" \
  include cuda/attention/decode/decode.cuh nanovllm/cuda/attention/varlen/varlen.cuh
expect "cuda/linear/ may not include" "a family sees the files at the top" \
  include cuda/linear/linear.cuh nanovllm/cuda/op.cuh
expect "cuda/linear/ may not include" "a family's .cuh sees attention" \
  include cuda/linear/linear.cuh nanovllm/cuda/attention/simt.cuh
expect "cuda/linear/small_m/ may not include" "a family of dense kernels sees another" \
  include cuda/linear/small_m/kernel.cuh nanovllm/cuda/linear/blas/blas.cuh
expect "cuda/hopper/linear/mid_m/ may not include" "a family of Hopper's dense kernels sees another" \
  include cuda/hopper/linear/mid_m/kernel.cuh nanovllm/cuda/hopper/linear/wide_m/kernel.cuh
expect "cuda/hopper/linear/ may not include" "an architecture's dense kernels see its attention" \
  include cuda/hopper/linear/mid_m/kernel.cuh nanovllm/cuda/hopper/attention/varlen.cuh
expect "cuda/linear/ may not include" "dense layers name an architecture" \
  include cuda/linear/linear.cuh nanovllm/cuda/hopper/linear/mid_m/kernel.cuh
expect "engine/step/ may not include" "a step sees the runner" \
  include engine/step/step_inputs.hpp nanovllm/engine/runner/runner.hpp
expect "engine/runner/ may not include" "the runner sees the core" \
  include engine/runner/runner.hpp nanovllm/engine/core.hpp
expect "api/grammar/bytes/ may not include" "bytes see JSON Schema" \
  include api/grammar/bytes/byte_dfa.hpp nanovllm/api/grammar/json/writer.hpp
expect "api/serve/request/ may not include" "requests see replies" \
  include api/serve/request/chat.hpp nanovllm/api/serve/reply/chat.hpp
expect "kv/prefix/ may not include" "prefix caches see the block manager" \
  include kv/prefix/trie.hpp nanovllm/kv/pool.hpp
expect "sched/policy/ may not include" "a policy sees the scheduler" \
  include sched/policy/priority.hpp nanovllm/sched/scheduler.hpp
expect "no rule for engine/pool/" "a room without a rule" new_room
expect "21 files; a folder has at most 20" "a folder with too many files" full_folder
expect "only nanovllm/core/b.hpp includes it" "bodies beside their header" one_body
expect "an unset limit is a std::optional" "a member that is -1" line core/a.hpp '  int limit = -1;'
expect "an unset limit is a std::optional" "a member whose 0 is none" \
  line core/a.hpp '  int limit = 0;  ///< bytes; 0 for none'
expect "kv/ may not include" "a .cuh outside of cuda sees it" new_cuh kv/pool.cuh
expect "no rule for cuda/fft/" "a folder of cuda without a rule" new_part
expect "cuda.cuh may not include" "the CUDA policy sees cpu" \
  include cuda.cuh nanovllm/cpu/op.hpp
expect "policy.hpp may not include" "policy sees cuda" include policy.hpp nanovllm/cuda/op.cuh
expect "api/grammar/ may not include" "grammars see the sampler's settings" \
  include api/grammar/regex.hpp nanovllm/sampling/params.hpp
expect "a .hpp file may not include" "the engine sees the CUDA policy without nvcc" \
  include engine.hpp nanovllm/cuda.cuh
expect "a .hpp file may not include" "the umbrella sees a .cuh" \
  include nanovllm.hpp nanovllm/cuda.cuh
expect "a .hpp file may not include" "engine.hpp sees a .cuh" include engine.hpp nanovllm/cuda/op.cuh
expect "no rule for utils/" "a folder without a rule" new_folder
expect "is not the full path" "a relative include" include core/a.hpp b.hpp
expect "is not the full path" "a header that is not there" include core/a.hpp nanovllm/core/gone.hpp
expect "go in quotes" "angle brackets" line core/a.hpp '#include <nanovllm/core/b.hpp>'
expect "<iostream> is too costly" "iostream" line core/a.hpp '#include <iostream>'
expect "<regex> is too costly" "regex" line core/a.hpp '  #  include <regex>'
expect "<mpi.h> belongs in with/mpi/" "MPI in the core" line parallel/single.hpp '#include <mpi.h>'
expect "the house may not include" "ranks in threads see processes" \
  include parallel/single.hpp nanovllm/with/mpi/ranks.hpp
expect "nanovllm.hpp may not include" "the umbrella sees processes" \
  include nanovllm.hpp nanovllm/mpi.hpp
expect "needs the CUDA Toolkit" "CUDA in a .hpp" line core/a.hpp '#include <cuda_bf16.h>'
expect "cycle of includes" "a cycle" cycle
expect "402 lines, bodies included" "a long header" long_header
expect "402 lines, bodies included" "a long header with its bodies" long_bodies
expect "nothing needs its name in long_without_reason" "a short header that is on the list" \
  listed_header 400
expect "402 lines, bodies included" "a header that includes make long" long_by_includes
expect "core/a.hpp:3: add_kernel has 61 lines" "a long function" long_function
expect "core/a.hpp:3: A has 61 lines" "a long constructor with members in braces" long_constructor
expect "core/a.hpp:3: f has 64 lines" "a function that is long by what is within" long_by_braces
expect "core/a.hpp:4: size has 62 lines" "a long member" long_const_method
expect "no reason for core/a.hpp add_kernel" "a long function without a reason" no_reason
expect "nothing needs the line of core/a.hpp add_kernel" "a function that is no longer long" old_function
expect "braces that do not match" "a brace too many" line core/a.hpp 'namespace n {'
expect "403 lines, bodies included" "a reason that is not in the first comment" long_with_late_reason
expect "core/a.hpp:3: more than 100 columns" "a long line" long_line
expect 'has a line "/// Measured: BENCH' "a kernel that is not measured" kernel '/// Bytes: 4.'
expect 'has a line "/// Measured: BENCH' "a measure that is not in the first comment" \
  kernel '' '/// Measured: op_bench, ops.json, 5% of a step.'
expect "there is no benchmark op_test" "a benchmark that is not there" \
  kernel '/// Measured: op_test, ops.json, 5% of a step.'
expect "benchmarks/results/ has no gone.json" "a JSON that is not there" \
  kernel '/// Measured: op_bench, gone.json, 5% of a step.'
expect "benchmarks/results/ has no gone.json" "the second JSON of a measure, in its second line" \
  kernel '/// Measured: op_bench, ops.json, 5% of a step;' '/// of another 3% (gone.json).'
expect "names no JSON" "a measure without a JSON" kernel '/// Measured: op_bench, 5% of a step.'
expect "names no JSON" "a JSON after a measure" \
  kernel '/// Measured: op_bench, 5% of a step.' '///' '/// See ops.json.'
expect "names no JSON" "a kernel within what was not measured" kernel '/// Measured: not by itself; a step.'
expect "a kernel is measured" "a kernel that is not measured, and not listed" \
  kernel '/// Measured: not at all: no time.'
expect "it is measured" "a listed kernel that is measured" measured_gpt2
expect "lacks #pragma once" "no guard" unguarded
expect "first directive must be #pragma once" "a late guard" late_guard
expect "an empty header" "an empty header" empty
expect "does not reach nanovllm/core/new.hpp" "a header outside the umbrella" unreached
expect "does not reach nanovllm/core/new.hpp" "a header that only a .cuh reaches" reached_by_nvcc
expect "the umbrella header is missing" "no umbrella" no_umbrella
expect "belongs to its folder alone" "a fragment of another folder" \
  include engine.hpp nanovllm/cpu/fragment.inc
expect "ends in .hpp, .cuh or .inc" "another suffix" wrong_suffix
expect "must be #ifndef NANOVLLM_C_API_H" "a header for C without its guard" c_guard
expect "<stddef.h> and <stdint.h> alone" "a header for C sees more of C's library" c_includes
expect "<stddef.h> and <stdint.h> alone" "a header for C sees C++" include c/api.h nanovllm/core/a.hpp
expect "the house may not include" "the engine sees the interface for C" \
  include engine/runner/runner.hpp nanovllm/c/api.h

if [ "$failures" -gt 0 ]; then
  echo "$failures planted violations were not handled as expected"
  exit 1
fi
echo "every planted violation was noticed"
