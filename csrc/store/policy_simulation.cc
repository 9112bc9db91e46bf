// The requests of a trace against an index of as many entries as the tier has slots. One thread.
#include "store/policy_simulation.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "base/check.h"
#include "store/admission_policy.h"
#include "store/eviction_policy.h"

namespace kvtier::store {
namespace {

constexpr TierId kTier = TierId::kDisk;
constexpr std::uint64_t kGhostsPerBlock = 4;

BlockKey key_of(std::uint64_t block_id) {
  BlockKey key;
  // Ids of traces are small numbers: spread as a digest would be.
  const std::uint64_t words[] = {(block_id + 1) * 0x9e3779b97f4a7c15ull, block_id};
  std::memcpy(key.bytes.data(), words, sizeof words);
  return key;
}

class Simulation {
 public:
  Simulation(SimulatedPolicy policy, std::uint64_t capacity_blocks)
      : capacity_blocks_(capacity_blocks), index_(capacity_blocks + 1) {
    const auto num_ghosts = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(capacity_blocks * kGhostsPerBlock, 1u << 28));
    switch (policy) {
      case SimulatedPolicy::kLru:
      case SimulatedPolicy::kSecondUse:
        eviction_ = make_lru_policy(index_, kTier);
        break;
      case SimulatedPolicy::kS3Fifo:
        eviction_ = make_s3_fifo_policy(index_, kTier);
        break;
      case SimulatedPolicy::kAdaptive:
        eviction_ = make_adaptive_policy(index_, kTier, history_);
        break;
    }
    is_adaptive_ = policy == SimulatedPolicy::kAdaptive;
    if (is_adaptive_) {
      admission_ = make_adaptive_admission(history_);
    } else {
      admission_ = policy == SimulatedPolicy::kSecondUse ? make_second_use_admission(num_ghosts)
                                                         : make_admit_all();
    }
  }

  /// As an engine does: a get of what is there, then a put of the rest.
  void replay(std::span<const std::uint64_t> block_ids) {
    ++request_hash_;
    std::vector<EntryIndex> chain;
    for (const std::uint64_t block_id : block_ids) {
      const EntryIndex entry = index_.find(0, key_of(block_id));
      if (entry == kNoEntry) break;
      chain.push_back(entry);
    }
    result_.num_hits += chain.size();
    for (const EntryIndex entry : chain) ++index_.at(entry).num_holds;
    note(block_ids.first(chain.size()), 0, chain);
    touch(chain);
    const std::vector<ChainUse> uses = note(block_ids, chain.size(), chain);
    // Prefix first: behind the first block that is not let in none is, but they are asked about, as
    // the policies remember them by that.
    const std::size_t num_there = chain.size();
    for (std::size_t i = num_there; i < block_ids.size(); ++i) {
      const bool is_open = chain.size() == i;
      if (is_open) {
        put(block_ids[i], uses[i].use, chain);
      } else {
        (void)admission_->is_admitted({0, key_of(block_ids[i]), request_hash_, true, uses[i].use,
                                       [] { return std::nullopt; }});
      }
    }
    touch(chain);
    for (const EntryIndex entry : chain) --index_.at(entry).num_holds;
  }

  const SimulationResult& result() const { return result_; }

 private:
  std::vector<ChainUse> note(std::span<const std::uint64_t> block_ids, std::size_t num_above,
                             std::span<const EntryIndex> chain) {
    std::vector<ChainUse> uses(block_ids.size());
    if (!is_adaptive_) return uses;
    for (std::size_t i = 0; i < uses.size(); ++i) {
      uses[i].key_tag = key_tag_of(0, key_of(block_ids[i]));
    }
    history_.note(uses, num_above, request_hash_);
    for (std::size_t i = 0; i < chain.size(); ++i) index_.at(chain[i]).use = uses[i].use;
    return uses;
  }

  void touch(std::span<const EntryIndex> chain) {
    for (auto entry = chain.rbegin(); entry != chain.rend(); ++entry) eviction_->touch(*entry);
  }

  void put(std::uint64_t block_id, const BlockUse& use, std::vector<EntryIndex>& chain) {
    const BlockKey key = key_of(block_id);
    if (const EntryIndex stored = index_.find(0, key); stored != kNoEntry) {
      ++index_.at(stored).num_holds;  // Behind a hole: no hit, and nothing to write.
      chain.push_back(stored);
      return;
    }
    AdmissionQuestion question{0,   key, request_hash_, eviction_->num_blocks() >= capacity_blocks_,
                               use, {}};
    EntryIndex victim = kNoEntry;
    if (question.is_tier_full) {
      victim = eviction_->victim([this](EntryIndex entry) {
        const BlockEntry& block = index_.at(entry);
        return block.num_holds == 0 && !block.has_children();
      });
      question.find_victim_use = [this, victim] {
        return victim == kNoEntry ? std::nullopt : std::optional(index_.at(victim).use);
      };
    }
    if (!admission_->is_admitted(question)) return;
    if (question.is_tier_full) {
      if (victim == kNoEntry) return;
      drop(victim);
    }
    const EntryIndex entry = index_.insert(0, key, chain.empty() ? kNoEntry : chain.back());
    BlockEntry& added = index_.at(entry);
    added.use = use;
    added.set_state(kTier, CopyState::kFilling);
    added.set_state(kTier, CopyState::kResident);
    ++added.num_holds;
    eviction_->insert(entry);
    chain.push_back(entry);
    ++result_.num_writes;
  }

  void drop(EntryIndex victim) {
    eviction_->remove(victim);
    index_.at(victim).set_state(kTier, CopyState::kAbsent);
    index_.detach(victim);
    index_.free(victim);
  }

  const std::uint64_t capacity_blocks_;
  BlockIndex index_;
  ReuseHistory history_;
  std::unique_ptr<EvictionPolicy> eviction_;
  std::unique_ptr<AdmissionPolicy> admission_;
  bool is_adaptive_ = false;
  std::uint64_t request_hash_ = 0;
  SimulationResult result_;
};

}  // namespace

SimulationResult simulate_policy(const SimulatedTrace& trace, SimulatedPolicy policy,
                                 std::uint64_t capacity_blocks) {
  KVTIER_CHECK(capacity_blocks >= 1);
  Simulation simulation(policy, capacity_blocks);
  std::uint64_t begin = 0;
  for (const std::uint64_t end : trace.request_ends) {
    simulation.replay(trace.block_ids.subspan(begin, end - begin));
    begin = end;
  }
  return simulation.result();
}

}  // namespace kvtier::store
