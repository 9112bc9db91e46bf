// How the reference device gets through its queues: the first that is due, by time, then by
// submission. Thread safety: with the device's mutex held, but for the
// bytes' own way.
#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "base/checksum.h"
#include "base/wait_piece.h"
#include "device/host_block_copy.h"
#include "device/host_device.h"

namespace kvtier {
namespace {

void copy(std::span<const CopyPiece> pieces) {
  for (const CopyPiece& piece : pieces) {
    if (piece.length_bytes == 0) continue;
    copy_bytes({piece.target, piece.length_bytes}, {piece.source, piece.length_bytes});
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

bool HostDevice::is_blocked(const Op& op) const {
  return op.kind == OpKind::kWait && !op.point->is_complete;
}

TimeNs HostDevice::end_ns_of(const Queue& queue, const Op& op) const {
  TimeNs begin_ns = std::max(queue.free_ns, op.submitted_ns);
  if (op.kind == OpKind::kWait) begin_ns = std::max(begin_ns, op.point->complete_ns);
  return deadline_after(begin_ns, op.duration_ns);
}

// The queue whose first op is due: the first by time, then by submission. Null: none is.
HostDevice::Queue* HostDevice::find_due_queue() {
  const TimeNs now_ns = clock_.now_ns();
  Queue* found = nullptr;
  std::pair<TimeNs, std::uint64_t> found_order;
  const auto look_at = [&](Queue& queue) {
    if (queue.ops.empty() || is_blocked(queue.ops.front())) return;
    const std::pair order(end_ns_of(queue, queue.ops.front()), queue.ops.front().op_id);
    if (order.first >= kNeverNs || order.first > now_ns) return;
    if (found != nullptr && found_order < order) return;
    found = &queue;
    found_order = order;
  };
  for (Queue& lane : lanes_) look_at(lane);
  for (auto& [stream_id, queue] : streams_) look_at(queue);
  return found;
}

// Takes the effect of the queue's first op. False: the device failed by it, or meanwhile.
bool HostDevice::end_op(Queue& queue, std::unique_lock<std::mutex>& lock) {
  // It stays at the head of its queue until it has ended: what is recorded behind it is not
  // complete before.
  const Op op = std::move(queue.ops.front());
  queue.free_ns = end_ns_of(queue, op);
  if (op.is_failing) {
    copy_half(op.pieces);
    fail_locked(copy_failure_);
    return false;
  }
  if (op.kind == OpKind::kRecord) *op.point = {true, queue.free_ns};
  if (op.kind == OpKind::kKernel) op.run();
  if (op.kind == OpKind::kCopies || op.kind == OpKind::kBlockCopy) {
    // Milliseconds, in which others submit and ask.
    lock.unlock();
    Status moved = move_bytes(op);
    lock.lock();
    if (!moved.is_ok()) fail_locked(std::move(moved));
    if (!failure_.is_ok()) return false;
  }
  queue.ops.pop_front();
  --num_ops_;
  return true;
}

Status HostDevice::move_bytes(const Op& op) {
  try {
    if (op.kind == OpKind::kCopies) copy(op.pieces);
    if (op.kind == OpKind::kBlockCopy) run_block_copy(*op.table, op.block_copy);
  } catch (const std::exception& error) {
    return Status(StatusCode::kInternal, std::string("cannot copy: ") + error.what());
  }
  return Status::ok();
}

std::size_t HostDevice::run_due_locked(std::unique_lock<std::mutex>& lock) {
  // One at a time, so that each queue keeps its order.
  if (is_running_) return 0;
  is_running_ = true;
  std::size_t num_ended = 0;
  while (Queue* queue = find_due_queue()) {
    const OpKind kind = queue->ops.front().kind;
    if (kind != OpKind::kRecord && kind != OpKind::kWait) ++num_ended;
    if (!end_op(*queue, lock)) break;
  }
  is_running_ = false;
  return num_ended;
}

Status HostDevice::push(Queue& queue, Op op) {
  if (num_ops_ == kOpsInFlightMax) {
    return Status(StatusCode::kExhausted,
                  "cannot submit op: num_ops_max=" + std::to_string(kOpsInFlightMax));
  }
  op.op_id = ++last_op_id_;
  op.submitted_ns = clock_.now_ns();
  ++num_ops_;
  if (op.kind == OpKind::kCopies || op.kind == OpKind::kBlockCopy) {
    op.duration_ns = op.kind == OpKind::kCopies ? copy_delay_ns_ : block_copy_delay_ns_;
    op.is_failing = ++num_copies_ == failing_copy_;
  }
  queue.ops.push_back(std::move(op));
  return Status::ok();
}

}  // namespace kvtier
