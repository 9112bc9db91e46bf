// Directory: the files of one disk tier behind one interface (real or simulated). Calls may block;
// thread-safe. Data of blocks goes through IoEngine; this is for names, space and small metadata.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace kvtier {

struct FileStat {
  std::uint64_t length_bytes = 0;
  std::uint64_t allocated_bytes = 0;  // st_blocks * 512.
};

struct OpenFlags {
  bool is_created = false;  // Create when missing, mode 0600.
  bool is_new = false;      // Fail with EEXIST when it exists (needs is_created).
  bool is_direct = false;   // O_DIRECT.
};

/// What direct I/O needs. Addresses and offsets/lengths must be multiples of these.
struct DirectAlignment {
  std::uint32_t memory_bytes = 4096;
  std::uint32_t offset_bytes = 4096;
  bool is_reported = false;  // By statx(STATX_DIOALIGN); else the defaults above.
};

class Directory {
 public:
  virtual ~Directory() = default;

  virtual const std::string& path() const = 0;
  /// Returns a descriptor (O_CLOEXEC) for IoEngine and the calls below.
  virtual Result<int> open_file(const std::string& name, const OpenFlags& flags) = 0;
  virtual void close_file(int fd) = 0;
  virtual Status remove_file(const std::string& name) = 0;
  /// Replaces `target` in one step.
  virtual Status rename_file(const std::string& source, const std::string& target) = 0;
  /// Names of regular files, any order. Other things (folders, links, sockets) are left out.
  virtual Result<std::vector<std::string>> list_files() = 0;
  virtual Result<FileStat> stat_file(const std::string& name) = 0;
  virtual Result<FileStat> stat_fd(int fd) = 0;
  /// Reserves space (fallocate), growing the file. kUnsupported where the file system cannot.
  virtual Status allocate(int fd, std::uint64_t offset_bytes, std::uint64_t length_bytes) = 0;
  virtual Status truncate(int fd, std::uint64_t length_bytes) = 0;
  /// Whole transfer or an error; a file that ends early is kIoError with os_errno 0. For small
  /// metadata; buffers of descriptors opened direct must be aligned.
  virtual Status read_at(int fd, std::uint64_t offset_bytes, std::span<std::byte> target) = 0;
  virtual Status write_at(int fd, std::uint64_t offset_bytes,
                          std::span<const std::byte> source) = 0;
  virtual Status sync_file(int fd) = 0;
  /// Makes creations, removals and renames durable.
  virtual Status sync() = 0;
  /// Space that this user may still allocate in the file system.
  virtual Result<std::uint64_t> free_bytes() = 0;
  virtual std::uint32_t file_system_block_bytes() = 0;
  virtual DirectAlignment direct_alignment() = 0;
  /// False once the directory at path() is gone or another one.
  virtual bool is_present() = 0;

  /// After is_present() said no: makes the directory at path() again and works there from now on.
  /// The lock and all descriptors of the old one are given up; the caller has closed its own.
  virtual Status reopen() = 0;

  /// Takes the exclusive lock of file `name` (created) and writes `text` into it; it ends with the
  /// process. kBusy, with the text that the holder wrote as message, when another has it.
  virtual Status lock(const std::string& name, const std::string& text) = 0;
  virtual void unlock() = 0;
  /// After fork in the child: closes the descriptors without taking a lock. Nothing else works
  /// then.
  virtual void close_after_fork() = 0;
};

/// Opens `path`, creating it (mode 0700, parents too). kConfig naming the path when it is a file,
/// not writable or cannot be made.
Result<std::unique_ptr<Directory>> open_posix_directory(const std::string& path);

}  // namespace kvtier
