#include "nanovllm/model/weights.hpp"

#include <chrono>
#include <cstdio>
#include <numeric>
#include <thread>

#include "catch.hpp"
#include "core/refused_threads.hpp"
#include "safetensors_writer.hpp"

namespace nv = nanovllm;
using nanovllm_test::safetensors_bytes;
using nanovllm_test::SafetensorsWriter;
using nanovllm_test::TempDirectory;

namespace {

/// `count` numbers that are exact in every element type: integers below 256, not periodic in a row.
template <class T>
std::vector<T> numbers(std::int64_t count, std::int64_t seed = 0) {
  std::vector<T> out(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    out[static_cast<std::size_t>(i)] =
        T(static_cast<float>((i * 37 + i / 251 + seed) % 256) - 128.f);
  }
  return out;
}

/// A tensor as a sink received it.
template <class T>
struct Received {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t panels = 0;
  std::vector<T> elements;

  /// A sink that demands consecutive dense panels and appends them.
  auto sink() {
    return [this](std::int64_t first_row, nv::MatrixView<const T> panel) {
      REQUIRE(first_row == rows);
      REQUIRE(panel.strides[0] == panel.extent(1));
      REQUIRE(panel.strides[1] == 1);
      REQUIRE(!panel.empty());
      if (panels++ > 0) REQUIRE(panel.extent(1) == columns);
      columns = panel.extent(1);
      rows += panel.extent(0);
      elements.insert(elements.end(), panel.data, panel.data + panel.size());
    };
  }
};

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

nv::Checkpoint write_checkpoint(const TempDirectory& directory, const SafetensorsWriter& writer,
                                std::size_t padding = 0) {
  directory.write("model.safetensors", writer.bytes(padding));
  return nv::Checkpoint(directory.path());
}

template <class T>
void load(const nv::Checkpoint& checkpoint, const std::vector<nv::Parameter<T>>& parameters,
          const nv::LoadOptions& options = {}) {
  nv::load_parameters<T>(checkpoint, parameters, options);
}

/// Bytes of a "Name:   123 kB" line of /proc/self/status.
[[maybe_unused]] std::int64_t status_bytes(const std::string& field) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(field + ":")) return std::stoll(line.substr(field.size() + 1)) * 1024;
  }
  return 0;
}

template <class T>
const char* file_dtype() {
  return std::same_as<T, float> ? "F32" : std::same_as<T, nv::half> ? "F16" : "BF16";
}

}  // namespace

TEMPLATE_TEST_CASE("Every float type of a file becomes every element type", "[weights]",
                   (std::pair<float, float>), (std::pair<float, nv::half>),
                   (std::pair<float, nv::bf16>), (std::pair<nv::half, float>),
                   (std::pair<nv::half, nv::half>), (std::pair<nv::half, nv::bf16>),
                   (std::pair<nv::bf16, float>), (std::pair<nv::bf16, nv::half>),
                   (std::pair<nv::bf16, nv::bf16>)) {
  using S = typename TestType::first_type;
  using T = typename TestType::second_type;
  // Values that need rounding, and every length around the conversion's block of 256.
  for (const std::int64_t n : {1, 255, 256, 257, 1000}) {
    std::vector<S> source(static_cast<std::size_t>(n));
    std::vector<T> expected(source.size());
    for (std::size_t i = 0; i < source.size(); ++i) {
      source[i] = S(static_cast<float>(i + 1) * (i % 2 ? 0.3333333f : -7.77e-5f));
      expected[i] = T(static_cast<float>(source[i]));
    }
    for (const std::size_t padding : {0, 1, 2, 3}) {  // some of them unaligned
      TempDirectory directory;
      const auto checkpoint = write_checkpoint(
          directory, SafetensorsWriter().add("w", file_dtype<S>(), {1, n}, source), padding);
      Received<T> got;
      load<T>(checkpoint, {{.name = "w", .shape = {1, n}, .sink = got.sink()}});
      CHECK(same_bits(got.elements, expected));
    }
  }
}

