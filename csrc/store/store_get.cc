// get: hold what is found, read ahead within a window, check, copy in order of the keys.
// Thread-safe.
#include <algorithm>
#include <utility>

#include "store/get_call.h"

namespace kvtier {

using store::GiveWay;
using store::Load;
using store::wait_until;

namespace {

// Reads ahead of the block that is copied next. Little, because what arrives is checked and copied
// from the cache only while few other bytes arrive behind it: with 16 MiB under way a bare loop of
// read, check and copy ran at two thirds of its speed with 4 MiB. A device whose reads take long
// needs more under way to be busy.
constexpr std::uint64_t kReadAheadBytes = 4ull << 20;
constexpr std::uint64_t kReadAheadSlowBytes = 16ull << 20;
constexpr TimeNs kSlowReadNs = 4 * kNsPerMs;
// Long blocks: a device that takes up several at once ends them together, so that with two under
// way it is idle while both are checked and copied.
constexpr std::uint64_t kReadAheadLongBlocks = 4;
constexpr std::size_t kReadAheadBlocksMax = 1024;
// Copied in one turn. A job's is short, so that others get on and a cancellation is soon seen.
constexpr std::uint64_t kJobTurnBytes = 4ull << 20;
constexpr std::uint64_t kCallTurnBytes = 64ull << 20;
// Smaller copies end sooner than a helping thread starts.
constexpr std::uint64_t kSplitBytesMin = 4ull << 20;

}  // namespace

Result<std::vector<Outcome>> Store::Impl::get(const GetRequest& request) {
  Locked locked(*this);
  const auto space = begin_call(request.namespace_index);
  if (!space.is_ok()) return space.status();
  Flow flow(Flow::Driver::kCaller);
  return drive(flow, run_get(request, *space.value(), flow), locked, stats_.get_latency);
}

Task<Store::Impl::Outcomes> Store::Impl::run_get(GetRequest request, const Namespace& space,
                                                 Flow& flow) {
  const TimeNs deadline_ns = seams_.clock->now_ns() + request.timeout_ns;
  GetCall call{request, space, deadline_ns, {}, 0, 0, 0, 0, 0, 0};
  plan_get(call);
  std::uint64_t turn_bytes = 0;
  if (call.num_found > 0) co_await GiveWay(flow);
  for (std::size_t i = 0; i < call.blocks.size();) {
    GetCall::Block& block = call.blocks[i];
    if (block.entry == kNoEntry) {
      ++i;
      continue;
    }
    const std::size_t first = i;
    issue_loads(call);
    const bool is_late = flow.is_job() && i > 0 && seams_.clock->now_ns() >= deadline_ns;
    if (is_late || flow.is_cancelled()) {
      block.outcome = flow.early_outcome();
      ++i;
    } else if (!block.load && index_.at(block.entry).is_resident(kHost)) {
      i = deliver_from_host(call, i, call.blocks.size(), flow);
    } else {
      const Outcome outcome = co_await deliver_from_disk(call, i, flow);
      block.outcome = outcome;
      ++i;
    }
    if (block.outcome != Outcome::kDone && request.is_prefix) break;
    turn_bytes += (i - first) * space.block_bytes;
    if (turn_bytes >= kJobTurnBytes) {
      turn_bytes = 0;
      co_await GiveWay(flow);
    }
  }
  finish_get(call);
  Outcomes outcomes;
  outcomes.reserve(call.blocks.size());
  for (const GetCall::Block& block : call.blocks) outcomes.push_back(block.outcome);
  co_return outcomes;
}

/// Holds what is found, and starts the first reads.
void Store::Impl::plan_get(GetCall& call) {
  const GetRequest& request = call.request;
  call.blocks.resize(request.keys.size());
  stats_.get_blocks += request.keys.size();
  const auto found = resolve(request.namespace_index, request.keys, request.is_prefix);
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found[i].second == Tier::kNone) continue;
    call.blocks[i].entry = found[i].first;
    life_.hold(found[i].first);
    ++call.num_found;
  }
  issue_loads(call);
}

