// The inputs of a step: from one declaration to the wire, to the device and into padded arrays.

#include "nanovllm/engine/step/step_batch.hpp"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <tuple>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "nanovllm/cpu/backend.hpp"
#include "nanovllm/engine/step/sample_batch.hpp"
#include "nanovllm/engine/step/step_inputs.hpp"
#include "nanovllm/engine/step/step_memory.hpp"
#include "nanovllm/with/tiers/swap_blocks.hpp"

using namespace nanovllm;

namespace {

/// The fields of a step and three more: each is one line here, one for its padding, and one where a
/// test fills it. Nothing else knows of them.
template <template <class Field> class Stored>
struct WiderBatch {
  StepBatch<Stored> step;
  Stored<PerSequence<std::int32_t>> adapters;
  Stored<PerSample<float>> penalties;
  Stored<PerSampleList<float>> biases;

  template <class Visit, class... Batches>
  static constexpr void for_each_field(Visit&& visit, Batches&... batches) {
    StepBatch<Stored>::for_each_field(visit, batches.step...);
    visit(std::int32_t{-1}, batches.adapters...);
    visit(1.f, batches.penalties...);
    visit(0.f, batches.biases...);
  }
};
static_assert(visits_every_field<WiderBatch>());

struct NoCounts {
  static constexpr const char* kName = "wider inputs";
};
struct WiderInputs : StepArena<WiderBatch, NoCounts> {
  using StepArena::pack;
};

/// What another process gets.
template <class Inputs>
std::vector<std::byte> message_of(const Inputs& inputs) {
  std::vector<std::byte> message;
  for (const auto part : {inputs.counts_as_bytes(), inputs.bytes()})
    std::copy(part.begin(), part.end(), std::back_inserter(message));
  return message;
}

template <template <class Field> class Stored>
struct ForgetfulBatch {
  Stored<PerSample<float>> seen;
  Stored<PerSample<float>> forgotten;

  template <class Visit, class... Batches>
  static constexpr void for_each_field(Visit&& visit, Batches&... batches) {
    visit(0.f, batches.seen...);
  }
};
static_assert(!visits_every_field<ForgetfulBatch>());

template <class T>
std::vector<T> list_of(const VectorView<const T>& view) {
  return {view.data, view.data + view.extent(0)};
}
template <class T>
std::vector<T> list_of(const VectorView<T>& view) {
  return {view.data, view.data + view.extent(0)};
}

constexpr std::int64_t kBlock = 16;

/// Sequences of given lengths with blocks 0, 1, 2, …; all but the last token are computed.
struct Decodes {
  explicit Decodes(const std::vector<std::int32_t>& lengths) : sequences(lengths.size()) {
    BlockId next = 0;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      Sequence& s = sequences[i];
      s.tokens.assign(static_cast<std::size_t>(lengths[i]), static_cast<TokenId>(10 + i));
      for (std::int64_t j = 0; j < ceil_div(lengths[i], kBlock); ++j)
        s.block_table.push_back(next++);
      plan.sequences.push_back({.sequence = &s,
                                .begin = lengths[i] - 1,
                                .end = lengths[i],
                                .rows = {{RowKind::draw, lengths[i] - 1, 1}}});
      append_sample(sampling, {.temperature = 0.f, .position = i});
    }
    plan.num_decodes = plan.num_tokens = static_cast<std::int32_t>(lengths.size());
    num_blocks = next;
  }

  std::vector<Sequence> sequences;
  StepPlan plan;
  HostSamplingBatch sampling;
  std::int64_t num_blocks = 0;
};

}  // namespace

