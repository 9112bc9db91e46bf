// The threads engine: a pool that runs ops by blocking kernel calls. Thread-safe. Everything that a
// thread touches lies in `State`, which a thread stuck in the kernel keeps alive after the engine.
#include "io/threads_io_engine.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "base/blocked_signals.h"
#include "base/wait_piece.h"
#include "io/io_op_queue.h"
#include "io/transfer_loop.h"

namespace kvtier {
namespace {

// For an engine that is destroyed without stop().
constexpr TimeNs kDestructionGraceNs = 1 * kNsPerS;

struct State {
  State(std::uint32_t num_threads, SystemCalls system_calls)
      : calls(std::move(system_calls)),
        queue({num_save_threads_max(num_threads), num_background_threads_max(num_threads)}),
        is_exited(num_threads, false) {}

  // Constant after construction, but for on_result: constant after the first submit.
  SystemCalls calls;
  std::function<void()> on_result;
  // Guarded by mutex.
  std::mutex mutex;
  std::condition_variable work_changed;
  std::condition_variable threads_changed;
  IoOpQueue queue;
  std::vector<IoResult> results;
  std::vector<bool> is_exited;
  std::size_t num_live_threads = 0;
  std::size_t num_idle_threads = 0;    // Waiting for work.
  std::size_t num_called_threads = 0;  // Idle ones on their way to it.
  std::size_t num_callbacks = 0;
  bool is_stopped = false;
  bool is_abandoned = false;  // The engine gave up waiting: nobody is called any more.
};

Status run_task(const IoOp& op) {
  try {
    return op.task();
  } catch (const std::exception& error) {
    return Status(StatusCode::kInternal, std::string("cannot finish task: ") + error.what());
  }
}

IoResult run_op(const SystemCalls& calls, const IoOp& op) {
  IoResult result;
  result.user_data = op.user_data;
  if (op.kind == IoKind::kTask) {
    result.status = run_task(op);
  } else if (op.kind == IoKind::kSync) {
    result.status = sync_data(calls, op.fd);
  } else {
    const auto direction =
        op.kind == IoKind::kRead ? TransferDirection::kRead : TransferDirection::kWrite;
    TransferOutcome outcome = transfer_pieces(calls, direction, op.fd, op.offset_bytes, op.pieces);
    result.status = std::move(outcome.status);
    result.transferred_bytes = outcome.transferred_bytes;
  }
  return result;
}

// Each op of a batch gives its own result. What fails as a whole is tried again op by op, so that
// one bad op does not take its neighbours with it.
std::vector<IoResult> run_batch(const SystemCalls& calls, const IoBatch& batch) {
  std::vector<IoResult> results;
  results.reserve(batch.ops.size());
  if (batch.ops.size() > 1) {
    const auto direction =
        batch.kind() == IoKind::kRead ? TransferDirection::kRead : TransferDirection::kWrite;
    const auto pieces = batch.pieces();
    if (transfer_pieces(calls, direction, batch.fd(), batch.offset_bytes(), pieces)
            .status.is_ok()) {
      for (const IoOp& op : batch.ops) {
        results.push_back({op.user_data, Status::ok(), op.length_bytes()});
      }
      return results;
    }
  }
  for (const IoOp& op : batch.ops) results.push_back(run_op(calls, op));
  return results;
}

// Publishes with `lock` held; returns with it held, having called back without it.
void publish(State& state, std::unique_lock<std::mutex>& lock, std::vector<IoResult> results) {
  for (IoResult& result : results) state.results.push_back(std::move(result));
  if (state.is_abandoned || !state.on_result) return;
  ++state.num_callbacks;
  lock.unlock();
  state.on_result();
  lock.lock();
  --state.num_callbacks;
  if (state.num_callbacks == 0) state.threads_changed.notify_all();
}

// With the mutex held.
void call_idle_thread(State& state) {
  if (state.num_idle_threads == state.num_called_threads) return;
  ++state.num_called_threads;
  state.work_changed.notify_one();
}

void run_thread(State& state, std::size_t thread_index) {
  std::unique_lock<std::mutex> lock(state.mutex);
  while (true) {
    std::optional<IoBatch> batch = state.queue.take();
    if (!batch) {
      if (state.is_stopped) break;
      ++state.num_idle_threads;
      state.work_changed.wait(lock);
      --state.num_idle_threads;
      // Whoever wakes first has answered the call, also when it was meant for another.
      if (state.num_called_threads > 0) --state.num_called_threads;
      continue;
    }
    lock.unlock();
    const IoPriority priority = batch->priority();
    std::vector<IoResult> results = run_batch(state.calls, *batch);
    // What the tasks captured is gone before their results can be seen.
    batch.reset();
    lock.lock();
    state.queue.finish(priority);
    // This thread looks for more work itself; another may take what there is room for now.
    if (!state.queue.is_empty()) call_idle_thread(state);
    publish(state, lock, std::move(results));
  }
  state.is_exited[thread_index] = true;
  --state.num_live_threads;
  state.threads_changed.notify_all();
}

class ThreadsIoEngine final : public IoEngine {
 public:
  ThreadsIoEngine(Clock& clock, const ThreadsIoOptions& options, SystemCalls calls)
      : clock_(clock),
        num_threads_(std::max(1u, options.num_threads)),
        owner_pid_(getpid()),
        state_(std::make_shared<State>(num_threads_, std::move(calls))) {}

