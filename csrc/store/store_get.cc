// get: hold what is found, read ahead within a window, check, copy in order of the keys.
// Thread-safe.
#include <algorithm>
#include <utility>

#include "store/store_impl.h"

namespace kvtier {

using store::Load;

namespace {

// Reads ahead of the block that is copied next. Little, because what arrives is checked and copied
// from the cache only while few other bytes arrive behind it: with 16 MiB under way a bare loop of
// read, check and copy ran at two thirds of its speed with 4 MiB. A device whose reads take long
// needs more under way to be busy.
constexpr std::uint64_t kReadAheadBytes = 4ull << 20;
constexpr std::uint64_t kReadAheadSlowBytes = 16ull << 20;
constexpr TimeNs kSlowReadNs = 4 * kNsPerMs;
// With long blocks one is read while another is checked and copied.
constexpr std::uint64_t kReadAheadLongBlocks = 2;
constexpr std::size_t kReadAheadBlocksMax = 1024;

}  // namespace

struct Store::Impl::GetCall {
  struct Block {
    EntryIndex entry = kNoEntry;
    std::shared_ptr<Load> load;
    bool is_from_disk = false;
    bool is_staged = false;  // Its load began in a staging buffer of this call.
    Outcome outcome = Outcome::kMiss;
  };
  const GetRequest& request;
  const Namespace& space;
  TimeNs deadline_ns = 0;
  std::vector<Block> blocks;
  std::size_t next_to_issue = 0;
  std::uint64_t read_ahead_bytes = 0;  // Of loads that this call uses now.
  std::uint64_t staged_bytes = 0;      // Of those, in staging buffers of its own.
  std::size_t num_loads = 0;
  bool is_window_full = false;
};

Result<std::vector<Outcome>> Store::Impl::get(const GetRequest& request) {
  Locked locked(*this);
  if (Status open = check_open(); !open.is_ok()) return open;
  auto known = find_namespace(request.namespace_index);
  if (!known.is_ok()) return known.status();
  const TimeNs now_ns = seams_.clock->now_ns();
  leases_.expire(now_ns);
  GetCall call{request, *known.value(), now_ns + request.timeout_ns, {}, 0, 0, 0, 0, false};
  call.blocks.resize(request.keys.size());
  stats_.get_blocks += request.keys.size();
  ++num_calls_;
  const auto found = resolve(request.namespace_index, request.keys, request.is_prefix);
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found[i].second == Tier::kNone) continue;
    call.blocks[i].entry = found[i].first;
    life_.hold(found[i].first);
  }
  for (std::size_t i = 0; i < call.blocks.size(); ++i) {
    if (call.blocks[i].entry == kNoEntry) continue;
    call.blocks[i].outcome = deliver(call, i, locked);
    if (call.blocks[i].outcome != Outcome::kDone && request.is_prefix) break;
  }
  finish_get(call);
  --num_calls_;
  changed();
  std::vector<Outcome> outcomes;
  outcomes.reserve(call.blocks.size());
  for (const GetCall::Block& block : call.blocks) outcomes.push_back(block.outcome);
  return outcomes;
}

/// Copies block `i` to its target, or says why not; then the target is untouched.
Outcome Store::Impl::deliver(GetCall& call, std::size_t i, Locked& locked) {
  issue_loads(call);
  GetCall::Block& block = call.blocks[i];
  if (!block.load && !index_.at(block.entry).is_resident(kHost)) {
    if (!disk_ || !disk_->is_readable()) return Outcome::kMiss;
    block.is_from_disk = true;
    if (!wait_for_buffer(call, i, locked)) return Outcome::kTimeout;
    if (!block.load && !index_.at(block.entry).is_resident(kHost)) {
      return Outcome::kMiss;  // Removed, or its tier turned off, while the call waited.
    }
  }
  if (block.load) return deliver_loaded(call, i, locked);

  const std::byte* source = host_->address(index_.at(block.entry).slot(kHost));
  host_copies_.begin(call.space.block_bytes);
  locked.lock().unlock();
  copy_bytes({call.request.targets[i], call.space.block_bytes}, {source, call.space.block_bytes});
  locked.lock().lock();
  host_copies_.end(call.space.block_bytes, call.space.block_bytes);
  ++host_space_.stats.hits;
  host_space_.stats.bytes_read += call.space.block_bytes;
  return Outcome::kDone;
}

