// Mapping a store's arenas and opening devices over them. Thread-safe.
#include "paged/arena_view.h"

#include <unistd.h>

#include <utility>

namespace kvtier::paged {

Result<std::unique_ptr<ArenaView>> ArenaView::open(std::span<const ArenaPlace> places) {
  std::unique_ptr<ArenaView> view(new ArenaView());
  view->owner_process_id_ = ::getpid();
  for (const ArenaPlace& place : places) {
    auto arena = open_arena(place);
    if (!arena.is_ok()) return arena.status();
    view->arenas_.push_back(std::move(arena).value());
  }
  return view;
}

ArenaView::~ArenaView() {
  if (owner_process_id_ == ::getpid()) {
    (void)close(0);
    return;
  }
  // In a forked child the threads of devices are missing, and waiting for them would take for ever.
  for (auto& [ordinal, device] : devices_) {
    static_cast<void>(new std::shared_ptr<PagedDevice>(std::move(device)));
  }
}

std::uint64_t ArenaView::num_bytes() const {
  std::uint64_t num_bytes = 0;
  for (const auto& arena : arenas_) num_bytes += arena->num_bytes();
  return num_bytes;
}

std::byte* ArenaView::address(std::uint64_t offset_bytes, std::uint64_t length_bytes) const {
  for (const auto& arena : arenas_) {
    if (offset_bytes < arena->num_bytes()) {
      const bool is_inside = length_bytes <= arena->num_bytes() - offset_bytes;
      return is_inside ? arena->base() + offset_bytes : nullptr;
    }
    offset_bytes -= arena->num_bytes();
  }
  return nullptr;
}

Result<std::shared_ptr<PagedDevice>> ArenaView::device(const PagedDeviceOptions& options) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_closed_) return Status(StatusCode::kClosed, "the view of the arena is closed");
  const auto found = devices_.find(options.cuda_ordinal);
  if (found != devices_.end()) return found->second;
  auto opened = PagedDevice::open(options);
  if (!opened.is_ok()) return opened.status();
  std::shared_ptr<PagedDevice> device = std::move(opened).value();
  std::vector<HostMemory> memory;
  for (const auto& arena : arenas_) {
    memory.push_back({arena->bytes(0, arena->num_bytes()), arena});
  }
  device->add_memory(std::move(memory));
  devices_.emplace(options.cuda_ordinal, device);
  return device;
}

std::shared_ptr<SubmittedPlans> ArenaView::submitted_plans(std::uint32_t rank) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::shared_ptr<SubmittedPlans>& plans = submitted_plans_[rank];
  if (plans == nullptr) plans = std::make_shared<SubmittedPlans>();
  return plans;
}

bool ArenaView::close(TimeNs timeout_ns) {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_closed_ = true;
  bool is_idle = true;
  for (const auto& [ordinal, device] : devices_) {
    is_idle = device->close(device->deadline_ns(timeout_ns)) && is_idle;
  }
  return is_idle;
}

}  // namespace kvtier::paged
