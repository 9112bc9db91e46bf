// The real directory: names and space by calls relative to its descriptor. Thread-safe.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <limits>
#include <utility>

#include "io/direct_alignment.h"
#include "io/directory.h"
#include "io/file_name.h"
#include "io/open_fds.h"
#include "io/posix_directory_path.h"
#include "io/posix_lock.h"
#include "io/retry_interrupted.h"
#include "io/transfer_loop.h"

namespace kvtier {
namespace {

constexpr std::size_t kListedFilesMax = 1u << 20;
constexpr std::uint64_t kStatBlockBytes = 512;
constexpr std::uint32_t kFileSystemBlockBytesDefault = 4096;
// A file may come and go between the two ways of opening it, but hardly for ever.
constexpr int kOpenAttemptsMax = 16;

Status failure(int os_errno, const std::string& text) {
  Status status = Status::from_errno(os_errno, text);
  if (os_errno != ENOENT) return status;
  return Status(StatusCode::kNotFound, status.message(), os_errno);
}

Status bad_name(const std::string& name) {
  return Status(StatusCode::kInvalidArgument, "cannot use file name: name=" + name);
}

std::string describe_range(const char* action, int fd, std::uint64_t offset_bytes,
                           std::uint64_t length_bytes) {
  return std::string(action) + " file: fd=" + std::to_string(fd) +
         " offset_bytes=" + std::to_string(offset_bytes) +
         " length_bytes=" + std::to_string(length_bytes);
}

FileStat file_stat(const struct stat& status) {
  return {static_cast<std::uint64_t>(status.st_size),
          static_cast<std::uint64_t>(status.st_blocks) * kStatBlockBytes};
}

std::uint32_t probe_block_bytes(int directory_fd) {
  struct statvfs space{};
  if (::fstatvfs(directory_fd, &space) != 0) return kFileSystemBlockBytesDefault;
  // f_frsize is what space is counted in; f_bsize may be a transfer size (1 MiB on NFS).
  const std::uint64_t block_bytes = space.f_frsize;
  const bool is_power = block_bytes > 0 && (block_bytes & (block_bytes - 1)) == 0;
  if (!is_power || block_bytes < 512 || block_bytes > (1u << 20))
    return kFileSystemBlockBytesDefault;
  return static_cast<std::uint32_t>(block_bytes);
}

class PosixDirectory final : public Directory {
 public:
  explicit PosixDirectory(OpenedDirectory opened)
      : path_(std::move(opened.path)),
        block_bytes_(probe_block_bytes(opened.fd)),
        calls_(real_system_calls()),
        directory_fd_(opened.fd) {}

  ~PosixDirectory() override {
    open_fds_.close_all();
    lock_.unlock();
    const int fd = directory_fd_.exchange(-1);
    if (fd >= 0) ::close(fd);
  }

  const std::string& path() const override { return path_; }

  Result<int> open_file(const std::string& name, const OpenFlags& flags) override {
    if (!is_file_name(name)) return bad_name(name);
    if (flags.is_new && !flags.is_created) {
      return Status(StatusCode::kInvalidArgument, "cannot open file: is_new needs is_created");
    }
    Result<int> opened = open_or_create(name, flags);
    if (opened.is_ok() && !open_fds_.add(opened.value())) {
      ::close(opened.value());
      return Status(StatusCode::kExhausted, "cannot open file: name=" + name + " num_open_max=" +
                                                std::to_string(OpenFds::kOpenFdsMax));
    }
    return opened;
  }

  void close_file(int fd) override {
    if (open_fds_.remove(fd)) ::close(fd);
  }

  Status remove_file(const std::string& name) override {
    if (!is_file_name(name)) return bad_name(name);
    if (::unlinkat(directory_fd_, name.c_str(), 0) == 0) return Status::ok();
    return failure(errno, "cannot remove file: name=" + name);
  }

  Status rename_file(const std::string& source, const std::string& target) override {
    if (!is_file_name(source)) return bad_name(source);
    if (!is_file_name(target)) return bad_name(target);
    if (::renameat(directory_fd_, source.c_str(), directory_fd_, target.c_str()) == 0) {
      return Status::ok();
    }
    return failure(errno, "cannot rename file: source=" + source + " target=" + target);
  }

