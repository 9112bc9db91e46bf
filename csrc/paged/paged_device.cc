// Opening and closing a paged device. Thread-safe as its header says.
#include "paged/paged_device.h"

#include <algorithm>
#include <utility>

#include "device/cuda_device.h"
#include "device/host_device.h"

namespace kvtier::paged {
namespace {

// Even a close without patience gives transfers this long, so that it can end cleanly.
constexpr TimeNs kCloseMinNs = 500 * kNsPerMs;

}  // namespace

Result<std::unique_ptr<PagedDevice>> PagedDevice::open(const PagedDeviceOptions& options) {
  std::unique_ptr<PagedDevice> opened(new PagedDevice);
  opened->clock_ = std::make_unique<SystemClock>();
  if (options.cuda_ordinal < 0) {
    opened->device_ = std::make_unique<HostDevice>(*opened->clock_);
  } else {
    auto device = open_cuda_device(options.cuda_ordinal);
    if (!device.is_ok()) return device.status();
    opened->device_ = std::move(device).value();
  }
  auto engine =
      transfer::TransferEngine::create(*opened->device_, *opened->clock_, options.transfer);
  if (!engine.is_ok()) return engine.status();
  opened->engine_ = std::move(engine).value();
  return opened;
}

PagedDevice::~PagedDevice() {
  if (!engine_) return;
  (void)close(clock_->now_ns());
  if (engine_->has_stopped()) return;
  // The device may still read and write all of it.
  for (HostMemory& it : memory_) {
    static_cast<void>(new std::shared_ptr<const void>(std::move(it.keeper)));
  }
  static_cast<void>(engine_.release());
  static_cast<void>(device_.release());
  static_cast<void>(clock_.release());
}

void PagedDevice::add_memory(std::vector<HostMemory> memory) {
  const DeviceInfo info = engine_->device_info();
  for (HostMemory& it : memory) {
    // The host's own device reaches all memory alike.
    const bool is_locked = info.kind != DeviceKind::kHost;
    if (is_locked) {
      Status begun = engine_->begin_host_memory(it.bytes);
      if (!begun.is_ok()) refusal_ = begun.message();
    }
    memory_.push_back(std::move(it));
  }
}

PagedDevice::PageLock PagedDevice::page_lock() const {
  PageLock found;
  if (engine_->device_info().kind == DeviceKind::kHost) return found;
  const std::lock_guard<std::mutex> lock(mutex_);
  found.state = refusal_.empty() ? "ready" : "refused";
  found.refusal = refusal_;
  for (const HostMemory& it : memory_) {
    const transfer::HostMemoryInfo info = engine_->host_memory_info(it.bytes);
    found.locked_bytes += info.locked_bytes;
    if (info.state == transfer::HostMemoryState::kRefused) {
      found.state = "refused";
      found.refusal = info.refusal.message();
    } else if (info.state == transfer::HostMemoryState::kPending && found.state == "ready") {
      found.state = "pending";
    }
  }
  return found;
}

std::string PagedDevice::take_refusal() {
  if (is_lock_settled_.load(std::memory_order_relaxed)) return {};
  const PageLock found = page_lock();
  if (found.state == "pending") return {};
  return is_lock_settled_.exchange(true, std::memory_order_relaxed) ? std::string{} : found.refusal;
}

bool PagedDevice::close(TimeNs deadline_ns) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_closed_) return true;
  if (!engine_->close(std::max(deadline_ns, clock_->now_ns() + kCloseMinNs))) return false;
  is_closed_ = true;
  for (const HostMemory& it : memory_) engine_->remove_host_memory(it.bytes);
  memory_.clear();
  return true;
}

}  // namespace kvtier::paged
