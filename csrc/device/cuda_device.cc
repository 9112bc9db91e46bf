// Opening, memory and failure of the CUDA device. Thread-safe.
#include "device/cuda_device.h"

#include <cstdio>
#include <string>
#include <utility>

#include "device/cuda_device_impl.h"
#include "device/cuda_image.h"

namespace kvtier {
namespace {

constexpr int kAttributeIntegrated = 18;
constexpr int kAttributeCanMapHost = 19;
constexpr int kAttributePciBus = 33;
constexpr int kAttributePciDevice = 34;
constexpr int kAttributeUnifiedAddresses = 41;
constexpr int kAttributePciDomain = 50;
constexpr int kAttributeHostPointerForRegistered = 91;
constexpr int kAttributeHostPageTables = 100;
constexpr unsigned kStreamNonBlocking = 1;

/// As sysfs names a device. A GPU is function 0 of its own; bus and device 0 is no GPU's place, but
/// what a driver says that does not tell.
std::string pci_address_of(int domain, int bus, int device) {
  if (bus == 0 && device == 0) return {};
  char address[32];
  (void)std::snprintf(address, sizeof address, "%04x:%02x:%02x.0", static_cast<unsigned>(domain),
                      static_cast<unsigned>(bus), static_cast<unsigned>(device));
  return address;
}

}  // namespace

CudaDevice::CudaDevice(const CudaDriver& driver, CudaDeviceOrdinal device, CudaContext context)
    : driver_(driver), device_(device), context_(context), events_(driver), tables_(driver) {}

CudaDevice::~CudaDevice() {
  // In a forked child nothing of CUDA is of use, not even to be given back. And a kernel of the
  // engine that never ends must not hold this thread up: what work under way still uses stays, and
  // with it the context.
  if (!is_this_process() || is_busy()) {
    (void)kernels_.release();
    return;
  }
  {
    // After the driver's own end, or a loss, the calls fail and there is nothing to give back.
    const CudaContextScope scope(driver_, context_);
    // Without its context the driver would take other devices' things for this one's.
    if (scope.result() != kCudaSuccess) {
      (void)kernels_.release();
      return;
    }
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
  if (scope.result() != kCudaSuccess) return false;
  for (std::uint32_t lane = 0; lane < num_lanes_.load(std::memory_order_acquire); ++lane) {
    if (driver_.stream_query(lanes_[lane]) == kCudaErrorNotReady) return true;
  }
  return false;
}

Status CudaDevice::start(int ordinal, std::span<const unsigned char> image) {
  const CudaContextScope scope(driver_, context_);
  Status good = entered(scope);
  if (!good.is_ok()) return good;
  good = checked(driver_.stream_create(&upload_stream_, kStreamNonBlocking, 0), "create stream");
  if (!good.is_ok()) return good;
  fill_info(ordinal);
  auto loaded = CudaKernels::load(driver_, image, upload_stream_);
  if (loaded.is_ok() && !info_.can_kernels_reach_host) {
    // Where a load's kernel would leave its digests.
    info_.note = "kernels do not reach host memory here; copies use the copy engine alone";
  } else if (loaded.is_ok()) {
    kernels_ = std::move(loaded).value();
    info_.has_kernels = true;
  } else {
    info_.can_kernels_reach_host = false;
    info_.can_kernels_reach_registered = false;
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
  info_.pci_address = pci_address_of(attribute(kAttributePciDomain), attribute(kAttributePciBus),
                                     attribute(kAttributePciDevice));
  info_.is_integrated = attribute(kAttributeIntegrated) != 0;
  info_.is_memory_unified = info_.is_integrated || attribute(kAttributeHostPageTables) != 0;
  info_.can_kernels_reach_host =
      attribute(kAttributeUnifiedAddresses) != 0 && attribute(kAttributeCanMapHost) != 0;
  // Not so on some systems with a paravirtual driver: there, registered memory has a device address
  // of its own, which neither kernels nor batches of copies are told.
  info_.can_kernels_reach_registered =
      info_.can_kernels_reach_host && attribute(kAttributeHostPointerForRegistered) != 0;
}

Status CudaDevice::do_failure() {
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
