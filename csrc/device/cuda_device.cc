// Opening, memory and failure of the CUDA device. Thread-safe.
#include "device/cuda_device.h"

#include <string>
#include <utility>

#include "device/cuda_device_impl.h"
#include "device/cuda_image.h"

namespace kvtier {
namespace {

constexpr int kAttributeIntegrated = 18;
constexpr int kAttributeHostPointerForRegistered = 91;
constexpr int kAttributeHostPageTables = 100;
constexpr int kPointerMemoryType = 2;
constexpr int kPointerBufferId = 7;
constexpr int kPointerDeviceOrdinal = 9;
constexpr unsigned kMemoryTypeHost = 1;
constexpr unsigned kStreamNonBlocking = 1;
constexpr unsigned kHostPortable = 1;
constexpr unsigned kHostMapped = 2;

}  // namespace

CudaDevice::CudaDevice(const CudaDriver& driver, CudaDeviceOrdinal device, CudaContext context)
    : driver_(driver), device_(device), context_(context), events_(driver), tables_(driver) {}

CudaDevice::~CudaDevice() {
  // In a forked child nothing of CUDA is of use, not even to be given back. And a kernel of the
  // engine that never ends must not hold this thread up: what work under way still uses stays, and
  // with it the context.
  if (!owner_.is_this_process() || is_busy()) {
    (void)kernels_.release();
    return;
  }
  {
    // After the driver's own end, or a loss, the calls fail and there is nothing to give back.
    const CudaContextScope scope(driver_, context_);
    for (std::uint32_t lane = 0; lane < num_lanes_.load(std::memory_order_acquire); ++lane) {
      (void)driver_.stream_destroy(lanes_[lane]);
    }
    events_.destroy_all();
    tables_.destroy_all();
    kernels_.reset();
    if (upload_stream_ != nullptr) (void)driver_.stream_destroy(upload_stream_);
  }
  (void)driver_.context_release(device_);
}

bool CudaDevice::is_busy() const {
  const CudaContextScope scope(driver_, context_);
  for (std::uint32_t lane = 0; lane < num_lanes_.load(std::memory_order_acquire); ++lane) {
    if (driver_.stream_query(lanes_[lane]) == kCudaErrorNotReady) return true;
  }
  return false;
}

Status CudaDevice::start(int ordinal, std::span<const unsigned char> image) {
  const CudaContextScope scope(driver_, context_);
  Status good = checked(scope.result(), "use the device's context");
  if (!good.is_ok()) return good;
  good = checked(driver_.stream_create(&upload_stream_, kStreamNonBlocking, 0), "create stream");
  if (!good.is_ok()) return good;
  fill_info(ordinal);
  auto loaded = CudaKernels::load(driver_, image, upload_stream_);
  if (loaded.is_ok()) {
    kernels_ = std::move(loaded).value();
    info_.has_kernels = true;
  } else {
    info_.can_kernels_reach_host = false;
    info_.note = loaded.status().message() + "; copies use the copy engine alone";
  }
  return Status::ok();
}

void CudaDevice::fill_info(int ordinal) {
  const auto attribute = [&](int name) {
    int value = 0;
    return driver_.device_attribute(&value, name, device_) == kCudaSuccess ? value : 0;
  };
  char name[256] = "";
  CudaUuid uuid{};
  int version = 0;
  (void)driver_.device_name(name, sizeof name - 1, device_);
  (void)driver_.device_uuid(&uuid, device_);
  (void)driver_.driver_version(&version);
  info_.kind = DeviceKind::kCuda;
  info_.name = std::string(name) + " (" + std::to_string(ordinal) + ")";
  info_.identity = std::string(name) + " ";
  constexpr char kDigits[] = "0123456789abcdef";
  for (const char byte : uuid.bytes) {
    info_.identity += kDigits[static_cast<unsigned char>(byte) >> 4];
    info_.identity += kDigits[static_cast<unsigned char>(byte) & 15];
  }
  info_.identity += " driver " + std::to_string(version);
  info_.is_memory_unified =
      attribute(kAttributeIntegrated) != 0 || attribute(kAttributeHostPageTables) != 0;
  info_.can_kernels_reach_host = attribute(kAttributeHostPointerForRegistered) != 0;
}

Status CudaDevice::do_failure() {
  if (!owner_.is_this_process()) {
    return Status(StatusCode::kClosed, "cannot use the device of another process");
  }
  if (!has_failed_.load(std::memory_order_acquire)) return Status::ok();
  std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

Status CudaDevice::checked(CudaResult result, const char* action) {
  if (result == kCudaSuccess) return Status::ok();
  Status status = cuda_status(driver_, result, action);
  if (is_cuda_context_lost(result)) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (failure_.is_ok()) {
      failure_ =
          Status(StatusCode::kIoError, "device lost: " + info_.name + ": " + status.message());
    }
    has_failed_.store(true, std::memory_order_release);
    return failure_;
  }
  return status;
}

Result<std::byte*> CudaDevice::do_allocate(std::uint64_t length_bytes) {
  const CudaContextScope scope(driver_, context_);
  CudaAddress address = 0;
  Status good = checked(driver_.memory_allocate(&address, length_bytes), "allocate device memory");
  if (!good.is_ok()) return good;
  return reinterpret_cast<std::byte*>(address);
}

void CudaDevice::do_deallocate(std::byte* memory) {
  if (!owner_.is_this_process()) return;
  const CudaContextScope scope(driver_, context_);
  (void)driver_.memory_free(cuda_address(memory));
}

Result<std::byte*> CudaDevice::do_allocate_page_locked(std::uint64_t length_bytes) {
  const CudaContextScope scope(driver_, context_);
  void* memory = nullptr;
  Status good = checked(driver_.host_allocate(&memory, length_bytes, kHostPortable | kHostMapped),
                        "allocate page-locked memory");
  if (!good.is_ok()) return good;
  return static_cast<std::byte*>(memory);
}

void CudaDevice::do_deallocate_page_locked(std::byte* memory) {
  if (!owner_.is_this_process()) return;
  const CudaContextScope scope(driver_, context_);
  (void)driver_.host_free(memory);
}

Status CudaDevice::do_page_lock(std::span<std::byte> memory) {
  const CudaContextScope scope(driver_, context_);
  return checked(driver_.host_register(memory.data(), memory.size(), kHostPortable | kHostMapped),
                 "page-lock memory");
}

void CudaDevice::do_page_unlock(std::byte* memory) {
  if (!owner_.is_this_process()) return;
  const CudaContextScope scope(driver_, context_);
  (void)driver_.host_unregister(memory);
}

bool CudaDevice::is_host_memory(const std::byte* address) const {
  unsigned type = 0;
  // What the driver does not know is the host's own.
  return driver_.pointer_attribute(&type, kPointerMemoryType, cuda_address(address)) !=
             kCudaSuccess ||
         type == kMemoryTypeHost;
}

Result<std::uint64_t> CudaDevice::do_identify_memory(const std::byte* address) {
  const CudaContextScope scope(driver_, context_);
  // Numbers are never given twice, so what is known of one stays true: each job asks for all its
  // tensors, and this is one call instead of three.
  unsigned long long buffer_id = 0;
  const bool has_id = driver_.pointer_attribute(&buffer_id, kPointerBufferId,
                                                cuda_address(address)) == kCudaSuccess;
  if (has_id) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (own_buffers_.contains(buffer_id)) return std::uint64_t{buffer_id};
  }
  if (is_host_memory(address)) {
    return Status(
        StatusCode::kInvalidArgument,
        "cannot use memory that is not the device's (freed, or of the host): " + info_.name);
  }
  int ordinal = -1;
  Status good =
      checked(driver_.pointer_attribute(&ordinal, kPointerDeviceOrdinal, cuda_address(address)),
              "find memory");
  if (!good.is_ok()) return good;
  if (ordinal != device_) {
    return Status(StatusCode::kInvalidArgument,
                  "cannot use memory of another device: device=" + std::to_string(ordinal) +
                      ", not " + info_.name);
  }
  // Not every kind of allocation has one.
  if (!has_id) return std::uint64_t{0};
  std::lock_guard<std::mutex> lock(mutex_);
  if (own_buffers_.size() == kOwnBuffersMax) own_buffers_.clear();
  own_buffers_.insert(buffer_id);
  return std::uint64_t{buffer_id};
}

Result<std::unique_ptr<Device>> make_cuda_device(const CudaDriver& driver, int ordinal,
                                                 std::span<const unsigned char> image) {
  const auto failed = [&](CudaResult result, const char* action) {
    return Status(StatusCode::kUnsupported, cuda_status(driver, result, action).message() +
                                                " ordinal=" + std::to_string(ordinal));
  };
  CudaDeviceOrdinal device = 0;
  CudaResult result = driver.device_get(&device, ordinal);
  if (result != kCudaSuccess) return failed(result, "find device");
  CudaContext context = nullptr;
  result = driver.context_retain(&context, device);
  if (result != kCudaSuccess) return failed(result, "use device");
  auto opened = std::make_unique<CudaDevice>(driver, device, context);
  Status started = opened->start(ordinal, image);
  if (!started.is_ok()) return started;
  return std::unique_ptr<Device>(std::move(opened));
}

Result<std::unique_ptr<Device>> open_cuda_device(int ordinal) {
  // Once a process: the library stays loaded.
  static const Result<const CudaDriver*> driver = load_cuda_driver();
  if (!driver.is_ok()) return driver.status();
  return make_cuda_device(*driver.value(), ordinal, cuda_image());
}

}  // namespace kvtier
