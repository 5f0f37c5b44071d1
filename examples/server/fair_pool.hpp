#pragma once
/// Threads for work that takes long, shared fairly among clients. No sockets.

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

namespace nanovllm::examples {

/// The work of each client waits in a queue of its own, and the threads take from the queues in
/// turn: one that has a hundred pieces of work delays another by one piece a thread. The threads
/// have a low priority (nice 10) and take what others leave of the cores. Thread-safe.
class FairPool {
 public:
  /// Is called once, with a stop requested if it is to do nothing or to end early. Must not throw.
  using Work = std::function<void(const std::stop_token&)>;

  /// A piece of work.
  struct Job {
    std::string client;
    Work work;
    std::stop_source stop{};
  };
  using JobPtr = std::shared_ptr<Job>;

  /// @param max_waiting  of a client's work, beside what is under way.
  FairPool(std::size_t num_threads, std::size_t max_waiting) : max_waiting_(max_waiting) {
    num_threads = std::max<std::size_t>(1, num_threads);
    running_.reserve(num_threads);  // the threads allocate nothing
    for (std::size_t i = 0; i < num_threads; ++i) threads_.emplace_back([this] { run(); });
  }
  ~FairPool() { join(); }
  FairPool(const FairPool&) = delete;
  FairPool& operator=(const FairPool&) = delete;

  /// Queues work. Null if too much of this client waits already.
  [[nodiscard]] JobPtr post(const std::string& client, Work work) {
    auto job = std::make_shared<Job>(Job{client, std::move(work)});
    {
      const std::lock_guard lock(mutex_);
      const auto found = by_client_.find(client);
      if (found != by_client_.end()) {
        if (found->second->jobs.size() >= max_waiting_) return nullptr;
        found->second->jobs.push_back(job);
      } else {
        if (max_waiting_ == 0) return nullptr;
        turns_.push_back({client, {job}});
        by_client_[client] = std::prev(turns_.end());
      }
      if (is_cancelled_) job->stop.request_stop();
    }
    update_.notify_one();
    return job;
  }

  /// Ends work early. Returns true if it had not begun: it is not called then.
  bool cancel(const JobPtr& job) {
    job->stop.request_stop();
    const std::lock_guard lock(mutex_);
    const auto found = by_client_.find(job->client);
    if (found == by_client_.end()) return false;
    std::deque<JobPtr>& jobs = found->second->jobs;
    const auto place = std::find(jobs.begin(), jobs.end(), job);
    if (place == jobs.end()) return false;
    jobs.erase(place);
    if (jobs.empty()) forget(found->second);
    return true;
  }

  /// From now on all work is called with a stop requested, what is under way included.
  void cancel_all() {
    const std::lock_guard lock(mutex_);
    is_cancelled_ = true;
    for (const JobPtr& job : running_) job->stop.request_stop();
    for (const Queue& queue : turns_)
      for (const JobPtr& job : queue.jobs) job->stop.request_stop();
  }

  /// Cancels all work, waits for its end, and ends the threads.
  void join() {
    cancel_all();
    {
      const std::lock_guard lock(mutex_);
      is_closed_ = true;
    }
    update_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

 private:
  /// What waits of a client; never empty.
  struct Queue {
    std::string client;
    std::deque<JobPtr> jobs;
  };

  void forget(std::list<Queue>::iterator queue) {
    by_client_.erase(queue->client);
    turns_.erase(queue);
  }

  /// The next client's first piece of work; that client is the last then.
  [[nodiscard]] JobPtr take() {
    const auto queue = turns_.begin();
    JobPtr job = std::move(queue->jobs.front());
    queue->jobs.pop_front();
    if (queue->jobs.empty())
      forget(queue);
    else
      turns_.splice(turns_.end(), turns_, queue);
    return job;
  }

  void run() {
    pthread_setname_np(pthread_self(), "http-long");  // for top -H
    setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), 10);
    std::unique_lock lock(mutex_);
    for (;;) {
      update_.wait(lock, [this] { return is_closed_ || !turns_.empty(); });
      if (turns_.empty()) return;
      const JobPtr job = take();
      running_.push_back(job);
      lock.unlock();
      job->work(job->stop.get_token());
      job->work = nullptr;
      lock.lock();
      std::erase(running_, job);
    }
  }

  const std::size_t max_waiting_;
  std::mutex mutex_;
  std::condition_variable update_;
  std::list<Queue> turns_;  ///< the next client's first
  std::unordered_map<std::string, std::list<Queue>::iterator> by_client_;
  std::vector<JobPtr> running_;
  bool is_cancelled_ = false, is_closed_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace nanovllm::examples
