#pragma once
/// A mixture of experts: the router, and the MLPs that it chooses.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/model/layers/context.hpp"
#include "nanovllm/ops/linear.hpp"
#include "nanovllm/with/moe/cpu/ops.hpp"
#include "nanovllm/with/moe/expert_load.hpp"
#include "nanovllm/with/moe/ops.hpp"

namespace nanovllm {

/// How a router chooses, and what it chooses from.
struct RoutingSizes {
  std::int64_t num_experts = 0;   ///< of the layer
  std::int64_t first_expert = 0;  ///< of those that this rank has
  std::int64_t experts_per_token = 0;
  std::int64_t in = 0;     ///< columns of a token
  std::int64_t width = 0;  ///< of an expert, on this rank
  bool normalise = false;  ///< a token's weights add up to 1
};

/// Counts, in the backend's memory, of the tokens that experts are chosen for. There are none for a
/// backend without `download_early(from, to, count)`, which copies elements to the host as they are
/// by now, beside ops under way and from any thread.
template <class Context>
class ExpertCounts {
 public:
  /// @param num_layers  that have experts.
  ExpertCounts(const Context& context, std::int64_t num_layers, std::int64_t num_experts)
      : context_(context),
        num_experts_(num_experts),
        counts_(kAreThere ? static_cast<std::size_t>(num_layers * num_experts) : 0) {
    const std::vector<std::int64_t> zeros(counts_.size());
    if (!zeros.empty()) context_.backend.upload(zeros.data(), counts_.data(), zeros.size());
  }

  /// [num_experts] of a layer, counted among those that have experts; or none.
  [[nodiscard]] VectorView<std::int64_t> of(std::int64_t layer) {
    if (counts_.size() == 0) return {};
    return {counts_.data() + layer * num_experts_, {num_experts_}};
  }

  /// Of all steps so far. From any thread.
  [[nodiscard]] ExpertLoad load() const {
    ExpertLoad out;
    if constexpr (kAreThere) {
      if (counts_.size() == 0) return out;
      out = {.num_experts = num_experts_, .tokens = std::vector<std::int64_t>(counts_.size())};
      context_.backend.download_early(counts_.data(), out.tokens.data(), counts_.size());
    }
    return out;
  }

 private:
  using Backend = typename Context::Backend;
  static constexpr bool kAreThere = requires(const Backend& backend, std::int64_t* to) {
    backend.download_early(static_cast<const std::int64_t*>(to), to, std::size_t{});
  };

  Context context_;
  std::int64_t num_experts_;
  typename Context::template Buffer<std::int64_t> counts_;  // [num_layers, num_experts]
};

/// Σ over the experts of each token of weight · MLP. The router's products are summed in float32
/// and not rounded.
template <class Context>
class ExpertLayer {
 public:
  ExpertLayer(const Context& context, std::int64_t max_rows, const RoutingSizes& sizes)
      : context_(context),
        sizes_(sizes),
        logits_(static_cast<std::size_t>(max_rows * sizes.num_experts)),
        ids_(static_cast<std::size_t>(max_rows * sizes.experts_per_token)),
        weights_(static_cast<std::size_t>(max_rows * sizes.experts_per_token)) {
    const ReserveExpertMlpArgs<typename Context::Activation> args{
        {.max_rows = max_rows,
         .experts_per_token = sizes.experts_per_token,
         .in = sizes.in,
         .width = sizes.width}};
    if constexpr (requires { context_.backend.reserve(args); }) context_.backend.reserve(args);
  }

  /// out = the mixture for x, both [n, in], or with `accumulate` out += it, rounded before and
  /// after; out may be x. `router` is [num_experts, in]; `experts` are those from
  /// `first_expert` on. Where ranks divide the experts, each by columns or the list of them, it is
  /// this rank's part of a sum over all. `slots` and `counts` are as in with/moe/ops.hpp.
  template <class Router>
  void operator()(typename Context::ConstRows x, const Router& router,
                  std::span<const Expert<typename Context::Matrix>> experts,
                  typename Context::Rows out, bool accumulate = false,
                  VectorView<const Slot> slots = {}, VectorView<std::int64_t> counts = {}) {
    using A = typename Context::Activation;
    const std::int64_t n = x.extent(0), k = sizes_.experts_per_token;
    const MatrixView<float> logits(logits_.data(), {n, sizes_.num_experts});
    const MatrixView<std::int32_t> ids(ids_.data(), {n, k});
    const MatrixView<float> weights(weights_.data(), {n, k});
    auto& backend = context_.backend;
    backend.run(FloatLinearArgs<A, Router>{.x = x, .weight = &router, .y = logits});
    backend.run(RouteExpertsArgs{.logits = logits,
                                 .ids = ids,
                                 .weights = weights,
                                 .normalise = sizes_.normalise,
                                 .slots = slots,
                                 .counts = counts});
    backend.run(ExpertMlpArgs<A, typename Context::Matrix>{.x = x,
                                                           .ids = ids,
                                                           .weights = weights,
                                                           .experts = experts,
                                                           .out = out,
                                                           .first_expert = sizes_.first_expert,
                                                           .num_experts = sizes_.num_experts,
                                                           .accumulate = accumulate});
  }

 private:
  Context context_;
  RoutingSizes sizes_;
  typename Context::template Buffer<float> logits_;      // [max_rows, num_experts]
  typename Context::template Buffer<std::int32_t> ids_;  // [max_rows, experts_per_token]
  typename Context::template Buffer<float> weights_;     // [max_rows, experts_per_token]
};

}  // namespace nanovllm
