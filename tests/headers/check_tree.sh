#!/usr/bin/env bash
# Checks the headers' tree: check_tree.sh [INCLUDE_FOLDER]. Prints one line per violation, with file
# and line number, and exits with 1 if there is any.
#
#   who includes whom   the arrows of docs/architecture.md; 'allowed' below is the whole table, and
#                       'allowed_in_module' that of the folders of engine/, kv/, sched/, model/,
#                       cuda/linear/, cuda/hopper/linear/, api/grammar/, api/serve/ and api/chat/
#   storeys             the house includes neither with/ nor api/, but for the arrows that
#                       tests/headers/house_arrows.txt lists, each of which is needed. A wing sees
#                       the house, and of other wings those that 'wings_of' names; its .hpp files
#                       see no device, and what is for the CPU is in its folder cpu/
#   budgets             the files and lines of a room and of a wing, tests/headers/budgets.txt; a line that
#                       went up says why
#   how                 full paths in quotes, of files that exist, without cycles
#   what not            <iostream>, <regex>, <format>; <mpi.h> only in with/mpi/; CUDA's headers only in
#                       .cuh, and .cuh only in .cuh, but for engine.hpp, which asks for __CUDACC__
#                       before
#   form                '#pragma once' first, .hpp or .cuh; a .inc file has no guard: it is a
#                       fragment for repeated inclusion within its own folder, and not included by
#                       one header alone
#   columns             at most 100
#   folders             at most 20 files each, but for ops/ and cpu/kernels/, which have a file an
#                       op, and the top, which has a face a module
#   unset               std::optional in public structs, not -1 and not '0 for ...', but for members
#                       in 'wire': of structs that are copied to a device or to a file, and indices
#                       within automata
#   length              a header, with the .inc of its name beside it, has at most 400 lines; the
#                       first comment of a longer one, but for those in 'long_without_reason', says
#                       why, in a line '/// Longer than 400 lines: ...'
#   functions           at most 60 lines from the signature to the closing brace, but for those of
#                       tests/headers/long_functions.txt, which has a reason for each
#   measured            the first comment of a header with a __global__ has a line '/// Measured: BENCH,
#                       JSON, GAIN', where BENCH is a program of benchmarks/ and JSON a file of
#                       benchmarks/results/; or 'not by itself; ...', which names the JSON of what
#                       contains the kernel; or, in 'unmeasured' alone, 'not at all: WHY'
#   C                   a .h file is in c/ alone, has a guard NANOVLLM_C_<NAME>_H, which C needs no
#                       extension for, and includes <stddef.h> and <stdint.h> at the most
#   faces               <module>.hpp includes headers of <module>/ alone, and the umbrella nanovllm.hpp,
#                       at most 70 lines, includes the faces, and what engine.hpp leaves out
#   umbrella            nanovllm.hpp reaches every .hpp but implementation.hpp, mpi.hpp and those of
#                       cuda/, with/mpi/ and api/c/, without the help of a .cuh
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=${1:-"$(cd "$here/../.." && pwd)/include"}
# The lists and the benchmarks of another tree are beside it.
lists=$here benchmarks=$here/../../benchmarks
if [ $# -gt 0 ]; then lists=$root benchmarks=$root/benchmarks; fi
programs=$(find "$benchmarks" -name '*.cpp' -printf '%f ' -o -name '*.cu' -printf '%f ')
results=$(find "$benchmarks/results" -name '*.json' -printf '%f ')
cd "$root"
mapfile -t files < <(find nanovllm -type f | LC_ALL=C sort)
if [ "${#files[@]}" -eq 0 ]; then
  echo "no headers under $root/nanovllm"
  exit 1
fi

graph=$(mktemp)
trap 'rm -f "$graph"' EXIT

status=0
awk -v graph="$graph" -v arrows="$lists/house_arrows.txt" -v budgets="$lists/budgets.txt" \
  -v programs="$programs" -v results="$results" '
  function complain(line, text) {
    print FILENAME ":" line ": " text
    violations++
  }

  # nanovllm/kv/block_manager.hpp is in folder "kv/", nanovllm/with/moe/ops.hpp in "with/moe/"; the
  # files at the top have their own name, and the faces of wings, with/moe.hpp, are in "with/".
  function folder_of(path,   parts, count) {
    count = split(path, parts, "/")
    if (count == 2) return parts[2]
    if ((parts[2] == "with" || parts[2] == "api") && count > 3) return parts[2] "/" parts[3] "/"
    return parts[2] "/"
  }

  # "house", "with" or "api"; "face" of what brings all storeys together.
  function storey_of(path,   folder) {
    folder = folder_of(path)
    if (folder ~ /^with\//) return "with"
    if (folder ~ /^api\// || folder == "c/") return "api"
    return (folder in above_all) ? "face" : "house"
  }

  # What a wing may include; how it is read is in the comment at the top.
  function check_wing(line, from, to,   source, target) {
    source = folder_of(from)
    target = folder_of(to)
    if (source == "with/") {
      if (target == "with/" || to ~ ("^" substr(from, 1, length(from) - 4) "/")) return
    } else if (storey_of(to) == "with") {
      if (source == target) {
        if (from ~ /\/cpu\// && to ~ /\/cuda\// || from ~ /\/cuda\// && to ~ /\/cpu\//)
          complain(line, "the parts for CPU and CUDA of " source " do not see each other: " to)
        return
      }
      if (index(" " wings_of[source] " ", " " target " ") > 0) return
    } else if (storey_of(to) == "house") {
      if (target == "cpu/") {
        if (from ~ /\/cpu\//) return
      } else if (target == "cuda/") {
        if (from ~ /\.cuh$/ || from ~ /\/cuda\// || source in on_cuda) return
      } else if (to !~ /\.cuh$/ || from ~ /\.cuh$/) return
    }
    complain(line, source " may not include " to)
  }

  # nanovllm/cuda/tile/vec.cuh is in the part "cuda/tile/" of cuda/, nanovllm/cuda/backend.cuh in
  # "cuda/" itself. attention/ and the architectures have folders of their own.
  function part_of(path,   parts, count) {
    count = split(path, parts, "/")
    if (count == 3) return "cuda/"
    return "cuda/" parts[3] "/" ((parts[3] == "attention" || parts[3] in architectures) && count > 4 ? parts[4] "/" : "")
  }

  # nanovllm/kv/pool.hpp and nanovllm/kv/pool.inc have the stem nanovllm/kv/pool.
  function stem_of(path) {
    sub(/\.[a-z]*$/, "", path)
    return path
  }

  # nanovllm/with/tiers/disk/disk_store.hpp is in the room "with/tiers/disk/", nanovllm/engine/core.hpp in
  # "engine/". Rooms are told apart in the modules that have a rule for themselves.
  function room_of(path,   parts, count, module) {
    count = split(path, parts, "/")
    module = parts[2] "/"
    if (module == "cuda/" && parts[3] == "linear") return "cuda/linear/" (count > 4 ? parts[4] "/" : "")
    if (module == "cuda/" && parts[3] in architectures && parts[4] == "linear")
      return "cuda/" parts[3] "/linear/" (count > 5 ? parts[5] "/" : "")
    if (parts[2] == "api") {
      module = "api/" parts[3] "/"
      return (module in allowed_in_module) ? module (count > 4 ? parts[4] "/" : "") : ""
    }
    if (!(module in allowed_in_module)) return ""
    return module (count > 3 ? parts[3] "/" : "")
  }

  function check_rooms(line, from, to,   source, target, module) {
    source = room_of(from)
    target = room_of(to)
    if (source == "" || target == "" || source == target) return
    if (folder_of(from) != folder_of(to)) return
    if (!(source in allowed_in_module)) {
      complain(line, "no rule for " source "; the table is in check_tree.sh")
      return
    }
    if (allowed_in_module[source] == "all") return
    if (index(" " allowed_in_module[source] " ", " " target " ") > 0) return
    if (index(" " allowed_in_module[source] " ", " " substr(to, length("nanovllm/") + 1) " ") > 0) return
    complain(line, source " may not include " to)
  }

  # nanovllm/c/nanovllm.h has the guard NANOVLLM_C_NANOVLLM_H.
  function c_guard(path) {
    path = toupper(path)
    gsub(/[\/.]/, "_", path)
    return path
  }

  function check_arrow(line, from, to,   source, target) {
    source = folder_of(from)
    target = folder_of(to)
    if (storey_of(from) == "with") {
      check_wing(line, from, to)
      return
    }
    if (storey_of(from) == "house" && storey_of(to) ~ /^(with|api)$/) {
      if ((from " " to) in arrow_line) arrow_used[from " " to]
      else complain(line, "the house may not include " to)
      return
    }
    if (source == "cuda/" && target == "cuda/") {
      source = part_of(from)
      target = part_of(to)
      if (!(source in allowed_in_cuda)) complain(line, "no rule for " source)
      else if (index(" " allowed_in_cuda[source] " ", " " target " ") == 0 &&
               index(" " allowed_in_cuda[source] " ", " " substr(to, length("nanovllm/") + 1) " ") == 0)
        complain(line, source " may not include " to)
      return
    }
    if (source == "parallel/" && from ~ /\.cuh$/ && target == "cuda/") {
      if (part_of(to) != "cuda/runtime/") complain(line, source " may not include " to)
      return
    }
    if (index(" " allowed[source] " ", " " target " ") > 0) return
    if (index(" " allowed[source] " ", " " substr(to, length("nanovllm/") + 1) " ") > 0) return
    if (from in loaders && target == "io/")
      return
    complain(line, source " may not include " to)
  }

  BEGIN {
    # Left: a folder or a file at the top. Right: the folders and the single files it may see.
    allowed["core/"] = "core/"
    allowed["ops/"] = "core/ ops/"
    allowed["cpu/"] = "core/ ops/ cpu/"
    allowed["cuda/"] = "core/ ops/ cuda/"
    allowed["kv/"] = "core/ ops/ kv/ fwd.hpp"
    allowed["sched/"] = "core/ ops/ kv/ sched/ fwd.hpp"
    allowed["sampling/"] = "core/ ops/ sampling/ model/generation_config.hpp"
    allowed["model/"] = "core/ ops/ model/"
    allowed["parallel/"] = "core/ parallel/"
    allowed["io/"] = "core/ io/"
    allowed["text/"] = "core/ io/ text/"
    allowed["chat/"] = "core/ io/ chat/"
    allowed["api/serve/"] = "core/ io/ text/ chat/ sampling/ engine/ api/grammar/ api/serve/ version.hpp"
    allowed["api/serve/"] = allowed["api/serve/"] \
        " api/chat/ kv/block_map.hpp with/moe/ with/pooling/ with/sessions/ with/speculation/ with/tiers/"
    allowed["api/c/"] = allowed["api/serve/"] " api/c/ kv/kv_config.hpp with/peers/ c/"
    allowed["c/"] = ""
    allowed["api/chat/"] = "core/ io/ chat/ api/chat/"
    allowed["api/grammar/"] = "core/ io/ text/ api/grammar/ sampling/choice_source.hpp sampling/token_mask_source.hpp"
    allowed["engine/"] = "core/ ops/ kv/ sched/ sampling/ model/ parallel/ io/ text/ chat/ engine/ fwd.hpp version.hpp"
    allowed["mpi.hpp"] = "with/ with/mpi/"
    allowed["version.hpp"] = ""
    allowed["fwd.hpp"] = "core/ version.hpp"
    allowed["policy.hpp"] = allowed["engine/"] " cpu.hpp"
    allowed["engine.hpp"] = allowed["policy.hpp"] " policy.hpp"
    # A face names the public headers of its module, and the umbrella names the faces.
    allowed["nanovllm.hpp"] = \
        "cuda_policy.hpp engine.hpp full_policy.hpp fwd.hpp policy.hpp version.hpp with/"
    num_faces = split("chat core cpu grammar io kv model ops parallel sampling sched serve text", faces, " ")
    for (i = 1; i <= num_faces; i++) {
      allowed[faces[i] ".hpp"] = faces[i] "/ api/" faces[i] "/"
      allowed["nanovllm.hpp"] = allowed["nanovllm.hpp"] " " faces[i] ".hpp"
    }
    allowed["cpu.hpp"] = allowed["cpu.hpp"] " engine/runner_maker.hpp"
    allowed["engine.hpp"] = allowed["engine.hpp"] " cuda.cuh"
    allowed["implementation.hpp"] = \
        "engine/ model/ with/any/ nanovllm.hpp full_policy.hpp policy.hpp"
    allowed["full_policy.hpp"] = \
        "engine/ with/shards/ with/speculation/ with/tiers/ cpu.hpp engine.hpp policy.hpp"
    allowed["cuda_policy.hpp"] = "kv/ parallel/ engine/runner/thread_ranks.hpp policy.hpp"
    allowed["cuda.cuh"] = \
        "core/ kv/ parallel/ cuda/ with/batch_invariant/ with/eight_bits/ with/gpt2/ with/peers/ " \
        "with/shards/ with/speculation/ with/tiers/ cpu.hpp policy.hpp cuda_policy.hpp"

    # What includes storeys above the house because it is there to bring them together.
    num_above = split("nanovllm.hpp implementation.hpp full_policy.hpp cuda.cuh chat.hpp grammar.hpp " \
                      "mpi.hpp serve.hpp", above, " ")
    for (i = 1; i <= num_above; i++) above_all[above[i]]

    # Left: a wing. Right: the wings that it is made of, apart from itself.
    wings_of["with/any/"] = "with/beams/ with/eight_bits/ with/gguf/ with/gpt2/ with/moe/ with/pooling/"
    wings_of["with/batch_invariant/"] = "with/moe/ with/shards/"
    wings_of["with/moe/"] = "with/eight_bits/"
    wings_of["with/tiers/"] = "with/sessions/"
    num_wings = split("batch_invariant beams eight_bits gguf gpt2 moe mpi peers pooling radix sessions shards speculation " \
                      "tiers any", wings, " ")
    allowed["with/"] = "with/"
    for (i = 1; i <= num_wings; i++) allowed["with/" wings[i] "/"] = "with/" wings[i] "/"
    # Wings that are for GPUs alone have no folder cuda/.
    on_cuda["with/batch_invariant/"]
    on_cuda["with/peers/"]

    while ((getline row < arrows) > 0) {
      if (row ~ /^#/ || row == "") continue
      split(row, words, " ")
      arrow_line["nanovllm/" words[1] " nanovllm/" words[2]]
      num_arrows++
    }
    while ((getline row < budgets) > 0) {
      if (row ~ /^#/ || row == "") continue
      split(row, words, " ")
      num_budgets++
      most_files[words[1]] = words[2]
      most_lines[words[1]] = words[3]
    }

    # The folders of cuda/ with kernels for one architecture.
    architectures["hopper"]

    # The same within cuda/: {runtime, ptx} <- tile <- families <- the files at the top. Families do
    # not see each other. The files at the top of attention/ are what its families share, and
    # what puts them together.
    allowed_in_cuda["cuda/runtime/"] = "cuda/runtime/"
    allowed_in_cuda["cuda/ptx/"] = "cuda/runtime/ cuda/ptx/"
    below_families = "cuda/runtime/ cuda/ptx/ cuda/tile/"
    allowed_in_cuda["cuda/tile/"] = below_families
    num_families = split("attention/ attention/decode/ attention/varlen/ elementwise/ linear/ sampling/",
                         families, " ")
    allowed_in_cuda["cuda/"] = "cuda/ " below_families
    for (i = 1; i <= num_families; i++) {
      family = "cuda/" families[i]
      allowed_in_cuda[family] = below_families " " family
      allowed_in_cuda["cuda/"] = allowed_in_cuda["cuda/"] " " family
    }
    allowed_in_cuda["cuda/attention/decode/"] = allowed_in_cuda["cuda/attention/decode/"] " cuda/attention/"
    allowed_in_cuda["cuda/attention/varlen/"] = allowed_in_cuda["cuda/attention/varlen/"] " cuda/attention/"
    allowed_in_cuda["cuda/attention/"] = allowed_in_cuda["cuda/attention/"] \
        " cuda/attention/decode/ cuda/attention/varlen/"

    # Kernels for one architecture: they see what those for all have in common and the tables of
    # theirs, hopper/hopper.hpp, not each other. Only cuda/architectures.cuh names an architecture.
    for (name in architectures) {
      own = "cuda/" name "/"
      allowed_in_cuda[own "attention/"] = below_families " cuda/attention/varlen/ " own name ".hpp " own "attention/"
      allowed_in_cuda[own "linear/"] = below_families " cuda/linear/ " own name ".hpp " own "linear/"
      allowed_in_cuda[own] = below_families " cuda/architecture.hpp cuda/linear/ " \
          "cuda/attention/varlen/ " own " " own "attention/ " own "linear/"
      allowed_in_cuda["cuda/"] = allowed_in_cuda["cuda/"] " " own
    }
    allowed_in_cuda["cuda/linear/"] = allowed_in_cuda["cuda/linear/"] " cuda/architecture.hpp"

    # The same within modules. The files at the top of a module put its rooms together; those that
    # rooms may see themselves are named.
    allowed_in_module["engine/"] = "all"
    allowed_in_module["engine/request/"] = "engine/engine_config.hpp"
    allowed_in_module["engine/draw/"] = ""
    allowed_in_module["engine/step/"] = "engine/draw/ engine/request/ engine/engine_config.hpp"
    allowed_in_module["engine/runner/"] = "engine/step/ engine/engine_config.hpp engine/extras.hpp"
    allowed_in_module["engine/core/"] = \
        "engine/request/ engine/step/ engine/runner/ engine/engine_config.hpp"
    allowed_in_module["engine/tiers/"] = "with/tiers/disk/ engine/runner/ " \
        "engine/core/step_observer.hpp engine/engine_config.hpp"

    allowed_in_module["api/grammar/"] = "all"
    allowed_in_module["api/grammar/bytes/"] = ""
    allowed_in_module["api/grammar/regex/"] = "api/grammar/bytes/"
    allowed_in_module["api/grammar/ebnf/"] = "api/grammar/bytes/ api/grammar/regex/"
    allowed_in_module["api/grammar/json/"] = "api/grammar/bytes/ api/grammar/regex/ api/grammar/ebnf/"
    allowed_in_module["api/grammar/source/"] = "api/grammar/bytes/ api/grammar/regex/"

    serve_tops = "api/serve/exchange.hpp api/serve/service_config.hpp api/serve/service_load.hpp " \
        "api/serve/engine_exchange.hpp api/serve/admission.hpp"
    allowed_in_module["api/serve/"] = "all"
    allowed_in_module["api/serve/constraint/"] = ""
    allowed_in_module["api/serve/request/"] = "api/serve/constraint/"
    allowed_in_module["api/serve/reply/"] = "api/serve/request/ api/serve/constraint/ " serve_tops

    allowed_in_module["api/chat/"] = "all"
    allowed_in_module["api/chat/jinja/"] = "api/chat/python_text.hpp"
    allowed_in_module["api/chat/tool_calls/"] = "chat/chat_message.hpp api/chat/scanners.hpp"

    allowed_in_module["kv/"] = "all"
    allowed_in_module["kv/prefix/"] = "kv/cached_block.hpp kv/eviction_order.hpp kv/block_list.hpp"

    allowed_in_module["sched/"] = "all"
    allowed_in_module["sched/policy/"] = "sched/batch_config.hpp sched/plan_builder.hpp " \
        "sched/queues.hpp sched/sequence.hpp sched/step_plan.hpp"

    allowed_in_module["model/"] = "with/eight_bits/checkpoint/"
    allowed_in_module["model/layers/"] = "model/"
    allowed_in_module["model/qwen3/"] = "model/ model/layers/ with/eight_bits/checkpoint/"

    # Families of kernels are siblings; what they share is in cuda/tile/.
    allowed_in_module["cuda/linear/"] = "all"
    linear_tops = "cuda/linear/layer.cuh cuda/linear/tuning.hpp"
    num_dense = split("small_m/ blas/", dense, " ")
    for (i = 1; i <= num_dense; i++) {
      allowed_in_module["cuda/linear/" dense[i]] = linear_tops
      dense_families = dense_families " cuda/linear/" dense[i]
    }
    allowed_in_module["cuda/hopper/linear/"] = "all"
    allowed_in_module["cuda/hopper/linear/mid_m/"] = linear_tops
    allowed_in_module["cuda/hopper/linear/wide_m/"] = linear_tops
    allowed_in_module["cuda/linear/dispatch/"] = linear_tops dense_families
    allowed_in_module["cuda/linear/tune/"] = linear_tops " cuda/linear/dispatch/"

    # Members that may be -1 or 0 where nothing is set.
    wire["nanovllm/ops/sampler.hpp num_logprobs"]
    wire["nanovllm/ops/logit_edits.hpp marks"]
    wire["nanovllm/ops/logit_edits.hpp mask"]
    wire["nanovllm/ops/attention.hpp parent"]
    wire["nanovllm/ops/attention.hpp group"]
    wire["nanovllm/kv/cached_block.hpp parent"]
    wire["nanovllm/kv/prefix/shared_prefixes.hpp parent"]
    wire["nanovllm/api/grammar/ebnf/ebnf_parser.hpp rule"]
    wire["nanovllm/api/grammar/ebnf/grammar_network.hpp what"]
    wire["nanovllm/api/grammar/ebnf/grammar_network.hpp next"]
    wire["nanovllm/api/grammar/ebnf/grammar_network.hpp start"]
    wire["nanovllm/api/grammar/bytes/byte_dfa.hpp other"]
    wire["nanovllm/api/grammar/regex/regex_nfa.hpp all"]

    # Folders with a file for each op, what mirrors them, and the top with a face for each module.
    may_be_full["nanovllm/ops"]
    may_be_full["nanovllm/cpu/kernels"]
    may_be_full["nanovllm"]

    # What reads or writes a checkpoint in model/ may see the readers and writers of files.
    loaders["nanovllm/model/config_fields.hpp"]
    loaders["nanovllm/model/generation_config.hpp"]
    loaders["nanovllm/model/prefixed_checkpoint.hpp"]
    loaders["nanovllm/model/stored_matrix.hpp"]
    loaders["nanovllm/model/rope_config.hpp"]
    loaders["nanovllm/model/qwen3/config.hpp"]
    loaders["nanovllm/model/weights.hpp"]
    loaders["nanovllm/sampling/sampling_json.hpp"]

    # Longer than 400 lines without a reason; the list only gets shorter.
    long_without_reason["nanovllm/with/sessions/session"]

    # Kernels that no benchmark runs, nor anything that contains them. One more needs a reason.
    unmeasured["nanovllm/cuda/runtime/context.cuh"]
    unmeasured["nanovllm/with/gpt2/cuda/ops.cuh"]
    unmeasured["nanovllm/with/speculation/eagle3/cuda/ops.cuh"]

    num_files_there = split(programs " " results, files_there, " ")
    for (i = 1; i <= num_files_there; i++) is_there[files_there[i]] = 1

    for (i = 1; i < ARGC; i++) {
      exists[ARGV[i]] = 1
      folder = ARGV[i]
      sub(/\/[^\/]*$/, "", folder)
      files_of[folder]++
    }
  }

  FNR == 1 {
    seen_directive = in_nvcc = 0
    num_lines[FILENAME] = 0
    is_c = FILENAME ~ /\.h$/ && folder_of(FILENAME) == "c/"
    if (FILENAME !~ /\.(hpp|cuh|inc)$/ && !is_c)
      complain(1, "a header ends in .hpp, .cuh or .inc, or in c/ in .h")
    if (!(folder_of(FILENAME) in allowed))
      complain(1, "no rule for " folder_of(FILENAME) "; the table is in check_tree.sh")
  }

  { num_lines[FILENAME] = FNR }

  # The first comment ends with the first line that is none.
  FNR == 1 { in_first_comment = 1 }
  !/^(\/\/|#pragma once$|#(ifndef|define) NANOVLLM_C_)/ { in_first_comment = 0 }
  in_first_comment && /^\/\/\/ Longer than 400 lines: / { says_why[stem_of(FILENAME)] = 1 }

  # What was measured is read to the end of its paragraph.
  !in_first_comment || /^\/\/\/?$/ { in_measured = 0 }
  in_first_comment && /^\/\/\/ Measured: / { in_measured = 1 }
  in_measured { measured[FILENAME] = measured[FILENAME] substr($0, 4) }
  /^[^\/]*__global__/ { has_kernel[FILENAME] = 1 }
  FNR == 71 && FILENAME == "nanovllm/nanovllm.hpp" {
    complain(FNR, "the umbrella has more than 70 lines")
  }

  /^[ \t]*#/ && !seen_directive {
    seen_directive = 1
    if (FILENAME ~ /\.inc$/) guarded[FILENAME] = 1
    else if (is_c) {
      guarded[FILENAME] = 1
      if ($0 != "#ifndef " c_guard(FILENAME))
        complain(FNR, "the first directive must be #ifndef " c_guard(FILENAME))
    } else if ($0 !~ /^#pragma once$/) complain(FNR, "the first directive must be #pragma once")
    else guarded[FILENAME] = 1
  }

  # The last of several members in a line stands for all of them.
  /^ +[A-Za-z].* [a-z0-9_]*[a-z0-9] = -1;/ && !/constexpr|static/ || /^ +[A-Za-z].* = 0;.*\/\/\/< (.*[^0-9.])?0 for / {
    member = $0
    sub(/ = (-1|0);.*/, "", member)
    sub(/.* /, "", member)
    if (FILENAME ~ /\.hpp$/ && FILENAME !~ /\/(cuda|cpu)\// &&
        !((FILENAME " " member) in wire))
      complain(FNR, "an unset " member " is a std::optional without a value")
  }

  # What is between these lines is for nvcc alone; nothing is nested there.
  /^#if defined\(__CUDACC__\)$/ { in_nvcc = 1 }
  /^#endif/ { in_nvcc = 0 }

  /^[ \t]*#[ \t]*include[ \t]*</ {
    name = $0
    sub(/^[^<]*</, "", name)
    sub(/>.*/, "", name)
    if (name == "iostream" || name == "regex" || name == "format")
      complain(FNR, "<" name "> is too costly for every file that includes us")
    if (name ~ /^nanovllm\//) complain(FNR, "our own headers go in quotes: \"" name "\"")
    if (name == "mpi.h" && folder_of(FILENAME) != "with/mpi/")
      complain(FNR, "<mpi.h> belongs in with/mpi/")
    if (is_c && name != "stddef.h" && name != "stdint.h")
      complain(FNR, "a header for C includes <stddef.h> and <stdint.h> alone")
    if (name ~ /^(cuda|cublas|curand|nccl|cub\/|thrust\/|cooperative_groups)/ &&
        FILENAME ~ /\.hpp$/)
      complain(FNR, "<" name "> needs the CUDA Toolkit and belongs in a .cuh file")
  }

  /^[ \t]*#[ \t]*include[ \t]*"/ {
    name = $0
    sub(/^[^"]*"/, "", name)
    sub(/".*/, "", name)
    if (is_c) complain(FNR, "a header for C includes <stddef.h> and <stdint.h> alone")
    if (!(name in exists)) {
      complain(FNR, "\"" name "\" is not the full path of a header of ours")
    } else {
      beside = FILENAME
      sub(/\.hpp$/, ".inc", beside)
      if (name ~ /\.inc$/ && num_includers[name]++ == 0) includer[name] = FILENAME
      if (name ~ /\.inc$/ && folder_of(name) != folder_of(FILENAME) && name != beside &&
          !(name == "nanovllm/cpu/for_each_isa.inc" && FILENAME ~ /\/cpu\//))
        complain(FNR, "a .inc file belongs to its folder alone: " name)
      if (name ~ /\.cuh$/ && FILENAME ~ /\.hpp$/ &&
          !(FILENAME == "nanovllm/engine.hpp" && in_nvcc))
        complain(FNR, "a .hpp file may not include " name)
      check_arrow(FNR, FILENAME, name)
      check_rooms(FNR, FILENAME, name)
      print FILENAME, name > graph
      if (name !~ /\.cuh$/) edges[FILENAME] = edges[FILENAME] " " name
    }
  }

  # What is compiled for each instruction set is named this way.
  /^[ \t]*#[ \t]*define NANOVLLM_KERNELS[ \t]*"/ {
    name = $0
    sub(/^[^"]*"/, "", name)
    sub(/".*/, "", name)
    check_arrow(FNR, FILENAME, name)
  }

  # Marks everything that path reaches.
  function reach(path,   next_files, count, k) {
    if (path in reached) return
    reached[path] = 1
    count = split(edges[path], next_files, " ")
    for (k = 1; k <= count; k++) reach(next_files[k])
  }

  # Whether a header with kernels says what was measured; see the comment at the top.
  function check_measured(path,   text, bench, num_json) {
    FILENAME = path
    text = substr(measured[path], length(" Measured: ") + 1)
    if (text == "") {
      if (path in has_kernel)
        complain(1, "a header with a __global__ has a line \"/// Measured: BENCH, JSON, GAIN\"")
      return
    }
    if (text ~ /^not at all: ./) {
      if (!(path in unmeasured)) complain(1, "a kernel is measured; those that are not are listed")
      return
    }
    if (path in unmeasured) complain(1, "it is measured, so unmeasured need not have it")
    bench = text
    sub(/,.*/, "", bench)
    if (text !~ /^not by itself; ./ && !((bench ".cu") in is_there) && !((bench ".cpp") in is_there))
      complain(1, "there is no benchmark " bench)
    while (match(text, /[A-Za-z0-9_]+\.json/)) {
      num_json++
      if (!(substr(text, RSTART, RLENGTH) in is_there))
        complain(1, "benchmarks/results/ has no " substr(text, RSTART, RLENGTH))
      text = substr(text, RSTART + RLENGTH)
    }
    if (num_json == 0) complain(1, "what was measured names no JSON of benchmarks/results/")
  }

  # A room of the house, a wing, a part of api/; and their sums, "house", "with" and "api".
  function check_budgets(   i, room, storey, rooms) {
    FILENAME = budgets
    for (i = 1; i < ARGC; i++) {
      storey = storey_of(ARGV[i])
      room = folder_of(ARGV[i])
      if (room !~ /\/$/ || room == "with/") room = "faces/"
      num_files[room]++
      files_lines[room] += num_lines[ARGV[i]]
      if (storey == "face") continue
      num_files[storey]++
      files_lines[storey] += num_lines[ARGV[i]]
    }
    for (room in most_files)
      if (!(room in num_files)) complain(0, "there is no " room)
    if (num_budgets == 0) return  # a tree without that list
    for (room in num_files) {
      if (!(room in most_files)) complain(0, "no line for " room)
      else if (num_files[room] > most_files[room] + 0 || files_lines[room] > most_lines[room] + 0)
        complain(0, room " has " num_files[room] " files and " files_lines[room] " lines; at most " \
                 most_files[room] " and " most_lines[room])
    }
  }

  END {
    for (i = 1; i < ARGC; i++) {
      stem = stem_of(ARGV[i])
      sum_lines[stem] += num_lines[ARGV[i]]
      last_of[stem] = ARGV[i]
    }
    for (i = 1; i < ARGC; i++) check_measured(ARGV[i])
    for (name in num_includers)
      if (num_includers[name] == 1 && name !~ /for_each_isa/) {
        FILENAME = name
        complain(1, "only " includer[name] " includes it, so it belongs there")
      }
    for (folder in files_of)
      if (files_of[folder] > 20 && !(folder in may_be_full)) {
        FILENAME = folder
        complain(0, files_of[folder] " files; a folder has at most 20")
      }
    for (stem in sum_lines) {
      FILENAME = last_of[stem]
      if (stem in long_without_reason) {
        if (sum_lines[stem] <= 400 || stem in says_why)
          complain(1, "nothing needs its name in long_without_reason")
        continue
      }
      if (sum_lines[stem] <= 400 || stem in says_why) continue
      complain(num_lines[FILENAME], sum_lines[stem] " lines, bodies included; at most 400, " \
               "or a reason in the first comment")
    }
    for (i = 1; i < ARGC; i++)
      if (!(ARGV[i] in guarded) && ARGV[i] !~ /\.inc$/) {
        FILENAME = ARGV[i]
        if (num_lines[FILENAME] == 0) complain(1, "an empty header")
        else complain(1, "lacks #pragma once")
      }
    FILENAME = "nanovllm/nanovllm.hpp"
    if (!(FILENAME in exists)) {
      complain(1, "the umbrella header is missing")
      exit 1
    }
    reach(FILENAME)
    for (i = 1; i < ARGC; i++)
      if (ARGV[i] ~ /\.hpp$/ && ARGV[i] !~ /\/cuda\// && !(folder_of(ARGV[i]) in on_cuda) &&
          folder_of(ARGV[i]) !~ /^((c|api\/c|mpi|with\/mpi)\/|implementation\.hpp|mpi\.hpp)$/ &&
          ARGV[i] != "nanovllm/with/mpi.hpp" && !(ARGV[i] in reached))
        complain(1, "does not reach " ARGV[i])

    FILENAME = arrows
    for (arrow in arrow_line)
      if (!(arrow in arrow_used)) complain(0, "nothing needs the line of " arrow)
    check_budgets()
    if (violations == 0 && num_arrows > 0) print num_arrows " arrows from the house to with/ and api/"
    exit violations > 0
  }
' "${files[@]}" || status=1

# Functions, told by their braces; those within one are its lines. A constructor's brace comes after
# those of its members, and braces within parentheses are arguments.
awk -v exceptions="$lists/long_functions.txt" '
  function complain(path, line, text) {
    print path ":" line ": " text
    violations++
  }

  # A line without comments, literals and, where nothing is left of it, directives. \047 is a quote.
  function code_of(line,   code, before, token, tail) {
    if (until == "" && (line ~ /^[ \t]*#/ || in_directive)) {
      in_directive = line ~ /\\$/
      return ""
    }
    gsub(/[0-9]\047[0-9]/, "00", line)
    while (1) {
      if (until != "") {
        if (!(tail = index(line, until))) return code
        line = substr(line, tail + length(until))
        until = ""
      }
      if (!match(line, /\/\/|\/\*|"|\047/)) return code line
      before = substr(line, 1, RSTART - 1)
      token = substr(line, RSTART, RLENGTH)
      line = substr(line, RSTART + RLENGTH)
      code = code before
      if (token == "//") return code
      if (token == "/*") until = "*/"
      else if (token == "\"" && before ~ /R$/) until = ")" substr(line, 1, index(line, "(") - 1) "\""
      else if (token == "\"" ? match(line, /^([^"\\]|\\.)*"/) : match(line, /^([^\047\\]|\\.)*\047/))
        line = substr(line, RLENGTH + 1)
    }
  }

  # "template <int k> __global__ void __launch_bounds__(256) add_kernel(T* x)" is add_kernel.
  function name_of(head,   depth, token) {
    depth = 0
    while (match(head, /[A-Za-z_0-9~:]* *\(|\)/)) {
      token = substr(head, RSTART, RLENGTH)
      head = substr(head, RSTART + RLENGTH)
      if (token == ")") depth--
      else if (depth++ == 0) {
        sub(/ *\($/, "", token)
        if (token != "" && token !~ /^(__launch_bounds__|requires|decltype|noexcept|alignas)$/)
          return token
      }
    }
    return "?"
  }

  function is_balanced(head,   num_open) {
    num_open = gsub(/\(/, "", head)
    return num_open <= gsub(/\)/, "", head)
  }

  # What is after "template <...>".
  function without_template(head,   depth) {
    if (!sub(/^ *template *</, "", head)) return head
    for (depth = 1; depth > 0 && match(head, /[<>]/); head = substr(head, RSTART + 1))
      depth += substr(head, RSTART, 1) == "<" ? 1 : -1
    return without_template(head)
  }

  # Whether a brace after `head` opens the body of a function.
  function is_function(head) {
    if (in_function || head ~ /^ *=/ || head !~ /\)/ || !is_balanced(head)) return 0
    gsub(/alignas\([^()]*\)/, "", head)
    head = without_template(head)
    if (head ~ /^ *(struct|class|union|enum) /) return 0
    if (head ~ /(^|[^A-Za-z_0-9])(namespace|struct|class|union|enum|concept)([^A-Za-z_0-9][^()]*)?$/)
      return 0
    return head !~ /^ *(extern|concept) / && head !~ /concept [A-Za-z_0-9]* *=/
  }

  function end_function(first, last, name,   place) {
    if (last - first + 1 <= 60) return
    num_long++
    place = substr(FILENAME, length("nanovllm/") + 1) " " name
    if (place in reason) needed[place] = 1
    else complain(FILENAME, first, name " has " last - first + 1 " lines; a function has at most 60, " \
                  "or a reason in long_functions.txt")
  }

  BEGIN {
    while ((getline row < exceptions) > 0) {
      num_rows++
      if (row ~ /^#/ || row == "") continue
      split(row, words, " ")
      place = words[1] " " words[2]
      row_of[place] = num_rows
      reason[place] = substr(row, length(place) + 2)
      if (reason[place] == "") complain(exceptions, num_rows, "no reason for " place)
    }
  }

  # A file whose braces are not told apart would hide its functions.
  function end_file() {
    if (depth != 0) complain(path, num_lines, "braces that do not match")
  }

  FNR == 1 {
    if (path != "") end_file()
    path = FILENAME
    depth = in_function = in_directive = just_ended = 0
    head = until = ""
  }
  { num_lines = FNR }
  {
    code = code_of($0)
    while (match(code, /[{};]/)) {
      if (head !~ /[^ ]/ && substr(code, 1, RSTART - 1) ~ /[^ ]/) head_line = FNR
      head = head substr(code, 1, RSTART - 1)
      token = substr(code, RSTART, 1)
      code = substr(code, RSTART + 1)
      if (token == "{") {
        # A constructor goes on after the braces of a member.
        if (just_ended && head ~ /^ *(,.*)?$/ && !in_function) kind[++depth] = "function"
        else {
          kind[++depth] = is_function(head) ? "function" : ""
          if (kind[depth] != "") {
            first_line = head_line
            name = name_of(head)
          }
        }
        just_ended = 0
        if (kind[depth] != "") in_function = 1
        # Braces within parentheses are an argument, and the head goes on after them.
        outer_head[depth] = is_balanced(head) ? "" : head " "
        outer_line[depth] = head_line
        head = ""
      } else if (token == "}") {
        just_ended = 0
        if (kind[depth] != "") {
          in_function = 0
          just_ended = 1
          end_function(first_line, FNR, name)
        }
        head = outer_head[depth]
        head_line = outer_line[depth]
        depth--
      } else {
        just_ended = 0
        head = is_balanced(head) ? "" : head token
      }
    }
    if (head !~ /[^ ]/ && code ~ /[^ ]/) head_line = FNR
    head = head code " "
  }

  END {
    end_file()
    for (place in reason)
      if (!(place in needed)) complain(exceptions, row_of[place], "nothing needs the line of " place)
    if (violations == 0 && num_long > 0) print num_long " functions of more than 60 lines"
    exit violations > 0
  }
' "${files[@]}" || status=1

# grep knows what a character is, which not every awk does.
if long_lines=$(LC_ALL=C.UTF-8 grep -nHE '.{101}' "${files[@]}"); then
  sed 's/^\([^:]*:[0-9]*\):.*/\1: more than 100 columns/' <<< "$long_lines"
  status=1
fi

if ! cycles=$(tsort "$graph" 2>&1 >/dev/null); then
  echo "cycle of includes:"
  sed 's/^tsort: */  /' <<<"$cycles"
  status=1
fi

if [ "$status" -eq 0 ]; then echo "${#files[@]} headers, all rules kept"; fi
exit "$status"
