// ArenaView: a store's host memory, mapped by another process that moves blocks for it, and the
// devices that move them. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/status.h"
#include "memory/arena_handover.h"
#include "paged/paged_device.h"
#include "paged/submitted_plans.h"

namespace kvtier::paged {

class ArenaView {
 public:
  /// Maps the arenas at these places, one behind the other for offset_bytes of plans. Errors as
  /// open_arena().
  static Result<std::unique_ptr<ArenaView>> open(std::span<const ArenaPlace> places);

  /// As close() with the present as deadline.
  ~ArenaView();
  ArenaView(const ArenaView&) = delete;
  ArenaView& operator=(const ArenaView&) = delete;

  std::uint64_t num_bytes() const;
  /// Of the first arena: what plans name the store by.
  ArenaId arena_id() const { return arenas_.empty() ? ArenaId{} : arenas_.front()->id(); }
  /// Where `length_bytes` lie from that offset on; null when they do not lie in one arena.
  std::byte* address(std::uint64_t offset_bytes, std::uint64_t length_bytes) const;

  /// Opens a device at its first use and page-locks the arenas for it. kClosed; else as
  /// PagedDevice::open().
  Result<std::shared_ptr<PagedDevice>> device(const PagedDeviceOptions& options);

  /// The plans that workers of the rank have begun with; shared by all of them.
  std::shared_ptr<SubmittedPlans> submitted_plans(std::uint32_t rank);

  /// Ends what the devices do for it and unmaps the memory with the last of them. False: something
  /// was still on a device after `timeout_ns`; what it uses is kept for the rest of the process.
  bool close(TimeNs timeout_ns);

 private:
  ArenaView() = default;

  // Constant after open().
  std::vector<std::shared_ptr<const Arena>> arenas_;
  int owner_process_id_ = 0;
  // Guarded by mutex_.
  std::mutex mutex_;
  std::map<int, std::shared_ptr<PagedDevice>> devices_;                       // By CUDA ordinal.
  std::map<std::uint32_t, std::shared_ptr<SubmittedPlans>> submitted_plans_;  // By rank.
  bool is_closed_ = false;
};

}  // namespace kvtier::paged
