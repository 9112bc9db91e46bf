// ReadyPoint: a point in a caller's stream that transfers wait for. Constant, so thread-safe.
#pragma once

#include "device/device.h"

namespace kvtier::transfer {

class ReadyPoint {
 public:
  /// Takes over an event that was recorded; destroys it with the last job and caller that hold the
  /// point. `device` outlives the point, an engine need not.
  ReadyPoint(Device& device, Event event) : device_(device), event_(event) {}
  ~ReadyPoint() { device_.destroy_event(event_); }
  ReadyPoint(const ReadyPoint&) = delete;
  ReadyPoint& operator=(const ReadyPoint&) = delete;

  Event event() const { return event_; }
  bool is_of(const Device& device) const { return &device == &device_; }

 private:
  Device& device_;
  const Event event_;
};

}  // namespace kvtier::transfer
