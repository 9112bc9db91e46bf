// put: plan under the mutex, copy and hash outside of it, apply in order of the chain. Thread-safe.
#include <algorithm>
#include <cstring>

#include "store/put_call.h"

namespace kvtier {

using store::GiveWay;
using store::wait_until;

namespace {

// Copied in one turn. A job's is short, so that others get on and a cancellation is soon seen.
constexpr std::uint64_t kJobTurnBytes = 4ull << 20;
constexpr std::uint64_t kCallTurnBytes = 64ull << 20;
// Smaller copies end sooner than a helping thread starts.
constexpr std::uint64_t kSplitBytesMin = 4ull << 20;

}  // namespace

Result<std::vector<Outcome>> Store::Impl::put(const PutRequest& request) {
  Locked locked(*this);
  const auto space = begin_call(request.namespace_index);
  if (!space.is_ok()) return space.status();
  Flow flow(Flow::Driver::kCaller);
  return drive(flow, run_put(request, *space.value(), nullptr, flow), locked, stats_.put_latency);
}

/// mover: brings the bytes; null: they are at the request's addresses.
Task<Store::Impl::Outcomes> Store::Impl::run_put(PutRequest request, const Namespace& space,
                                                 BlockMover* mover, Flow& flow) {
  if (is_failed_) co_return Outcomes(request.keys.size(), Outcome::kDeclined);
  const TimeNs deadline_ns = seams_.clock->now_ns() + request.timeout_ns;
  PutCall call{request, space, deadline_ns, {}, {}, {}, {}};
  plan_put(call);
  if (mover != nullptr && space.host_class) {
    co_await move_to_host_blocks(call, *mover, flow);
  } else if (mover != nullptr) {
    co_await move_to_disk_blocks(call, *mover, flow);
  } else if (space.host_class) {
    co_await fill_host_blocks(call, flow);
  } else {
    co_await fill_disk_blocks(call, flow);
  }
  for (PutBlock& block : call.blocks) {
    if (block.kind != PutBlock::Kind::kJoined) continue;
    const auto is_ended = [&block] { return block.fill->is_ended; };
    const bool is_in_time = co_await wait_until(flow, is_ended, deadline_ns);
    block.outcome = is_in_time ? block.fill->outcome : flow.early_outcome();
  }
  finish_put(call);
  Outcomes outcomes;
  outcomes.reserve(call.blocks.size());
  for (const PutBlock& block : call.blocks) outcomes.push_back(block.outcome);
  co_return outcomes;
}

/// Decides for every key what is to happen, and reserves what it needs, in one go: so a later call
/// can only depend on earlier ones, never the other way round.
void Store::Impl::plan_put(PutCall& call) {
  const PutRequest& request = call.request;
  call.blocks.resize(request.keys.size());
  EntryIndex parent = kNoEntry;
  if (request.parent) {
    parent = index_.find(request.namespace_index, *request.parent);
    const bool is_usable =
        parent != kNoEntry && (index_.at(parent).is_resident_anywhere() || fills_.contains(parent));
    if (!is_usable) return;  // All declined.
    life_.hold(parent);
    call.held.push_back(parent);
  }
  call.uses = note_uses(request.namespace_index, parent, request.keys, request.request_hash,
                        request.is_chain);
  for (std::size_t i = 0; i < request.keys.size(); ++i) {
    call.blocks[i] = plan_block(call, i, request.is_chain ? parent : kNoEntry);
    const PutBlock& block = call.blocks[i];
    if (block.kind == PutBlock::Kind::kDeclined) {
      if (request.is_chain) return;  // Prefix first: nothing after it either.
      continue;
    }
    // What takes bytes is held until the call ends. Stored blocks are not: as ancestors of a new
    // one they stay in one tier or the other by the family rules, and may give their host slots to
    // it.
    if (block.takes_bytes()) {
      life_.hold(block.entry);
      call.held.push_back(block.entry);
    }
    if (request.is_chain) parent = block.entry;
  }
}

Store::Impl::PutBlock Store::Impl::plan_block(PutCall& call, std::size_t i, EntryIndex parent) {
  const BlockKey& key = call.request.keys[i];
  const EntryIndex entry = index_.find(call.request.namespace_index, key);
  if (entry == kNoEntry) {
    PutBlock block = plan_new_block(call, i, parent);
    if (block.kind == PutBlock::Kind::kNew) call.own.emplace(block.entry, i);
    return block;
  }
  PutBlock block;
  block.entry = entry;
  if (const auto own = call.own.find(entry); own != call.own.end()) {
    block.kind = PutBlock::Kind::kAlias;
    block.alias_of = own->second;
  } else if (const auto fill = fills_.find(entry); fill != fills_.end()) {
    block.kind = PutBlock::Kind::kJoined;
    block.fill = fill->second;
  } else {
    const bool is_renewed = can_renew(call.space, entry);
    block.kind = is_renewed ? PutBlock::Kind::kRenewed : PutBlock::Kind::kStored;
    if (is_renewed) {
      block.fill = std::make_shared<store::Fill>();
      call.own.emplace(entry, i);
    }
    block.outcome = Outcome::kDone;
  }
  return block;
}

/// Whether a stored block is to be written once more; with a host tier it has its host slot then.
bool Store::Impl::can_renew(const Namespace& space, EntryIndex entry) {
  const store::BlockEntry& block = index_.at(entry);
  const bool is_unproved = block.is_recovered && block.is_resident(kDisk) && !block.is_queued &&
                           block.tier_state(kHost) == store::CopyState::kAbsent;
  if (!is_unproved || !space.disk_class || !disk_->is_writable(seams_.clock->now_ns()))
    return false;
  if (!space.host_class) return true;
  const auto slot = host_->reserve(*space.host_class, entry);
  if (slot) life_.begin_fill(entry, kHost, *slot);
  return slot.has_value();
}

/// The bytes are in its host slot. Other bytes than those that are stored change nothing.
void Store::Impl::apply_renewal(PutCall& call, std::size_t i) {
  const PutBlock& block = call.blocks[i];
  if (index_.at(block.entry).is_detached) return;
  if (!index_.has_checksums(block.entry, block.checksums)) {
    return life_.abort_fill(block.entry, kHost);
  }
  life_.finish_fill(block.entry, kHost);
  host_space_.stats.bytes_written += call.space.block_bytes;
  writes_->rewrite(block.entry, {}, nullptr);
}

Store::Impl::PutBlock Store::Impl::plan_new_block(PutCall& call, std::size_t i, EntryIndex parent) {
  const PutRequest& request = call.request;
  const BlockKey& key = request.keys[i];
  PutBlock block;
  const bool is_to_host = call.space.host_class.has_value();
  const bool is_to_disk =
      call.space.disk_class.has_value() && disk_ && disk_->is_writable(seams_.clock->now_ns());
  if (!is_to_host && !is_to_disk) return block;
  if (!is_to_host &&
      !writes_->is_admitted({request.namespace_index, key, request.request_hash, call.uses[i]},
                            parent))
    return block;
  const EntryIndex entry = index_.insert(request.namespace_index, key, parent);
  if (entry == kNoEntry) return block;
  index_.at(entry).use = call.uses[i];
  if (is_to_host) {
    life_.hold(entry);
    const auto slot = host_->reserve(*call.space.host_class, entry);
    if (!slot) {
      index_.detach(entry);
      life_.forget_new(entry);
      return block;
    }
    life_.begin_fill(entry, kHost, *slot);
    life_.unhold(entry);
  }
  block.kind = PutBlock::Kind::kNew;
  block.entry = entry;
  block.fill = std::make_shared<store::Fill>();
  fills_.emplace(entry, block.fill);
  return block;
}

/// Copies a turn at a time into the host slots; each turn's blocks become resident in order.
Task<void> Store::Impl::fill_host_blocks(PutCall& call, Flow& flow) {
  std::size_t num_to_copy = 0;
  for (PutBlock& block : call.blocks) {
    if (!block.takes_bytes()) continue;
    block.target = host_->address(index_.at(block.entry).slot(kHost));
    ++num_to_copy;
  }
  if (num_to_copy == 0) co_return;
  const std::uint64_t turn_bytes = flow.is_job() ? kJobTurnBytes : kCallTurnBytes;
  const std::size_t turn_blocks = std::max<std::size_t>(1, turn_bytes / call.space.block_bytes);
  for (std::size_t first = 0; first < call.blocks.size(); first += turn_blocks) {
    co_await GiveWay(flow);
    const bool is_late = flow.is_job() && first > 0 && seams_.clock->now_ns() >= call.deadline_ns;
    if (is_late || flow.is_cancelled()) {
      give_up_host_blocks(call, first, flow.early_outcome());
      co_return;
    }
    const std::size_t end = std::min(call.blocks.size(), first + turn_blocks);
    copy_to_host(call, first, end, flow);
    for (std::size_t i = first; i < end; ++i) {
      if (call.blocks[i].kind == PutBlock::Kind::kRenewed) apply_renewal(call, i);
      if (call.blocks[i].kind != PutBlock::Kind::kNew) continue;
      const auto is_settled = [this, entry = call.blocks[i].entry] {
        return is_parent_settled(entry);
      };
      (void)co_await wait_until(flow, is_settled, call.deadline_ns);
      apply_host_block(call, i, flow.early_outcome());
    }
  }
}

/// Outside of the mutex. The slots are FILLING and held: nobody else reads or reuses them.
void Store::Impl::copy_to_host(PutCall& call, std::size_t first, std::size_t end, Flow& flow) {
  const bool has_checksum = makes_checksums();
  const auto copy = [&call, has_checksum, first](std::size_t piece_index) {
    const std::size_t i = first + piece_index;
    PutBlock& block = call.blocks[i];
    if (block.target == nullptr) return;
    const std::byte* source = call.request.sources[i];
    if (has_checksum) {
      block.checksums =
          store::copy_and_checksum_block(call.space, call.request.keys[i], block.target, source);
    } else {
      copy_bytes({block.target, call.space.block_bytes}, {source, call.space.block_bytes});
      block.checksums.assign(call.space.part_bytes.size(), 0);
    }
    std::memset(block.target + call.space.block_bytes, 0,
                call.space.slot_bytes - call.space.block_bytes);
  };
  flow.lock().unlock();
  if ((end - first) * call.space.block_bytes >= kSplitBytesMin) {
    seams_.executor->split(end - first, copy);
  } else {
    for (std::size_t i = 0; i < end - first; ++i) copy(i);
  }
  flow.lock().lock();
}

/// The bytes are in the slot: the block becomes resident after its parent, or not at all.
void Store::Impl::apply_host_block(PutCall& call, std::size_t i, Outcome early_outcome) {
  PutBlock& block = call.blocks[i];
  const store::BlockEntry& entry = index_.at(block.entry);
  if (entry.is_detached) return end_fill(block, Outcome::kDeclined);
  const EntryIndex parent = entry.parent;
  const bool has_parent = parent == kNoEntry || index_.at(parent).is_resident_anywhere();
  if (!is_parent_settled(block.entry) || !has_parent) {
    const bool is_early = parent != kNoEntry && fills_.contains(parent);
    end_fill(block, is_early ? early_outcome : Outcome::kDeclined);
    return life_.abort_fill(block.entry, kHost);
  }
  index_.set_checksums(block.entry, block.checksums);
  life_.finish_fill(block.entry, kHost);
  host_space_.stats.bytes_written += call.space.block_bytes;
  end_fill(block, Outcome::kDone);
}

/// From `first` on nothing was copied and nothing will be: new keys are absent again, what was
/// stored before stays.
void Store::Impl::give_up_host_blocks(PutCall& call, std::size_t first, Outcome outcome) {
  for (std::size_t i = first; i < call.blocks.size(); ++i) {
    PutBlock& block = call.blocks[i];
    if (!block.takes_bytes()) continue;
    if (block.kind == PutBlock::Kind::kNew) end_fill(block, outcome);
    if (!index_.at(block.entry).is_detached) life_.abort_fill(block.entry, kHost);
  }
}

/// Whether no earlier call fills the parent any more.
bool Store::Impl::is_parent_settled(EntryIndex entry) const {
  const store::BlockEntry& block = index_.at(entry);
  return block.is_detached || block.parent == kNoEntry || !fills_.contains(block.parent);
}

void Store::Impl::end_fill(PutBlock& block, Outcome outcome) {
  block.outcome = outcome;
  // Who joined it did not cancel anything: it may offer the block again.
  block.fill->outcome = outcome == Outcome::kCancelled ? Outcome::kDeclined : outcome;
  block.fill->is_ended = true;
  fills_.erase(block.entry);
  changed();
}

/// Repeated keys get their outcome; then recency, the disk's share, and the holds.
void Store::Impl::finish_put(PutCall& call) {
  std::vector<EntryIndex> done;
  for (std::size_t i = 0; i < call.blocks.size(); ++i) {
    PutBlock& block = call.blocks[i];
    if (block.kind == PutBlock::Kind::kAlias) block.outcome = call.blocks[block.alias_of].outcome;
    if (block.outcome == Outcome::kDone) {
      // Looked up afresh: what this call does not hold may have gone and come back meanwhile.
      const EntryIndex entry = index_.find(call.request.namespace_index, call.request.keys[i]);
      if (entry != kNoEntry && index_.at(entry).is_resident_anywhere()) done.push_back(entry);
    } else if (block.outcome == Outcome::kDeclined && !block.is_in_window) {
      ++(call.space.host_class ? host_space_ : disk_space_).stats.declined;
    }
  }
  const TimeNs now_ns = seams_.clock->now_ns();
  life_.touch_chain(done);
  if (writes_) {
    for (const EntryIndex entry : done) {
      if (index_.at(entry).is_resident(kHost)) {
        writes_->offer(entry, call.request.request_hash, now_ns);
      }
    }
  }
  for (const EntryIndex entry : call.held) life_.unhold(entry);
  warn_of_useless_disk();
}

}  // namespace kvtier
