#include "nanovllm/with/moe/expert_parallel.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "nanovllm/core/dtype.hpp"
#include "nanovllm/parallel/communicator.hpp"
#include "nanovllm/parallel/thread_group.hpp"

using namespace nanovllm;

namespace {

constexpr Mesh kMesh{.tensor = 2, .expert = 3};
static_assert(kMesh.size() == 6 && kMesh.tensor_rank(3) == 1 && kMesh.expert_rank(3) == 1);
static_assert(kMesh.tensor_group(3)[0] == 2 && kMesh.tensor_group(3)[1] == 3);
static_assert(kMesh.expert_group(3)[0] == 1 && kMesh.expert_group(3)[2] == 5);

/// A rank's ends of its two groups.
template <class Group>
struct Ends {
  Group tensor, expert;
};

template <class Group>
std::vector<Ends<Group>> make_ends(Mesh mesh) {
  std::vector<std::optional<Group>> tensor(static_cast<std::size_t>(mesh.size())), expert = tensor;
  const auto fill = [](std::vector<std::optional<Group>>& ends, MeshGroup group) {
    std::vector<Group> made = Group::make(group.size);
    for (int i = 0; i < group.size; ++i)
      ends[static_cast<std::size_t>(group[i])] = made[static_cast<std::size_t>(i)];
  };
  for (int rank = 0; rank < mesh.size(); ++rank) {
    if (mesh.tensor_rank(rank) == 0) fill(tensor, mesh.tensor_group(rank));
    if (mesh.expert_rank(rank) == 0) fill(expert, mesh.expert_group(rank));
  }
  std::vector<Ends<Group>> out;
  for (std::size_t rank = 0; rank < tensor.size(); ++rank)
    out.push_back({*std::move(tensor[rank]), *std::move(expert[rank])});
  return out;
}

constexpr int kNumExperts = 12;
constexpr std::int64_t kWidth = 8;

float factor_of(int expert) { return 0.37f * static_cast<float>(expert) - 1.9f; }

/// A layer of experts, each of which scales a row. A rank has the experts of its expert rank, rows
/// of its own, and of these the columns of its tensor rank.
template <class T, class Group>
class ToyExperts {
 public:
  explicit ToyExperts(Ends<Group> ends) : ends_(std::move(ends)) {}

  /// Row i of `x` [n, kWidth / tensor] goes through `experts[i]`. Returns the rows with all columns.
  std::vector<T> forward(std::vector<T> x, const std::vector<int>& experts) {
    const auto rows = static_cast<std::int64_t>(experts.size());
    const std::int64_t width = kWidth / ends_.tensor.size();
    const auto num_ranks = static_cast<std::size_t>(ends_.expert.size());
    const int experts_per_rank = kNumExperts / ends_.expert.size();

    // Rows in the order of the ranks that have their experts, and how many each rank gets.
    std::vector<int> order(experts.size()), sorted, send(num_ranks), receive(num_ranks);
    std::iota(order.begin(), order.end(), 0);
    const auto expert_of = [&](int row) { return experts[static_cast<std::size_t>(row)]; };
    std::ranges::stable_sort(order, {}, expert_of);
    for (const int row : order) {
      sorted.push_back(expert_of(row));
      ++send[static_cast<std::size_t>(expert_of(row) / experts_per_rank)];
    }
    const std::vector<int> one(num_ranks, 1);
    exchange(send, one, receive, one, 1);

    std::vector<T> sent, back(x.size());
    for (const int row : order)
      sent.insert(sent.end(), x.begin() + row * width, x.begin() + (row + 1) * width);
    const auto num_arrived = std::accumulate(receive.begin(), receive.end(), std::size_t{0});
    std::vector<int> ids(num_arrived);
    std::vector<T> arrived(num_arrived * static_cast<std::size_t>(width));
    exchange(sorted, send, ids, receive, 1);
    exchange(sent, send, arrived, receive, width);
    for (std::size_t i = 0; i < arrived.size(); ++i) {
      const int expert = ids[i / static_cast<std::size_t>(width)];
      check(expert / experts_per_rank == ends_.expert.rank(), "expert ", expert, " is elsewhere");
      arrived[i] = T(static_cast<float>(arrived[i]) * factor_of(expert));
    }
    exchange(arrived, receive, back, send, width);
    for (std::size_t i = 0; i < order.size(); ++i)
      std::copy_n(back.begin() + static_cast<std::int64_t>(i) * width, width,
                  x.begin() + order[i] * width);

    if (ends_.tensor.size() == 1) return x;
    std::vector<T> out(static_cast<std::size_t>(rows * kWidth));
    ends_.tensor.all_gather_columns(MatrixView<const T>(x.data(), {rows, width}),
                                    MatrixView<T>(out.data(), {rows, kWidth}));
    return out;
  }