  Result<std::vector<std::string>> list_files() override {
    // A descriptor of its own, because the position in the listing belongs to the open file.
    const int fd = ::openat(directory_fd_, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return failure(errno, "cannot list directory: path=" + path_);
    DIR* listing = ::fdopendir(fd);
    if (listing == nullptr) {
      const int os_errno = errno;
      ::close(fd);
      return failure(os_errno, "cannot list directory: path=" + path_);
    }
    Result<std::vector<std::string>> names = read_names(listing);
    ::closedir(listing);
    return names;
  }

  Result<FileStat> stat_file(const std::string& name) override {
    if (!is_file_name(name)) return bad_name(name);
    struct stat status{};
    if (::fstatat(directory_fd_, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
      return failure(errno, "cannot stat file: name=" + name);
    }
    if (!S_ISREG(status.st_mode)) {
      return Status(StatusCode::kIoError, "cannot stat file: not a regular file: name=" + name);
    }
    return file_stat(status);
  }

  Result<FileStat> stat_fd(int fd) override {
    struct stat status{};
    if (::fstat(fd, &status) == 0) return file_stat(status);
    return failure(errno, "cannot stat file: fd=" + std::to_string(fd));
  }

  Status allocate(int fd, std::uint64_t offset_bytes, std::uint64_t length_bytes) override {
    const auto call = [&] {
      return ::fallocate(fd, 0, static_cast<off_t>(offset_bytes), static_cast<off_t>(length_bytes));
    };
    if (retry_interrupted(call) == 0) return Status::ok();
    return failure(errno, describe_range("cannot allocate", fd, offset_bytes, length_bytes));
  }

  Status truncate(int fd, std::uint64_t length_bytes) override {
    const auto call = [&] { return ::ftruncate(fd, static_cast<off_t>(length_bytes)); };
    if (retry_interrupted(call) == 0) return Status::ok();
    return failure(errno, describe_range("cannot truncate", fd, 0, length_bytes));
  }

  Status read_at(int fd, std::uint64_t offset_bytes, std::span<std::byte> target) override {
    return transfer_pieces(calls_, TransferDirection::kRead, fd, offset_bytes, {&target, 1}).status;
  }

  Status write_at(int fd, std::uint64_t offset_bytes, std::span<const std::byte> source) override {
    // The kernel's vectors have no const; writing only reads through them.
    std::span<std::byte> piece(const_cast<std::byte*>(source.data()), source.size());
    return transfer_pieces(calls_, TransferDirection::kWrite, fd, offset_bytes, {&piece, 1}).status;
  }

  Status sync_file(int fd) override { return sync_data(calls_, fd); }

  Status sync() override {
    if (retry_interrupted([&] { return ::fsync(directory_fd_); }) == 0) return Status::ok();
    return failure(errno, "cannot sync directory: path=" + path_);
  }

  Result<std::uint64_t> free_bytes() override {
    struct statvfs space{};
    if (::fstatvfs(directory_fd_, &space) != 0) {
      return failure(errno, "cannot ask for free space: path=" + path_);
    }
    const std::uint64_t num_blocks = space.f_bavail;
    // A file system with less than its reserve left may state a negative number.
    if (num_blocks > std::numeric_limits<std::uint64_t>::max() / 2) return std::uint64_t{0};
    std::uint64_t free_bytes = 0;
    if (__builtin_mul_overflow(num_blocks, static_cast<std::uint64_t>(space.f_frsize),
                               &free_bytes)) {
      return std::numeric_limits<std::uint64_t>::max();
    }
    return free_bytes;
  }

  std::uint32_t file_system_block_bytes() override { return block_bytes_; }

  DirectAlignment direct_alignment() override {
    return probe_direct_alignment(directory_fd_, open_fds_.first());
  }

  bool is_present() override {
    struct stat opened{};
    struct stat named{};
    if (::fstat(directory_fd_, &opened) != 0 || ::stat(path_.c_str(), &named) != 0) return false;
    return opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
  }

  Status reopen() override {
    Result<OpenedDirectory> opened = open_directory_path(path_);
    if (!opened.is_ok()) return opened.status();
    lock_.unlock();
    open_fds_.close_all();
    const int former = directory_fd_.exchange(opened.value().fd);
    if (former >= 0) ::close(former);
    return Status::ok();
  }

  Status lock(const std::string& name, const std::string& text) override {
    if (!is_file_name(name)) return bad_name(name);
    return lock_.lock(directory_fd_, name, text);
  }

  void unlock() override { lock_.unlock(); }

  void close_after_fork() override {
    open_fds_.close_all();
    lock_.close_after_fork();
    const int fd = directory_fd_.exchange(-1);
    if (fd >= 0) ::close(fd);
  }

 private:
  static constexpr int kOpenFlags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY;

  Result<int> open_or_create(const std::string& name, const OpenFlags& flags) {
    int os_errno = EEXIST;
    for (int attempt = 0; attempt < kOpenAttemptsMax; ++attempt) {
      if (!flags.is_new) {
        const int fd = open_existing(name, flags.is_direct);
        if (fd >= 0) return checked(fd, name);
        os_errno = errno;
        if (os_errno != ENOENT || !flags.is_created) return open_failure(os_errno, name, flags);
      }
      const int fd = create(name, flags.is_direct);
      if (fd >= 0) return checked(fd, name);
      os_errno = errno;
      if (os_errno != EEXIST || flags.is_new) return open_failure(os_errno, name, flags);
    }
    return open_failure(os_errno, name, flags);
  }

  int open_existing(const std::string& name, bool is_direct) {
    const int flags = kOpenFlags | (is_direct ? O_DIRECT : 0);
    return retry_interrupted([&] { return ::openat(directory_fd_, name.c_str(), flags); });
  }

  // Created plainly and then reopened direct, because a file system that refuses O_DIRECT may do so
  // after it has made the file.
  int create(const std::string& name, bool is_direct) {
    const int flags = kOpenFlags | O_CREAT | O_EXCL;
    const int fd =
        retry_interrupted([&] { return ::openat(directory_fd_, name.c_str(), flags, 0600); });
    if (fd < 0) return fd;
    // The umask may have taken bits of the owner away.
    int os_errno = ::fchmod(fd, 0600) == 0 ? 0 : errno;
    if (os_errno == 0 && !is_direct) return fd;
    ::close(fd);
    if (os_errno == 0) {
      const int direct_fd = open_existing(name, true);
      if (direct_fd >= 0) return direct_fd;
      os_errno = errno;
    }
    ::unlinkat(directory_fd_, name.c_str(), 0);
    errno = os_errno;
    return -1;
  }

  static Result<int> checked(int fd, const std::string& name) {
    struct stat status{};
    if (::fstat(fd, &status) == 0 && S_ISREG(status.st_mode)) return fd;
    ::close(fd);
    return Status(StatusCode::kIoError, "cannot open file: not a regular file: name=" + name);
  }

  static Status open_failure(int os_errno, const std::string& name, const OpenFlags& flags) {
    Status status = failure(os_errno, "cannot open file: name=" + name);
    if (os_errno != EINVAL || !flags.is_direct) return status;
    return Status(StatusCode::kUnsupported, status.message(), os_errno);
  }

  bool is_regular(const dirent& entry) const {
    if (entry.d_type != DT_UNKNOWN) return entry.d_type == DT_REG;
    struct stat status{};
    return ::fstatat(directory_fd_, entry.d_name, &status, AT_SYMLINK_NOFOLLOW) == 0 &&
           S_ISREG(status.st_mode);
  }

  Result<std::vector<std::string>> read_names(DIR* listing) const {
    std::vector<std::string> names;
    while (true) {
      errno = 0;
      const dirent* entry = ::readdir(listing);
      if (entry == nullptr && errno == 0) return names;
      if (entry == nullptr) return failure(errno, "cannot list directory: path=" + path_);
      if (!is_regular(*entry)) continue;
      if (names.size() == kListedFilesMax) {
        return Status(StatusCode::kExhausted, "cannot list directory: path=" + path_ +
                                                  " num_files>" + std::to_string(kListedFilesMax));
      }
      names.emplace_back(entry->d_name);
    }
  }

  // Constant after construction.
  const std::string path_;
  const std::uint32_t block_bytes_;
  const SystemCalls calls_;
  // Have their own synchronisation.
  OpenFds open_fds_;
  PosixLock lock_;
  // Atomic, sequentially consistent (rarely touched): a forked child closes it without a lock.
  std::atomic<int> directory_fd_;
};

}  // namespace

Result<std::unique_ptr<Directory>> open_posix_directory(const std::string& path) {
  Result<OpenedDirectory> opened = open_directory_path(path);
  if (!opened.is_ok()) return opened.status();
  return std::unique_ptr<Directory>(std::make_unique<PosixDirectory>(std::move(opened).value()));
}

}  // namespace kvtier
