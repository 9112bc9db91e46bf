// Rebuilding the index from slot tables. Blocking; before the store has threads.
#include "store/recovery.h"

#include <algorithm>
#include <utility>

#include "disk/segment_file.h"
#include "format/uses_file.h"
#include "store/earlier_uses.h"

namespace kvtier::store {
namespace {

struct PendingParent {
  EntryIndex entry;
  BlockKey parent;
  std::uint64_t generation;  // Of the commit that says so: a younger one of the key overrides it.
};

// A number that this store can have reached; any above it is somebody's invention, and counting on
// from there would wrap around into the numbers in use.
constexpr std::uint32_t kSegmentIdMax = UINT32_MAX / 2;

class Recovery {
 public:
  Recovery(RecoveryContext& context, RecoveryReport& report)
      : context_(context), report_(report), index_(context.life.index()) {}

  Status run() {
    auto listing = context_.store_directory.list();
    if (!listing.is_ok()) return listing.status();
    report_.num_unknown_files = listing.value().unknown_names.size();
    report_.unknown_bytes = listing.value().unknown_bytes;
    register_namespaces();
    std::uint32_t segment_id_max = 0;
    reserve_index(listing.value().segment_names);
    for (const std::string& name : listing.value().segment_names) {
      const std::uint32_t segment_id = format::parse_segment_file_name(name).value();
      if (segment_id <= kSegmentIdMax) segment_id_max = std::max(segment_id_max, segment_id);
      const Status read = read_segment(name);
      if (!read.is_ok()) return read;
    }
    context_.tier.set_segment_id_next(segment_id_max + 1);
    context_.life.space(TierId::kDisk).slots.rebuild_free_lists();
    link_parents();
    rank();
    report_.num_blocks = index_.num_entries();
    context_.tier.set_generation(
        std::max(generation_max_, context_.store_directory.superblock().generation_max));
    return Status::ok();
  }

 private:
  void register_namespaces() {
    auto records = context_.store_directory.namespaces().records;
    std::sort(records.begin(), records.end(),
              [](const auto& a, const auto& b) { return a.namespace_index < b.namespace_index; });
    for (auto& record : records) {
      // A gap is a namespace that could not be saved; none of its blocks went to disk.
      if (record.namespace_index >= NamespaceRegistry::kNamespacesMax) break;
      while (context_.namespaces.size() < record.namespace_index) context_.namespaces.add({});
      Namespace found;
      found.id = record.id;
      found.description = std::move(record.description);
      context_.namespaces.add(std::move(found));
    }
  }

  void reserve_index(const std::vector<std::string>& segment_names) {
    std::uint64_t num_slots = 0;
    for (const std::string& name : segment_names) {
      auto header = disk::read_segment_header(context_.directory, name);
      if (header.is_ok() && is_usable(header.value(), name)) num_slots += header.value().num_slots;
    }
    num_slots = std::min(num_slots, index_.blocks_max());
    index_.reserve(num_slots);
    pending_.reserve(num_slots);
  }

  Status read_segment(const std::string& name) {
    auto header = disk::read_segment_header(context_.directory, name);
    if (header.status().code() == StatusCode::kUnsupported) return leave_alone(name);
    const bool is_ours = header.is_ok() && is_usable(header.value(), name);
    if (!is_ours && (header.is_ok() || header.status().code() == StatusCode::kCorrupt)) {
      // A kill while the file was made is no damage.
      const bool is_unfinished =
          !context_.is_clean && disk::is_unfinished_segment(context_.directory, name);
      if (!is_unfinished) ++report_.num_removed_files;
      return remove_file(name);
    }
    if (!header.is_ok()) return leave_alone(name);
    auto stat = context_.directory.stat_file(name);
    if (!stat.is_ok()) return leave_alone(name);

    const std::uint16_t segment_index =
        context_.tier.adopt_existing_segment(header.value(), stat.value().allocated_bytes);
    auto scan = disk::scan_segment_file(
        context_.directory, name,
        [this, segment_index, &header](std::uint32_t slot_index, format::SlotEntry& entry) {
          adopt(SlotRef{slot_index, segment_index}, header.value(), entry);
        });
    if (scan.is_ok()) {
      report_.num_damaged_entries += scan.value().num_damaged;
    } else {
      // What was read so far is sound; the rest of this table is lost, and must not come back after
      // something of it was deleted.
      ++report_.num_damaged_entries;
      const SlotSpace& slots = context_.life.space(TierId::kDisk).slots;
      for (std::uint32_t i = 0; i < header.value().num_slots; ++i) {
        const SlotRef slot{i, segment_index};
        if (slots.owner(slot) == kNoEntry) mark_stale(slot);
      }
      context_.log("warning", "cannot read a whole slot table: " + scan.status().message());
    }
    return Status::ok();
  }