 private:
  template <class U>
  void exchange(const std::vector<U>& from, const std::vector<int>& send, std::vector<U>& to,
                const std::vector<int>& receive, std::int64_t width) {
    const auto rows = [&](const std::vector<U>& values) {
      return static_cast<std::int64_t>(values.size()) / width;
    };
    ends_.expert.all_to_all(MatrixView<const U>(from.data(), {rows(from), width}), send,
                            MatrixView<U>(to.data(), {rows(to), width}), receive);
  }

  Ends<Group> ends_;
};

}  // namespace

TEST_CASE("every rank of a mesh is in one tensor group and one expert group", "[mesh]") {
  for (int tensor = 1; tensor <= 4; ++tensor) {
    for (int expert = 1; expert <= 4; ++expert) {
      const Mesh mesh{.tensor = tensor, .expert = expert};
      validate(mesh);
      for (int rank = 0; rank < mesh.size(); ++rank) {
        const MeshGroup by_tensor = mesh.tensor_group(rank), by_expert = mesh.expert_group(rank);
        REQUIRE(by_tensor.size == tensor);
        REQUIRE(by_expert.size == expert);
        REQUIRE(by_tensor[mesh.tensor_rank(rank)] == rank);
        REQUIRE(by_expert[mesh.expert_rank(rank)] == rank);
        for (int i = 0; i < tensor; ++i) {
          REQUIRE(mesh.tensor_rank(by_tensor[i]) == i);
          REQUIRE(mesh.expert_rank(by_tensor[i]) == mesh.expert_rank(rank));
        }
        for (int i = 0; i < expert; ++i) {
          REQUIRE(mesh.expert_rank(by_expert[i]) == i);
          REQUIRE(mesh.tensor_rank(by_expert[i]) == mesh.tensor_rank(rank));
        }
      }
    }
  }
  CHECK_THROWS_AS(validate(Mesh{.tensor = 0, .expert = 2}), ConfigError);
  CHECK_THROWS_WITH(validate(Mesh{.tensor = 2, .expert = -1}),
                    "a mesh must have tensor >= 1 and expert >= 1, got 2 and -1");
}

TEMPLATE_TEST_CASE("experts split over four ranks give the bits of one rank", "[mesh]", float,
                   bf16) {
  std::mt19937 random(3);
  std::vector<std::vector<int>> experts{{}, {}, {}, {}};  // of four lots of rows, one without any
  std::vector<std::vector<TestType>> rows(4);
  for (std::size_t lot = 0; lot < 4; ++lot) {
    for (std::size_t i = 0; lot != 2 && i < 3 + 4 * lot; ++i) {
      experts[lot].push_back(static_cast<int>(random() % kNumExperts));
      for (int column = 0; column < kWidth; ++column)
        rows[lot].push_back(TestType(0.01f * static_cast<float>(random() % 500) - 2.f));
    }
  }
  std::vector<std::vector<TestType>> expected;
  ToyExperts<TestType, Single> alone(make_ends<Single>(Mesh{}).front());
  for (std::size_t lot = 0; lot < 4; ++lot) {
    expected.push_back(alone.forward(rows[lot], experts[lot]));
    for (std::size_t i = 0; i < rows[lot].size(); ++i) {
      const float scaled = static_cast<float>(rows[lot][i]) * factor_of(experts[lot][i / kWidth]);
      REQUIRE(static_cast<float>(expected[lot][i]) == static_cast<float>(TestType(scaled)));
    }
  }

  const Mesh mesh = GENERATE(Mesh{1, 4}, Mesh{2, 2}, Mesh{4, 1});
  std::vector<std::string> errors(4, "not run");
  std::vector<std::thread> threads;
  auto ends = make_ends<ThreadGroup>(mesh);
  for (int rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      const auto index = static_cast<std::size_t>(rank);
      try {
        ToyExperts<TestType, ThreadGroup> layer(ends[index]);
        const std::int64_t width = kWidth / mesh.tensor, first = mesh.tensor_rank(rank) * width;
        // Every row of the mesh takes its lots in turn.
        for (std::size_t round = 0; round < 4; ++round) {
          const std::size_t lot = (static_cast<std::size_t>(mesh.expert_rank(rank)) + round) % 4;
          std::vector<TestType> columns;
          for (std::size_t i = 0; i < experts[lot].size(); ++i) {
            const auto row = rows[lot].begin() + static_cast<std::int64_t>(i) * kWidth + first;
            columns.insert(columns.end(), row, row + width);
          }
          const auto out = layer.forward(columns, experts[lot]);
          check(out.size() == expected[lot].size() &&
                    (out.empty() || std::memcmp(out.data(), expected[lot].data(),
                                                out.size() * sizeof(TestType)) == 0),
                "lot ", lot, " differs");
        }
        errors[index].clear();
      } catch (const std::exception& error) {
        errors[index] = error.what();
        ends[index].tensor.abort();
        ends[index].expert.abort();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(errors == std::vector<std::string>(4));
}
