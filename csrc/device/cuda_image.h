// The kernels as built into this library. Constant, so thread-safe.
#pragma once

#include <span>

namespace kvtier {

/// Code for several kinds of GPU, as cuModuleLoadData() takes it; empty where the build had no
/// nvcc.
std::span<const unsigned char> cuda_image();

}  // namespace kvtier
