// A folder that lasts as long as a test. It lies below the working directory, because /tmp may be a
// tmpfs, which takes direct writes of any alignment. Not thread-safe.
#pragma once

#include <sys/vfs.h>

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <system_error>

namespace kvtier::testing {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = std::filesystem::current_path().string() + "/kvtier_test_XXXXXX";
    if (::mkdtemp(pattern.data()) == nullptr) {
      throw std::runtime_error("cannot make folder: pattern=" + pattern);
    }
    path_ = pattern;
  }

  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }

  /// False on a file system in memory: alignment of direct I/O is not checked there.
  bool is_on_disk() const {
    constexpr long kTmpfsMagic = 0x01021994;
    struct statfs system{};
    return ::statfs(path_.c_str(), &system) == 0 && system.f_type != kTmpfsMagic;
  }

 private:
  std::string path_;
};

}  // namespace kvtier::testing
