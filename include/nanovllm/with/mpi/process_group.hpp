#pragma once
/// The processes of a job of MPI, one tensor-parallel rank each, on one host or several.

// The C interface alone.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/parallel/backoff.hpp"

namespace nanovllm {

/// A group of processes that MPI has started, and this one's place in it.
///
/// All ranks make the same calls in the same order, of which one thread at a time is in progress,
/// except `fail`. A rank that waits for the others gives its core away. There is no way back from a
/// failure: `fail` ends all processes of the job, and so does MPI when a call of it fails or a
/// process dies.
class ProcessGroup {
 public:
  /// What a message of rank 0 is about.
  enum class Tag : std::int64_t { step, logits, sample, end };

  /// The processes that mpirun or srun has started; null when this is the only one. Calls
  /// MPI_Init_thread unless the program has; then MPI_Finalize belongs to the group's end, and this
  /// can be called once. Throws Error the second time, and ConfigError as the constructor does.
  [[nodiscard]] static std::shared_ptr<ProcessGroup> world() {
    int has_ended = 0, is_running = 0, level = 0, size = 0;
    MPI_Finalized(&has_ended);
    check(has_ended == 0, "ProcessGroup::world: MPI has ended; a program makes the group once");
    MPI_Initialized(&is_running);
    if (is_running == 0) MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size == 1) {
      if (is_running == 0) MPI_Finalize();
      return nullptr;
    }
    auto group = std::make_shared<ProcessGroup>(MPI_COMM_WORLD);
    group->ends_mpi_ = is_running == 0;
    return group;
  }

