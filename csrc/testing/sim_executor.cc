// The simulated executor: the waiting caller runs the pump, posted steps and the disk. Not
// thread-safe.
#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "testing/sim_world.h"

namespace kvtier::testing {
namespace {

// A pump that wants to run again at once this often, without time passing, spins.
constexpr int kRunsWithoutTimeMax = 1'000'000;

class SimExecutor final : public Executor {
 public:
  SimExecutor(SimClock& clock, SimDisk& disk, std::uint64_t seed)
      : clock_(clock), disk_(disk), random_(seed) {}

  void start(Pump pump) override {
    KVTIER_CHECK(!pump_);
    pump_ = std::move(pump);
    // The first run comes without a wake, as with a thread.
    next_run_ns_ = clock_.now_ns();
  }

  void wake() override { is_woken_ = true; }
  void notify() override {}
  void stop() override {
    is_stopped_ = true;
    steps_.clear();
  }

  void post(StepPriority, CopyPool::Step step) override {
    if (!is_stopped_) steps_.push_back(std::move(step));
  }
  void split(std::size_t num_pieces, const CopyPool::Piece& run_piece) override {
    for (std::size_t i = 0; i < num_pieces; ++i) run_piece(i);
  }
  std::uint32_t num_copy_threads() const override { return 1; }

  bool wait(std::unique_lock<std::mutex>& lock, const std::function<bool()>& is_done,
            TimeNs deadline_ns) override {
    KVTIER_CHECK(!is_stepping_);  // A step may not wait.
    while (!is_done()) {
      lock.unlock();
      bool is_progressing = false;
      try {
        is_progressing = step(deadline_ns);
      } catch (...) {
        lock.lock();
        throw;
      }
      lock.lock();
      if (!is_progressing) return is_done();
    }
    return true;
  }

  /// Does what is due now, else lets time pass to what comes next. False: nothing was due and the
  /// deadline has been reached.
  bool step(TimeNs deadline_ns) {
    if (run_now()) return true;
    const TimeNs next_ns = std::min(disk_.next_event_ns(), next_run());
    if (next_ns > deadline_ns || next_ns >= kNeverNs) {
      // Nothing will ever happen: a thread would hang here, a simulation can say so.
      if (deadline_ns >= kNeverNs) {
        check_failed("a wait without deadline has something to wait for", __FILE__, __LINE__);
      }
      const bool is_passing = clock_.now_ns() < deadline_ns;
      clock_.advance_to(deadline_ns);
      return is_passing;
    }
    clock_.advance_to(next_ns);
    return true;
  }

  /// Runs what is due now, without letting time pass. False: nothing was.
  bool run_now() {
    const bool is_event_due = disk_.next_event_ns() <= clock_.now_ns();
    if (is_event_due) disk_.run_due();
    const bool is_pump_due = next_run() <= clock_.now_ns();
    if (!steps_.empty() && (!is_pump_due || random_.below(2) == 0)) {
      run_step();
      return true;
    }
    if (!is_pump_due) return is_event_due;
    if (clock_.now_ns() > last_run_ns_) num_runs_without_time_ = 0;
    if (++num_runs_without_time_ > kRunsWithoutTimeMax) {
      check_failed("the pump lets time pass", __FILE__, __LINE__);
    }
    last_run_ns_ = clock_.now_ns();
    KVTIER_CHECK(!is_pumping_);
    is_pumping_ = true;
    is_woken_ = false;
    try {
      next_run_ns_ = pump_();
    } catch (...) {
      is_pumping_ = false;
      throw;
    }
    is_pumping_ = false;
    return true;
  }

  /// Any of those that wait: several threads promise no order.
  void run_step() {
    const std::size_t step_index = random_.below(steps_.size());
    const CopyPool::Step step = std::move(steps_[step_index]);
    steps_.erase(steps_.begin() + static_cast<std::ptrdiff_t>(step_index));
    is_stepping_ = true;
    try {
      step();
    } catch (...) {
      is_stepping_ = false;
      throw;
    }
    is_stepping_ = false;
  }

  SimClock& clock() { return clock_; }
  TimeNs next_disk_event_ns() const { return disk_.next_event_ns(); }

 private:
  TimeNs next_run() const {
    if (is_stopped_ || !pump_) return kNeverNs;
    return is_woken_ ? clock_.now_ns() : next_run_ns_;
  }

  SimClock& clock_;
  SimDisk& disk_;
  Random random_;
  std::vector<CopyPool::Step> steps_;
  Pump pump_;
  TimeNs next_run_ns_ = kNeverNs;
  TimeNs last_run_ns_ = 0;
  int num_runs_without_time_ = 0;
  bool is_woken_ = false;
  bool is_stopped_ = false;
  bool is_pumping_ = false;
  bool is_stepping_ = false;
};

SimExecutor& simulated(Executor& executor) {
  auto* found = dynamic_cast<SimExecutor*>(&executor);
  KVTIER_CHECK(found != nullptr);
  return *found;
}

}  // namespace

std::unique_ptr<Executor> make_sim_executor(SimClock& clock, SimDisk& disk, std::uint64_t seed) {
  return std::make_unique<SimExecutor>(clock, disk, seed);
}

bool run_until_idle(Executor& executor, TimeNs limit_ns) {
  SimExecutor& sim = simulated(executor);
  const TimeNs end_ns = sim.clock().now_ns() + limit_ns;
  while (true) {
    if (sim.run_now()) continue;
    const TimeNs next_ns = sim.next_disk_event_ns();
    if (next_ns >= kNeverNs) return true;
    if (next_ns > end_ns) return false;
    // A timer of the pump may come before the disk's event.
    sim.step(next_ns);
  }
}

void run_for_ns(Executor& executor, TimeNs duration_ns) {
  SimExecutor& sim = simulated(executor);
  const TimeNs end_ns = sim.clock().now_ns() + duration_ns;
  while (sim.step(end_ns)) {
  }
}

}  // namespace kvtier::testing
