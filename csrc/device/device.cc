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

Result<Event> Device::create_event() {
  Status failed = failure();
  if (!failed.is_ok()) return failed;
  return do_create_event();
}

void Device::destroy_event(Event event) {
  if (event.event_id != 0) do_destroy_event(event);
}

Status Device::record_event(Event event, StreamId stream) {
  Status failed = failure();
  return failed.is_ok() ? do_record_event(event, stream) : failed;
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

Result<Event> Device::submit_copies(std::span<const CopyPiece> pieces, Event ready) {
  Status failed = failure();
  if (!failed.is_ok()) return failed;
  std::uint64_t length_bytes = 0;
  for (std::size_t index = 0; index < pieces.size(); ++index) {
    Status refused = check_piece(pieces[index], index);
    if (!refused.is_ok()) return refused;
    length_bytes += pieces[index].length_bytes;
  }
  Result<Event> done = do_submit_copies(pieces, ready);
  if (!done.is_ok()) return done;
  num_batches_.fetch_add(1, std::memory_order_relaxed);
  submitted_bytes_.fetch_add(length_bytes, std::memory_order_relaxed);
  return done;
}

}  // namespace kvtier
