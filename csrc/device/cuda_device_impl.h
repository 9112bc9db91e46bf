// The class behind open_cuda_device(). Thread-safe. Every call makes the context current for as
// long as it lasts.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <vector>

#include "device/cuda_context.h"
#include "device/cuda_events.h"
#include "device/cuda_kernels.h"
#include "device/cuda_tables.h"
#include "device/device.h"

namespace kvtier {

class CudaDevice final : public Device {
 public:
  CudaDevice(const CudaDriver& driver, CudaDeviceOrdinal device, CudaContext context);
  ~CudaDevice() override;

  Status start(int ordinal, std::span<const unsigned char> image);

 private:
  static constexpr std::size_t kOwnBuffersMax = 4096;

  DeviceInfo do_info() const override { return info_; }
  Result<std::byte*> do_allocate(std::uint64_t length_bytes) override;
  void do_deallocate(std::byte* memory) override;
  Result<std::byte*> do_allocate_page_locked(std::uint64_t length_bytes) override;
  void do_deallocate_page_locked(std::byte* memory) override;
  Status do_page_lock(std::span<std::byte> memory) override;
  void do_page_unlock(std::byte* memory) override;
  Result<std::uint64_t> do_identify_memory(const std::byte* address,
                                           std::uint64_t length_bytes) override;
  Result<Event> do_create_event(EventUse use) override;
  void do_destroy_event(Event event) override { events_.destroy(event); }
  Status do_record_event(Event event, StreamId stream) override;
  Status do_order_stream_after(StreamId stream, Event event) override;
  Result<bool> do_query_event(Event event) override;
  Status do_wait_event(Event event, TimeNs deadline_ns) override;
  Result<TimeNs> do_elapsed_ns(Event begin, Event end) override;
  Result<LaneId> do_create_lane(LanePriority priority) override;
  void do_destroy_lane(LaneId lane) override;
  Status do_order_lane_after(LaneId lane, Event event) override;
  Status do_record_lane(LaneId lane, Event event) override;
  Status do_submit_copies(LaneId lane, std::span<const CopyPiece> pieces) override;
  Result<std::uint32_t> do_create_fragment_table(const FragmentTable& table) override;
  void do_destroy_fragment_table(std::uint32_t table_id) override { tables_.destroy(table_id); }
  Status do_submit_block_copy(LaneId lane, const BlockCopy& op) override;
  Status do_failure() override;

  // Whether a lane has work that has not ended.
  bool is_busy() const;
  // Ok, or what `result` says; a lost context fails the device for good.
  Status checked(CudaResult result, const char* action);
  // Ok, or why the context could not be made current: nothing may be called without it.
  Status entered(const CudaContextScope& scope) {
    return checked(scope.result(), "use the device's context");
  }
  Result<CudaStream> find_lane(LaneId lane) const;
  // Requires a scope.
  Result<CudaStream> find_stream(StreamId stream);
  Status record(Event event, CudaStream stream);
  Status order_after(CudaStream stream, Event event);
  bool is_host_memory(const std::byte* address) const;
  // Require a scope.
  Result<std::uint64_t> identify_place(CudaAddress address);
  Result<std::uint64_t> room_behind(CudaAddress address);
  CudaResult copy_batch(std::span<const CopyPiece> pieces, CudaStream stream);
  void fill_info(int ordinal);

  // Constant after start().
  const CudaDriver& driver_;
  const CudaDeviceOrdinal device_;
  const CudaContext context_;
  DeviceInfo info_;
  std::unique_ptr<CudaKernels> kernels_;  // Null: none for this device.
  CudaStream upload_stream_ = nullptr;
  // These have their own mutexes.
  CudaEvents events_;
  CudaTables tables_;
  // Guarded by mutex_.
  std::mutex mutex_;
  Status failure_;
  std::array<std::vector<LaneId>, 2> spare_lanes_;  // By priority.
  std::array<LanePriority, kLanesMax> lane_priorities_{};
  std::unordered_set<unsigned long long>
      own_buffers_;  // By the driver's number; forgotten when full.
  // Written with mutex_ held; a lane is there before its number is, hence release and acquire.
  std::array<CudaStream, kLanesMax> lanes_{};
  std::atomic<std::uint32_t> num_lanes_{0};
  // Release and acquire: whoever sees it also sees failure_.
  std::atomic<bool> has_failed_{false};
  // Relaxed: a stream that was seen to be there; another is only asked for again.
  std::atomic<std::uint64_t> last_stream_id_{0};
};

inline CudaAddress cuda_address(const std::byte* address) {
  return reinterpret_cast<CudaAddress>(address);
}

}  // namespace kvtier
