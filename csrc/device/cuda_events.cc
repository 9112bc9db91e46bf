// A table of driver events. Thread-safe.
#include "device/cuda_events.h"

#include <string>

namespace kvtier {
namespace {

constexpr unsigned kDisableTiming = 2;

Status refused(const char* reason, Event event) {
  return Status(StatusCode::kInvalidArgument, std::string(reason) + std::to_string(event.event_id));
}

}  // namespace

void CudaEvents::destroy_all() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const Slot& slot : slots_) (void)driver_.event_destroy(slot.event);
  slots_.clear();
}

Event CudaEvents::take_spare(EventUse use) {
  std::lock_guard<std::mutex> lock(mutex_);
  return spare_[static_cast<std::size_t>(use)].empty() ? Event{} : take_spare_locked(use);
}

Result<Event> CudaEvents::create(EventUse use) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::uint32_t>& spare = spare_[static_cast<std::size_t>(use)];
  if (spare.empty()) {
    if (slots_.size() == Device::kEventsMax) {
      return Status(StatusCode::kExhausted,
                    "cannot create event: num_events_max=" + std::to_string(Device::kEventsMax));
    }
    Slot slot;
    slot.use = use;
    const CudaResult made =
        driver_.event_create(&slot.event, use == EventUse::kTiming ? 0 : kDisableTiming);
    if (made != kCudaSuccess) return cuda_status(driver_, made, "create event");
    spare.push_back(static_cast<std::uint32_t>(slots_.size()));
    slots_.push_back(slot);
  }
  return take_spare_locked(use);
}

Event CudaEvents::take_spare_locked(EventUse use) {
  std::vector<std::uint32_t>& spare = spare_[static_cast<std::size_t>(use)];
  const std::uint32_t slot_index = spare.back();
  spare.pop_back();
  Slot& slot = slots_[slot_index];
  ++slot.generation;
  slot.is_used = true;
  slot.is_recorded = false;
  return Event{std::uint64_t{slot.generation} << 32 | slot_index};
}

const CudaEvents::Slot* CudaEvents::slot_of(Event event) const {
  const auto slot_index = static_cast<std::uint32_t>(event.event_id);
  if (slot_index >= slots_.size()) return nullptr;
  const Slot& slot = slots_[slot_index];
  return slot.is_used && slot.generation == event.event_id >> 32 ? &slot : nullptr;
}

void CudaEvents::destroy(Event event) {
  std::lock_guard<std::mutex> lock(mutex_);
  const Slot* slot = slot_of(event);
  if (slot == nullptr) return;
  const auto slot_index = static_cast<std::uint32_t>(event.event_id);
  slots_[slot_index].is_used = false;
  spare_[static_cast<std::size_t>(slot->use)].push_back(slot_index);
}

Result<CudaEvent> CudaEvents::find(Event event) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const Slot* slot = slot_of(event);
  if (slot == nullptr) return refused("cannot use unknown event: event_id=", event);
  return slot->event;
}

Result<CudaEvent> CudaEvents::find_recorded(Event event) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const Slot* slot = slot_of(event);
  if (slot == nullptr) return refused("cannot use unknown event: event_id=", event);
  // To the driver an event that was never recorded is complete: waiting would protect nothing.
  if (!slot->is_recorded) {
    return refused("cannot use event before it was recorded: event_id=", event);
  }
  return slot->event;
}

void CudaEvents::mark_recorded(Event event) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (slot_of(event) != nullptr) {
    slots_[static_cast<std::uint32_t>(event.event_id)].is_recorded = true;
  }
}

void CudaEvents::forget_recording(Event event) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (slot_of(event) != nullptr) {
    slots_[static_cast<std::uint32_t>(event.event_id)].is_recorded = false;
  }
}

}  // namespace kvtier
