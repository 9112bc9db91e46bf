// UringRing: one io_uring with the flags this kernel takes, and what its errors mean. Belongs to
// the thread that made it.
#pragma once

#ifdef KVTIER_HAVE_LIBURING

#include <liburing.h>

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"

namespace kvtier {

class UringRing {
 public:
  /// A ring of `num_entries` submissions for the calling thread alone. Makes sure that the ops the
  /// engine uses exist. kUnsupported with os_errno and the remedy in the text: EPERM (refused by a
  /// filter or a setting), ENOSYS (kernel without it), ENOMEM (limit on page-locked memory),
  /// EOPNOTSUPP (an op is missing).
  static Result<std::unique_ptr<UringRing>> create(std::uint32_t num_entries);

  ~UringRing();
  UringRing(const UringRing&) = delete;
  UringRing& operator=(const UringRing&) = delete;

  io_uring& get() { return ring_; }
  int fd() const { return ring_.ring_fd; }

 private:
  UringRing() = default;
  io_uring ring_{};
};

/// What to do about an errno that setting up a ring gave.
std::string uring_remedy(int os_errno);

}  // namespace kvtier

#endif  // KVTIER_HAVE_LIBURING
