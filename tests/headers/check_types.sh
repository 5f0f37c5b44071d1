#!/usr/bin/env bash
# check_types.sh [--write] [FOLDER]: the picture of the types that carry the house, in docs/architecture.md
# under FOLDER, the root of a tree, is what the headers say. Each type of the list below has an arrow to
# the others that its headers name in code, unless it reaches them by way of another. --write draws the
# picture anew.
set -euo pipefail

write=false
if [ "${1:-}" = --write ]; then write=true; shift; fi
cd "${1:-"$(dirname "${BASH_SOURCE[0]}")/../.."}"
page=docs/architecture.md
drawn=$(mktemp)
trap 'rm -f "$drawn"' EXIT

# A type, the words that name it, and its headers.
types() {
  cat << 'END'
Engine         Engine|EngineBody|EngineCore    engine.hpp engine/engine_body.hpp engine/core.hpp engine/core/*.hpp
Request        Request                         engine/request/request.hpp engine/request/request_sequence.hpp
Sequence       Sequence                        sched/sequence.hpp
Scheduler      Scheduler                       sched/scheduler.hpp sched/sequence_states.hpp sched/plan_builder.hpp
StepPlan       StepPlan|PlannedSequence        sched/step_plan.hpp
BlockManager   BlockManager|Blocks             kv/block_manager.hpp
PrefixCache    PrefixCache|PrefixCacheLike     kv/prefix/prefix_cache.hpp kv/prefix/hash_prefix_cache.hpp
RankGroup      RankGroup|Runner|StepRunner     engine/runner/rank.hpp engine/runner/rank_group.hpp engine/runner/runner.hpp
Executor       Executor|DirectExecutor         engine/step/direct_executor.hpp engine/step/step_kv.hpp
StepInputs     StepInputs|StepBatch            engine/step/step_inputs.hpp engine/step/step_batch.hpp
Decoder        Decoder|Model                   model/layers/decoder.hpp model/qwen3/qwen3.hpp
ResidualStream ResidualStream|BlockInput       model/layers/residual_stream.hpp model/layers/attention.hpp model/layers/mlp.hpp
KvPool         KvPool|KvView                   kv/kv_pool.hpp
Backend        Backend|CpuBackend              cpu/backend.hpp
END
}

# The headers of a type without comments, directives and strings.
code_of() {
  local file
  for file in "$@"; do
    # shellcheck disable=SC2086
    cat include/nanovllm/$file
  done | sed -e 's/"\(\\.\|[^"\\]\)*"/""/g' -e 's/\/\/.*//' -e '/^ *#/d'
}

arrows() {
  local name words headers others_name others_words
  types | while read -r name words headers; do
    # shellcheck disable=SC2086
    code=$(code_of $headers)
    types | while read -r others_name others_words _; do
      if [ "$name" != "$others_name" ] && grep -qwE "$others_words" <<< "$code"; then
        echo "$name $others_name"
      fi
    done
  done
}

{
  echo '```mermaid'
  echo 'flowchart LR'
  arrows | awk '
    { arrow[++num] = $0; from[num] = $1; to[num] = $2; reaches[$1, $2] }
    END {
      for (changed = 1; changed; ) {
        changed = 0
        for (i = 1; i <= num; i++)
          for (pair in reaches) {
            split(pair, ends, SUBSEP)
            if (ends[1] == to[i] && !((from[i], ends[2]) in reaches)) { reaches[from[i], ends[2]]; changed = 1 }
          }
      }
      for (i = 1; i <= num; i++) {
        longer = 0
        for (j = 1; j <= num; j++)
          if (from[j] == from[i] && to[j] != to[i] && (to[j], to[i]) in reaches) longer = 1
        if (!longer) print "  " from[i] " --> " to[i]
      }
    }'
  echo '```'
} > "$drawn"

if $write; then
  awk -v drawn="$drawn" '
    /^```mermaid$/ { while ((getline line < drawn) > 0) print line; inside = 1 }
    !inside { print }
    inside && /^```$/ { inside = 0 }' "$page" > "$drawn.page"
  mv "$drawn.page" "$page"
elif ! diff <(sed -n '/^```mermaid$/,/^```$/p' "$page") "$drawn"; then
  echo "$page: the picture is not what the headers say; tests/headers/check_types.sh --write draws it"
  exit 1
fi
echo "$(types | wc -l) types, $(grep -c -e '-->' "$drawn") arrows"
