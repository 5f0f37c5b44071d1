#pragma once
/// Cases of the ops around a step: `unpack_step`, `copy_blocks` and `swap_blocks`. All move bytes,
/// so everything is compared as memory, what must not be written included.

#include <algorithm>

#include "ops/rig.hpp"

namespace nanovllm::test::ops {

/// Something of the size of a sampler's settings.
struct WideElement {
  std::array<std::uint32_t, 10> words{};
};

/// A graph that begins with `unpack_step` of nothing, where the backend replays such with inputs.
template <class B>
auto capture_unpack(B& backend) {
  if constexpr (ReplaysWithInputs<B>) {
    backend.run(UnpackStepArgs{});
    return backend.capture([&] { backend.run(UnpackStepArgs{}); });
  } else {
    return 0;
  }
}

template <class B>
void unpack_step_cases(B& backend) {
  [[maybe_unused]] const auto graph = capture_unpack(backend);
  for (const std::int64_t n : {0, 1, 3, 300}) {
    for (const std::int64_t size : {n, n + 1, n + 200}) {
      INFO(n << " rows unpacked to " << size);
      const auto count = static_cast<std::size_t>(n);
      std::vector<std::int64_t> slots;
      std::vector<WideElement> wide;
      std::vector<TokenSource> sources;
      std::vector<std::int32_t> starts{0};
      std::vector<BlockId> values;
      const std::vector<TokenId> drawn{100, 101, 102, 103};
      for (std::size_t i = 0; i < count; ++i) {
        slots.push_back(-5 + static_cast<std::int64_t>(i) * 0x1'0000'0001);
        for (std::uint32_t& word : wide.emplace_back().words)
          word = static_cast<std::uint32_t>(&word - wide.back().words.data() + 11 * i);
        const auto id = static_cast<std::int32_t>(i);
        sources.push_back(i % 3 == 1 ? TokenSource::sampled(id % 4) : TokenSource::known(7 * id));
        for (std::size_t j = 0; j < i * 37 % 150; ++j) values.push_back(id + 1000);
        starts.push_back(static_cast<std::int32_t>(values.size()));
      }
      constexpr std::int64_t kColumns = 150, kStride = 160;
      Array<B, std::int64_t> from_slots(backend, slots), to_slots(backend, size);
      Array<B, WideElement> from_wide(backend, wide), to_wide(backend, size);
      Array<B, TokenSource> from_sources(backend, sources);
      Array<B, TokenId> to_tokens(backend, size), previous(backend, drawn);
      Array<B, std::int32_t> from_starts(backend, starts), to_starts(backend, size + 1);
      Array<B, BlockId> from_values(backend, values), table(backend, size * kStride);

      const WideElement padding{{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}};
      UnpackStepArgs args{.previous = previous.vector()};
      args.add_column<std::int64_t>(from_slots.vector(), to_slots.vector(), -1);
      args.add_column<WideElement>(from_wide.vector(), to_wide.vector(), padding);
      args.add_tokens(from_sources.vector(), to_tokens.vector(), 42);
      args.add_column<std::int32_t>(from_starts.vector(), to_starts.vector(), starts.back());
      const ListsView<const BlockId> lists{from_starts.vector(), from_values.vector()};
      args.add_table(lists, 149, MatrixView<BlockId>(table.data(), {size, kColumns}, {kStride, 1}));
      std::vector<BlockId> expected_table = Array<B, BlockId>(backend, size * kStride).host;
      std::vector<TokenId> tokens;
      for (std::size_t i = 0; i < count; ++i) {
        std::copy(values.begin() + starts[i], values.begin() + starts[i + 1],
                  expected_table.begin() + static_cast<std::ptrdiff_t>(i) * kStride);
        const TokenSource source = sources[i];
        tokens.push_back(source.is_known() ? source.token()
                                           : drawn[static_cast<std::size_t>(source.sample())]);
      }
      const auto rows = static_cast<std::size_t>(size);
      tokens.resize(rows, 42);
      slots.resize(rows, -1);
      wide.resize(rows, padding);
      starts.resize(rows + 1, starts.back());
      const auto check_outputs = [&] {
        to_slots.download(), to_wide.download(), to_tokens.download(), to_starts.download();
        table.download();
        CHECK(same_bits(to_tokens.host, tokens));
        CHECK(same_bits(to_slots.host, slots));
        CHECK(same_bits(to_wide.host, wide));
        CHECK(same_bits(to_starts.host, starts));
        CHECK(same_bits(table.host, expected_table));
      };
      backend.run(args);
      check_outputs();
      if constexpr (ReplaysWithInputs<B>) {
        const auto clear = [&](auto& array) {
          array.host =
              std::remove_reference_t<decltype(array)>(backend, std::ssize(array.host)).host;
          array.upload();
        };
        clear(to_slots), clear(to_wide), clear(to_tokens), clear(to_starts), clear(table);
        backend.replay(graph, args);
        check_outputs();
      }
    }
  }
}

/// Replays that are enqueued keep the inputs that they were given.
template <class B>
void unpack_replays_case(B& backend) {
  if constexpr (ReplaysWithInputs<B>) {
    constexpr std::int64_t kReplays = 50, kRows = 2000;
    const auto graph = capture_unpack(backend);
    std::vector<Array<B, std::int32_t>> from, to;
    for (std::int32_t i = 0; i < kReplays; ++i) {
      from.emplace_back(backend, std::vector<std::int32_t>(kRows, i));
      to.emplace_back(backend, kRows);
    }
    for (std::size_t i = 0; i < kReplays; ++i) {
      UnpackStepArgs args;
      args.add_column<std::int32_t>(from[i].vector(), to[i].vector(), -1);
      backend.replay(graph, args);
    }
    for (std::size_t i = 0; i < kReplays; ++i) {
      INFO("replay " << i);
      to[i].download();
      CHECK(to[i].host == from[i].host);
    }
  }
}

/// Tokens may be made in place.
template <class B>
void unpack_tokens_in_place_case(B& backend) {
  Array<B, TokenSource> sources(
      backend, {TokenSource::known(3), TokenSource::sampled(1), TokenSource::known(0)});
  Array<B, TokenId> previous(backend, {50, 60});
  UnpackStepArgs args{.previous = previous.vector()};
  args.add_tokens(sources.vector(), {reinterpret_cast<TokenId*>(sources.data()), {3}});
  backend.run(args);
  sources.download();
  CHECK(sources.host[0] == TokenSource::known(3));
  CHECK(sources.host[1] == TokenSource::known(60));
  CHECK(sources.host[2] == TokenSource::known(0));
}

template <class T, class B>
void copy_blocks_cases(B& backend) {
  struct Case {
    std::int64_t layers, blocks, block_size, kv_heads, head_dim;
    std::vector<BlockCopy> copies;
  };
  const Case cases[] = {
      {3, 6, 16, 2, 64, {{0, 1}, {0, 5}, {4, 2}}},  // one block read twice
      {1, 4, 1, 1, 8, {{3, 0}}},
      {2, 5, 3, 1, 5, {{4, 0}, {2, 3}}},  // elements that no wider unit fits
      {2, 5, 3, 1, 5, {}},
      {28, 9, 64, 8, 128, {{8, 0}, {7, 1}, {6, 2}, {5, 3}}},
  };
  for (const Case& c : cases) {
    INFO(c.layers << " layers of " << c.blocks << " blocks, " << c.copies.size() << " copies");
    const std::int64_t block = 2 * c.kv_heads * c.block_size * c.head_dim;
    auto pool = Array<B, T>::random(backend, c.layers * c.blocks * block, 9);
    std::vector<T> expected = pool.host;
    for (std::int64_t layer = 0; layer < c.layers; ++layer) {
      for (const BlockCopy& copy : c.copies) {
        const auto at = [&](BlockId id) {
          return expected.begin() + (layer * c.blocks + id) * block;
        };
        std::copy_n(at(copy.from), block, at(copy.to));
      }
    }
    Array<B, BlockCopy> copies(backend, c.copies);
    const KvView<T> first{pool.data(), c.blocks, c.block_size, c.kv_heads, c.head_dim};
    backend.run(CopyBlocksArgs<T>{.first_layer = first,
                                  .layer_stride = c.blocks * block,
                                  .num_layers = c.layers,
                                  .copies = copies.vector()});
    pool.download();
    CHECK(same_bits(pool.host, expected));
    CHECK_THROWS_AS(backend.run(CopyBlocksArgs<T>{.first_layer = first,
                                                  .layer_stride = c.blocks * block - 1,
                                                  .num_layers = 2,
                                                  .copies = copies.vector()}),
                    ShapeError);
  }
}

/// Host memory that a backend's ops can reach: its own kind where it has one.
template <class B, class T>
struct ReachableBuffer {
  using type = typename B::template Buffer<T>;
};
template <class B, class T>
requires requires { typename B::template HostBuffer<T>; }
struct ReachableBuffer<B, T> {
  using type = typename B::template HostBuffer<T>;
};

/// A layer may be read as soon as it was awaited, however many come after it: several groups of
/// them where the backend copies layers in groups.
template <class T, class B>
void await_swap_cases(B& backend) {
  constexpr std::int64_t kLayers = 16, kBlocks = 12, kBlock = 2 * 8 * 64 * 128;
  constexpr std::int64_t kLayer = kBlocks * kBlock;
  Array<B, T> device(backend, kLayers * kLayer);  // NaN
  typename ReachableBuffer<B, T>::type host(static_cast<std::size_t>(kLayers * kLayer));
  for (std::int64_t i = 0; i < kLayers * kBlocks; ++i)
    std::fill_n(host.data() + i * kBlock, kBlock, T(static_cast<float>(i)));
  std::vector<BlockCopy> up;
  for (BlockId i = 0; i < kBlocks; ++i) up.push_back({i, (i + 5) % BlockId{kBlocks}});
  backend.run(SwapBlocksArgs<T>{.device = {device.data(), kBlocks, 64, 8, 128},
                                .device_stride = kLayer,
                                .host = {host.data(), kBlocks, 64, 8, 128},
                                .host_stride = kLayer,
                                .num_layers = kLayers,
                                .down = {},
                                .up = {up.data(), {kBlocks}}});
  // The last block to arrive, layer after layer, as the forward pass comes by.
  Array<B, std::int32_t> last(backend, std::vector{std::int32_t{up.back().to}});
  Array<B, T> out(backend, kLayers * kBlock);
  for (std::int64_t layer = 0; layer < kLayers; ++layer) {
    if constexpr (RunsOp<B, AwaitSwapArgs>) backend.run(AwaitSwapArgs{layer});
    backend.run(GatherRowsArgs<T>{{device.data() + layer * kLayer, {kBlocks, kBlock}},
                                  {last.data(), {1}},
                                  {out.data() + layer * kBlock, {1, kBlock}}});
  }
  out.download();
  for (std::int64_t layer = 0; layer < kLayers; ++layer) {
    INFO("layer " << layer);
    const auto value = static_cast<float>(layer * kBlocks + up.back().from);
    const auto begin = out.host.begin() + layer * kBlock;
    CHECK(std::count_if(begin, begin + kBlock,
                        [&](T x) { return static_cast<float>(x) != value; }) == 0);
  }
}

template <class T, class B>
void swap_blocks_cases(B& backend) {
  struct Case {
    std::int64_t layers, blocks, host_blocks, block_size, kv_heads, head_dim;
    std::vector<BlockCopy> down, up;
  };
  const Case cases[] = {
      {3, 6, 4, 16, 2, 64, {{0, 1}, {0, 3}, {3, 2}}, {}},  // one block read twice
      {3, 6, 4, 16, 2, 64, {}, {{1, 0}, {1, 3}, {2, 4}}},
      {1, 2, 2, 1, 1, 8, {{1, 0}}, {{1, 0}}},
      {2, 5, 5, 3, 1, 5, {{4, 0}, {2, 3}, {3, 2}}, {{1, 0}}},  // elements that no wider unit fits
      {2, 5, 3, 3, 1, 5, {}, {}},
      {4, 6, 6, 16, 2, 64, {{0, 1}, {2, 3}}, {{1, 4}, {3, 5}}},  // saved, and back elsewhere
      {4, 6, 6, 16, 2, 64, {{0, 1}, {2, 3}}, {{4, 0}, {5, 2}}},  // to where others were saved from
      {28, 9, 9, 64, 8, 128, {{8, 0}, {0, 8}, {7, 1}}, {{2, 8}, {3, 7}, {4, 1}}},
  };
  for (const Case& c : cases) {
    INFO(c.layers << " layers of " << c.blocks << " blocks, " << c.down.size() << " copies down, "
                  << c.up.size() << " up");
    const std::int64_t block = 2 * c.kv_heads * c.block_size * c.head_dim;
    auto device = Array<B, T>::random(backend, c.layers * c.blocks * block, 9);
    std::vector<T> seen = Array<B, T>::random(backend, c.layers * c.host_blocks * block, 10).host;
    typename ReachableBuffer<B, T>::type host(seen.size());
    std::copy(seen.begin(), seen.end(), host.data());

    std::vector<T> on_device = device.host, on_host = seen;
    for (std::int64_t layer = 0; layer < c.layers; ++layer) {
      const auto device_at = [&](BlockId i) {
        return on_device.begin() + (layer * c.blocks + i) * block;
      };
      const auto host_at = [&](BlockId i) {
        return on_host.begin() + (layer * c.host_blocks + i) * block;
      };
      for (const BlockCopy& copy : c.down)
        std::copy_n(device_at(copy.from), block, host_at(copy.to));
      for (const BlockCopy& copy : c.up) std::copy_n(host_at(copy.from), block, device_at(copy.to));
    }
    std::vector<BlockCopy> down = c.down, up = c.up;
    SwapBlocksArgs<T> args{
        .device = {device.data(), c.blocks, c.block_size, c.kv_heads, c.head_dim},
        .device_stride = c.blocks * block,
        .host = {host.data(), c.host_blocks, c.block_size, c.kv_heads, c.head_dim},
        .host_stride = c.host_blocks * block,
        .num_layers = c.layers,
        .down = {down.data(), {std::ssize(down)}},
        .up = {up.data(), {std::ssize(up)}}};
    backend.run(args);
    for (BlockCopy& copy : down) copy = {-1, -1};  // the lists may go
    for (BlockCopy& copy : up) copy = {-1, -1};
    if constexpr (RunsOp<B, AwaitSwapArgs>) {
      for (std::int64_t layer = 0; layer < c.layers; ++layer) backend.run(AwaitSwapArgs{layer});
    }
    device.download();  // waits, for what the host has, too
    CHECK(same_bits(device.host, on_device));
    CHECK(same_bits(std::vector<T>(host.data(), host.data() + seen.size()), on_host));

    std::copy(c.down.begin(), c.down.end(), down.begin());
    std::copy(c.up.begin(), c.up.end(), up.begin());
    args.num_layers = 2;
    --args.host_stride;
    CHECK_THROWS_AS(backend.run(args), ShapeError);
    ++args.host_stride, --args.device_stride;
    CHECK_THROWS_AS(backend.run(args), ShapeError);
    ++args.device_stride, ++args.host.head_dim;
    CHECK_THROWS_AS(backend.run(args), ShapeError);
    --args.host.head_dim;
    for (std::vector<BlockCopy>* list : {&down, &up}) {
      if (list->empty()) continue;
      const BlockId to = std::exchange(list->front().to, 100);
      CHECK_THROWS_AS(backend.run(args), ShapeError);
      list->front().to = to;
    }
  }
}

}  // namespace nanovllm::test::ops
