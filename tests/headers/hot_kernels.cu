// The kernels that a step of Qwen3 or GPT-2 in bfloat16 is made of, compiled to be looked at: check_cuda.sh
// fails when one of them spills registers or ptxas reports a serialised wgmma. Every variant that a
// launcher may choose at run time is among them. Nothing here is run.

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/cuda/backend.cuh"
#include "nanovllm/with/eight_bits/cuda/ops.cuh"
#include "nanovllm/with/gpt2/cuda/ops.cuh"
#include "nanovllm/with/moe/cuda/fp8_ops.cuh"
#include "nanovllm/with/shards/cuda/shard_draw.cuh"

namespace nanovllm {

void step_of_qwen3(CudaBackend& backend);

void step_of_qwen3(CudaBackend& backend) {
  using Matrix = CudaBackend::Matrix<bf16>;
  backend.run(UnpackStepArgs{});
  backend.run(PlanAttentionArgs{});
  backend.run(EmbeddingArgs<bf16, Matrix>{});
  backend.run(RmsNormArgs<bf16>{});
  backend.run(LinearArgs<bf16, Matrix>{});
  backend.run(GatedLinearArgs<bf16, Matrix>{});
  backend.run(ProjectQkvArgs<bf16, Matrix>{});
  backend.run(QkNormRopeStoreArgs<bf16>{});
  backend.run(VarlenAttentionArgs<bf16>{});
  backend.run(DecodeAttentionArgs<bf16>{});
  backend.run(AddRmsNormArgs<bf16>{});
  backend.run(SiluMulArgs<bf16>{});
  backend.run(GatherRowsArgs<bf16>{});
  backend.run(LinearArgs<bf16, Matrix, float>{});
  backend.run(SampleArgs{});
}

/// With weights in 8-bit floats.
void step_in_fp8(CudaBackend& backend);

void step_in_fp8(CudaBackend& backend) {
  using Matrix = CudaBackend::Fp8Matrix;
  backend.run(LinearArgs<bf16, Matrix>{});
  backend.run(GatedLinearArgs<bf16, Matrix>{});
  backend.run(ProjectQkvArgs<bf16, Matrix>{});
}

/// A mixture of experts.
void step_of_experts(CudaBackend& backend);

void step_of_experts(CudaBackend& backend) {
  backend.run(RouteExpertsArgs{});
  backend.run(ExpertMlpArgs<bf16, CudaBackend::Matrix<bf16>>{});
  backend.run(ExpertMlpArgs<bf16, CudaBackend::Fp8Matrix>{});
}

/// What it has besides.
void step_of_gpt2(CudaBackend& backend);

void step_of_gpt2(CudaBackend& backend) {
  backend.run(LayerNormArgs<bf16>{});
  backend.run(AddLayerNormArgs<bf16>{});
  backend.run(AddBiasArgs<bf16>{});
  backend.run(KvStoreArgs<bf16>{});
  backend.run(BiasGeluArgs<bf16>{});
}

/// What requests for edits and log-probabilities, and draws by shard, have besides.
void step_with_edits(CudaBackend& backend);

void step_with_edits(CudaBackend& backend) {
  backend.run(MarkTokensArgs{});
  backend.run(MarkDrawnArgs{});
  backend.run(EditLogitsArgs{});
  backend.run(TokenLogprobsArgs{});
  backend.run(SurveyShardArgs{});
  backend.run(DrawShardArgs{});
  backend.run(PickWinnerArgs{});
}

}  // namespace nanovllm
