// Priorities of waiting ops and the threads kept free for loads. Not thread-safe.
#include "io/io_op_queue.h"

#include <algorithm>
#include <utility>

#include "io/threads_io_engine.h"

namespace kvtier {
namespace {

std::size_t index_of(IoPriority priority) { return static_cast<std::size_t>(priority); }

}  // namespace

std::uint32_t num_save_threads_max(std::uint32_t num_threads) {
  const std::uint32_t num_free = std::max(1u, num_threads / 4);
  return num_threads > num_free ? num_threads - num_free : 1;
}

std::uint32_t num_background_threads_max(std::uint32_t num_threads) {
  return num_threads > 1 ? num_threads - 1 : 1;
}

std::uint32_t choose_num_io_threads(std::uint32_t num_cpus) {
  constexpr std::uint32_t kThreads = 8;
  constexpr std::uint32_t kThreadsOnOneCpu = 2;  // One of them stays free for loads.
  return num_cpus <= 1 ? kThreadsOnOneCpu : kThreads;
}

IoOpQueue::IoOpQueue(std::uint32_t num_threads)
    : num_save_threads_max_(num_save_threads_max(num_threads)),
      num_background_threads_max_(num_background_threads_max(num_threads)) {}

void IoOpQueue::push(IoOp op) { waiting_[index_of(op.priority)].push_back(std::move(op)); }

bool IoOpQueue::has_room(IoPriority priority) const {
  if (priority == IoPriority::kLoad) return true;
  const std::uint32_t num_saves = num_running_[index_of(IoPriority::kSave)];
  const std::uint32_t num_controls = num_running_[index_of(IoPriority::kControl)];
  if (num_saves + num_controls >= num_background_threads_max_) return false;
  return priority == IoPriority::kControl || num_saves < num_save_threads_max_;
}

std::optional<IoOp> IoOpQueue::take() {
  for (std::size_t index = 0; index < kNumIoPriorities; ++index) {
    if (waiting_[index].empty() || !has_room(static_cast<IoPriority>(index))) continue;
    IoOp op = std::move(waiting_[index].front());
    waiting_[index].pop_front();
    ++num_running_[index];
    return op;
  }
  return std::nullopt;
}

void IoOpQueue::finish(IoPriority priority) {
  KVTIER_CHECK(num_running_[index_of(priority)] > 0);
  --num_running_[index_of(priority)];
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
