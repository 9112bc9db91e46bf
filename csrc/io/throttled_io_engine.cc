// The throttled engine: a queue that knows the times, the engine beneath, and a thread that waits.
// Thread-safe: one mutex guards the queue; the engine beneath and callbacks are called without it.
#include "io/throttled_io_engine.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "base/blocked_signals.h"
#include "base/wait_piece.h"
#include "io/io_op_queue.h"
#include "io/throttle_queue.h"

namespace kvtier {
namespace {

// For an engine that is destroyed without stop().
constexpr TimeNs kDestructionGraceNs = 1 * kNsPerS;

class ThrottledIoEngine final : public IoEngine {
 public:
  ThrottledIoEngine(std::unique_ptr<IoEngine> beneath, Clock& clock, const ThrottleOptions& options)
      : clock_(clock),
        options_(options),
        owner_pid_(getpid()),
        beneath_(std::move(beneath)),
        queue_(options) {
    beneath_->set_on_result([this] { wake(); });
  }

  ~ThrottledIoEngine() override {
    if (!is_done_) do_stop(clock_.now_ns() + kDestructionGraceNs);
  }

 private:
  void do_submit(std::vector<IoOp> ops) override {
    std::unique_lock<std::mutex> lock(mutex_);
    if (is_stopped_ || !start_thread()) {
      const Status refusal = is_stopped_ ? cancelled_op() : no_thread();
      for (const IoOp& op : ops) results_.push_back({op.user_data, refusal, 0});
      lock.unlock();
      call_back();
      return;
    }
    for (IoOp& op : ops) queue_.push(std::move(op));
    std::vector<IoOp> ready = queue_.take_ready(clock_.now_ns());
    ++num_sending_;
    lock.unlock();
    send(std::move(ready));
  }

  std::size_t do_poll(std::vector<IoResult>& results) override {
    std::vector<IoResult> taken;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      taken.swap(results_);
    }
    for (IoResult& result : taken) results.push_back(std::move(result));
    return taken.size();
  }

  void do_set_on_result(std::function<void()> on_result) override {
    std::lock_guard<std::mutex> lock(mutex_);
    on_result_ = std::move(on_result);
  }

  bool do_stop(TimeNs deadline_ns) override {
    is_done_ = true;
    if (getpid() != owner_pid_) return leave_to_parent(deadline_ns);
    {
      std::unique_lock<std::mutex> lock(mutex_);
      is_stopped_ = true;
      changed_.notify_all();
      // What is on its way down must be there before the engine beneath stops.
      changed_.wait(lock, [this] { return num_sending_ == 0; });
    }
    // The thread first: from here on only this call takes results from beneath.
    if (thread_.joinable()) thread_.join();
    const bool is_idle = beneath_->stop(deadline_ns);
    take_from_beneath();
    std::size_t num_new = 0;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      std::vector<IoResult> drained = queue_.drain(cancelled_op());
      num_new = drained.size();
      for (IoResult& result : drained) results_.push_back(std::move(result));
    }
    if (num_new > 0) call_back();
    return is_idle;
  }

  IoEngineInfo do_info() const override {
    IoEngineInfo info = beneath_->info();
    info.name += ", throttled";
    if (options_.queue_depth_max > 0) {
      info.queue_depth_max = std::min(info.queue_depth_max, options_.queue_depth_max);
    }
    return info;
  }

  void do_register_memory(std::span<std::byte> memory) override {
    beneath_->register_memory(memory);
  }
  void do_close_after_fork() override { beneath_->close_after_fork(); }

  static Status no_thread() { return Status::from_errno(EAGAIN, "cannot start thread"); }

  void call_back() {
    // Constant after the first submit, so it needs no lock.
    if (on_result_) on_result_();
  }

  void wake() {
    std::lock_guard<std::mutex> lock(mutex_);
    has_news_ = true;
    changed_.notify_all();
  }

  // Without the mutex; num_sending_ was raised for it.
  void send(std::vector<IoOp> ops) {
    std::vector<std::uint64_t> tickets;
    for (const IoOp& op : ops) tickets.push_back(op.user_data);
    const Status status = beneath_->submit(std::move(ops));
    std::lock_guard<std::mutex> lock(mutex_);
    --num_sending_;
    if (!status.is_ok()) {
      for (const std::uint64_t ticket : tickets) queue_.finish({ticket, status, 0});
      has_news_ = true;
    }
    changed_.notify_all();
  }

  void take_from_beneath() {
    std::vector<IoResult> ended;
    beneath_->poll(ended);
    std::lock_guard<std::mutex> lock(mutex_);
    for (IoResult& result : ended) queue_.finish(std::move(result));
  }

  void run_thread() {
    while (true) {
      take_from_beneath();
      std::unique_lock<std::mutex> lock(mutex_);
      std::vector<IoResult> due = queue_.take_due(clock_.now_ns());
      const bool has_results = !due.empty();
      for (IoResult& result : due) results_.push_back(std::move(result));
      if (is_stopped_) return;
      std::vector<IoOp> ready = queue_.take_ready(clock_.now_ns());
      ++num_sending_;
      lock.unlock();
      send(std::move(ready));
      if (has_results) call_back();
      lock.lock();
      while (!has_news_ && !is_stopped_) {
        const TimeNs now_ns = clock_.now_ns();
        const TimeNs due_ns = queue_.next_due_ns();
        if (now_ns >= due_ns) break;
        changed_.wait_for(lock, piece_until(now_ns, due_ns));
      }
      has_news_ = false;
    }
  }

  // With the mutex held.
  bool start_thread() {
    if (thread_.joinable()) return true;
    const BlockedSignals blocked;
    try {
      thread_ = std::thread([this] { run_thread(); });
      pthread_setname_np(thread_.native_handle(), "kvtier-throttle");
    } catch (const std::system_error&) {
      // The caller says so.
    }
    return thread_.joinable();
  }

  // In a forked child the thread does not exist and the mutex may be locked for ever: the handle
  // is leaked on purpose, since a joinable handle must not be destroyed.
  bool leave_to_parent(TimeNs deadline_ns) {
    auto* leaked = new std::thread(std::move(thread_));
    static_cast<void>(leaked);
    return beneath_->stop(deadline_ns);
  }

  // Constant after construction, but for on_result_: constant after the first submit.
  Clock& clock_;
  const ThrottleOptions options_;
  const pid_t owner_pid_;
  const std::unique_ptr<IoEngine> beneath_;
  std::function<void()> on_result_;
  // Guarded by mutex_.
  std::mutex mutex_;
  std::condition_variable changed_;
  ThrottleQueue queue_;
  std::vector<IoResult> results_;
  std::thread thread_;
  std::size_t num_sending_ = 0;  // Calls between taking ops from the queue and handing them down.
  bool has_news_ = false;
  bool is_stopped_ = false;
  // Atomic, relaxed: the destructor runs when nobody else calls any more.
  std::atomic<bool> is_done_{false};
};

}  // namespace

std::unique_ptr<IoEngine> make_throttled_io_engine(std::unique_ptr<IoEngine> beneath, Clock& clock,
                                                   const ThrottleOptions& options) {
  return std::make_unique<ThrottledIoEngine>(std::move(beneath), clock, options);
}

}  // namespace kvtier
