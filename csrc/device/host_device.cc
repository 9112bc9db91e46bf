// The reference device: memcpy at scripted times. Thread-safe.
#include "device/host_device.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace kvtier {
namespace {

TimeNs later(TimeNs time_ns, TimeNs delay_ns) {
  return time_ns >= kNeverNs - delay_ns ? kNeverNs : time_ns + delay_ns;
}

void copy(std::span<const CopyPiece> pieces) {
  for (const CopyPiece& piece : pieces) {
    if (piece.length_bytes > 0) std::memcpy(piece.target, piece.source, piece.length_bytes);
  }
}

// What a failing device leaves: some pieces whole, one in part, the rest untouched.
void copy_half(std::span<const CopyPiece> pieces) {
  const std::size_t num_whole = pieces.size() / 2;
  copy(pieces.first(num_whole));
  if (num_whole == pieces.size()) return;
  CopyPiece torn = pieces[num_whole];
  torn.length_bytes /= 2;
  copy({&torn, 1});
}

}  // namespace

void HostDevice::set_copy_delay_ns(TimeNs delay_ns) {
  std::lock_guard<std::mutex> lock(mutex_);
  copy_delay_ns_ = delay_ns;
}

void HostDevice::set_event_delay_ns(TimeNs delay_ns) {
  std::lock_guard<std::mutex> lock(mutex_);
  event_delay_ns_ = delay_ns;
}

void HostDevice::fail_batch_after(std::uint64_t num_batches, Status failure) {
  KVTIER_CHECK(!failure.is_ok());
  std::lock_guard<std::mutex> lock(mutex_);
  failing_batch_id_ = last_batch_id_ + num_batches + 1;
  batch_failure_ = std::move(failure);
}

void HostDevice::fail_device(Status failure) {
  KVTIER_CHECK(!failure.is_ok());
  std::lock_guard<std::mutex> lock(mutex_);
  if (failure_.is_ok()) failure_ = std::move(failure);
  batches_.clear();
}

std::size_t HostDevice::run_due() {
  std::lock_guard<std::mutex> lock(mutex_);
  return run_due_locked();
}

TimeNs HostDevice::next_due_ns() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return batches_.empty() ? kNeverNs : batches_[due_batch_index()].due_ns;
}

// The first by time, then by submission. Requires a batch.
std::size_t HostDevice::due_batch_index() const {
  const auto first = std::min_element(
      batches_.begin(), batches_.end(),
      [](const Batch& one, const Batch& other) { return one.due_ns < other.due_ns; });
  return static_cast<std::size_t>(first - batches_.begin());
}

std::size_t HostDevice::run_due_locked() {
  std::size_t num_ended = 0;
  while (!batches_.empty()) {
    const std::size_t index = due_batch_index();
    if (batches_[index].due_ns >= kNeverNs || batches_[index].due_ns > clock_.now_ns()) break;
    const Batch batch = std::move(batches_[index]);
    batches_.erase(batches_.begin() + static_cast<std::ptrdiff_t>(index));
    ++num_ended;
    if (batch.is_failing) {
      copy_half(batch.pieces);
      failure_ = batch_failure_;
      batches_.clear();
      break;
    }
    copy(batch.pieces);
  }
  return num_ended;
}

Result<Event> HostDevice::add_event(const EventState& state) {
  if (events_.size() == kEventsMax) {
    return Status(StatusCode::kExhausted,
                  "cannot create event: num_events_max=" + std::to_string(kEventsMax));
  }
  events_[++last_event_id_] = state;
  return Event{last_event_id_};
}

Result<HostDevice::EventState> HostDevice::find_recorded(Event event) const {
  const auto entry = events_.find(event.event_id);
  if (entry != events_.end() && entry->second.is_recorded) return entry->second;
  const char* why = entry == events_.end() ? "cannot use unknown event: event_id="
                                           : "cannot use event before it was recorded: event_id=";
  return Status(StatusCode::kInvalidArgument, why + std::to_string(event.event_id));
}

bool HostDevice::is_complete(const EventState& state) const {
  if (state.complete_ns >= kNeverNs || state.complete_ns > clock_.now_ns()) return false;
  return std::none_of(batches_.begin(), batches_.end(),
                      [&state](const Batch& batch) { return batch.batch_id == state.batch_id; });
}

Result<Event> HostDevice::do_create_event() {
  std::lock_guard<std::mutex> lock(mutex_);
  return add_event({});
}

void HostDevice::do_destroy_event(Event event) {
  std::lock_guard<std::mutex> lock(mutex_);
  events_.erase(event.event_id);
}

Status HostDevice::do_record_event(Event event, StreamId /*stream*/) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto entry = events_.find(event.event_id);
  if (entry == events_.end()) {
    return Status(StatusCode::kInvalidArgument,
                  "cannot record unknown event: event_id=" + std::to_string(event.event_id));
  }
  entry->second = {true, later(clock_.now_ns(), event_delay_ns_), 0};
  return Status::ok();
}

Result<bool> HostDevice::do_query_event(Event event) {
  std::lock_guard<std::mutex> lock(mutex_);
  Result<EventState> found = find_recorded(event);
  if (!found.is_ok()) return found.status();
  return is_complete(found.value());
}

Status HostDevice::do_wait_event(Event event, TimeNs deadline_ns) {
  std::lock_guard<std::mutex> lock(mutex_);
  Result<EventState> found = find_recorded(event);
  if (!found.is_ok()) return found.status();
  run_due_locked();
  if (!failure_.is_ok()) return failure_;
  if (is_complete(found.value())) return Status::ok();
  return Status(StatusCode::kTimeout,
                "cannot wait for event: event_id=" + std::to_string(event.event_id) +
                    " deadline_ns=" + std::to_string(deadline_ns));
}

Result<Event> HostDevice::do_submit_copies(std::span<const CopyPiece> pieces, Event ready) {
  std::lock_guard<std::mutex> lock(mutex_);
  Result<EventState> found = find_recorded(ready);
  if (!found.is_ok()) return found.status();
  if (batches_.size() == kBatchesInFlightMax) {
    return Status(StatusCode::kExhausted,
                  "cannot copy: num_batches_max=" + std::to_string(kBatchesInFlightMax));
  }
  const TimeNs ready_ns = std::max(found.value().complete_ns, clock_.now_ns());
  const TimeNs due_ns = later(ready_ns, copy_delay_ns_);
  Result<Event> done = add_event({true, due_ns, last_batch_id_ + 1});
  if (!done.is_ok()) return done;
  Batch batch{++last_batch_id_, due_ns, {pieces.begin(), pieces.end()}, false};
  batch.is_failing = batch.batch_id == failing_batch_id_;
  batches_.push_back(std::move(batch));
  return done;
}

Status HostDevice::do_failure() {
  std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

}  // namespace kvtier
