// Memory of the CUDA device and of the host as it knows it. Thread-safe.
#include <algorithm>
#include <string>

#include "device/cuda_device_impl.h"

namespace kvtier {
namespace {

constexpr int kPointerMemoryType = 2;
constexpr int kPointerBufferId = 7;
constexpr int kPointerDeviceOrdinal = 9;
constexpr int kPointerRangeStart = 11;
constexpr int kPointerRangeBytes = 12;
constexpr unsigned kMemoryTypeHost = 1;
constexpr unsigned kHostPortable = 1;
constexpr unsigned kHostMapped = 2;
// A tensor may lie in many mappings that follow each other, each of which is asked for.
constexpr std::size_t kRangesMax = 65536;

}  // namespace

Result<std::byte*> CudaDevice::do_allocate(std::uint64_t length_bytes) {
  const CudaContextScope scope(driver_, context_);
  Status good = entered(scope);
  if (!good.is_ok()) return good;
  CudaAddress address = 0;
  good = checked(driver_.memory_allocate(&address, length_bytes), "allocate device memory");
  if (!good.is_ok()) return good;
  return reinterpret_cast<std::byte*>(address);
}

void CudaDevice::do_deallocate(std::byte* memory) {
  const CudaContextScope scope(driver_, context_);
  if (entered(scope).is_ok()) (void)driver_.memory_free(cuda_address(memory));
}

Result<std::byte*> CudaDevice::do_allocate_page_locked(std::uint64_t length_bytes) {
  const CudaContextScope scope(driver_, context_);
  Status good = entered(scope);
  if (!good.is_ok()) return good;
  void* memory = nullptr;
  good = checked(driver_.host_allocate(&memory, length_bytes, kHostPortable | kHostMapped),
                 "allocate page-locked memory");
  if (!good.is_ok()) return good;
  return static_cast<std::byte*>(memory);
}

void CudaDevice::do_deallocate_page_locked(std::byte* memory) {
  const CudaContextScope scope(driver_, context_);
  if (entered(scope).is_ok()) (void)driver_.host_free(memory);
}

Status CudaDevice::do_page_lock(std::span<std::byte> memory) {
  const CudaContextScope scope(driver_, context_);
  Status good = entered(scope);
  if (!good.is_ok()) return good;
  return checked(driver_.host_register(memory.data(), memory.size(), kHostPortable | kHostMapped),
                 "page-lock memory");
}

void CudaDevice::do_page_unlock(std::byte* memory) {
  const CudaContextScope scope(driver_, context_);
  if (entered(scope).is_ok()) (void)driver_.host_unregister(memory);
}

bool CudaDevice::is_host_memory(const std::byte* address) const {
  unsigned type = 0;
  // What the driver does not know is the host's own.
  return driver_.pointer_attribute(&type, kPointerMemoryType, cuda_address(address)) !=
             kCudaSuccess ||
         type == kMemoryTypeHost;
}

Result<std::uint64_t> CudaDevice::do_identify_memory(const std::byte* address,
                                                     std::uint64_t length_bytes) {
  const CudaContextScope scope(driver_, context_);
  Status good = entered(scope);
  if (!good.is_ok()) return good;
  const CudaAddress begin = cuda_address(address);
  Result<std::uint64_t> identity = identify_place(begin);
  if (!identity.is_ok() || length_bytes <= 1) return identity;
  std::uint64_t known_bytes = 0;
  for (std::size_t num_ranges = 0; num_ranges < kRangesMax; ++num_ranges) {
    Result<std::uint64_t> room_bytes = room_behind(begin + known_bytes);
    if (!room_bytes.is_ok()) return room_bytes;
    if (room_bytes.value() == 0) break;
    known_bytes += std::min(room_bytes.value(), length_bytes - known_bytes);
    if (known_bytes == length_bytes) return identity;
    Result<std::uint64_t> next = identify_place(begin + known_bytes);
    if (next.is_ok()) continue;
    return Status(next.status().code(), next.status().message() +
                                            ": known_bytes=" + std::to_string(known_bytes) +
                                            " need_bytes=" + std::to_string(length_bytes));
  }
  // The driver cannot tell how far it reaches: the last byte at least has to be there.
  Result<std::uint64_t> last = identify_place(begin + length_bytes - 1);
  return last.is_ok() ? identity : last;
}

// How many bytes the allocation has from there on; 0: the driver cannot tell.
Result<std::uint64_t> CudaDevice::room_behind(CudaAddress address) {
  CudaAddress start = 0;
  std::size_t range_bytes = 0;
  for (const CudaResult asked :
       {driver_.pointer_attribute(&start, kPointerRangeStart, address),
        driver_.pointer_attribute(&range_bytes, kPointerRangeBytes, address)}) {
    if (is_cuda_context_lost(asked)) return checked(asked, "find memory");
    if (asked != kCudaSuccess) return std::uint64_t{0};
  }
  const bool is_inside = start <= address && address - start < range_bytes;
  return std::uint64_t{is_inside ? range_bytes - (address - start) : 0};
}

Result<std::uint64_t> CudaDevice::identify_place(CudaAddress address) {
  // Numbers are never given twice, so what is known of one stays true: each job asks for all its
  // tensors, and this is one call instead of three.
  unsigned long long buffer_id = 0;
  const CudaResult asked = driver_.pointer_attribute(&buffer_id, kPointerBufferId, address);
  if (is_cuda_context_lost(asked)) return checked(asked, "find memory");
  const bool has_id = asked == kCudaSuccess;
  if (has_id) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (own_buffers_.contains(buffer_id)) return std::uint64_t{buffer_id};
  }
  unsigned type = 0;
  const CudaResult found = driver_.pointer_attribute(&type, kPointerMemoryType, address);
  if (found == kCudaErrorInvalidValue || (found == kCudaSuccess && type == kMemoryTypeHost)) {
    return Status(
        StatusCode::kInvalidArgument,
        "cannot use memory that is not the device's (freed, or of the host): " + info_.name);
  }
  // Any other answer says nothing of the memory.
  Status good = checked(found, "find memory");
  if (!good.is_ok()) return good;
  int ordinal = -1;
  good =
      checked(driver_.pointer_attribute(&ordinal, kPointerDeviceOrdinal, address), "find memory");
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

}  // namespace kvtier