  bool is_usable(const format::SegmentHeader& header, const std::string& name) const {
    return header.store_id == context_.store_directory.superblock().store_id &&
           header.segment_id == format::parse_segment_file_name(name).value();
  }

  Status leave_alone(const std::string& name) {
    auto stat = context_.directory.stat_file(name);
    ++report_.num_unknown_files;
    if (stat.is_ok()) report_.unknown_bytes += stat.value().allocated_bytes;
    return Status::ok();
  }

  Status remove_file(const std::string& name) {
    const Status removed = context_.directory.remove_file(name);
    // One that cannot be removed stays, counted.
    return removed.is_ok() ? removed : leave_alone(name);
  }

  void adopt(SlotRef slot, const format::SegmentHeader& header, format::SlotEntry& found) {
    generation_max_ = std::max(generation_max_, found.generation);
    const bool is_known = found.namespace_index < context_.namespaces.size();
    if (!is_known || found.length_bytes > header.slot_bytes) {
      ++report_.num_damaged_entries;
      return mark_stale(slot);
    }
    EntryIndex entry = index_.find(found.namespace_index, found.key);
    if (entry != kNoEntry) {
      // Of two commits of one key the younger one counts.
      if (index_.at(entry).disk_generation >= found.generation) return mark_stale(slot);
      context_.life.disown_disk_copy(entry);
    } else {
      entry = index_.insert(found.namespace_index, found.key, kNoEntry);
      if (entry == kNoEntry) return mark_stale(slot);  // blocks_max is smaller than it was.
    }
    BlockEntry& block = index_.at(entry);
    block.disk_generation = found.generation;
    block.pin_count = found.pin_count;
    block.is_recovered = !context_.is_clean;
    index_.set_checksums(entry, found.checksums);
    context_.life.adopt_disk_copy(entry, slot);
    // Until somebody attaches the namespace: its commits may have to be written again.
    Namespace& space = context_.namespaces.at(found.namespace_index);
    if (space.block_bytes == 0) space.block_bytes = found.length_bytes;
    if (!found.is_root) pending_.push_back({entry, found.parent, found.generation});
  }

  void mark_stale(SlotRef slot) { context_.tier.commits().note_change(slot, SlotChange::kEvicted); }

  /// A parent is always committed before its children, so a link to a younger block is a leftover;
  /// this also keeps damaged or hostile tables from building a circle.
  void link_parents() {
    std::vector<EntryIndex> orphans;
    for (const PendingParent& pending : pending_) {
      BlockEntry& block = index_.at(pending.entry);
      if (block.disk_generation != pending.generation) continue;
      const EntryIndex parent = index_.find(block.namespace_index, pending.parent);
      const bool is_sound =
          parent != kNoEntry && index_.at(parent).disk_generation < block.disk_generation;
      if (is_sound) {
        index_.link_parent(pending.entry, parent);
      } else {
        orphans.push_back(pending.entry);
      }
    }
    for (const EntryIndex orphan : orphans) {
      if (index_.at(orphan).is_detached) continue;  // Went with its parent.
      for (auto members = index_.family(orphan); !members.empty(); members.pop_back()) {
        ++report_.num_orphans;
        context_.life.disown_disk_copy(members.back());
        index_.detach(members.back());
        index_.free(members.back());
      }
    }
  }

  /// Eviction order after a restart: a chain is as young as its youngest block, and within a chain
  /// children are older than their parents.
  void rank() {
    const std::vector<EntryIndex> by_age = list_by_age(read_uses());
    // From the youngest block on: it, and above it those of its ancestors that no younger block
    // took.
    std::vector<EntryIndex> youngest_first;
    youngest_first.reserve(by_age.size());
    std::vector<bool> is_placed(by_age.empty() ? 0 : index_end_, false);
    std::vector<EntryIndex> path;
    for (auto entry = by_age.rbegin(); entry != by_age.rend(); ++entry) {
      for (EntryIndex at = *entry; at != kNoEntry && !is_placed[at]; at = index_.at(at).parent) {
        is_placed[at] = true;
        path.push_back(at);
      }
      youngest_first.insert(youngest_first.end(), path.rbegin(), path.rend());
      path.clear();
    }
    for (auto entry = youngest_first.rbegin(); entry != youngest_first.rend(); ++entry) {
      context_.life.rank_recovered(*entry);
    }
  }

