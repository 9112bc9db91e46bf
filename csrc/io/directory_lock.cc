// Waiting for a directory's lock. Blocking.
#include "io/directory_lock.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace kvtier {
namespace {

constexpr TimeNs kRetryNs = 50 * kNsPerMs;

}  // namespace

Status lock_directory(Directory& directory, Clock& clock, const std::string& name,
                      const std::string& text, TimeNs wait_ns) {
  const TimeNs deadline_ns = clock.now_ns() + wait_ns;
  while (true) {
    Status locked = directory.lock(name, text);
    const TimeNs left_ns = deadline_ns - clock.now_ns();
    if (locked.code() != StatusCode::kBusy || left_ns <= 0) return locked;
    // A wait by contract: nothing tells when another process lets go of the lock.
    std::this_thread::sleep_for(std::chrono::nanoseconds(std::min(left_ns, kRetryNs)));
  }
}

}  // namespace kvtier
