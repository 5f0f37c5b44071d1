#pragma once
/// The measurements: a whole workload, decode steps, prompts, and the time to the first token.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "edits.hpp"
#include "floor.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/engine/engine_config.hpp"
#include "nanovllm/engine/request/output.hpp"
#include "nanovllm/engine/request/progress.hpp"
#include "nanovllm/engine/request/prompt.hpp"
#include "nanovllm/with/pooling/embedding.hpp"
#include "sizing.hpp"
#include "workload.hpp"

namespace engine_bench {

namespace nv = nanovllm;

/// Samples of one quantity, in seconds.
class Samples {
 public:
  void add(double seconds) { sorted_.insert(std::ranges::upper_bound(sorted_, seconds), seconds); }
  [[nodiscard]] std::size_t size() const { return sorted_.size(); }
  /// The sample that a share `q` of all is not above: 0 is the least, 1 the largest.
  [[nodiscard]] double quantile(double q) const {
    if (sorted_.empty()) return 0;
    return sorted_[static_cast<std::size_t>(q * static_cast<double>(sorted_.size() - 1) + 0.5)];
  }
  [[nodiscard]] double median() const { return quantile(0.5); }

 private:
  std::vector<double> sorted_;
};

struct WorkloadResult {
  std::int64_t num_requests = 0, num_prompt_tokens = 0, num_output_tokens = 0;
  double seconds = 0;
  double floor = 0;         ///< of all steps' dense layers and of attention, in seconds
  nv::EngineStats stats{};  ///< of this workload alone
  Samples first_token{};    ///< time to the first token of each request, all submitted at once
  Samples token{};          ///< each request's mean time between two tokens
  Ceilings ceilings{};
};

struct DecodeResult {
  std::int64_t batch = 0, context = 0;
  std::string skipped{};  ///< why there is no result
  Samples step{};
  double host_seconds = 0;  ///< a step's share that is not the model's: mean
  double floor = 0;
  Ceilings ceilings{};
};

struct PrefillResult {
  std::int64_t length = 0, num_prompts = 0;
  Samples run{};  ///< all prompts, submitted at once
  double floor = 0;
  Ceilings ceilings{};
};

struct EmbedResult {
  std::int64_t length = 0, num_texts = 0;
  Samples run{};      ///< embeddings of all texts, submitted at once
  Samples prefill{};  ///< in turn with them, as many other texts as prompts, a token out of each
  double floor = 0;
  Ceilings ceilings{};
};

struct FirstTokenResult {
  std::int64_t length = 0;
  Samples first_token{};  ///< of one prompt in an idle engine
  double floor = 0;
  Ceilings ceilings{};
};

/// Measures one engine, which nobody else uses meanwhile.
template <class Engine>
class Bench {
 public:
  /// `probe` finds the machine's ceilings; it is called around every measurement.
  Bench(Engine& engine, const ModelWork& work, std::function<Ceilings()> probe,
        const Repeats& repeats, std::int64_t block_size, std::int64_t max_batched_tokens,
        Edits edits)
      : engine_(engine),
        work_(work),
        probe_(std::move(probe)),
        repeats_(repeats),
        block_size_(block_size),
        max_batched_tokens_(max_batched_tokens),
        edits_(std::move(edits)) {
    // As in bench.py: the first request of all pays for first uses.
    serve(prompts(1, 8), sampling(16));
  }

