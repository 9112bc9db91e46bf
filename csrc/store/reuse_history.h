// ReuseHistory: the last uses of blocks, stored or not, in a bounded ring; it tells how often a key
// was used and teaches the model when keys come back. Guarded by the store's mutex.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "format/uses_file.h"
#include "store/block_entry.h"
#include "store/reuse_model.h"

namespace kvtier::store {

/// One block of a request's chain: its key's tag goes in, what is known of it comes out.
struct ChainUse {
  std::uint32_t key_tag = 0;
  BlockUse use;
};

/// Stands for a key in the history: two keys share one once in 2^32. Also for keys that are no
/// digests.
std::uint32_t key_tag_of(std::uint32_t namespace_index, const BlockKey& key);

class ReuseHistory {
 public:
  /// 16 bytes an entry; grows from small up to `num_entries_max`, then forgets the oldest.
  explicit ReuseHistory(std::uint64_t num_entries_max = kEntriesMin);

  /// Notes that a request used `chain` (parents before children) and fills in each block's use.
  /// The first `num_above` blocks are ancestors of what the call itself named. Equal non-zero
  /// request hashes are one use, whatever number of calls; with 0 each call is a use of what it
  /// names.
  void note(std::span<ChainUse> chain, std::size_t num_above, std::uint64_t request_hash);
  /// Forgets that the key was used.
  void forget(std::uint32_t key_tag);
  /// Forgets all keys; what was learned of when keys come back stays.
  void forget_keys();
  /// A larger store needs a longer memory: makes the bound at least 2 entries a stored block.
  void set_num_blocks(std::uint64_t num_blocks);

  /// Uses noted so far: the clock of ages.
  std::uint32_t now() const { return head_; }
  const ReuseModel& model() const { return model_; }
  float value(const BlockUse& use) const {
    return model_.value(ReuseModel::cell_of(use.use_class, head_ - use.position));
  }
  std::uint64_t num_bytes() const {
    return records_.size() * sizeof(Record) + buckets_.size() * sizeof(std::uint32_t);
  }
  std::uint64_t num_entries() const { return records_.size(); }

  /// What a later process begins with: all of `file` but what is said of blocks and the store.
  void save(format::UsesFile& file) const;
  /// Begins anew where the history of an earlier process was saved. False, and nothing changed:
  /// this cannot have come from one.
  bool restore(const format::UsesFile& file);

  static constexpr std::uint64_t kEntriesMin = 1u << 17;

 private:
  struct Record {
    std::uint32_t tag = 0;
    std::uint32_t older = 0;  // Position of the next older record of the bucket.
    std::uint16_t request_tag = 0;
    std::uint8_t use_class = 0;
    std::uint8_t num_uses = 0;  // 0: a later use replaced it.
  };
  static constexpr std::uint32_t kNowhere = UINT32_MAX;

  bool is_remembered(std::uint32_t position) const {
    return position != kNowhere && head_ - position - 1 < records_.size();
  }
  Record& record(std::uint32_t position) { return records_[position & (records_.size() - 1)]; }
  std::uint32_t& bucket(std::uint32_t tag) { return buckets_[tag & (buckets_.size() - 1)]; }
  std::uint32_t find(std::uint32_t tag);
  std::uint32_t next_older(std::uint32_t position);
  void replace(std::uint32_t position);
  void append(Record added);
  void link(std::uint32_t position, Record added);
  void reclassify(std::uint32_t position, std::uint8_t use_class);
  void count_at_risk();
  std::uint32_t uses_per_refresh() const;
  void refresh();
  void grow();

  ReuseModel model_;
  std::uint64_t num_entries_max_;
  std::uint64_t num_blocks_max_ = 0;
  std::vector<Record> records_;                            // A ring, power of two.
  std::vector<std::uint32_t> buckets_;                     // Position of the newest record.
  std::uint32_t head_ = 0;                                 // Position of the next record.
  std::uint32_t refreshed_at_ = 0;                         // head_ at the model's last refresh.
  std::array<std::uint32_t, kNumAgeSteps> num_counted_{};  // Records that reached each step.
  std::vector<std::uint32_t> found_;                       // Scratch of note().
  std::uint64_t num_calls_ = 0;
};

}  // namespace kvtier::store
