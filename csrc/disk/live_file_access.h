// Writing and reading the live file of a store's directory. Blocking; thread-safe.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "io/directory.h"

namespace kvtier::disk {

/// Replaces what the file says. By a plain write, not by a mapping: a file that somebody cuts short
/// must not end the process.
Status write_live_file(Directory& directory, std::string_view text);

/// Reads the live file in the folder `path`, some more times if it is being replaced. kNotFound:
/// there is none; kIoError: it cannot be read, or is no plain file; else as decode_live_file.
Result<std::string> read_live_file(const std::string& path);

}  // namespace kvtier::disk
