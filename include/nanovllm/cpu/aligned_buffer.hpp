#pragma once
/// Owner of aligned, zero-filled memory for weights, activations and the KV pool, and memory that
/// ops need while they run.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <type_traits>
#include <utility>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace nanovllm::cpu {

/// A fixed number of elements of `T`, all bits zero at first, at an address that is a multiple of
/// 64 bytes, or of 2 MiB when the buffer is that large.
///
/// A large buffer is mapped, not written: its pages cost nothing until they are touched, come as
/// huge pages where the system grants them, and lie near the thread that touches them first.
/// Move-only; an empty buffer has a null pointer.
template <class T>
class AlignedBuffer {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>,
                "an AlignedBuffer holds plain data: its elements are neither constructed nor "
                "destroyed");

 public:
  static constexpr std::size_t kAlignment = 64;
  static constexpr std::size_t kHugePage = std::size_t{2} << 20;
  static constexpr std::size_t kPage = std::size_t{64} << 10;  ///< a multiple of the system's

  AlignedBuffer() = default;

  /// Throws ConfigError for a negative size and std::bad_alloc, an OutOfMemory where the buffer is
  /// large, when memory runs out.
  explicit AlignedBuffer(std::int64_t size) : size_(size) {
    check<ConfigError>(size >= 0, "AlignedBuffer: size must be >= 0, got ", size);
    constexpr auto kMaxSize = std::numeric_limits<std::int64_t>::max() / std::int64_t{sizeof(T)};
    if (size > kMaxSize - static_cast<std::int64_t>(kHugePage))
      throw OutOfMemory(std::numeric_limits<std::uint64_t>::max());
    if (size > 0) data_ = static_cast<T*>(allocate(bytes()));
  }

  AlignedBuffer(AlignedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }

  ~AlignedBuffer() {
    if (data_ != nullptr) release(data_, bytes());
  }

  [[nodiscard]] T* data() { return data_; }
  [[nodiscard]] const T* data() const { return data_; }
  [[nodiscard]] std::int64_t size() const { return size_; }
  [[nodiscard]] std::int64_t size_bytes() const { return size_ * std::int64_t{sizeof(T)}; }

  /// A dense row-major view of the first elements. Throws ShapeError when the shape needs more
  /// than there are.
  template <std::size_t kRank>
  [[nodiscard]] auto view(const std::array<std::int64_t, kRank>& shape) {
    const TensorView<T, static_cast<int>(kRank)> out(data_, shape);
    check<ShapeError>(out.size() <= size_, "AlignedBuffer: a view of shape ", shape_string(out),
                      " needs ", out.size(), " elements, the buffer has ", size_);
    return out;
  }

 private:
  [[nodiscard]] std::size_t bytes() const { return static_cast<std::size_t>(size_) * sizeof(T); }

  static bool is_mapped([[maybe_unused]] std::size_t bytes) {
#if defined(__linux__)
    return bytes >= kHugePage;
#else
    return false;
#endif
  }

  static void* allocate(std::size_t bytes) {
    if (is_mapped(bytes)) return map(bytes);
    void* memory = ::operator new (bytes, std::align_val_t{kAlignment});
    std::memset(memory, 0, bytes);
    return memory;
  }

  static void release(void* memory, std::size_t bytes) {
#if defined(__linux__)
    if (is_mapped(bytes)) {
      munmap(memory, align_up(bytes, kPage));
      return;
    }
#endif
    ::operator delete (memory, std::align_val_t{kAlignment});
  }

  /// Maps one huge page more than needed and gives back what sticks out of the aligned part.
  static void* map([[maybe_unused]] std::size_t bytes) {
#if defined(__linux__)
    // Whole huge pages would be resident for a buffer's last part, however small that is.
    const std::size_t length = align_up(bytes, kPage);
    void* mapped = mmap(nullptr, length + kHugePage, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) throw OutOfMemory(bytes);
    char* const begin = static_cast<char*>(mapped);
    const auto address = reinterpret_cast<std::uintptr_t>(begin);
    const std::size_t before = align_up(address, kHugePage) - address;
    if (before > 0) munmap(begin, before);
    if (before < kHugePage) munmap(begin + before + length, kHugePage - before);
    madvise(begin + before, length, MADV_HUGEPAGE);  // a wish: small pages work too
    return begin + before;
#else
    return nullptr;
#endif
  }

  T* data_ = nullptr;
  std::int64_t size_ = 0;
};

namespace detail {

/// At least `size` elements with undefined contents, 64-byte aligned. They belong to the calling
/// thread and to `Op`, and stay until its next call: after a few steps an engine allocates no more.
template <class Op, class T>
[[nodiscard]] T* scratch(std::int64_t size) {
  thread_local AlignedBuffer<T> buffer;
  if (buffer.size() < size) {
    buffer = AlignedBuffer<T>(std::max(size, 2 * buffer.size()));
  }
  return buffer.data();
}

}  // namespace detail

}  // namespace nanovllm::cpu
