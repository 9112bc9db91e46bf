// SimIoQueue: the ops of one simulated I/O engine, waiting and running, in simulated time.
// Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "io/io_engine.h"
#include "testing/sim_file.h"

namespace kvtier::testing {

class SimDiskState;

class SimIoQueue {
 public:
  struct RunningOp {
    IoOp op;
    TimeNs completion_ns = 0;
    std::uint64_t sequence = 0;  // Orders ops that end at the same time.
    SimSyncSnapshot snapshot;    // Of a kSync: what it covers.
  };

  /// `state` owns the queue.
  explicit SimIoQueue(SimDiskState& state) : state_(state) {}

  void submit(std::vector<IoOp> ops);
  std::size_t poll(std::vector<IoResult>& results);
  void set_on_result(std::function<void()> on_result) { on_result_ = std::move(on_result); }

  /// The op that ends first, or nullptr.
  const RunningOp* next() const;
  /// Ends that op and starts a waiting one in its place.
  void complete_next();

  void cancel_waiting();
  /// Nobody is called back any more; the running ops stay with the disk.
  void abandon() { on_result_ = nullptr; }
  /// After a crash: nothing completes any more, new ops answer kClosed.
  void kill();

  bool is_idle() const { return running_.empty(); }
  const std::vector<RunningOp>& running() const { return running_; }

 private:
  void start_waiting(TimeNs start_ns);
  void start(IoOp op, TimeNs start_ns);
  IoResult run(RunningOp& running);
  void finish(std::vector<IoResult> results);

  SimDiskState& state_;
  std::function<void()> on_result_;
  std::array<std::deque<IoOp>, kNumIoPriorities> waiting_;
  std::vector<RunningOp> running_;
  std::vector<IoResult> results_;
  bool is_dead_ = false;
  bool is_stopped_ = false;
};

}  // namespace kvtier::testing
