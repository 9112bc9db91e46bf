// ExtentAllocator: first fit with coalescing over [0, capacity) in multiples of a unit. Not
// thread-safe: its owner locks.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace kvtier {

class ExtentAllocator {
 public:
  /// `unit_bytes`: power of two; capacity is rounded down to it.
  ExtentAllocator(std::uint64_t capacity_bytes, std::uint64_t unit_bytes);

  /// Offset of a free extent of `length_bytes` (rounded up to the unit), or nothing.
  std::optional<std::uint64_t> allocate(std::uint64_t length_bytes);
  /// Gives back exactly what allocate() returned; checked.
  void free(std::uint64_t offset_bytes, std::uint64_t length_bytes);

  std::uint64_t capacity_bytes() const { return capacity_bytes_; }
  std::uint64_t free_bytes() const { return free_bytes_; }
  std::uint64_t largest_free_bytes() const;
  /// Length of the free run that would arise if [offset, offset + length) were free too: it plus
  /// its free neighbours.
  std::uint64_t run_bytes_if_freed(std::uint64_t offset_bytes, std::uint64_t length_bytes) const;

 private:
  std::uint64_t round_up(std::uint64_t length_bytes) const;

  std::uint64_t capacity_bytes_;
  std::uint64_t unit_bytes_;
  std::uint64_t free_bytes_;
  std::map<std::uint64_t, std::uint64_t> free_extents_;  // offset -> length; no two are neighbours
  std::map<std::uint64_t, std::uint64_t> used_extents_;  // offset -> length, as handed out
};

}  // namespace kvtier