TEST_CASE("A tensor arrives in consecutive panels of a few MiB", "[weights]") {
  constexpr std::int64_t kRows = 3001, kColumns = 1023;
  TempDirectory directory;
  const auto whole = numbers<float>(kRows * kColumns);
  const auto checkpoint = write_checkpoint(directory, SafetensorsWriter()
                                                          .add("m", "F32", {kRows, kColumns}, whole)
                                                          .add("v", "F32", {5}, numbers<float>(5))
                                                          .add("none", "F32", {0, 7}, ""));
  Received<float> matrix, vector, none;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> steps;
  nv::LoadOptions options;
  options.progress = [&](std::uint64_t done, std::uint64_t total) {
    steps.push_back({done, total});
  };
  load<float>(checkpoint,
              {{.name = "v", .shape = {5}, .sink = vector.sink()},
               {.name = "none", .shape = {0, 7}, .sink = none.sink()},
               {.name = "m", .shape = {kRows, kColumns}, .sink = matrix.sink()}},
              options);
  CHECK(matrix.rows == kRows);
  CHECK(matrix.columns == kColumns);
  CHECK(matrix.panels == 3);  // 12.3 MB in panels of at most 4 MiB
  CHECK(same_bits(matrix.elements, whole));
  CHECK((vector.rows == 1 && vector.columns == 5));
  CHECK(none.panels == 0);

  REQUIRE(steps.size() == 4);
  for (std::size_t i = 1; i < steps.size(); ++i) CHECK(steps[i].first > steps[i - 1].first);
  CHECK(steps.back().first == checkpoint.total_bytes());
  CHECK(steps.back().second == checkpoint.total_bytes());
}

TEST_CASE("Panels are whole groups of rows, but for a tensor's last ones", "[weights]") {
  constexpr std::int64_t kRows = 3001, kColumns = 1023;
  TempDirectory directory;
  const auto whole = numbers<float>(kRows * kColumns);
  const auto checkpoint =
      write_checkpoint(directory, SafetensorsWriter().add("m", "F32", {kRows, kColumns}, whole));
  const std::int64_t group = GENERATE(128, 5000);
  std::int64_t end = 0;
  const auto sink = [&](std::int64_t first_row, nv::MatrixView<const float> rows) {
    CHECK(first_row == end);
    CHECK(first_row % group == 0);
    end += rows.extent(0);
    CHECK((end == kRows || rows.extent(0) % group == 0));
  };
  load<float>(checkpoint,
              {{.name = "m", .shape = {kRows, kColumns}, .sink = sink, .row_group = group}});
  CHECK(end == kRows);
}

TEST_CASE("Ranks keep disjoint slices that make up the whole", "[weights]") {
  constexpr std::int64_t kRows = 700, kColumns = 3000;  // more than one panel
  TempDirectory directory;
  const auto whole = numbers<float>(kRows * kColumns);
  const auto bias = numbers<float>(kColumns, 9);
  const auto checkpoint = write_checkpoint(directory, SafetensorsWriter()
                                                          .add("m", "F32", {kRows, kColumns}, whole)
                                                          .add("v", "F32", {kColumns}, bias));
  const std::int64_t row_cuts[] = {0, 1, 399, 399, 700};
  const std::int64_t column_cuts[] = {0, 1, 1500, 1500, 3000};
  for (int rank = 0; rank < 4; ++rank) {
    const std::int64_t r0 = row_cuts[rank], r1 = row_cuts[rank + 1];
    const std::int64_t c0 = column_cuts[rank], c1 = column_cuts[rank + 1];
    Received<float> rows, columns, vector;
    nv::LoadOptions options;
    std::uint64_t done = 0;
    options.progress = [&](std::uint64_t bytes, std::uint64_t) { done = bytes; };
    load<float>(checkpoint,
                {{"m", {kRows, kColumns}, rows.sink(), nv::Shard{0, r0, r1}},
                 {"m", {kRows, kColumns}, columns.sink(), nv::Shard{1, c0, c1}},
                 {"v", {kColumns}, vector.sink(), nv::Shard{0, c0, c1}}},
                options);
    CHECK(done == 4u * static_cast<std::uint64_t>((r1 - r0) * kColumns + (c1 - c0) * (kRows + 1)));
    CHECK(same_bits(rows.elements, {whole.begin() + r0 * kColumns, whole.begin() + r1 * kColumns}));
    CHECK(same_bits(vector.elements, {bias.begin() + c0, bias.begin() + c1}));
    std::vector<float> expected;
    for (std::int64_t r = 0; r < kRows; ++r) {
      const auto row = whole.begin() + r * kColumns;
      expected.insert(expected.end(), row + c0, row + c1);
    }
    CHECK(columns.rows == (c0 == c1 ? 0 : kRows));
    CHECK(same_bits(columns.elements, expected));
  }
}

