// Opening, and when need be making, the directory of a disk tier. Thread-safe: no state.
#pragma once

#include <string>

#include "base/status.h"

namespace kvtier {

struct OpenedDirectory {
  int fd = -1;
  std::string path;  // Absolute, so that a later change of the working directory does not matter.
};

/// See open_posix_directory.
Result<OpenedDirectory> open_directory_path(const std::string& path);

}  // namespace kvtier
