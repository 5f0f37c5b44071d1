#pragma once
/// Scratch memory of ops that most engines do not have.

#include <functional>
#include <memory>
#include <typeindex>
#include <typeinfo>
#include <utility>
#include <vector>

namespace nanovllm::cuda {

/// One object of each type that was asked for. The state of all ops has one, so that the header of
/// an op can add to it without being named there.
class StateParts {
 public:
  /// The object of type T; made by `T()` at the first call, which must not be during a capture if
  /// that allocates device memory.
  template <class T>
  [[nodiscard]] T& of() {
    const std::type_index type(typeid(T));
    for (const auto& [known, part] : parts_) {
      if (known == type) return *static_cast<T*>(part.get());
    }
    const auto made = std::make_shared<T>();
    parts_.emplace_back(type, made);
    if constexpr (requires { made->synchronize(); })
      waits_.emplace_back([made] { made->synchronize(); });
    return *made;
  }

  /// Calls `synchronize()` of those parts that have it: of ops that use streams of their own.
  void synchronize() const {
    for (const auto& wait : waits_) wait();
  }

 private:
  std::vector<std::pair<std::type_index, std::shared_ptr<void>>> parts_;
  std::vector<std::function<void()>> waits_;
};

}  // namespace nanovllm::cuda
