// The image of the tests' own kernels. Constant, so thread-safe.
#pragma once

#include <span>

namespace kvtier::testing {

std::span<const unsigned char> late_kernel_image();

}  // namespace kvtier::testing
