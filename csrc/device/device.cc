// The checked, counted surface of every Device. Thread-safe.
#include "device/device.h"

namespace kvtier {
namespace {

// Compared as numbers: the two need not point into one object.
bool is_overlapping(const CopyPiece& piece) {
  const auto source = reinterpret_cast<std::uintptr_t>(piece.source);
  const auto target = reinterpret_cast<std::uintptr_t>(piece.target);
  const std::uintptr_t distance = source < target ? target - source : source - target;
  return distance < piece.length_bytes;
}

// Ok when the piece can be copied.
Status check_piece(const CopyPiece& piece, std::size_t piece_index) {
  if (piece.length_bytes == 0) return Status::ok();
  const std::string place = "piece_index=" + std::to_string(piece_index) +
                            " length_bytes=" + std::to_string(piece.length_bytes);
  if (piece.source == nullptr || piece.target == nullptr) {
    return Status(StatusCode::kInvalidArgument, "cannot copy piece without address: " + place);
  }
  if (is_overlapping(piece)) {
    return Status(StatusCode::kInvalidArgument, "cannot copy piece onto itself: " + place);
  }
  return Status::ok();
}

}  // namespace

Status Device::failure() {
  if (is_this_process()) return do_failure();
  return Status(StatusCode::kClosed, "cannot use the device of another process");
}

Result<std::byte*> Device::allocate(std::uint64_t length_bytes) {
  Status failed = failure();
  if (!failed.is_ok()) return failed;
  return do_allocate(length_bytes);
}

void Device::deallocate(std::byte* memory) {
  if (memory != nullptr && is_this_process()) do_deallocate(memory);
}

Result<std::byte*> Device::allocate_page_locked(std::uint64_t length_bytes) {
  Status failed = failure();
  if (!failed.is_ok()) return failed;
  return do_allocate_page_locked(length_bytes);
}

void Device::deallocate_page_locked(std::byte* memory) {
  if (memory != nullptr && is_this_process()) do_deallocate_page_locked(memory);
}

Status Device::page_lock(std::span<std::byte> memory) {
  Status failed = failure();
  return failed.is_ok() ? do_page_lock(memory) : failed;
}

void Device::page_unlock(std::byte* memory) {
  if (memory != nullptr && is_this_process()) do_page_unlock(memory);
}

Result<std::uint64_t> Device::identify_memory(const std::byte* address,
                                              std::uint64_t length_bytes) {
  Status failed = failure();
  if (!failed.is_ok()) return failed;
  return do_identify_memory(address, length_bytes);
}

Result<Event> Device::create_event(EventUse use) {
  Status failed = failure();
  if (!failed.is_ok()) return failed;
  return do_create_event(use);
}

void Device::destroy_event(Event event) {
  if (event.event_id != 0 && is_this_process()) do_destroy_event(event);
}

Status Device::record_event(Event event, StreamId stream) {
  Status failed = failure();
  return failed.is_ok() ? do_record_event(event, stream) : failed;
}

Status Device::order_stream_after(StreamId stream, Event event) {
  Status failed = failure();
  return failed.is_ok() ? do_order_stream_after(stream, event) : failed;
}

Result<bool> Device::query_event(Event event) {
  Status failed = failure();
  if (!failed.is_ok()) return failed;
  return do_query_event(event);
}

Status Device::wait_event(Event event, TimeNs deadline_ns) {
  Status failed = failure();
  return failed.is_ok() ? do_wait_event(event, deadline_ns) : failed;
}

Result<TimeNs> Device::elapsed_ns(Event begin, Event end) {
  Status failed = failure();
  if (!failed.is_ok()) return failed;
  return do_elapsed_ns(begin, end);
}

Result<LaneId> Device::create_lane(LanePriority priority) {
  Status failed = failure();
  if (!failed.is_ok()) return failed;
  return do_create_lane(priority);
}

void Device::destroy_lane(LaneId lane) {
  if (is_this_process()) do_destroy_lane(lane);
}

Status Device::order_lane_after(LaneId lane, Event event) {
  Status failed = failure();
  return failed.is_ok() ? do_order_lane_after(lane, event) : failed;
}

Status Device::record_lane(LaneId lane, Event event) {
  Status failed = failure();
  return failed.is_ok() ? do_record_lane(lane, event) : failed;
}

Status Device::submit_copies(LaneId lane, std::span<const CopyPiece> pieces) {
  Status failed = failure();
  if (!failed.is_ok()) return failed;
  std::uint64_t length_bytes = 0;
  for (std::size_t index = 0; index < pieces.size(); ++index) {
    Status refused = check_piece(pieces[index], index);
    if (!refused.is_ok()) return refused;
    length_bytes += pieces[index].length_bytes;
  }
  Status submitted = do_submit_copies(lane, pieces);
  if (!submitted.is_ok()) return submitted;
  num_batches_.fetch_add(1, std::memory_order_relaxed);
  submitted_bytes_.fetch_add(length_bytes, std::memory_order_relaxed);
  return submitted;
}

Result<std::uint32_t> Device::create_fragment_table(const FragmentTable& table) {
  Status failed = failure();
  if (!failed.is_ok()) return failed;
  return do_create_fragment_table(table);
}

void Device::destroy_fragment_table(std::uint32_t table_id) {
  if (is_this_process()) do_destroy_fragment_table(table_id);
}

Status Device::submit_block_copy(LaneId lane, const BlockCopy& op) {
  Status failed = failure();
  if (!failed.is_ok()) return failed;
  if (op.places.size() > kBlockPlacesMax || op.num_ctas == 0) {
    return Status(StatusCode::kInvalidArgument,
                  "cannot copy blocks: num_places=" + std::to_string(op.places.size()) +
                      " num_places_max=" + std::to_string(kBlockPlacesMax) +
                      " num_ctas=" + std::to_string(op.num_ctas));
  }
  return do_submit_block_copy(lane, op);
}

Status check_block_copy(const BlockCopy& op, const FragmentTable& table) {
  const std::uint64_t num_leaves_max = op.places.size() * std::uint64_t{table.leaves_per_block()};
  if (std::uint64_t{op.first_leaf} + op.num_leaves > num_leaves_max) {
    return Status(StatusCode::kInvalidArgument,
                  "cannot copy leaves out of range: first_leaf=" + std::to_string(op.first_leaf) +
                      " num_leaves=" + std::to_string(op.num_leaves) +
                      " num_leaves_max=" + std::to_string(num_leaves_max));
  }
  for (const BlockPlace& place : op.places) {
    if (place.block_id < 0 || static_cast<std::uint64_t>(place.block_id) >= table.num_blocks()) {
      return Status(StatusCode::kInvalidArgument,
                    "cannot copy block out of range: block_id=" + std::to_string(place.block_id) +
                        " num_blocks=" + std::to_string(table.num_blocks()));
    }
  }
  return Status::ok();
}

}  // namespace kvtier
