// The checksum path for AVX-512. Without that instruction set (other processors, other flags) there
// is none. Thread-safe.
#include "base/checksum_kernels.h"

#if defined(__x86_64__) && defined(__AVX512F__) && defined(__AVX512BW__) && \
    defined(__AVX512DQ__) && defined(__AVX512VL__)

// GCC 12 takes the deliberately undefined operands inside its own AVX-512 intrinsics for mistakes.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include "base/checksum_kernel_body.h"

namespace kvtier {

const ChecksumKernels* avx512_checksum_kernels() {
  static constexpr ChecksumKernels kKernels = make_checksum_kernels("avx512");
  return &kKernels;
}

}  // namespace kvtier

#else

const kvtier::ChecksumKernels* kvtier::avx512_checksum_kernels() { return nullptr; }

#endif
