// The checked, counted surface of every IoEngine. Thread-safe.
#include "io/io_engine.h"

#include <utility>

namespace kvtier {
namespace {

constexpr std::uint64_t kFileOffsetMax = INT64_MAX;

// An empty string: the op can be taken.
std::string refusal(const IoOp& op) {
  if (op.kind == IoKind::kTask) return op.task ? "" : "cannot run task: no function";
  if (op.fd < 0) return "cannot queue op: fd=" + std::to_string(op.fd);
  std::uint64_t length_bytes = 0;
  for (const auto& piece : op.pieces) {
    if (piece.data() == nullptr && !piece.empty())
      return "cannot queue op: a piece without address";
    length_bytes += piece.size();
    if (length_bytes > kFileOffsetMax) break;
  }
  if (op.offset_bytes > kFileOffsetMax || length_bytes > kFileOffsetMax - op.offset_bytes) {
    return "cannot queue op: ends beyond 2^63: offset_bytes=" + std::to_string(op.offset_bytes) +
           " length_bytes=" + std::to_string(length_bytes);
  }
  return "";
}

}  // namespace

std::uint64_t IoOp::length_bytes() const {
  std::uint64_t total_bytes = 0;
  for (const auto& piece : pieces) total_bytes += piece.size();
  return total_bytes;
}

Status IoEngine::submit(std::vector<IoOp> ops) {
  if (is_stopped_.load(std::memory_order_acquire)) {
    return Status(StatusCode::kClosed, "cannot queue op: the I/O engine is stopped");
  }
  for (const IoOp& op : ops) {
    std::string text = refusal(op);
    if (!text.empty()) return Status(StatusCode::kInvalidArgument, std::move(text));
  }
  if (ops.empty()) return Status::ok();
  std::size_t before = num_in_flight_.load(std::memory_order_acquire);
  do {
    // Counting unpolled results too bounds the list of results along with the queue.
    if (ops.size() > kQueuedOpsMax || before > kQueuedOpsMax - ops.size()) {
      return Status(StatusCode::kExhausted,
                    "cannot queue ops: num_in_flight=" + std::to_string(before) + " num_ops=" +
                        std::to_string(ops.size()) + " max=" + std::to_string(kQueuedOpsMax));
    }
  } while (!num_in_flight_.compare_exchange_weak(before, before + ops.size(),
                                                 std::memory_order_acq_rel));
  do_submit(std::move(ops));
  return Status::ok();
}

std::size_t IoEngine::poll(std::vector<IoResult>& results) {
  const std::size_t num_polled = do_poll(results);
  num_in_flight_.fetch_sub(num_polled, std::memory_order_acq_rel);
  return num_polled;
}

void IoEngine::set_on_result(std::function<void()> on_result) {
  do_set_on_result(std::move(on_result));
}

bool IoEngine::stop(TimeNs deadline_ns) {
  is_stopped_.store(true, std::memory_order_release);
  return do_stop(deadline_ns);
}

}  // namespace kvtier
