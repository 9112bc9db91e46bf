// Executor: who runs the store's background work and how a caller waits for it. The threaded one
// uses a thread, the simulated one steps everything in the waiting caller from a seed. Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <mutex>

#include "base/clock.h"

namespace kvtier {

class Executor {
 public:
  /// Does what can be done now without blocking; returns when it wants to run again without having
  /// been woken (kNeverNs: only when woken). Called by one thread at a time, without any lock held.
  using Pump = std::function<TimeNs()>;

  virtual ~Executor() = default;

  /// Starts calling `pump`. Once per executor.
  virtual void start(Pump pump) = 0;
  /// Asks for a run of the pump soon. Any thread; cheap; coalesced.
  virtual void wake() = 0;
  /// Something that waiters wait for may have changed. Call with the mutex of the waiters held.
  virtual void notify() = 0;
  /// Waits with `lock` (held on entry and exit) until `is_done()` or `deadline_ns`; `is_done` runs
  /// with the lock held. Returns is_done()'s last value.
  virtual bool wait(std::unique_lock<std::mutex>& lock, const std::function<bool()>& is_done,
                    TimeNs deadline_ns) = 0;
  /// Runs no pump after it returned. Idempotent.
  virtual void stop() = 0;
};

/// One background thread, named "kvtier-pump". `clock` must be the system's and outlive it.
std::unique_ptr<Executor> make_thread_executor(Clock& clock);

}  // namespace kvtier
