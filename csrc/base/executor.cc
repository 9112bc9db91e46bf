// The threaded executor. Thread-safe.
#include "base/executor.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <thread>

#include "base/check.h"

namespace kvtier {
namespace {

// A wait is cut into pieces no longer than this, so that kNeverNs cannot overflow the library's
// clock arithmetic; a piece that ends early only re-checks the predicate.
constexpr TimeNs kWaitPieceNs = 60 * kNsPerS;
// For copies that run when the executor is stopped.
constexpr TimeNs kStopGraceNs = kNsPerS;

std::chrono::nanoseconds piece_until(TimeNs now_ns, TimeNs deadline_ns) {
  return std::chrono::nanoseconds(std::clamp<TimeNs>(deadline_ns - now_ns, 0, kWaitPieceNs));
}

class ThreadExecutor final : public Executor {
 public:
  ThreadExecutor(Clock& clock, std::uint32_t num_copy_threads)
      : clock_(clock), copy_pool_(num_copy_threads) {}
  ~ThreadExecutor() override { stop(); }

  void start(Pump pump) override {
    KVTIER_CHECK(!thread_.joinable());
    thread_ = std::thread([this, pump = std::move(pump)] { run(pump); });
    pthread_setname_np(thread_.native_handle(), "kvtier-pump");
  }

  void wake() override {
    std::lock_guard<std::mutex> lock(wake_mutex_);
    is_woken_ = true;
    wake_changed_.notify_one();
  }

  void notify() override { waiters_changed_.notify_all(); }

  bool wait(std::unique_lock<std::mutex>& lock, const std::function<bool()>& is_done,
            TimeNs deadline_ns) override {
    while (!is_done()) {
      const TimeNs now_ns = clock_.now_ns();
      if (now_ns >= deadline_ns) return false;
      waiters_changed_.wait_for(lock, piece_until(now_ns, deadline_ns));
    }
    return true;
  }

  void post(StepPriority priority, CopyPool::Step step) override {
    // Without a single copy thread the pump's thread does their work.
    if (!copy_pool_.post(priority, std::move(step))) wake();
  }

  void split(std::size_t num_pieces, const CopyPool::Piece& run_piece) override {
    copy_pool_.split(num_pieces, run_piece);
  }

  std::uint32_t num_copy_threads() const override { return copy_pool_.num_threads(); }

  void stop() override {
    {
      std::lock_guard<std::mutex> lock(wake_mutex_);
      is_stopped_ = true;
      wake_changed_.notify_one();
    }
    if (thread_.joinable()) thread_.join();
    (void)copy_pool_.stop(kStopGraceNs);
  }

 private:
  void run(const Pump& pump) {
    while (true) {
      const TimeNs next_ns = pump();
      if (copy_pool_.run_one()) continue;
      std::unique_lock<std::mutex> lock(wake_mutex_);
      while (!is_woken_ && !is_stopped_) {
        const TimeNs now_ns = clock_.now_ns();
        if (now_ns >= next_ns) break;
        wake_changed_.wait_for(lock, piece_until(now_ns, next_ns));
      }
      if (is_stopped_) return;
      is_woken_ = false;
    }
  }

  // Constant after construction.
  Clock& clock_;
  std::thread thread_;
  CopyPool copy_pool_;
  // The waiters' own mutex guards what they wait for.
  std::condition_variable waiters_changed_;
  // Guarded by wake_mutex_.
  std::mutex wake_mutex_;
  std::condition_variable wake_changed_;
  bool is_woken_ = false;
  bool is_stopped_ = false;
};

}  // namespace

std::unique_ptr<Executor> make_thread_executor(Clock& clock, std::uint32_t num_copy_threads) {
  return std::make_unique<ThreadExecutor>(clock, num_copy_threads);
}

}  // namespace kvtier
