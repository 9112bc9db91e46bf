// Simulated files: current and durable bytes by sector, space by block. Not thread-safe.
#include "testing/sim_file.h"

#include <algorithm>

namespace kvtier::testing {

void SimFile::grow_to(std::uint64_t length_bytes) {
  const std::uint64_t wanted = num_sectors(length_bytes);
  if (wanted <= written_sequences_.size()) return;
  written_sequences_.resize(wanted, 0);
  durable_sequences_.resize(wanted, 0);
  durable_.resize(wanted * sector_bytes_);
}

void SimFile::adopt(const std::vector<std::byte>& current) {
  grow_to(current.size());
  std::copy(current.begin(), current.end(), durable_.begin());
  durable_length_bytes_ = current.size();
  allocate(0, current.size());
}

void SimFile::mark_written(std::uint64_t offset_bytes, std::uint64_t length_bytes,
                           std::uint64_t sequence) {
  if (length_bytes == 0) return;
  const std::uint64_t first = offset_bytes / sector_bytes_;
  const std::uint64_t last = (offset_bytes + length_bytes - 1) / sector_bytes_;
  std::fill(written_sequences_.begin() + static_cast<std::ptrdiff_t>(first),
            written_sequences_.begin() + static_cast<std::ptrdiff_t>(last + 1), sequence);
}

void SimFile::write(std::vector<std::byte>& current, std::uint64_t offset_bytes,
                    std::span<const std::byte> source, std::uint64_t sequence) {
  const std::uint64_t end_bytes = offset_bytes + source.size();
  if (source.empty()) return;
  if (end_bytes > current.size()) resize(current, end_bytes, sequence);
  std::copy(source.begin(), source.end(),
            current.begin() + static_cast<std::ptrdiff_t>(offset_bytes));
  grow_to(current.size());
  mark_written(offset_bytes, source.size(), sequence);
  allocate(offset_bytes, source.size());
}

void SimFile::resize(std::vector<std::byte>& current, std::uint64_t length_bytes,
                     std::uint64_t sequence) {
  const std::uint64_t before_bytes = current.size();
  if (length_bytes == before_bytes) return;
  current.resize(length_bytes);
  grow_to(std::max(before_bytes, length_bytes));
  // The zeros of a grown part, and the end that was cut off, are changes like any other.
  mark_written(std::min(before_bytes, length_bytes),
               std::max(before_bytes, length_bytes) - std::min(before_bytes, length_bytes),
               sequence);
  resized_sequence_ = sequence;
  if (length_bytes < before_bytes) release_beyond(length_bytes);
}

void SimFile::release_beyond(std::uint64_t length_bytes) {
  const std::uint64_t kept = (length_bytes + block_bytes_ - 1) / block_bytes_;
  for (std::size_t block = kept; block < is_allocated_.size(); ++block) {
    if (is_allocated_[block]) --num_allocated_blocks_;
  }
  if (kept < is_allocated_.size()) is_allocated_.resize(kept);
}

std::uint64_t SimFile::missing_bytes(std::uint64_t offset_bytes, std::uint64_t length_bytes) const {
  if (length_bytes == 0) return 0;
  const std::uint64_t last = (offset_bytes + length_bytes - 1) / block_bytes_;
  std::uint64_t num_missing = 0;
  for (std::uint64_t block = offset_bytes / block_bytes_; block <= last; ++block) {
    if (block >= is_allocated_.size()) return (num_missing + last - block + 1) * block_bytes_;
    if (!is_allocated_[block]) ++num_missing;
  }
  return num_missing * block_bytes_;
}

void SimFile::allocate(std::uint64_t offset_bytes, std::uint64_t length_bytes) {
  if (length_bytes == 0) return;
  const std::uint64_t last = (offset_bytes + length_bytes - 1) / block_bytes_;
  if (last >= is_allocated_.size()) is_allocated_.resize(last + 1, false);
  for (std::uint64_t block = offset_bytes / block_bytes_; block <= last; ++block) {
    if (!is_allocated_[block]) ++num_allocated_blocks_;
    is_allocated_[block] = true;
  }
}

SimSyncSnapshot SimFile::begin_sync(const std::vector<std::byte>& current,
                                    std::uint64_t sequence) const {
  SimSyncSnapshot snapshot;
  snapshot.sequence = sequence;
  snapshot.length_bytes = current.size();
  for (std::size_t sector = 0; sector < written_sequences_.size(); ++sector) {
    if (!is_dirty(sector)) continue;
    std::vector<std::byte> bytes(sector_bytes_);
    const std::uint64_t begin = std::min<std::uint64_t>(sector * sector_bytes_, current.size());
    const std::uint64_t end = std::min<std::uint64_t>(begin + sector_bytes_, current.size());
    std::copy(current.begin() + static_cast<std::ptrdiff_t>(begin),
              current.begin() + static_cast<std::ptrdiff_t>(end), bytes.begin());
    snapshot.sectors.emplace(sector, std::move(bytes));
  }
  return snapshot;
}

void SimFile::finish_sync(const SimSyncSnapshot& snapshot) {
  for (const auto& [sector, bytes] : snapshot.sectors) {
    // A sync that began later may have ended earlier, with newer bytes.
    if (durable_sequences_[sector] > snapshot.sequence) continue;
    std::copy(bytes.begin(), bytes.end(),
              durable_.begin() + static_cast<std::ptrdiff_t>(sector * sector_bytes_));
    durable_sequences_[sector] = snapshot.sequence;
  }
  if (length_durable_sequence_ > snapshot.sequence) return;
  durable_length_bytes_ = snapshot.length_bytes;
  length_durable_sequence_ = snapshot.sequence;
}

std::vector<std::byte> SimFile::lose_power(const std::vector<std::byte>& current, Random& random) {
  // Whole files lost, whole files kept, and everything between: each alone hides mistakes.
  const double kept_probability = static_cast<double>(random.below(3)) / 2;
  std::uint64_t length_bytes = current.size();
  const bool is_length_dirty = resized_sequence_ > length_durable_sequence_;
  if (is_length_dirty && !random.is_hit(kept_probability)) length_bytes = durable_length_bytes_;
  std::vector<std::byte> left(current.begin(), current.end());
  left.resize(length_bytes);
  grow_to(length_bytes);
  for (std::size_t sector = 0; sector < written_sequences_.size(); ++sector) {
    if (!is_dirty(sector) || random.is_hit(kept_probability)) continue;
    const std::uint64_t begin = std::min<std::uint64_t>(sector * sector_bytes_, length_bytes);
    const std::uint64_t end = std::min<std::uint64_t>(begin + sector_bytes_, length_bytes);
    std::copy(durable_.begin() + static_cast<std::ptrdiff_t>(begin),
              durable_.begin() + static_cast<std::ptrdiff_t>(end),
              left.begin() + static_cast<std::ptrdiff_t>(begin));
  }
  std::fill(written_sequences_.begin(), written_sequences_.end(), 0);
  std::fill(durable_sequences_.begin(), durable_sequences_.end(), 0);
  resized_sequence_ = 0;
  length_durable_sequence_ = 0;
  release_beyond(length_bytes);
  const std::uint64_t num_left = num_sectors(length_bytes);
  written_sequences_.resize(num_left);
  durable_sequences_.resize(num_left);
  durable_.assign(left.begin(), left.end());
  durable_.resize(num_left * sector_bytes_);
  durable_length_bytes_ = length_bytes;
  return left;
}

}  // namespace kvtier::testing
