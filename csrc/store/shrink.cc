// Fitting a store into a smaller cap at open. Blocking; before the store has threads.
#include <algorithm>
#include <set>
#include <unordered_map>
#include <vector>

#include "disk/segment_file.h"
#include "store/recovery.h"
#include "store/slot_copier.h"

namespace kvtier::store {
namespace {

class Shrink {
 public:
  Shrink(RecoveryContext& context, RecoveryReport& report)
      : context_(context),
        report_(report),
        life_(context.life),
        space_(context.life.space(TierId::kDisk)),
        copier_(context.directory, context.tier, space_.slots) {}

  Status run(std::uint64_t excess_bytes) {
    count_pinned();
    list_by_worth();
    choose_segments(excess_bytes);
    announce();
    // A block that was moved is in no table before the one of its new segment is written: until its
    // file goes the old one stays as it is. What is dropped may come back after a crash.
    for (const std::uint16_t doomed : report_.segments_to_leave) {
      context_.tier.commits().abandon_segment(doomed);
    }
    fill_room();
    mark_needed();
    for (const std::uint16_t doomed : report_.segments_to_leave) drop_unneeded(doomed);
    list_spare();
    for (const bool is_pinned_turn : {true, false}) {
      for (const std::uint16_t doomed : report_.segments_to_leave) {
        move_needed(doomed, is_pinned_turn);
      }
    }
    if (num_late_ > 0) {
      context_.log("warning", "blocks that were to be kept under the smaller disk cap are lost: " +
                                  std::to_string(num_late_) + " could not be moved in time");
    }
    if (num_unmoved_ > 0) {
      context_.log("warning", "blocks that were to be kept under the smaller disk cap are lost: " +
                                  std::to_string(num_unmoved_) +
                                  " could not be moved: " + first_failure_.message());
    }
    return sync_targets();
  }

 private:
  struct RankedBlock {
    float worth;
    std::uint32_t last_use;
    EntryIndex entry;
  };

  const Segment& segment_of(EntryIndex entry) const {
    return space_.slots.segment(life_.index().at(entry).slot(TierId::kDisk).segment_index);
  }
  bool is_doomed(EntryIndex entry) const { return !segment_of(entry).is_open; }

  void list_by_worth() {
    std::size_t index_end = 0;
    life_.index().for_each([&](EntryIndex entry) {
      const BlockEntry& block = life_.index().at(entry);
      by_worth_.push_back({space_.policy_of(block).worth(entry), block.last_use, entry});
      index_end = std::max(index_end, std::size_t{entry} + 1);
    });
    std::sort(by_worth_.begin(), by_worth_.end(), [](const RankedBlock& a, const RankedBlock& b) {
      return a.worth != b.worth ? a.worth > b.worth : a.last_use > b.last_use;
    });
    is_needed_.assign(index_end, false);
  }

  /// The segments go that hold the least of what would be kept by worth alone, so that little has
  /// to be moved; of equals those that were used least recently.
  void choose_segments(std::uint64_t excess_bytes) {
    struct Candidate {
      double kept_share;
      double mean_use;
      std::uint16_t segment_index;
    };
    const std::vector<std::uint64_t> kept_bytes = sum_kept_bytes(excess_bytes);
    std::vector<Candidate> candidates;
    for (std::uint16_t s = 0; s < space_.slots.segment_index_end(); ++s) {
      const Segment& segment = space_.slots.segment(s);
      if (!segment.is_present) continue;
      const double mean_use =
          segment.num_used == 0 ? 0.0 : static_cast<double>(segment.use_sum) / segment.num_used;
      const double kept_share = static_cast<double>(kept_bytes[s]) /
                                static_cast<double>(context_.tier.charged_bytes_of(s));
      candidates.push_back({kept_share, mean_use, s});
    }
    std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
      return a.kept_share != b.kept_share ? a.kept_share < b.kept_share : a.mean_use < b.mean_use;
    });
    std::uint64_t freed_bytes = 0;
    // First what pinned blocks can do without, then the rest.
    for (const bool keeps_room_for_pins : {true, false}) {
      for (const Candidate& candidate : candidates) {
        if (freed_bytes >= excess_bytes) return;
        const Segment& segment = space_.slots.segment(candidate.segment_index);
        if (!segment.is_open) continue;
        if (keeps_room_for_pins && !has_room_for_pins_without(segment)) continue;
        freed_bytes += context_.tier.charged_bytes_of(candidate.segment_index);
        report_.segments_to_leave.push_back(candidate.segment_index);
        space_.slots.close_segment(candidate.segment_index);
      }
    }
  }

