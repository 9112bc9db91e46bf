// Pins that earlier runs left, under this run's limit. Blocking; before the store has threads.
#include <algorithm>
#include <vector>

#include "store/pin_limit.h"
#include "store/recovery.h"

namespace kvtier::store {

void limit_recovered_pins(RecoveryContext& context) {
  BlockLife& life = context.life;
  const TierStats& stats = life.space(TierId::kDisk).stats;
  const std::uint64_t bytes_max = pinned_bytes_max(context.tier.capacity_bytes());
  const std::uint64_t bytes_before = stats.pinned_bytes;
  if (bytes_before <= bytes_max) return;
  std::vector<EntryIndex> pinned;
  life.index().for_each([&](EntryIndex entry) {
    if (life.index().at(entry).pin_count > 0) pinned.push_back(entry);
  });
  // Younger than its parent is every child, so what stays pinned are whole prefixes.
  std::sort(pinned.begin(), pinned.end(), [&life](EntryIndex a, EntryIndex b) {
    return life.index().at(a).disk_generation > life.index().at(b).disk_generation;
  });
  std::size_t num_ended = 0;
  for (; stats.pinned_bytes > bytes_max; ++num_ended) life.end_pins(pinned.at(num_ended));
  context.log("warning",
              "the disk cap is too small for what earlier runs pinned: the pins of the latest " +
                  std::to_string(num_ended) + " blocks end: pinned_bytes=" +
                  std::to_string(bytes_before) + " at most " + std::to_string(bytes_max));
}

}  // namespace kvtier::store
