#pragma once
/// How other threads tell an io thread of something, without memory: there may be none.

#include <array>
#include <boost/asio/bind_allocator.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

namespace nanovllm::examples {

namespace net = boost::asio;

using Executor = net::io_context::executor_type;

/// Room for what is posted, one thing at a time: the next when the one before has begun to run.
class PostMemory {
 public:
  PostMemory() = default;
  PostMemory(const PostMemory&) = delete;
  PostMemory& operator=(const PostMemory&) = delete;

  /// Posts `function` to an io thread. This is kept until it runs.
  template <class Function>
  void post(const Executor& executor, Function function) {
    net::post(executor, net::bind_allocator(Allocator<void>{this}, std::move(function)));
  }

 private:
  template <class T>
  struct Allocator {
    using value_type = T;

    explicit Allocator(PostMemory* owner) : memory(owner) {}
    template <class U>
    Allocator(const Allocator<U>& other) : memory(other.memory) {}

    [[nodiscard]] T* allocate(std::size_t count) const {
      static_assert(alignof(T) <= alignof(std::max_align_t));
      if (count * sizeof(T) > memory->bytes_.size() || std::exchange(memory->is_used_, true))
        throw std::bad_alloc();
      return reinterpret_cast<T*>(memory->bytes_.data());
    }
    void deallocate(T*, std::size_t) const { memory->is_used_ = false; }

    friend bool operator==(const Allocator&, const Allocator&) = default;

    PostMemory* memory;
  };

  alignas(std::max_align_t) std::array<std::byte, 256> bytes_{};
  bool is_used_ = false;
};

/// A connection as its io thread knows it. Members are called on that thread, its destructor too.
class AnyConnection {
 public:
  virtual ~AnyConnection() = default;
  virtual void wake() = 0;       ///< to look at ServerState again
  virtual void on_update() = 0;  ///< of its exchange
  virtual void close() = 0;      ///< at once, whatever is under way
};

/// That there is an update for a connection, made ahead of time.
using News = std::list<std::weak_ptr<AnyConnection>>;

/// Brings the wake-ups of a step's exchanges from the engine's thread to an io thread: one post for
/// all that come before they are heard, and a lock of a few instructions for each. An exchange may
/// keep it for longer than the server is there.
class NewsQueue {
 public:
  explicit NewsQueue(net::io_context& io) : executor_(io.get_executor()) {}

  /// From any thread. Takes `news`, and needs no memory.
  void push(News& news) {
    const std::lock_guard lock(mutex_);
    if (is_closed_) return;
    waiting_.splice(waiting_.end(), news);
    if (!std::exchange(is_posted_, true)) memory_.post(executor_, [this] { deliver(); });
  }

  /// The io thread ends: nobody receives later updates.
  void close() {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
  }

 private:
  void deliver() {
    News delivered;
    {
      const std::lock_guard lock(mutex_);
      std::swap(waiting_, delivered);
      is_posted_ = false;
    }
    for (const std::weak_ptr<AnyConnection>& connection : delivered) {
      if (const auto alive = connection.lock()) alive->on_update();
    }
  }

  const Executor executor_;
  std::mutex mutex_;
  News waiting_;
  PostMemory memory_;
  bool is_posted_ = false, is_closed_ = false;
};

}  // namespace nanovllm::examples
