/// A run of the batch tool: what is read when, what is written when, and how much is in memory.

#include "../../examples/batch_run.hpp"

#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "catch.hpp"

namespace nv = nanovllm;
using nv::examples::BatchCounts;
using nv::examples::LineReader;
using nv::examples::ResultQueue;
using nv::examples::serve_batch;

namespace {

/// A pipe; both ends are closed with the object.
class Pipe {
 public:
  Pipe() { REQUIRE(::pipe(ends_.data()) == 0); }
  ~Pipe() {
    finish();
    ::close(ends_[0]);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  [[nodiscard]] int reading() const { return ends_[0]; }
  void write(const std::string& text) const {
    for (std::size_t at = 0; at < text.size();) {
      const ssize_t count = ::write(ends_[1], text.data() + at, text.size() - at);
      if (count <= 0) return;
      at += static_cast<std::size_t>(count);
    }
  }
  void finish() {
    if (ends_[1] >= 0) ::close(ends_[1]);
    ends_[1] = -1;
  }

 private:
  std::array<int, 2> ends_{-1, -1};
};

/// Answers each prompt with itself, one a step: the oldest, or the newest where `last_first`.
struct EchoEngine {
  bool last_first = false;
  std::function<void()> on_step{};
  std::size_t most_alive = 0, num_steps = 0;
  std::map<std::string, std::optional<std::uint64_t>> seeds{};  // of each prompt
  std::deque<std::pair<std::string, nv::TokenCallback>> alive{};

  nv::RequestId submit(const nv::Prompt& prompt, const nv::SamplingParams& params,
                       nv::TokenCallback callback) {
    const std::string text = std::get<std::string>(prompt);
    seeds[text] = params.seed;
    nv::check<nv::RequestError>(text != "refuse", "refused");
    alive.emplace_back(text, std::move(callback));
    most_alive = std::max(most_alive, alive.size());
    return alive.size();
  }

  /// Refuses a turn while another one is under way, as a session does.
  struct Session {
    explicit Session(EchoEngine& of) : engine(of) { ++of.num_sessions; }
    EchoEngine& engine;
    std::shared_ptr<bool> is_busy = std::make_shared<bool>(false);

    nv::RequestId submit(const nv::Prompt& prompt, const nv::SamplingParams& params,
                         nv::TokenCallback callback) {
      nv::check<nv::RequestError>(!*is_busy, "a turn is under way");
      const nv::RequestId id =
          engine.submit(prompt, params, [busy = is_busy, callback](const nv::TokenEvent& event) {
            *busy = false;
            callback(event);
          });
      *is_busy = true;
      return id;
    }
  };
  int num_sessions = 0;

  bool step() {
    if (alive.empty()) return false;
    ++num_steps;
    const auto [text, callback] = last_first ? alive.back() : alive.front();
    last_first ? alive.pop_back() : alive.pop_front();
    nv::Output output;
    output.text = text;
    if (text == "fail") output.error = "failed";
    nv::TokenEvent event;
    event.output = &output;
    callback(event);
    if (on_step) on_step();
    return true;
  }
};

std::string request(const std::string& id, const std::string& prompt) {
  return "{\"id\":\"" + id + "\",\"prompt\":\"" + prompt + "\"}\n";
}

std::string turn(const std::string& id, const std::string& prompt, const std::string& session) {
  return "{\"id\":\"" + id + "\",\"prompt\":\"" + prompt + "\",\"session\":\"" + session + "\"}\n";
}

/// The ids of result lines, in their order; "null" for none.
std::vector<std::string> ids(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const nv::Json id = nv::parse_json(line)["id"];
    out.push_back(id.is_null() ? "null" : id.get<std::string>());
  }
  return out;
}

std::string run(EchoEngine& engine, const std::string& input, bool in_order = true,
                std::size_t window = 4, BatchCounts* counts = nullptr,
                std::optional<std::uint64_t> seed = {}) {
  Pipe pipe;
  std::thread writer([&] {
    pipe.write(input);
    pipe.finish();
  });
  LineReader reader(pipe.reading());
  std::ostringstream output;
  const BatchCounts got =
      serve_batch<EchoEngine::Session>(engine, reader, output, in_order, window, seed);
  writer.join();
  if (counts) *counts = got;
  return output.str();
}

}  // namespace

