#pragma once
/// Which kernels a device gets beside those that run on all: an architecture is a type, and a list
/// of them is searched by the device's features. For the host; nothing here needs CUDA.
///
/// The list of the library is in architectures.cuh.

#include <concepts>
#include <cstdint>
#include <vector>

#include "nanovllm/cuda/linear/tuning.hpp"
#include "nanovllm/cuda/runtime/device_features.hpp"

namespace nanovllm::cuda {

/// Numbers by which kernels that run on all devices are chosen for dense layers.
struct DenseTuning {
  /// Most rows of x for which the kernels for few rows are taken where nothing was timed.
  std::int64_t few_rows = 8;
  /// Elements of W up to which start-up times them on more than one row in bfloat16.
  std::int64_t small_weights = kSmallWeights;
};

/// The tables of an architecture. Its kernels come on top, as `OtherDevices` has them: a type
/// without a kernel derives from that and says what differs. Kernels of wings are not here: a wing
/// has a template on the architecture, and specialises it.
///   kName         as users know it
///   kCode         what to compile for, such as "90a"
///   is(device)    whether the device is one
///   has_code(device)  whether the program has the code for it
///   kKeepsOrder   whether there are kernels for the batch-invariant mode
///   kDense        numbers for kernels that run on all devices
///   dense_forms(kind, m, n, k)  the forms of its own kernels that are worth timing for a layer of
///                 bfloat16: m rows of x by W [n, k]
///   suits_heads(m, n, k)  whether to time its kernel for all of `project_qkv`
template <class A>
concept ArchitectureTables = requires(const DeviceFeatures& device, ProductKind kind,
                                      std::int64_t extent) {
  { A::kName } -> std::convertible_to<const char*>;
  { A::kCode } -> std::convertible_to<const char*>;
  { A::is(device) } -> std::same_as<bool>;
  { A::has_code(device) } -> std::same_as<bool>;
  { A::kKeepsOrder } -> std::convertible_to<bool>;
  { A::kDense } -> std::convertible_to<DenseTuning>;
  { A::dense_forms(kind, extent, extent, extent) } -> std::same_as<std::vector<int>>;
  { A::suits_heads(extent, extent, extent) } -> std::same_as<bool>;
};

/// What every device has: no kernel of its own. The last of a list.
struct OtherDevices {
  static constexpr const char* kName = "other devices";
  static constexpr const char* kCode = "80";
  static constexpr bool kKeepsOrder = false;
  static constexpr DenseTuning kDense{};

  [[nodiscard]] static constexpr bool is(const DeviceFeatures&) { return true; }
  [[nodiscard]] static constexpr bool has_code(const DeviceFeatures&) { return true; }
  [[nodiscard]] static std::vector<int> dense_forms(ProductKind, std::int64_t, std::int64_t,
                                                    std::int64_t) {
    return {};
  }
  [[nodiscard]] static constexpr bool suits_heads(std::int64_t, std::int64_t, std::int64_t) {
    return false;
  }

  // The kernels. False, with nothing enqueued: there is none, or it does not take the operands.

  /// A dense layer by one of `dense_forms`: (layer, form, tensor maps, context).
  template <class... Operands>
  [[nodiscard]] static bool dense(const Operands&...) {
    return false;
  }
  /// All of `project_qkv`: (args, context).
  template <class... Operands>
  [[nodiscard]] static bool project_qkv(const Operands&...) {
    return false;
  }
  /// All of `project_qkv`, by products of the caller, `Products`: (their operands, args, context).
  template <class Products, class... Operands>
  [[nodiscard]] static bool project_heads(const Operands&...) {
    return false;
  }
  /// `varlen_attention` of 16 bits, operands aligned: (args, workspace, context).
  template <class... Operands>
  [[nodiscard]] static bool varlen_attention(const Operands&...) {
    return false;
  }
};

/// Architectures in the order in which a device is asked for them; the last one takes any.
template <ArchitectureTables... List>
struct Architectures {
  /// visit(architecture) of the first that the device is and the program has code for.
  template <class Visit>
  [[nodiscard]] static auto choose(const DeviceFeatures& device, const Visit& visit) {
    decltype(visit(OtherDevices{})) out{};
    static_cast<void>(
        ((List::is(device) && List::has_code(device) && (out = visit(List{}), true)) || ...));
    return out;
  }

  /// The code that the device has kernels for and the program lacks; null where it lacks none.
  [[nodiscard]] static constexpr const char* missing_code(const DeviceFeatures& device) {
    const char* out = nullptr;
    static_cast<void>(
        ((List::is(device) && (List::has_code(device) || (out = List::kCode, true))) || ...));
    return out;
  }
};

}  // namespace nanovllm::cuda