  /// Segments are large and the cap may be small: new ones take what the old ones leave of it. They
  /// are made before the old ones go; where the device has no room for both, less is kept.
  void fill_room() {
    const std::uint64_t cap_bytes = context_.tier.options().cap_bytes;
    std::uint64_t kept_bytes = context_.tier.charged_bytes();
    for (const std::uint16_t doomed : report_.segments_to_leave) {
      kept_bytes -= context_.tier.charged_bytes_of(doomed);
    }
    std::uint64_t room_bytes = cap_bytes - std::min(cap_bytes, kept_bytes);
    for (const RankedBlock& ranked : by_worth_) {
      if (!is_doomed(ranked.entry)) continue;
      std::uint64_t& num_free = num_free_[segment_of(ranked.entry).class_index];
      if (num_free > 0) {
        --num_free;
        continue;
      }
      const auto header =
          context_.tier.plan_segment(segment_of(ranked.entry).class_index, room_bytes);
      if (!header || !create_segment(*header)) return;
      num_free = header->num_slots - 1;
      room_bytes -= segment_charge_bytes(*header);
    }
  }

  bool create_segment(const format::SegmentHeader& header) {
    auto created = disk::create_segment_file(context_.directory, header, false);
    if (!created.is_ok()) {
      context_.log("warning", "cannot make a segment file for what the smaller disk cap leaves: " +
                                  created.status().message());
      return false;
    }
    context_.directory.close_file(created.value().fd);
    context_.tier.adopt_existing_segment(header, created.value().allocated_bytes);
    context_.tier.set_segment_id_next(header.segment_id + 1);
    return true;
  }

  /// Of each segment, the slots of the blocks worth most that the smaller cap has room for.
  std::vector<std::uint64_t> sum_kept_bytes(std::uint64_t excess_bytes) const {
    std::vector<std::uint64_t> kept_bytes(space_.slots.segment_index_end(), 0);
    const std::uint64_t segment_bytes = context_.tier.charged_bytes() - context_.tier.fixed_bytes();
    std::uint64_t room_bytes = segment_bytes - std::min(segment_bytes, excess_bytes);
    for (const RankedBlock& ranked : by_worth_) {
      const SlotRef slot = life_.index().at(ranked.entry).slot(TierId::kDisk);
      const std::uint64_t slot_bytes = space_.slots.slot_bytes(slot);
      if (slot_bytes > room_bytes) break;
      room_bytes -= slot_bytes;
      kept_bytes[slot.segment_index] += slot_bytes;
    }
    return kept_bytes;
  }

  /// Whether the class's other open segments have a slot for each of its pinned blocks.
  bool has_room_for_pins_without(const Segment& left_out) {
    std::uint64_t num_slots = 0;
    for (std::uint16_t s = 0; s < space_.slots.segment_index_end(); ++s) {
      const Segment& segment = space_.slots.segment(s);
      if (segment.is_open && segment.class_index == left_out.class_index) {
        num_slots += segment.num_slots();
      }
    }
    return num_slots - left_out.num_slots() >= num_pinned_[left_out.class_index];
  }

  void count_pinned() {
    life_.index().for_each([this](EntryIndex entry) {
      const BlockEntry& block = life_.index().at(entry);
      if (block.pin_count == 0) return;
      ++num_pinned_[space_.slots.segment(block.slot(TierId::kDisk).segment_index).class_index];
    });
  }

