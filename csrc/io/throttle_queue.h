// ThrottleQueue: which ops a disk on paper would have running, and when each would end. Plain
// bookkeeping in the time that its callers tell. Not thread-safe: the owner locks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "io/io_engine.h"
#include "io/throttle_options.h"

namespace kvtier {

class ThrottleQueue {
 public:
  explicit ThrottleQueue(const ThrottleOptions& options) : options_(options) {}

  /// Takes an op; take_ready tells when it may start.
  void push(IoOp op);
  /// Ops that the disk starts now. Their user_data is the queue's own until finish() gives the
  /// caller's back.
  std::vector<IoOp> take_ready(TimeNs now_ns);
  /// The engine beneath ended an op that take_ready gave.
  void finish(IoResult result);
  /// Results whose time has come, in the order of their ends.
  std::vector<IoResult> take_due(TimeNs now_ns);
  /// When take_due gives something next; kNeverNs: not before another finish().
  TimeNs next_due_ns() const;
  /// Ends at once: cancels what has not started, and gives what has ended beneath.
  std::vector<IoResult> drain(const Status& cancelled);

 private:
  struct Running {
    std::uint64_t user_data = 0;
    bool is_task = false;
    TimeNs due_ns = 0;
  };
  struct Ended {
    IoResult result;
    bool is_task = false;
  };

  bool has_room() const;
  TimeNs due_ns_of(const IoOp& op, TimeNs now_ns);
  IoOp start(IoOp op, TimeNs now_ns);

  const ThrottleOptions options_;
  std::array<std::deque<IoOp>, kNumIoPriorities> waiting_;
  std::vector<IoOp> tasks_;      // They occupy no place of the disk's.
  std::size_t num_running_ = 0;  // Tasks not counted.
  std::unordered_map<std::uint64_t, Running> running_;
  std::multimap<TimeNs, Ended> ended_;  // By the time at which the disk on paper ends them.
  std::uint64_t ticket_next_ = 0;
  TimeNs read_channel_free_ns_ = 0;
  TimeNs write_channel_free_ns_ = 0;
};

}  // namespace kvtier
