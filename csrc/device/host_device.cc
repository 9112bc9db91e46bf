// The reference device: memcpy at scripted times. Thread-safe.
#include "device/host_device.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>

namespace kvtier {
namespace {

constexpr std::size_t kAllocationAlignment = 4096;

Status unknown(const char* what, std::uint64_t id) {
  return Status(StatusCode::kInvalidArgument,
                std::string("cannot use unknown ") + what + std::to_string(id));
}

}  // namespace

HostDevice::~HostDevice() {
  for (const auto& [memory, length_bytes] : allocations_) std::free(memory);
}

void HostDevice::set_copy_delay_ns(TimeNs delay_ns) {
  std::lock_guard<std::mutex> lock(mutex_);
  copy_delay_ns_ = delay_ns;
  block_copy_delay_ns_ = delay_ns;
}

void HostDevice::set_block_copy_delay_ns(TimeNs delay_ns) {
  std::lock_guard<std::mutex> lock(mutex_);
  block_copy_delay_ns_ = delay_ns;
}

std::uint64_t HostDevice::num_lane_orders() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return num_lane_orders_;
}

void HostDevice::leave_out_lane_order_after(std::uint64_t num_orders) {
  std::lock_guard<std::mutex> lock(mutex_);
  missing_lane_order_ = num_lane_orders_ + num_orders + 1;
}

void HostDevice::submit_kernel(StreamId stream, TimeNs duration_ns, std::function<void()> run) {
  std::lock_guard<std::mutex> lock(mutex_);
  Op op;
  op.kind = OpKind::kKernel;
  op.duration_ns = duration_ns;
  op.run = std::move(run);
  KVTIER_CHECK(push(streams_[stream.stream_id], std::move(op)).is_ok());
}

void HostDevice::fail_copy_after(std::uint64_t num_copies, Status failure) {
  KVTIER_CHECK(!failure.is_ok());
  std::lock_guard<std::mutex> lock(mutex_);
  failing_copy_ = num_copies_ + num_copies + 1;
  copy_failure_ = std::move(failure);
}

void HostDevice::fail_device(Status failure) {
  KVTIER_CHECK(!failure.is_ok());
  std::lock_guard<std::mutex> lock(mutex_);
  fail_locked(std::move(failure));
}

void HostDevice::fail_locked(Status failure) {
  if (failure_.is_ok()) failure_ = std::move(failure);
  for (Queue& lane : lanes_) lane.ops.clear();
  streams_.clear();
  num_ops_ = 0;
}

void HostDevice::set_page_lock_limit_bytes(std::uint64_t limit_bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  page_lock_limit_bytes_ = limit_bytes;
}

std::uint64_t HostDevice::page_locked_bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::uint64_t sum_bytes = 0;
  for (const auto& [memory, length_bytes] : page_locked_) sum_bytes += length_bytes;
  return sum_bytes;
}

void HostDevice::set_memory_unified(bool is_unified) {
  is_memory_unified_.store(is_unified, std::memory_order_relaxed);
}

std::size_t HostDevice::run_due() {
  std::unique_lock<std::mutex> lock(mutex_);
  return run_due_locked(lock);
}

TimeNs HostDevice::next_due_ns() const {
  std::lock_guard<std::mutex> lock(mutex_);
  TimeNs next_ns = kNeverNs;
  const auto look_at = [&](const Queue& queue) {
    if (queue.ops.empty() || is_blocked(queue.ops.front())) return;
    next_ns = std::min(next_ns, end_ns_of(queue, queue.ops.front()));
  };
  for (const Queue& lane : lanes_) look_at(lane);
  for (const auto& [stream_id, queue] : streams_) look_at(queue);
  return next_ns;
}

DeviceInfo HostDevice::do_info() const {
  DeviceInfo info;
  info.name = info.identity = "host";
  info.is_memory_unified = is_memory_unified_.load(std::memory_order_relaxed);
  info.has_kernels = info.can_kernels_reach_host = info.can_kernels_reach_registered = true;
  return info;
}

Result<std::byte*> HostDevice::do_allocate(std::uint64_t length_bytes) {
  const std::uint64_t padded_bytes =
      (length_bytes + kAllocationAlignment - 1) / kAllocationAlignment * kAllocationAlignment;
  auto* memory = static_cast<std::byte*>(
      std::aligned_alloc(kAllocationAlignment, std::max(padded_bytes, kAllocationAlignment)));
  if (memory == nullptr) {
    return Status(StatusCode::kExhausted,
                  "cannot allocate memory: need_bytes=" + std::to_string(length_bytes));
  }
  std::lock_guard<std::mutex> lock(mutex_);
  allocations_[memory] = length_bytes;
  return memory;
}