Outcome Store::Impl::deliver_loaded(GetCall& call, std::size_t i, Locked& locked) {
  GetCall::Block& block = call.blocks[i];
  const std::shared_ptr<Load> load = block.load;
  block.is_from_disk = true;
  const auto is_settled = [&] {
    const bool is_in_work =
        load->state == Load::State::kReading || load->state == Load::State::kVerifying;
    return !is_in_work || (disk_->health() == Health::kStalled && !load->is_reading_ended);
  };
  if (!is_settled()) (void)wait(locked, is_settled, call.deadline_ns);
  if (load->state == Load::State::kRead) {
    loader_->begin_verify(*load);
    locked.lock().unlock();
    const auto checksums =
        store::checksum_block(call.space, call.request.keys[i], load->buffer.data());
    locked.lock().lock();
    loader_->end_verify(*load, index_.has_checksums(block.entry, checksums));
    notify_waiters();
  }
  Outcome outcome = Outcome::kTimeout;
  if (load->state == Load::State::kFailed) outcome = load->outcome;
  if (load->state == Load::State::kReady) {
    locked.lock().unlock();
    copy_bytes({call.request.targets[i], call.space.block_bytes},
               load->buffer.first(call.space.block_bytes));
    locked.lock().lock();
    outcome = Outcome::kDone;
    ++disk_space_.stats.hits;
  }
  drop_load(call, i);
  return outcome;
}

/// Starts reads for the coming blocks as far as the window and free buffers go. A window that was
/// full is refilled a good part at a time: neighbours that are asked for together become one read.
void Store::Impl::issue_loads(GetCall& call) {
  if (!disk_ || !disk_->is_readable()) return;
  const std::uint64_t slot_bytes = call.space.slot_bytes;
  const bool is_slow = loader_->least_read_ns() > kSlowReadNs;
  const std::uint64_t window_bytes =
      std::max(is_slow ? kReadAheadSlowBytes : kReadAheadBytes, kReadAheadLongBlocks * slot_bytes);
  if (call.is_window_full) {
    if (call.read_ahead_bytes + window_bytes / 4 > window_bytes) return;
    if (call.num_loads > kReadAheadBlocksMax / 4 * 3) return;
  }
  call.is_window_full = false;
  for (; call.next_to_issue < call.blocks.size(); ++call.next_to_issue) {
    const std::size_t i = call.next_to_issue;
    if (call.blocks[i].entry == kNoEntry || index_.at(call.blocks[i].entry).is_resident(kHost)) {
      continue;
    }
    call.is_window_full =
        call.num_loads > 0 && (call.read_ahead_bytes + slot_bytes > window_bytes ||
                               call.num_loads >= kReadAheadBlocksMax);
    if (call.is_window_full || !start_load(call, i, 0)) break;
  }
  submit_io();
}

/// Whether the call may take one more staging buffer: within its window, or a second one while most
/// of the pool is idle. Its first is always allowed.
bool Store::Impl::may_stage_more(const GetCall& call) const {
  const std::uint64_t slot_bytes = call.space.slot_bytes;
  if (call.staged_bytes == 0) return true;
  const bool is_pool_idle = staging_->used_bytes() + slot_bytes <= staging_->capacity_bytes() / 2;
  const std::uint64_t num_windows = is_pool_idle ? 2 : 1;
  return call.staged_bytes + slot_bytes <= num_windows * staging_->window_bytes();
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
    const std::uint64_t slot_bytes = call.space.slot_bytes;
    std::optional<store::SlotRef> slot;
    if (call.space.host_class && entry.tier_state(kHost) == store::CopyState::kAbsent) {
      slot = host_->reserve(*call.space.host_class, block.entry);
    }
    if (slot) {
      life_.begin_fill(block.entry, kHost, *slot);
      block.load = loader_->start(block.entry, host_->bytes(*slot).subspan(0, slot_bytes), true);
    } else {
      if (!may_stage_more(call)) return false;
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
/// line is safe: everybody before it gets on without it.
bool Store::Impl::wait_for_buffer(GetCall& call, std::size_t i, Locked& locked) {
  const std::uint64_t ticket = staging_->enter_line();
  const auto is_settled = [&] { return !disk_->is_readable() || start_load(call, i, ticket); };
  const bool is_done = is_settled() || wait(locked, is_settled, call.deadline_ns);
  staging_->leave_line(ticket);
  changed();
  if (call.next_to_issue == i && call.blocks[i].load) ++call.next_to_issue;
  return is_done;
}

void Store::Impl::drop_load(GetCall& call, std::size_t i) {
  GetCall::Block& block = call.blocks[i];
  if (!block.load) return;
  loader_->leave(block.load);
  block.load.reset();
  --call.num_loads;
  call.read_ahead_bytes -= call.space.slot_bytes;
  if (std::exchange(block.is_staged, false)) call.staged_bytes -= call.space.slot_bytes;
  notify_waiters();
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
