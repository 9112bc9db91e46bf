// The threaded executor. Thread-safe.
#include "base/executor.h"

#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <thread>

#include "base/check.h"
#include "base/wait_piece.h"

namespace kvtier {
namespace {

// For copies that run when the executor is stopped.
constexpr TimeNs kStopGraceNs = kNsPerS;

class ThreadExecutor final : public Executor {
 public:
  ThreadExecutor(Clock& clock, std::uint32_t num_copy_threads)
      : clock_(clock), copy_pool_(num_copy_threads) {}
  ~ThreadExecutor() override { stop(); }

  void start(Pump pump) override {
    KVTIER_CHECK(!thread_.joinable());
    pump_ = std::move(pump);
    thread_ = std::thread([this] { run(); });
    pthread_setname_np(thread_.native_handle(), "kvtier-pump");
  }

  void wake() override {
    const std::lock_guard<std::mutex> lock(wake_mutex_);
    is_woken_ = true;
    tell_pumper();
  }

  void notify() override {
    waiters_changed_.notify_all();
    const std::lock_guard<std::mutex> lock(wake_mutex_);
    if (!has_pumping_waiter_) return;
    is_notified_ = true;
    pumping_waiter_changed_.notify_one();
  }

  bool wait(std::unique_lock<std::mutex>& lock, const std::function<bool()>& is_done,
            TimeNs deadline_ns) override {
    if (is_done()) return true;
    const PumpingTurn turn(*this);
    do {
      const TimeNs now_ns = clock_.now_ns();
      if (now_ns >= deadline_ns) return false;
      if (turn.is_taken() && !is_stopped()) {
        pump_until_notified(lock, deadline_ns);
      } else {
        waiters_changed_.wait_for(lock, piece_until(now_ns, deadline_ns));
      }
    } while (!is_done());
    return true;
  }

  void post(StepPriority priority, CopyPool::Step step) override {
    if (copy_pool_.post(priority, std::move(step))) return;
    // Without a single copy thread the pump's thread does their work, whoever pumps.
    const std::lock_guard<std::mutex> lock(wake_mutex_);
    has_stranded_steps_ = true;
    thread_changed_.notify_one();
  }

  void split(std::size_t num_pieces, const CopyPool::Piece& run_piece) override {
    copy_pool_.split(num_pieces, run_piece);
  }

  std::uint32_t num_copy_threads() const override { return copy_pool_.num_threads(); }

  void stop() override {
    {
      std::unique_lock<std::mutex> lock(wake_mutex_);
      is_stopped_ = true;
      thread_changed_.notify_one();
      pumping_waiter_changed_.notify_one();
      pump_ended_.wait(lock, [this] { return !is_pump_running_; });
    }
    if (thread_.joinable()) thread_.join();
    (void)copy_pool_.stop(kStopGraceNs);
  }

 private:
  // ---- One of the waiters pumps: each hand-over to the pump's thread and back costs two switches,
  // ---- and a processor that sleeps in between, which is most of what a single read waits for.

  /// Holds the turn of the waiter that pumps; given back however the wait ends.
  class PumpingTurn {
   public:
    explicit PumpingTurn(ThreadExecutor& executor)
        : executor_(executor), is_taken_(executor.take_turn()) {}
    ~PumpingTurn() {
      if (is_taken_) executor_.give_turn_back();
    }
    PumpingTurn(const PumpingTurn&) = delete;
    PumpingTurn& operator=(const PumpingTurn&) = delete;
    bool is_taken() const { return is_taken_; }

   private:
    ThreadExecutor& executor_;
    const bool is_taken_;
  };

  bool take_turn() {
    const std::lock_guard<std::mutex> lock(wake_mutex_);
    if (is_stopped_ || has_pumping_waiter_ || !thread_.joinable()) return false;
    has_pumping_waiter_ = true;
    is_notified_ = false;
    return true;
  }

  void give_turn_back() {
    const std::lock_guard<std::mutex> lock(wake_mutex_);
    has_pumping_waiter_ = false;
    if (is_woken_ || next_pump_ns_ < thread_sleeps_until_ns_) thread_changed_.notify_one();
  }

