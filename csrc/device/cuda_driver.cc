// Finds the CUDA driver's calls by name. Thread-safe.
#include "device/cuda_driver.h"

#include <dlfcn.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>

namespace kvtier {
namespace {

struct CallName {
  const char* name;
  void** place;
};

template <typename Call>
CallName call_name(const char* name, Call*& place) {
  return {name, reinterpret_cast<void**>(&place)};
}

Status no_driver(const std::string& reason) {
  return Status(StatusCode::kUnsupported, "cannot use CUDA: " + reason);
}

/// A system that does not answer (seccomp) leaves the benefit of the doubt.
bool is_readable(const void* address) {
  std::uint64_t word = 0;
  const iovec target{&word, sizeof word};
  const iovec source{const_cast<void*>(address), sizeof word};
  return ::process_vm_readv(::getpid(), &target, 1, &source, 1, 0) >= 0 || errno != EFAULT;
}

// A name with a version suffix is the binary interface that this file's declarations describe.
std::array<CallName, 39> needed_calls(CudaDriver& driver) {
  return {{
      call_name("cuInit", driver.init),
      call_name("cuDriverGetVersion", driver.driver_version),
      call_name("cuGetErrorName", driver.error_name),
      call_name("cuDeviceGetCount", driver.device_count),
      call_name("cuDeviceGet", driver.device_get),
      call_name("cuDeviceGetName", driver.device_name),
      call_name("cuDeviceGetUuid_v2", driver.device_uuid),
      call_name("cuDeviceGetAttribute", driver.device_attribute),
      call_name("cuDevicePrimaryCtxRetain", driver.context_retain),
      call_name("cuDevicePrimaryCtxRelease_v2", driver.context_release),
      call_name("cuCtxPushCurrent_v2", driver.context_push),
      call_name("cuCtxPopCurrent_v2", driver.context_pop),
      call_name("cuCtxGetStreamPriorityRange", driver.priority_range),
      call_name("cuThreadExchangeStreamCaptureMode", driver.capture_mode_exchange),
      call_name("cuStreamCreateWithPriority", driver.stream_create),
      call_name("cuStreamDestroy_v2", driver.stream_destroy),
      call_name("cuStreamGetCtx", driver.stream_context),
      call_name("cuStreamIsCapturing", driver.stream_is_capturing),
      call_name("cuStreamQuery", driver.stream_query),
      call_name("cuStreamSynchronize", driver.stream_synchronize),
      call_name("cuStreamWaitEvent", driver.stream_wait_event),
      call_name("cuEventCreate", driver.event_create),
      call_name("cuEventDestroy_v2", driver.event_destroy),
      call_name("cuEventRecord", driver.event_record),
      call_name("cuEventQuery", driver.event_query),
      call_name("cuEventElapsedTime", driver.event_elapsed),
      call_name("cuMemAlloc_v2", driver.memory_allocate),
      call_name("cuMemFree_v2", driver.memory_free),
      call_name("cuMemHostAlloc", driver.host_allocate),
      call_name("cuMemFreeHost", driver.host_free),
      call_name("cuMemHostRegister_v2", driver.host_register),
      call_name("cuMemHostUnregister", driver.host_unregister),
      call_name("cuPointerGetAttribute", driver.pointer_attribute),
      call_name("cuMemcpyAsync", driver.copy),
      call_name("cuModuleLoadData", driver.module_load),
      call_name("cuModuleUnload", driver.module_unload),
      call_name("cuModuleGetFunction", driver.module_function),
      call_name("cuModuleGetGlobal_v2", driver.module_global),
      call_name("cuLaunchKernel", driver.launch),
  }};
}

}  // namespace

Result<const CudaDriver*> load_cuda_driver(const char* library_name) {
  // Never closed: the driver has threads and exit handlers of its own.
  void* library = ::dlopen(library_name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = ::dlerror();
    return no_driver(reason == nullptr ? "no driver is installed" : reason);
  }
  auto driver = std::make_unique<CudaDriver>();
  for (const CallName& call : needed_calls(*driver)) {
    *call.place = ::dlsym(library, call.name);
    if (*call.place == nullptr) return no_driver(std::string("the driver has no ") + call.name);
  }
  const CallName batch = call_name("cuMemcpyBatchAsync_v2", driver->copy_batch);
  *batch.place = ::dlsym(library, batch.name);
  const CallName indexed = call_name("cuMemcpyBatchAsync", driver->copy_batch_indexed);
  *indexed.place = ::dlsym(library, indexed.name);
  driver->is_readable = is_readable;
  Status started = start_cuda_driver(*driver);
  if (!started.is_ok()) return started;
  return driver.release();  // For as long as the process runs, like the library itself.
}

Status start_cuda_driver(const CudaDriver& driver) {
  int version = 0;
  if (driver.driver_version(&version) == kCudaSuccess && version < kCudaDriverVersionMin) {
    return no_driver("the driver is too old: version=" + std::to_string(version) +
                     " version_min=" + std::to_string(kCudaDriverVersionMin));
  }
  const CudaResult started = driver.init(0);
  if (started != kCudaSuccess) {
    return no_driver(cuda_status(driver, started, "start the driver").message());
  }
  int num_devices = 0;
  const CudaResult counted = driver.device_count(&num_devices);
  if (counted != kCudaSuccess || num_devices == 0) return no_driver("there is no device");
  return Status::ok();
}

bool is_cuda_context_lost(CudaResult result) {
  // Deinitialized, a context that is gone, uncorrectable memory, faults of kernels, a service
  // between process and device that is gone, unknown.
  constexpr CudaResult kLost[] = {4,   201, 214, 220, 226, 700, 702, 709, 710, 711, 714,
                                  715, 716, 717, 718, 719, 721, 805, 806, 810, 911, 999};
  return std::find(std::begin(kLost), std::end(kLost), result) != std::end(kLost);
}

Status cuda_status(const CudaDriver& driver, CudaResult result, const std::string& action) {
  const char* name = nullptr;
  if (driver.error_name(result, &name) != kCudaSuccess || name == nullptr) name = "unknown error";
  StatusCode code = StatusCode::kIoError;
  if (result == kCudaErrorOutOfMemory) code = StatusCode::kExhausted;
  if (result == kCudaErrorNotSupported || result == kCudaErrorNotPermitted) {
    code = StatusCode::kUnsupported;
  }
  return Status(code,
                "cannot " + action + ": " + name + " (result=" + std::to_string(result) + ")");
}

}  // namespace kvtier
