// The ring of uses and its buckets. Guarded by the store's mutex.
#include "store/reuse_history.h"

#include <algorithm>
#include <bit>

namespace kvtier::store {
namespace {

constexpr std::size_t kEntriesAtStart = 4096;
// The model follows what was counted each time that a store's worth of uses has passed, within
// these bounds.
constexpr std::uint32_t kUsesPerRefreshMin = 256;
constexpr std::uint32_t kUsesPerRefreshMax = 4096;
// And counts fade, so that a change of load shows: after 50 refreshes of a large store, and after
// up to 200 of a small one, which has seen less by then.
constexpr float kFadedMax = 0.02f;
constexpr float kFadedMin = 0.005f;
constexpr std::uint8_t kUsesMax = 255;
// So many keys in one bucket do not come by chance.
constexpr int kBucketRecordsMax = 64;

std::uint16_t fold_request(std::uint64_t hash) {
  hash *= 0x9e3779b97f4a7c15ull;
  return static_cast<std::uint16_t>(hash >> 48);
}

}  // namespace

std::uint32_t key_tag_of(std::uint32_t namespace_index, const BlockKey& key) {
  std::uint64_t tail = 0;
  std::memcpy(&tail, key.bytes.data() + 8, sizeof tail);
  const std::uint64_t mixed =
      (key.head() ^ std::rotl(tail, 29) ^ (namespace_index * 0x9e3779b97f4a7c15ull)) *
      0xff51afd7ed558ccdull;
  return static_cast<std::uint32_t>((mixed ^ (mixed >> 29)) * 0x94d049bb133111ebull >> 32);
}

ReuseHistory::ReuseHistory(std::uint64_t num_entries_max)
    : num_entries_max_(std::bit_ceil(num_entries_max)),
      records_(std::min<std::uint64_t>(num_entries_max_, kEntriesAtStart)),
      buckets_(records_.size(), kNowhere) {}

void ReuseHistory::set_num_blocks(std::uint64_t num_blocks) {
  num_blocks_max_ = std::max(num_blocks_max_, num_blocks);
  num_entries_max_ = std::max(num_entries_max_, std::bit_ceil(2 * num_blocks));
}

void ReuseHistory::note(std::span<ChainUse> chain, std::size_t num_above,
                        std::uint64_t request_hash) {
  // What no request names is no use of its own where the call only hangs something below it.
  const bool is_anonymous = request_hash == 0;
  const std::uint16_t request_tag = fold_request(is_anonymous ? ++num_calls_ : request_hash);
  found_.resize(chain.size());
  std::size_t num_known = 0, num_shared = 0;
  for (std::size_t i = 0; i < chain.size(); ++i) {
    found_[i] = find(chain[i].key_tag);
    if (found_[i] == kNowhere || num_known < i) continue;
    const Record& last = record(found_[i]);
    if (last.num_uses == 1 && last.request_tag == request_tag) continue;
    ++num_known;
    if (num_shared == i && last.num_uses >= kSharedUses) ++num_shared;
  }
  const RequestShape shape{chain.size() - num_known, num_known > num_shared};
  // The deepest first, so that ancestors stay younger than what hangs below them.
  for (std::size_t i = chain.size(); i-- > 0;) {
    const bool is_last = i + 1 == chain.size();
    // Looked up again where this very call moved the ring on by a whole turn.
    const std::uint32_t position = is_remembered(found_[i]) ? found_[i] : kNowhere;
    Record added{chain[i].key_tag, kNowhere, request_tag, 0, 1};
    if (position != kNowhere) {
      Record& last = record(position);
      if (last.num_uses == 0) continue;  // The call names a key twice.
      const bool is_same = last.request_tag == request_tag || (is_anonymous && i < num_above);
      if (is_same) {
        reclassify(position, use_class_of(last.num_uses, shape, is_last));
        chain[i].use = BlockUse{position, last.use_class, last.num_uses};
        continue;
      }
      model_.add_return(last.use_class, head_ - position);
      added.num_uses = static_cast<std::uint8_t>(std::min<int>(last.num_uses + 1, kUsesMax));
      replace(position);
    }
    added.use_class = use_class_of(added.num_uses, shape, is_last);
    chain[i].use = BlockUse{head_, added.use_class, added.num_uses};
    append(added);
  }
  // Once a call, however long its chain is.
  if (head_ - refreshed_at_ >= uses_per_refresh()) refresh();
}

std::uint32_t ReuseHistory::find(std::uint32_t tag) {
  std::uint32_t position = bucket(tag);
  if (!is_remembered(position)) return kNowhere;
  while (position != kNowhere && record(position).tag != tag) position = next_older(position);
  return position;
}

/// What the ring has overwritten ends a bucket: everything behind it is older still.
std::uint32_t ReuseHistory::next_older(std::uint32_t position) {
  const std::uint32_t older = record(position).older;
  const bool is_older = is_remembered(older) && head_ - older > head_ - position;
  return is_older ? older : kNowhere;
}

/// A newer use follows: out of its bucket, so that one hot key does not fill it.
void ReuseHistory::replace(std::uint32_t position) {
  const std::uint32_t tag = record(position).tag;
  std::uint32_t* link = &bucket(tag);
  while (*link != position) link = &record(*link).older;
  *link = record(position).older;
  record(position).num_uses = 0;
}

void ReuseHistory::append(Record added) {
  const bool is_whole_turn = head_ > 0 && (head_ & (records_.size() - 1)) == 0;
  if (is_whole_turn && records_.size() < num_entries_max_) grow();
  link(head_, added);
  ++head_;
  count_at_risk();
}

std::uint32_t ReuseHistory::uses_per_refresh() const {
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(
      std::bit_floor(num_blocks_max_), kUsesPerRefreshMin, kUsesPerRefreshMax));
}

