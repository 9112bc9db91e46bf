// Loads and launches the kernels. Thread-safe.
#include "device/cuda_kernels.h"

#include <string>

#include "device/cuda_leaf_hash.h"

namespace kvtier {

static_assert(cuda::kPlacesMax == kBlockPlacesMax);

Result<std::unique_ptr<CudaKernels>> CudaKernels::load(const CudaDriver& driver,
                                                       std::span<const unsigned char> image,
                                                       CudaStream upload_stream) {
  if (image.empty()) {
    return Status(StatusCode::kUnsupported, "this build has no kernels: nvcc was not there");
  }
  std::unique_ptr<CudaKernels> kernels(new CudaKernels(driver));
  const CudaResult loaded = driver.module_load(&kernels->module_, image.data());
  if (loaded != kCudaSuccess) {
    kernels->module_ = nullptr;
    return Status(StatusCode::kUnsupported,
                  cuda_status(driver, loaded, "load kernels into this device").message());
  }
  Status found = kernels->find_functions();
  if (!found.is_ok()) return found;
  Status uploaded = kernels->upload_leaf_hash(upload_stream);
  if (!uploaded.is_ok()) return uploaded;
  Status warmed = kernels->warm_up(upload_stream);
  if (!warmed.is_ok()) return warmed;
  return kernels;
}

CudaKernels::~CudaKernels() {
  if (module_ != nullptr) (void)driver_.module_unload(module_);
}

Status CudaKernels::find_functions() {
  constexpr const char* kKinds[kNumKinds] = {"gather", "scatter", "hash"};
  constexpr const char* kWidths[kNumWidths] = {"16", "4", "1"};
  for (std::size_t kind = 0; kind < kNumKinds; ++kind) {
    for (std::size_t width = 0; width < kNumWidths; ++width) {
      const std::string name = std::string("kvtier_") + kKinds[kind] + "_" + kWidths[width];
      const CudaResult found =
          driver_.module_function(&functions_[kind][width], module_, name.c_str());
      if (found != kCudaSuccess) {
        return Status(StatusCode::kUnsupported,
                      cuda_status(driver_, found, "find kernel " + name).message());
      }
    }
  }
  return Status::ok();
}

Status CudaKernels::upload_leaf_hash(CudaStream stream) {
  const cuda::LeafHashWords words = cuda::make_leaf_hash_words();
  CudaAddress address = 0;
  std::size_t num_bytes = 0;
  CudaResult result =
      driver_.module_global(&address, &num_bytes, module_, "kvtier_leaf_hash_words");
  if (result == kCudaSuccess && num_bytes != sizeof words) {
    return Status(StatusCode::kInternal,
                  "cannot use kernels: leaf_hash_bytes=" + std::to_string(num_bytes));
  }
  if (result == kCudaSuccess) {
    result = driver_.copy(address, reinterpret_cast<CudaAddress>(&words), sizeof words, stream);
  }
  if (result == kCudaSuccess) result = driver_.stream_synchronize(stream);
  return result == kCudaSuccess ? Status::ok()
                                : cuda_status(driver_, result, "prepare the kernels");
}

// The driver loads a kernel's code when it is first launched, and may wait for the whole device
// then, which an engine's long kernel would make a long wait.
Status CudaKernels::warm_up(CudaStream stream) const {
  cuda::KernelArguments arguments{};
  arguments.leaves_per_block = 1;
  arguments.leaves_per_turn = 1;
  CudaResult result = kCudaSuccess;
  for (const BlockCopyKind kind :
       {BlockCopyKind::kGather, BlockCopyKind::kScatter, BlockCopyKind::kHash}) {
    for (const std::uint64_t alignment_bytes : {16, 4, 1}) {
      if (result == kCudaSuccess) result = launch(kind, alignment_bytes, 1, arguments, stream);
    }
  }
  if (result == kCudaSuccess) result = driver_.stream_synchronize(stream);
  if (result == kCudaSuccess) return Status::ok();
  return Status(StatusCode::kUnsupported, cuda_status(driver_, result, "run kernels").message());
}

CudaResult CudaKernels::launch(BlockCopyKind kind, std::uint64_t alignment_bytes,
                               std::uint32_t num_ctas, const cuda::KernelArguments& arguments,
                               CudaStream stream) const {
  const std::size_t width = alignment_bytes % 16 == 0 ? 0 : alignment_bytes % 4 == 0 ? 1 : 2;
  // The driver only reads them, before it returns.
  void* parameters[] = {const_cast<cuda::KernelArguments*>(&arguments)};
  return driver_.launch(functions_[static_cast<std::size_t>(kind)][width], num_ctas, 1, 1,
                        cuda::kThreadsPerCta, 1, 1, 0, stream, parameters, nullptr);
}

}  // namespace kvtier