/// Copies blocks that lie in host, from `first` on as far as they follow each other before `limit`
/// and the turn goes. Returns the index after the last one.
std::size_t Store::Impl::deliver_from_host(GetCall& call, std::size_t first, std::size_t limit,
                                           Flow& flow) {
  const std::uint64_t block_bytes = call.space.block_bytes;
  const std::uint64_t turn_bytes = flow.is_job() ? kJobTurnBytes : kCallTurnBytes;
  std::size_t end = first;
  for (; end < limit; ++end) {
    GetCall::Block& block = call.blocks[end];
    if (block.entry == kNoEntry || block.load || !index_.at(block.entry).is_resident(kHost)) break;
    if (end > first && (end - first + 1) * block_bytes > turn_bytes) break;
    block.source = host_->address(index_.at(block.entry).slot(kHost));
    block.outcome = Outcome::kDone;
  }
  const auto copy = [&call, first, block_bytes](std::size_t piece_index) {
    const std::size_t i = first + piece_index;
    copy_bytes({call.request.targets[i], block_bytes}, {call.blocks[i].source, block_bytes});
  };
  const std::size_t num_blocks = end - first;
  host_copies_.begin(num_blocks * block_bytes);
  flow.lock().unlock();
  if (num_blocks * block_bytes >= kSplitBytesMin) {
    seams_.executor->split(num_blocks, copy);
  } else {
    for (std::size_t i = 0; i < num_blocks; ++i) copy(i);
  }
  flow.lock().lock();
  host_copies_.end(num_blocks * block_bytes, num_blocks * block_bytes);
  host_space_.stats.hits += num_blocks;
  host_space_.stats.bytes_read += num_blocks * block_bytes;
  return end;
}

/// Copies block `i` to its target, or says why not; then the target is untouched.
Task<Outcome> Store::Impl::deliver_from_disk(GetCall& call, std::size_t i, Flow& flow) {
  GetCall::Block& block = call.blocks[i];
  if (!block.load) {
    if (!disk_ || !disk_->is_readable()) co_return Outcome::kMiss;
    block.is_from_disk = true;
    const bool is_in_time = co_await reserve_buffer(call, i, flow);
    if (!is_in_time) co_return flow.early_outcome();
  }
  const std::shared_ptr<Load> load = block.load;
  if (!load) {
    // Removed, or its tier turned off, while the call waited; or it came to host by another way.
    if (!index_.at(block.entry).is_resident(kHost)) co_return Outcome::kMiss;
    block.is_from_disk = false;
    (void)deliver_from_host(call, i, i + 1, flow);
    co_return Outcome::kDone;
  }
  block.is_from_disk = true;
  const auto is_load_settled = [this, &load] { return is_settled(*load); };
  (void)co_await wait_until(flow, is_load_settled, call.deadline_ns);
  verify(*load, call.space, call.request.keys[i], flow);
  Outcome outcome = flow.early_outcome();
  if (load->state == Load::State::kFailed) outcome = load->outcome;
  if (load->state == Load::State::kReady) {
    flow.lock().unlock();
    copy_bytes({call.request.targets[i], call.space.block_bytes},
               load->buffer.first(call.space.block_bytes));
    flow.lock().lock();
    outcome = Outcome::kDone;
    ++disk_space_.stats.hits;
  }
  drop_load(call, i);
  co_return outcome;
}

/// Nobody needs to wait for it: it ended, or its disk does not answer.
bool Store::Impl::is_settled(const Load& load) const {
  const bool is_in_work =
      load.state == Load::State::kReading || load.state == Load::State::kVerifying;
  return !is_in_work || (disk_->health() == Health::kStalled && !load.is_reading_ended);
}

/// Checks what was read unless somebody else has, outside of the mutex.
void Store::Impl::verify(Load& load, const Namespace& space, const BlockKey& key, Flow& flow) {
  if (load.state != Load::State::kRead) return;
  loader_->begin_verify(load);
  flow.lock().unlock();
  const auto checksums = store::checksum_block(space, key, load.buffer.data());
  flow.lock().lock();
  loader_->end_verify(load, index_.has_checksums(load.entry, checksums));
  changed_for_waiters();
}

/// Starts reads for the coming blocks as far as the window and free buffers go. What was full is
/// refilled a good part at a time: neighbours that are asked for together become one read.
void Store::Impl::issue_loads(GetCall& call) {
  if (!disk_ || !disk_->is_readable()) return;
  const std::uint64_t slot_bytes = call.space.slot_bytes;
  const bool is_slow = loader_->least_read_ns() > kSlowReadNs;
  const std::uint64_t window_bytes =
      std::max(is_slow ? kReadAheadSlowBytes : kReadAheadBytes, kReadAheadLongBlocks * slot_bytes);
  if (call.read_ahead_bytes > call.full_bytes / 4 * 3 && call.full_bytes > 0) return;
  call.full_bytes = 0;
  for (; call.next_to_issue < call.blocks.size(); ++call.next_to_issue) {
    const std::size_t i = call.next_to_issue;
    if (call.blocks[i].entry == kNoEntry || index_.at(call.blocks[i].entry).is_resident(kHost)) {
      continue;
    }
    const bool is_full = call.num_loads > 0 && (call.read_ahead_bytes + slot_bytes > window_bytes ||
                                                call.num_loads >= kReadAheadBlocksMax);
    if (is_full || !start_load(call, i, 0)) {
      call.full_bytes = call.read_ahead_bytes;
      break;
    }
  }
  submit_io();
}

