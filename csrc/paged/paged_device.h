// PagedDevice: one device on which engines keep paged tensors, and the TransferEngine that serves a
// store there. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/wait_piece.h"
#include "device/device.h"
#include "store/store.h"
#include "transfer/transfer_engine.h"

namespace kvtier::paged {

struct PagedDeviceOptions {
  int cuda_ordinal = -1;  // -1: the host itself.
  transfer::TransferOptions transfer;
};

class PagedDevice {
 public:
  /// kUnsupported: no driver, one that is too old, or no such device; else as
  /// TransferEngine::create().
  static Result<std::unique_ptr<PagedDevice>> open(const PagedDeviceOptions& options);

  /// As close() with the present as deadline.
  ~PagedDevice();
  PagedDevice(const PagedDevice&) = delete;
  PagedDevice& operator=(const PagedDevice&) = delete;

  /// Page-locks the memory of a store's slots in the background where the device gains by it, and
  /// keeps it mapped. A refusal makes transfers slower, no more. Once, before anything is attached.
  void add_memory(std::vector<HostMemory> memory);
  /// "ready", "pending", "refused" or "unneeded", with how much and why not.
  struct PageLock {
    std::string state = "unneeded";
    std::uint64_t locked_bytes = 0;
    std::string refusal;
  };
  PageLock page_lock() const;
  /// The refusal, at the first call that finds one; else empty. Cheap once that is settled.
  std::string take_refusal();

  transfer::TransferEngine& engine() { return *engine_; }
  Clock& clock() { return *clock_; }
  /// The moment `span_ns` from now.
  TimeNs deadline_ns(TimeNs span_ns) const { return deadline_after(clock_->now_ns(), span_ns); }

  /// Ends transfers and gives the memory back. False: something was still on the device at
  /// `deadline_ns` (half a second is always given); it is looked after further, and what it uses is
  /// kept. The store is closed before. May be called again, and by several threads.
  bool close(TimeNs deadline_ns);

 private:
  PagedDevice() = default;

  std::vector<HostMemory> memory_;  // Guarded by mutex_; outlives the engine, which unlocks it.

  // Constant after open() and add_memory().
  std::string refusal_;  // Of page-locking that did not even begin.
  std::unique_ptr<Clock> clock_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<transfer::TransferEngine> engine_;

  // Guarded by mutex_.
  mutable std::mutex mutex_;
  bool is_closed_ = false;

  // Relaxed: whoever is first says it.
  std::atomic<bool> is_lock_settled_{false};
};

}  // namespace kvtier::paged
