// Room on disk: slots, segments and the cap. Guarded by the store's mutex.
#include "store/disk_tier.h"

#include <algorithm>
#include <cerrno>

#include "store/host_tier.h"

namespace kvtier::store {
namespace {

constexpr std::uint64_t kBlockBytes = 4096;
constexpr std::uint64_t kSegmentBytesMin = 1ull << 20;
// ext4 keeps about 340 extents in a block of metadata; every second block may be an extent of its
// own.
constexpr std::uint64_t kBlocksPerExtentBlock = 300;
constexpr std::uint32_t kEvictionsBetweenLooks = 16;
constexpr TimeNs kGrowthPauseNs = 5 * kNsPerS;

}  // namespace

std::uint64_t segment_charge_bytes(const format::SegmentHeader& header) {
  const std::uint64_t blocks = (header.file_bytes() + kBlockBytes - 1) / kBlockBytes;
  return (blocks + 2 + blocks / kBlocksPerExtentBlock) * kBlockBytes;
}

DiskTier::DiskTier(BlockLife& life, TierSpace& space, disk::DiskEngine& engine, Clock& clock,
                   const DiskTierOptions& options, Log log)
    : life_(life),
      space_(space),
      engine_(engine),
      clock_(clock),
      options_(options),
      log_(std::move(log)),
      commits_(life.index(), space, engine),
      reads_(clock),
      target_bytes_(segment_target_bytes(options.cap_bytes)) {
  space_.on_change = [this](SlotRef slot, SlotChange change) {
    commits_.note_change(slot, change);
  };
}

std::uint16_t DiskTier::adopt_segment(const format::SegmentHeader& header,
                                      std::uint64_t allocated_bytes) {
  const ClassIndex class_index =
      space_.class_index_of(SizeClass{header.slot_bytes, header.num_parts});
  const auto segment_index =
      space_.slots.add_segment(class_index, header.num_slots, header.segment_id);
  KVTIER_CHECK(segment_index.has_value());
  const std::uint64_t charge = std::max(segment_charge_bytes(header), allocated_bytes);
  segments_[*segment_index] = SegmentInfo{header, charge, false};
  segment_bytes_ += charge;
  commits_.add_segment(*segment_index, header);
  return *segment_index;
}

DiskReservation DiskTier::reserve(ClassIndex class_index, EntryIndex owner) {
  while (true) {
    if (const auto slot = space_.slots.reserve(class_index, owner)) return {Room::kSlot, *slot};
    const bool is_creating = std::any_of(
        creating_.begin(), creating_.end(),
        [class_index](const auto& item) { return item.second.class_index == class_index; });
    // A segment on its way is worth waiting for: evicting meanwhile would give up blocks for
    // nothing.
    if (is_creating || !leaving_.empty() || !removing_.empty()) return {Room::kWait, {}};
    if (start_creation(class_index)) return {Room::kWait, {}};
    // While segments cannot be made, taking one from another class would give it up for nothing.
    const bool can_take = !is_growth_blocked_ || clock_.now_ns() >= growth_retry_ns_;
    const bool is_time_to_look = can_take && ++num_evictions_ % kEvictionsBetweenLooks == 0;
    if (is_time_to_look && take_from_others(class_index, false)) return {Room::kWait, {}};
    if (evict_one(class_index)) continue;
    if (can_take && take_from_others(class_index, true)) return {Room::kWait, {}};
    return {Room::kNone, {}};
  }
}

bool DiskTier::is_full(ClassIndex class_index) const {
  if (space_.slots.num_class_used(class_index) < space_.slots.num_class_slots(class_index)) {
    return false;
  }
  return creating_.empty() && !plan_creation(class_index).has_value();
}

std::optional<format::SegmentHeader> DiskTier::plan_creation(ClassIndex class_index) const {
  if (clock_.now_ns() < growth_retry_ns_) return std::nullopt;
  const std::uint64_t used = charged_bytes();
  return plan_segment(class_index, used >= options_.cap_bytes ? 0 : options_.cap_bytes - used);
}

std::optional<format::SegmentHeader> DiskTier::plan_segment(ClassIndex class_index,
                                                            std::uint64_t room_bytes) const {
  if (!space_.slots.has_room_for_segments(creating_.size() + 1)) return std::nullopt;
  const SizeClass& size_class = space_.slots.size_class(class_index);
  std::uint64_t num_slots = std::max<std::uint64_t>(1, target_bytes_ / size_class.slot_bytes);
  // Small blocks are packed at less than the usual alignment.
  const auto alignment_bytes = static_cast<std::uint32_t>(std::min<std::uint64_t>(
      options_.alignment_bytes, size_class.slot_bytes & (~size_class.slot_bytes + 1)));
  // The last segment takes what is left, unless that is hardly worth a file.
  const std::uint64_t num_slots_min = std::max<std::uint64_t>(1, num_slots / 16);
  for (; num_slots >= num_slots_min; num_slots -= std::max<std::uint64_t>(1, num_slots / 16)) {
    const format::SegmentHeader header =
        format::plan_segment(store_id_, segment_id_next_, static_cast<std::uint32_t>(num_slots),
                             size_class.slot_bytes, size_class.num_parts, alignment_bytes);
    if (segment_charge_bytes(header) <= room_bytes) return header;
    if (num_slots == 1) break;
  }
  return std::nullopt;
}

bool DiskTier::start_creation(ClassIndex class_index) {
  const auto header = plan_creation(class_index);
  if (!header) return false;
  ++segment_id_next_;
  const std::uint64_t charge = segment_charge_bytes(*header);
  segment_bytes_ += charge;
  creating_.emplace(engine_.create_segment(*header), Creation{class_index, *header, charge});
  return true;
}

void DiskTier::finish_creation(const disk::DiskResult& result) {
  const Creation creation = std::move(creating_.at(result.job_id));
  creating_.erase(result.job_id);
  segment_bytes_ -= creation.charged_bytes;
  if (!result.status.is_ok()) {
    const bool is_full = result.status.code() == StatusCode::kNoSpace;
    if (is_full && target_bytes_ > kSegmentBytesMin) {
      target_bytes_ = std::max(kSegmentBytesMin, target_bytes_ / 2);
      return;  // The next reserve() tries the smaller one.
    }
    is_growth_blocked_ = !is_full;
    growth_retry_ns_ = clock_.now_ns() + kGrowthPauseNs;
    log_("warning",
         "cannot grow the disk tier, it goes on with what it has: " + result.status.message());
    if (!is_full) note_write_result(result.status, clock_.now_ns());
    return;
  }
  adopt_segment(creation.header, result.value);
}

bool DiskTier::evict_one(ClassIndex class_index) {
  const EntryIndex victim = find_victim(class_index);
  if (victim == kNoEntry) return false;
  life_.evict(victim, TierId::kDisk);
  return true;
}

std::optional<SlotRef> DiskTier::replace_one(ClassIndex class_index, EntryIndex owner) {
  const EntryIndex victim = find_victim(class_index);
  if (victim == kNoEntry) return std::nullopt;
  const SlotRef slot = life_.index().at(victim).slot(TierId::kDisk);
  life_.evict(victim, TierId::kDisk);
  space_.slots.reserve_released(slot, owner);
  return slot;
}

std::optional<BlockUse> DiskTier::victim_use(ClassIndex class_index) {
  const EntryIndex victim = find_victim(class_index);
  if (victim == kNoEntry) return std::nullopt;
  return life_.index().at(victim).use;
}

EntryIndex DiskTier::find_victim(ClassIndex class_index) {
  return space_.policy(class_index).victim([this](EntryIndex candidate) {
    return life_.is_evictable(candidate, TierId::kDisk);
  });
}

bool DiskTier::take_from_others(ClassIndex class_index, bool is_forced) {
  double own_value = is_forced ? 1e300 : 0;
  if (!is_forced) {
    const EntryIndex own = find_victim(class_index);
    if (own == kNoEntry) return false;
    own_value = life_.index().at(own).last_use;
  }
  // Cheapest first; one that turns out to be in use is passed over.
  std::vector<std::pair<double, std::uint16_t>> candidates;
  for (const auto& [segment_index, info] : segments_) {
    const Segment& segment = space_.slots.segment(segment_index);
    if (segment.class_index == class_index || info.is_leaving) continue;
    const double value =
        segment.num_used == 0 ? 0.0 : static_cast<double>(segment.use_sum) / segment.num_used;
    if (value < own_value) candidates.emplace_back(value, segment_index);
  }
  std::sort(candidates.begin(), candidates.end());
  for (const auto& [value, segment_index] : candidates) {
    if (!empty_segment(segment_index)) continue;
    leave(segment_index);
    return true;
  }
  return false;
}

bool DiskTier::is_family_protected(EntryIndex root) const {
  const std::vector<EntryIndex> members = life_.index().family(root);
  return std::any_of(members.begin(), members.end(), [this](EntryIndex member) {
    const BlockEntry& block = life_.index().at(member);
    return block.num_holds > 0 || block.num_leases[0] > 0 || block.num_leases[1] > 0 ||
           block.pin_count > 0;
  });
}

bool DiskTier::empty_segment(std::uint16_t segment_index) {
  const Segment& segment = space_.slots.segment(segment_index);
  // Nothing is given up in vain: blocks in use, leased or pinned keep the whole segment.
  for (const EntryIndex owner : segment.owners) {
    if (owner == kNoEntry) continue;
    const BlockEntry& block = life_.index().at(owner);
    const bool is_protected = block.num_holds > 0 || block.num_leases[1] > 0 || block.pin_count > 0;
    if (is_protected || !block.is_resident(TierId::kDisk)) return false;
  }
  bool is_moving = true;
  while (is_moving && segment.num_used > 0) {
    is_moving = false;
    for (std::uint32_t i = 0; i < segment.num_slots(); ++i) {
      const EntryIndex owner = segment.owners[i];
      if (owner == kNoEntry || !life_.is_evictable(owner, TierId::kDisk)) continue;
      life_.evict(owner, TierId::kDisk);
      is_moving = true;
    }
  }
  // What is left are parents of blocks in other segments. They go with their descendants: the class
  // that starves could wait for ever for those to go one by one.
  for (std::uint32_t i = 0; i < segment.num_slots(); ++i) {
    const EntryIndex owner = segment.owners[i];
    if (owner == kNoEntry) continue;
    if (is_family_protected(owner)) return false;
    space_.stats.evicted += life_.remove_family(owner);
  }
  return segment.num_used == 0;
}

void DiskTier::leave(std::uint16_t segment_index) {
  SegmentInfo& info = segments_.at(segment_index);
  KVTIER_CHECK(!info.is_leaving);
  info.is_leaving = true;
  if (space_.slots.segment(segment_index).is_open) space_.slots.close_segment(segment_index);
  leaving_.push_back(segment_index);
  if (start_removal(segment_index)) leaving_.pop_back();
}

bool DiskTier::start_removal(std::uint16_t segment_index) {
  const SegmentInfo info = segments_.at(segment_index);
  if (engine_.num_jobs_of(info.header.segment_id) > 0 || commits_.is_busy(segment_index)) {
    return false;
  }
  commits_.remove_segment(segment_index);
  space_.slots.remove_segment(segment_index);
  segments_.erase(segment_index);
  removing_.emplace(engine_.remove_segment(info.header.segment_id),
                    Removal{info.header.segment_id, info.charged_bytes});
  return true;
}

void DiskTier::forget_segment(std::uint16_t segment_index) {
  KVTIER_CHECK(space_.slots.segment(segment_index).num_used == 0);
  segment_bytes_ -= segments_.at(segment_index).charged_bytes;
  commits_.remove_segment(segment_index);
  if (space_.slots.segment(segment_index).is_open) space_.slots.close_segment(segment_index);
  space_.slots.remove_segment(segment_index);
  segments_.erase(segment_index);
}

void DiskTier::remove_empty_segments() {
  std::vector<std::uint16_t> empty;
  for (const auto& [segment_index, info] : segments_) {
    if (!info.is_leaving && space_.slots.segment(segment_index).num_used == 0) {
      empty.push_back(segment_index);
    }
  }
  std::sort(empty.begin(), empty.end());
  for (const std::uint16_t segment_index : empty) leave(segment_index);
}

bool DiskTier::finish(const disk::DiskResult& result) {
  if (creating_.contains(result.job_id)) {
    finish_creation(result);
    return true;
  }
  const auto removal = removing_.find(result.job_id);
  if (removal == removing_.end()) return false;
  const bool is_gone = result.status.is_ok() || result.status.os_errno() == ENOENT;
  if (is_gone) {
    segment_bytes_ -= removal->second.charged_bytes;
    growth_retry_ns_ = 0;  // A device that was full has room now.
  } else {
    // The file stays, its blocks are forgotten and its bytes stay charged; the next open removes
    // it.
    ++num_removal_failures_;
    has_leftovers_ |= result.value == 0;
    last_removal_failure_ = result.status;
    log_("warning", "cannot remove a segment file, its space is lost until the next open: " +
                        result.status.message());
  }
  removing_.erase(removal);
  return true;
}

std::uint64_t DiskTier::table_bytes() const {
  std::uint64_t total = 0;
  for (const auto& [segment_index, info] : segments_) {
    total += info.header.payload_offset_bytes;
  }
  return total;
}

std::uint64_t DiskTier::capacity_bytes() const {
  return options_.cap_bytes > fixed_bytes_ ? options_.cap_bytes - fixed_bytes_ : 0;
}

void DiskTier::forget_segments() {
  KVTIER_CHECK(creating_.empty());
  KVTIER_CHECK(removing_.empty());
  commits_.forget();
  for (const auto& [segment_index, info] : segments_) space_.slots.remove_segment(segment_index);
  segments_.clear();
  leaving_.clear();
  segment_bytes_ = 0;
  target_bytes_ = segment_target_bytes(options_.cap_bytes);
  growth_retry_ns_ = 0;
}

}  // namespace kvtier::store
