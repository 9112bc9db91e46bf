// LivePublisher: when the state of a store is told to other processes, and what of it is news.
// Guarded by the store's mutex; what it tells is written by a task without it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "io/directory.h"
#include "store/live_text.h"

namespace kvtier::store {

class LivePublisher {
 public:
  static constexpr std::size_t kEventsMax = 16;
  static constexpr std::size_t kHoldersMax = 8;
  /// An idle store tells its state this often, so that a reader sees that somebody still does.
  static constexpr TimeNs kHeartbeatNs = 30 * kNsPerS;
  /// After a failure.
  static constexpr TimeNs kRetryNs = 5 * kNsPerS;

  /// `directory` outlives the tasks.
  LivePublisher(Directory& directory, TimeNs interval_ns, TimeNs opened_ns)
      : directory_(directory), interval_ns_(interval_ns), opened_ns_(opened_ns) {}

  /// Keeps warnings and errors, the newest ones, to be told.
  void note_line(const char* level, const std::string& text, TimeNs now_ns);
  /// When the state is to be told next; kNeverNs while it is.
  TimeNs due_ns() const { return is_writing_ ? kNeverNs : due_ns_; }
  bool is_writing() const { return is_writing_; }
  /// The task that tells `state`, unless nothing in it is news; one at a time, until finish().
  /// Adds who tells, and the lines.
  std::function<Status()> begin(LiveState state);
  /// True: the first failure.
  bool finish(const Status& status, TimeNs now_ns);

  std::uint64_t num_updates() const { return num_updates_; }
  std::uint64_t num_failures() const { return num_failures_; }

 private:
  /// The task's, while there is one.
  struct Told {
    std::optional<StoreStats> stats;
    TimeNs time_ns = 0;
    std::uint64_t num_lines = 0;
    std::uint64_t num_updates = 0;
  };
  static Status tell(Directory& directory, LiveState& state, std::uint64_t num_lines, Told& told);

  Directory& directory_;
  const TimeNs interval_ns_;
  const TimeNs opened_ns_;
  TimeNs due_ns_ = 0;
  bool is_writing_ = false;
  std::deque<LiveEvent> events_;
  std::uint64_t num_lines_ = 0;
  std::uint64_t num_updates_ = 0;
  std::uint64_t num_failures_ = 0;
  const std::shared_ptr<Told> told_ = std::make_shared<Told>();
};

}  // namespace kvtier::store
