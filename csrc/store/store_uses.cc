// What the adaptive policy is told of requests, what a later process is told, and warnings about
// tiers that serve nothing. Guarded by the store's mutex.
#include <algorithm>
#include <new>

#include "store/store_impl.h"
#include "store/use_class.h"

namespace kvtier {
namespace {

/// The blocks on disk, the one used least recently first.
std::vector<format::UsedBlock> list_used_blocks(const store::BlockIndex& index,
                                                store::TierSpace& disk,
                                                const store::ReuseHistory& history) {
  std::vector<store::EntryIndex> entries;
  entries.reserve(disk.stats.blocks);
  index.for_each([&](store::EntryIndex entry) {
    if (index.at(entry).is_resident(store::TierId::kDisk)) entries.push_back(entry);
  });
  std::sort(entries.begin(), entries.end(), [&index](store::EntryIndex a, store::EntryIndex b) {
    const std::uint32_t use_a = index.at(a).last_use, use_b = index.at(b).last_use;
    return use_a != use_b ? use_a < use_b : a < b;
  });
  std::vector<format::UsedBlock> blocks;
  blocks.reserve(entries.size());
  for (const store::EntryIndex entry : entries) {
    const store::BlockEntry& block = index.at(entry);
    format::UsedBlock used{store::key_tag_of(block.namespace_index, block.key),
                           history.now() - block.use.position, block.use.use_class,
                           block.use.num_uses};
    if (const auto num_uses = disk.policy_of(block).num_uses(entry); num_uses > 0) {
      used.num_uses = num_uses;
      used.use_class = store::use_level(num_uses);
    }
    blocks.push_back(used);
  }
  return blocks;
}

}  // namespace

/// Notes a use of `keys`, stored or not, and of the chain from `above` up; stored entries learn
/// what is known of them now. Returns the same for each key.
std::vector<store::BlockUse> Store::Impl::note_uses(std::uint32_t namespace_index, EntryIndex above,
                                                    std::span<const BlockKey> keys,
                                                    std::uint64_t request_hash, bool is_chain) {
  std::vector<store::BlockUse> uses(keys.size());
  if (options_.eviction != EvictionMode::kAdaptive) return uses;
  if (!is_chain) {
    for (std::size_t i = 0; i < keys.size(); ++i) {
      uses[i] = note_uses(namespace_index, kNoEntry, keys.subspan(i, 1), request_hash, true)[0];
    }
    return uses;
  }
  std::vector<EntryIndex> entries;
  for (EntryIndex at = above; at != kNoEntry; at = index_.at(at).parent) entries.push_back(at);
  std::reverse(entries.begin(), entries.end());
  const std::size_t num_above = entries.size();
  std::vector<store::ChainUse> chain;
  chain.reserve(num_above + keys.size());
  for (const EntryIndex entry : entries) {
    chain.push_back({store::key_tag_of(namespace_index, index_.at(entry).key), {}});
  }
  for (const BlockKey& key : keys) {
    entries.push_back(index_.find(namespace_index, key));
    chain.push_back({store::key_tag_of(namespace_index, key), {}});
  }
  history_.note(chain, num_above, request_hash);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (entries[i] != kNoEntry) index_.at(entries[i]).use = chain[i].use;
  }
  for (std::size_t i = 0; i < keys.size(); ++i) uses[i] = chain[num_above + i].use;
  return uses;
}

/// For the next open, which does without where this fails.
void Store::Impl::save_uses(Locked& locked, TimeNs deadline_ns) {
  if (seams_.clock->now_ns() >= deadline_ns) return;
  Status saved = Status::ok();
  try {
    auto file = std::make_shared<format::UsesFile>();
    file->generation = disk_->generation();
    file->blocks = list_used_blocks(index_, disk_space_, history_);
    history_.save(*file);
    if (!format::trim_uses_file(*file, uses_bytes_max_)) return;
    saved = run_task(locked, deadline_ns, [this, file] {
      file->store_id = store_directory_->superblock().store_id;
      return store_directory_->save_uses(format::encode_uses_file(*file));
    });
  } catch (const std::bad_alloc&) {
    saved = Status(StatusCode::kExhausted, "out of memory");
  }
  if (!saved.is_ok()) {
    log("warning", "the next open will not know the uses of blocks: " + saved.message());
  }
}

Status Store::Impl::remove_uses(Locked& locked, TimeNs deadline_ns) {
  if (!has_uses_file_) return Status::ok();
  Status removed =
      run_task(locked, deadline_ns, [this] { return store_directory_->remove_uses(); });
  has_uses_file_ = !removed.is_ok();
  return removed;
}

void Store::Impl::choose_policies() {
  const auto maker_for = [this](store::TierId tier) {
    return [this, tier]() -> std::unique_ptr<store::EvictionPolicy> {
      switch (options_.eviction) {
        case EvictionMode::kLru:
          return store::make_lru_policy(index_, tier);
        case EvictionMode::kS3Fifo:
          return store::make_s3_fifo_policy(index_, tier);
        case EvictionMode::kAdaptive:
          break;
      }
      return store::make_adaptive_policy(index_, tier, history_);
    };
  };
  host_space_.make_policy = maker_for(kHost);
  disk_space_.make_policy = maker_for(kDisk);
  const bool is_adaptive = options_.eviction == EvictionMode::kAdaptive;
  admission_ = is_adaptive ? store::make_adaptive_admission(history_) : store::make_admit_all();
}

/// A tier below that holds no more than the one above it holds little that is not there already.
void Store::Impl::warn_of_small_tier() {
  if (options_.path.empty() || options_.host_bytes == 0) return;
  if (options_.disk_bytes > options_.host_bytes) return;
  log("warning",
      "the disk tier is not larger than the host tier above it, so it can hold little that is not "
      "there anyway: disk_bytes=" +
          std::to_string(options_.disk_bytes) +
          " host_bytes=" + std::to_string(options_.host_bytes));
}

/// Said once: a disk that was written over whole and never read is of no use, and wears out.
void Store::Impl::warn_of_useless_disk() {
  const TierStats& stats = disk_space_.stats;
  if (!disk_ || is_warned_useless_ || stats.hits > 0) return;
  if (stats.bytes_written <= disk_->capacity_bytes()) return;
  is_warned_useless_ = true;
  log("warning",
      "the disk tier was written over and has served nothing: do gets ask for the keys that are "
      "put, prefix first? bytes_written=" +
          std::to_string(stats.bytes_written) +
          " bytes_capacity=" + std::to_string(disk_->capacity_bytes()) + " hits=0");
}

}  // namespace kvtier
