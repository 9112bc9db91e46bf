// CudaEvents: the events of one device by number, made once and used again. Thread-safe. Calls need
// the device's context to be current.
#pragma once

#include <array>
#include <mutex>
#include <vector>

#include "device/cuda_driver.h"
#include "device/device.h"

namespace kvtier {

class CudaEvents {
 public:
  explicit CudaEvents(const CudaDriver& driver) : driver_(driver) {}
  /// Gives all of them back to the driver.
  void destroy_all();

  /// An event that was made before; no event when none is spare. Needs no context.
  Event take_spare(EventUse use);
  /// Creating asks the driver only when none is spare.
  Result<Event> create(EventUse use);
  /// The driver's event may be recorded anew for another number at once: what waits for it by then
  /// keeps the older point.
  void destroy(Event event);
  /// kInvalidArgument: unknown.
  Result<CudaEvent> find(Event event) const;
  /// kInvalidArgument: unknown or never recorded.
  Result<CudaEvent> find_recorded(Event event) const;
  void mark_recorded(Event event);
  /// As if it had never been recorded.
  void forget_recording(Event event);

 private:
  struct Slot {
    CudaEvent event = nullptr;
    std::uint32_t generation = 0;
    EventUse use = EventUse::kOrder;
    bool is_used = false;
    bool is_recorded = false;
  };

  // With mutex_ held, and a spare one.
  Event take_spare_locked(EventUse use);
  // With mutex_ held. Null: unknown.
  const Slot* slot_of(Event event) const;

  const CudaDriver& driver_;
  // Guarded by mutex_.
  mutable std::mutex mutex_;
  std::vector<Slot> slots_;
  std::array<std::vector<std::uint32_t>, 2> spare_;  // Slot indices, by use.
};

}  // namespace kvtier
