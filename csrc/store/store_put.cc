// put: plan under the mutex, copy and hash outside of it, apply in order of the chain. Thread-safe.
#include <algorithm>
#include <cstring>

#include "store/store_impl.h"

namespace kvtier {

struct Store::Impl::PutCall {
  const PutRequest& request;
  const Namespace& space;
  TimeNs deadline_ns = 0;
  std::vector<PutBlock> blocks;
  std::vector<store::BlockUse> uses;                // What is known of each key, this use included.
  std::unordered_map<EntryIndex, std::size_t> own;  // Entries of this call -> first block with it.
  std::vector<EntryIndex> held;
};

Result<std::vector<Outcome>> Store::Impl::put(const PutRequest& request) {
  Locked locked(*this);
  if (Status open = check_open(); !open.is_ok()) return open;
  auto known = find_namespace(request.namespace_index);
  if (!known.is_ok()) return known.status();
  if (is_failed_) return std::vector<Outcome>(request.keys.size(), Outcome::kDeclined);
  const TimeNs now_ns = seams_.clock->now_ns();
  leases_.expire(now_ns);
  PutCall call{request, *known.value(), now_ns + request.timeout_ns, {}, {}, {}, {}};
  ++num_calls_;
  plan_put(call);
  if (call.space.host_class) {
    fill_host_blocks(call, locked);
  } else {
    fill_disk_blocks(call, locked);
  }
  finish_put(call, locked);
  --num_calls_;
  changed();
  std::vector<Outcome> outcomes;
  outcomes.reserve(call.blocks.size());
  for (const PutBlock& block : call.blocks) outcomes.push_back(block.outcome);
  return outcomes;
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
    // New blocks are held until the call ends. Stored ones are not: as ancestors of a new block
    // they stay in one tier or the other by the family rules, and may give their host slots to it.
    if (block.kind == PutBlock::Kind::kNew) {
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

void Store::Impl::fill_host_blocks(PutCall& call, Locked& locked) {
  const PutRequest& request = call.request;
  std::vector<std::byte*> targets(call.blocks.size(), nullptr);
  for (std::size_t i = 0; i < call.blocks.size(); ++i) {
    if (!call.blocks[i].takes_bytes()) continue;
    targets[i] = host_->address(index_.at(call.blocks[i].entry).slot(kHost));
  }
  locked.lock().unlock();
  // The slots are FILLING and held: nobody else reads or reuses them.
  for (std::size_t i = 0; i < call.blocks.size(); ++i) {
    if (targets[i] == nullptr) continue;
    const bool has_checksum = options_.has_checksum || call.space.disk_class;
    if (has_checksum) {
      call.blocks[i].checksums = store::copy_and_checksum_block(call.space, request.keys[i],
                                                                targets[i], request.sources[i]);
    } else {
      copy_bytes({targets[i], call.space.block_bytes},
                 {request.sources[i], call.space.block_bytes});
      call.blocks[i].checksums.assign(call.space.part_bytes.size(), 0);
    }
    const std::uint64_t padding_bytes = call.space.slot_bytes - call.space.block_bytes;
    std::memset(targets[i] + call.space.block_bytes, 0, padding_bytes);
  }
  locked.lock().lock();
  for (std::size_t i = 0; i < call.blocks.size(); ++i) {
    if (call.blocks[i].kind == PutBlock::Kind::kNew) apply_host_block(call, i, locked);
    if (call.blocks[i].kind == PutBlock::Kind::kRenewed) apply_renewal(call, i);
  }
}

/// The bytes are in the slot: the block becomes resident after its parent, or not at all.
void Store::Impl::apply_host_block(PutCall& call, std::size_t i, Locked& locked) {
  PutBlock& block = call.blocks[i];
  const bool has_parent = wait_for_parent(block.entry, call.deadline_ns, locked);
  store::BlockEntry& entry = index_.at(block.entry);
  if (entry.is_detached) return end_fill(block, Outcome::kDeclined);
  if (!has_parent) {
    const EntryIndex parent = entry.parent;
    const bool is_late = parent != kNoEntry && fills_.contains(parent);
    end_fill(block, is_late ? Outcome::kTimeout : Outcome::kDeclined);
    return life_.abort_fill(block.entry, kHost);
  }
  index_.set_checksums(block.entry, block.checksums);
  life_.finish_fill(block.entry, kHost);
  host_space_.stats.bytes_written += call.space.block_bytes;
  end_fill(block, Outcome::kDone);
}

/// True when the entry is a root or its parent is resident; waits while an earlier call fills it.
bool Store::Impl::wait_for_parent(EntryIndex entry, TimeNs deadline_ns, Locked& locked) {
  const auto is_settled = [this, entry] {
    const store::BlockEntry& block = index_.at(entry);
    return block.is_detached || block.parent == kNoEntry || !fills_.contains(block.parent);
  };
  if (!is_settled() && !wait(locked, is_settled, deadline_ns)) return false;
  const store::BlockEntry& block = index_.at(entry);
  if (block.is_detached) return false;
  return block.parent == kNoEntry || index_.at(block.parent).is_resident_anywhere();
}

/// Waits until the earlier call that fills the parent has handed it to the disk: a child that came
/// before it would be declined.
bool Store::Impl::wait_for_parent_write(EntryIndex entry, TimeNs deadline_ns, Locked& locked) {
  const auto is_settled = [this, entry] {
    const store::BlockEntry& block = index_.at(entry);
    if (block.is_detached || block.parent == kNoEntry || !fills_.contains(block.parent))
      return true;
    return bool{index_.at(block.parent).is_queued};
  };
  return is_settled() || wait(locked, is_settled, deadline_ns);
}

void Store::Impl::end_fill(PutBlock& block, Outcome outcome) {
  block.outcome = outcome;
  block.fill->outcome = outcome;
  block.fill->is_ended = true;
  fills_.erase(block.entry);
  changed();
}

/// Without a host slot the bytes go through staging buffers straight to disk, a window at a time.
void Store::Impl::fill_disk_blocks(PutCall& call, Locked& locked) {
  const std::uint64_t slot_bytes = call.space.slot_bytes;
  std::uint64_t held_bytes = 0;
  std::size_t first_open = 0;  // Blocks before it have ended.
  for (std::size_t i = 0; i < call.blocks.size(); ++i) {
    if (!call.blocks[i].takes_bytes()) continue;
    const auto settle_first = [&] {
      while (first_open < i) {
        const PutBlock& oldest = call.blocks[first_open++];
        if (!oldest.is_in_window) continue;
        (void)wait(locked, [&oldest] { return oldest.fill->is_ended; }, call.deadline_ns);
        held_bytes -= slot_bytes;
        return;
      }
    };
    while (held_bytes > 0 && held_bytes + slot_bytes > staging_->window_bytes()) settle_first();
    std::optional<std::span<std::byte>> buffer;
    if (wait_for_parent_write(call.blocks[i].entry, call.deadline_ns, locked)) {
      buffer = wait_for_staging(slot_bytes, held_bytes > 0, call.deadline_ns, locked);
    }
    if (!buffer) {
      const bool is_new = call.blocks[i].kind == PutBlock::Kind::kNew;
      const EntryIndex entry = call.blocks[i].entry;
      if (is_new && !index_.at(entry).is_detached) life_.remove_family(entry);
      end_fill(call.blocks[i], is_new ? Outcome::kTimeout : Outcome::kDone);
      continue;
    }
    held_bytes += slot_bytes;
    call.blocks[i].is_in_window = true;
    fill_disk_block(call, i, *buffer, locked);
  }
  for (PutBlock& block : call.blocks) {
    if (!block.takes_bytes()) continue;
    const auto fill = block.fill;
    const bool is_ended = wait(locked, [&fill] { return fill->is_ended; }, call.deadline_ns);
    block.outcome = is_ended ? fill->outcome : Outcome::kTimeout;
  }
}

void Store::Impl::fill_disk_block(PutCall& call, std::size_t i, std::span<std::byte> buffer,
                                  Locked& locked) {
  PutBlock& block = call.blocks[i];
  locked.lock().unlock();
  block.checksums = store::copy_and_checksum_block(call.space, call.request.keys[i], buffer.data(),
                                                   call.request.sources[i]);
  std::memset(buffer.data() + call.space.block_bytes, 0,
              call.space.slot_bytes - call.space.block_bytes);
  locked.lock().lock();
  if (index_.at(block.entry).is_detached) {
    staging_->release(buffer);
    return end_fill(block, Outcome::kDeclined);
  }
  const bool is_new = block.kind == PutBlock::Kind::kNew;
  if (!is_new && !index_.has_checksums(block.entry, block.checksums)) {
    staging_->release(buffer);
    return end_fill(block, Outcome::kDone);  // Other bytes than those that are stored.
  }
  if (is_new) index_.set_checksums(block.entry, block.checksums);
  // The write owns the buffer from here on, also when this call gives up waiting.
  const auto fill = block.fill;
  const EntryIndex entry = block.entry;
  const auto on_end = [this, fill, entry, buffer](Outcome outcome) {
    staging_->release(buffer);
    fill->outcome = outcome;
    fill->is_ended = true;
    fills_.erase(entry);
    changed();
  };
  if (is_new) {
    writes_->submit_direct(entry, buffer, on_end);
  } else {
    writes_->rewrite(entry, buffer, on_end);
  }
  changed();
}

std::optional<std::span<std::byte>> Store::Impl::wait_for_staging(std::uint64_t num_bytes,
                                                                  bool is_holding,
                                                                  TimeNs deadline_ns,
                                                                  Locked& locked) {
  if (is_holding) {
    // Whoever holds buffers need not stand in line behind those who hold none, but waits for its
    // own writes to give some back.
    std::optional<std::span<std::byte>> buffer = staging_->reserve(0, num_bytes);
    if (buffer) return buffer;
  }
  const std::uint64_t ticket = staging_->enter_line();
  std::optional<std::span<std::byte>> buffer;
  (void)wait(
      locked,
      [&] {
        if (!buffer) buffer = staging_->reserve(ticket, num_bytes);
        return buffer.has_value();
      },
      deadline_ns);
  staging_->leave_line(ticket);
  changed();
  return buffer;
}

/// Joined and repeated keys get their outcome; then recency, the disk's share, and the holds.
void Store::Impl::finish_put(PutCall& call, Locked& locked) {
  std::vector<EntryIndex> done;
  for (std::size_t i = 0; i < call.blocks.size(); ++i) {
    PutBlock& block = call.blocks[i];
    if (block.kind == PutBlock::Kind::kJoined) {
      const auto fill = block.fill;
      const bool is_ended = wait(locked, [&fill] { return fill->is_ended; }, call.deadline_ns);
      block.outcome = is_ended ? fill->outcome : Outcome::kTimeout;
    }
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
