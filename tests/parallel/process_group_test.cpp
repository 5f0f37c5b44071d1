#include "nanovllm/parallel/process_group.hpp"

#include <atomic>
#include <cstdlib>

#include "catch.hpp"
#include "core/refused_threads.hpp"
#include "parallel/process_rig.hpp"

using namespace nanovllm;
using namespace nanovllm::test;
using Catch::Matchers::Contains;
using Tag = ProcessGroup::Tag;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

using Group = std::shared_ptr<ProcessGroup>;

template <class T>
std::span<std::byte> bytes_of(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

/// What `body` throws, or an empty string; and it does so within five seconds.
template <class Body>
std::string error_of(const Body& body) {
  const auto begin = std::chrono::steady_clock::now();
  std::string error;
  try {
    body();
  } catch (const std::exception& e) {
    error = e.what();
  }
  return std::chrono::steady_clock::now() - begin < seconds(5) ? error : "late: " + error;
}

/// The environment of a launcher, for as long as this lives.
class Environment {
 public:
  explicit Environment(const std::map<std::string, std::string>& variables) {
    for (const char* name : kAll) ::unsetenv(name);
    for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
  }
  ~Environment() {
    for (const char* name : kAll) ::unsetenv(name);
  }

 private:
  static constexpr const char* kAll[] = {"RANK",
                                         "WORLD_SIZE",
                                         "LOCAL_RANK",
                                         "LOCAL_WORLD_SIZE",
                                         "OMPI_COMM_WORLD_RANK",
                                         "OMPI_COMM_WORLD_SIZE",
                                         "OMPI_COMM_WORLD_LOCAL_RANK",
                                         "OMPI_COMM_WORLD_LOCAL_SIZE",
                                         "PMI_RANK",
                                         "PMI_SIZE",
                                         "MPI_LOCALRANKID",
                                         "MPI_LOCALNRANKS",
                                         "MASTER_ADDR",
                                         "MASTER_PORT",
                                         "TORCHELASTIC_USE_AGENT_STORE"};
};

}  // namespace

TEST_CASE("messages, shared bytes and minima between three processes", "[process_group]") {
  const auto errors = run_group(3, [](const Group& group) {
    std::array<int, 4> shared{group->rank(), 1, 2, 3};
    group->share(bytes_of(shared));
    check(shared[0] == 0, "share");
    check(group->minimum(10 - group->rank()) == 8, "minimum");
    // Empty, small, and more than the connection holds at a time.
    for (const std::size_t size : {0u, 5u, 10'000'000u}) {
      std::vector<std::byte> message(size, std::byte{42}), got;
      if (group->rank() == 0) {
        group->broadcast(Tag::step, std::span(message).first(size / 2),
                         std::span(message).subspan(size / 2));
        for (int from = 1; from < 3; ++from) {
          check(group->receive(from, got) == Tag::logits && got == message, "answer");
        }
      } else {
        check(group->receive(0, got) == Tag::step && got == message, "message");
        group->send(0, Tag::logits, got);
      }
    }
  });
  CHECK(errors == std::vector<std::string>(3));
}

TEST_CASE("who does not come is named, to those who came as well", "[process_group]") {
  const std::uint16_t port = free_port();
  std::string other;
  std::thread thread(
      [&] { other = error_of([&] { ProcessGroup(place_of(2, 4, port), milliseconds(1000)); }); });
  const std::string error =
      error_of([&] { ProcessGroup(place_of(0, 4, port), milliseconds(1000)); });
  thread.join();
  CHECK_THAT(error, Contains("rank 1, 3 of 4 did not come within 1 s to localhost:"));
  CHECK(other == error);
}

TEST_CASE("rank 0 that does not come is named with its address", "[process_group]") {
  const std::string error =
      error_of([&] { ProcessGroup(place_of(1, 2, free_port()), milliseconds(200)); });
  CHECK_THAT(error, Contains("rank 0 was not found at localhost:"));
}

TEST_CASE("a port in use is a ConfigError that says what to do", "[process_group]") {
  const std::uint16_t port = free_port();
  const auto listener = detail::Socket::listen("localhost", port);
  CHECK_THROWS_AS(ProcessGroup(place_of(0, 2, port), milliseconds(200)), ConfigError);
  CHECK_THROWS_WITH(ProcessGroup(place_of(0, 2, port), milliseconds(200)), Contains("MASTER_PORT"));
}

TEST_CASE("groups of different sizes do not join", "[process_group]") {
  const std::uint16_t port = free_port();
  std::string other;
  std::thread thread([&] { other = error_of([&] { ProcessGroup(place_of(1, 3, port)); }); });
  const std::string error = error_of([&] { ProcessGroup(place_of(0, 2, port)); });
  thread.join();
  CHECK_THAT(error, Contains("rank 1 was started as one of 3 processes, rank 0 as one of 2"));
  CHECK(other == error);
}

