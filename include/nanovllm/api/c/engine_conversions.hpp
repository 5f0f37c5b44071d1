#pragma once
/// Converts an engine's settings and state between the structs of c/nanovllm.h and the types of the
/// library.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "nanovllm/api/c/conversions.hpp"
#include "nanovllm/c/nanovllm.h"
#include "nanovllm/core/error.hpp"
#include "nanovllm/engine/engine_config.hpp"
#include "nanovllm/engine/runner/health.hpp"
#include "nanovllm/kv/kv_config.hpp"
#include "nanovllm/with/moe/expert_parallel.hpp"
#include "nanovllm/with/peers/options.hpp"
#include "nanovllm/with/sessions/options.hpp"
#include "nanovllm/with/speculation/config.hpp"
#include "nanovllm/with/speculation/eagle3/config.hpp"
#include "nanovllm/with/tiers/options.hpp"

namespace nanovllm::c_api {

/// The settings of an engine, and the choice among those that were compiled.
struct EngineChoice {
  EngineConfig config;
  std::optional<std::string> device;  ///< "cpu" or "cuda"; unset: the library's choice
  std::string dtype;                  ///< "bfloat16" or "float32"
};

/// Throws InvalidError where a field is set that is not for the method, or one is missing. Of
/// another method than the library's own the engine knows whether its policy has it, and what it
/// needs.
inline void check_speculation(const nvllm_engine_config& c, std::string_view method) {
  const auto is_for = [&](const char* field, bool is_set, const char* methods) {
    check<InvalidError>(!is_set, field, " is for the speculative_method ", methods, ", got \"",
                        method, "\"");
  };
  check<InvalidError>(!method.empty(), "speculative_method must be NULL or a name, got \"\"");
  const bool is_ngram = method == "ngram", is_model = method == "draft_model";
  if (!is_ngram && !is_model && method != "eagle3") return;
  if (is_ngram) {
    is_for("speculative_model", c.speculative_model != nullptr, "\"draft_model\" or \"eagle3\"");
  } else {
    check<InvalidError>(c.speculative_model != nullptr && *c.speculative_model != '\0',
                        "speculative_model must be a directory", is_model ? " or a GGUF file" : "",
                        " for the speculative_method \"", method, "\", got ",
                        c.speculative_model != nullptr ? "\"\"" : "NULL");
    is_for("prompt_lookup_max", c.prompt_lookup_max != 0, "\"ngram\"");
    is_for("prompt_lookup_min", c.prompt_lookup_min != 0, "\"ngram\"");
  }
  if (!is_model)
    is_for("speculative_model_kv_blocks", c.speculative_model_kv_blocks != 0, "\"draft_model\"");
}

/// What the fields of speculative decoding ask for; none of them set: nothing. Throws InvalidError.
[[nodiscard]] inline std::optional<SpeculativeConfig> read_speculation(
    const nvllm_engine_config& c) {
  const bool is_fixed = read_flag(c.disable_adaptive_drafts, "disable_adaptive_drafts");
  const bool has_model = c.speculative_model != nullptr;
  if (c.speculative_method == nullptr && !has_model && c.speculative_model_kv_blocks == 0 &&
      c.prompt_lookup_max == 0 && c.prompt_lookup_min == 0 && !is_fixed &&
      c.num_speculative_tokens == 0)
    return {};
  SpeculativeConfig out;
  if (has_model) out.model = c.speculative_model;
  out.method = c.speculative_method != nullptr ? c.speculative_method
               : !has_model                    ? "ngram"
               : is_eagle3_head(out.model)     ? "eagle3"
                                               : "draft_model";
  check_speculation(c, out.method);
  if (c.speculative_model_kv_blocks != 0)
    out.model_kv_size = KvSize::blocks(c.speculative_model_kv_blocks);
  if (c.num_speculative_tokens != 0) out.num_speculative_tokens = c.num_speculative_tokens;
  if (c.prompt_lookup_max != 0) out.prompt_lookup_max = c.prompt_lookup_max;
  if (c.prompt_lookup_min != 0) out.prompt_lookup_min = c.prompt_lookup_min;
  out.adaptive = !is_fixed;
  return out;
}

[[nodiscard]] inline EngineChoice read_engine_config(const nvllm_engine_config* given) {
  const nvllm_engine_config c = read_struct(given);
  check_reserved(c.reserved, "nvllm_engine_config");
  check_pointer(c.model, "model");
  EngineChoice out;
  if (c.device != nullptr) out.device = c.device;
  check<InvalidError>(!out.device || out.device == "cpu" || out.device == "cuda",
                      "device must be NULL, \"cpu\" or \"cuda\", got \"", out.device.value_or(""),
                      "\"");
  out.dtype = c.dtype != nullptr ? c.dtype : "bfloat16";
  check<InvalidError>(out.dtype == "bfloat16" || out.dtype == "float32",
                      "dtype must be NULL, \"bfloat16\" or \"float32\", got \"", out.dtype, "\"");
  EngineConfig& config = out.config;
  config.model = c.model;
  if (c.disk_kv_path != nullptr) config.extras.edit<DiskKv>().path = c.disk_kv_path;
  if (c.disk_kv_bytes != 0) config.extras.edit<DiskKv>().max_bytes = c.disk_kv_bytes;
  if (c.session_blocks != 0) {
    check<InvalidError>(c.session_blocks > 0 && c.session_blocks <= INT32_MAX,
                        "session_blocks must be in [0, ", INT32_MAX, "], got ", c.session_blocks);
    config.extras.set(SessionOptions{.max_blocks = static_cast<std::int32_t>(c.session_blocks)});
  }
  if (c.host_kv_bytes != 0) config.extras.set(HostKv{KvSize::bytes(c.host_kv_bytes)});
  if (auto speculation = read_speculation(c)) config.extras.set(*std::move(speculation));
  check<InvalidError>(c.kv_bytes == 0 || c.kv_blocks == 0,
                      "kv_bytes and kv_blocks say the same: set one of them");
  if (c.kv_bytes != 0) config.kv_size = KvSize::bytes(c.kv_bytes);
  if (c.kv_blocks != 0) config.kv_size = KvSize::blocks(c.kv_blocks);
  if (c.max_model_len != 0) config.max_model_len = c.max_model_len;
  config.device = c.device_index;
  if (c.tensor_parallel != 0) config.tensor_parallel = c.tensor_parallel;
  if (read_flag(c.expert_parallel, "expert_parallel")) config.extras.set(ExpertParallel{});
  if (read_flag(c.disable_custom_all_reduce, "disable_custom_all_reduce"))
    config.extras.set(PeerOptions{.max_bytes = 0});
  if (c.num_threads != 0) config.num_threads = c.num_threads;
  if (c.max_num_seqs != 0) config.max_num_seqs = c.max_num_seqs;
  if (c.max_num_batched_tokens != 0) config.max_num_batched_tokens = c.max_num_batched_tokens;
  config.prefix_caching = !read_flag(c.disable_prefix_caching, "disable_prefix_caching");
  if (read_flag(c.has_seed, "has_seed")) config.seed = c.seed;
  if (c.step_timeout_seconds != 0)
    config.step_timeout = std::chrono::duration<double>(c.step_timeout_seconds);
  if (c.on_warning != nullptr) {
    config.on_warning = [call = c.on_warning, user = c.warning_user](std::string_view text) {
      call(user, std::string(text).c_str());
    };
  }
  return out;
}

[[nodiscard]] inline nvllm_percentiles to_c(const Percentiles& percentiles) {
  return {percentiles.p50, percentiles.p90, percentiles.p99};
}

[[nodiscard]] inline nvllm_stats to_c(const EngineStats& stats) {
  nvllm_stats out{};
  out.num_waiting = stats.num_waiting;
  out.num_running = stats.num_running;
  out.num_finished = stats.num_finished;
  out.num_steps = stats.num_steps;
  out.num_preemptions = stats.num_preemptions;
  out.num_prefill_tokens = stats.num_prefill_tokens;
  out.num_decode_tokens = stats.num_decode_tokens;
  out.num_sampled_tokens = stats.num_sampled_tokens;
  out.num_queried_tokens = stats.num_queried_tokens;
  out.num_hit_tokens = stats.num_hit_tokens;
  out.num_kv_blocks = stats.num_kv_blocks;
  out.num_free_kv_blocks = stats.num_free_kv_blocks;
  out.prefill_seconds = stats.prefill_seconds;
  out.decode_seconds = stats.decode_seconds;
  out.host_seconds = stats.host_seconds;
  out.queue_seconds = to_c(stats.queue_seconds);
  out.first_token_seconds = to_c(stats.first_token_seconds);
  out.inter_token_seconds = to_c(stats.inter_token_seconds);
  out.end_to_end_seconds = to_c(stats.end_to_end_seconds);
  const auto drafts = stats.of<SpeculationStats>();
  static_assert(std::size(out.num_accepted_tokens_per_pos) >= SpeculativeConfig::kMaxTokens);
  out.num_draft_steps = drafts.num_steps;
  out.num_drafts = drafts.num_drafts;
  out.num_draft_tokens = drafts.num_drafted;
  out.num_accepted_tokens = drafts.num_accepted;
  out.num_failed_drafts = drafts.num_failed;
  out.num_draft_positions = std::ssize(drafts.accepted_by_position);
  std::ranges::copy(drafts.accepted_by_position, out.num_accepted_tokens_per_pos);
  return out;
}

[[nodiscard]] inline nvllm_health to_c(const Health& health) {
  nvllm_health out{};
  switch (health.state) {
    case Health::State::ok: out.state = NVLLM_HEALTH_OK; break;
    case Health::State::hung: out.state = NVLLM_HEALTH_HUNG; break;
    case Health::State::failed: out.state = NVLLM_HEALTH_FAILED; break;
  }
  out.seconds = health.seconds;
  copy_text(health.reason, out.reason, sizeof out.reason);
  return out;
}

}  // namespace nanovllm::c_api
