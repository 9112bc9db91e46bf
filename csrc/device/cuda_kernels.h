// CudaKernels: the kernels of one device, loaded from the embedded image. Constant after loading,
// so thread-safe. Calls need the device's context to be current.
#pragma once

#include <array>
#include <memory>
#include <span>

#include "base/status.h"
#include "device/block_copy.h"
#include "device/cuda_driver.h"
#include "device/cuda_kernel_arguments.h"

namespace kvtier {

class CudaKernels {
 public:
  /// `upload_stream` is used until load() returns. kUnsupported: this build holds no kernels, or
  /// none that this device and driver take.
  static Result<std::unique_ptr<CudaKernels>> load(const CudaDriver& driver,
                                                   std::span<const unsigned char> image,
                                                   CudaStream upload_stream);
  ~CudaKernels();
  CudaKernels(const CudaKernels&) = delete;
  CudaKernels& operator=(const CudaKernels&) = delete;

  /// alignment_bytes: what all addresses and lengths are multiples of.
  CudaResult launch(BlockCopyKind kind, std::uint64_t alignment_bytes, std::uint32_t num_ctas,
                    const cuda::KernelArguments& arguments, CudaStream stream) const;

 private:
  static constexpr std::size_t kNumKinds = 3;
  static constexpr std::size_t kNumWidths = 3;

  explicit CudaKernels(const CudaDriver& driver) : driver_(driver) {}
  Status find_functions();
  Status upload_leaf_hash(CudaStream stream);
  Status warm_up(CudaStream stream) const;

  const CudaDriver& driver_;
  CudaModule module_ = nullptr;
  std::array<std::array<CudaFunction, kNumWidths>, kNumKinds> functions_{};
};

}  // namespace kvtier
