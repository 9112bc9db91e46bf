// OpenFds: a bounded set of descriptors that can be closed without a lock, as a forked child must.
// Thread-safe and lock-free.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>

namespace kvtier {

class OpenFds {
 public:
  static constexpr std::size_t kOpenFdsMax = 256;

  OpenFds();

  /// False when kOpenFdsMax descriptors are in the set.
  bool add(int fd);
  /// Takes `fd` out; false when it is not in the set (then it is somebody else's: do not close it).
  bool remove(int fd);
  /// Closes all and empties the set.
  void close_all();
  /// Any member, or -1.
  int first() const;

 private:
  static constexpr int kNoFd = -1;
  // Atomics, acquire/release: whoever takes a descriptor out is the only one to close it.
  std::array<std::atomic<int>, kOpenFdsMax> fds_;
};

}  // namespace kvtier
