// SinkDevice: a Device that takes every call and does nothing, so that what is measured over it is
// its caller's own work. Thread-safe.
#pragma once

#include <cstdlib>

#include "device/device.h"

namespace kvtier {

class SinkDevice final : public Device {
 private:
  // As a GPU's; addresses are numbers to it, and are never read.
  DeviceInfo do_info() const override {
    DeviceInfo info;
    info.name = "sink";
    info.kind = DeviceKind::kCuda;
    info.has_kernels = true;
    info.can_kernels_reach_host = true;
    info.can_kernels_reach_registered = true;
    return info;
  }
  Result<std::byte*> do_allocate(std::uint64_t length_bytes) override {
    return static_cast<std::byte*>(std::calloc(length_bytes, 1));
  }
  void do_deallocate(std::byte* memory) override { std::free(memory); }
  Result<std::byte*> do_allocate_page_locked(std::uint64_t length_bytes) override {
    return do_allocate(length_bytes);
  }
  void do_deallocate_page_locked(std::byte* memory) override { std::free(memory); }
  Status do_page_lock(std::span<std::byte> /*memory*/) override { return Status::ok(); }
  void do_page_unlock(std::byte* /*memory*/) override {}
  Result<std::uint64_t> do_identify_memory(const std::byte* /*address*/,
                                           std::uint64_t /*length_bytes*/) override {
    return std::uint64_t{1};
  }
  Result<Event> do_create_event(EventUse /*use*/) override { return Event{1}; }
  void do_destroy_event(Event /*event*/) override {}
  Status do_record_event(Event /*event*/, StreamId /*stream*/) override { return Status::ok(); }
  Status do_order_stream_after(StreamId /*stream*/, Event /*event*/) override {
    return Status::ok();
  }
  Result<bool> do_query_event(Event /*event*/) override { return true; }
  Status do_wait_event(Event /*event*/, TimeNs /*deadline_ns*/) override { return Status::ok(); }
  Result<TimeNs> do_elapsed_ns(Event /*begin*/, Event /*end*/) override { return TimeNs{1}; }
  Result<LaneId> do_create_lane(LanePriority /*priority*/) override { return LaneId{0}; }
  void do_destroy_lane(LaneId /*lane*/) override {}
  Status do_order_lane_after(LaneId /*lane*/, Event /*event*/) override { return Status::ok(); }
  Status do_record_lane(LaneId /*lane*/, Event /*event*/) override { return Status::ok(); }
  Status do_submit_copies(LaneId /*lane*/, std::span<const CopyPiece> /*pieces*/) override {
    return Status::ok();
  }
  Result<std::uint32_t> do_create_fragment_table(const FragmentTable& /*table*/) override {
    return std::uint32_t{1};
  }
  void do_destroy_fragment_table(std::uint32_t /*table_id*/) override {}
  Status do_submit_block_copy(LaneId /*lane*/, const BlockCopy& /*op*/) override {
    return Status::ok();
  }
  Status do_failure() override { return Status::ok(); }
};

}  // namespace kvtier
