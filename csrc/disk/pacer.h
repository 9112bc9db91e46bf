// Pacer: keeps a reader below a rate, so that others get at the disk. For one thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace kvtier::disk {

class Pacer {
 public:
  /// bytes_per_s_max: 0 for as fast as it goes.
  explicit Pacer(std::uint64_t bytes_per_s_max) : bytes_per_s_max_(bytes_per_s_max) {}

  /// Waits until `num_bytes`, of all since the begin, are no more than the rate allows.
  void keep(std::uint64_t num_bytes) {
    if (bytes_per_s_max_ == 0) return;
    const std::chrono::duration<double> due(static_cast<double>(num_bytes) /
                                            static_cast<double>(bytes_per_s_max_));
    std::unique_lock<std::mutex> lock(mutex_);
    // Nobody notifies: it ends with its time.
    never_.wait_until(lock, started_ + std::chrono::duration_cast<Clock::duration>(due),
                      [] { return false; });
  }

 private:
  using Clock = std::chrono::steady_clock;

  const std::uint64_t bytes_per_s_max_;
  const Clock::time_point started_ = Clock::now();
  std::mutex mutex_;
  std::condition_variable never_;
};

}  // namespace kvtier::disk