  /// Serves `workload`, all requests submitted at once.
  WorkloadResult workload(const Workload& workload) {
    WorkloadResult out{.num_requests = static_cast<std::int64_t>(workload.prompts.size()),
                       .num_prompt_tokens = workload.num_prompt_tokens,
                       .num_output_tokens = workload.num_output_tokens};
    const nv::EngineStats before = engine_.stats();
    const Ceilings probed = probe_();
    std::vector<nv::Output> outputs(workload.prompts.size());
    std::vector<Work> steps;
    const Clock::time_point begin = Clock::now();
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      engine_.submit(workload.prompts[i], edits_(workload.params[i], i), keep_output(outputs[i]));
    }
    run_steps(before, out.num_requests, steps);
    out.seconds = since(begin);
    out.ceilings = mean(probed, probe_());
    for (const Work& step : steps) out.floor += floor_seconds(step, out.ceilings);
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      check_length(outputs[i], workload.params[i].max_tokens);
      const nv::RequestTimings& times = outputs[i].timings;
      out.first_token.add(times.first_token);
      if (outputs[i].token_ids.size() > 1) {
        out.token.add((times.finished - times.first_token) /
                      static_cast<double>(outputs[i].token_ids.size() - 1));
      }
      const auto prompt = static_cast<double>(outputs[i].num_prompt_tokens);
      const auto decodes = static_cast<double>(outputs[i].token_ids.size() - 1);
      out.floor += floor_seconds(work_.prompt_attention(prompt), out.ceilings);
      // Decode j reads the keys and values of prompt + j tokens.
      out.floor += floor_seconds(
          work_.decode_attention(1, decodes * prompt + decodes * (decodes + 1) / 2), out.ceilings);
    }
    out.stats = difference(engine_.stats(), before);
    return out;
  }

  /// Steps of `batch` sequences of about `context` tokens that do nothing but decode.
  ///
  /// The prompts are computed first and stay in the prefix cache; submitted again, they come back
  /// within a few steps of each other, so that all sequences have the same length.
  DecodeResult decode(std::int64_t batch, std::int64_t context) {
    DecodeResult out{.batch = batch, .context = context};
    const std::int64_t length = decode_length(context, repeats_);
    const std::int64_t needed = decode_blocks(batch, context, repeats_, block_size_);
    if (const std::int64_t have = engine_.stats().num_kv_blocks; needed > have) {
      out.skipped = nv::concat("needs ", needed, " KV blocks, the pool has ", have);
      return out;
    }
    const std::vector<nv::Prompt> all = prompts(batch, context);
    serve(all, sampling(1));
    std::vector<nv::RequestId> ids;
    for (const nv::Prompt& prompt : all)
      ids.push_back(engine_.submit(prompt, edits_(sampling(length - context), ids.size())));
    for (std::int64_t i = 0; !decode_step(batch); ++i) {
      nv::check(i < kSettleSteps, "decode of ", batch, " sequences: after ", kSettleSteps,
                " steps not all of them decode; raise --max-num-batched-tokens");
    }
    for (std::int64_t i = 0; i < repeats_.warm_up_steps; ++i) engine_.step();

    const Ceilings probed = probe_();
    const nv::EngineStats before = engine_.stats();
    for (std::int64_t i = 0; i < repeats_.steps; ++i) {
      const Clock::time_point begin = Clock::now();
      engine_.step();
      out.step.add(since(begin));
    }
    const nv::EngineStats steps = difference(engine_.stats(), before);
    check_decodes(steps, repeats_.steps * batch);
    out.host_seconds = steps.host_seconds / static_cast<double>(repeats_.steps);
    out.ceilings = mean(probed, probe_());
    const double tokens = static_cast<double>(context + repeats_.warm_up_steps) +
                          static_cast<double>(repeats_.steps) / 2;
    const auto n = static_cast<double>(batch);
    out.floor = floor_seconds(work_.dense(n, n) + work_.decode_attention(n, tokens), out.ceilings);
    for (const nv::RequestId id : ids) engine_.abort(id);
    while (engine_.step()) {
    }
    return out;
  }

  /// As many prompts of `length` tokens as fill four steps, at least one, a token out of each.
  PrefillResult prefill(std::int64_t length) {
    PrefillResult out{.length = length,
                      .num_prompts = std::max<std::int64_t>(1, 4 * max_batched_tokens_ / length)};
    const Ceilings probed = probe_();
    for (std::int64_t i = 0; i < repeats_.prompts; ++i) {
      const std::vector<nv::Prompt> all = prompts(out.num_prompts, length);
      const Clock::time_point begin = Clock::now();
      serve(all, sampling(1));
      out.run.add(since(begin));
    }
    out.ceilings = mean(probed, probe_());
    out.floor = floor_seconds(prompt_work(out.num_prompts, length, 1), out.ceilings);
    return out;
  }

  /// Embeddings of `count` texts of `length` tokens, and the prefill of as many prompts.
  EmbedResult embed(std::int64_t length, std::int64_t count) {
    EmbedResult out{.length = length, .num_texts = count};
    const nv::SamplingParams params = nv::embedding_params({});
    const auto timed = [&](Samples& samples, const auto& work) {
      const std::vector<nv::Prompt> all = prompts(count, length);
      const Clock::time_point begin = Clock::now();
      work(all);
      samples.add(since(begin));
    };
    const Ceilings probed = probe_();
    for (std::int64_t i = 0; i < repeats_.prompts; ++i) {
      timed(out.run, [&](const auto& all) {
        for (const nv::Output& output : engine_.generate(all, params)) {
          nv::check(output.error.empty(), "request ", output.id, " failed: ", output.error);
          nv::check(std::cmp_equal(output.pooled.size(), engine_.model_config().hidden_size),
                    "request ", output.id, " has an embedding of ", output.pooled.size(),
                    " elements instead of ", engine_.model_config().hidden_size);
        }
      });
      timed(out.prefill, [&](const auto& all) { serve(all, sampling(1)); });
    }
    out.ceilings = mean(probed, probe_());
    out.floor = floor_seconds(prompt_work(count, length, 0), out.ceilings);
    return out;
  }

  /// From `submit` to the first callback, the engine being idle.
  FirstTokenResult first_token(std::int64_t length) {
    FirstTokenResult out{.length = length};
    const auto n = static_cast<double>(length);
    const Ceilings probed = probe_();
    for (std::int64_t i = 0; i < repeats_.prompts; ++i) {
      const nv::Prompt prompt = prompts(1, length).front();
      const Clock::time_point begin = Clock::now();
      engine_.submit(prompt, sampling(1), [&](const nv::TokenEvent& event) {
        if (event.token) out.first_token.add(since(begin));
      });
      while (engine_.step()) {
      }
    }
    nv::check(out.first_token.size() == static_cast<std::size_t>(repeats_.prompts),
              "time to first token: a request ended without a token");
    out.ceilings = mean(probed, probe_());
    out.floor = floor_seconds(work_.dense(n, 1) + work_.prompt_attention(n), out.ceilings);
    return out;
  }

 private:
  using Clock = std::chrono::steady_clock;

  /// Of `count` prompts of `length` tokens, submitted at once, and `rows` of logits for each.
  Work prompt_work(std::int64_t count, std::int64_t length, double rows) const {
    const auto n = static_cast<double>(length);
    Work work = work_.prompt_attention(n);
    work.operations =
        static_cast<double>(count) * (work.operations + work_.dense(n, rows).operations);
    const auto steps = nv::ceil_div(count * length, max_batched_tokens_);
    work.bytes = static_cast<double>(steps) *
                 work_.dense(static_cast<double>(max_batched_tokens_), rows).bytes;
    return work;
  }

  static double since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }

  static nv::TokenCallback keep_output(nv::Output& output) {
    return [&output](const nv::TokenEvent& event) {
      if (event.output) output = *event.output;
    };
  }

  static void check_length(const nv::Output& output, std::int64_t expected) {
    nv::check(output.error.empty(), "request ", output.id, " failed: ", output.error);
    nv::check(static_cast<std::int64_t>(output.token_ids.size()) == expected, "request ", output.id,
              " has ", output.token_ids.size(), " tokens instead of ", expected);
  }

  static nv::EngineStats difference(nv::EngineStats now, const nv::EngineStats& before) {
    now.num_steps -= before.num_steps;
    now.num_finished -= before.num_finished;
    now.num_preemptions -= before.num_preemptions;
    now.num_prefill_tokens -= before.num_prefill_tokens;
    now.num_decode_tokens -= before.num_decode_tokens;
    now.num_sampled_tokens -= before.num_sampled_tokens;
    now.num_sampled_by_decodes -= before.num_sampled_by_decodes;
    now.num_queried_tokens -= before.num_queried_tokens;
    now.num_hit_tokens -= before.num_hit_tokens;
    now.prefill_seconds -= before.prefill_seconds;
    now.decode_seconds -= before.decode_seconds;
    now.host_seconds -= before.host_seconds;
    return now;
  }

  /// Different prompts at every call, so that the prefix cache knows none of them.
  std::vector<nv::Prompt> prompts(std::int64_t count, std::int64_t length) {
    std::vector<nv::Prompt> out;
    for (std::int64_t i = 0; i < count; ++i)
      out.emplace_back(random_prompt(random_, length, engine_.model_config().vocab_size));
    return out;
  }

  void serve(const std::vector<nv::Prompt>& prompts, const nv::SamplingParams& params) {
    for (const nv::Output& output : engine_.generate(prompts, params))
      check_length(output, params.max_tokens);
  }

  /// Steps until all requests are finished, and notes what each step's dense layers had to do.
  void run_steps(const nv::EngineStats& before, std::int64_t num_requests,
                 std::vector<Work>& steps) {
    const nv::GenerateCallback show = nv::generate_progress_line();
    nv::EngineStats last = before;
    while (engine_.step()) {
      const nv::EngineStats now = engine_.stats();
      const nv::EngineStats step = difference(now, last), all = difference(now, before);
      steps.push_back(
          work_.dense(static_cast<double>(step.num_prefill_tokens + step.num_decode_tokens),
                      static_cast<double>(step.num_sampled_tokens)));
      last = now;
      if (!show) continue;
      show({.num_finished = all.num_finished,
            .num_requests = num_requests,
            .prefill_tokens_per_second =
                static_cast<double>(all.num_prefill_tokens) / std::max(1e-9, all.prefill_seconds),
            .decode_tokens_per_second = static_cast<double>(all.num_sampled_by_decodes) /
                                        std::max(1e-9, all.decode_seconds)});
    }
  }

  /// Runs a step; whether it was one of `batch` decodes and nothing else.
  bool decode_step(std::int64_t batch) {
    const nv::EngineStats before = engine_.stats();
    engine_.step();
    const nv::EngineStats step = difference(engine_.stats(), before);
    return step.num_decode_tokens == batch && step.num_prefill_tokens == 0;
  }

  static void check_decodes(const nv::EngineStats& steps, std::int64_t num_tokens) {
    nv::check(steps.num_decode_tokens == num_tokens && steps.num_prefill_tokens == 0,
              "the measured steps were to decode ", num_tokens, " tokens, but decoded ",
              steps.num_decode_tokens, " and computed ", steps.num_prefill_tokens, " of prompts");
  }

  Engine& engine_;
  ModelWork work_;
  std::function<Ceilings()> probe_;
  Repeats repeats_;
  std::int64_t block_size_;
  std::int64_t max_batched_tokens_;
  Edits edits_;
  PythonRandom random_{1};
};

}  // namespace engine_bench