TEST_CASE("defect 20: results are out while the input stays open") {
  EchoEngine engine;
  Pipe pipe;
  std::ostringstream output;
  // Each answer brings the next request: a program that waits for the end of its input stops here.
  int num_sent = 1;
  engine.on_step = [&] {
    if (num_sent == 5) return pipe.finish();
    pipe.write(request(std::to_string(num_sent++), "x"));
  };
  pipe.write(request("0", "x"));
  LineReader reader(pipe.reading());
  const BatchCounts counts = serve_batch<EchoEngine::Session>(engine, reader, output, true, 256);
  CHECK(counts.lines == 5);
  CHECK(ids(output.str()) == std::vector<std::string>{"0", "1", "2", "3", "4"});
  CHECK(engine.most_alive == 1);
}

TEST_CASE("defect 20: a result is written before the next line is waited for") {
  EchoEngine engine;
  Pipe pipe;
  /// Ends the input once a result has been seen.
  struct Sink : std::stringbuf {
    Pipe* pipe = nullptr;
    int sync() override {
      pipe->finish();
      return 0;
    }
  } sink;
  sink.pipe = &pipe;
  std::ostream output(&sink);
  pipe.write(request("a", "x"));
  LineReader reader(pipe.reading());
  serve_batch<EchoEngine::Session>(engine, reader, output, true, 256);
  CHECK(ids(sink.str()) == std::vector<std::string>{"a"});
}

TEST_CASE("defect 20: no more than a window of lines is in memory, however long the input") {
  std::string input;
  std::vector<std::string> expected;
  for (int i = 0; i < 5000; ++i) {
    input += request(std::to_string(i), "x");
    expected.push_back(std::to_string(i));
  }
  for (const bool last_first : {false, true}) {
    for (const std::size_t window : {1u, 7u, 256u}) {
      EchoEngine engine{.last_first = last_first};
      CHECK(ids(run(engine, input, true, window)) == expected);
      CHECK(engine.most_alive <= window);
    }
  }
}

TEST_CASE("turns of a session follow each other, whatever becomes of them") {
  std::string input;
  std::vector<std::string> expected;
  for (int i = 0; i < 60; ++i) {
    const char* prompt = i % 7 == 3 ? "refuse" : i % 5 == 2 ? "fail" : "x";
    input += i % 4 == 3 ? request(std::to_string(i), prompt)
                        : turn(std::to_string(i), prompt, std::string(1, "abc"[i % 3]));
    expected.push_back(std::to_string(i));
  }
  for (const bool last_first : {false, true}) {
    EchoEngine engine{.last_first = last_first};
    BatchCounts counts;
    const std::string output = run(engine, input, true, 64, &counts);
    CHECK(ids(output) == expected);
    CHECK(engine.num_sessions == 3);
    CHECK(output.find("under way") == output.npos);
    std::size_t num_errors = 0;
    for (int i = 0; i < 60; ++i) num_errors += i % 7 == 3 || i % 5 == 2 ? 1 : 0;
    CHECK(counts.errors == num_errors);
  }
}

TEST_CASE("a seed of the run gives each line one by its place, whatever the others do") {
  // A turn waits for those before it, and so other lines are submitted ahead of it.
  const std::string input = turn("0", "a", "s") + "not JSON\n\n" + turn("1", "b", "s") +
                            turn("2", "c", "s") + request("3", "d") +
                            R"({"id": "4", "prompt": "own", "sampling": {"seed": 7}})"
                            "\n";
  EchoEngine engine, other{.last_first = true}, later, without;
  run(engine, input, true, 8, nullptr, 5);
  run(other, input, true, 2, nullptr, 5);
  CHECK(engine.seeds == other.seeds);
  CHECK(engine.seeds["own"] == 7);
  std::set<std::optional<std::uint64_t>> all;
  for (const auto& [prompt, seed] : engine.seeds) all.insert(seed);
  CHECK((all.size() == 5 && !all.contains(std::nullopt)));
  CHECK(engine.seeds["d"] == nv::examples::seed_of(5, 4));
  run(later, input, true, 8, nullptr, 6);
  CHECK(later.seeds["d"] != engine.seeds["d"]);
  run(without, input);
  CHECK(without.seeds["d"] == std::nullopt);
}

