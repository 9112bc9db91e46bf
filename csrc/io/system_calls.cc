// The kernel's own calls. Thread-safe.
#include "io/system_calls.h"

#include <unistd.h>

#include <ctime>

namespace kvtier {

SystemCalls real_system_calls() {
  SystemCalls calls;
  calls.preadv = [](int fd, const iovec* pieces, int num_pieces, off_t offset_bytes) {
    return ::preadv(fd, pieces, num_pieces, offset_bytes);
  };
  calls.pwritev = [](int fd, const iovec* pieces, int num_pieces, off_t offset_bytes) {
    return ::pwritev(fd, pieces, num_pieces, offset_bytes);
  };
  calls.fdatasync = [](int fd) { return ::fdatasync(fd); };
  calls.pause = [](TimeNs duration_ns) {
    timespec duration{};
    duration.tv_sec = static_cast<time_t>(duration_ns / kNsPerS);
    duration.tv_nsec = static_cast<long>(duration_ns % kNsPerS);
    // A signal that ends the pause early only makes the retry come sooner.
    ::nanosleep(&duration, nullptr);
  };
  return calls;
}

}  // namespace kvtier