  void announce() {
    std::uint64_t num_blocks = 0, num_bytes = 0;
    for (const std::uint16_t doomed : report_.segments_to_leave) {
      num_blocks += space_.slots.segment(doomed).num_used;
      num_bytes += context_.tier.charged_bytes_of(doomed);
    }
    context_.log("warning",
                 "the disk cap is smaller than what earlier runs left: giving up " +
                     std::to_string(report_.segments_to_leave.size()) + " segment files with " +
                     std::to_string(num_blocks) + " blocks (less those that others need), " +
                     std::to_string(num_bytes) +
                     " bytes: disk_bytes=" + std::to_string(context_.tier.options().cap_bytes));
  }

  /// Pinned blocks, then by worth, each with its ancestors, as long as its class has slots. Of a
  /// chain that does not fit the beginning is kept: blocks below a missing one serve nothing.
  void mark_needed() {
    std::unordered_map<ClassIndex, std::uint64_t> room;
    for (std::uint16_t s = 0; s < space_.slots.segment_index_end(); ++s) {
      const Segment& segment = space_.slots.segment(s);
      if (segment.is_open) room[segment.class_index] += segment.num_slots();
    }
    for (const bool is_pinned_turn : {true, false}) {
      for (const RankedBlock& ranked : by_worth_) {
        const bool is_pinned = life_.index().at(ranked.entry).pin_count > 0;
        if (is_pinned == is_pinned_turn) mark_chain(ranked.entry, room, is_pinned);
      }
      if (is_pinned_turn) is_pin_needed_ = is_needed_;
    }
  }

  void mark_chain(EntryIndex last, std::unordered_map<ClassIndex, std::uint64_t>& room,
                  bool is_pinned) {
    if (!is_pinned && room[segment_of(last).class_index] == 0) return;
    chain_.clear();
    for (EntryIndex at = last; at != kNoEntry && !is_needed_[at];
         at = life_.index().at(at).parent) {
      chain_.push_back(at);
    }
    for (auto entry = chain_.rbegin(); entry != chain_.rend(); ++entry) {
      std::uint64_t& num_free = room[segment_of(*entry).class_index];
      if (num_free == 0 && !is_pinned) return;
      is_needed_[*entry] = true;
      num_free -= num_free > 0 ? 1 : 0;
    }
  }

  void drop_unneeded(std::uint16_t doomed) {
    const Segment& segment = space_.slots.segment(doomed);
    for (std::uint32_t i = 0; i < segment.num_slots(); ++i) {
      const EntryIndex owner = segment.owners[i];
      if (owner == kNoEntry || is_needed_[owner]) continue;
      report_.num_shrunk_blocks += life_.remove_family(owner);
    }
  }

  /// What may go from the segments that stay, the least worth last.
  void list_spare() {
    for (const RankedBlock& ranked : by_worth_) {
      if (is_needed_[ranked.entry] || life_.index().at(ranked.entry).is_detached) continue;
      spare_[segment_of(ranked.entry).class_index].push_back(ranked.entry);
    }
  }

  /// What cannot be read or written, or not in time unless it is pinned, is a miss, and no reason
  /// to refuse or hold up the open.
  void move_needed(std::uint16_t doomed, bool is_pinned_turn) {
    const Segment& segment = space_.slots.segment(doomed);
    for (std::uint32_t i = 0; i < segment.num_slots(); ++i) {
      const EntryIndex owner = segment.owners[i];
      if (owner == kNoEntry || (is_pinned_turn && !is_pin_needed_[owner])) continue;
      const bool is_late = !is_pinned_turn && context_.clock.now_ns() >= context_.move_until_ns;
      num_late_ += is_late ? 1 : 0;
      const auto target =
          is_late || !copier_.is_writable() ? std::nullopt : find_room(owner, segment.class_index);
      const bool is_moved = target && copy_slot(SlotRef{i, doomed}, *target);
      if (!is_moved) {
        if (target) space_.slots.release(*target);
        report_.num_shrunk_blocks += life_.remove_family(owner);
        continue;
      }
      life_.relocate(owner, TierId::kDisk, *target);
      context_.tier.commits().note_write(target->segment_index);
      targets_.insert(target->segment_index);
    }
  }