  ~ThreadsIoEngine() override {
    if (!is_done_) do_stop(clock_.now_ns() + kDestructionGraceNs);
  }

 private:
  void do_submit(std::vector<IoOp> ops) override {
    std::unique_lock<std::mutex> lock(state_->mutex);
    std::vector<IoResult> refused;
    const int os_errno = state_->is_stopped ? 0 : start_threads(ops.size());
    for (IoOp& op : ops) {
      if (state_->is_stopped) {
        refused.push_back({op.user_data, cancelled_op(), 0});
      } else if (os_errno != 0) {
        refused.push_back({op.user_data, Status::from_errno(os_errno, "cannot start thread"), 0});
      } else {
        state_->queue.push(std::move(op));
        call_idle_thread(*state_);
      }
    }
    if (!refused.empty()) publish(*state_, lock, std::move(refused));
  }

  std::size_t do_poll(std::vector<IoResult>& results) override {
    std::vector<IoResult> taken;
    {
      std::lock_guard<std::mutex> lock(state_->mutex);
      taken.swap(state_->results);
    }
    for (IoResult& result : taken) results.push_back(std::move(result));
    return taken.size();
  }

  void do_set_on_result(std::function<void()> on_result) override {
    std::lock_guard<std::mutex> lock(state_->mutex);
    state_->on_result = std::move(on_result);
  }

  bool do_stop(TimeNs deadline_ns) override {
    if (getpid() != owner_pid_) return leave_to_parent();
    std::unique_lock<std::mutex> lock(state_->mutex);
    state_->is_stopped = true;
    is_done_ = true;
    std::vector<IoResult> cancelled_results;
    for (IoOp& op : state_->queue.drain()) {
      cancelled_results.push_back({op.user_data, cancelled_op(), 0});
    }
    state_->work_changed.notify_all();
    if (!cancelled_results.empty()) publish(*state_, lock, std::move(cancelled_results));
    while (state_->num_live_threads > 0) {
      const TimeNs now_ns = clock_.now_ns();
      if (now_ns >= deadline_ns) break;
      state_->threads_changed.wait_for(lock, piece_until(now_ns, deadline_ns));
    }
    const bool is_idle = state_->num_live_threads == 0;
    if (!is_idle) {
      // From here on no callback starts; those that run are short by contract and are waited for,
      // since what they call may go away with the engine.
      state_->is_abandoned = true;
      state_->threads_changed.wait(lock, [this] { return state_->num_callbacks == 0; });
    }
    release_threads(lock);
    return is_idle;
  }

  IoEngineInfo do_info() const override { return {"threads", num_threads_, ""}; }

  // With the mutex held. Makes threads for ops that no idle one will take, as far as the limit
  // goes. Returns 0, or the errno when there is not even one.
  int start_threads(std::size_t num_ops) {
    const std::size_t num_free = state_->num_idle_threads - state_->num_called_threads;
    if (threads_.size() == num_threads_ || num_free >= num_ops) return 0;
    const std::size_t num_wanted =
        std::min<std::size_t>(num_threads_, threads_.size() + num_ops - num_free);
    const BlockedSignals blocked;
    int os_errno = 0;
    for (std::size_t index = threads_.size(); index < num_wanted && os_errno == 0; ++index) {
      try {
        // The thread owns the state: it may outlive the engine.
        std::thread thread([state = state_, index] { run_thread(*state, index); });
        pthread_setname_np(thread.native_handle(), "kvtier-io");
        threads_.push_back(std::move(thread));
        ++state_->num_live_threads;
      } catch (const std::system_error& error) {
        os_errno = error.code().value() == 0 ? EAGAIN : error.code().value();
      }
    }
    return threads_.empty() ? os_errno : 0;
  }

  // Joins what has ended and lets go of what is stuck. Joining needs the mutex to be free for the
  // last lines of a thread.
  void release_threads(std::unique_lock<std::mutex>& lock) {
    std::vector<std::thread> threads = std::exchange(threads_, {});
    const std::vector<bool> is_exited = state_->is_exited;
    lock.unlock();
    for (std::size_t index = 0; index < threads.size(); ++index) {
      if (is_exited[index]) {
        threads[index].join();
      } else {
        threads[index].detach();
      }
    }
    lock.lock();
  }

  // In a forked child the threads do not exist and the mutex may be locked for ever: the handles
  // are leaked on purpose, since a joinable handle must not be destroyed.
  bool leave_to_parent() {
    is_done_ = true;
    auto* leaked = new std::vector<std::thread>(std::move(threads_));
    static_cast<void>(leaked);
    return false;
  }

  // Constant after construction.
  Clock& clock_;
  const std::uint32_t num_threads_;
  const pid_t owner_pid_;
  const std::shared_ptr<State> state_;
  // Guarded by state_->mutex.
  std::vector<std::thread> threads_;
  // Atomic, relaxed: the destructor runs when nobody else calls any more.
  std::atomic<bool> is_done_{false};
};

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

std::unique_ptr<IoEngine> make_threads_io_engine(Clock& clock, const ThreadsIoOptions& options,
                                                 SystemCalls calls) {
  return std::make_unique<ThreadsIoEngine>(clock, options, std::move(calls));
}

std::unique_ptr<IoEngine> make_threads_io_engine(Clock& clock, const ThreadsIoOptions& options) {
  return make_threads_io_engine(clock, options, real_system_calls());
}

}  // namespace kvtier