  /// The processes of a communicator of the program's, which is duplicated; all of them call this.
  /// The group goes before MPI_Finalize. Throws ConfigError unless MPI runs, with the thread level
  /// MPI_THREAD_SERIALIZED or MPI_THREAD_MULTIPLE.
  explicit ProcessGroup(MPI_Comm processes) {
    int is_running = 0, level = 0;
    MPI_Initialized(&is_running);
    check<ConfigError>(is_running != 0, "ProcessGroup: MPI_Init_thread has not been called");
    MPI_Query_thread(&level);
    check<ConfigError>(level >= MPI_THREAD_SERIALIZED,
                       "ProcessGroup: MPI was initialised for one thread (level ", level,
                       "); several threads of an engine call it, one at a time: call "
                       "MPI_Init_thread with MPI_THREAD_SERIALIZED or MPI_THREAD_MULTIPLE");
    MPI_Comm_dup(processes, &comm_);
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_ARE_FATAL);
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &size_);
    MPI_Comm host = MPI_COMM_NULL;
    MPI_Comm_split_type(comm_, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &host);
    MPI_Comm_rank(host, &local_rank_);
    MPI_Comm_size(host, &local_size_);
    MPI_Comm_free(&host);
  }

  /// Where an exception ends the group, it ends the job: the other ranks may wait for this one.
  ~ProcessGroup() {
    if (std::uncaught_exceptions() > num_exceptions_) fail("an exception has ended its group");
    MPI_Comm_free(&comm_);
    if (ends_mpi_) MPI_Finalize();
  }

  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  /// Among the processes of this host; chooses the GPU.
  [[nodiscard]] int local_rank() const { return local_rank_; }
  [[nodiscard]] int local_size() const { return local_size_; }
  /// The group's own communicator.
  [[nodiscard]] MPI_Comm comm() const { return comm_; }

  /// Tells why this rank cannot continue and ends all processes of the job. From any thread.
  [[noreturn]] void fail(std::string_view reason) const {
    char host[MPI_MAX_PROCESSOR_NAME] = "";
    int length = 0;
    MPI_Get_processor_name(host, &length);
    std::fprintf(stderr, "nanovllm: rank %d of %d, on %s, ends the job: %.*s\n", rank_, size_, host,
                 static_cast<int>(reason.size()), reason.data());
    std::fflush(stderr);
    MPI_Abort(comm_, EXIT_FAILURE);
    std::abort();  // MPI_Abort does not return
  }

  // ---- What all ranks call ----

  /// Everybody's bytes become rank 0's.
  void share(std::span<std::byte> bytes) {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Ibcast(bytes.data(), count_of(bytes.size()), MPI_BYTE, 0, comm_, &request);
    wait(request);
  }

  /// The least of the values of all ranks. Returns on no rank before every rank has called it.
  [[nodiscard]] std::int64_t minimum(std::int64_t value) {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Iallreduce(MPI_IN_PLACE, &value, 1, MPI_INT64_T, MPI_MIN, comm_, &request);
    wait(request);
    return value;
  }

  /// `all` becomes the bytes of all ranks, of one length, by rank.
  void gather(std::span<const std::byte> mine, std::span<std::byte> all) {
    const int count = count_of(mine.size());
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Iallgather(mine.data(), count, MPI_BYTE, all.data(), count, MPI_BYTE, comm_, &request);
    wait(request);
  }

  /// The bytes of each rank, of any length, by rank.
  [[nodiscard]] std::vector<std::vector<std::byte>> gather(std::span<const std::byte> mine) {
    const int count = count_of(mine.size());
    std::vector<int> counts(static_cast<std::size_t>(size_)), begins(counts.size());
    gather(std::as_bytes(std::span(&count, 1)), std::as_writable_bytes(std::span(counts)));
    const std::size_t total = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
    static_cast<void>(count_of(total));
    std::exclusive_scan(counts.begin(), counts.end(), begins.begin(), 0);
    std::vector<std::byte> all(total);
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Iallgatherv(mine.data(), count, MPI_BYTE, all.data(), counts.data(), begins.data(),
                    MPI_BYTE, comm_, &request);
    wait(request);
    std::vector<std::vector<std::byte>> out;
    for (std::size_t r = 0; r < counts.size(); ++r)
      out.emplace_back(all.begin() + begins[r], all.begin() + begins[r] + counts[r]);
    return out;
  }

  /// Waits for a call of MPI on `comm`.
  void wait(MPI_Request& request) { static_cast<void>(finish(request, {})); }

  // ---- Messages of rank 0 to all others ----

  /// Rank 0 sends what the others `receive`.
  void broadcast(Tag tag, std::span<const std::byte> head, std::span<const std::byte> body = {}) {
    std::vector<std::byte> bytes(head.begin(), head.end());
    bytes.insert(bytes.end(), body.begin(), body.end());
    Header header{tag, static_cast<std::int64_t>(bytes.size())};
    share(std::as_writable_bytes(std::span(&header, 1)));
    if (!bytes.empty()) share(bytes);
  }

  /// Whether there is a message; one that is not there is waited for as long as `limit`.
  [[nodiscard]] bool wait_for_message(std::chrono::milliseconds limit) { return expect(limit); }

  /// The next message.
  [[nodiscard]] Tag receive(std::vector<std::byte>& out) {
    static_cast<void>(expect({}));
    has_header_ = false;
    out.resize(static_cast<std::size_t>(header_.size));
    if (!out.empty()) share(out);
    return header_.tag;
  }

 private:
  using Limit = std::optional<std::chrono::milliseconds>;

  struct Header {
    Tag tag;
    std::int64_t size;
  };

  /// MPI counts in int.
  [[nodiscard]] static int count_of(std::size_t bytes) {
    check(bytes <= std::numeric_limits<int>::max(), bytes,
          " bytes are more than MPI takes in a call, 2^31 - 1");
    return static_cast<int>(bytes);
  }

  /// Whether the request is done within `limit`; without one it returns when it is. MPI makes
  /// progress while it is asked, so this asks again: at once for a while, for ranks are seldom far
  /// apart within a step.
  [[nodiscard]] bool finish(MPI_Request& request, Limit limit) {
    for (const Backoff backoff(std::chrono::milliseconds(1));; backoff.pause()) {
      int is_done = 0;
      MPI_Test(&request, &is_done, MPI_STATUS_IGNORE);
      if (is_done != 0) return true;
      if (limit && backoff.waited() >= *limit) return false;
    }
  }

  /// Whether the header of the next message is there within `limit`.
  [[nodiscard]] bool expect(Limit limit) {
    if (has_header_) return true;
    if (expected_ == MPI_REQUEST_NULL)
      MPI_Ibcast(&header_, sizeof(header_), MPI_BYTE, 0, comm_, &expected_);
    return has_header_ = finish(expected_, limit);
  }

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1, local_rank_ = 0, local_size_ = 1;
  bool ends_mpi_ = false;
  const int num_exceptions_ = std::uncaught_exceptions();
  Header header_{};
  bool has_header_ = false;
  MPI_Request expected_ = MPI_REQUEST_NULL;  // of `header_`
};

}  // namespace nanovllm
