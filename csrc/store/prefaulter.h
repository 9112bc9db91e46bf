// Prefaulter: makes the system provide an arena's memory somewhat ahead of its use, in the copy
// threads, so that the first put or load into it does not wait until pages were found and cleared.
// Thread-safe.
#pragma once

#include <cstdint>
#include <memory>

#include "base/executor.h"
#include "memory/arena.h"

namespace kvtier::store {

class Prefaulter {
 public:
  /// Begins at once to keep `ahead_bytes` beyond what is used ready. Does nothing where there is no
  /// copy thread.
  Prefaulter(const std::shared_ptr<Executor>& executor, std::shared_ptr<Arena> arena,
             std::uint64_t ahead_bytes);

  /// Hears how far the arena is used. Does not wait; what it starts goes on without the prefaulter
  /// as long as the executor lives.
  void note_used(std::uint64_t end_bytes);
  /// How much of the arena is ready, from its begin on; as if all of it were once nothing more is
  /// asked of the system, as it refused or was slow.
  std::uint64_t ready_bytes() const;

 private:
  struct State;

  static void post_step(const std::shared_ptr<State>& state);
  static void run_step(const std::shared_ptr<State>& state);

  std::shared_ptr<State> state_;
};

}  // namespace kvtier::store
