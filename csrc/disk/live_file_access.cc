// Opened anew each time: the file, or the directory, may have been removed.
#include "disk/live_file_access.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <vector>

#include "format/live_file.h"
#include "io/retry_interrupted.h"

namespace kvtier::disk {
namespace {

// A reader that meets a replacement meets another one only by bad luck.
constexpr int kReadsMax = 20;

Result<std::vector<std::byte>> read_once(const std::string& path) {
  const std::string name = path + "/" + format::kLiveFileName;
  const int fd = retry_interrupted([&name] {
    return ::open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
  });
  if (fd < 0) return Status::from_errno(errno, "cannot open the live file: path=" + path);
  struct stat stat = {};
  std::vector<std::byte> bytes(format::kLiveFileBytesMax);
  ssize_t num_read = -1;
  if (::fstat(fd, &stat) == 0 && S_ISREG(stat.st_mode)) {
    num_read = retry_interrupted([&] { return ::pread(fd, bytes.data(), bytes.size(), 0); });
  } else {
    errno = EINVAL;
  }
  const int read_errno = errno;
  ::close(fd);
  if (num_read < 0)
    return Status::from_errno(read_errno, "cannot read the live file: path=" + path);
  bytes.resize(static_cast<std::size_t>(num_read));
  return bytes;
}

}  // namespace

Status write_live_file(Directory& directory, std::string_view text) {
  auto opened = directory.open_file(format::kLiveFileName, OpenFlags{true, false, false});
  if (!opened.is_ok()) return opened.status();
  const Status written = directory.write_at(opened.value(), 0, format::encode_live_file(text));
  directory.close_file(opened.value());
  return written;
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
