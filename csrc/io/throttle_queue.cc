// The arithmetic of a disk on paper. Not thread-safe.
#include "io/throttle_queue.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"

namespace kvtier {
namespace {

TimeNs transfer_ns(std::uint64_t num_bytes, std::uint64_t bytes_per_s) {
  if (bytes_per_s == 0) return 0;
  // In floating point: 2^63 bytes times 10^9 would overflow, and a fraction of a millionth is
  // nothing beside what a disk's own times vary.
  const double ns = static_cast<double>(num_bytes) / static_cast<double>(bytes_per_s) * 1e9;
  return static_cast<TimeNs>(std::min(ns, static_cast<double>(kNeverNs / 2)));
}

}  // namespace

void ThrottleQueue::push(IoOp op) {
  if (op.kind == IoKind::kTask) {
    tasks_.push_back(std::move(op));
  } else {
    waiting_[static_cast<std::size_t>(op.priority)].push_back(std::move(op));
  }
}

std::vector<IoOp> ThrottleQueue::take_ready(TimeNs now_ns) {
  std::vector<IoOp> ready;
  for (IoOp& task : tasks_) ready.push_back(start(std::move(task), now_ns));
  tasks_.clear();
  for (auto& queue : waiting_) {
    while (!queue.empty() && has_room()) {
      ++num_running_;
      ready.push_back(start(std::move(queue.front()), now_ns));
      queue.pop_front();
    }
  }
  return ready;
}

bool ThrottleQueue::has_room() const {
  return options_.queue_depth_max == 0 || num_running_ < options_.queue_depth_max;
}

IoOp ThrottleQueue::start(IoOp op, TimeNs now_ns) {
  const std::uint64_t ticket = ticket_next_++;
  running_.emplace(ticket, Running{op.user_data, op.kind == IoKind::kTask, due_ns_of(op, now_ns)});
  op.user_data = ticket;
  return op;
}

TimeNs ThrottleQueue::due_ns_of(const IoOp& op, TimeNs now_ns) {
  if (op.kind == IoKind::kTask) return now_ns;
  if (op.kind == IoKind::kSync) return now_ns + options_.latency_ns;
  const bool is_read = op.kind == IoKind::kRead;
  TimeNs& channel_free_ns = is_read ? read_channel_free_ns_ : write_channel_free_ns_;
  const std::uint64_t rate = is_read ? options_.read_bytes_per_s : options_.write_bytes_per_s;
  channel_free_ns = std::max(channel_free_ns, now_ns) + transfer_ns(op.length_bytes(), rate);
  return channel_free_ns + options_.latency_ns;
}

void ThrottleQueue::finish(IoResult result) {
  const auto found = running_.find(result.user_data);
  KVTIER_CHECK(found != running_.end());
  const Running running = found->second;
  running_.erase(found);
  result.user_data = running.user_data;
  ended_.emplace(running.due_ns, Ended{std::move(result), running.is_task});
}

std::vector<IoResult> ThrottleQueue::take_due(TimeNs now_ns) {
  std::vector<IoResult> due;
  while (!ended_.empty() && ended_.begin()->first <= now_ns) {
    Ended& ended = ended_.begin()->second;
    if (!ended.is_task) --num_running_;
    due.push_back(std::move(ended.result));
    ended_.erase(ended_.begin());
  }
  return due;
}

TimeNs ThrottleQueue::next_due_ns() const {
  return ended_.empty() ? kNeverNs : ended_.begin()->first;
}

std::vector<IoResult> ThrottleQueue::drain(const Status& cancelled) {
  std::vector<IoResult> drained = take_due(std::numeric_limits<TimeNs>::max());
  for (auto& queue : waiting_) {
    for (const IoOp& op : queue) drained.push_back({op.user_data, cancelled, 0});
    queue.clear();
  }
  for (const IoOp& op : tasks_) drained.push_back({op.user_data, cancelled, 0});
  tasks_.clear();
  return drained;
}

}  // namespace kvtier
