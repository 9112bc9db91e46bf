// Directory probe: what a directory's file system can do and how fast it is, by trying it. Free
// function without state; blocking; thread-safe as far as Directory is.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "io/directory.h"

namespace kvtier::disk {

struct DirectoryProbe {
  bool is_writable = false;
  std::string write_error;  // Why not; empty when it is.
  std::string file_system;  // "ext4", "xfs", "tmpfs", ..., or its magic number in hexadecimal.
  std::uint32_t file_system_block_bytes = 0;
  DirectAlignment direct_alignment;
  std::string direct_write_error;  // Empty: a direct write and read back worked.
  std::string fallocate_error;     // Empty: it worked.
  std::uint64_t free_bytes = 0;
  /// Of `probe_bytes`, direct where that works; 0 when they were not measured.
  double read_gb_per_s = 0;
  double write_gb_per_s = 0;
};

/// Writes `probe_bytes` (0: no rates) to a temporary file, reads them back, and removes it. What
/// does not work stands in the probe; only a directory that cannot be looked at is an error.
Result<DirectoryProbe> probe_directory(Directory& directory, Clock& clock,
                                       std::uint64_t probe_bytes);

}  // namespace kvtier::disk
