// Memory files (Linux). Thread safety: see the header.
#include "memory/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <system_error>

#include "base/checksum.h"

namespace kvtier {
namespace {

// Absent in the headers of older systems; kernels that do not know it answer EINVAL.
constexpr unsigned int kNoExecSeal = 0x0008;

constexpr std::uint64_t kMagic = 0x6b767469'65720a01;  // "kvtier", then the version of this page.
constexpr std::uint64_t kIdentityPurpose = 0x4b56544152454e41;

constexpr unsigned int kLengthSeals = F_SEAL_SHRINK | F_SEAL_GROW;

/// What stands in the page behind the arena.
struct Identity {
  std::uint64_t magic = kMagic;
  ArenaId id;
  std::uint64_t num_bytes = 0;
  std::uint64_t checksum = 0;

  std::uint64_t sum() const {
    const auto bytes = std::as_bytes(std::span(this, 1));
    return checksum_metadata(bytes.first(offsetof(Identity, checksum)), kIdentityPurpose);
  }
};
static_assert(sizeof(Identity) == 40);

std::uint64_t page_bytes() { return static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)); }

std::string errno_text(int os_errno) {
  return std::generic_category().message(os_errno) + " (errno=" + std::to_string(os_errno) + ")";
}

Status exhausted(std::uint64_t num_bytes, const char* call, int os_errno) {
  return Status(StatusCode::kExhausted,
                "cannot make shared arena: need_bytes=" + std::to_string(num_bytes) + ": " + call +
                    ": " + errno_text(os_errno));
}

Status refused(const std::string& reason) {
  return Status(StatusCode::kInvalidArgument, "cannot open arena: " + reason);
}

int create_memory_file() {
  constexpr const char* kName = "kvtier-arena";
  const int fd = ::memfd_create(kName, MFD_CLOEXEC | MFD_ALLOW_SEALING | kNoExecSeal);
  if (fd >= 0 || errno != EINVAL) return fd;
  return ::memfd_create(kName, MFD_CLOEXEC | MFD_ALLOW_SEALING);
}

}  // namespace

Result<ArenaId> make_arena_id() {
  ArenaId id;
  const ssize_t num_read = ::getrandom(id.bytes.data(), id.bytes.size(), 0);
  if (num_read == static_cast<ssize_t>(id.bytes.size())) return id;
  return Status::from_errno(num_read < 0 ? errno : EIO, "cannot make arena id");
}

Result<int> create_shared_memory(const ArenaId& id, std::uint64_t num_bytes) {
  const int fd = create_memory_file();
  if (fd < 0) return exhausted(num_bytes, "memfd_create", errno);
  const auto fail = [fd, num_bytes](const char* call) {
    const Status status = exhausted(num_bytes, call, errno);
    ::close(fd);
    return status;
  };
  if (::ftruncate(fd, static_cast<off_t>(num_bytes + page_bytes())) != 0) return fail("ftruncate");
  Identity identity;
  identity.id = id;
  identity.num_bytes = num_bytes;
  identity.checksum = identity.sum();
  const ssize_t num_written =
      ::pwrite(fd, &identity, sizeof identity, static_cast<off_t>(num_bytes));
  if (num_written != static_cast<ssize_t>(sizeof identity)) return fail("pwrite");
  // The last one keeps anybody else from sealing it against our own writes.
  if (::fcntl(fd, F_ADD_SEALS, kLengthSeals | F_SEAL_SEAL) != 0) return fail("F_ADD_SEALS");
  return fd;
}

Status check_shared_memory(int fd, const ArenaId& id, std::uint64_t num_bytes) {
  struct stat file{};
  if (::fstat(fd, &file) != 0) return refused("descriptor: " + errno_text(errno));
  const int seals = S_ISREG(file.st_mode) ? ::fcntl(fd, F_GET_SEALS) : -1;
  if (seals < 0 || (static_cast<unsigned int>(seals) & kLengthSeals) != kLengthSeals) {
    return refused("the descriptor is not sealed memory, so not an arena of a store");
  }
  if (file.st_size != static_cast<off_t>(num_bytes + page_bytes())) {
    return refused("it has file_bytes=" + std::to_string(file.st_size) +
                   ", not those of an arena of num_bytes=" + std::to_string(num_bytes));
  }
  Identity found;
  const ssize_t num_read = ::pread(fd, &found, sizeof found, static_cast<off_t>(num_bytes));
  if (num_read != static_cast<ssize_t>(sizeof found) || found.magic != kMagic ||
      found.checksum != found.sum()) {
    return refused("the memory is not an arena of this version of kvtier");
  }
  if (found.num_bytes != num_bytes || found.id != id) {
    return refused("it is another arena: the store was opened anew; take a new arena_handle()");
  }
  return Status::ok();
}

const char* shared_huge_pages_refused_because() {
  const int fd = ::open("/sys/kernel/mm/transparent_hugepage/shmem_enabled", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return "this kernel has no huge pages of shared memory";
  std::array<char, 128> text{};
  const ssize_t num_read = ::read(fd, text.data(), text.size());
  ::close(fd);
  const std::string_view setting(text.data(),
                                 num_read > 0 ? static_cast<std::size_t>(num_read) : 0);
  const bool is_off = setting.find("[never]") != std::string_view::npos ||
                      setting.find("[deny]") != std::string_view::npos;
  if (!is_off) return "";
  return "huge pages of shared memory are switched off: to have them, write \"advise\" to "
         "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
}

}  // namespace kvtier
