// SimFile: one simulated file with what a power loss would leave of it. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/random.h"

namespace kvtier::testing {

/// Files are plain vectors: a place beyond this is a mistake of the caller.
inline constexpr std::uint64_t kSimFileBytesMax = 4ull << 30;

/// The parts of a file that were not yet durable when a sync of it began.
struct SimSyncSnapshot {
  std::uint64_t sequence = 0;
  std::uint64_t length_bytes = 0;
  std::map<std::size_t, std::vector<std::byte>> sectors;
};

/// Bookkeeping beside the current bytes, which live with their owner (the disk's map of files while
/// the file has a name, else `unlinked_bytes`) and are passed in as `current`. A test may change
/// them behind our back: such bytes count as durable.
class SimFile {
 public:
  SimFile(std::uint32_t sector_bytes, std::uint32_t block_bytes)
      : sector_bytes_(sector_bytes), block_bytes_(block_bytes) {}

  std::string name;  // Empty: no name any more.
  std::vector<std::byte> unlinked_bytes;
  std::uint32_t num_open = 0;

  /// Takes over bytes that a test put there: all durable and allocated.
  void adopt(const std::vector<std::byte>& current);

  /// Changes the current bytes; `sequence` grows with every change on the disk.
  void write(std::vector<std::byte>& current, std::uint64_t offset_bytes,
             std::span<const std::byte> source, std::uint64_t sequence);
  void resize(std::vector<std::byte>& current, std::uint64_t length_bytes, std::uint64_t sequence);

  /// Bytes that a write or allocation of this range would newly take, and taking them.
  std::uint64_t missing_bytes(std::uint64_t offset_bytes, std::uint64_t length_bytes) const;
  void allocate(std::uint64_t offset_bytes, std::uint64_t length_bytes);
  std::uint64_t allocated_bytes() const { return num_allocated_blocks_ * block_bytes_; }

  SimSyncSnapshot begin_sync(const std::vector<std::byte>& current, std::uint64_t sequence) const;
  void finish_sync(const SimSyncSnapshot& snapshot);

  /// What a power loss leaves: each sector that is not durable is the old or the new one, the
  /// length the old or the new one. Everything left is durable afterwards.
  std::vector<std::byte> lose_power(const std::vector<std::byte>& current, Random& random);

 private:
  std::uint64_t num_sectors(std::uint64_t length_bytes) const {
    return (length_bytes + sector_bytes_ - 1) / sector_bytes_;
  }
  bool is_dirty(std::size_t sector) const {
    return written_sequences_[sector] > durable_sequences_[sector];
  }
  void mark_written(std::uint64_t offset_bytes, std::uint64_t length_bytes, std::uint64_t sequence);
  void grow_to(std::uint64_t length_bytes);
  void release_beyond(std::uint64_t length_bytes);

  // Constant after construction.
  std::uint32_t sector_bytes_;
  std::uint32_t block_bytes_;
  // By sector: the old bytes, and when it was written and made durable.
  std::vector<std::byte> durable_;
  std::vector<std::uint64_t> written_sequences_;
  std::vector<std::uint64_t> durable_sequences_;
  std::uint64_t durable_length_bytes_ = 0;
  std::uint64_t resized_sequence_ = 0;
  std::uint64_t length_durable_sequence_ = 0;
  // By file-system block.
  std::vector<bool> is_allocated_;
  std::uint64_t num_allocated_blocks_ = 0;
};

}  // namespace kvtier::testing