  /// Gives up `lock` until something changed, the deadline came or the executor was stopped; pumps
  /// meanwhile. What was notified since the turn was taken, or since the last call, counts.
  void pump_until_notified(std::unique_lock<std::mutex>& lock, TimeNs deadline_ns) {
    lock.unlock();
    {
      std::unique_lock<std::mutex> wake_lock(wake_mutex_);
      while (!is_notified_ && !is_stopped_) {
        const TimeNs now_ns = clock_.now_ns();
        if (now_ns >= deadline_ns) break;
        if (run_pump_if_due(wake_lock)) continue;
        const TimeNs until_ns =
            is_pump_running_ ? deadline_ns : std::min(deadline_ns, next_pump_ns_);
        pumping_waiter_changed_.wait_for(wake_lock, piece_until(now_ns, until_ns));
      }
    }
    lock.lock();
    // What changes from here on is said again: that takes `lock`.
    const std::lock_guard<std::mutex> wake_lock(wake_mutex_);
    is_notified_ = false;
  }

  bool is_stopped() {
    const std::lock_guard<std::mutex> lock(wake_mutex_);
    return is_stopped_;
  }

  // ---- Both kinds of pumpers, with wake_mutex_ held --------------------------------------------

  void tell_pumper() {
    if (has_pumping_waiter_) {
      pumping_waiter_changed_.notify_one();
    } else {
      thread_changed_.notify_one();
    }
  }

  /// Runs the pump, without the mutex, unless it runs or has nothing to do; whether it ran.
  bool run_pump_if_due(std::unique_lock<std::mutex>& wake_lock) {
    const bool is_due = is_woken_ || clock_.now_ns() >= next_pump_ns_;
    if (!is_due || is_pump_running_ || is_stopped_) return false;
    is_woken_ = false;
    is_pump_running_ = true;
    wake_lock.unlock();
    // A pump that throws has broken its promise: better the end of the process, with the place of
    // the fault, than a store that nobody pumps.
    const auto run_pump = [this]() noexcept { return pump_(); };
    const TimeNs next_ns = run_pump();
    wake_lock.lock();
    next_pump_ns_ = next_ns;
    is_pump_running_ = false;
    if (is_stopped_) pump_ended_.notify_all();
    // Whose turn it is may have changed meanwhile, and that one knows neither of a wake that came
    // nor of the new time.
    tell_pumper();
    return true;
  }

  void run() {
    std::unique_lock<std::mutex> lock(wake_mutex_);
    while (!is_stopped_) {
      if (has_stranded_steps_) {
        has_stranded_steps_ = false;
        lock.unlock();
        const bool has_run = copy_pool_.run_one();
        lock.lock();
        if (has_run) has_stranded_steps_ = true;  // There may be more.
      }
      if (!has_pumping_waiter_ && run_pump_if_due(lock)) continue;
      if (has_stranded_steps_) continue;
      const TimeNs now_ns = clock_.now_ns();
      thread_sleeps_until_ns_ = has_pumping_waiter_ ? kNeverNs : next_pump_ns_;
      thread_changed_.wait_for(lock, piece_until(now_ns, thread_sleeps_until_ns_));
    }
  }

  // Constant after start().
  Clock& clock_;
  Pump pump_;
  std::thread thread_;
  CopyPool copy_pool_;
  // The waiters' own mutex guards what they wait for. Taken before wake_mutex_.
  std::condition_variable waiters_changed_;
  // Guarded by wake_mutex_.
  std::mutex wake_mutex_;
  std::condition_variable thread_changed_;
  std::condition_variable pumping_waiter_changed_;
  std::condition_variable pump_ended_;
  TimeNs next_pump_ns_ = 0;
  TimeNs thread_sleeps_until_ns_ = 0;
  bool is_woken_ = false;
  bool is_stopped_ = false;
  bool is_pump_running_ = false;
  bool has_pumping_waiter_ = false;
  bool is_notified_ = false;         // For the pumping waiter.
  bool has_stranded_steps_ = false;  // Posted without a copy thread to run them.
};

}  // namespace

std::unique_ptr<Executor> make_thread_executor(Clock& clock, std::uint32_t num_copy_threads) {
  return std::make_unique<ThreadExecutor>(clock, num_copy_threads);
}

}  // namespace kvtier