TEST_CASE("two processes of one rank do not join", "[process_group]") {
  const std::uint16_t port = free_port();
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back(
        [&] { error_of([&] { ProcessGroup(place_of(1, 3, port), milliseconds(2000)); }); });
  }
  const std::string error =
      error_of([&] { ProcessGroup(place_of(0, 3, port), milliseconds(2000)); });
  for (std::thread& thread : threads) thread.join();
  CHECK_THAT(error, Contains("two processes came as rank 1"));
}

TEST_CASE("strangers at the port are sent away", "[process_group]") {
  const std::uint16_t port = free_port();
  std::string other;
  std::thread thread([&] {
    const auto deadline = std::chrono::steady_clock::now() + seconds(5);
    const auto stranger = detail::Socket::connect("localhost", port, deadline);
    const std::string text(64, 'x');
    static_cast<void>(stranger.send({std::as_bytes(std::span(text)), {}, {}}));
    { const auto silent = detail::Socket::connect("localhost", port, deadline); }
    other = error_of([&] { ProcessGroup(place_of(1, 2, port)); });
  });
  const std::string error = error_of([&] { ProcessGroup(place_of(0, 2, port)); });
  thread.join();
  CHECK(error == "");
  CHECK(other == "");
}

namespace {

/// Connections of those who are no ranks: silent, of a few bytes, of garbage, of a few right ones.
std::vector<detail::Socket> strangers(std::uint16_t port, int count) {
  std::vector<detail::Socket> out;
  const std::uint64_t magic = detail::Greeting::kMagic;
  for (int i = 0; i < count; ++i) {
    out.push_back(
        detail::Socket::connect("localhost", port, std::chrono::steady_clock::now() + seconds(5)));
    const std::string text(i % 4 == 1 ? 3 : i % 4 == 2 ? 1000 : 0, 'x');
    const auto begun = std::as_bytes(std::span(&magic, 1)).first(i % 4 == 3 ? 5 : 0);
    static_cast<void>(out.back().send({std::as_bytes(std::span(text)), begun, {}}));
  }
  return out;
}

}  // namespace

TEST_CASE("defect 6: strangers do not delay the ranks", "[process_group]") {
  const std::uint16_t port = free_port();
  std::string error, other;
  const auto begin = std::chrono::steady_clock::now();
  std::thread thread([&] { error = error_of([&] { ProcessGroup(place_of(0, 3, port)); }); });
  const auto held = strangers(port, 12);
  std::thread second(
      [&] { static_cast<void>(error_of([&] { ProcessGroup(place_of(2, 3, port)); })); });
  const auto more = strangers(port, 200);
  other = error_of([&] { ProcessGroup(place_of(1, 3, port)); });
  thread.join();
  second.join();
  CHECK(error == "");
  CHECK(other == "");
  CHECK(std::chrono::steady_clock::now() - begin < seconds(4));
}

TEST_CASE("defect 6: the time for all ranks to come is kept, whoever else comes",
          "[process_group]") {
  const std::uint16_t port = free_port();
  std::atomic<bool> ended = false;
  std::thread thread([&] {
    std::vector<detail::Socket> held;
    while (!ended) {
      for (detail::Socket& stranger : strangers(port, 4)) held.push_back(std::move(stranger));
      if (held.size() > 100) held.clear();
      std::this_thread::sleep_for(milliseconds(20));
    }
  });
  const auto begin = std::chrono::steady_clock::now();
  const std::string error =
      error_of([&] { ProcessGroup(place_of(0, 2, port), milliseconds(1000)); });
  const auto time = std::chrono::steady_clock::now() - begin;
  const auto listener = detail::Socket::listen("localhost", port);  // for the last stranger
  ended = true;
  thread.join();
  CHECK_THAT(error, Contains("rank 1 of 2 did not come within 1 s"));
  CHECK(time < seconds(2));
}

TEST_CASE("defect 6: what is no rank 0 does not hold a rank", "[process_group]") {
  const std::uint16_t port = free_port();
  const auto listener = detail::Socket::listen("localhost", port);
  std::atomic<bool> ended = false;
  std::thread thread([&] {  // a byte now and then
    std::vector<detail::Socket> held;
    for (const std::byte byte{1}; !ended; std::this_thread::sleep_for(milliseconds(100))) {
      while (auto socket = listener.accept()) held.push_back(*std::move(socket));
      for (const auto& socket : held) static_cast<void>(socket.send({std::span(&byte, 1), {}, {}}));
    }
  });
  const auto begin = std::chrono::steady_clock::now();
  CHECK_THROWS_WITH(ProcessGroup(place_of(1, 2, port), milliseconds(200)),
                    Contains("did not answer rank 1 of 2"));
  CHECK(std::chrono::steady_clock::now() - begin < seconds(7));
  ended = true;
  thread.join();
}

TEST_CASE("defect 8: a group whose listener gets no thread is an Error", "[process_group]") {
  const RefusedThreads refused(0);
  CHECK_THROWS_WITH(ProcessGroup(ProcessPlace{}), Contains("1 threads were wanted, 0 could be"));
}

