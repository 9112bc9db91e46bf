// Setting up a ring: the best flags first. Not thread-safe.
#include "io/uring_ring.h"

#ifdef KVTIER_HAVE_LIBURING

#include <sys/resource.h>

#include <array>
#include <cerrno>
#include <system_error>

namespace kvtier {
namespace {

// Best first. One thread submits and reaps, so the kernel need not interrupt it, nor lock.
constexpr std::array<unsigned, 3> kFlagSets = {
    IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
    IORING_SETUP_COOP_TASKRUN,
    0,
};

constexpr unsigned kKernelWorkersMax = 8;

constexpr std::array<int, 6> kOps = {IORING_OP_READ,   IORING_OP_WRITE, IORING_OP_READV,
                                     IORING_OP_WRITEV, IORING_OP_FSYNC, IORING_OP_READ_FIXED};

std::string memlock_text() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "unknown";
  return limit.rlim_cur == RLIM_INFINITY ? "unlimited" : std::to_string(limit.rlim_cur);
}

Status refused(int os_errno, const std::string& action) {
  return Status(StatusCode::kUnsupported,
                action + ": " + std::generic_category().message(os_errno) +
                    " (errno=" + std::to_string(os_errno) + "); " + uring_remedy(os_errno),
                os_errno);
}

Status check_ops(io_uring& ring) {
  io_uring_probe* probe = io_uring_get_probe_ring(&ring);
  if (probe == nullptr) return refused(EOPNOTSUPP, "cannot ask io_uring for its ops");
  bool is_complete = true;
  for (const int op : kOps) is_complete = is_complete && io_uring_opcode_supported(probe, op) != 0;
  io_uring_free_probe(probe);
  return is_complete ? Status::ok() : refused(EOPNOTSUPP, "io_uring lacks an op");
}

}  // namespace

std::string uring_remedy(int os_errno) {
  switch (os_errno) {
    case EPERM:
    case EACCES:
      return "allow io_uring in the container's seccomp profile, and set the sysctl "
             "kernel.io_uring_disabled to 0";
    case ENOMEM:
      return "raise the limit on page-locked memory (ulimit -l; now memlock_bytes=" +
             memlock_text() + ")";
    case ENOSYS:
      return "this kernel has no io_uring; Linux 5.11 and later have what is needed";
    default:
      return "this kernel's io_uring is too old; Linux 5.11 and later have what is needed";
  }
}

Result<std::unique_ptr<UringRing>> UringRing::create(std::uint32_t num_entries) {
  std::unique_ptr<UringRing> ring(new UringRing());
  int result = -EINVAL;
  for (const unsigned flags : kFlagSets) {
    io_uring_params params{};
    params.flags = flags;
    result = io_uring_queue_init_params(num_entries, &ring->ring_, &params);
    if (result != -EINVAL) break;
  }
  if (result < 0) {
    ring->ring_.ring_fd = -1;
    return refused(-result, "cannot set up io_uring");
  }
  // A child must not write into queues that the parent's kernel thread reads. Best effort: the
  // child closes the descriptor too.
  (void)io_uring_ring_dontfork(&ring->ring_);
  // For what the kernel cannot start at once, such as the first write to fresh space. Its own bound
  // grows with the number of CPUs.
  unsigned num_workers_max[2] = {kKernelWorkersMax, 1};
  (void)io_uring_register_iowq_max_workers(&ring->ring_, num_workers_max);
  if (Status checked = check_ops(ring->ring_); !checked.is_ok()) return checked;
  return ring;
}

UringRing::~UringRing() {
  if (ring_.ring_fd >= 0) io_uring_queue_exit(&ring_);
}

}  // namespace kvtier

#endif  // KVTIER_HAVE_LIBURING