void HostDevice::do_deallocate(std::byte* memory) {
  std::lock_guard<std::mutex> lock(mutex_);
  KVTIER_CHECK(allocations_.erase(memory) == 1);
  std::free(memory);
}

Result<std::byte*> HostDevice::do_allocate_page_locked(std::uint64_t length_bytes) {
  return do_allocate(length_bytes);
}

void HostDevice::do_deallocate_page_locked(std::byte* memory) { do_deallocate(memory); }

Status HostDevice::do_page_lock(std::span<std::byte> memory) {
  const std::uint64_t locked_bytes = page_locked_bytes();
  std::lock_guard<std::mutex> lock(mutex_);
  if (memory.size() > page_lock_limit_bytes_ - std::min(page_lock_limit_bytes_, locked_bytes)) {
    return Status(StatusCode::kExhausted,
                  "cannot page-lock memory: need_bytes=" + std::to_string(memory.size()) +
                      " limit_bytes=" + std::to_string(page_lock_limit_bytes_));
  }
  page_locked_[memory.data()] = memory.size();
  return Status::ok();
}

void HostDevice::do_page_unlock(std::byte* memory) {
  std::lock_guard<std::mutex> lock(mutex_);
  KVTIER_CHECK(page_locked_.erase(memory) == 1);
}

void HostDevice::forget_memory(const std::byte* address) {
  std::lock_guard<std::mutex> lock(mutex_);
  forgotten_.insert(address);
}

Result<std::uint64_t> HostDevice::do_identify_memory(const std::byte* address,
                                                     std::uint64_t length_bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto next = forgotten_.lower_bound(address);
  const bool is_forgotten = next != forgotten_.end() && *next < address + length_bytes;
  if (address != nullptr && !is_forgotten) return std::uint64_t{1};
  return Status(StatusCode::kInvalidArgument, "cannot use memory that is not there");
}

Result<Event> HostDevice::do_create_event(EventUse /*use*/) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (events_.size() == kEventsMax) {
    return Status(StatusCode::kExhausted,
                  "cannot create event: num_events_max=" + std::to_string(kEventsMax));
  }
  events_[++last_event_id_] = nullptr;
  return Event{last_event_id_};
}

void HostDevice::do_destroy_event(Event event) {
  std::lock_guard<std::mutex> lock(mutex_);
  events_.erase(event.event_id);
}

Result<std::shared_ptr<HostDevice::Point>> HostDevice::find_recorded(Event event) const {
  const auto entry = events_.find(event.event_id);
  if (entry == events_.end()) return unknown("event: event_id=", event.event_id);
  if (entry->second != nullptr) return entry->second;
  return Status(StatusCode::kInvalidArgument, "cannot use event before it was recorded: event_id=" +
                                                  std::to_string(event.event_id));
}

Result<HostDevice::Queue*> HostDevice::find_lane(LaneId lane) {
  if (lane.lane_index >= lanes_.size()) return unknown("lane: lane_index=", lane.lane_index);
  return &lanes_[lane.lane_index];
}

Status HostDevice::record(Event event, Queue& queue) {
  const auto entry = events_.find(event.event_id);
  if (entry == events_.end()) return unknown("event: event_id=", event.event_id);
  entry->second = std::make_shared<Point>();
  if (queue.ops.empty()) {
    *entry->second = {true, clock_.now_ns()};
    return Status::ok();
  }
  Op op;
  op.kind = OpKind::kRecord;
  op.point = entry->second;
  return push(queue, std::move(op));
}

Status HostDevice::order_after(Queue& queue, Event event) {
  Result<std::shared_ptr<Point>> found = find_recorded(event);
  if (!found.is_ok()) return found.status();
  if (queue.ops.empty() && found.value()->is_complete) return Status::ok();
  Op op;
  op.kind = OpKind::kWait;
  op.point = found.value();
  return push(queue, std::move(op));
}

Status HostDevice::do_record_event(Event event, StreamId stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  return record(event, streams_[stream.stream_id]);
}

Status HostDevice::do_order_stream_after(StreamId stream, Event event) {
  std::lock_guard<std::mutex> lock(mutex_);
  return order_after(streams_[stream.stream_id], event);
}

