// put without a host slot: through staging buffers straight to disk, a window at a time.
// Thread-safe.
#include <cstring>
#include <utility>

#include "store/put_call.h"

namespace kvtier {

using store::GiveWay;
using store::wait_until;

namespace {

// A job gives way after so many bytes.
constexpr std::uint64_t kTurnBytes = 4ull << 20;
// The pump is told of so many bytes at once: each time costs a switch of threads, and neighbours
// that it sees together become one write.
constexpr std::uint64_t kToldBytes = 512ull << 10;

}  // namespace

Task<void> Store::Impl::fill_disk_blocks(PutCall& call, Flow& flow) {
  std::uint64_t turn_bytes = kTurnBytes;  // The first copy is not the submitter's.
  for (std::size_t i = 0; i < call.blocks.size(); ++i) {
    if (!call.blocks[i].takes_bytes() || is_given_up(call, i, flow)) continue;
    if (turn_bytes >= kTurnBytes) {
      turn_bytes = 0;
      tell_pump(call);
      co_await GiveWay(flow);
    }
    if (call.untold_bytes >= kToldBytes) tell_pump(call);
    const auto buffer = co_await take_window_buffer(call, i, flow);
    if (!buffer) {
      give_up_disk_block(call.blocks[i], flow.early_outcome());
      continue;
    }
    turn_bytes += call.space.slot_bytes;
    fill_disk_block(call, i, *buffer, flow);
  }
  co_await end_disk_blocks(call, flow);
}

/// Whether nothing is to be copied of it any more: the call was cancelled, or its parent is lost.
/// It has its outcome then.
bool Store::Impl::is_given_up(PutCall& call, std::size_t i, const Flow& flow) {
  PutBlock& block = call.blocks[i];
  if (flow.is_cancelled()) {
    give_up_disk_block(block, flow.early_outcome());
    return true;
  }
  if (!index_.at(block.entry).is_detached) return false;
  end_fill(block, Outcome::kDeclined);
  return true;
}

void Store::Impl::tell_pump(PutCall& call) {
  if (std::exchange(call.untold_bytes, 0) > 0) changed();
}

/// A staging buffer for block `i`, as soon as the call's earlier writes leave it room and its
/// parent is on its way to the disk; nothing when the call ended early.
auto Store::Impl::take_window_buffer(PutCall& call, std::size_t i, Flow& flow)
    -> Task<StagingBuffer> {
  const std::uint64_t slot_bytes = call.space.slot_bytes;
  while (call.window_bytes > 0 && !has_window_room(call)) {
    tell_pump(call);
    while (!call.blocks[call.first_in_window].is_in_window) ++call.first_in_window;
    const auto is_ended = [fill = call.blocks[call.first_in_window].fill] {
      return fill->is_ended;
    };
    (void)co_await wait_until(flow, is_ended, call.deadline_ns);
    call.window_bytes -= slot_bytes;
    ++call.first_in_window;
  }
  const auto is_coming = [this, &call, i] { return is_parent_coming(call, i); };
  if (!is_coming()) tell_pump(call);
  const bool has_parent = co_await wait_until(flow, is_coming, call.deadline_ns);
  StagingBuffer buffer;
  if (has_parent) {
    buffer = co_await reserve_staging(slot_bytes, call.window_bytes > 0, call.deadline_ns, flow);
  }
  if (buffer) note_in_window(call, i);
  co_return buffer;
}

/// The same without waiting, for a call that holds some already.
auto Store::Impl::try_window_buffer(PutCall& call, std::size_t i) -> StagingBuffer {
  if (!has_window_room(call) || !is_parent_coming(call, i)) return std::nullopt;
  const auto buffer = staging_->reserve(0, call.space.slot_bytes);
  if (buffer) note_in_window(call, i);
  return buffer;
}

void Store::Impl::note_in_window(PutCall& call, std::size_t i) {
  call.window_bytes += call.space.slot_bytes;
  call.blocks[i].is_in_window = true;
}

bool Store::Impl::has_window_room(const PutCall& call) const {
  return staging_->may_hold_more(call.window_bytes, call.space.slot_bytes);
}

/// A child that came to the disk before its parent would be declined.
bool Store::Impl::is_parent_coming(const PutCall& call, std::size_t i) const {
  const EntryIndex entry = call.blocks[i].entry;
  if (is_parent_settled(entry)) return true;
  const EntryIndex parent = index_.at(entry).parent;
  const auto own = call.own.find(parent);
  return index_.at(parent).is_queued ||
         (own != call.own.end() && call.blocks[own->second].is_in_window);
}

Task<void> Store::Impl::end_disk_blocks(PutCall& call, Flow& flow) {
  tell_pump(call);
  for (PutBlock& block : call.blocks) {
    if (!block.is_in_window) continue;
    const auto is_ended = [&block] { return block.fill->is_ended; };
    const bool is_in_time = co_await wait_until(flow, is_ended, call.deadline_ns);
    block.outcome = is_in_time ? block.fill->outcome : flow.early_outcome();
  }
}

/// Nothing of it was copied: a new key is absent again, what was stored before stays.
void Store::Impl::give_up_disk_block(PutBlock& block, Outcome outcome) {
  const bool is_new = block.kind == PutBlock::Kind::kNew;
  const EntryIndex entry = block.entry;
  if (is_new && !index_.at(entry).is_detached) life_.remove_family(entry);
  end_fill(block, is_new ? outcome : Outcome::kDone);
}

void Store::Impl::fill_disk_block(PutCall& call, std::size_t i, std::span<std::byte> buffer,
                                  Flow& flow) {
  PutBlock& block = call.blocks[i];
  flow.lock().unlock();
  block.checksums = store::copy_and_checksum_block(call.space, call.request.keys[i], buffer.data(),
                                                   call.request.sources[i]);
  std::memset(buffer.data() + call.space.block_bytes, 0,
              call.space.slot_bytes - call.space.block_bytes);
  flow.lock().lock();
  submit_disk_block(call, i, buffer);
}

/// Its bytes lie in the buffer, and their checksums in the block.
void Store::Impl::submit_disk_block(PutCall& call, std::size_t i, std::span<std::byte> buffer) {
  PutBlock& block = call.blocks[i];
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
  call.untold_bytes += buffer.size();
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
}

auto Store::Impl::reserve_staging(std::uint64_t num_bytes, bool is_holding, TimeNs deadline_ns,
                                  Flow& flow) -> Task<StagingBuffer> {
  StagingBuffer buffer;
  // Whoever holds buffers need not stand in line behind those who hold none, but waits for its own
  // writes to give some back.
  if (is_holding) buffer = staging_->reserve(0, num_bytes);
  if (buffer) co_return buffer;
  changed();  // Those writes may not be known to the pump yet.
  const std::uint64_t ticket = staging_->enter_line();
  const auto is_reserved = [this, &buffer, ticket, num_bytes] {
    if (!buffer) buffer = staging_->reserve(ticket, num_bytes);
    return buffer.has_value();
  };
  (void)co_await wait_until(flow, is_reserved, deadline_ns);
  staging_->leave_line(ticket);
  changed();
  co_return buffer;
}

}  // namespace kvtier
