// Makes and opens directories. Thread-safe.
#include "io/posix_directory_path.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "io/retry_interrupted.h"

namespace kvtier {
namespace {

constexpr int kDirectoryFlags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;

Status config_error(const std::string& path, int os_errno, const char* why) {
  const std::string text = Status::from_errno(os_errno, why).message();
  return Status(StatusCode::kConfig, "cannot open directory: path=" + path + ": " + text, os_errno);
}

void sync_parent(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  const int fd = ::open(parent.c_str(), kDirectoryFlags);
  if (fd < 0) return;
  // Best effort: an unsynced parent can lose the cache in a power loss, never make it wrong.
  static_cast<void>(::fsync(fd));
  ::close(fd);
}

// Returns 0, or the errno. Several processes may make it at once: EEXIST is no failure.
int make_directory(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) != 0) return errno == EEXIST ? 0 : errno;
  // The umask may have taken bits of the owner away. Only what was made here gets its mode set.
  const int fd = ::open(path.c_str(), kDirectoryFlags | O_NOFOLLOW);
  const bool is_set = fd >= 0 ? ::fchmod(fd, 0700) == 0 : ::chmod(path.c_str(), 0700) == 0;
  const int os_errno = errno;
  if (fd >= 0) ::close(fd);
  if (!is_set) return os_errno;
  sync_parent(path);
  return 0;
}

int make_directories(const std::string& path) {
  for (std::size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    const std::string part = path.substr(0, end);
    struct stat existing{};
    if (::stat(part.c_str(), &existing) != 0) {
      if (errno != ENOENT) return errno;
      const int os_errno = make_directory(part);
      if (os_errno != 0) return os_errno;
    } else if (!S_ISDIR(existing.st_mode)) {
      return ENOTDIR;
    }
    if (end == std::string::npos) return 0;
  }
}

}  // namespace

Result<OpenedDirectory> open_directory_path(const std::string& path) {
  if (path.empty() || path.find('\0') != std::string::npos) {
    return Status(StatusCode::kConfig, "cannot open directory: path=\"\" or with a zero byte");
  }
  std::error_code error;
  OpenedDirectory opened;
  opened.path = std::filesystem::absolute(path, error).string();
  if (error) return config_error(path, error.value(), "cannot tell the working directory");
  while (opened.path.size() > 1 && opened.path.back() == '/') opened.path.pop_back();
  const int os_errno = make_directories(opened.path);
  if (os_errno != 0) return config_error(opened.path, os_errno, "cannot make it");
  opened.fd = retry_interrupted([&] { return ::open(opened.path.c_str(), kDirectoryFlags); });
  if (opened.fd < 0) return config_error(opened.path, errno, "cannot open it");
  if (::faccessat(opened.fd, ".", R_OK | W_OK | X_OK, AT_EACCESS) != 0) {
    const int access_errno = errno;
    ::close(opened.fd);
    return config_error(opened.path, access_errno, "cannot write to it");
  }
  return opened;
}

}  // namespace kvtier
