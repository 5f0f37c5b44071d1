#pragma once
/// What a model is kept in: the format of its weights, the element of its activations, and the
/// format of its KV cache.

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/ops/kv_format.hpp"
#include "nanovllm/ops/weight_format.hpp"

namespace nanovllm {

/// Three types, told apart in every signature; usually all are the same.
template <WeightFormat W, Element A = WeightElement<W>, KvFormat Kv = A>
struct Elements {
  using Weight = W;      ///< of the checkpoint: an element type or another WeightFormat
  using Activation = A;  ///< what layers hand to each other
  using KvElement = Kv;  ///< keys and values in the cache: an element type or another KvFormat
};

namespace detail {

// `Policy::<slot>` where there is one, else `Policy::Element`.
template <class Policy>
struct WeightSlot {
  using type = typename Policy::Element;
};
template <class Policy>
requires requires { typename Policy::Weight; }
struct WeightSlot<Policy> {
  using type = typename Policy::Weight;
};
template <class Policy>
struct ActivationSlot {
  using type = typename Policy::Element;
};
template <class Policy>
requires requires { typename Policy::Activation; }
struct ActivationSlot<Policy> {
  using type = typename Policy::Activation;
};
template <class Policy>
struct KvElementSlot {
  using type = typename Policy::Element;
};
template <class Policy>
requires requires { typename Policy::KvElement; }
struct KvElementSlot<Policy> {
  using type = typename Policy::KvElement;
};

}  // namespace detail

/// The elements that a policy asks for: its slots `Weight`, `Activation` and `KvElement`; `Element`
/// stands for those that are not there.
template <class Policy>
using ElementsOf = Elements<typename detail::WeightSlot<Policy>::type,
                            typename detail::ActivationSlot<Policy>::type,
                            typename detail::KvElementSlot<Policy>::type>;

}  // namespace nanovllm
