#pragma once
/// The architectures that the library has kernels of their own for. This is the one place that
/// knows them all: a new one is a folder like hopper/, and a line here.

#include "nanovllm/cuda/architecture.hpp"
#include "nanovllm/cuda/hopper/hopper.cuh"

namespace nanovllm::cuda {

using DeviceArchitectures = Architectures<Hopper, OtherDevices>;

}  // namespace nanovllm::cuda
