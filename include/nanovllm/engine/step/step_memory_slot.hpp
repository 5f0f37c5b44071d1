#pragma once
/// One of the two steps that may be under way in an executor: its way to the device and back.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "nanovllm/engine/step/step_results.hpp"
#include "nanovllm/ops/backend.hpp"

namespace nanovllm {

/// Memory of a step on both sides, which later steps in the same slot use again.
template <class Backend>
struct StepMemorySlot {
  typename Backend::template HostBuffer<std::byte> inputs;
  typename Backend::template Buffer<std::byte> arena;      ///< the inputs on the device
  typename Backend::template HostBuffer<std::byte> draws;  ///< SampleInputs of a deferred step
  StepResultsMemory<Backend::template HostBuffer> results;
  typename Backend::Event done;
  bool uploading = false;  ///< `inputs` or `draws` is being read, and `done` is not after that yet

  /// Copies a step's inputs to the device, and returns where they begin there. Waits for the step
  /// that used this memory before.
  const std::byte* upload(Backend& backend, std::span<const std::byte> bytes) {
    const auto size = static_cast<std::int64_t>(bytes.size());
    done.synchronize();                    // of the step that used this memory before
    if (uploading) backend.synchronize();  // it got no further, or there is no result of it
    discard_and_grow(inputs, size);
    discard_and_grow(arena, size);
    std::memcpy(inputs.data(), bytes.data(), bytes.size());
    uploading = true;
    if constexpr (UploadsEarly<Backend>) {
      backend.upload_early(inputs.data(), arena.data(), bytes.size());
    } else {
      backend.upload(inputs.data(), arena.data(), bytes.size());
    }
    return arena.data();
  }

  /// Copies what a deferred step is drawn by to the device, to the beginning of `to`.
  void upload_draws(Backend& backend, std::span<const std::byte> bytes,
                    typename Backend::template Buffer<std::byte>& to) {
    const auto size = static_cast<std::int64_t>(bytes.size());
    if (static_cast<std::int64_t>(draws.size()) < size ||
        static_cast<std::int64_t>(to.size()) < size) {
      backend.synchronize();  // what is under way may read them
      discard_and_grow(draws, size);
      discard_and_grow(to, size);
    }
    std::memcpy(draws.data(), bytes.data(), bytes.size());
    uploading = true;
    backend.upload(draws.data(), to.data(), bytes.size());
  }

  /// What was enqueued so far is all of the step.
  void finish(Backend& backend) {
    backend.record(done);
    uploading = false;
  }
};

}  // namespace nanovllm
