// Priorities of waiting ops, room kept free for loads, and neighbours joined. Not thread-safe.
#include "io/io_op_queue.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace kvtier {
namespace {

// Far below what the kernel takes in one call.
constexpr std::size_t kBatchPiecesMax = 256;

std::size_t index_of(IoPriority priority) { return static_cast<std::size_t>(priority); }

bool is_transfer(const IoOp& op) { return op.kind == IoKind::kRead || op.kind == IoKind::kWrite; }

}  // namespace

Status cancelled_op() {
  return Status(StatusCode::kCancelled, "cannot run op: the I/O engine was stopped before");
}

std::vector<std::span<std::byte>> IoBatch::pieces() const {
  std::vector<std::span<std::byte>> all;
  for (const IoOp& op : ops) {
    for (const auto& piece : op.pieces) {
      if (piece.empty()) continue;
      const bool is_next_to_last =
          !all.empty() && all.back().data() + all.back().size() == piece.data();
      if (is_next_to_last) {
        all.back() = {all.back().data(), all.back().size() + piece.size()};
      } else {
        all.push_back(piece);
      }
    }
  }
  return all;
}

void IoOpQueue::push(IoOp op) { waiting_[index_of(op.priority)].push_back(std::move(op)); }

bool IoOpQueue::has_room(IoPriority priority) const {
  if (priority == IoPriority::kLoad) return true;
  const std::uint32_t num_saves = num_running_[index_of(IoPriority::kSave)];
  const std::uint32_t num_controls = num_running_[index_of(IoPriority::kControl)];
  if (num_saves + num_controls >= limits_.num_background_max) return false;
  return priority == IoPriority::kControl || num_saves < limits_.num_saves_max;
}

std::optional<IoBatch> IoOpQueue::take() {
  for (std::size_t index = 0; index < kNumIoPriorities; ++index) {
    if (waiting_[index].empty() || !has_room(static_cast<IoPriority>(index))) continue;
    ++num_running_[index];
    return take_from(static_cast<IoPriority>(index));
  }
  return std::nullopt;
}

std::optional<IoBatch> IoOpQueue::take_from(IoPriority priority) {
  std::deque<IoOp>& queue = waiting_[index_of(priority)];
  if (queue.empty()) return std::nullopt;
  IoBatch batch;
  std::size_t num_pieces = 0;
  const auto append = [&] {
    batch.length_bytes += queue.front().length_bytes();
    num_pieces += queue.front().pieces.size();
    batch.ops.push_back(std::move(queue.front()));
    queue.pop_front();
  };
  append();
  if (!is_transfer(batch.ops.front())) return batch;
  // Only what stands next in line is looked at: blocks of a chain are asked for, and mostly lie, in
  // that order.
  while (!queue.empty()) {
    const IoOp& next = queue.front();
    const bool is_neighbour = next.kind == batch.kind() && next.fd == batch.fd() &&
                              next.offset_bytes == batch.offset_bytes() + batch.length_bytes;
    if (!is_neighbour || batch.length_bytes + next.length_bytes() > kBatchBytesMax) break;
    if (num_pieces + next.pieces.size() > kBatchPiecesMax) break;
    append();
  }
  return batch;
}

void IoOpQueue::finish(IoPriority priority) {
  KVTIER_CHECK(num_running_[index_of(priority)] > 0);
  --num_running_[index_of(priority)];
}

bool IoOpQueue::is_empty() const {
  return std::all_of(waiting_.begin(), waiting_.end(), [](const auto& q) { return q.empty(); });
}

bool IoOpQueue::has_waiting(IoPriority priority) const {
  return !waiting_[index_of(priority)].empty();
}

std::deque<IoOp> IoOpQueue::drain() {
  std::deque<IoOp> drained;
  for (auto& queue : waiting_) {
    for (IoOp& op : queue) drained.push_back(std::move(op));
    queue.clear();
  }
  return drained;
}

}  // namespace kvtier