void ReuseHistory::refresh() {
  const float share = static_cast<float>(head_ - refreshed_at_) / kUsesPerRefreshMax;
  model_.refresh(1 - std::clamp(kFadedMax * share, kFadedMin, kFadedMax));
  refreshed_at_ = head_;
}

void ReuseHistory::link(std::uint32_t position, Record added) {
  std::uint32_t& newest = bucket(added.tag);
  added.older = newest;
  newest = position;
  record(position) = added;
}

void ReuseHistory::forget(std::uint32_t key_tag) {
  const std::uint32_t position = find(key_tag);
  if (position == kNowhere) return;
  replace(position);
  record(position) = Record{};
}

void ReuseHistory::forget_keys() {
  for (Record& each : records_) each = Record{};
  std::fill(buckets_.begin(), buckets_.end(), kNowhere);
}

void ReuseHistory::save(format::UsesFile& file) const {
  const auto num_uses = static_cast<std::uint32_t>(std::min<std::uint64_t>(head_, records_.size()));
  file.num_calls = num_calls_;
  file.counts = model_.counts();
  file.uses.assign(num_uses, format::UseRecord{});
  for (std::uint32_t i = 0; i < num_uses; ++i) {
    const Record& use = records_[(head_ - num_uses + i) & (records_.size() - 1)];
    if (use.num_uses == 0) continue;
    file.uses[i] = {use.tag, use.request_tag, use.use_class, use.num_uses};
  }
}

bool ReuseHistory::restore(const format::UsesFile& file) {
  ReuseHistory restored(num_entries_max_);
  const std::span<const format::UseRecord> uses =
      std::span(file.uses).last(std::min<std::size_t>(file.uses.size(), num_entries_max_));
  const bool has_classes = std::all_of(
      uses.begin(), uses.end(), [](const auto& use) { return use.use_class < kNumUseClasses; });
  if (!has_classes || !restored.model_.set_counts(file.counts)) return false;
  restored.num_calls_ = file.num_calls;
  restored.num_blocks_max_ = num_blocks_max_;
  restored.records_.assign(std::bit_ceil(std::max(uses.size(), kEntriesAtStart)), Record{});
  restored.buckets_.assign(restored.records_.size(), kNowhere);
  std::vector<std::uint8_t> num_in_buckets(restored.buckets_.size(), 0);
  for (const format::UseRecord& use : uses) {
    const std::uint32_t position = restored.head_++;
    if (use.num_uses == 0) continue;
    if (++num_in_buckets[use.key_tag & (num_in_buckets.size() - 1)] > kBucketRecordsMax) {
      return false;
    }
    restored.link(position,
                  Record{use.key_tag, kNowhere, use.request_tag, use.use_class, use.num_uses});
  }
  // What has reached a step of age was counted there before.
  for (std::size_t step = 0; step < kNumAgeSteps; ++step) {
    const std::uint32_t begin = age_step_begin(step);
    restored.num_counted_[step] = restored.head_ > begin ? restored.head_ - begin : 0;
  }
  // Fewer uses than that teach nothing yet, with or without a restart.
  if (restored.head_ >= kUsesPerRefreshMin) restored.refresh();
  *this = std::move(restored);
  return true;
}

void ReuseHistory::reclassify(std::uint32_t position, std::uint8_t use_class) {
  Record& changed = record(position);
  for (std::size_t step = 0; step < kNumAgeSteps; ++step) {
    const bool is_counted = head_ - num_counted_[step] <= head_ - position - 1;
    if (!is_counted) break;
    model_.add_at_risk(changed.use_class, step, -1);
    model_.add_at_risk(use_class, step, 1);
  }
  changed.use_class = use_class;
}

/// Each use is counted once at each step that it reaches, unless another came before.
void ReuseHistory::count_at_risk() {
  for (std::size_t step = 0; step < kNumAgeSteps; ++step) {
    const std::uint32_t begin = age_step_begin(step);
    if (begin >= records_.size() || head_ - num_counted_[step] <= begin) break;
    const Record& reached = record(num_counted_[step]++);
    if (reached.num_uses > 0) model_.add_at_risk(reached.use_class, step, 1);
  }
}

void ReuseHistory::grow() {
  std::vector<Record> old = std::move(records_);
  records_.assign(old.size() * 2, Record{});
  buckets_.assign(records_.size(), kNowhere);
  for (std::uint32_t position = head_ - static_cast<std::uint32_t>(old.size()); position != head_;
       ++position) {
    Record& moved = record(position);
    moved = old[position & (old.size() - 1)];
    if (moved.num_uses == 0) continue;
    moved.older = bucket(moved.tag);
    bucket(moved.tag) = position;
  }
  // Steps of age that the shorter ring could not see begin with what it still held.
  for (std::uint32_t& num_counted : num_counted_) {
    if (head_ - num_counted > old.size()) {
      num_counted = head_ - static_cast<std::uint32_t>(old.size());
    }
  }
}

}  // namespace kvtier::store
