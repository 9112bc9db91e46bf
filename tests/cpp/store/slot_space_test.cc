// Slots are free or used, never both, and always add up.
#include "store/slot_space.h"

#include <doctest/doctest.h>

#include <map>
#include <set>

#include "base/random.h"

using namespace kvtier;
using namespace kvtier::store;

TEST_CASE("random reservations and releases never hand a slot out twice") {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    SlotSpace slots;
    const ClassIndex classes[] = {slots.class_index_of({4096, 1}), slots.class_index_of({512, 1}),
                                  slots.class_index_of({4096, 3})};
    CHECK(slots.class_index_of({512, 1}) == classes[1]);
    std::map<std::pair<std::uint16_t, std::uint32_t>, EntryIndex> used;
    std::set<std::uint16_t> closed;
    std::uint64_t num_slots[3] = {0, 0, 0};
    for (EntryIndex step = 0; step < 20'000; ++step) {
      const std::uint64_t choice = random.below(100);
      const std::size_t c = random.below(3);
      if (choice < 45) {
        const auto slot = slots.reserve(classes[c], step);
        if (!slot) continue;
        REQUIRE_FALSE(closed.contains(slot->segment_index));
        REQUIRE(slots.segment(slot->segment_index).class_index == classes[c]);
        REQUIRE(used.emplace(std::pair(slot->segment_index, slot->slot_index), step).second);
      } else if (choice < 85 && !used.empty()) {
        auto at = used.begin();
        std::advance(at, static_cast<std::ptrdiff_t>(random.below(used.size())));
        const SlotRef slot{at->first.second, at->first.first};
        REQUIRE(slots.owner(slot) == at->second);
        slots.release(slot);
        if (random.below(4) == 0) {
          slots.reserve_released(slot, step);
          at->second = step;
        } else {
          used.erase(at);
        }
      } else if (choice < 90 && slots.segment_index_end() < 40) {
        const auto added =
            slots.add_segment(classes[c], 1 + static_cast<std::uint32_t>(random.below(20)), step);
        REQUIRE(added.has_value());
        num_slots[c] += slots.segment(*added).num_slots();
      } else if (slots.segment_index_end() > 0) {
        const auto s = static_cast<std::uint16_t>(random.below(slots.segment_index_end()));
        if (!slots.segment(s).is_present) continue;
        if (closed.erase(s) > 0) {
          if (slots.segment(s).num_used > 0 || random.below(2) == 0) {
            slots.open_segment(s);
          } else {
            num_slots[slots.segment(s).class_index] -= slots.segment(s).num_slots();
            slots.remove_segment(s);
          }
        } else {
          slots.close_segment(s);
          closed.insert(s);
        }
      }
      std::uint64_t used_bytes = 0;
      for (const auto& [place, owner] : used) {
        used_bytes += slots.slot_bytes(SlotRef{place.second, place.first});
      }
      REQUIRE(slots.used_bytes() == used_bytes);
      for (std::size_t i = 0; i < 3; ++i)
        REQUIRE(slots.num_class_slots(classes[i]) == num_slots[i]);
    }
  }
}

TEST_CASE("a fresh segment gives its slots in rising order") {
  SlotSpace slots;
  const ClassIndex index = slots.class_index_of({4096, 1});
  REQUIRE(slots.add_segment(index, 10, 0).has_value());
  for (std::uint32_t i = 0; i < 10; ++i) CHECK(slots.reserve(index, i)->slot_index == i);
  CHECK_FALSE(slots.reserve(index, 10).has_value());
}

TEST_CASE("claimed slots are not given out after the free lists were rebuilt") {
  SlotSpace slots;
  const ClassIndex index = slots.class_index_of({4096, 1});
  const auto segment = slots.add_segment(index, 6, 0);
  slots.claim(SlotRef{1, *segment}, 101);
  slots.claim(SlotRef{4, *segment}, 104);
  slots.rebuild_free_lists();
  std::set<std::uint32_t> given;
  while (const auto slot = slots.reserve(index, 7)) given.insert(slot->slot_index);
  CHECK(given == std::set<std::uint32_t>{0, 2, 3, 5});
  CHECK(slots.num_class_used(index) == 6);
}

TEST_CASE("no more segments are made than there are numbers for") {
  SlotSpace slots;
  const ClassIndex index = slots.class_index_of({4096, 1});
  for (std::size_t i = 0; i < SlotSpace::kSegmentsMax; ++i) {
    REQUIRE(slots.add_segment(index, 1, i).has_value());
  }
  CHECK_FALSE(slots.add_segment(index, 1, 0).has_value());
  slots.remove_segment(1234);
  CHECK(slots.add_segment(index, 1, 0) == std::optional<std::uint16_t>(1234));
}
