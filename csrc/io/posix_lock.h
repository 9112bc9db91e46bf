// PosixLock: the exclusive lock of a directory, held by a process and naming it. Thread-safe,
// except that close_after_fork takes no lock and is for the forked child only.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <mutex>
#include <string>

#include "base/status.h"

namespace kvtier {

/// flock on a file. The kernel ends it when the last descriptor of it is closed, so a dead holder
/// leaves nothing to clean up; a forked child must close its copy (close_after_fork).
class PosixLock {
 public:
  ~PosixLock() { unlock(); }

  /// See Directory::lock. `name` was checked by the caller.
  Status lock(int directory_fd, const std::string& name, const std::string& text);
  void unlock();
  void close_after_fork();

 private:
  // Guarded by mutex_, which also orders lock and unlock.
  std::mutex mutex_;
  pid_t owner_pid_ = -1;
  // Atomic, acquire/release: read without the mutex after a fork.
  std::atomic<int> fd_{-1};
};

}  // namespace kvtier
