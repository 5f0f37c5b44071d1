#pragma once
/// The options that say what engine a program makes.

#include <nanovllm/chat/chat_template.hpp>
#include <nanovllm/engine/engine_config.hpp>
#include <nanovllm/engine/request/progress.hpp>
#include <nanovllm/with/moe/expert_parallel.hpp>
#include <nanovllm/with/peers/options.hpp>
#include <nanovllm/with/tiers/options.hpp>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "command_line.hpp"
#include "number_formats.hpp"
#include "speculation_options.hpp"

namespace nanovllm::examples {

struct EngineOptions {
  std::string model;
  std::string device = "auto";
  NumberFormats formats;
  SpeculationOptions speculation;
  int tensor_parallel = 1;
  bool expert_parallel = false;
  int expert_tensor_parallel = 1;
  bool disable_custom_all_reduce = false;
  int max_num_seqs = 256;
  int max_num_batched_tokens = 0;
  std::int64_t max_model_len = 0;
  std::int64_t kv_blocks = 0, host_kv_blocks = 0;
  std::string disk_kv_path;
  double disk_kv_gib = 16;
  std::string chat_template;
  int num_threads = 0;
};

inline void add_engine_options(CLI::App& app, EngineOptions& options) {
  app.add_option("--model", options.model, "checkpoint: a directory or a GGUF file")->required();
  app.add_option("--device", options.device, "where to run; auto takes a GPU if there is one")
      ->check(one_of({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  app.add_option("--dtype", options.formats.dtype, "type of weights, activations and KV cache")
      ->check(one_of({"float32", "bfloat16"}))
      ->capture_default_str();
  app.add_option("--kv-dtype,--kv-cache-dtype", options.formats.kv_dtype,
                 "KV cache as --dtype, or in 8 bits with a scale for each token and head")
      ->check(one_of({"auto", "int8", "fp8"}))
      ->capture_default_str();
  app.add_option("--quantization,--quantize,-q", options.formats.quantization,
                 "weights as --dtype, those of the layers in 8-bit floats, or, on the CPU, all in "
                 "integers of 8 bits or those of the layers in 4")
      ->check(one_of({"none", "fp8", "int8", "int4"}))
      ->capture_default_str();
  app.add_flag(
      "--quantize-lm-head", options.formats.quantize_lm_head,
      "with --quantization fp8, or int4 on a GPU: lm_head in 8-bit floats, too, which in a "
      "tied model is a copy beside the embedding; int8 and int4 on the CPU have it in 8 bits "
      "anyway");
  app.add_option("--save-quantized", options.formats.save_quantized,
                 "directory that is made and keeps the integers of --quantization as a checkpoint, "
                 "for --model of later runs");
  add_speculation_options(app, options.speculation);
  add_number(app, "--tp", options.tensor_parallel,
             "tensor-parallel ranks: GPUs or shares of the CPU", 1);
  app.add_flag("--enable-expert-parallel", options.expert_parallel,
               "ranks have whole experts of a mixture of experts, and not a part of each");
  add_number(app, "--expert-tensor-parallel-size", options.expert_tensor_parallel,
             "with --enable-expert-parallel: ranks that divide the columns of the same experts", 1);
  app.add_flag("--disable-custom-all-reduce", options.disable_custom_all_reduce,
               "GPUs add by NCCL alone, and not through each other's memory");
  add_number(app, "--max-num-seqs", options.max_num_seqs, "sequences in a step at the most", 1);
  add_number(app, "--max-num-batched-tokens", options.max_num_batched_tokens,
             "tokens in a step at the most; 0 for the device's default");
  add_number(app, "--max-model-len", options.max_model_len,
             "tokens of a sequence at the most; 0 for the model's own");
  add_number(app, "--kv-blocks", options.kv_blocks,
             "blocks of the KV pool; 0 for a share of memory");
  add_number(app, "--host-kv-blocks", options.host_kv_blocks,
             "blocks in host memory, for prefixes that the pool has no more room for");
  app.add_option("--disk-kv-path", options.disk_kv_path,
                 "directory for such prefixes, below host memory, for later runs, too");
  app.add_option("--disk-kv-gib", options.disk_kv_gib, "size of its files at the most, in GiB")
      ->check(kPositive)
      ->capture_default_str();
  app.add_option("--chat-template", options.chat_template,
                 "instead of the checkpoint's: a file of Jinja, or the text of one");
  add_number(app, "--num-threads", options.num_threads, "CPU threads of the engine; 0 for all");
}

/// What the options say of an engine's config, device and type aside, which choose its class.
/// @param processes  if this one is a rank among others.
[[nodiscard]] inline EngineConfig engine_config(const EngineOptions& options,
                                                std::shared_ptr<ProcessGroup> processes) {
  EngineConfig config{
      .model = options.model,
      .tensor_parallel = options.tensor_parallel,
      .extras = {ExpertParallel{options.expert_parallel, options.expert_tensor_parallel},
                 HostKv{KvSize::blocks(options.host_kv_blocks)}},
      .max_num_seqs = options.max_num_seqs,
      .processes = std::move(processes),
      .on_load = load_progress_line(),
      .on_warning = warning_lines()};
  if (options.disable_custom_all_reduce) config.extras.set(PeerOptions{.max_bytes = 0});
  if (const auto speculation = speculative_config(options.speculation))
    config.extras.set(*speculation);
  if (options.num_threads != 0) config.num_threads = options.num_threads;
  if (options.max_num_batched_tokens != 0)
    config.max_num_batched_tokens = options.max_num_batched_tokens;
  if (options.max_model_len != 0) config.max_model_len = options.max_model_len;
  if (options.kv_blocks != 0) config.kv_size = KvSize::blocks(options.kv_blocks);
  if (!options.chat_template.empty())
    config.chat_template = ChatTemplate::from_argument(options.chat_template);
  constexpr double kMostGib = 1e9;  // what an integer of bytes holds
  auto& disk = config.extras.edit<DiskKv>();
  if (!options.disk_kv_path.empty()) disk.path = options.disk_kv_path;
  disk.max_bytes = static_cast<std::uint64_t>(std::min(options.disk_kv_gib, kMostGib) * (1 << 30));
  return config;
}

}  // namespace nanovllm::examples
