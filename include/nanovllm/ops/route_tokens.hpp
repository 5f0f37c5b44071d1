#pragma once
/// Contract of `route_tokens`: what comes ahead of a token's experts, from the norm on.

#include <cstdint>

#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/ops/input_norm.hpp"
#include "nanovllm/ops/linear.hpp"
#include "nanovllm/ops/rms_norm.hpp"
#include "nanovllm/ops/route_experts.hpp"

namespace nanovllm {

/// normed = n(x), the logits of a router for it, and the experts that they choose: `rms_norm`, then
/// `linear` with results in float, then `route_experts`. The order of a product's sum may be
/// another one than that of `linear`.
///
/// T is the activations' element, `Router` the type of the router's weights, W the norm's element.
template <class T, class Router, class W = T>
struct RouteTokensArgs {
  MatrixView<const T> x;           ///< [n, in]
  InputNorm<W> norm{};             ///< of x
  MatrixView<T> normed;            ///< [n, in] if there is a norm; may not be x
  const Router* router = nullptr;  ///< [experts, in]
  MatrixView<float> logits;        ///< [n, experts], of which `route` is to choose
  RouteExpertsArgs route;
};

/// Throws ShapeError when the operands do not fit together.
template <class T, class Router, class W>
void validate(const RouteTokensArgs<T, Router, W>& args) {
  constexpr auto kOp = "route_tokens";
  const std::int64_t n = args.x.extent(0), in = args.router->cols();
  check_shape(kOp, "x", args.x, {-1, in});
  check_input_norm(kOp, args.norm, in);
  if (args.norm) check_shape(kOp, "normed", args.normed, {n, in});
  check_shape(kOp, "logits", args.logits, {n, args.router->rows()});
  check_shape(kOp, "route.logits", args.route.logits, {n, args.router->rows()});
  validate(args.route);
}

/// The op by those that it is made of, each run by `run(its arguments)`.
template <class T, class Router, class W, class Run>
void compose(const RouteTokensArgs<T, Router, W>& args, const Run& run) {
  MatrixView<const T> x = args.x;
  if (args.norm) {
    run(RmsNormArgs<T, W>{
        .x = x, .weight = args.norm.weight, .eps = args.norm.eps, .out = args.normed});
    x = args.normed;
  }
  run(FloatLinearArgs<T, Router>{.x = x, .weight = args.router, .y = args.logits});
  run(args.route);
}

}  // namespace nanovllm
