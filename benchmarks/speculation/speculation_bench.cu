// Steps of Qwen3-8B that check drafts, in bfloat16 and in 8-bit floats, on one GPU:
//
//   speculation_bench_cuda [JSON]

#include "speculation_bench.hpp"

#include <vector>

#include "engine_bench/models.hpp"
#include "nanovllm/with/eight_bits/cuda/ops.cuh"
#include "nanovllm/with/eight_bits/int8_kv.hpp"
#include "nanovllm/with/speculation.cuh"

namespace {

struct Bfloat16 : nanovllm::CudaPolicy {
  using KvElement = nanovllm::Int8Kv;
};
struct Fp8 : Bfloat16 {
  using Weight = nanovllm::Fp8Block128;
};

}  // namespace

int main(int argc, char** argv) {
  using namespace speculation_bench;
  const auto model = engine_bench::config_of(nanovllm::shapes::qwen3_8b);
  nanovllm::EngineConfig config{.max_num_seqs = 256, .max_model_len = 2048, .seed = 0};
  config.kv_size = nanovllm::KvSize::blocks(5000);
  std::vector<Row> rows;
  measure<Bfloat16>("bf16", model, config, rows);
  measure<Fp8>("fp8", model, config, rows);
  if (argc > 1) write(rows, argv[1]);
}
