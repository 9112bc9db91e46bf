// The directory's lock by flock. Thread-safe.
#include "io/posix_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <utility>

#include "io/retry_interrupted.h"

namespace kvtier {
namespace {

constexpr std::size_t kLockTextBytesMax = 1024;
// Somebody may remove the file between our opening and our locking it; more often than this in a
// row is no accident.
constexpr int kAttemptsMax = 16;

std::string read_text(int fd) {
  std::array<char, kLockTextBytesMax> text;
  const ssize_t got = retry_interrupted([&] { return ::pread(fd, text.data(), text.size(), 0); });
  return got > 0 ? std::string(text.data(), static_cast<std::size_t>(got)) : std::string();
}

// The text only informs: on a full disk the lock must still be had, so failures are left alone.
// Overwriting before cutting needs no new space where an older text stands.
void write_text(int fd, const std::string& text) {
  const std::string kept = text.substr(0, kLockTextBytesMax);
  const ssize_t written =
      retry_interrupted([&] { return ::pwrite(fd, kept.data(), kept.size(), 0); });
  const off_t length_bytes = written > 0 ? static_cast<off_t>(written) : 0;
  static_cast<void>(retry_interrupted([&] { return ::ftruncate(fd, length_bytes); }));
}

bool is_same_file(int directory_fd, const std::string& name, int fd) {
  struct stat opened{};
  struct stat named{};
  if (::fstat(fd, &opened) != 0) return false;
  if (::fstatat(directory_fd, name.c_str(), &named, AT_SYMLINK_NOFOLLOW) != 0) return false;
  return opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

Result<int> open_lock_file(int directory_fd, const std::string& name) {
  const int flags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY;
  const int fd =
      retry_interrupted([&] { return ::openat(directory_fd, name.c_str(), flags, 0600); });
  if (fd < 0) return Status::from_errno(errno, "cannot open lock file: name=" + name);
  struct stat opened{};
  if (::fstat(fd, &opened) != 0 || !S_ISREG(opened.st_mode)) {
    ::close(fd);
    return Status(StatusCode::kIoError, "cannot open lock file: not a regular file: name=" + name);
  }
  // The umask may have taken bits away. A file of another owner keeps its mode.
  static_cast<void>(::fchmod(fd, 0600));
  return fd;
}

}  // namespace

Status PosixLock::lock(int directory_fd, const std::string& name, const std::string& text) {
  std::lock_guard<std::mutex> guard(mutex_);
  if (fd_.load(std::memory_order_acquire) >= 0) {
    return Status(StatusCode::kInvalidArgument,
                  "cannot lock directory: it is locked by this handle");
  }
  for (int attempt = 0; attempt < kAttemptsMax; ++attempt) {
    Result<int> opened = open_lock_file(directory_fd, name);
    if (!opened.is_ok()) return opened.status();
    const int fd = opened.value();
    if (retry_interrupted([&] { return ::flock(fd, LOCK_EX | LOCK_NB); }) != 0) {
      const int os_errno = errno;
      std::string holder = os_errno == EWOULDBLOCK ? read_text(fd) : std::string();
      ::close(fd);
      if (os_errno == EWOULDBLOCK) return Status(StatusCode::kBusy, std::move(holder), os_errno);
      return Status::from_errno(os_errno, "cannot lock file: name=" + name);
    }
    if (is_same_file(directory_fd, name, fd)) {
      write_text(fd, text);
      owner_pid_ = getpid();
      fd_.store(fd, std::memory_order_release);
      return Status::ok();
    }
    ::close(fd);
  }
  return Status(StatusCode::kBusy, "cannot lock file: it keeps being replaced: name=" + name);
}

void PosixLock::unlock() {
  std::lock_guard<std::mutex> guard(mutex_);
  const int fd = fd_.exchange(-1, std::memory_order_acq_rel);
  if (fd < 0) return;
  // Closing alone would leave the lock with a forked child that still has a copy; in that child
  // itself, unlocking would end the parent's lock. The file stays: removing it could take it from
  // under somebody who is just about to lock it.
  if (owner_pid_ == getpid()) ::flock(fd, LOCK_UN);
  ::close(fd);
}

void PosixLock::close_after_fork() {
  const int fd = fd_.exchange(-1, std::memory_order_acq_rel);
  if (fd >= 0) ::close(fd);
}

}  // namespace kvtier
