// Simulated queues: priority, depth, durations. Not thread-safe.
#include "testing/sim_io_queue.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "io/io_op_queue.h"
#include "testing/sim_disk_state.h"

namespace kvtier::testing {
namespace {

Status run_task(const IoOp& op) {
  try {
    return op.task();
  } catch (const std::exception& error) {
    return Status(StatusCode::kInternal, std::string("cannot finish task: ") + error.what());
  }
}

}  // namespace

void SimIoQueue::submit(std::vector<IoOp> ops) {
  std::vector<IoResult> refused;
  for (IoOp& op : ops) {
    if (is_dead_ || is_stopped_) {
      const char* why = is_dead_ ? "cannot run op: the simulated machine crashed"
                                 : "cannot run op: the I/O engine is stopped";
      refused.push_back({op.user_data, Status(StatusCode::kClosed, why), 0});
    } else {
      waiting_[static_cast<std::size_t>(op.priority)].push_back(std::move(op));
    }
  }
  start_waiting(state_.clock().now_ns());
  if (!refused.empty()) finish(std::move(refused));
}

std::size_t SimIoQueue::poll(std::vector<IoResult>& results) {
  const std::size_t num_polled = results_.size();
  for (IoResult& result : results_) results.push_back(std::move(result));
  results_.clear();
  return num_polled;
}

void SimIoQueue::start_waiting(TimeNs start_ns) {
  for (auto& queue : waiting_) {
    while (!queue.empty() && running_.size() < state_.options().queue_depth) {
      IoOp op = std::move(queue.front());
      queue.pop_front();
      start(std::move(op), start_ns);
    }
  }
}

void SimIoQueue::start(IoOp op, TimeNs start_ns) {
  RunningOp running;
  running.completion_ns = start_ns + state_.op_duration_ns(start_ns, op);
  running.sequence = state_.next_op_sequence();
  if (op.kind == IoKind::kSync) running.snapshot = state_.begin_sync(op.fd);
  running.op = std::move(op);
  running_.push_back(std::move(running));
}

const SimIoQueue::RunningOp* SimIoQueue::next() const {
  const auto first = std::min_element(running_.begin(), running_.end(),
                                      [](const RunningOp& one, const RunningOp& other) {
                                        return std::pair(one.completion_ns, one.sequence) <
                                               std::pair(other.completion_ns, other.sequence);
                                      });
  return first == running_.end() ? nullptr : &*first;
}

void SimIoQueue::complete_next() {
  const RunningOp* first = next();
  KVTIER_CHECK(first != nullptr);
  const auto place = running_.begin() + (first - running_.data());
  RunningOp running = std::move(*place);
  running_.erase(place);
  const TimeNs completion_ns = running.completion_ns;
  std::vector<IoResult> results;
  results.push_back(run(running));
  // What a task captured is gone before its result can be seen.
  running = RunningOp{};
  if (is_dead_) return;
  start_waiting(completion_ns);
  finish(std::move(results));
}

IoResult SimIoQueue::run(RunningOp& running) {
  const IoOp& op = running.op;
  if (op.kind == IoKind::kTask) return {op.user_data, run_task(op), 0};
  if (op.kind == IoKind::kSync) {
    return {op.user_data, state_.finish_sync(op.fd, running.snapshot), 0};
  }
  SimTransfer transfer = op.kind == IoKind::kRead ? state_.read(op.fd, op.offset_bytes, op.pieces)
                                                  : state_.write(op.fd, op.offset_bytes, op.pieces);
  return {op.user_data, std::move(transfer.status), transfer.transferred_bytes};
}

void SimIoQueue::finish(std::vector<IoResult> results) {
  for (IoResult& result : results) results_.push_back(std::move(result));
  // A copy: the callee may replace or drop the function while it runs.
  const std::function<void()> on_result = on_result_;
  if (on_result) on_result();
}

void SimIoQueue::cancel_waiting() {
  is_stopped_ = true;
  std::vector<IoResult> cancelled;
  for (auto& queue : waiting_) {
    for (IoOp& op : queue) {
      cancelled.push_back({op.user_data, cancelled_op(), 0});
    }
    queue.clear();
  }
  if (!cancelled.empty()) finish(std::move(cancelled));
}

void SimIoQueue::kill() {
  is_dead_ = true;
  on_result_ = nullptr;
  for (auto& queue : waiting_) queue.clear();
  running_.clear();
  results_.clear();
}

}  // namespace kvtier::testing
