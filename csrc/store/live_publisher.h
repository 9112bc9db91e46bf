// LivePublisher: keeps the live file of an open store's directory up to date, from a thread of its
// own. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "store/store.h"

namespace kvtier {

/// A disk that hangs holds up this thread and nobody else: stop() leaves it behind then.
class LivePublisher {
 public:
  /// `log` gets one line about the first failure, from the thread.
  LivePublisher(std::string path, std::function<void(const char*, const std::string&)> log);
  /// Without stop() before: leaves the thread behind, which ends at its next look.
  ~LivePublisher();
  LivePublisher(const LivePublisher&) = delete;
  LivePublisher& operator=(const LivePublisher&) = delete;

  /// Keeps warnings and errors, the newest ones, to be told. Also before start().
  void note_line(const char* level, const std::string& text);
  /// Once. Tells each `interval_ns` what has changed. Holds on to the store only while it asks it.
  void start(const std::shared_ptr<Store>& store, TimeNs interval_ns);
  /// Says that the store is closing, and ends the thread. Blocks for a fifth of a second at most.
  void stop();

  std::uint64_t num_published() const;
  std::uint64_t num_failures() const;

 private:
  struct State;
  static void run(const std::shared_ptr<State>& state);
  static void publish(State& state, bool is_last);
  static void note_failure(State& state, const Status& status);

  const std::shared_ptr<State> state_;  // The thread's as well.
};

}  // namespace kvtier
