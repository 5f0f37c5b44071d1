#pragma once
/// Laws of `CollectivesLike` for groups of every kind. A `Rig` has the ranks of one:
///
///     Rig::run(size, body)   calls body(comm, memory) on a thread a rank; returns what they threw
///
/// and `memory` has their operands:
///
///     Array<T>        made of a std::vector<T>, with `data()`
///     read(array)     the values, when the calls before are done
///     kGap            elements between two rows, 0 if rows must be dense
///     kScale          of the values: sums of whole numbers are exact
///     kWaits          a call returns when it is done
///     kZero           where it is there: a zero whose sums with itself all calls give alike; else -0

#include <chrono>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/tensor_view.hpp"

namespace nanovllm::test {

/// Memory of CPU ranks.
struct HostMemory {
  static constexpr std::int64_t kGap = 2;
  static constexpr float kScale = 0.37f;
  static constexpr bool kWaits = true;

  template <class T>
  using Array = std::vector<T>;

  template <class T>
  static std::vector<T> read(const std::vector<T>& array) {
    return array;
  }
};

/// Calls body(comm, memory) on a thread for each end of a group on the host.
template <class End, class Body>
std::vector<std::string> run_ends(std::vector<End> ends, const Body& body) {
  std::vector<std::string> errors(ends.size());
  std::vector<std::thread> threads;
  for (End& end : ends) {
    threads.emplace_back([&] {
      try {
        HostMemory memory;
        body(end, memory);
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(end.rank())] = error.what();
        end.abort();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

/// A rank's matrix in the memory of its group.
template <class T, class Memory>
class Rows {
 public:
  Rows(Memory& memory, std::int64_t rows, std::int64_t width, std::vector<T> values = {})
      : memory_(memory), rows_(rows), width_(width), array_(spread(std::move(values))) {}

  [[nodiscard]] MatrixView<T> view() {
    return {array_.data(), {rows_, width_}, {width_ + Memory::kGap, 1}};
  }
  [[nodiscard]] MatrixView<const T> read_only() { return view(); }

  /// Throws Error unless it holds `expected`, with its gaps untouched.
  void check_bits(const char* what, std::vector<T> expected) {
    const std::vector<T> wanted = spread(std::move(expected)), got = memory_.read(array_);
    check(got.size() == wanted.size() &&
              (got.empty() || std::memcmp(got.data(), wanted.data(), got.size() * sizeof(T)) == 0),
          what, " of ", rows_, " rows of ", width_);
  }

  [[nodiscard]] std::vector<T> values() {
    const std::vector<T> all = memory_.read(array_);
    std::vector<T> out;
    for (std::int64_t i = 0; i < rows_; ++i) {
      const auto row = all.begin() + i * (width_ + Memory::kGap);
      out.insert(out.end(), row, row + width_);
    }
    return out;
  }

 private:
  [[nodiscard]] std::vector<T> spread(std::vector<T> dense) const {
    dense.resize(static_cast<std::size_t>(rows_ * width_), T(-7));
    std::vector<T> out;
    for (std::int64_t i = 0; i < rows_; ++i) {
      out.insert(out.end(), dense.begin() + i * width_, dense.begin() + (i + 1) * width_);
      out.insert(out.end(), static_cast<std::size_t>(Memory::kGap), T(-3));
    }
    return out;
  }

  Memory& memory_;
  std::int64_t rows_, width_;
  typename Memory::template Array<T> array_;
};

template <class T>
std::vector<T> rows_of(const std::vector<T>& values, std::int64_t begin, std::int64_t count) {
  return {values.begin() + begin, values.begin() + begin + count};
}

template <class Rig, class Body>
void check_ranks(int size, const Body& body) {
  CHECK(Rig::run(size, body) == std::vector<std::string>(static_cast<std::size_t>(size)));
}

/// reduce_scatter gives the rows of all_reduce, and all_gather after it gives all_reduce; also in
/// place.
template <class T, class Rig>
void check_sums_of_rows(int size) {
  check_ranks<Rig>(size, []<class Memory>(auto& comm, Memory& memory) {
    std::mt19937 shapes(17), numbers(100 + static_cast<unsigned>(comm.rank()));
    float zero = -0.f;
    if constexpr (requires { Memory::kZero; }) zero = Memory::kZero;
    for (int trial = 0; trial < 12; ++trial) {
      const std::int64_t n = trial == 0 ? 0 : shapes() % 5, width = 1 + shapes() % 7;
      const std::int64_t own = comm.rank() * n;
      std::vector<T> input;
      for (std::int64_t i = 0; i < comm.size() * n * width; ++i) {
        const auto number = static_cast<float>(static_cast<int>(numbers() % 17) - 8);
        input.push_back(T(i % 5 == 3 ? zero : number * Memory::kScale));
      }
      Rows<T, Memory> whole(memory, comm.size() * n, width, input);
      Rows<T, Memory> sums(memory, comm.size() * n, width, input);
      Rows<T, Memory> in_place(memory, comm.size() * n, width, input);
      Rows<T, Memory> part(memory, n, width), gathered(memory, comm.size() * n, width);
      comm.all_reduce(sums.view());
      comm.reduce_scatter(whole.read_only(), part.view());
      comm.all_gather(part.read_only(), gathered.view());
      const MatrixView<T> place = in_place.view().slice(own, own + n);
      comm.reduce_scatter(in_place.read_only(), place);
      const std::vector<T> summed = sums.values();
      auto expected = input;
      std::copy_n(summed.begin() + own * width, n * width, expected.begin() + own * width);
      in_place.check_bits("reduce_scatter in place", expected);
      comm.all_gather(MatrixView<const T>(place), in_place.view());
      part.check_bits("reduce_scatter", rows_of(summed, own * width, n * width));
      whole.check_bits("what reduce_scatter read", input);
      gathered.check_bits("all_gather of reduce_scatter", summed);
      in_place.check_bits("all_gather in place", summed);
    }
  });
}

/// all_to_all brings every row to its place, and with the counts exchanged brings all back.
template <class T, class Rig>
void check_all_to_all(int size) {
  check_ranks<Rig>(size, []<class Memory>(auto& comm, Memory& memory) {
    const int num_ranks = comm.size(), me = comm.rank();
    std::mt19937 random(5);
    for (int trial = 0; trial < 12; ++trial) {
      const std::int64_t width = 1 + random() % 7;
      std::vector<std::vector<int>> counts;  // [from][to]
      for (int from = 0; from < num_ranks; ++from) {
        counts.emplace_back();
        for (int to = 0; to < num_ranks; ++to)
          counts.back().push_back(trial == 0 ? 0 : static_cast<int>(random() % 4));
      }
      const auto add_rows = [&](int from, int to, std::vector<T>& out) {
        const std::int64_t count =
            counts[static_cast<std::size_t>(from)][static_cast<std::size_t>(to)] * width;
        for (std::int64_t i = 0; i < count; ++i)
          out.push_back(T(static_cast<float>(10 * (num_ranks * from + to) + i)));
      };
      std::vector<int> send, receive;
      std::vector<T> input, arriving;
      for (std::size_t other = 0; other < counts.size(); ++other) {
        send.push_back(counts[static_cast<std::size_t>(me)][other]);
        receive.push_back(counts[other][static_cast<std::size_t>(me)]);
        add_rows(me, static_cast<int>(other), input);
        add_rows(static_cast<int>(other), me, arriving);
      }
      const auto num_rows = [&](const std::vector<T>& values) {
        return static_cast<std::int64_t>(values.size()) / width;
      };
      Rows<T, Memory> from(memory, num_rows(input), width, input);
      Rows<T, Memory> to(memory, num_rows(arriving), width), back(memory, num_rows(input), width);
      comm.all_to_all(from.read_only(), send, to.view(), receive);
      comm.all_to_all(to.read_only(), receive, back.view(), send);
      to.check_bits("all_to_all", arriving);
      back.check_bits("all_to_all and back", input);
    }
  });
}

/// What all ranks say of the calls below, of which rank 1 makes a wrong one.
inline std::vector<std::string> mismatches(int size) {
  const int all = 2 * size;
  const std::string gather = "all_gather: ", scatter = "reduce_scatter: ", rows = "all_to_all: ";
  const std::string whole = concat("'whole' must have shape [", all, ", 2], got [1, 2]");
  return {
      "rank 1: " + gather + whole,
      gather + "rank 1 expected [3, 2] of rank 0, got [2, 2]",
      "rank 1: " + scatter + whole,
      scatter + "rank 1 expected [2, 3] of rank 0, got [2, 2]",
      concat("rank 1: ", rows, "'send_rows' must have shape [", size, "], got [", size - 1, "]"),
      "rank 1: " + rows + "'send_rows' must be >= 0, got -2",
      concat("rank 1: ", rows, "'from' must have shape [", all, ", any], got [1, 2]"),
      concat("rank 1: ", rows, "'to' must have shape [", all, ", 2], got [", all, ", 3]"),
      rows + "rank 1 expected [3, 2] of rank 0, got [2, 2]",
  };
}

template <class Comm, class Memory>
void call_mismatched(std::size_t which, Comm& comm, Memory& memory) {
  const bool wrong = comm.rank() == 1;
  const std::int64_t all = 2 * comm.size();
  Rows<float, Memory> part(memory, 2, 2), high(memory, 3, 2), wide(memory, 2, 3);
  Rows<float, Memory> whole(memory, all, 2), high_whole(memory, 3 * comm.size(), 2);
  Rows<float, Memory> wide_whole(memory, all, 3), short_whole(memory, 1, 2);
  Rows<float, Memory> to(memory, all, 2), high_to(memory, all + 1, 2);
  std::vector<int> send(static_cast<std::size_t>(comm.size()), 2), receive = send;
  if (wrong && which == 4) send.pop_back();
  if (wrong && which == 5) send[1] = -2;
  if (wrong && which == 8) receive[0] = 3;
  const auto pick = [&](std::size_t of, auto& odd, auto& usual) {
    return wrong && which == of ? odd.view() : usual.view();
  };
  using Input = MatrixView<const float>;
  if (which == 0) comm.all_gather(part.read_only(), pick(0, short_whole, whole));
  if (which == 1) comm.all_gather(Input(pick(1, high, part)), pick(1, high_whole, whole));
  if (which == 2) comm.reduce_scatter(Input(pick(2, short_whole, whole)), part.view());
  if (which == 3) comm.reduce_scatter(Input(pick(3, wide_whole, whole)), pick(3, wide, part));
  if (which >= 4 && which != 8)
    comm.all_to_all(Input(pick(6, short_whole, whole)), send, pick(7, wide_whole, to), receive);
  if (which == 8) comm.all_to_all(whole.read_only(), send, pick(8, high_to, to), receive);
}

/// Operands that do not fit are the same ShapeError on all ranks, and the group is as before.
template <class Rig>
void check_mismatches(int size) {
  check_ranks<Rig>(size, []<class Memory>(auto& comm, Memory& memory) {
    const std::vector<std::string> expected = mismatches(comm.size());
    std::vector<float> ranks;
    for (int rank = 0; rank < comm.size(); ++rank) ranks.push_back(static_cast<float>(rank));
    for (std::size_t which = 0; which < expected.size(); ++which) {
      std::string error = "nothing";
      try {
        call_mismatched(which, comm, memory);
      } catch (const ShapeError& e) {
        error = e.what();
      }
      check(error == expected[which], "got '", error, "', expected '", expected[which], "'");
      Rows<float, Memory> part(memory, 1, 1, {static_cast<float>(comm.rank())});
      Rows<float, Memory> whole(memory, comm.size(), 1);
      comm.all_gather(part.read_only(), whole.view());
      whole.check_bits("the next all_gather", ranks);
    }
  });
}

/// An abort releases the ranks that wait in a call. Every rank's error has `text`.
template <class Rig>
void check_abort_releases(int size, const char* text) {
  for (int which = 0; which < 3; ++which) {
    const auto begin = std::chrono::steady_clock::now();
    const auto errors = Rig::run(size, [&]<class Memory>(auto& comm, Memory& memory) {
      if (comm.rank() == 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        comm.abort();
      }
      Rows<float, Memory> part(memory, 1, 2), whole(memory, comm.size(), 2);
      Rows<float, Memory> to(memory, comm.size(), 2);
      const std::vector<int> one(static_cast<std::size_t>(comm.size()), 1);
      do {
        if (which == 0) comm.all_gather(part.read_only(), whole.view());
        if (which == 1) comm.reduce_scatter(whole.read_only(), part.view());
        if (which == 2) comm.all_to_all(whole.read_only(), one, to.view(), one);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      } while (!Memory::kWaits);
    });
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20));
    for (const std::string& error : errors) CHECK_THAT(error, Catch::Matchers::Contains(text));
  }
}

}  // namespace nanovllm::test
