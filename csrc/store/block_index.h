// BlockIndex: hash table and family tree over all block entries. Not thread-safe: guarded by the
// store's mutex.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "store/block_entry.h"

namespace kvtier::store {

class BlockIndex {
 public:
  /// Reserves address space for `blocks_max` entries; memory is taken as they are used.
  explicit BlockIndex(std::uint64_t blocks_max);
  ~BlockIndex();
  BlockIndex(const BlockIndex&) = delete;
  BlockIndex& operator=(const BlockIndex&) = delete;

  EntryIndex find(std::uint32_t namespace_index, const BlockKey& key) const;
  /// As many finds, `found` as long as `keys`. Neighbours of a chain that lie side by side are
  /// found without the hash; for the others the memory is fetched ahead, so that the waits overlap.
  void find_all(std::uint32_t namespace_index, std::span<const BlockKey> keys,
                std::span<EntryIndex> found) const;
  /// A new entry, child of `parent` (kNoEntry: a root). kNoEntry when blocks_max are in use. The
  /// key must not be there.
  EntryIndex insert(std::uint32_t namespace_index, const BlockKey& key, EntryIndex parent);
  /// Sets the parent of an entry that was inserted as a root. Only recovery does this.
  void link_parent(EntryIndex entry, EntryIndex parent);
  /// Takes an entry without children out of hash and tree; its memory stays until free().
  void detach(EntryIndex entry);
  /// Gives back a detached entry.
  void free(EntryIndex entry);

  BlockEntry& at(EntryIndex entry) {
    KVTIER_CHECK(entry < num_touched_);
    return entries_[entry];
  }
  const BlockEntry& at(EntryIndex entry) const {
    KVTIER_CHECK(entry < num_touched_);
    return entries_[entry];
  }

  /// `root` and everything below it, parents before children.
  std::vector<EntryIndex> family(EntryIndex root) const;

  /// Checksums of a block of `num_parts` parts.
  std::span<const std::uint64_t> checksums(EntryIndex entry, std::size_t num_parts) const;
  void set_checksums(EntryIndex entry, std::span<const std::uint64_t> checksums);
  /// Whether just these are set. A damaged table can name a block of another number of parts.
  bool has_checksums(EntryIndex entry, std::span<const std::uint64_t> checksums) const;

  std::size_t num_entries() const { return num_entries_; }
  std::uint64_t num_bytes() const;
  std::uint64_t blocks_max() const { return blocks_max_; }
  /// Makes room for `num_entries` without growing in between.
  void reserve(std::size_t num_entries);

  /// Every entry in the hash, any order.
  template <typename Visit>
  void for_each(Visit visit) const {
    for (EntryIndex head : buckets_) {
      for (EntryIndex entry = head; entry != kNoEntry;) {
        const EntryIndex next = entries_[entry].hash_next;
        visit(entry);
        entry = next;
      }
    }
  }

 private:
  bool is_at(EntryIndex entry, std::uint32_t namespace_index, const BlockKey& key) const;
  void prefetch(EntryIndex entry) const {
    // What a lookup reads may begin in one cache line and end in the next.
    const auto* begin = reinterpret_cast<const char*>(&entries_[entry]);
    __builtin_prefetch(begin);
    __builtin_prefetch(begin + offsetof(BlockEntry, parent) - 1);
  }
  void find_group(std::uint32_t namespace_index, std::span<const BlockKey> keys,
                  std::span<EntryIndex> found) const;
  std::size_t bucket_of(std::uint32_t namespace_index, const BlockKey& key) const;
  void rehash(std::size_t num_buckets);
  void advise_huge_pages();
  void link_child(EntryIndex parent, EntryIndex child);
  void unlink_child(EntryIndex child);

  std::uint64_t blocks_max_;
  BlockEntry* entries_ = nullptr;  // A reserved range; [0, num_touched_) is constructed.
  std::uint64_t num_touched_ = 0;
  EntryIndex free_head_ = kNoEntry;  // Linked through hash_next.
  std::size_t num_entries_ = 0;      // In the hash.
  std::vector<EntryIndex> buckets_;  // Power of two.
  std::unordered_map<EntryIndex, std::vector<std::uint64_t>> part_checksums_;
};

}  // namespace kvtier::store
