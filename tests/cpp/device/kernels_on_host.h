// Runs the kernels of cuda_block_copy.cu on the host's processor, a warp at a time and its lanes in
// turns, so that they are tested where there is no GPU. For one caller at a time.
#pragma once

#include <string>

#include "device/cuda_kernel_arguments.h"

namespace kvtier::testing {

using HostKernel = void (*)(cuda::KernelArguments);

/// By the kernel's name in the image; null: there is none.
HostKernel find_host_kernel(const std::string& name);
/// Runs one launch of `num_ctas`, all on the caller's thread.
void run_host_kernel(HostKernel kernel, unsigned num_ctas, const cuda::KernelArguments& arguments);
/// What a kernel sees as the constants of the leaf hash.
cuda::LeafHashWords& host_leaf_hash_words();

}  // namespace kvtier::testing