TEST_CASE("One error lists everything that is wrong, before any sink is called", "[weights]") {
  TempDirectory directory;
  const auto checkpoint =
      write_checkpoint(directory, SafetensorsWriter()
                                      .add("good", "F32", {2}, std::string(8, 'x'))
                                      .add("flat", "F32", {6}, std::string(24, 'x'))
                                      .add("turned", "F32", {3, 2}, std::string(24, 'x'))
                                      .add("ids", "I64", {1}, std::string(8, 'x'))
                                      .add("double", "F64", {1}, std::string(8, 'x'))
                                      .add("surplus", "F32", {1}, std::string(4, 'x'))
                                      .add("ignored", "F32", {1}, std::string(4, 'x')));
  int calls = 0;
  const auto sink = [&](std::int64_t, nv::MatrixView<const float>) { ++calls; };
  std::vector<nv::Parameter<float>> parameters = {
      {"good", {2}, sink},         {"flat", {2, 3}, sink},
      {"turned", {2, 3}, sink},    {"ids", {1}, sink},
      {"double", {1}, sink},       {"missing", {1}, sink},
      {"also.missing", {1}, sink}, {"optional", {1}, sink, {}, true}};
  const std::vector<std::string> ignored = {"ignored", "ignored.and.absent"};
  std::string message;
  try {
    load<float>(checkpoint, parameters, {.ignored = ignored});
  } catch (const nv::LoadError& error) {
    message = error.what();
  }
  CAPTURE(message);
  const auto mentions = [&](const char* part) { return message.find(part) != message.npos; };
  CHECK(mentions("'flat' must have shape [2, 3], got [6]"));
  CHECK(mentions("'turned' must have shape [2, 3], got [3, 2]"));
  CHECK(mentions("'ids' must be F32, F16, BF16 or F8_E4M3, got I64"));
  CHECK(mentions("'double' must be F32, F16, BF16 or F8_E4M3, got F64"));
  CHECK(mentions("'missing' is missing"));
  CHECK(mentions("'also.missing' is missing"));
  CHECK(mentions("'surplus' [1] is in the checkpoint, but not in the model"));
  CHECK_FALSE(mentions("good"));
  CHECK_FALSE(mentions("optional"));
  CHECK_FALSE(mentions("ignored"));
  CHECK(mentions(directory.path().string().c_str()));
  CHECK(calls == 0);

  const std::vector<std::string> all = {"ignored", "surplus", "flat", "turned", "ids", "double"};
  load<float>(checkpoint, {parameters[0], parameters[7]}, {.ignored = all});
  CHECK(calls == 1);
}

TEST_CASE("Of many tensors that are wrong the first are listed, and the others counted",
          "[weights]") {
  const auto message_of = [](int num_missing, int num_surplus) -> std::string {
    TempDirectory directory;
    SafetensorsWriter file;
    file.add("good", "F32", {1}, std::string(4, 'x'));
    for (int i = 0; i < num_surplus; ++i)
      file.add(nv::concat("surplus.", i), "F32", {1}, std::string(4, 'x'));
    const auto checkpoint = write_checkpoint(directory, file);
    const auto sink = [](std::int64_t, nv::MatrixView<const float>) {};
    std::vector<nv::Parameter<float>> parameters = {{"good", {1}, sink}};
    for (int i = 0; i < num_missing; ++i) parameters.push_back({nv::concat("m.", i), {1}, sink});
    try {
      load<float>(checkpoint, parameters);
    } catch (const nv::LoadError& error) {
      return error.what();
    }
    return "";
  };
  const auto num_lines = [](const std::string& text) {
    return std::count(text.begin(), text.end(), '\n');
  };
  const std::string exactly = message_of(16, 0);
  CHECK(num_lines(exactly) == 16);
  CHECK(exactly.ends_with("'m.15' is missing"));
  const std::string many = message_of(18432, 17);
  CHECK(num_lines(many) == 2 * 17);
  CHECK(many.find("\n  - 'm.15' is missing\n  - and 18416 more that are missing or wrong\n") !=
        many.npos);
  CHECK(many.find("'m.16'") == many.npos);
  CHECK(many.find("'surplus.0' [1] is in") != many.npos);
  CHECK(many.ends_with("\n  - and 1 more that are not in the model"));
}

