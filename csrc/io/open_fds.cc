// The bounded set of open descriptors. Thread-safe and lock-free.
#include "io/open_fds.h"

#include <unistd.h>

namespace kvtier {

OpenFds::OpenFds() {
  for (auto& entry : fds_) entry.store(kNoFd, std::memory_order_relaxed);
}

bool OpenFds::add(int fd) {
  for (auto& entry : fds_) {
    int expected = kNoFd;
    if (entry.compare_exchange_strong(expected, fd, std::memory_order_acq_rel)) return true;
  }
  return false;
}

bool OpenFds::remove(int fd) {
  if (fd < 0) return false;
  for (auto& entry : fds_) {
    int expected = fd;
    if (entry.compare_exchange_strong(expected, kNoFd, std::memory_order_acq_rel)) return true;
  }
  return false;
}

void OpenFds::close_all() {
  for (auto& entry : fds_) {
    const int fd = entry.exchange(kNoFd, std::memory_order_acq_rel);
    if (fd >= 0) ::close(fd);
  }
}

int OpenFds::first() const {
  for (const auto& entry : fds_) {
    const int fd = entry.load(std::memory_order_acquire);
    if (fd >= 0) return fd;
  }
  return kNoFd;
}

}  // namespace kvtier
