// TierParts: index, spaces, lives and a host tier without the rest of a store. One thread.
#pragma once

#include <doctest/doctest.h>

#include <memory>

#include "store/block_life.h"
#include "store/host_tier.h"
#include "store_world.h"

namespace kvtier::testing {

struct TierParts {
  explicit TierParts(std::uint64_t host_bytes = 4 << 20)
      : host_tier(life, host, std::move(Arena::create(host_bytes)).value(), host_bytes) {
    disk_class = disk.class_index_of({4096, 1});
    REQUIRE(disk.slots.add_segment(disk_class, 1000, 1).has_value());
    disk.on_change = [this](store::SlotRef slot, store::SlotChange change) {
      changes.emplace_back(slot, change);
    };
  }

  /// A resident host block; kNoEntry when no slot can be had.
  store::EntryIndex put(store::ClassIndex class_index, std::uint64_t number,
                        store::EntryIndex parent = store::kNoEntry) {
    const store::EntryIndex entry = index.insert(0, key_of(number), parent);
    REQUIRE(entry != store::kNoEntry);
    life.hold(entry);
    if (parent != store::kNoEntry) life.hold(parent);
    const auto slot = host_tier.reserve(class_index, entry);
    if (parent != store::kNoEntry) life.unhold(parent);
    if (!slot) {
      index.detach(entry);
      life.forget_new(entry);
      return store::kNoEntry;
    }
    life.begin_fill(entry, store::TierId::kHost, *slot);
    const auto bytes = host_tier.bytes(*slot);
    const auto payload = payload_of(number, bytes.size());
    std::copy(payload.begin(), payload.end(), bytes.begin());
    life.finish_fill(entry, store::TierId::kHost);
    life.unhold(entry);
    return entry;
  }
  /// The same block on disk as well.
  void put_on_disk(store::EntryIndex entry) {
    const auto slot = disk.slots.reserve(disk_class, entry);
    REQUIRE(slot.has_value());
    life.begin_fill(entry, store::TierId::kDisk, *slot);
    life.finish_fill(entry, store::TierId::kDisk);
  }
  bool has_right_bytes(std::uint64_t number) const {
    const store::EntryIndex entry = index.find(0, key_of(number));
    if (entry == store::kNoEntry || !index.at(entry).is_resident(store::TierId::kHost))
      return false;
    const auto bytes = host_tier.bytes(index.at(entry).slot(store::TierId::kHost));
    const auto payload = payload_of(number, bytes.size());
    return std::equal(bytes.begin(), bytes.end(), payload.begin());
  }
  bool is_there(std::uint64_t number) const {
    return index.find(0, key_of(number)) != store::kNoEntry;
  }

  store::BlockIndex index{100'000};
  store::TierSpace host{index, store::TierId::kHost};
  store::TierSpace disk{index, store::TierId::kDisk};
  store::BlockLife life{index, host, disk};
  store::HostTier host_tier;
  store::ClassIndex disk_class = 0;
  std::vector<std::pair<store::SlotRef, store::SlotChange>> changes;
};

}  // namespace kvtier::testing