  /// Before any commit says that a block moved: a power loss in between must not leave the younger
  /// commit without its payload.
  Status sync_targets() {
    for (const std::uint16_t segment_index : targets_) {
      const std::uint32_t segment_id = context_.tier.header_of(segment_index).segment_id;
      auto fd = context_.directory.open_file(format::segment_file_name(segment_id), OpenFlags{});
      if (!fd.is_ok()) return fd.status();
      const Status synced = context_.directory.sync_file(fd.value());
      context_.directory.close_file(fd.value());
      if (!synced.is_ok()) return synced;
    }
    return Status::ok();
  }

  std::optional<SlotRef> find_room(EntryIndex owner, ClassIndex class_index) {
    std::vector<EntryIndex>& spare = spare_[class_index];
    while (true) {
      if (auto slot = space_.slots.reserve(class_index, owner)) return slot;
      if (spare.empty()) return std::nullopt;
      // Its descendants are not needed either, or it would be.
      if (!life_.index().at(spare.back()).is_detached) {
        report_.num_shrunk_blocks += life_.remove_family(spare.back());
      }
      spare.pop_back();
    }
  }

  bool copy_slot(SlotRef source, SlotRef target) {
    const Status copied = copier_.copy(source, target);
    if (!copied.is_ok() && num_unmoved_++ == 0) first_failure_ = copied;
    return copied.is_ok();
  }

  RecoveryContext& context_;
  RecoveryReport& report_;
  BlockLife& life_;
  TierSpace& space_;
  std::unordered_map<ClassIndex, std::uint64_t> num_pinned_;
  std::unordered_map<ClassIndex, std::uint64_t> num_free_;  // Slots of new segments.
  std::vector<RankedBlock> by_worth_;                       // The most first.
  std::vector<bool> is_needed_;                             // By entry.
  std::vector<bool> is_pin_needed_;                         // Of those, pinned chains.
  std::vector<EntryIndex> chain_;                           // Scratch of mark_chain().
  std::unordered_map<ClassIndex, std::vector<EntryIndex>> spare_;
  SlotCopier copier_;
  std::set<std::uint16_t> targets_;  // Segments that blocks were moved into.
  std::uint64_t num_unmoved_ = 0;    // Because of failures.
  std::uint64_t num_late_ = 0;       // For want of time.
  Status first_failure_ = Status::ok();
};

}  // namespace

namespace {

/// They hold nothing to move. Those that an open made which did not come to its end would add up.
void remove_empty_segments(RecoveryContext& context) {
  SlotSpace& slots = context.life.space(TierId::kDisk).slots;
  for (std::uint16_t s = 0; s < slots.segment_index_end(); ++s) {
    const Segment& segment = slots.segment(s);
    if (!segment.is_present || segment.num_used > 0) continue;
    const std::uint32_t segment_id = context.tier.header_of(s).segment_id;
    const Status removed = context.directory.remove_file(format::segment_file_name(segment_id));
    if (removed.is_ok()) context.tier.forget_segment(s);
  }
}

}  // namespace

Status shrink_to_cap(RecoveryContext& context, RecoveryReport& report) {
  const std::uint64_t cap_bytes = context.tier.options().cap_bytes;
  if (context.tier.charged_bytes() <= cap_bytes) return Status::ok();
  remove_empty_segments(context);
  if (context.tier.charged_bytes() <= cap_bytes) return Status::ok();
  if (context.tier.fixed_bytes() + DiskTier::kRoomBytesMin > cap_bytes) {
    return Status(
        StatusCode::kConfig,
        "disk_bytes leaves no room beside what lies in the directory already: disk_bytes=" +
            std::to_string(cap_bytes) +
            " fixed_bytes=" + std::to_string(context.tier.fixed_bytes()) +
            " of which files of unknown format versions=" + std::to_string(report.unknown_bytes) +
            "; raise disk_bytes, or remove old data with `kvtier wipe`: path=" +
            context.directory.path());
  }
  return Shrink(context, report).run(context.tier.charged_bytes() - cap_bytes);
}

}  // namespace kvtier::store
