// SystemCalls: the few kernel calls that move data, replaceable so that tests can interrupt,
// shorten, fail or count them. The functions must be callable from any thread.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <functional>

#include "base/clock.h"

namespace kvtier {

struct SystemCalls {
  /// As preadv(2), pwritev(2), fdatasync(2): -1 and errno on failure.
  std::function<ssize_t(int fd, const iovec* pieces, int num_pieces, off_t offset_bytes)> preadv;
  std::function<ssize_t(int fd, const iovec* pieces, int num_pieces, off_t offset_bytes)> pwritev;
  std::function<int(int fd)> fdatasync;
  /// Sleeps; used between retries of EAGAIN.
  std::function<void(TimeNs duration_ns)> pause;
};

SystemCalls real_system_calls();

}  // namespace kvtier
