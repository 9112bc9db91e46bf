// DeviceDouble: a device that shows every call to the test, which may refuse it, throw or hold it
// up, and then has it done by another device. Thread-safe as far as the test's own calls are.
#pragma once

#include <functional>
#include <mutex>
#include <vector>

#include "device/device.h"

namespace kvtier::testing {

enum class DeviceCall : std::uint8_t {
  kAllocatePageLocked,
  kPageLock,
  kCreateEvent,
  kRecordEvent,
  kQueryEvent,
  kOrderLane,
  kRecordLane,
  kSubmitCopies,
  kSubmitBlockCopy,
};

class DeviceDouble final : public Device {
 public:
  /// `inner` outlives the double.
  explicit DeviceDouble(Device& inner) : inner_(inner) {}

  /// Called before each of these calls; what is not ok is the call's answer.
  std::function<Status(DeviceCall)> on_call;
  /// Called before each call that a driver would have to do.
  std::function<void()> on_any_call;
  /// Changes what info() says.
  std::function<void(DeviceInfo&)> on_info;

  /// What copies were asked for, and what contiguous memory kernels were given.
  std::vector<CopyPiece> pieces() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return pieces_;
  }
  std::vector<std::byte*> linears() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return linears_;
  }

 private:
  Status ask(DeviceCall call) {
    tell();
    return on_call == nullptr ? Status::ok() : on_call(call);
  }
  void tell() {
    if (on_any_call != nullptr) on_any_call();
  }
  /// Of a call that has no other hook.
  Device& told() {
    tell();
    return inner_;
  }

  DeviceInfo do_info() const override {
    DeviceInfo info = inner_.info();
    if (on_info != nullptr) on_info(info);
    return info;
  }
  Result<std::byte*> do_allocate(std::uint64_t length_bytes) override {
    return told().allocate(length_bytes);
  }
  void do_deallocate(std::byte* memory) override { told().deallocate(memory); }
  Result<std::byte*> do_allocate_page_locked(std::uint64_t length_bytes) override {
    Status good = ask(DeviceCall::kAllocatePageLocked);
    if (!good.is_ok()) return good;
    return inner_.allocate_page_locked(length_bytes);
  }
  void do_deallocate_page_locked(std::byte* memory) override {
    told().deallocate_page_locked(memory);
  }
  Status do_page_lock(std::span<std::byte> memory) override {
    Status good = ask(DeviceCall::kPageLock);
    return good.is_ok() ? inner_.page_lock(memory) : good;
  }
  void do_page_unlock(std::byte* memory) override { told().page_unlock(memory); }
  Result<std::uint64_t> do_identify_memory(const std::byte* address,
                                           std::uint64_t length_bytes) override {
    return told().identify_memory(address, length_bytes);
  }
  Result<Event> do_create_event(EventUse use) override {
    Status good = ask(DeviceCall::kCreateEvent);
    if (!good.is_ok()) return good;
    return inner_.create_event(use);
  }
  void do_destroy_event(Event event) override { told().destroy_event(event); }
  Status do_record_event(Event event, StreamId stream) override {
    Status good = ask(DeviceCall::kRecordEvent);
    return good.is_ok() ? inner_.record_event(event, stream) : good;
  }
  Status do_order_stream_after(StreamId stream, Event event) override {
    return told().order_stream_after(stream, event);
  }
  Result<bool> do_query_event(Event event) override {
    Status good = ask(DeviceCall::kQueryEvent);
    if (!good.is_ok()) return good;
    return inner_.query_event(event);
  }
  Status do_wait_event(Event event, TimeNs deadline_ns) override {
    return told().wait_event(event, deadline_ns);
  }
  Result<TimeNs> do_elapsed_ns(Event begin, Event end) override {
    return told().elapsed_ns(begin, end);
  }
  Result<LaneId> do_create_lane(LanePriority priority) override {
    return told().create_lane(priority);
  }
  void do_destroy_lane(LaneId lane) override { told().destroy_lane(lane); }
  Status do_order_lane_after(LaneId lane, Event event) override {
    Status good = ask(DeviceCall::kOrderLane);
    return good.is_ok() ? inner_.order_lane_after(lane, event) : good;
  }
  Status do_record_lane(LaneId lane, Event event) override {
    Status good = ask(DeviceCall::kRecordLane);
    return good.is_ok() ? inner_.record_lane(lane, event) : good;
  }
  Status do_submit_copies(LaneId lane, std::span<const CopyPiece> pieces) override {
    Status good = ask(DeviceCall::kSubmitCopies);
    if (!good.is_ok()) return good;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      pieces_.insert(pieces_.end(), pieces.begin(), pieces.end());
    }
    return inner_.submit_copies(lane, pieces);
  }
  Result<std::uint32_t> do_create_fragment_table(const FragmentTable& table) override {
    return told().create_fragment_table(table);
  }
  void do_destroy_fragment_table(std::uint32_t table_id) override {
    told().destroy_fragment_table(table_id);
  }
  Status do_submit_block_copy(LaneId lane, const BlockCopy& op) override {
    Status good = ask(DeviceCall::kSubmitBlockCopy);
    if (!good.is_ok()) return good;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      for (const BlockPlace& place : op.places) linears_.push_back(place.linear);
    }
    return inner_.submit_block_copy(lane, op);
  }
  void do_progress() override { inner_.progress(); }
  Status do_failure() override { return inner_.failure(); }

  Device& inner_;
  // Guarded by mutex_.
  mutable std::mutex mutex_;
  std::vector<CopyPiece> pieces_;
  std::vector<std::byte*> linears_;
};

}  // namespace kvtier::testing
