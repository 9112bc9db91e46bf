// Events and lanes of the CUDA device. Thread-safe.
#include <string>
#include <thread>

#include "device/cuda_device_impl.h"

namespace kvtier {
namespace {

constexpr unsigned kStreamNonBlocking = 1;
// The default streams: legacy, legacy by name, per thread. They belong to the current context.
constexpr std::uint64_t kNamedStreamsMax = 2;

}  // namespace

Result<Event> CudaDevice::do_create_event(EventUse use) {
  const Event spare = events_.take_spare(use);
  if (spare.event_id != 0) return spare;
  const CudaContextScope scope(driver_, context_);
  Status good = entered(scope);
  if (!good.is_ok()) return good;
  return events_.create(use);
}

Result<CudaStream> CudaDevice::find_stream(StreamId stream) {
  const auto handle = reinterpret_cast<CudaStream>(stream.stream_id);
  if (stream.stream_id > kNamedStreamsMax) {
    // The driver would follow any number, into the void.
    if (stream.stream_id != last_stream_id_.load(std::memory_order_relaxed)) {
      if (!driver_.is_readable(handle)) {
        return Status(StatusCode::kInvalidArgument,
                      "no stream is there: stream=" + std::to_string(stream.stream_id));
      }
      last_stream_id_.store(stream.stream_id, std::memory_order_relaxed);
    }
    CudaContext owner = nullptr;
    Status good = checked(driver_.stream_context(handle, &owner), "use stream");
    if (!good.is_ok()) return Status(StatusCode::kInvalidArgument, good.message());
    if (owner != context_) {
      return Status(StatusCode::kInvalidArgument,
                    "cannot use stream of another device: the device is " + info_.name);
    }
  }
  int capture_status = 0;
  const CudaResult asked = driver_.stream_is_capturing(handle, &capture_status);
  if (asked != kCudaSuccess || capture_status != 0) {
    Status good = checked(asked, "use stream");
    return Status(StatusCode::kInvalidArgument,
                  good.is_ok() ? "cannot use stream while it is being captured" : good.message());
  }
  return handle;
}

Status CudaDevice::record(Event event, CudaStream stream) {
  Result<CudaEvent> found = events_.find(event);
  if (!found.is_ok()) return found.status();
  Status recorded = checked(driver_.event_record(found.value(), stream), "record event");
  if (recorded.is_ok()) events_.mark_recorded(event);
  return recorded;
}

Status CudaDevice::order_after(CudaStream stream, Event event) {
  Result<CudaEvent> found = events_.find_recorded(event);
  if (!found.is_ok()) return found.status();
  return checked(driver_.stream_wait_event(stream, found.value(), 0), "wait for event");
}

Status CudaDevice::do_record_event(Event event, StreamId stream) {
  const CudaContextScope scope(driver_, context_);
  Status good = entered(scope);
  if (!good.is_ok()) return good;
  Result<CudaStream> found = find_stream(stream);
  if (!found.is_ok()) return found.status();
  good = record(event, found.value());
  if (!good.is_ok()) return good;
  // Another thread may have begun a capture since the stream was asked: the event then stands for
  // nothing that will ever run.
  found = find_stream(stream);
  if (found.is_ok()) return good;
  events_.forget_recording(event);
  return found.status();
}

Status CudaDevice::do_order_stream_after(StreamId stream, Event event) {
  const CudaContextScope scope(driver_, context_);
  Status good = entered(scope);
  if (!good.is_ok()) return good;
  Result<CudaStream> found = find_stream(stream);
  if (!found.is_ok()) return found.status();
  good = order_after(found.value(), event);
  if (!good.is_ok()) return good;
  // As above; a wait that went into a graph holds nothing back.
  return find_stream(stream).status();
}

Result<bool> CudaDevice::do_query_event(Event event) {
  Result<CudaEvent> found = events_.find_recorded(event);
  if (!found.is_ok()) return found.status();
  const CudaContextScope scope(driver_, context_);
  Status good = entered(scope);
  if (!good.is_ok()) return good;
  const CudaResult answer = driver_.event_query(found.value());
  if (answer == kCudaErrorNotReady) return false;
  good = checked(answer, "query event");
  if (!good.is_ok()) return good;
  return true;
}

Status CudaDevice::do_wait_event(Event event, TimeNs deadline_ns) {
  SystemClock clock;
  while (true) {
    Result<bool> answer = do_query_event(event);
    if (!answer.is_ok()) return answer.status();
    if (answer.value()) return Status::ok();
    if (clock.now_ns() >= deadline_ns) {
      return Status(StatusCode::kTimeout,
                    "cannot wait for event: event_id=" + std::to_string(event.event_id) +
                        " deadline_ns=" + std::to_string(deadline_ns));
    }
    std::this_thread::yield();
  }
}

Result<TimeNs> CudaDevice::do_elapsed_ns(Event begin, Event end) {
  Result<CudaEvent> first = events_.find_recorded(begin);
  if (!first.is_ok()) return first.status();
  Result<CudaEvent> last = events_.find_recorded(end);
  if (!last.is_ok()) return last.status();
  const CudaContextScope scope(driver_, context_);
  Status good = entered(scope);
  if (!good.is_ok()) return good;
  float milliseconds = 0;
  good = checked(driver_.event_elapsed(&milliseconds, first.value(), last.value()),
                 "measure between events");
  if (!good.is_ok()) return good;
  return static_cast<TimeNs>(double{milliseconds} * 1e6);
}

Result<LaneId> CudaDevice::do_create_lane(LanePriority priority) {
  const CudaContextScope scope(driver_, context_);
  Status good = entered(scope);
  if (!good.is_ok()) return good;
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<LaneId>& spare = spare_lanes_[static_cast<std::size_t>(priority)];
  if (!spare.empty()) {
    const LaneId lane = spare.back();
    spare.pop_back();
    return lane;
  }
  const std::uint32_t lane_index = num_lanes_.load(std::memory_order_relaxed);
  if (lane_index == kLanesMax) {
    return Status(StatusCode::kExhausted,
                  "cannot create lane: num_lanes_max=" + std::to_string(kLanesMax));
  }
  int least = 0;
  int greatest = 0;
  (void)driver_.priority_range(&least, &greatest);
  const CudaResult made = driver_.stream_create(&lanes_[lane_index], kStreamNonBlocking,
                                                priority == LanePriority::kLoad ? greatest : least);
  if (made != kCudaSuccess) return cuda_status(driver_, made, "create lane");
  lane_priorities_[lane_index] = priority;
  num_lanes_.store(lane_index + 1, std::memory_order_release);
  return LaneId{lane_index};
}

void CudaDevice::do_destroy_lane(LaneId lane) {
  std::lock_guard<std::mutex> lock(mutex_);
  const LanePriority priority = lane_priorities_[lane.lane_index];
  spare_lanes_[static_cast<std::size_t>(priority)].push_back(lane);
}

Result<CudaStream> CudaDevice::find_lane(LaneId lane) const {
  if (lane.lane_index < num_lanes_.load(std::memory_order_acquire)) return lanes_[lane.lane_index];
  return Status(StatusCode::kInvalidArgument,
                "cannot use unknown lane: lane_index=" + std::to_string(lane.lane_index));
}

Status CudaDevice::do_order_lane_after(LaneId lane, Event event) {
  Result<CudaStream> found = find_lane(lane);
  if (!found.is_ok()) return found.status();
  const CudaContextScope scope(driver_, context_);
  Status good = entered(scope);
  return good.is_ok() ? order_after(found.value(), event) : good;
}

Status CudaDevice::do_record_lane(LaneId lane, Event event) {
  Result<CudaStream> found = find_lane(lane);
  if (!found.is_ok()) return found.status();
  const CudaContextScope scope(driver_, context_);
  Status good = entered(scope);
  return good.is_ok() ? record(event, found.value()) : good;
}

}  // namespace kvtier
