// The io_uring engine. Thread-safe. Everything that its thread touches lies in `UringState`, which
// stays when the kernel still holds an op after the engine.
#include "io/uring_io_engine.h"

#include <utility>

#ifndef KVTIER_HAVE_LIBURING

namespace kvtier {

Result<std::unique_ptr<IoEngine>> make_uring_io_engine(Clock&, UringIoOptions) {
  return Status(StatusCode::kUnsupported,
                "this build has no io_uring: liburing was not there when it was made");
}

}  // namespace kvtier

#else

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <system_error>
#include <thread>

#include "base/blocked_signals.h"
#include "base/wait_piece.h"
#include "io/uring_loop.h"

namespace kvtier {
namespace {

// For an engine that is destroyed without stop(), and for a thread that was told to leave its ring.
constexpr TimeNs kGraceNs = 1 * kNsPerS;

class UringIoEngine final : public IoEngine {
 public:
  UringIoEngine(Clock& clock, UringIoOptions options)
      : clock_(clock),
        owner_pid_(getpid()),
        state_(std::make_shared<UringState>(clock, std::move(options))) {
    // Never called after the helper was stopped, which is before the state goes.
    state_->helper->set_on_result([state = state_.get()] {
      std::vector<IoResult> results;
      state->helper->poll(results);
      std::unique_lock<std::mutex> lock(state->mutex);
      publish_results(*state, lock, std::move(results));
    });
  }

  ~UringIoEngine() override {
    if (!is_done_) do_stop(clock_.now_ns() + kGraceNs);
  }

  Status start() {
    if (state_->wake_fd < 0) return Status::from_errno(errno, "cannot make an eventfd");
    std::promise<Status> promise;
    std::future<Status> started = promise.get_future();
    const BlockedSignals blocked;
    try {
      // The thread owns the state: it may outlive the engine.
      thread_ = std::thread([state = state_, moved = std::move(promise)]() mutable {
        run_ring_thread(state, std::move(moved));
      });
    } catch (const std::system_error& error) {
      is_done_ = true;
      return Status::from_errno(error.code().value(), "cannot start thread");
    }
    pthread_setname_np(thread_.native_handle(), "kvtier-ring");
    return started.get();
  }

 private:
  void do_submit(std::vector<IoOp> ops) override {
    std::unique_lock<std::mutex> lock(state_->mutex);
    if (state_->is_stopped) {
      std::vector<IoResult> refused;
      for (const IoOp& op : ops) refused.push_back({op.user_data, cancelled_op(), 0});
      return publish_results(*state_, lock, std::move(refused));
    }
    for (IoOp& op : ops) state_->queue.push(std::move(op));
    wake_ring_thread(*state_);
  }

  std::size_t do_poll(std::vector<IoResult>& results) override {
    std::vector<IoResult> taken;
    {
      const std::lock_guard<std::mutex> lock(state_->mutex);
      taken.swap(state_->results);
    }
    for (IoResult& result : taken) results.push_back(std::move(result));
    return taken.size();
  }

  void do_set_on_result(std::function<void()> on_result) override {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->on_result = std::move(on_result);
  }

  bool do_stop(TimeNs deadline_ns) override {
    if (getpid() != owner_pid_) return leave_to_parent();
    is_done_ = true;
    std::unique_lock<std::mutex> lock(state_->mutex);
    state_->is_stopped = true;
    std::vector<IoResult> cancelled_results;
    for (const IoOp& op : state_->queue.drain()) {
      cancelled_results.push_back({op.user_data, cancelled_op(), 0});
    }
    wake_ring_thread(*state_);
    publish_results(*state_, lock, std::move(cancelled_results));
    wait_for_exit(lock, deadline_ns);
    const bool is_ring_idle = state_->is_exited;
    lock.unlock();
    const bool is_helper_idle = state_->helper->stop(deadline_ns);
    lock.lock();
    if (!is_ring_idle || !is_helper_idle) abandon(lock);
    const bool is_exited = state_->is_exited;
    lock.unlock();
    if (thread_.joinable()) is_exited ? thread_.join() : thread_.detach();
    // The kernel may still write into the state, and the ring must not be closed under it.
    if (!is_ring_idle) static_cast<void>(new std::shared_ptr<UringState>(state_));
    return is_ring_idle && is_helper_idle;
  }

  IoEngineInfo do_info() const override {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    return {"uring", state_->options.queue_depth, state_->note};
  }

  void do_register_memory(std::span<std::byte> memory) override { state_->memory.add(memory); }

  void do_close_after_fork() override {
    const int fd = state_->ring_fd.exchange(-1, std::memory_order_acq_rel);
    if (fd >= 0) ::close(fd);
    if (state_->wake_fd >= 0) ::close(state_->wake_fd);
  }

  void wait_for_exit(std::unique_lock<std::mutex>& lock, TimeNs deadline_ns) {
    while (!state_->is_exited && thread_.joinable()) {
      const TimeNs now_ns = clock_.now_ns();
      if (now_ns >= deadline_ns) return;
      state_->thread_changed.wait_for(lock, piece_until(now_ns, deadline_ns));
    }
  }

  // From here on no callback starts; those that run are short by contract and are waited for, since
  // what they call may go away with the engine. The thread leaves its ring, unless the kernel holds
  // the thread itself.
  void abandon(std::unique_lock<std::mutex>& lock) {
    state_->is_abandoned = true;
    state_->thread_changed.wait(lock, [this] { return state_->num_callbacks == 0; });
    state_->is_waiting = true;
    wake_ring_thread(*state_);
    wait_for_exit(lock, clock_.now_ns() + kGraceNs);
  }

  // In a forked child the thread does not exist and the mutex may be locked for ever: the handle is
  // leaked on purpose, since a joinable handle must not be destroyed.
  bool leave_to_parent() {
    is_done_ = true;
    static_cast<void>(new std::thread(std::move(thread_)));
    static_cast<void>(new std::shared_ptr<UringState>(state_));
    return false;
  }

  // Constant after construction.
  Clock& clock_;
  const pid_t owner_pid_;
  const std::shared_ptr<UringState> state_;
  // Constant after start().
  std::thread thread_;
  // Atomic, relaxed: the destructor runs when nobody else calls any more.
  std::atomic<bool> is_done_{false};
};

}  // namespace

Result<std::unique_ptr<IoEngine>> make_uring_io_engine(Clock& clock, UringIoOptions options) {
  auto engine = std::make_unique<UringIoEngine>(clock, std::move(options));
  if (Status started = engine->start(); !started.is_ok()) return started;
  return std::unique_ptr<IoEngine>(std::move(engine));
}

}  // namespace kvtier

#endif  // KVTIER_HAVE_LIBURING
