// LiveWriter: puts the live file of a store into its directory. Blocking; one thread at a time.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"

namespace kvtier::disk {

/// By plain writes, not by a mapping: a file that somebody cuts short must not end the process.
class LiveWriter {
 public:
  /// `path`: the directory. It is not made, and no descriptor stays open between writes.
  explicit LiveWriter(std::string path) : path_(std::move(path)) {}

  /// Replaces what the file says. kNotFound: the directory is gone or is another one than at the
  /// first write; nothing was written then. kIoError: what stands there is no file of ours.
  Status write(std::string_view text);
  /// Takes the directory that stands at the path by now as the right one.
  void adopt_directory() { directory_.reset(); }

 private:
  const std::string path_;
  std::optional<std::pair<dev_t, ino_t>> directory_;
};

/// Reads the live file in `path`, a few times if it is being replaced. kNotFound: there is none;
/// else as decode_live_file.
Result<std::string> read_live_file(const std::string& path);

}  // namespace kvtier::disk