TEST_CASE("A split that does not fit its tensor is refused", "[weights]") {
  TempDirectory directory;
  const auto checkpoint = write_checkpoint(
      directory, SafetensorsWriter().add("m", "F32", {2, 3}, std::string(24, 'x')));
  const auto loads = [&](std::vector<std::int64_t> shape, nv::Shard shard) {
    try {
      load<float>(checkpoint, {{"m", std::move(shape),
                                [](std::int64_t, nv::MatrixView<const float>) {}, shard}});
      return true;
    } catch (const nv::LoadError&) {
      return false;
    }
  };
  CHECK(loads({2, 3}, {1, 0, 3}));
  CHECK(loads({2, 3}, {0, 2, 2}));
  CHECK_FALSE(loads({2, 3}, {0, 0, 3}));
  CHECK_FALSE(loads({2, 3}, {1, -1, 2}));
  CHECK_FALSE(loads({2, 3}, {1, 2, 1}));
  CHECK_FALSE(loads({2, 3}, {2, 0, 1}));
  CHECK_FALSE(loads({2, 3, 1}, {}));
  CHECK_FALSE(loads({}, {}));
  CHECK_FALSE(loads({2, -3}, {}));
}

TEST_CASE("Shards are read in the order of their bytes, and may be read by several threads",
          "[weights]") {
  TempDirectory directory;
  const auto bytes = [](int i) {
    return SafetensorsWriter()
        .add(nv::concat("p", i, ".b"), "BF16", {1000, 1000}, numbers<nv::bf16>(1000000, i))
        .add(nv::concat("p", i, ".a"), "BF16", {1000, 1000}, numbers<nv::bf16>(1000000, i + 50))
        .bytes();
  };
  nlohmann::json index;
  for (int i = 0; i < 3; ++i) {
    directory.write(nv::concat("shard-", i), bytes(i));
    for (const char* name : {".a", ".b"}) {
      index["weight_map"][nv::concat("p", i, name)] = nv::concat("shard-", i);
    }
  }
  directory.write("model.safetensors.index.json", index.dump());
  const nv::Checkpoint checkpoint(directory.path());

  const auto load_all = [&] {
    std::vector<std::string> order;
    bool equal = true;
    std::vector<nv::Parameter<nv::bf16>> parameters;
    for (const char* name : {"p2.a", "p0.a", "p1.b", "p2.b", "p0.b", "p1.a"}) {
      const auto expected = numbers<nv::bf16>(1000000, (name[1] - '0') + (name[3] == 'a' ? 50 : 0));
      parameters.push_back(
          {name,
           {1000, 1000},
           [&order, &equal, name, expected](std::int64_t row, nv::MatrixView<const nv::bf16> rows) {
             if (row == 0) order.push_back(name);
             equal = equal && std::memcmp(&expected[static_cast<std::size_t>(row * 1000)],
                                          rows.data, rows.size() * 2) == 0;
           }});
    }
    load<nv::bf16>(checkpoint, parameters);
    return equal &&
           order == std::vector<std::string>{"p0.b", "p0.a", "p1.b", "p1.a", "p2.b", "p2.a"};
  };
  std::array<bool, 3> results{};
  std::vector<std::jthread> threads;
  for (bool& result : results) threads.emplace_back([&] { result = load_all(); });
  threads.clear();
  for (const bool result : results) CHECK(result);
}

