// The constants with which kernels compute the leaf digests of base/checksum.h. Thread-safe.
#pragma once

#include "device/cuda_kernel_arguments.h"

namespace kvtier::cuda {

LeafHashWords make_leaf_hash_words();

}  // namespace kvtier::cuda