TEST_CASE("one long sequence does not pad every row's block table", "[step_inputs]") {
  std::vector<std::int32_t> lengths(255, 512);
  lengths.push_back(131'072);
  const Decodes decodes(lengths);
  StepInputs inputs;
  inputs.build(decodes.plan, kBlock, decodes.sampling);
  // A table of 256 rows and 8,192 columns had 8.4 MB.
  const std::size_t rows = 256 * (sizeof(SamplingRow) + 64);
  CHECK(inputs.bytes().size() < static_cast<std::size_t>(decodes.num_blocks) * 4 + rows);
  CHECK(inputs.bytes().size() < 100'000);
  CHECK(inputs.counts_as_bytes().size() < 400);

  CpuBackend backend{BackendConfig{.num_threads = 1}};
  StepMemory<CpuBackend::Buffer, false> memory(
      {.limits = {.max_num_batched_tokens = 256, .max_num_seqs = 256}, .max_blocks = 8192});
  UnpackStepArgs unpack;
  const auto views = memory.views(inputs.fields(), inputs.bytes().data(), unpack);
  backend.run(unpack);
  const MatrixView<const BlockId> tables = views.forward.block_tables;
  CHECK(tables.extents == std::array<std::int64_t, 2>{256, 8192});
  BlockId next = 0;
  bool right = true;
  for (std::int64_t s = 0; s < 256; ++s) {
    for (std::int64_t j = 0; j < (s < 255 ? 32 : 8192); ++j) right &= *tables.at(s, j) == next++;
  }
  CHECK(right);
}

TEST_CASE("a new input is one line where it is declared and one where it is filled",
          "[step_batch]") {
  WiderBatch<HostOf> host;
  host.step.forward.tokens = {TokenSource::known(4), TokenSource::sampled(1)};
  host.step.forward.positions = {8, 9};
  host.step.forward.slots = {80, 90};
  host.step.forward.kv_lens = {9, 10};
  const BlockId table[] = {5, 6, 7};
  host.step.forward.block_tables.append(std::span(table, 2));
  host.step.forward.block_tables.append(table);
  const TokenId banned[] = {1, 2};
  append_sample(host.step.sampling, {.top_k = 3}, banned);
  append_sample(host.step.sampling, {.top_k = 4});
  host.adapters = {11, 12};  // one line each
  host.penalties = {1.5f, 2.5f};
  const float bias[] = {0.25f, 0.5f, 0.75f};
  host.biases.append({});
  host.biases.append(bias);

  WiderInputs sent, arena;
  sent.pack(host);
  arena.unpack(message_of(sent));  // another process

  CpuBackend backend{BackendConfig{.num_threads = 1}};
  StepMemory<CpuBackend::Buffer, true, WiderBatch> memory(
      {.limits = {.max_num_batched_tokens = 8, .max_num_seqs = 4},
       .max_blocks = 3,
       .list_room = 2});
  const TokenId drawn[] = {70, 71};
  REQUIRE(memory.has_room(arena.fields()));

  SECTION("as it is") {
    UnpackStepArgs unpack{.previous = {drawn, {2}}};
    const auto views = memory.views(arena.fields(), arena.bytes().data(), unpack);
    backend.run(unpack);
    CHECK(list_of(views.step.forward.tokens) == std::vector<TokenId>{4, 71});
    CHECK(list_of(views.step.forward.slots) == std::vector<Slot>{80, 90});
    CHECK(*views.step.forward.block_tables.at(1, 2) == 7);
    CHECK(list_of(views.step.sampling.banned[0]) == std::vector<TokenId>{1, 2});
    CHECK(list_of(views.adapters) == std::vector<std::int32_t>{11, 12});
    CHECK(list_of(views.penalties) == std::vector<float>{1.5f, 2.5f});
    CHECK(list_of(views.biases[0]).empty());
    CHECK(list_of(views.biases[1]) == std::vector<float>{0.25f, 0.5f, 0.75f});
  }
  SECTION("padded, for a graph") {
    UnpackStepArgs unpack{.previous = {drawn, {2}}};
    memory.unpack_padded(arena.fields(), arena.bytes().data(), 4, unpack);
    backend.run(unpack);
    const auto views = memory.padded_views(4);
    CHECK(list_of(views.step.forward.tokens) == std::vector<TokenId>{4, 71, 0, 0});
    CHECK(list_of(views.step.forward.positions) == std::vector<std::int32_t>{8, 9, 0, 0});
    CHECK(list_of(views.step.forward.slots) == std::vector<Slot>{80, 90, kNoSlot, kNoSlot});
    CHECK(list_of(views.step.forward.kv_lens) == std::vector<std::int32_t>{9, 10, 0, 0});
    CHECK(*views.step.forward.block_tables.at(0, 1) == 6);
    CHECK(views.step.forward.logit_rows.empty());
    CHECK(views.step.block_copies.empty());
    CHECK((views.step.copies_down.empty() && views.step.copies_up.empty()));
    CHECK(views.step.sampling.rows.data[1].top_k == 4);
    CHECK(views.step.sampling.rows.data[3].temperature == 0.f);
    CHECK(list_of(views.step.sampling.banned.starts) == std::vector<std::int32_t>{0, 2, 2, 2, 2});
    CHECK(list_of(views.adapters) == std::vector<std::int32_t>{11, 12, -1, -1});
    CHECK(list_of(views.penalties) == std::vector<float>{1.5f, 2.5f, 1.f, 1.f});
    CHECK(list_of(views.biases.starts) == std::vector<std::int32_t>{0, 0, 3, 3, 3});
    CHECK(list_of(views.biases[1]) == std::vector<float>{0.25f, 0.5f, 0.75f});
  }
  SECTION("where there is no room") {
    host.biases.values.resize(100);
    host.biases.starts.back() = 100;
    arena.pack(host);
    CHECK(!memory.has_room(arena.fields()));
    UnpackStepArgs unpack;
    CHECK_THROWS_AS(memory.unpack_padded(arena.fields(), arena.bytes().data(), 4, unpack),
                    ShapeError);
  }
}

TEST_CASE("a step is plain while all of its samples are", "[step_inputs]") {
  const auto all_plain = [](const SamplingRow& row, const std::vector<TokenId>& banned = {}) {
    Decodes decodes({5, 17});
    decodes.sampling = {};
    append_sample(decodes.sampling, {.temperature = 0.f});
    append_sample(decodes.sampling, row, banned);
    StepInputs inputs;
    inputs.build(decodes.plan, kBlock, decodes.sampling);
    return inputs.all_plain();
  };
  CHECK(all_plain({}));
  CHECK(all_plain({.temperature = 0.6f, .top_k = -1, .top_p = 1.5f, .min_p = -1.f}));
  CHECK(all_plain({.temperature = 0.f, .top_k = 3, .top_p = 0.5f, .min_p = 0.1f}));
  CHECK(!all_plain({.top_k = 3}));
  CHECK(!all_plain({.top_p = 0.99f}));
  CHECK(!all_plain({.min_p = 1e-6f}));
  CHECK(!all_plain({.temperature = 0.f, .num_logprobs = 0}));
  CHECK(!all_plain({.temperature = 0.f}, {7}));
}

TEST_CASE("messages that are no inputs are refused", "[step_inputs]") {
  const Decodes decodes({5, 17});
  StepInputs built;
  built.build(decodes.plan, kBlock, decodes.sampling);
  std::vector<std::byte> message = message_of(built);
  StepInputs inputs;
  message.pop_back();
  CHECK_THROWS_WITH(inputs.unpack(message),
                    Catch::Matchers::Contains("step inputs: the counts are those of"));
  message.resize(8);
  CHECK_THROWS_WITH(inputs.unpack(message),
                    "step inputs: a message of 8 bytes has no room for the counts");
  SampleInputs draws;
  CHECK_THROWS_WITH(draws.unpack(message),
                    "sample inputs: a message of 8 bytes has no room for the counts");
}

TEST_CASE("the inputs of a step say what the plan says", "[step_inputs]") {
  Decodes decodes({5, 17});
  Sequence prompt;
  prompt.tokens = {1, 2, 3, 4};
  prompt.block_table = {9};
  decodes.plan.sequences.push_back({.sequence = &prompt, .begin = 1, .end = 3});
  decodes.plan.num_tokens += 2;
  decodes.plan.block_copies = {{.from = 3, .to = 8}};
  decodes.plan.copies_down = {{.from = 1, .to = 0}, {.from = 2, .to = 1}};
  decodes.plan.copies_up = {{.from = 5, .to = 1}};
  StepInputs built;
  built.build(decodes.plan, kBlock, decodes.sampling);

  std::vector<std::byte> message = message_of(built);
  StepInputs inputs;
  inputs.unpack(message);
  CHECK(inputs.num_tokens() == 4);
  CHECK(inputs.num_sequences() == 3);
  CHECK(inputs.num_decodes() == 2);
  CHECK(inputs.num_samples() == 2);
  CHECK(inputs.has_prefix());
  CHECK(inputs.max_logprobs() == 0);
  CHECK(!inputs.wants_logprobs());
  CHECK(inputs.all_plain());

  CpuBackend backend{BackendConfig{.num_threads = 1}};
  StepMemory<CpuBackend::Buffer, false> memory(
      {.limits = {.max_num_batched_tokens = 4, .max_num_seqs = 3}, .max_blocks = 2});
  UnpackStepArgs unpack;
  const auto views = memory.views(inputs.fields(), inputs.bytes().data(), unpack);
  backend.run(unpack);
  const ForwardFields<ViewOf>& in = views.forward;
  CHECK(list_of(in.tokens) == std::vector<TokenId>{10, 11, 2, 3});
  CHECK(list_of(in.positions) == std::vector<std::int32_t>{4, 16, 1, 2});
  CHECK(list_of(in.slots) == std::vector<Slot>{4, 2 * kBlock, 9 * kBlock + 1, 9 * kBlock + 2});
  CHECK(list_of(in.query_starts) == std::vector<std::int32_t>{0, 2});
  CHECK(list_of(in.kv_lens) == std::vector<std::int32_t>{5, 17, 3});
  CHECK(list_of(in.logit_rows) == std::vector<std::int32_t>{0, 1});
  CHECK(in.block_tables.extent(1) == 2);
  CHECK(*in.block_tables.at(1, 1) == 2);
  CHECK(*in.block_tables.at(2) == 9);
  REQUIRE(views.block_copies.extent(0) == 1);
  CHECK(views.block_copies.data[0].to == 8);
  CHECK(list_of(views.copies_down) == decodes.plan.copies_down);
  CHECK(list_of(views.copies_up) == decodes.plan.copies_up);

  SECTION("a message that is damaged is refused") {
    CHECK_THROWS_AS(inputs.unpack(std::span(message).first(10)), Error);
    CHECK_THROWS_AS(inputs.unpack(std::span(message).first(message.size() - 1)), Error);
    std::fill_n(message.begin(), 64, std::byte{0xee});
    CHECK_THROWS_AS(inputs.unpack(message), Error);
  }
  SECTION("settings of another number of rows are refused") {
    append_sample(decodes.sampling, {});
    CHECK_THROWS_WITH(built.build(decodes.plan, kBlock, decodes.sampling),
                      Catch::Matchers::Contains("samples 2 rows, but 3 have settings"));
    decodes.sampling.rows.pop_back();
    CHECK_THROWS_WITH(built.build(decodes.plan, kBlock, decodes.sampling),
                      Catch::Matchers::Contains("banned"));
  }
  SECTION("more than the memory is made for is refused") {
    StepMemory<CpuBackend::Buffer, false> few(
        {.limits = {.max_num_batched_tokens = 3, .max_num_seqs = 3}, .max_blocks = 2});
    StepMemory<CpuBackend::Buffer, false> narrow(
        {.limits = {.max_num_batched_tokens = 4, .max_num_seqs = 3}, .max_blocks = 1});
    CHECK_THROWS_AS(few.views(inputs.fields(), inputs.bytes().data(), unpack), ShapeError);
    CHECK_THROWS_AS(narrow.views(inputs.fields(), inputs.bytes().data(), unpack), ShapeError);
  }
}

TEST_CASE("the inputs of a step say what decodes have in common, to who wants to know",
          "[step_inputs]") {
  const std::int32_t length = 20 * kBlock + 1;
  Decodes decodes({length, 3, length});
  Sequence& last = *decodes.plan.sequences[2].sequence;
  const Sequence& first = *decodes.plan.sequences[0].sequence;
  std::copy_n(first.block_table.begin(), 19, last.block_table.begin());
  StepInputs silent, telling(true);
  silent.build(decodes.plan, kBlock, decodes.sampling);
  telling.build(decodes.plan, kBlock, decodes.sampling);
  CHECK(silent.fields().forward.shared_prefixes.size == 0);
  CHECK(silent.fields().forward.prefix_members.size == 0);
  const auto fields_of = [](const StepInputs& inputs) {
    const ForwardFields<PackedOf>& packed = inputs.fields().forward;
    return std::pair(list_of(array_at<SharedPrefix>(inputs.bytes().data(), packed.shared_prefixes)),
                     list_of(array_at<PrefixMember>(inputs.bytes().data(), packed.prefix_members)));
  };
  const auto [groups, members] = fields_of(telling);
  REQUIRE(groups.size() == 1);
  CHECK(groups[0].count == 2);
  CHECK(groups[0].begin == 0);
  CHECK(groups[0].end == 19 * kBlock);
  REQUIRE(members.size() == 3);
  CHECK(members[0].group == 0);
  CHECK(members[1].group == -1);
  CHECK(members[2].group == 0);

  SECTION("in graphs, what is not there says that nothing is shared") {
    StepMemory<CpuBackend::Buffer, true> memory(
        {.limits = {.max_num_batched_tokens = 4, .max_num_seqs = 4}, .max_blocks = 21});
    CpuBackend backend{BackendConfig{.num_threads = 1}};
    for (const StepInputs* inputs : {&telling, &silent}) {
      UnpackStepArgs unpack;
      memory.unpack_padded(inputs->fields(), inputs->bytes().data(), 4, unpack);
      backend.run(unpack);
      const auto views = memory.padded_views(4);
      CHECK(views.forward.shared_prefixes.data[0].count == (inputs == &telling ? 2 : 0));
      CHECK(views.forward.shared_prefixes.data[1].count == 0);
      CHECK(views.forward.prefix_members.data[2].group == (inputs == &telling ? 0 : -1));
      CHECK(views.forward.prefix_members.data[3].group == -1);
    }
  }
}

TEST_CASE("a sequence may give several rows of logits, after each other", "[step_inputs]") {
  Decodes decodes({5});
  Sequence guesses;
  guesses.tokens = {1, 2, 3, 4};
  guesses.pending.push(6, 1);
  guesses.block_table = {9};
  decodes.plan.sequences.push_back(
      {.sequence = &guesses, .begin = 1, .end = 5, .rows = {{RowKind::draw, 2, 3}}});
  decodes.plan.num_tokens += 4;
  for (int i = 0; i < 3; ++i) append_sample(decodes.sampling, {});
  StepInputs inputs;
  inputs.build(decodes.plan, kBlock, decodes.sampling);
  CHECK(inputs.num_samples() == 4);
  const std::byte* base = inputs.bytes().data();
  const ForwardFields<PackedOf>& packed = inputs.fields().forward;
  CHECK(list_of(array_at<std::int32_t>(base, packed.logit_rows)) ==
        std::vector<std::int32_t>{0, 2, 3, 4});
  const auto tokens = array_at<TokenSource>(base, packed.tokens);
  CHECK(*tokens.at(3) == TokenSource::known(4));
  CHECK(*tokens.at(4) == TokenSource::sampled(6));
}

TEST_CASE("guesses after a decode are rows where there are rows, else a chunk", "[step_inputs]") {
  Sequence s;
  s.tokens = {1, 2, 3, 4};
  s.guesses = {7, 8};
  s.num_guesses = 2;
  s.pending.push(0, 3);
  s.block_table = {9, 5};
  StepPlan plan;
  plan.sequences.push_back({.sequence = &s, .begin = 3, .end = 6, .rows = {{RowKind::draw, 3, 3}}});
  plan.num_decodes = 1;
  plan.num_tokens = 3;
  HostSamplingBatch sampling;
  for (int i = 0; i < 3; ++i) append_sample(sampling, {});
  for (const std::int32_t max_rows : {3, 2}) {
    StepInputs inputs({}, max_rows);
    inputs.build(plan, kBlock, sampling);
    const std::byte* base = inputs.bytes().data();
    const ForwardFields<PackedOf>& packed = inputs.fields().forward;
    CHECK(list_of(array_at<std::int32_t>(base, packed.kv_lens)) ==
          (max_rows == 3 ? std::vector<std::int32_t>{4, 5, 6} : std::vector<std::int32_t>{6}));
    CHECK(inputs.num_decodes() == (max_rows == 3 ? 3 : 0));
    CHECK(inputs.has_chunk_rows() == (max_rows == 3));
    CHECK(list_of(array_at<std::int32_t>(base, packed.positions)) ==
          std::vector<std::int32_t>{3, 4, 5});
    CHECK(list_of(array_at<std::int32_t>(base, packed.logit_rows)) ==
          std::vector<std::int32_t>{0, 1, 2});
    const auto tokens = array_at<TokenSource>(base, packed.tokens);
    CHECK(*tokens.at(0) == TokenSource::known(4));
    CHECK(*tokens.at(1) == TokenSource::known(7));
    CHECK(*tokens.at(2) == TokenSource::known(8));
  }
}

TEST_CASE("copies of blocks that depend on their order are refused", "[copy_blocks]") {
  const auto error_of = [](std::vector<BlockCopy> copies) -> std::string {
    try {
      check_block_copies(copies, 10);
    } catch (const ShapeError& error) {
      return error.what();
    }
    return "";
  };
  CHECK(error_of({}) == "");
  CHECK(error_of({{0, 1}, {0, 2}, {3, 9}}) == "");
  CHECK(error_of({{0, 1}, {2, 1}}) == "copy_blocks: a block is written twice: 1");
  CHECK(error_of({{0, 1}, {1, 2}}) == "copy_blocks: block 1 is both read and written");
  CHECK(error_of({{4, 4}}) == "copy_blocks: block 4 is both read and written");
  CHECK(error_of({{0, 10}}) == "copy_blocks: blocks must be in [0, 10), got 0 -> 10");
  CHECK(error_of({{-1, 3}}) == "copy_blocks: blocks must be in [0, 10), got -1 -> 3");
}

TEST_CASE("what is best computed as decodes is laid out before the chunks", "[step_inputs]") {
  // A decode, a long chunk, one token of a prompt, a short chunk after a long prefix, one after a
  // short prefix.
  struct Part {
    std::int32_t begin, end, num_draws;
  };
  const std::vector<Part> parts{{40, 41, 1}, {512, 612, 1}, {7, 8, 1}, {600, 603, 1}, {30, 33, 0}};
  std::vector<Sequence> sequences(parts.size());
  StepPlan plan;
  HostSamplingBatch sampling;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    Sequence& s = sequences[i];
    for (std::int32_t t = 0; t < parts[i].end; ++t)
      s.tokens.push_back(static_cast<TokenId>(1000 * i) + t);
    for (std::int64_t j = 0; j < ceil_div(parts[i].end, kBlock); ++j)
      s.block_table.push_back(static_cast<BlockId>(100 * i) + static_cast<BlockId>(j));
    const std::int32_t end = parts[i].end;
    plan.sequences.push_back(
        {.sequence = &s,
         .begin = parts[i].begin,
         .end = end,
         .rows = {{RowKind::draw, end - parts[i].num_draws, parts[i].num_draws}}});
    plan.num_tokens += end - parts[i].begin;
    if (parts[i].num_draws > 0) append_sample(sampling, {.temperature = 0.f});
  }
  plan.num_decodes = 1;
  const auto lay_out = [&](const StepInputs& inputs) {
    const auto list = [&]<class T>(const auto& packed, T) {
      return list_of(array_at<T>(inputs.bytes().data(), packed));
    };
    const auto& fields = inputs.fields().forward;
    return std::tuple(list(fields.positions, std::int32_t{}), list(fields.kv_lens, std::int32_t{}),
                      list(fields.query_starts, std::int32_t{}),
                      list(fields.logit_rows, std::int32_t{}));
  };
  using Ints = std::vector<std::int32_t>;

  StepInputs plain;
  plain.build(plan, kBlock, sampling);
  CHECK(plain.num_decodes() == 2);
  CHECK_FALSE(plain.has_chunk_rows());
  {
    const auto [positions, kv_lens, query_starts, logit_rows] = lay_out(plain);
    CHECK(Ints(positions.begin(), positions.begin() + 3) == Ints{40, 7, 512});
    CHECK(Ints(positions.end() - 4, positions.end()) == Ints{602, 30, 31, 32});
    CHECK(kv_lens == Ints{41, 8, 612, 603, 33});
    CHECK(query_starts == Ints{0, 100, 103, 106});
    CHECK(logit_rows == Ints{0, 101, 1, 104});
  }

  StepInputs sharing(0, 7);  // the fourth sequence's three rows are two more than one
  sharing.build(plan, kBlock, sampling);
  CHECK(sharing.num_decodes() == 5);
  CHECK(sharing.has_chunk_rows());
  {
    const auto [positions, kv_lens, query_starts, logit_rows] = lay_out(sharing);
    CHECK(Ints(positions.begin(), positions.begin() + 6) == Ints{40, 7, 600, 601, 602, 512});
    CHECK(kv_lens == Ints{41, 8, 601, 602, 603, 612, 33});
    CHECK(query_starts == Ints{0, 100, 103});
    CHECK(logit_rows == Ints{0, 104, 1, 4});
  }
  // The rows have all blocks in common that are full before the chunk.
  const auto groups =
      array_at<SharedPrefix>(sharing.bytes().data(), sharing.fields().forward.shared_prefixes);
  REQUIRE(groups.extent(0) == 1);
  CHECK(groups.data[0].count == 3);
  CHECK(groups.data[0].end == 592);
  StepInputs not_worth_it(2 * 592 + 1, 7);
  not_worth_it.build(plan, kBlock, sampling);
  CHECK(not_worth_it.num_decodes() == 5);
  CHECK(not_worth_it.fields().forward.shared_prefixes.size == 0);

  StepInputs no_room(0, 6);
  no_room.build(plan, kBlock, sampling);
  CHECK(no_room.num_decodes() == 2);
  CHECK_FALSE(no_room.has_chunk_rows());
  CHECK(lay_out(no_room) == lay_out(plain));
}

TEST_CASE("copies to host memory and back are checked against both pools", "[swap_blocks]") {
  const auto error_of = [](std::vector<BlockCopy> copies) -> std::string {
    try {
      check_swap_blocks(copies, 10, 3);
    } catch (const ShapeError& error) {
      return error.what();
    }
    return "";
  };
  CHECK(error_of({}) == "");
  CHECK(error_of({{9, 0}, {9, 1}, {1, 2}}) == "");  // the same number in another pool
  CHECK(error_of({{0, 1}, {2, 1}}) == "swap_blocks: a block is written twice: 1");
  CHECK(error_of({{10, 0}}) == "swap_blocks: blocks that are read must be in [0, 10), got 10");
  CHECK(error_of({{-1, 0}}) == "swap_blocks: blocks that are read must be in [0, 10), got -1");
  CHECK(error_of({{0, 3}}) == "swap_blocks: blocks that are written must be in [0, 3), got 3");
}
