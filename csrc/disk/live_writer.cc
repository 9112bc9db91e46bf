// Everything is opened anew for each write: the file, or the directory, may have been removed.
#include "disk/live_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <span>
#include <vector>

#include "format/live_file.h"
#include "io/retry_interrupted.h"

namespace kvtier::disk {
namespace {

// A reader that meets a replacement meets another one only by bad luck.
constexpr int kReadsMax = 20;

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int fd() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }

 private:
  const int fd_;
};

int open_live_file(int directory_fd, int flags) {
  return retry_interrupted([=] {
    return ::openat(directory_fd, format::kLiveFileName,
                    flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0600);
  });
}

/// A file, and not one that has another name elsewhere, which somebody laid here.
Status check_ours(int fd) {
  struct stat stat{};
  if (::fstat(fd, &stat) != 0) return Status::from_errno(errno, "cannot look at the live file");
  if (S_ISREG(stat.st_mode) && stat.st_nlink <= 1) return Status::ok();
  return Status(StatusCode::kIoError,
                std::string("not a plain file: name=") + format::kLiveFileName);
}

Result<std::vector<std::byte>> read_once(const std::string& path) {
  const Descriptor file(retry_interrupted([&path] {
    const std::string name = path + "/" + format::kLiveFileName;
    return ::open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
  }));
  if (!file.is_open()) return Status::from_errno(errno, "cannot open the live file: path=" + path);
  if (Status ours = check_ours(file.fd()); !ours.is_ok()) return ours;
  std::vector<std::byte> bytes(format::kLiveFileBytesMax);
  const ssize_t num_read =
      retry_interrupted([&] { return ::pread(file.fd(), bytes.data(), bytes.size(), 0); });
  if (num_read < 0) return Status::from_errno(errno, "cannot read the live file: path=" + path);
  bytes.resize(static_cast<std::size_t>(num_read));
  return bytes;
}

}  // namespace

Status LiveWriter::write(std::string_view text) {
  const Descriptor directory(retry_interrupted(
      [this] { return ::open(path_.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC); }));
  struct stat stat{};
  if (!directory.is_open() || ::fstat(directory.fd(), &stat) != 0) {
    return Status(StatusCode::kNotFound, "the directory is gone: path=" + path_, errno);
  }
  const std::pair<dev_t, ino_t> found{stat.st_dev, stat.st_ino};
  if (!directory_) directory_ = found;
  if (*directory_ != found) {
    return Status(StatusCode::kNotFound, "another directory stands there: path=" + path_);
  }
  const Descriptor file(open_live_file(directory.fd(), O_WRONLY | O_CREAT));
  if (!file.is_open()) return Status::from_errno(errno, "cannot open the live file: path=" + path_);
  if (Status ours = check_ours(file.fd()); !ours.is_ok()) return ours;
  const std::vector<std::byte> bytes = format::encode_live_file(text);
  const ssize_t num_written =
      retry_interrupted([&] { return ::pwrite(file.fd(), bytes.data(), bytes.size(), 0); });
  if (num_written == static_cast<ssize_t>(bytes.size())) return Status::ok();
  return Status::from_errno(num_written < 0 ? errno : ENOSPC,
                            "cannot write the live file: path=" + path_);
}

Result<std::string> read_live_file(const std::string& path) {
  for (int i = 1;; ++i) {
    auto bytes = read_once(path);
    if (!bytes.is_ok()) {
      const bool is_missing = bytes.status().os_errno() == ENOENT;
      return is_missing ? Status(StatusCode::kNotFound, bytes.status().message(), ENOENT)
                        : bytes.status();
    }
    auto text = format::decode_live_file(bytes.value());
    if (text.status().code() != StatusCode::kCorrupt || i == kReadsMax) return text;
  }
}

}  // namespace kvtier::disk
