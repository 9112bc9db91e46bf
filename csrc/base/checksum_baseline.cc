// The checksum path for every machine of the target, and the reference of the others. Thread-safe.

// GCC unrolls the four steps of a narrow stripe only at O3; at O2 the accumulators go through
// memory and the path runs at half its speed.
#if defined(__GNUC__) && !defined(__clang__) && defined(__OPTIMIZE__)
#pragma GCC optimize("O3")
#endif

#include "base/checksum_kernel_body.h"

namespace kvtier {

const ChecksumKernels* baseline_checksum_kernels() {
#if XXH_VECTOR == XXH_SCALAR
  static constexpr ChecksumKernels kKernels = make_checksum_kernels("scalar");
#elif XXH_VECTOR == XXH_SSE2
  static constexpr ChecksumKernels kKernels = make_checksum_kernels("sse2");
#elif XXH_VECTOR == XXH_NEON
  static constexpr ChecksumKernels kKernels = make_checksum_kernels("neon");
#else
  // The whole build was given more than the baseline; the name is then only a hint.
  static constexpr ChecksumKernels kKernels = make_checksum_kernels("scalar");
#endif
  return &kKernels;
}

}  // namespace kvtier
