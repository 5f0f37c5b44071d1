// The kernels that a step of Qwen3 in bfloat16 is made of, compiled to be looked at: check_cuda.sh
// fails when one of them spills registers or ptxas reports a serialised wgmma. Every variant that a
// launcher may choose at run time is among them. Nothing here is run.

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/cuda/backend.cuh"

namespace nanovllm {

void step_of_qwen3(CudaBackend& backend);

void step_of_qwen3(CudaBackend& backend) {
  using Matrix = CudaBackend::Matrix<bf16>;
  backend.unpack_step({});
  backend.resolve_tokens({});
  backend.plan_attention({});
  backend.embedding(EmbeddingArgs<bf16, Matrix>{});
  backend.rms_norm(RmsNormArgs<bf16>{});
  backend.linear(LinearArgs<bf16, Matrix>{});
  backend.qk_norm_rope_store(QkNormRopeStoreArgs<bf16>{});
  backend.varlen_attention(VarlenAttentionArgs<bf16>{});
  backend.decode_attention(DecodeAttentionArgs<bf16>{});
  backend.add_rms_norm(AddRmsNormArgs<bf16>{});
  backend.silu_mul(SiluMulArgs<bf16>{});
  backend.gather_rows(GatherRowsArgs<bf16>{});
  backend.linear(LinearArgs<bf16, Matrix, float>{});
  backend.sample({});
}

}  // namespace nanovllm
