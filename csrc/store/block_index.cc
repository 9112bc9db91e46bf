// The block index: chained hash buckets over entries in one reserved range. Guarded by the store's
// mutex.
#include "store/block_index.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <bit>
#include <new>

namespace kvtier::store {
namespace {

constexpr std::size_t kBucketsMin = 1024;
// From here on huge pages: a large index is walked at random, a small one should stay small.
constexpr std::size_t kEntriesForHugePages = 65536;
// Keys that are looked up side by side: as many as a core fetches from memory at once, and some.
constexpr std::size_t kGroupKeys = 32;
// In a row of entries the next ones are fetched this far ahead.
constexpr EntryIndex kAheadEntries = 12;

}  // namespace

BlockIndex::BlockIndex(std::uint64_t blocks_max)
    : blocks_max_(blocks_max), buckets_(kBucketsMin, kNoEntry) {
  KVTIER_CHECK(blocks_max >= 1);
  KVTIER_CHECK(blocks_max < kNoEntry);
  void* range = mmap(nullptr, blocks_max * sizeof(BlockEntry), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) throw std::bad_alloc();
  entries_ = static_cast<BlockEntry*>(range);
}

BlockIndex::~BlockIndex() { munmap(entries_, blocks_max_ * sizeof(BlockEntry)); }

std::size_t BlockIndex::bucket_of(std::uint32_t namespace_index, const BlockKey& key) const {
  // Keys are digests, but a caller may bring its own raw ones: one multiplication spreads those.
  const std::uint64_t mixed =
      (key.head() ^ (namespace_index * 0x9e3779b97f4a7c15ull)) * 0xff51afd7ed558ccdull;
  return static_cast<std::size_t>(mixed >> 32) & (buckets_.size() - 1);
}

EntryIndex BlockIndex::find(std::uint32_t namespace_index, const BlockKey& key) const {
  EntryIndex entry = buckets_[bucket_of(namespace_index, key)];
  while (entry != kNoEntry) {
    const BlockEntry& candidate = entries_[entry];
    if (candidate.key == key && candidate.namespace_index == namespace_index) return entry;
    entry = candidate.hash_next;
  }
  return kNoEntry;
}

bool BlockIndex::is_at(EntryIndex entry, std::uint32_t namespace_index, const BlockKey& key) const {
  const BlockEntry& candidate = entries_[entry];
  return candidate.key == key && candidate.namespace_index == namespace_index &&
         !candidate.is_detached;
}

void BlockIndex::find_all(std::uint32_t namespace_index, std::span<const BlockKey> keys,
                          std::span<EntryIndex> found) const {
  KVTIER_CHECK(keys.size() == found.size());
  std::size_t i = 0;
  while (i < keys.size()) {
    // A chain that was put in one go has its entries in a row.
    EntryIndex last = i == 0 ? kNoEntry : found[i - 1];
    while (last != kNoEntry && i < keys.size() && last + 1 < num_touched_ &&
           is_at(last + 1, namespace_index, keys[i])) {
      found[i++] = ++last;
      // Beyond the range is harmless: it is never read.
      prefetch(last + kAheadEntries);
    }
    const std::size_t num_grouped = std::min(kGroupKeys, keys.size() - i);
    find_group(namespace_index, keys.subspan(i, num_grouped), found.subspan(i, num_grouped));
    i += num_grouped;
  }
}

/// At most kGroupKeys keys: all buckets are asked for before the first is read, then all entries,
/// one step of every chain at a time.
void BlockIndex::find_group(std::uint32_t namespace_index, std::span<const BlockKey> keys,
                            std::span<EntryIndex> found) const {
  std::array<std::size_t, kGroupKeys> buckets;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    buckets[i] = bucket_of(namespace_index, keys[i]);
    __builtin_prefetch(&buckets_[buckets[i]]);
  }
  std::array<std::uint8_t, kGroupKeys> open;
  std::size_t num_open = 0;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    found[i] = buckets_[buckets[i]];
    if (found[i] == kNoEntry) continue;
    prefetch(found[i]);
    open[num_open++] = static_cast<std::uint8_t>(i);
  }
  while (num_open > 0) {
    std::size_t num_left = 0;
    for (std::size_t k = 0; k < num_open; ++k) {
      const std::size_t i = open[k];
      const BlockEntry& candidate = entries_[found[i]];
      if (candidate.key == keys[i] && candidate.namespace_index == namespace_index) continue;
      found[i] = candidate.hash_next;
      if (found[i] == kNoEntry) continue;
      prefetch(found[i]);
      open[num_left++] = static_cast<std::uint8_t>(i);
    }
    num_open = num_left;
  }
}

EntryIndex BlockIndex::insert(std::uint32_t namespace_index, const BlockKey& key,
                              EntryIndex parent) {
  EntryIndex entry = free_head_;
  if (entry != kNoEntry) {
    free_head_ = entries_[entry].hash_next;
  } else {
    if (num_touched_ == blocks_max_) return kNoEntry;
    entry = static_cast<EntryIndex>(num_touched_++);
    if (num_touched_ == kEntriesForHugePages) advise_huge_pages();
  }
  new (&entries_[entry]) BlockEntry();
  if (num_entries_ == buckets_.size()) rehash(buckets_.size() * 2);
  BlockEntry& fresh = entries_[entry];
  fresh.key = key;
  KVTIER_CHECK(namespace_index <= UINT16_MAX);
  fresh.namespace_index = static_cast<std::uint16_t>(namespace_index);
  EntryIndex& head = buckets_[bucket_of(namespace_index, key)];
  fresh.hash_next = head;
  head = entry;
  ++num_entries_;
  if (parent != kNoEntry) link_child(parent, entry);
  return entry;
}