  /// All blocks, the one used least recently first; each learns what is known of its uses. Without
  /// that the order is that of the commits, and slots are given out in order: mostly sorted
  /// already.
  std::vector<EntryIndex> list_by_age(const EarlierUses& uses) {
    struct Placed {
      std::uint64_t order;
      EntryIndex entry;
    };
    std::vector<Placed> placed;
    placed.reserve(index_.num_entries());
    const SlotSpace& slots = context_.life.space(TierId::kDisk).slots;
    for (std::uint16_t s = 0; s < slots.segment_index_end(); ++s) {
      for (const EntryIndex owner : slots.segment(s).owners) {
        if (owner == kNoEntry) continue;
        BlockEntry& block = index_.at(owner);
        const std::uint32_t tag = key_tag_of(block.namespace_index, block.key);
        const EarlierUse found = uses.find(tag, block.disk_generation);
        block.use = found.use;
        placed.push_back({found.order, owner});
        index_end_ = std::max<std::size_t>(index_end_, std::size_t{owner} + 1);
      }
    }
    const auto is_older = [](const Placed& a, const Placed& b) { return a.order < b.order; };
    if (!std::is_sorted(placed.begin(), placed.end(), is_older)) {
      std::sort(placed.begin(), placed.end(), is_older);
    }
    std::vector<EntryIndex> entries;
    entries.reserve(placed.size());
    for (const Placed& each : placed) entries.push_back(each.entry);
    return entries;
  }

  /// After an unclean end the file is that of an earlier close. It is used all the same: what it
  /// says of older blocks is the best that is known, and younger ones come behind them.
  EarlierUses read_uses() {
    auto bytes = context_.store_directory.load_uses();
    if (!bytes.is_ok()) return ignore_uses(bytes.status().message());
    if (!bytes.value()) return {};
    auto file = format::decode_uses_file(*bytes.value());
    if (!file.is_ok()) return ignore_uses(file.status().message());
    if (file.value().store_id != context_.store_directory.superblock().store_id) {
      return ignore_uses("it is of another store");
    }
    auto uses = EarlierUses::create(file.value());
    bool is_sound = uses.has_value();
    if (is_sound && context_.history != nullptr) {
      context_.history->set_num_blocks(index_.num_entries());
      is_sound = context_.history->restore(file.value());
      uses->set_now(context_.history->now());
    }
    return is_sound ? std::move(*uses) : ignore_uses("it says what cannot be");
  }

  EarlierUses ignore_uses(const std::string& reason) {
    context_.log("warning", "the uses of blocks in earlier runs are not known: " + reason);
    return {};
  }

  RecoveryContext& context_;
  RecoveryReport& report_;
  BlockIndex& index_;
  std::vector<PendingParent> pending_;
  std::uint64_t generation_max_ = 0;
  std::size_t index_end_ = 0;  // One past the highest entry index in use.
};

}  // namespace

/// Room for two uses files, since the next one is whole before it replaces the one that is there:
/// half of what is kept for files besides the segments. A large store gets more, but never at the
/// cost of blocks: a directory that was filled before there were uses files keeps all of them.
std::uint64_t reserve_uses_room(RecoveryContext& context) {
  DiskTier& tier = context.tier;
  const std::uint64_t cap_bytes = tier.options().cap_bytes;
  const std::uint64_t least_bytes = tier.options().allowance_bytes / 2;
  const std::uint64_t most_bytes =
      std::clamp<std::uint64_t>(cap_bytes / 128, least_bytes, 2 * format::kUsesFileBytesMax);
  std::uint64_t more_bytes = most_bytes - least_bytes;
  if (tier.charged_bytes() <= cap_bytes) {
    more_bytes = std::min(more_bytes, cap_bytes - tier.charged_bytes());
  }
  tier.set_fixed_bytes(tier.fixed_bytes() + more_bytes);
  constexpr std::uint64_t kPageBytes = 4096;
  return (least_bytes + more_bytes) / 2 / kPageBytes * kPageBytes;
}

Result<RecoveryReport> recover(RecoveryContext& context) {
  RecoveryReport report;
  const Status recovered = Recovery(context, report).run();
  if (!recovered.is_ok()) return recovered;
  context.tier.set_fixed_bytes(context.tier.fixed_bytes() + report.unknown_bytes);
  report.uses_bytes_max = reserve_uses_room(context);
  const std::uint64_t uses_bytes = context.store_directory.uses_bytes();
  // Of a larger cap: close() writes a smaller one.
  if (uses_bytes > report.uses_bytes_max && !context.store_directory.remove_uses().is_ok()) {
    context.tier.set_fixed_bytes(context.tier.fixed_bytes() + uses_bytes);
  }
  limit_recovered_pins(context);
  const Status shrunk = shrink_to_cap(context, report);
  if (!shrunk.is_ok()) return shrunk;
  report.num_blocks = context.life.index().num_entries();
  return report;
}

}  // namespace kvtier::store
