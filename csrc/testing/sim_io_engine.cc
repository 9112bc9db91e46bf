// The simulated I/O engine: one handle on the simulated disk. Not thread-safe.
#include <algorithm>
#include <utility>

#include "testing/sim_disk_state.h"

namespace kvtier::testing {

class SimIoEngine final : public IoEngine {
 public:
  explicit SimIoEngine(std::shared_ptr<SimDiskState> state)
      : state_(std::move(state)), queue_(std::make_shared<SimIoQueue>(*state_)) {
    state_->add_queue(queue_);
  }

  ~SimIoEngine() override {
    // As the threads engine: an engine destroyed without stop() gives its ops a second.
    if (!is_done_) do_stop(state_->clock().now_ns() + kNsPerS);
    queue_->abandon();
    // Ops that a stalled disk still holds stay with it, and so do their buffers.
    if (queue_->is_idle()) state_->remove_queue(queue_.get());
  }

 private:
  void do_submit(std::vector<IoOp> ops) override { queue_->submit(std::move(ops)); }

  std::size_t do_poll(std::vector<IoResult>& results) override { return queue_->poll(results); }

  void do_set_on_result(std::function<void()> on_result) override {
    queue_->set_on_result(std::move(on_result));
  }

  bool do_stop(TimeNs deadline_ns) override {
    is_done_ = true;
    queue_->cancel_waiting();
    while (!queue_->is_idle()) {
      const TimeNs next_ns = state_->next_event_ns();
      if (next_ns > deadline_ns || next_ns >= kNeverNs) break;
      state_->clock().advance_to(next_ns);
      state_->run_due();
    }
    if (queue_->is_idle()) return true;
    // A stalled disk holds them: the whole wait passes.
    if (deadline_ns < kNeverNs) state_->clock().advance_to(deadline_ns);
    queue_->abandon();
    return false;
  }

  IoEngineInfo do_info() const override { return {"simulated", state_->options().queue_depth, ""}; }

  const std::shared_ptr<SimDiskState> state_;
  const std::shared_ptr<SimIoQueue> queue_;
  bool is_done_ = false;
};

std::unique_ptr<IoEngine> make_sim_io_engine(std::shared_ptr<SimDiskState> state) {
  return std::make_unique<SimIoEngine>(std::move(state));
}

}  // namespace kvtier::testing
