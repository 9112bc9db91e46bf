// Executor: who runs the store's background work and how a caller waits for it. The threaded one
// uses a thread, a waiting caller when there is one, and a copy pool; the simulated one steps
// everything in the waiting caller from a seed. Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <mutex>

#include "base/clock.h"
#include "base/copy_pool.h"

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
  /// with the lock held. Returns is_done()'s last value. The caller may have to pump meanwhile, so
  /// it must hold no other lock that the pump takes.
  virtual bool wait(std::unique_lock<std::mutex>& lock, const std::function<bool()>& is_done,
                    TimeNs deadline_ns) = 0;
  /// Runs `step` soon, where it may copy but not wait. It must not throw. Any thread, also with
  /// the waiters' mutex held.
  virtual void post(StepPriority priority, CopyPool::Step step) = 0;
  /// Runs every piece once, with the help of free copy threads; see CopyPool::split. Call without
  /// the waiters' mutex.
  virtual void split(std::size_t num_pieces, const CopyPool::Piece& run_piece) = 0;
  virtual std::uint32_t num_copy_threads() const = 0;
  /// Runs no pump after it returned, and starts no step; steps that do not end within a second are
  /// let go. Idempotent.
  virtual void stop() = 0;
};

/// One background thread, named "kvtier-pump", and a copy pool of `num_copy_threads` (0: by the
/// process' affinity). While callers wait, one of them pumps instead of that thread. `clock` must be the system's and outlive it.
std::unique_ptr<Executor> make_thread_executor(Clock& clock, std::uint32_t num_copy_threads = 0);

}  // namespace kvtier
