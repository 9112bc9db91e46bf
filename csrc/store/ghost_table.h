// GhostTable: which keys were met lately, in a bounded queue. Guarded by the store's mutex.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace kvtier::store {

class GhostTable {
 public:
  /// At most `num_entries_max` keys, 16 bytes each; the first one in is the first forgotten.
  explicit GhostTable(std::uint32_t num_entries_max);

  /// Remembers the key with a value; one that is there already keeps its place and its value.
  void insert(std::uint32_t key_tag, std::uint32_t value);
  std::optional<std::uint32_t> find(std::uint32_t key_tag) const;
  void remove(std::uint32_t key_tag);
  std::uint64_t num_bytes() const { return entries_.size() * 12 + buckets_.size() * 4; }

 private:
  struct Entry {
    std::uint32_t key_tag = 0;
    std::uint32_t value = 0;
    std::uint32_t next = kNone;  // In its bucket.
  };
  static constexpr std::uint32_t kNone = UINT32_MAX;

  std::uint32_t* link_to(std::uint32_t key_tag);

  std::uint32_t num_entries_max_;
  std::vector<Entry> entries_;  // A ring once it is full.
  std::vector<bool> is_used_;
  std::vector<std::uint32_t> buckets_;
  std::uint32_t next_place_ = 0;
};

}  // namespace kvtier::store