TEST_CASE("a failure reaches everybody, whatever they wait for", "[process_group]") {
  const int failing = GENERATE(0, 1, 2);
  std::atomic<int> num_released = 0;
  std::atomic<bool> waits = false;
  const auto errors = run_group(3, [&](const Group& group) {
    group->on_failure([&] { ++num_released; });
    static_cast<void>(group->minimum(0));
    if (group->rank() == failing) {
      while (!waits) std::this_thread::sleep_for(milliseconds(1));
      group->fail("the machine is on fire");
      group->fail("and more");
      group->check_alive();
    } else if (group->rank() == (failing + 1) % 3) {
      waits = true;  // for a message
      std::vector<std::byte> message;
      static_cast<void>(group->receive(group->rank() == 0 ? 1 : 0, message));
    } else {  // for something else
      while (num_released == 0) std::this_thread::sleep_for(milliseconds(1));
      for (int i = 0; i < 5000; ++i) {
        group->check_alive();
        std::this_thread::sleep_for(milliseconds(1));
      }
    }
  });
  const std::string expected = "rank " + std::to_string(failing) + ": the machine is on fire";
  CHECK(errors == std::vector<std::string>(3, expected));
  CHECK(num_released == 3);
}

TEST_CASE("a process that ends without a word is lost", "[process_group]") {
  const std::uint16_t port = free_port();
  const pid_t child = ::fork();
  if (child == 0) {
    const ProcessGroup group(place_of(2, 3, port));
    ::_exit(0);  // nobody says goodbye
  }
  std::string other;
  std::thread thread([&] {
    other = error_of([&] {
      ProcessGroup group(place_of(1, 3, port));
      std::vector<std::byte> message;
      static_cast<void>(group.receive(0, message));
    });
  });
  const std::string error = error_of([&] {
    ProcessGroup group(place_of(0, 3, port));
    std::vector<std::byte> message;
    static_cast<void>(group.receive(1, message));
  });
  thread.join();
  ::waitpid(child, nullptr, 0);
  CHECK_THAT(error, Contains("rank 2 was lost"));
  CHECK(other == error);
}

TEST_CASE("goodbyes are no failures, unless rank 0 still needs those who leave",
          "[process_group]") {
  const bool needed = GENERATE(false, true);
  const auto errors = run_group(2, [&](const Group& group) {
    if (group->rank() == 1) return;
    if (needed) group->on_failure([] {});
    std::vector<std::byte> message;
    static_cast<void>(group->receive(1, message));
  });
  CHECK_THAT(errors[0], Contains("rank 1 has left the group"));
  CHECK(errors[1].empty());
}

TEST_CASE("launchers' environments", "[process_group]") {
  SECTION("none") {
    const Environment environment({});
    CHECK_FALSE(place_from_environment());
    CHECK(ProcessGroup::from_environment() == nullptr);
  }
  SECTION("one process is no group") {
    const Environment environment({{"RANK", "0"}, {"WORLD_SIZE", "1"}});
    CHECK_FALSE(place_from_environment());
  }
  SECTION("torchrun, whose own store has the port") {
    const Environment environment({{"RANK", "5"},
                                   {"WORLD_SIZE", "8"},
                                   {"LOCAL_RANK", "1"},
                                   {"LOCAL_WORLD_SIZE", "4"},
                                   {"MASTER_ADDR", "10.0.0.1"},
                                   {"MASTER_PORT", "1234"},
                                   {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
    const ProcessPlace place = place_from_environment().value();
    CHECK(place.rank == 5);
    CHECK(place.size == 8);
    CHECK(place.local_rank == 1);
    CHECK(place.local_size == 4);
    CHECK(place.host == "10.0.0.1");
    CHECK(place.port == 1235);
  }
  SECTION("Open MPI") {
    const Environment environment({{"OMPI_COMM_WORLD_RANK", "1"},
                                   {"OMPI_COMM_WORLD_SIZE", "2"},
                                   {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                                   {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}});
    const ProcessPlace place = place_from_environment().value();
    CHECK(place.rank == 1);
    CHECK(place.local_rank == 0);
    CHECK(place.host == "localhost");
    CHECK(place.port == 29500);
  }
  SECTION("MPICH, without local ranks: all on one host") {
    const Environment environment({{"PMI_RANK", "1"}, {"PMI_SIZE", "3"}, {"MASTER_PORT", "77"}});
    const ProcessPlace place = place_from_environment().value();
    CHECK(place.local_rank == 1);
    CHECK(place.local_size == 3);
    CHECK(place.port == 77);
  }
  SECTION("what makes no sense") {
    const auto fails = [](const std::map<std::string, std::string>& variables, const char* text) {
      const Environment environment(variables);
      CHECK_THROWS_AS(place_from_environment(), ConfigError);
      CHECK_THROWS_WITH(place_from_environment(), Contains(text));
    };
    fails({{"RANK", "first"}, {"WORLD_SIZE", "2"}}, "RANK must be a number, got 'first'");
    fails({{"RANK", "2"}, {"WORLD_SIZE", "2"}}, "rank 2 is not in [0, 2)");
    fails({{"RANK", "0"}, {"WORLD_SIZE", "0"}}, "1 or more, got 0");
    fails({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "65536"}}, "MASTER_PORT");
    fails({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "9"}}, "local rank 9");
  }
}