Result<bool> HostDevice::do_query_event(Event event) {
  std::lock_guard<std::mutex> lock(mutex_);
  Result<std::shared_ptr<Point>> found = find_recorded(event);
  if (!found.is_ok()) return found.status();
  return found.value()->is_complete;
}

Status HostDevice::do_wait_event(Event event, TimeNs deadline_ns) {
  std::unique_lock<std::mutex> lock(mutex_);
  Result<std::shared_ptr<Point>> found = find_recorded(event);
  if (!found.is_ok()) return found.status();
  run_due_locked(lock);
  if (!failure_.is_ok()) return failure_;
  if (found.value()->is_complete) return Status::ok();
  return Status(StatusCode::kTimeout,
                "cannot wait for event: event_id=" + std::to_string(event.event_id) +
                    " deadline_ns=" + std::to_string(deadline_ns));
}

Result<TimeNs> HostDevice::do_elapsed_ns(Event begin, Event end) {
  std::lock_guard<std::mutex> lock(mutex_);
  Result<std::shared_ptr<Point>> first = find_recorded(begin);
  Result<std::shared_ptr<Point>> last = find_recorded(end);
  if (!first.is_ok()) return first.status();
  if (!last.is_ok()) return last.status();
  if (!first.value()->is_complete || !last.value()->is_complete) {
    return Status(StatusCode::kBusy, "cannot measure between events: not both are complete");
  }
  return last.value()->complete_ns - first.value()->complete_ns;
}

Result<LaneId> HostDevice::do_create_lane(LanePriority /*priority*/) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!spare_lanes_.empty()) {
    const LaneId spare = spare_lanes_.back();
    spare_lanes_.pop_back();
    return spare;
  }
  if (lanes_.size() == kLanesMax) {
    return Status(StatusCode::kExhausted,
                  "cannot create lane: num_lanes_max=" + std::to_string(kLanesMax));
  }
  lanes_.emplace_back();
  return LaneId{static_cast<std::uint32_t>(lanes_.size() - 1)};
}

void HostDevice::do_destroy_lane(LaneId lane) {
  std::lock_guard<std::mutex> lock(mutex_);
  spare_lanes_.push_back(lane);
}

Status HostDevice::do_order_lane_after(LaneId lane, Event event) {
  std::lock_guard<std::mutex> lock(mutex_);
  Result<Queue*> queue = find_lane(lane);
  if (!queue.is_ok()) return queue.status();
  if (++num_lane_orders_ == missing_lane_order_) return Status::ok();
  return order_after(*queue.value(), event);
}

Status HostDevice::do_record_lane(LaneId lane, Event event) {
  std::lock_guard<std::mutex> lock(mutex_);
  Result<Queue*> queue = find_lane(lane);
  return queue.is_ok() ? record(event, *queue.value()) : queue.status();
}

Status HostDevice::do_submit_copies(LaneId lane, std::span<const CopyPiece> pieces) {
  std::lock_guard<std::mutex> lock(mutex_);
  Result<Queue*> queue = find_lane(lane);
  if (!queue.is_ok()) return queue.status();
  Op op;
  op.kind = OpKind::kCopies;
  op.pieces.assign(pieces.begin(), pieces.end());
  return push(*queue.value(), std::move(op));
}

Result<std::uint32_t> HostDevice::do_create_fragment_table(const FragmentTable& table) {
  std::lock_guard<std::mutex> lock(mutex_);
  tables_[++last_table_id_] = std::make_shared<const FragmentTable>(table);
  return last_table_id_;
}

void HostDevice::do_destroy_fragment_table(std::uint32_t table_id) {
  std::lock_guard<std::mutex> lock(mutex_);
  tables_.erase(table_id);
}

Status HostDevice::do_submit_block_copy(LaneId lane, const BlockCopy& block_copy) {
  std::lock_guard<std::mutex> lock(mutex_);
  Result<Queue*> queue = find_lane(lane);
  if (!queue.is_ok()) return queue.status();
  const auto table = tables_.find(block_copy.table_id);
  if (table == tables_.end()) return unknown("fragment table: table_id=", block_copy.table_id);
  Status good = check_block_copy(block_copy, *table->second);
  if (!good.is_ok()) return good;
  Op op;
  op.kind = OpKind::kBlockCopy;
  op.table = table->second;
  op.places.assign(block_copy.places.begin(), block_copy.places.end());
  op.block_copy = block_copy;
  // The vector's storage moves along with the op, so the span stays good.
  op.block_copy.places = op.places;
  return push(*queue.value(), std::move(op));
}

Status HostDevice::do_failure() {
  std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

}  // namespace kvtier