TEST_CASE("results are written in the order of the input, or as they finish") {
  const std::string input = request("a", "1") + request("b", "2") + request("c", "3");
  EchoEngine engine{.last_first = true};
  CHECK(ids(run(engine, input)) == std::vector<std::string>{"a", "b", "c"});
  // The three lines may arrive in parts, so only that each is there is certain.
  EchoEngine other{.last_first = true};
  CHECK(ids(run(other, input, false)).size() == 3);

  ResultQueue queue(false);
  const std::size_t first = queue.open(), second = queue.open();
  std::ostringstream output;
  queue.put(second, "second\n");
  queue.write(output);
  CHECK(output.str() == "second\n");
  CHECK(queue.num_owed() == 1);
  queue.put(first, "first\n");
  queue.write(output);
  CHECK(output.str() == "second\nfirst\n");
  CHECK(queue.num_owed() == 0);
}

TEST_CASE("defect 20: a line that is not JSON is reported with its number, and the run goes on") {
  EchoEngine engine;
  BatchCounts counts;
  const std::string output =
      run(engine,
          request("a", "x") + "\n  \n{not JSON\n" + request("b", "refuse") +
              "{\"id\":\"c\",\"prompt\":3}\n[]\n" + request("d", "fail") + request("e", "y"),
          true, 4, &counts);
  CHECK(ids(output) == std::vector<std::string>{"a", "null", "b", "c", "null", "d", "e"});
  CHECK(output.find("\"error\": \"line 4: the line is not valid JSON") != output.npos);
  CHECK(output.find("\"error\": \"line 7: ") != output.npos);
  CHECK(output.find("\"error\": \"refused\"") != output.npos);
  CHECK(output.find("\"error\": \"prompt must be") != output.npos);
  CHECK(output.find("\"text\": \"y\"") != output.npos);
  CHECK(counts.lines == 7);
  CHECK(counts.errors == 5);
}

TEST_CASE("an output that takes nothing ends the run") {
  EchoEngine engine;
  Pipe pipe;
  pipe.write(request("a", "x") + request("b", "x"));
  LineReader reader(pipe.reading());
  std::ostringstream output;
  output.setstate(std::ios::badbit);
  CHECK_THROWS_AS(serve_batch<EchoEngine::Session>(engine, reader, output, true, 8), nv::Error);
}

TEST_CASE("requests that outlive a run that failed find what they answer to") {
  EchoEngine engine;
  {
    Pipe pipe;
    pipe.write(request("a", "x") + request("b", "x"));
    LineReader reader(pipe.reading());
    std::ostringstream output;
    output.setstate(std::ios::badbit);
    CHECK_THROWS_AS(serve_batch<EchoEngine::Session>(engine, reader, output, true, 8), nv::Error);
  }
  while (engine.step()) {
  }
}

TEST_CASE("a reader gives lines as they arrive, and the last one without its end") {
  Pipe pipe;
  LineReader reader(pipe.reading());
  CHECK_FALSE(reader.next(false));
  pipe.write("one\ntw");
  CHECK(reader.next(false)->text == "one");
  CHECK_FALSE(reader.next(false));
  CHECK_FALSE(reader.at_end());
  pipe.write("o\n\nthree");
  CHECK(reader.next(true)->text == "two");
  CHECK(reader.next(false)->text.empty());
  CHECK_FALSE(reader.next(false));
  pipe.finish();
  const auto last = reader.next(true);
  REQUIRE(last);
  CHECK(last->text == "three");
  CHECK(last->number == 4);
  CHECK(reader.at_end());
  CHECK_FALSE(reader.next(true));
}

TEST_CASE("a line that is too long is cut and does not grow the memory") {
  Pipe pipe;
  LineReader reader(pipe.reading(), 1000);
  std::thread writer([&] {
    pipe.write(std::string(500'000, 'x') + "\nshort\n" + std::string(1000, 'y') + "\n" +
               std::string(1001, 'z'));
    pipe.finish();
  });
  std::vector<LineReader::Line> lines;
  while (auto line = reader.next(true)) lines.push_back(*std::move(line));
  writer.join();
  REQUIRE(lines.size() == 4);
  CHECK(lines[0].text == std::string(1000, 'x'));
  CHECK(lines[0].cut);
  CHECK(lines[1].text == "short");
  CHECK_FALSE(lines[1].cut);
  CHECK(lines[2].text.size() == 1000);
  CHECK_FALSE(lines[2].cut);
  CHECK(lines[3].cut);
}

TEST_CASE("an input that is not there is named") {
  CHECK_THROWS_AS(LineReader("/no/such/file"), nv::LoadError);
  LineReader folder("/");
  CHECK_THROWS_AS(folder.next(true), nv::LoadError);
}
