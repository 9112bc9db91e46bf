// Namespaces, lookups and leases of a store: what does not wait. Thread-safe.
#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "format/live_file.h"
#include "format/slot_table.h"
#include "store/load_time.h"
#include "store/store_impl.h"

namespace kvtier {

using store::ClassIndex;
using store::SizeClass;

namespace {

/// Where a block would be taken from.
Tier tier_of(const store::BlockEntry& block, bool is_disk_served) {
  if (block.is_resident(store::TierId::kHost)) return Tier::kHost;
  return is_disk_served && block.is_resident(store::TierId::kDisk) ? Tier::kDisk : Tier::kNone;
}

}  // namespace

Status Store::Impl::check_open() const {
  if (!is_open_ || is_closing_) return Status(StatusCode::kClosed, "the store is closed");
  return Status::ok();
}

Result<const store::Namespace*> Store::Impl::find_namespace(std::uint32_t namespace_index) const {
  if (namespace_index >= namespaces_.size() || !namespaces_.at(namespace_index).is_attached) {
    return Status(StatusCode::kInvalidArgument,
                  "unknown namespace: namespace_index=" + std::to_string(namespace_index));
  }
  return &namespaces_.at(namespace_index);
}

std::uint64_t Store::Impl::slot_alignment(std::uint64_t block_bytes) const {
  return block_bytes < 4096 ? small_alignment_bytes_ : alignment_bytes_;
}

Result<std::uint32_t> Store::Impl::add_namespace(const NamespaceOptions& options) {
  Locked locked(*this);
  if (Status open = check_open(); !open.is_ok()) return open;
  const auto known = namespaces_.find(options.id);
  if (known && namespaces_.at(*known).is_attached) return *known;
  const std::uint64_t part_sum =
      std::accumulate(options.part_bytes.begin(), options.part_bytes.end(), std::uint64_t{0});
  if (options.block_bytes == 0 ||
      (!options.part_bytes.empty() && part_sum != options.block_bytes)) {
    return Status(StatusCode::kConfig, "parts do not add up to the block: block_bytes=" +
                                           std::to_string(options.block_bytes) +
                                           " sum=" + std::to_string(part_sum));
  }
  if (options.part_bytes.size() > format::kPartsMax) {
    return Status(StatusCode::kConfig,
                  "too many parts: num_parts=" + std::to_string(options.part_bytes.size()) +
                      " at most " + std::to_string(format::kPartsMax));
  }
  Namespace added;
  added.id = options.id;
  added.description = options.description;
  added.block_bytes = options.block_bytes;
  added.part_bytes = options.part_bytes;
  if (added.part_bytes.empty()) added.part_bytes = {options.block_bytes};
  const std::uint64_t alignment = slot_alignment(options.block_bytes);
  added.slot_bytes = (options.block_bytes + alignment - 1) / alignment * alignment;
  added.is_attached = true;
  if (Status placed = place_namespace(added); !placed.is_ok()) return placed;
  if (known) {
    namespaces_.at(*known) = std::move(added);
    return *known;
  }
  if (namespaces_.size() >= store::NamespaceRegistry::kNamespacesMax) {
    return Status(
        StatusCode::kConfig,
        "too many namespaces: at most " + std::to_string(store::NamespaceRegistry::kNamespacesMax));
  }
  const std::uint32_t namespace_index = namespaces_.add(std::move(added));
  if (disk_) save_namespace(namespace_index, locked);
  return namespace_index;
}

/// Writes the namespace table before any block of the namespace may be committed.
void Store::Impl::save_namespace(std::uint32_t namespace_index, Locked& locked) {
  const Namespace& added = namespaces_.at(namespace_index);
  const format::NamespaceRecord record{namespace_index, added.id, added.description};
  // Until it is saved no block of it goes to disk.
  const auto disk_class = std::exchange(namespaces_.at(namespace_index).disk_class, std::nullopt);
  const TimeNs deadline_ns = seams_.clock->now_ns() + options_.default_timeout_ns;
  Status saved = charge_namespaces();
  if (saved.is_ok()) {
    saved = run_task(locked, deadline_ns,
                     [this, record] { return store_directory_->add_namespace(record); });
  }
  if (saved.is_ok()) {
    namespaces_.at(namespace_index).disk_class = disk_class;
  } else {
    log("warning", "cannot save the namespace, its blocks stay in host memory: " + saved.message());
  }
}

/// Charges the files besides the segments before they grow, as if all namespaces stood in both
/// tables.
Status Store::Impl::charge_namespaces() {
  constexpr std::uint64_t kPageBytes = 4096;
  constexpr std::uint64_t kRecordBytesMax = 64;  // Besides the description.
  std::uint64_t table_bytes = 2 * kPageBytes;    // First line, and rounding up to pages.
  for (std::uint32_t i = 0; i < namespaces_.size(); ++i) {
    table_bytes += namespaces_.at(i).description.size() + kRecordBytesMax;
  }
  // Lock, superblock and live file as well.
  const std::uint64_t own_bytes = 4 * kPageBytes + format::kLiveFileBytesMax + 2 * table_bytes;
  const std::uint64_t fixed_bytes = own_bytes + stats_.unknown_file_bytes + 2 * uses_bytes_max_;
  if (fixed_bytes <= disk_->fixed_bytes()) return Status::ok();
  const std::uint64_t charged = disk_->charged_bytes() - disk_->fixed_bytes() + fixed_bytes;
  if (charged > options_.disk_bytes) {
    return Status(StatusCode::kNoSpace,
                  "the namespace table would not fit under disk_bytes: need_bytes=" +
                      std::to_string(charged) +
                      " disk_bytes=" + std::to_string(options_.disk_bytes));
  }
  disk_->set_fixed_bytes(fixed_bytes);
  return Status::ok();
}

/// Chooses the size classes of both tiers.
Status Store::Impl::place_namespace(Namespace& added) {
  const auto num_parts = static_cast<std::uint32_t>(added.part_bytes.size());
  const std::uint64_t staging_max = staging_ ? staging_->capacity_bytes() / 2 : UINT64_MAX;
  const std::uint64_t host_max = host_->is_present() ? host_->slot_bytes_max() : 0;
  const std::uint64_t disk_max = disk_ ? disk_->slot_bytes_max() : 0;
  const std::uint64_t slot_max =
      std::min({std::uint64_t{256} << 20, staging_max, std::max(host_max, disk_max)});
  if (added.slot_bytes > slot_max) {
    return Status(
        StatusCode::kConfig,
        "block is too large for this store: block_bytes=" + std::to_string(added.block_bytes) +
            " slot_bytes=" + std::to_string(added.slot_bytes) + " at most " +
            std::to_string(slot_max) +
            " (256 MiB, half of staging_bytes, a quarter of the largest tier)");
  }
  if (added.slot_bytes <= host_max) {
    added.host_class = host_space_.class_index_of(SizeClass{added.slot_bytes, 1});
  } else if (host_->is_present()) {
    log("warning", "the host tier is too small for these blocks and is skipped: block_bytes=" +
                       std::to_string(added.block_bytes) + " at most " + std::to_string(host_max));
  }
  if (disk_ && added.slot_bytes <= disk_max) {
    added.disk_class = disk_space_.class_index_of(SizeClass{added.slot_bytes, num_parts});
  } else if (disk_) {
    log("warning", "the disk tier is too small for these blocks and is skipped: block_bytes=" +
                       std::to_string(added.block_bytes) + " at most " + std::to_string(disk_max));
  }
  return Status::ok();
}

/// Calls `visit(i, entry, tier)` for keys in order; tier kNone: not there. With `is_prefix` only as
/// far as the first such key, which is not visited.
template <typename Visit>
void Store::Impl::visit_found(std::uint32_t namespace_index, std::span<const BlockKey> keys,
                              bool is_prefix, const Visit& visit) const {
  if (is_failed_) return;
  const bool is_disk_served = disk_ && disk_->is_readable();
  constexpr std::size_t kPartKeys = 256;
  std::array<EntryIndex, kPartKeys> entries;
  // The first part is short: most lookups of a prefix end soon or are short themselves.
  std::size_t part_keys = 32;
  for (std::size_t start = 0; start < keys.size(); start += part_keys, part_keys = kPartKeys) {
    part_keys = std::min(part_keys, keys.size() - start);
    index_.find_all(namespace_index, keys.subspan(start, part_keys),
                    std::span(entries).first(part_keys));
    for (std::size_t i = 0; i < part_keys; ++i) {
      const EntryIndex entry = entries[i];
      const Tier tier = entry == kNoEntry ? Tier::kNone : tier_of(index_.at(entry), is_disk_served);
      if (tier == Tier::kNone && is_prefix) return;
      visit(start + i, entry, tier);
    }
  }
}

std::vector<std::pair<store::EntryIndex, Tier>> Store::Impl::resolve(std::uint32_t namespace_index,
                                                                     std::span<const BlockKey> keys,
                                                                     bool is_prefix) const {
  std::vector<std::pair<EntryIndex, Tier>> found(keys.size(), {kNoEntry, Tier::kNone});
  visit_found(namespace_index, keys, is_prefix, [&](std::size_t i, EntryIndex entry, Tier tier) {
    if (tier != Tier::kNone) found[i] = {entry, tier};
  });
  return found;
}

store::LoadRates Store::Impl::load_rates() const {
  store::LoadRates rates;
  rates.copy_bytes_per_s = host_copies_.expected_bytes_per_s();
  if (disk_) {
    rates.read_bytes_per_s = disk_->reads().expected_bytes_per_s();
    rates.queued_read_bytes = disk_->reads().open_bytes();
  }
  return rates;
}

Result<LookupResult> Store::Impl::lookup(std::uint32_t namespace_index,
                                         std::span<const BlockKey> keys, bool is_prefix,
                                         TimeNs max_load_ns) {
  LookupResult result;
  result.tiers.assign(keys.size(), Tier::kNone);
  Locked locked(*this);
  if (Status open = check_open(); !open.is_ok()) return open;
  const auto known = find_namespace(namespace_index);
  if (!known.is_ok()) return known.status();
  std::optional<store::LoadTime> load_time;
  if (max_load_ns < kNeverNs) load_time.emplace(load_rates());
  const double max_load_s = static_cast<double>(max_load_ns) / static_cast<double>(kNsPerS);
  bool is_late = false;
  visit_found(namespace_index, keys, is_prefix, [&](std::size_t i, EntryIndex, Tier tier) {
    if (is_late || tier == Tier::kNone) return;
    if (load_time) {
      const Namespace& space = *known.value();
      const std::uint64_t num_bytes = tier == Tier::kHost ? space.block_bytes : space.slot_bytes;
      is_late = load_time->add(tier, num_bytes) > max_load_s;
      if (is_late) return;
    }
    result.tiers[i] = tier;
    ++result.num_blocks;
  });
  ++stats_.lookups;
  stats_.lookup_blocks += keys.size();
  return result;
}

Result<LeaseResult> Store::Impl::lease(std::uint32_t namespace_index,
                                       std::span<const BlockKey> keys, bool is_prefix,
                                       TimeNs ttl_ns, std::string owner) {
  Locked locked(*this);
  if (Status open = check_open(); !open.is_ok()) return open;
  if (auto known = find_namespace(namespace_index); !known.is_ok()) return known.status();
  const TimeNs now_ns = seams_.clock->now_ns();
  leases_.expire(now_ns);
  LeaseResult result;
  std::vector<store::LeaseTable::Item> items;
  for (const auto& [entry, tier] : resolve(namespace_index, keys, is_prefix)) {
    result.found.tiers.push_back(tier);
    if (tier == Tier::kNone) continue;
    ++result.found.num_blocks;
    items.push_back({entry, tier == Tier::kHost ? kHost : kDisk});
  }
  ++stats_.lookups;
  stats_.lookup_blocks += keys.size();
  if (!items.empty()) {
    const TimeNs expires_ns = now_ns + std::clamp<TimeNs>(ttl_ns, 0, store::LeaseTable::kTtlNsMax);
    result.lease_id = leases_.add({std::move(items), expires_ns, now_ns, std::move(owner)});
  }
  if (result.lease_id == 0) {
    // Nothing is protected, so nothing may be promised.
    result.found = LookupResult{0, std::vector<Tier>(keys.size(), Tier::kNone)};
  }
  return result;
}

bool Store::Impl::release(std::uint64_t lease_id) {
  Locked locked(*this);
  if (!check_open().is_ok()) return false;
  leases_.expire(seams_.clock->now_ns());
  return leases_.release(lease_id);
}

TimeNs Store::Impl::lease_expires_in_ns(std::uint64_t lease_id) {
  Locked locked(*this);
  if (!check_open().is_ok()) return 0;
  return std::max<TimeNs>(0, leases_.expires_ns(lease_id) - seams_.clock->now_ns());
}

}  // namespace kvtier
