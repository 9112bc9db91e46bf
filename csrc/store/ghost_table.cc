// The queue of ghosts and its buckets. Guarded by the store's mutex.
#include "store/ghost_table.h"

#include <algorithm>
#include <bit>

namespace kvtier::store {

GhostTable::GhostTable(std::uint32_t num_entries_max)
    : num_entries_max_(std::max(num_entries_max, 1u)),
      entries_(num_entries_max_),
      is_used_(num_entries_max_, false),
      buckets_(std::bit_floor(num_entries_max_), kNone) {}

void GhostTable::insert(std::uint32_t key_tag, std::uint32_t value) {
  if (*link_to(key_tag) != kNone) return;
  const std::uint32_t place = next_place_;
  next_place_ = (next_place_ + 1) % num_entries_max_;
  if (is_used_[place]) remove(entries_[place].key_tag);
  std::uint32_t& bucket = buckets_[key_tag & (buckets_.size() - 1)];
  entries_[place] = Entry{key_tag, value, bucket};
  is_used_[place] = true;
  bucket = place;
}

std::optional<std::uint32_t> GhostTable::find(std::uint32_t key_tag) const {
  std::uint32_t place = buckets_[key_tag & (buckets_.size() - 1)];
  while (place != kNone && entries_[place].key_tag != key_tag) place = entries_[place].next;
  if (place == kNone) return std::nullopt;
  return entries_[place].value;
}

void GhostTable::remove(std::uint32_t key_tag) {
  std::uint32_t* link = link_to(key_tag);
  if (*link == kNone) return;
  is_used_[*link] = false;
  *link = entries_[*link].next;
}

std::uint32_t* GhostTable::link_to(std::uint32_t key_tag) {
  std::uint32_t* link = &buckets_[key_tag & (buckets_.size() - 1)];
  while (*link != kNone && entries_[*link].key_tag != key_tag) link = &entries_[*link].next;
  return link;
}

}  // namespace kvtier::store