TEST_CASE("What a sink throws ends the load", "[weights]") {
  TempDirectory directory;
  const auto checkpoint =
      write_checkpoint(directory, SafetensorsWriter().add("m", "F32", {1}, std::string(4, 'x')));
  const auto sink = [](std::int64_t, nv::MatrixView<const float>) { throw nv::ShapeError("no"); };
  CHECK_THROWS_AS(load<float>(checkpoint, {{"m", {1}, sink}}), nv::ShapeError);
}

TEMPLATE_TEST_CASE("Loading 192 MB keeps peak resident memory under 1.3 times the weights",
                   "[weights]", float, nv::bf16) {
#if defined(__SANITIZE_THREAD__)
  std::puts("skipped: a sanitiser's shadow memory counts as resident");
#else
  constexpr std::int64_t kTensors = 6, kColumns = 4096;
  constexpr std::int64_t kRows =
      (32 << 20) / kColumns / static_cast<std::int64_t>(sizeof(TestType));
  TempDirectory directory;
  {
    // Written tensor by tensor, so that the test itself never holds the file.
    nlohmann::json header;
    constexpr std::int64_t kBytes = kRows * kColumns * static_cast<std::int64_t>(sizeof(TestType));
    for (std::int64_t i = 0; i < kTensors; ++i) {
      header[nv::concat("w", i)] = {{"dtype", file_dtype<TestType>()},
                                    {"shape", {kRows, kColumns}},
                                    {"data_offsets", {i * kBytes, (i + 1) * kBytes}}};
    }
    directory.write("model.safetensors", safetensors_bytes(header.dump()));
    std::ofstream file(directory.path() / "model.safetensors", std::ios::binary | std::ios::app);
    for (std::int64_t i = 0; i < kTensors; ++i) {
      const auto elements = numbers<TestType>(kRows * kColumns, i);
      file.write(reinterpret_cast<const char*>(elements.data()), kBytes);
    }
  }
  const nv::Checkpoint checkpoint(directory.path());
  std::vector<std::vector<nv::bf16>> weights(kTensors);
  std::vector<nv::Parameter<nv::bf16>> parameters;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    weights[i].resize(kRows * kColumns);  // writes zeros, so these pages are resident already
    parameters.push_back(
        {nv::concat("w", i),
         {kRows, kColumns},
         [&to = weights[i]](std::int64_t row, nv::MatrixView<const nv::bf16> rows) {
           std::memcpy(&to[static_cast<std::size_t>(row * kColumns)], rows.data,
                       static_cast<std::size_t>(rows.size()) * sizeof(nv::bf16));
         }});
  }
  std::ofstream("/proc/self/clear_refs")
      << "5";  // the peak starts afresh, where the kernel lets us
  const std::int64_t before = status_bytes("VmRSS");
  if (before == 0 || status_bytes("VmHWM") > before + (8 << 20)) {
    std::puts("skipped: the peak of resident memory cannot be reset");
    return;
  }
  const auto start = std::chrono::steady_clock::now();
  load<nv::bf16>(checkpoint, parameters);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  const std::int64_t growth = status_bytes("VmHWM") - before;
  const std::int64_t weight_bytes = kTensors * kRows * kColumns * 2;
  std::printf("%s to BF16: %.2f GB/s of file, peak %.3f x weights\n", file_dtype<TestType>(),
              static_cast<double>(checkpoint.total_bytes()) / seconds.count() * 1e-9,
              1 + static_cast<double>(growth) / static_cast<double>(weight_bytes));
  CHECK(growth <= weight_bytes * 3 / 10);
  for (std::int64_t i = 0; i < kTensors; ++i) {
    CHECK(same_bits(weights[static_cast<std::size_t>(i)], numbers<nv::bf16>(kRows * kColumns, i)));
  }
#endif
}

TEST_CASE("defect 8: a loader that gets too few threads is an Error", "[weights]") {
  const nanovllm::test::RefusedThreads refused(1);
  std::atomic<bool> stopped = false;
  const auto work = [&] {
    while (!stopped) std::this_thread::yield();
  };
  CHECK_THROWS_WITH(nanovllm::detail::on_threads(4, work, [&] { stopped = true; }),
                    Catch::Matchers::Contains("3 threads were wanted, 1 could be started"));
}