/// Joins or starts the load of block `i`. False: no buffer can be had now.
bool Store::Impl::start_load(GetCall& call, std::size_t i, std::uint64_t ticket) {
  GetCall::Block& block = call.blocks[i];
  if (block.load) return true;
  const store::BlockEntry& entry = index_.at(block.entry);
  // Removed meanwhile, or in host by now: nothing to read.
  if (entry.is_detached || !entry.is_resident(kDisk) || entry.is_resident(kHost)) return true;
  block.load = loader_->join(block.entry);
  if (!block.load) {
    // Looking for a slot takes time; of hundreds that stand in line only the first needs to.
    if (ticket != 0 && !staging_->is_first(ticket)) return false;
    const std::uint64_t slot_bytes = call.space.slot_bytes;
    std::optional<store::SlotRef> slot;
    if (call.space.host_class && entry.tier_state(kHost) == store::CopyState::kAbsent) {
      slot = host_->reserve(*call.space.host_class, block.entry);
    }
    if (slot) {
      life_.begin_fill(block.entry, kHost, *slot);
      block.load = loader_->start(block.entry, host_->bytes(*slot).subspan(0, slot_bytes), true);
    } else {
      if (!staging_->may_hold_more(call.staged_bytes, slot_bytes)) return false;
      const auto buffer = staging_->reserve(ticket, slot_bytes);
      if (!buffer) return false;
      block.load = loader_->start(block.entry, *buffer, false);
      block.is_staged = true;
      call.staged_bytes += slot_bytes;
    }
  }
  ++call.num_loads;
  call.read_ahead_bytes += call.space.slot_bytes;
  return true;
}

/// The next block has no buffer yet. The call holds none that it has not copied, so standing in
/// line is safe: everybody before it gets on without it. False: the wait ended early.
Task<bool> Store::Impl::reserve_buffer(GetCall& call, std::size_t i, Flow& flow) {
  const std::uint64_t ticket = staging_->enter_line();
  const auto is_reserved = [this, &call, i, ticket] {
    return !disk_->is_readable() || start_load(call, i, ticket);
  };
  const bool is_in_time = co_await wait_until(flow, is_reserved, call.deadline_ns);
  staging_->leave_line(ticket);
  changed();
  if (call.next_to_issue == i && call.blocks[i].load) ++call.next_to_issue;
  co_return is_in_time;
}
void Store::Impl::drop_load(GetCall& call, std::size_t i) {
  GetCall::Block& block = call.blocks[i];
  if (!block.load) return;
  loader_->leave(block.load);
  block.load.reset();
  --call.num_loads;
  call.read_ahead_bytes -= call.space.slot_bytes;
  if (std::exchange(block.is_staged, false)) call.staged_bytes -= call.space.slot_bytes;
  changed_for_waiters();
}

/// Counters, recency of what was delivered, the disk's share of it, and the holds.
void Store::Impl::finish_get(GetCall& call) {
  std::vector<EntryIndex> delivered;
  const TimeNs now_ns = seams_.clock->now_ns();
  for (std::size_t i = 0; i < call.blocks.size(); ++i) {
    drop_load(call, i);
    GetCall::Block& block = call.blocks[i];
    if (block.entry == kNoEntry) continue;
    if (block.outcome == Outcome::kDone) {
      ++stats_.hit_blocks;
      if (!index_.at(block.entry).is_detached) delivered.push_back(block.entry);
    } else if (block.is_from_disk) {
      ++disk_space_.stats.misses;
      const bool is_failure =
          block.outcome == Outcome::kCorrupt || block.outcome == Outcome::kFailed;
      if (is_failure) ++disk_space_.stats.load_failures;
    }
  }
  std::vector<BlockKey> keys;
  keys.reserve(delivered.size());
  for (const EntryIndex entry : delivered) keys.push_back(index_.at(entry).key);
  const EntryIndex above = delivered.empty() ? kNoEntry : index_.at(delivered.front()).parent;
  if (!delivered.empty()) {
    note_uses(call.request.namespace_index, above, keys, call.request.request_hash,
              call.request.is_prefix);
  }
  life_.touch_chain(delivered);
  for (const EntryIndex entry : delivered) {
    if (writes_ && index_.at(entry).is_resident(kHost)) {
      writes_->offer(entry, call.request.request_hash, now_ns);
    }
  }
  for (const GetCall::Block& block : call.blocks) {
    if (block.entry != kNoEntry) life_.unhold(block.entry);
  }
}

}  // namespace kvtier
