// The checksum path for AVX2. Without that instruction set (other processors, other flags) there is
// none. Thread-safe.
#include "base/checksum_kernels.h"

#if defined(__x86_64__) && defined(__AVX2__)

#include "base/checksum_kernel_body.h"

namespace kvtier {

const ChecksumKernels* avx2_checksum_kernels() {
  static constexpr ChecksumKernels kKernels = make_checksum_kernels("avx2");
  return &kKernels;
}

}  // namespace kvtier

#else

const kvtier::ChecksumKernels* kvtier::avx2_checksum_kernels() { return nullptr; }

#endif