void BlockIndex::link_parent(EntryIndex entry, EntryIndex parent) {
  KVTIER_CHECK(at(entry).parent == kNoEntry);
  KVTIER_CHECK(entry != parent);
  link_child(parent, entry);
}

void BlockIndex::detach(EntryIndex entry) {
  BlockEntry& leaving = at(entry);
  KVTIER_CHECK(!leaving.is_detached);
  KVTIER_CHECK(!leaving.has_children());
  EntryIndex* link = &buckets_[bucket_of(leaving.namespace_index, leaving.key)];
  while (*link != entry) {
    KVTIER_CHECK(*link != kNoEntry);
    link = &entries_[*link].hash_next;
  }
  *link = leaving.hash_next;
  leaving.hash_next = kNoEntry;
  if (leaving.parent != kNoEntry) unlink_child(entry);
  leaving.is_detached = true;
  --num_entries_;
}

void BlockIndex::free(EntryIndex entry) {
  BlockEntry& freed = at(entry);
  KVTIER_CHECK(freed.is_detached);
  KVTIER_CHECK(freed.num_holds == 0);
  part_checksums_.erase(entry);
  freed.hash_next = free_head_;
  free_head_ = entry;
}

void BlockIndex::link_child(EntryIndex parent, EntryIndex child) {
  BlockEntry& above = at(parent);
  BlockEntry& below = at(child);
  below.parent = parent;
  below.previous_sibling = kNoEntry;
  below.next_sibling = above.first_child;
  if (above.first_child != kNoEntry) entries_[above.first_child].previous_sibling = child;
  above.first_child = child;
}

void BlockIndex::unlink_child(EntryIndex child) {
  BlockEntry& below = at(child);
  if (below.previous_sibling != kNoEntry) {
    entries_[below.previous_sibling].next_sibling = below.next_sibling;
  } else {
    at(below.parent).first_child = below.next_sibling;
  }
  if (below.next_sibling != kNoEntry) {
    entries_[below.next_sibling].previous_sibling = below.previous_sibling;
  }
  below.parent = below.next_sibling = below.previous_sibling = kNoEntry;
}

std::vector<EntryIndex> BlockIndex::family(EntryIndex root) const {
  std::vector<EntryIndex> members = {root};
  for (std::size_t i = 0; i < members.size(); ++i) {
    EntryIndex child = at(members[i]).first_child;
    for (; child != kNoEntry; child = entries_[child].next_sibling) members.push_back(child);
  }
  return members;
}

std::span<const std::uint64_t> BlockIndex::checksums(EntryIndex entry,
                                                     std::size_t num_parts) const {
  if (num_parts == 1) return {&at(entry).checksum, 1};
  const auto found = part_checksums_.find(entry);
  KVTIER_CHECK(found != part_checksums_.end());
  KVTIER_CHECK(found->second.size() == num_parts);
  return found->second;
}

void BlockIndex::set_checksums(EntryIndex entry, std::span<const std::uint64_t> checksums) {
  if (checksums.size() == 1) {
    at(entry).checksum = checksums[0];
  } else {
    part_checksums_[entry].assign(checksums.begin(), checksums.end());
  }
}

bool BlockIndex::has_checksums(EntryIndex entry, std::span<const std::uint64_t> checksums) const {
  if (checksums.size() == 1) return at(entry).checksum == checksums[0];
  const auto found = part_checksums_.find(entry);
  return found != part_checksums_.end() &&
         std::equal(checksums.begin(), checksums.end(), found->second.begin(), found->second.end());
}

std::uint64_t BlockIndex::num_bytes() const {
  std::uint64_t part_bytes = 0;
  for (const auto& item : part_checksums_) part_bytes += item.second.size() * 8 + 64;
  return num_touched_ * sizeof(BlockEntry) + buckets_.size() * sizeof(EntryIndex) + part_bytes;
}

void BlockIndex::reserve(std::size_t num_entries) {
  const std::size_t wanted = std::bit_ceil(num_entries);
  if (wanted > buckets_.size()) rehash(wanted);
  if (num_entries >= kEntriesForHugePages) advise_huge_pages();
}

void BlockIndex::advise_huge_pages() {
  // A refusal only costs speed.
  (void)madvise(entries_, blocks_max_ * sizeof(BlockEntry), MADV_HUGEPAGE);
}

void BlockIndex::rehash(std::size_t num_buckets) {
  std::vector<EntryIndex> old = std::move(buckets_);
  buckets_.assign(num_buckets, kNoEntry);
  for (EntryIndex head : old) {
    while (head != kNoEntry) {
      BlockEntry& moved = entries_[head];
      const EntryIndex next = moved.hash_next;
      EntryIndex& bucket = buckets_[bucket_of(moved.namespace_index, moved.key)];
      moved.hash_next = bucket;
      bucket = head;
      head = next;
    }
  }
}

}  // namespace kvtier::store
