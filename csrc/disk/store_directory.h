// StoreDirectory: the files of a store besides its segments: lock, superblock, namespace tables,
// uses file.
// Blocking; not thread-safe: one thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "format/namespace_table.h"
#include "format/superblock.h"
#include "io/directory.h"

namespace kvtier::disk {

struct DirectoryListing {
  std::vector<std::string> segment_names;
  std::vector<std::string> unknown_names;  // Ours by name, but of another format version.
  std::uint64_t unknown_bytes = 0;         // Allocated by those.
};

class StoreDirectory {
 public:
  explicit StoreDirectory(Directory& directory) : directory_(directory) {}

  /// Takes the lock; waits up to `wait_ns` by trying again. kBusy with the holder's text.
  Status lock(Clock& clock, TimeNs wait_ns);
  void unlock() { directory_.unlock(); }

  /// Reads superblock and namespace table, or starts new ones when there are none: then `is_fresh`
  /// is true and segments of a former store are not ours any more. Those of another format version
  /// are kept under another name and counted as unknown.
  Status load();
  bool is_fresh() const { return is_fresh_; }
  const format::Superblock& superblock() const { return superblock_; }
  const format::NamespaceTable& namespaces() const { return namespaces_; }

  /// Writes the superblock durably, in the other of its two places.
  Status save_superblock(bool is_clean, std::uint64_t generation_max);
  /// Adds a record and writes the table durably, to the other of its two files.
  Status add_namespace(const format::NamespaceRecord& record);
  /// Puts a uses file in the place of the one before, in one step and durably.
  Status save_uses(std::span<const std::byte> bytes);
  /// The bytes of the uses file, whatever they are; nothing when there is none. kCorrupt: larger
  /// than any uses file.
  Result<std::optional<std::vector<std::byte>>> load_uses();
  /// Removes the uses file durably. Ok when there is none.
  Status remove_uses();
  /// Forgets what was read: the directory is a new one.
  void reset();

  /// Looks at every file; removes leftovers of ours (temporary and half-made files, live file).
  Result<DirectoryListing> list();
  /// Removes every file of a store, of any version. Foreign files stay.
  Status remove_all_files();
  /// Bytes allocated by everything of ours that is neither a segment nor a uses file.
  std::uint64_t fixed_bytes();
  std::uint64_t uses_bytes();  // Allocated by the uses file.

  static bool is_own_name(const std::string& name);

 private:
  Status load_superblock();
  Status load_namespaces();
  Status keep_other_version();
  void start_fresh();

  Directory& directory_;
  format::Superblock superblock_;
  format::NamespaceTable namespaces_;
  bool is_fresh_ = false;
};

/// Probe of direct I/O with a real write and read of the file system.
struct DirectProbe {
  bool is_direct = false;
  DirectAlignment alignment;
  std::string reason;  // Why not direct; empty when it is.
};
DirectProbe probe_direct(Directory& directory);

}  // namespace kvtier::disk
